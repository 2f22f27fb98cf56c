/*
 * The memory of buckets: host memory or a GPU's.
 *
 * On a GPU everything is done in stream order. Buckets are reduced in a stream of their own, which starts after what
 * the caller's stream holds when a bucket is launched; at the end of a step the caller's stream waits for it.
 */
#include <string.h>

#include <tutti/device.h>

#include "ddp/ddp_state.h"

tutti_status tutti_ddp_memory_open(tutti_ddp *ddp) {
    if (!tutti_ddp_on_gpu(ddp)) return TUTTI_OK;
    return tutti_device_stream_create(&ddp->stream);
}

void tutti_ddp_memory_close(tutti_ddp *ddp) {
    if (ddp->stream) (void)tutti_device_stream_destroy(ddp->stream);
    ddp->stream = NULL;
}

tutti_status tutti_ddp_memory_zero(const tutti_ddp *ddp, void *memory, size_t bytes) {
    if (tutti_ddp_on_gpu(ddp)) return tutti_device_fill(memory, 0, bytes, ddp->options.stream);
    memset(memory, 0, bytes);
    return TUTTI_OK;
}

tutti_status tutti_ddp_memory_alloc(const tutti_ddp *ddp, size_t bytes, void **memory_out) {
    TUTTI_TRY(tutti_ddp_on_gpu(ddp) ? tutti_mem_alloc_cuda(bytes, memory_out) : tutti_mem_alloc(bytes, memory_out));
    return tutti_ddp_memory_zero(ddp, *memory_out, bytes);
}

tutti_status tutti_ddp_memory_copy(const tutti_ddp *ddp, void *dst, const void *src, size_t bytes) {
    if (tutti_ddp_on_gpu(ddp)) return tutti_device_copy(dst, src, bytes, ddp->options.stream);
    memcpy(dst, src, bytes);
    return TUTTI_OK;
}

tutti_status tutti_ddp_memory_fork(const tutti_ddp *ddp) {
    return tutti_ddp_on_gpu(ddp) ? tutti_device_follow(ddp->stream, ddp->options.stream) : TUTTI_OK;
}

tutti_status tutti_ddp_memory_join(const tutti_ddp *ddp) {
    return tutti_ddp_on_gpu(ddp) ? tutti_device_follow(ddp->options.stream, ddp->stream) : TUTTI_OK;
}
