/*
 * Where operators compute: the kernels for the placement's memory, the GPU and the stream, and temporary memory.
 *
 * Invariant: nothing here, and no operator, waits for a GPU. A call's temporary memory is released in stream order.
 */
#include <stdlib.h>

#include "kernels/device.h"
#include "ops/call.h"

tutti_status tutti_ops_find_kernels(const char *name, const tutti_placement *placement,
                                    const tutti_operators **kernels_out) {
    *kernels_out = NULL;
    if (tutti_placement_coordinate(placement, -1) < 0) return TUTTI_OK;
    *kernels_out = &tutti_operators_host;
    if (tutti_placement_memory(placement) != TUTTI_MEMORY_CUDA) return TUTTI_OK;
    tutti_status status = tutti_device_operators(kernels_out);
    if (status == TUTTI_OK) return status;
    return tutti_fail(status, "%s of tensors in CUDA memory: %s; tutti_tensor_to_global moves them to the host's", name,
                      tutti_last_error());
}

tutti_status tutti_ops_visit(const tutti_placement *placement, tutti_status (*run)(void *context), void *context) {
    const tutti_device *device = NULL;
    const int gpu = tutti_placement_gpu(placement);
    int before = gpu;
    if (gpu < 0) return run(context);
    TUTTI_TRY(tutti_device_open(&device));
    TUTTI_TRY(device->current(&before));
    if (before != gpu) TUTTI_TRY(device->use(gpu));
    tutti_status status = run(context);
    if (before != gpu) device->leave(before);
    return status;
}

/* ------------------------------------------------------------------------------------------------ streams */

static _Thread_local void *stream_of_thread;
static _Thread_local tutti_options options_of_thread;

void tutti_op_use_stream(void *stream) {
    stream_of_thread = stream;
}

const tutti_options *tutti_ops_collectives(const tutti_options *options) {
    if (options != NULL) return options;
    options_of_thread = TUTTI_OPTIONS(.stream = stream_of_thread);
    return &options_of_thread;
}

const tutti_options *tutti_ops_options(const tutti_op_options *options) {
    return tutti_ops_collectives(options != NULL ? options->options : NULL);
}

/* ------------------------------------------------------------------------------------------------ memory */

tutti_status tutti_ops_tensor_make(const tutti_layout *layout, const tutti_options *options,
                                   tutti_tensor **tensor_out) {
    return tutti_tensor_create_in_stream(layout, tutti_ops_collectives(options)->stream, tensor_out);
}

void tutti_ops_tensor_end(tutti_tensor *tensor, const tutti_options *options) {
    tutti_tensor_destroy_in_stream(tensor, tutti_ops_collectives(options)->stream);
}

/* On a GPU: a tensor of bytes, of which each rank has its own copy. */
static tutti_status take_on_gpu(const tutti_ops_call *call, size_t bytes, tutti_ops_scratch *scratch_out) {
    const int64_t shape[] = {(int64_t)bytes};
    const tutti_layout layout = TUTTI_LAYOUT(.placement = tutti_ops_input(call, 0)->placement, .type = TUTTI_UINT8,
                                             .ndims = 1, .shape = shape, .name = "scratch");
    tutti_local local;
    TUTTI_TRY(tutti_tensor_create_in_stream(&layout, call->stream, &scratch_out->tensor));
    TUTTI_TRY(tutti_tensor_local(scratch_out->tensor, &local));
    scratch_out->memory = local.data;
    return TUTTI_OK;
}

tutti_status tutti_ops_scratch_take(const tutti_ops_call *call, size_t bytes, tutti_ops_scratch *scratch_out) {
    *scratch_out = (tutti_ops_scratch){.memory = NULL};
    if (bytes == 0) return TUTTI_OK;
    if (tutti_placement_gpu(tutti_ops_input(call, 0)->placement) >= 0) return take_on_gpu(call, bytes, scratch_out);
    scratch_out->memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (scratch_out->memory != NULL) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for %zu bytes of scratch", call->row->name, bytes);
}

void tutti_ops_scratch_give(const tutti_ops_call *call, tutti_ops_scratch *scratch) {
    if (scratch->tensor != NULL) tutti_tensor_destroy_in_stream(scratch->tensor, call->stream);
    else free(scratch->memory);
    *scratch = (tutti_ops_scratch){.memory = NULL};
}
