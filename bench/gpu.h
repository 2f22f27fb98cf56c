/*
 * A rank's GPU: which one it is, memory there, its stream and waiting for it, CUDA graphs, and matrix products to be busy
 * with. Buffers on it are reached by the calls of <tutti/device.h>.
 *
 * Everything is enqueued in one stream, in the order of the calls; nothing here waits but what says so. Each rank has its own
 * object, and uses it from its own thread.
 */
#ifndef TUTTI_BENCH_GPU_H
#define TUTTI_BENCH_GPU_H

#include "bench/options.h"
#include "bench/report.h"

typedef struct bench_gpu bench_gpu;

/* TUTTI_ERR_UNSUPPORTED with the reason where there is no GPU, or, with -G and --compute, no cuBLAS. `local_rank` is the
 * rank's number on its host, out of `local_ranks`. Close with bench_gpu_close. */
tutti_status bench_gpu_open(int local_rank, int local_ranks, const bench_options *options, bench_gpu **gpu_out);
void bench_gpu_close(bench_gpu *gpu); /* waits; NULL is allowed */

/* Its index, address and name. */
void bench_gpu_describe(const bench_gpu *gpu, bench_device *device_out);
size_t bench_gpu_memory_bytes(const bench_gpu *gpu);
/* The bytes of its memory that are free. TUTTI_ERR_UNSUPPORTED: the driver does not say. */
tutti_status bench_gpu_free_bytes(const bench_gpu *gpu, int64_t *bytes_out);
/* How many ranks have this GPU, at most. */
int bench_gpu_sharers(const bench_gpu *gpu);

/* Of cudaMalloc or, with --mem tutti, of tutti_mem_alloc_cuda; zeros. */
tutti_status bench_gpu_alloc(bench_gpu *gpu, size_t bytes, void **memory_out);
void bench_gpu_free(bench_gpu *gpu, void *memory);

void *bench_gpu_stream(const bench_gpu *gpu);
/* Until all that is in the stream is done. */
tutti_status bench_gpu_wait(bench_gpu *gpu);

/* With -G. What is enqueued between begin and end is not carried out but kept; replay enqueues it as one, as often as asked;
 * forget drops it, and is allowed without it. */
tutti_status bench_gpu_record_begin(bench_gpu *gpu);
tutti_status bench_gpu_record_end(bench_gpu *gpu);
tutti_status bench_gpu_replay(bench_gpu *gpu, int64_t times);
void bench_gpu_forget(bench_gpu *gpu);

/* With --compute. How many products take that long while this GPU has nothing else to do; waits. */
tutti_status bench_gpu_products(bench_gpu *gpu, int64_t duration_us, int64_t *products_out);
tutti_status bench_gpu_multiply(bench_gpu *gpu, int64_t products);

#endif
