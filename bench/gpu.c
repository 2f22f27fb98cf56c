/*
 * A rank's GPU. See gpu.h.
 *
 * The public API moves data; everything else that a benchmark needs (names of GPUs, waiting for a stream, graphs,
 * matrix products) comes from the tables of kernels/, and the amount of free memory from the driver, only here. The
 * parts for training need cuBLAS, so they are opened for -G and --compute only; the rank's stream is then theirs.
 */
#include "bench/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tutti/device.h>

#include "kernels/device.h"
#include "kernels/kernels.h"

#define SIDE   512 /* side of the matrices */
#define TRIALS 32  /* timed products */

struct bench_gpu {
    const tutti_device *device;
    int index, sharers;
    bench_memory memory;
    tutti_device_facts facts;
    tutti_stream stream;
    bool owns_stream;
    tutti_compute *compute; /* NULL: not needed */
    tutti_recording *recording;
    tutti_real *matrices; /* x, weight, bias, y; NULL: not needed */
};

/* ------------------------------------------------------------------------------------------- open, close */

static int first_device(void) {
    const char *text = getenv("NCCL_TESTS_DEVICE");
    return text != NULL ? (int)(strtoul(text, NULL, 10) & INT16_MAX) : 0;
}

/* Puts all ranks on one GPU if TUTTI_DEVICE names it, else the ranks in turn on all GPUs. */
static tutti_status choose(bench_gpu *gpu, int local_rank, int local_ranks) {
    const char *fixed = getenv("TUTTI_DEVICE");
    int count;
    TUTTI_TRY(tutti_device_count(&count));
    if (fixed != NULL && fixed[0] != '\0' && strcmp(fixed, "auto") != 0) {
        gpu->sharers = local_ranks;
        return tutti_device_get(&gpu->index);
    }
    gpu->index = (first_device() + local_rank) % count;
    gpu->sharers = (local_ranks + count - 1) / count;
    return TUTTI_OK;
}

static tutti_status open_compute(bench_gpu *gpu) {
    const tutti_kernels *kernels = NULL;
    tutti_compute_options options = {.device = gpu->index, .precision = TUTTI_PRECISION_FP32};
    TUTTI_TRY(tutti_device_kernels(&kernels));
    TUTTI_TRY(kernels->open(&options, &gpu->compute));
    gpu->stream = kernels->stream(gpu->compute);
    return TUTTI_OK;
}

static tutti_status open_matrices(bench_gpu *gpu) {
    const tutti_kernels *kernels = gpu->compute->kernels;
    const size_t count = 3 * SIDE * SIDE + SIDE;
    void *memory;
    TUTTI_TRY(kernels->alloc(gpu->compute, count * sizeof *gpu->matrices, &memory));
    gpu->matrices = memory;
    kernels->fill(gpu->compute, count, (tutti_real)0.5, gpu->matrices);
    return kernels->wait(gpu->compute);
}

static tutti_status open_stream(bench_gpu *gpu, const bench_options *options) {
    if (options->graphs > 0 || options->compute_us > 0) TUTTI_TRY(open_compute(gpu));
    if (options->compute_us > 0) return open_matrices(gpu);
    if (gpu->compute != NULL || options->stream_null) return TUTTI_OK;
    TUTTI_TRY(gpu->device->stream_create(&gpu->stream));
    gpu->owns_stream = true;
    return TUTTI_OK;
}

tutti_status bench_gpu_open(int local_rank, int local_ranks, const bench_options *options, bench_gpu **gpu_out) {
    bench_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a GPU's description");
    gpu->memory = (bench_memory)options->memory;
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_device_open(&gpu->device), fail);
    TUTTI_TRY_GOTO(status, choose(gpu, local_rank, local_ranks), fail);
    TUTTI_TRY_GOTO(status, gpu->device->use(gpu->index), fail);
    TUTTI_TRY_GOTO(status, gpu->device->facts(gpu->index, &gpu->facts), fail);
    TUTTI_TRY_GOTO(status, open_stream(gpu, options), fail);
    *gpu_out = gpu;
    return TUTTI_OK;
fail:
    bench_gpu_close(gpu);
    return status;
}

void bench_gpu_close(bench_gpu *gpu) {
    if (gpu == NULL) return;
    if (gpu->compute != NULL) {
        const tutti_kernels *kernels = gpu->compute->kernels;
        bench_gpu_forget(gpu);
        kernels->free(gpu->compute, gpu->matrices);
        kernels->close(gpu->compute);
    }
    if (gpu->owns_stream) {
        (void)gpu->device->stream_sync(gpu->stream);
        (void)gpu->device->stream_destroy(gpu->stream);
    }
    free(gpu);
}

/* ------------------------------------------------------------------------------------------------- facts */

