/*
 * Tensors: a layout and a shard; and redistribution with plans that are kept for reuse.
 */
#include <tutti/tensor.h>

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "tensor/gpu.h"
#include "tensor/plan/plan.h"
#include "tensor/tensor.h"

/* ------------------------------------------------------------------------------------------------ storage */

tutti_status tutti_storage_create(void (*release)(void *context), void *context, tutti_storage **storage_out) {
    tutti_storage *storage;
    TUTTI_TRY(tutti_calloc(1, sizeof *storage, &storage));
    *storage = (tutti_storage){.references = 1, .release = release, .context = context};
    *storage_out = storage;
    return TUTTI_OK;
}

tutti_storage *tutti_storage_keep(tutti_storage *storage) {
    if (storage != NULL) __atomic_add_fetch(&storage->references, 1, __ATOMIC_RELAXED);
    return storage;
}

void tutti_storage_release(tutti_storage *storage) {
    if (storage == NULL || __atomic_sub_fetch(&storage->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    storage->release(storage->context);
    free(storage);
}

/* ------------------------------------------------------------------------------------------------ tensors */

tutti_status tutti_tensor_begin(const tutti_layout *layout, tutti_tensor **tensor_out) {
    tutti_tensor *tensor;
    TUTTI_TRY(tutti_calloc(1, sizeof *tensor, &tensor));
    tutti_status status = tutti_layout_keep(layout, &tensor->layout);
    if (status != TUTTI_OK) {
        free(tensor);
        return status;
    }
    tensor->region.ndims = layout->ndims;
    if (layout->placement->me >= 0) {
        tutti_tiling_region(&tensor->layout->tiling, layout->placement->me, &tensor->region);
        tensor->count = (size_t)tutti_region_elements(&tensor->region);
    }
    *tensor_out = tensor;
    return TUTTI_OK;
}

static void free_memory(void *memory) {
    (void)tutti_mem_free(memory);
}

/* Makes the tensor the owner of the memory, or frees it. */
static tutti_status keep_memory(tutti_tensor *tensor, void *memory, size_t capacity) {
    tutti_status status = tutti_storage_create(free_memory, memory, &tensor->storage);
    if (status != TUTTI_OK) {
        free_memory(memory);
        return status;
    }
    tensor->data = memory;
    tensor->storage->capacity = capacity;
    return TUTTI_OK;
}

static size_t shard_bytes(const tutti_tensor *tensor) {
    return tensor->count * tutti_type_bytes(tensor->layout->view.type);
}

tutti_status tutti_tensor_allocate(tutti_tensor *tensor) {
    const tutti_placement *placement = tensor->layout->view.placement;
    const bool cuda = placement->memory == TUTTI_MEMORY_CUDA;
    size_t bytes = shard_bytes(tensor);
    void *memory = NULL;
    if (tensor->count == 0) return TUTTI_OK;
    if (cuda) TUTTI_TRY(tutti_gpu_alloc(placement->gpu, bytes, &memory));
    else TUTTI_TRY(tutti_mem_alloc(bytes, &memory));
    return keep_memory(tensor, memory, cuda ? bytes : 0);
}

static tutti_status allocate_in_stream(tutti_tensor *tensor, tutti_stream stream) {
    const tutti_placement *placement = tensor->layout->view.placement;
    tutti_gpu_visit visit;
    void *memory = NULL;
    size_t capacity = 0;
    if (placement->memory != TUTTI_MEMORY_CUDA || tensor->count == 0) return tutti_tensor_allocate(tensor);
    TUTTI_TRY(tutti_gpu_enter(placement->gpu, &visit));
    tutti_status status = tutti_reuse_take(tutti_rank_groups_reuse(placement->groups), visit.device,
                                           shard_bytes(tensor), stream, &memory, &capacity);
    tutti_gpu_leave(&visit);
    return status == TUTTI_OK ? keep_memory(tensor, memory, capacity) : status;
}

/* Returns the memory to the pool for reuse; otherwise the storage keeps it, and frees it with CUDA. */
static void release_in_stream(tutti_tensor *tensor, tutti_stream stream) {
    tutti_storage *storage = tensor->storage;
    const tutti_placement *placement = tensor->layout->view.placement;
    tutti_gpu_visit visit;
    if (storage == NULL || storage->capacity == 0 || __atomic_load_n(&storage->references, __ATOMIC_ACQUIRE) > 1)
        return;
    if (tutti_gpu_enter(placement->gpu, &visit) != TUTTI_OK) return;
    if (tutti_reuse_give(tutti_rank_groups_reuse(placement->groups), visit.device, storage->context, storage->capacity,
                         stream)) {
        free(storage);
        tensor->storage = NULL;
    }
    tutti_gpu_leave(&visit);
}

static tutti_status finish(tutti_tensor *tensor, tutti_status status, tutti_tensor **tensor_out) {
    if (status == TUTTI_OK) *tensor_out = tensor;
    else tutti_tensor_destroy(tensor);
    return status;
}

tutti_status tutti_tensor_create(const tutti_layout *layout, tutti_tensor **tensor_out) {
    tutti_tensor *tensor;
    if (tensor_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_create: NULL argument");
    TUTTI_TRY(tutti_tensor_begin(layout, &tensor));
    return finish(tensor, tutti_tensor_allocate(tensor), tensor_out);
}

tutti_status tutti_tensor_create_in_stream(const tutti_layout *layout, void *stream, tutti_tensor **tensor_out) {
    tutti_tensor *tensor;
    if (tensor_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_create_in_stream: NULL argument");
    TUTTI_TRY(tutti_tensor_begin(layout, &tensor));
    return finish(tensor, allocate_in_stream(tensor, stream), tensor_out);
}

static tutti_status check_memory(const tutti_tensor *tensor, const void *local) {
    char text[300], words[60];
    bool fits = true;
    if (tensor->count == 0) return TUTTI_OK;
    tutti_layout_text(tensor->layout, text, sizeof text);
    if (local == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_tensor_wrap: this rank has %zu elements of %s, and the memory is NULL", tensor->count,
                          text);
    int gpu = tensor->layout->view.placement->gpu;
    TUTTI_TRY(tutti_gpu_check_place(gpu, local, &fits, words, sizeof words));
    if (fits) return TUTTI_OK;
    if (gpu < 0)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "tutti_tensor_wrap: %p is %s; shards of %s lie in host memory; for a GPU's, pass TUTTI_MEMORY_CUDA to "
            "tutti_placement_create",
            local, words, text);
    return tutti_fail(
        TUTTI_ERR_ARGUMENT,
        "tutti_tensor_wrap: %p is %s; this rank's shards of %s lie in memory of GPU %d, the calling thread's "
        "GPU in tutti_placement_create",
        local, words, text, gpu);
}

tutti_status tutti_tensor_wrap(const tutti_layout *layout, void *local, tutti_tensor **tensor_out) {
    tutti_tensor *tensor;
    if (tensor_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_wrap: NULL argument");
    TUTTI_TRY(tutti_tensor_begin(layout, &tensor));
    tutti_status status = check_memory(tensor, local);
    if (status != TUTTI_OK) {
        tutti_tensor_destroy(tensor);
        return status;
    }
    tensor->data = tensor->count > 0 ? local : NULL;
    *tensor_out = tensor;
    return TUTTI_OK;
}

void tutti_tensor_destroy(tutti_tensor *tensor) {
    if (tensor == NULL) return;
    tutti_storage_release(tensor->storage);
    tutti_layout_release(tensor->layout);
    free(tensor);
}

void tutti_tensor_destroy_in_stream(tutti_tensor *tensor, void *stream) {
    if (tensor == NULL) return;
    release_in_stream(tensor, stream);
    tutti_tensor_destroy(tensor);
}

tutti_status tutti_tensor_local(const tutti_tensor *tensor, tutti_local *local_out) {
    if (tensor == NULL || local_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_local: NULL argument");
    tutti_local local = {.data = tensor->data, .ndims = tensor->region.ndims, .count = tensor->count};
    for (int d = 0; d < local.ndims; d++) {
        local.first[d] = tensor->region.first[d];
        local.shape[d] = tensor->region.end[d] - tensor->region.first[d];
    }
    *local_out = local;
    return TUTTI_OK;
}

const tutti_layout *tutti_tensor_layout(const tutti_tensor *tensor) {
    return tensor != NULL ? &tensor->layout->view : NULL;
}

/* --------------------------------------------------------------------------------------------- redistribution */

static tutti_status check_layout(const tutti_tensor *tensor, const tutti_kept_layout *planned, uint64_t *known,
                                 const char *side, size_t pair) {
    char is[300], should[300];
    if (tensor == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_plan_run: %s %zu is NULL", side, pair);
    if (tensor->layout->serial == __atomic_load_n(known, __ATOMIC_RELAXED)) return TUTTI_OK;
    if (tutti_layout_fits(tensor->layout, planned)) {
        __atomic_store_n(known, tensor->layout->serial, __ATOMIC_RELAXED);
        return TUTTI_OK;
    }
    tutti_layout_text(tensor->layout, is, sizeof is);
    tutti_layout_text(planned, should, sizeof should);
    return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_plan_run: %s %zu is %s; the plan is for %s", side, pair, is, should);
}

/* Options of another version's size are copied. */
static tutti_status take_options(const tutti_options **options, tutti_options *taken) {
    if (*options == NULL || (*options)->struct_bytes == sizeof **options) return TUTTI_OK;
    TUTTI_TRY(tutti_struct_take("redistribution: options", "TUTTI_OPTIONS(...)", *options, taken, sizeof *taken));
    *options = taken;
    return TUTTI_OK;
}

tutti_status tutti_plan_run(tutti_plan *plan, const tutti_tensor *const *srcs, tutti_tensor *const *dsts,
                            const tutti_options *options) {
    enum { FEW = 8 };
    void *few[2 * FEW], **shards = few;
    tutti_options taken;
    if (plan == NULL || srcs == NULL || dsts == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_plan_run: NULL argument");
    TUTTI_TRY(take_options(&options, &taken));
    for (size_t i = 0; i < plan->npairs; i++) {
        tutti_route *route = &plan->routes[i];
        TUTTI_TRY(check_layout(srcs[i], route->src, &route->known[0], "source", i));
        TUTTI_TRY(check_layout(dsts[i], route->dst, &route->known[1], "target", i));
    }
    if (plan->npairs > FEW) TUTTI_TRY(tutti_calloc(2 * plan->npairs, sizeof *shards, &shards));
    for (size_t i = 0; i < plan->npairs; i++) {
        shards[i] = srcs[i]->data;
        shards[plan->npairs + i] = dsts[i]->data;
    }
    tutti_status status = tutti_plan_carry_out(plan, shards, shards + plan->npairs, options);
    if (shards != few) free(shards);
    return status;
}

tutti_status tutti_tensor_redistribute(const tutti_tensor *src, tutti_tensor *dst, const tutti_options *options) {
    tutti_plan *plan;
    tutti_options taken;
    if (src == NULL || dst == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_redistribute: NULL argument");
    TUTTI_TRY(take_options(&options, &taken));
    TUTTI_TRY(tutti_plan_find(src->layout, dst->layout, &plan));
    return tutti_plan_carry_out(plan, &src->data, &dst->data, options);
}

tutti_status tutti_tensor_to_global(const tutti_tensor *src, tutti_placement *placement, const tutti_sbp *sbp,
                                    const tutti_options *options, tutti_tensor **dst_out) {
    tutti_tensor *dst;
    if (src == NULL || dst_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_to_global: NULL argument");
    tutti_layout layout = src->layout->view;
    if (placement != NULL) layout.placement = placement;
    layout.sbp = sbp;
    layout.cuts = NULL;
    TUTTI_TRY(tutti_tensor_create(&layout, &dst));
    tutti_status status = tutti_tensor_redistribute(src, dst, options);
    if (status == TUTTI_OK) *dst_out = dst;
    else tutti_tensor_destroy(dst);
    return status;
}
