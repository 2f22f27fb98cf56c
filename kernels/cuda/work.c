/*
 * The work of streams: copies by the copy engines, reductions, many small copies and copies of boxes by kernels.
 */
#include "bootstrap/base/common.h"
#include "kernels/cuda/reduce/launch.h"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/cuda/state.h"

_Static_assert(TUTTI_CUDA_MOST_BUFFERS == TUTTI_DEVICE_MOST_BUFFERS,
               "the kernels take as many buffers as the table promises");
_Static_assert(sizeof(tutti_cuda_reduce_plan) < 4096 && sizeof(tutti_cuda_copies) < 4096 &&
                   sizeof(tutti_cuda_box) < 4096,
               "arguments of a kernel");

tutti_status tutti_cuda_copy(void *dst, const void *src, size_t bytes, tutti_stream stream) {
    TUTTI_CUDA_BEGIN();
    if (bytes == 0) return TUTTI_OK;
    TUTTI_CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream));
    return TUTTI_OK;
}

tutti_status tutti_cuda_fill(void *dst, int value, size_t bytes, tutti_stream stream) {
    TUTTI_CUDA_BEGIN();
    if (bytes == 0) return TUTTI_OK;
    TUTTI_CUDA_TRY(cudaMemsetAsync(dst, value, bytes, stream));
    return TUTTI_OK;
}

/* A misaligned address ends the context, and with it everything that the process has on the GPU. */
static tutti_status check_alignment(const tutti_reduce_args *args, void *const *dsts, int ndsts) {
    size_t bytes = tutti_cuda_type_bytes(args->type);
    uintptr_t bits = 0;
    for (int i = 0; i < args->nsrcs; i++) bits |= (uintptr_t)args->srcs[i];
    for (int i = 0; i < ndsts; i++) bits |= (uintptr_t)dsts[i];
    if (bits % bytes == 0) return TUTTI_OK;
    return tutti_cuda_host->fail(TUTTI_ERR_ARGUMENT,
                                 "a GPU reduces elements of %zu bytes only at addresses aligned to their size", bytes);
}

tutti_status tutti_cuda_reduce(const tutti_reduce_args *args, void *const *dsts, int ndsts, tutti_stream stream) {
    tutti_cuda_reduce_plan plan;
    int processors = 0;
    TUTTI_CUDA_BEGIN();
    if (args->nsrcs < 1 || args->nsrcs > TUTTI_CUDA_MOST_BUFFERS || ndsts < 1 || ndsts > TUTTI_CUDA_MOST_BUFFERS ||
        !tutti_cuda_reduce_supports(args->type, args->reduction))
        return tutti_cuda_host->fail(TUTTI_ERR_ARGUMENT,
                                     "a GPU cannot reduce %d sources to %d results with reduction %d of type %d",
                                     args->nsrcs, ndsts, (int)args->reduction, (int)args->type);
    if (args->count == 0) return TUTTI_OK;
    TUTTI_TRY(check_alignment(args, dsts, ndsts));
    TUTTI_TRY(tutti_cuda_processors(&processors));
    tutti_cuda_reduce_make_plan(args, dsts, ndsts, &plan);
    return tutti_cuda_result(tutti_cuda_launch_reduce(&plan, processors, stream), "starting a reduction");
}

/* A kernel copies from pinned memory: the copy engines would need the size from the host. */
tutti_status tutti_cuda_copy_counted(void *dst, const void *src, const void *bytes_at, size_t most,
                                     tutti_stream stream) {
    int processors = 0;
    TUTTI_CUDA_BEGIN();
    if (most == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_cuda_processors(&processors));
    return tutti_cuda_result(tutti_cuda_launch_counted((tutti_cuda_move){dst, src, most}, bytes_at, processors, stream),
                             "starting a copy");
}

tutti_status tutti_cuda_copy_many(void *const *dsts, const void *const *srcs, const size_t *bytes, int count,
                                  tutti_stream stream) {
    tutti_cuda_copies copies = {0};
    int processors = 0;
    TUTTI_CUDA_BEGIN();
    TUTTI_TRY(tutti_cuda_processors(&processors));
    for (int i = 0; i < count; i++) {
        if (bytes[i] > 0) copies.list[copies.count++] = (tutti_cuda_move){dsts[i], srcs[i], bytes[i]};
        bool full = copies.count == TUTTI_CUDA_MOST_COPIES || i == count - 1;
        if (!full || copies.count == 0) continue;
        TUTTI_TRY(tutti_cuda_result(tutti_cuda_launch_copies(&copies, processors, stream), "starting copies"));
        copies.count = 0;
    }
    return TUTTI_OK;
}

typedef struct box_launch {
    int processors;
    tutti_stream stream;
} box_launch;

static int launch_box(const tutti_cuda_box *box, void *context) {
    const box_launch *launch = context;
    return (int)tutti_cuda_launch_box(box, launch->processors, launch->stream);
}

tutti_status tutti_cuda_copy_box(const tutti_box_copy *copy, void *dst, const void *src, tutti_stream stream) {
    box_launch launch = {.stream = stream};
    if (tutti_box_is_contiguous(copy))
        return tutti_cuda_copy((char *)dst + copy->dst_first, (const char *)src + copy->src_first, copy->bytes, stream);
    TUTTI_CUDA_BEGIN();
    TUTTI_TRY(tutti_cuda_processors(&launch.processors));
    return tutti_cuda_result((cudaError_t)tutti_cuda_box_each(copy, dst, src, TUTTI_CUDA_BOX_MOST, launch_box, &launch),
                             "starting a copy");
}
