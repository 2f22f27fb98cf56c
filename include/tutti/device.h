/*
 * Tutti on GPUs: which one a process uses, and memory there that its peers can reach.
 *
 * Every call of tutti.h that moves data takes CUDA memory as it takes host memory. Then:
 *   - All buffers of the call are on one GPU, and all calls of a communicator, on one rank, on the same one.
 *   - The call enqueues the operation in options.stream (a cudaStream_t of the GPU; NULL: its legacy default stream; a thread's own,
 *     cudaStreamPerThread, may be given) and returns; it is done in stream order: what precedes it in the stream is done before,
 *     what follows sees its result. A stream is destroyed only when it has passed its calls. It waits for no peer, but for the first
 *     collective on CUDA memory of a communicator, in which the ranks meet.
 *   - With options.work the host can wait: the work ends when the stream has passed the operation. A failure that nobody waits
 *     for breaks the communicator: the next call, or tutti_comm_error, says what happened.
 *   - When a communicator breaks, streams do not wait for it any more. What is in the buffers then means nothing.
 *   - A message may go from CUDA memory to host memory and back. A send and a receive return as a collective does; what a
 *     receive took is told by tutti_work_get (options.received must be NULL).
 *   - A rank without a buffer (a barrier, counts that are all 0) says so by options.memory = TUTTI_MEMORY_CUDA. Who knows
 *     where his buffers are saves the library looking it up.
 */
#ifndef TUTTI_DEVICE_H
#define TUTTI_DEVICE_H

#include <tutti/tutti.h>

#ifdef __cplusplus
extern "C" {
#endif

/* GPUs that this process sees. TUTTI_ERR_UNSUPPORTED with the reason: no driver, one that is too old, no GPU, or a build
 * without CUDA. */
TUTTI_API tutti_status tutti_device_count(int *count_out);

/* The GPU of this rank, as an index into those that the process sees: TUTTI_DEVICE, else LOCAL_RANK modulo their number. The
 * library itself does not depend on it: buffers tell where they are. */
TUTTI_API tutti_status tutti_device_get(int *device_out);

/* Makes a GPU the calling thread's current one, as cudaSetDevice does; -1: that of tutti_device_get. */
TUTTI_API tutti_status tutti_device_use(int device);

/* Memory of the calling thread's current GPU, that peers on the same GPU can map and that NCCL can register, so that
 * collectives on it skip a copy. (Where NCCL is in use, and no communicator has ranks that share the GPU, it is NCCL's own, which
 * peers could not map.) Each block is an allocation of its own: for what lives long, such as gradient buckets. Aligned to 256
 * bytes. Freed by tutti_mem_free, which waits for the GPU, as cudaFree does. */
TUTTI_API tutti_status tutti_mem_alloc_cuda(size_t bytes, void **memory_out);

/* For programs that have no CUDA of their own; streams are cudaStream_t of the calling thread's current GPU, NULL is its default
 * stream. All return when enqueued, copies from and to ordinary host memory excepted. */
TUTTI_API tutti_status tutti_device_stream_create(void **stream_out); /* does not wait for the default stream */
/* What is enqueued in it is still done. NULL is allowed. */
TUTTI_API tutti_status tutti_device_stream_destroy(void *stream);
/* What comes into `stream` from now on waits for what is in `leader` now. */
TUTTI_API tutti_status tutti_device_follow(void *stream, void *leader);
TUTTI_API tutti_status tutti_device_copy(void *dst, const void *src, size_t bytes, void *stream);
TUTTI_API tutti_status tutti_device_fill(void *dst, int value, size_t bytes, void *stream);

#ifdef __cplusplus
}
#endif

#endif
