/*
 * A rank's GPU: its identity, its memory, its stream and waits for it, CUDA graphs, and matrix products that keep it
 * busy. Buffers on it are reached with the calls of <tutti/device.h>.
 *
 * Everything is enqueued in one stream, in the order of the calls; only the calls marked "waits" wait. Each rank has
 * its own object, and uses it from its own thread.
 */
#ifndef TUTTI_BENCH_GPU_H
#define TUTTI_BENCH_GPU_H

#include "bench/options.h"
#include "bench/report/report.h"

typedef struct bench_gpu bench_gpu;

/* Fails with TUTTI_ERR_UNSUPPORTED and the reason if there is no GPU, or, with -G and --compute, no cuBLAS.
 * `local_rank` is the rank's number on its host, out of `local_ranks`. Close with bench_gpu_close. */
tutti_status bench_gpu_open(int local_rank, int local_ranks, const bench_options *options, bench_gpu **gpu_out);
void bench_gpu_close(bench_gpu *gpu); /* waits; NULL is allowed */

/* Its index, address and name. */
void bench_gpu_describe(const bench_gpu *gpu, bench_device *device_out);
size_t bench_gpu_memory_bytes(const bench_gpu *gpu);
/* The free bytes of its memory. Fails with TUTTI_ERR_UNSUPPORTED if the driver does not report them. */
tutti_status bench_gpu_free_bytes(const bench_gpu *gpu, int64_t *bytes_out);
/* The largest number of ranks that may share this GPU. */
int bench_gpu_sharers(const bench_gpu *gpu);

/* Allocates with cudaMalloc or, with --mem tutti, with tutti_mem_alloc_cuda; the memory is zeroed. */
tutti_status bench_gpu_alloc(bench_gpu *gpu, size_t bytes, void **memory_out);
void bench_gpu_free(bench_gpu *gpu, void *memory);

void *bench_gpu_stream(const bench_gpu *gpu);
/* Waits until all work in the stream is done. */
tutti_status bench_gpu_wait(bench_gpu *gpu);

/* With -G. Work enqueued between begin and end is recorded instead of executed; replay enqueues it as one graph,
 * `times` times; forget drops it, and may be called without a recording. */
tutti_status bench_gpu_record_begin(bench_gpu *gpu);
tutti_status bench_gpu_record_end(bench_gpu *gpu);
tutti_status bench_gpu_replay(bench_gpu *gpu, int64_t times);
void bench_gpu_forget(bench_gpu *gpu);

/* With --compute: the number of products that take that long on the otherwise idle GPU; waits. */
tutti_status bench_gpu_products(bench_gpu *gpu, int64_t duration_us, int64_t *products_out);
tutti_status bench_gpu_multiply(bench_gpu *gpu, int64_t products);

#endif