/* The address without the function at its end: 0000:3b:00.0 becomes 0000:3b:00, as nccl-tests writes it. */
void bench_gpu_describe(const bench_gpu *gpu, bench_device *device_out) {
    device_out->index = gpu->index;
    snprintf(device_out->address, sizeof device_out->address, "%.*s", (int)strcspn(gpu->facts.pci, "."),
             gpu->facts.pci);
    snprintf(device_out->name, sizeof device_out->name, "%s", gpu->facts.name);
}

size_t bench_gpu_memory_bytes(const bench_gpu *gpu) {
    return gpu->facts.memory_bytes;
}

/* Asks the driver itself, and leaves it open: only this function needs it. */
tutti_status bench_gpu_free_bytes(const bench_gpu *gpu, int64_t *bytes_out) {
    int (*ask)(size_t *free_out, size_t *total_out) = NULL;
    size_t unused = 0, total = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = driver != NULL ? dlsym(driver, "cuMemGetInfo_v2") : NULL;
    TUTTI_TRY(gpu->device->use(gpu->index));
    memcpy(&ask, &symbol, sizeof ask);
    int result = ask != NULL ? ask(&unused, &total) : -1;
    if (result != 0)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "-M: %s report the GPU's free memory (%s)",
                          ask != NULL ? "the driver does not" : "there is no driver to",
                          ask != NULL ? "cuMemGetInfo failed" : "libcuda.so.1, cuMemGetInfo_v2");
    *bytes_out = (int64_t)unused;
    return TUTTI_OK;
}

int bench_gpu_sharers(const bench_gpu *gpu) {
    return gpu->sharers;
}

/* ------------------------------------------------------------------------------------------------ memory */

tutti_status bench_gpu_alloc(bench_gpu *gpu, size_t bytes, void **memory_out) {
    void *memory;
    if (gpu->memory == BENCH_MEMORY_TUTTI) TUTTI_TRY(tutti_mem_alloc_cuda(bytes, &memory));
    else TUTTI_TRY(gpu->device->alloc(bytes, &memory));
    *memory_out = memory;
    TUTTI_TRY(tutti_device_fill(memory, 0, bytes, gpu->stream));
    return bench_gpu_wait(gpu);
}

void bench_gpu_free(bench_gpu *gpu, void *memory) {
    if (memory == NULL) return;
    (void)bench_gpu_wait(gpu);
    if (gpu->memory == BENCH_MEMORY_TUTTI) (void)tutti_mem_free(memory);
    else (void)gpu->device->free(memory);
}

void *bench_gpu_stream(const bench_gpu *gpu) {
    return gpu->stream;
}

tutti_status bench_gpu_wait(bench_gpu *gpu) {
    return gpu->device->stream_sync(gpu->stream);
}

/* ------------------------------------------------------------------------------------------------ graphs */

tutti_status bench_gpu_record_begin(bench_gpu *gpu) {
    return gpu->compute->kernels->record_begin(gpu->compute);
}

tutti_status bench_gpu_record_end(bench_gpu *gpu) {
    return gpu->compute->kernels->record_end(gpu->compute, &gpu->recording);
}

tutti_status bench_gpu_replay(bench_gpu *gpu, int64_t times) {
    for (int64_t i = 0; i < times; i++) TUTTI_TRY(gpu->compute->kernels->replay(gpu->compute, gpu->recording));
    return TUTTI_OK;
}

void bench_gpu_forget(bench_gpu *gpu) {
    if (gpu->recording != NULL) gpu->compute->kernels->forget(gpu->compute, gpu->recording);
    gpu->recording = NULL;
}

/* ---------------------------------------------------------------------------------------------- products */

tutti_status bench_gpu_multiply(bench_gpu *gpu, int64_t products) {
    static const tutti_dense dense = {.inputs = SIDE, .outputs = SIDE};
    const size_t count = (size_t)SIDE * SIDE;
    tutti_dense_forward_args args = {.batch = SIDE,
                                     .x = gpu->matrices,
                                     .weight = gpu->matrices + count,
                                     .y = gpu->matrices + 2 * count,
                                     .bias = gpu->matrices + 3 * count};
    for (int64_t i = 0; i < products; i++) gpu->compute->kernels->dense_forward(gpu->compute, &dense, &args);
    return gpu->compute->kernels->check(gpu->compute);
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* The first products load code and are not counted. */
tutti_status bench_gpu_products(bench_gpu *gpu, int64_t duration_us, int64_t *products_out) {
    double start = 0;
    for (int round = 0; round < 2; round++) {
        start = now_us();
        TUTTI_TRY(bench_gpu_multiply(gpu, TRIALS));
        TUTTI_TRY(bench_gpu_wait(gpu));
    }
    double each_us = (now_us() - start) / TRIALS;
    int64_t products = (int64_t)((double)duration_us / each_us + 0.5);
    *products_out = products > 0 ? products : 1;
    return TUTTI_OK;
}
