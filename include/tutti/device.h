/*
 * Tutti on GPUs: which GPU a process uses, and GPU memory that its peers can reach.
 *
 * Every call of tutti.h that moves data accepts CUDA memory as well as host memory. With CUDA memory:
 *   - All buffers of a call are on one GPU, and all calls of a communicator, on one rank, use the same GPU.
 *   - The call enqueues the operation in options.stream (a cudaStream_t of the GPU; NULL: its legacy default stream;
 *     a thread's own, cudaStreamPerThread, may be given) and returns. The operation runs in stream order: what
 *     precedes it in the stream is done before, what follows sees its result. A stream may be destroyed only when it
 *     has passed its calls. The call waits for no peer, except in the first collective on CUDA memory of a
 *     communicator, in which the ranks meet, and in all collectives of ranks on one GPU that are all threads of one
 *     process: CUDA may run their streams one behind the other, so no stream waits there for a call still to be made.
 *   - With options.work the host can wait: the work ends when the stream has passed the operation. A failure that no
 *     thread waits for breaks the communicator: the next call, or tutti_comm_error, reports it.
 *   - When a communicator breaks, streams stop waiting for it. The content of the buffers is then undefined.
 *   - A message may go from CUDA memory to host memory and back. A send and a receive return as a collective does;
 *     tutti_work_get reports what a receive received (options.received must be NULL).
 *   - A rank without a buffer (a barrier, counts that are all 0) sets options.memory = TUTTI_MEMORY_CUDA. A caller
 *     that knows where its buffers are can set it, too, and saves the library the look-up.
 *   - Errors that CUDA memory adds, and that the call returns. TUTTI_ERR_ARGUMENT: the rules above are not kept.
 *     TUTTI_ERR_UNSUPPORTED: no GPU, a call that cannot be captured into a graph, or one inside of a function of
 *     tutti_submit. They leave the communicator whole, except two ranks of one process in one stream
 *     (TUTTI_ERR_ARGUMENT). TUTTI_ERR_SYSTEM or TUTTI_ERR_MEMORY: the GPU or NCCL failed; it is broken if the operation
 *     was begun.
 */
#ifndef TUTTI_DEVICE_H
#define TUTTI_DEVICE_H

#include <tutti/tutti.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Errors of all calls below: TUTTI_ERR_UNSUPPORTED with the reason: no driver, a driver that is too old, no GPU, or a
 * build without CUDA; TUTTI_ERR_FORKED; TUTTI_ERR_SYSTEM or what CUDA reports otherwise. */

/* Counts the GPUs that this process sees. */
TUTTI_API tutti_status tutti_device_count(int *count_out);

/* Gives the GPU of this rank, as an index into the GPUs that the process sees: TUTTI_DEVICE, else LOCAL_RANK modulo
 * their number. The library itself does not depend on it: buffers determine their GPU. TUTTI_ERR_CONFIG: TUTTI_DEVICE
 * is no GPU here. Also the errors of tutti_world_get. */
TUTTI_API tutti_status tutti_device_get(int *device_out);

/* Makes a GPU the calling thread's current one, as cudaSetDevice does; -1: the GPU of tutti_device_get.
 * TUTTI_ERR_ARGUMENT: there is no such GPU. */
TUTTI_API tutti_status tutti_device_use(int device);

/* Allocates memory of the calling thread's current GPU that peers on the same GPU can map and that NCCL can
 * register, so that collectives on it skip a copy. (Where NCCL is in use, and no communicator has ranks that share
 * the GPU, it is memory of NCCL's own allocator, which peers could not map.) Each block is an allocation of its
 * own: meant for buffers that live long, such as gradient buckets. Aligned to 256 bytes. Free it with
 * tutti_mem_free, which waits for the GPU, as cudaFree does. A block that a peer has mapped is kept for the next one of
 * its size, whose allocation waits instead. TUTTI_ERR_MEMORY: the GPU has too little left. */
TUTTI_API tutti_status tutti_mem_alloc_cuda(size_t bytes, void **memory_out);

/* For programs that do not use CUDA themselves; streams are cudaStream_t of the calling thread's current GPU, NULL
 * is its default stream. All calls return when their work is enqueued, except copies from and to ordinary host
 * memory. */
TUTTI_API tutti_status tutti_device_stream_create(void **stream_out); /* does not wait for the default stream */
/* Destroys a stream; what is enqueued in it is still done. NULL is allowed. */
TUTTI_API tutti_status tutti_device_stream_destroy(void *stream);
/* Work that is enqueued in `stream` from now on waits for what is in `leader` now. */
TUTTI_API tutti_status tutti_device_follow(void *stream, void *leader);
/* Copies or fills `bytes` bytes in the stream. */
TUTTI_API tutti_status tutti_device_copy(void *dst, const void *src, size_t bytes, void *stream);
TUTTI_API tutti_status tutti_device_fill(void *dst, int value, size_t bytes, void *stream);

#ifdef __cplusplus
}
#endif

#endif
