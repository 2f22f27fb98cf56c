/*
 * The kernels of kernels/cuda for operators under other names than the host's (on_cuda.h), so that the host's tests
 * run them. They run synchronously on the emulated grid, on host memory.
 */
#include "tests/kernels/on_cuda.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/compute.h"
#include "kernels/cuda/operators/op_kernels.h"
#include "tests/support/emulated/enqueue.h"

static const tutti_operators *const gpu = &tutti_cuda_operators;

void emulated_enqueue(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context) {
    (void)stream;
    run(context);
    forget(context);
}

void *emulated_reach(const void *address) {
    return (void *)(uintptr_t)address;
}

static tutti_status current(int *device_out) {
    *device_out = 0;
    return TUTTI_OK;
}

static const tutti_module_host host = {.fail = tutti_fail, .last_error = tutti_last_error};
static const tutti_device device = {.current = current};
const tutti_module_host *tutti_cuda_host = &host;
const tutti_device *tutti_cuda_device = &device;

#define GOOD(call) cr_assert_eq(call, TUTTI_OK, #call ": %s", tutti_last_error())

/* The requested number of bytes, filled with a pattern: callers must not rely on zeros. */
static void *take_scratch(size_t bytes) {
    if (bytes == 0) return NULL;
    void *scratch = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(scratch, 0xa5, bytes < (1 << 20) ? bytes : 1 << 20);
    return scratch;
}

void tutti_kernel_binary(tutti_kernel_binary_kind kind, const tutti_kernel_binary_args *args) {
    GOOD(gpu->binary(NULL, kind, args));
}

void tutti_kernel_unary(tutti_kernel_unary_kind kind, tutti_type type, size_t count, const void *x, void *y) {
    GOOD(gpu->unary(NULL, kind, type, count, x, y));
}

void tutti_kernel_scale(tutti_type type, double number, size_t count, const void *x, void *y) {
    GOOD(gpu->scale(NULL, type, number, count, x, y));
}

void tutti_kernel_add_number(tutti_type type, double number, size_t count, const void *x, void *y) {
    GOOD(gpu->add_number(NULL, type, number, count, x, y));
}

void tutti_kernel_cast(tutti_type x_type, tutti_type y_type, size_t count, const void *x, void *y) {
    GOOD(gpu->cast(NULL, x_type, y_type, count, x, y));
}

void tutti_kernel_reduce(tutti_reduction reduction, const tutti_kernel_reduce_args *args) {
    void *room = take_scratch(gpu->reduce_scratch_bytes(args));
    GOOD(gpu->reduce(NULL, reduction, args, room));
    free(room);
}

void tutti_kernel_matmul(const tutti_kernel_matmul_args *args) {
    void *room = take_scratch(gpu->matmul_scratch_bytes(args));
    GOOD(gpu->matmul(NULL, args, room));
    free(room);
}

size_t tutti_kernel_conv_scratch_bytes(tutti_type type, const tutti_kernel_window *window) {
    (void)type, (void)window;
    return 0; /* its size depends on the number of filters: it is allocated below */
}

void tutti_kernel_conv_forward(tutti_type type, const tutti_kernel_window *window, int64_t filters, const void *x,
                               const void *weight, const void *bias, void *scratch, void *y) {
    void *room = take_scratch(gpu->conv_scratch_bytes(type, window, filters));
    (void)scratch;
    GOOD(gpu->conv_forward(NULL, type, window, filters, x, weight, bias, room, y));
    free(room);
}

void tutti_kernel_conv_backward(const tutti_kernel_window *window, const tutti_kernel_conv_backward_args *args) {
    void *room = take_scratch(gpu->conv_scratch_bytes(args->type, window, args->filters));
    tutti_kernel_conv_backward_args with = *args;
    with.scratch = room;
    GOOD(gpu->conv_backward(NULL, window, &with));
    free(room);
}

void tutti_kernel_max_pool_forward(tutti_type type, const tutti_kernel_window *window, const void *x, void *y) {
    GOOD(gpu->max_pool_forward(NULL, type, window, x, y));
}

void tutti_kernel_max_pool_backward(tutti_type type, const tutti_kernel_window *window, const void *x, const void *dy,
                                    void *dx) {
    GOOD(gpu->max_pool_backward(NULL, type, window, x, dy, dx));
}

void tutti_kernel_average_pool_forward(tutti_type type, const tutti_kernel_window *window, bool count_padding,
                                       const void *x, void *y) {
    GOOD(gpu->average_pool_forward(NULL, type, window, count_padding, x, y));
}

void tutti_kernel_average_pool_backward(tutti_type type, const tutti_kernel_window *window, bool count_padding,
                                        const void *dy, void *dx) {
    GOOD(gpu->average_pool_backward(NULL, type, window, count_padding, dy, dx));
}

void tutti_kernel_batch_norm_statistics(tutti_type type, size_t rows, size_t channels, const void *x, double *sums) {
    void *room = take_scratch(gpu->batch_norm_scratch_bytes(rows, channels));
    GOOD(gpu->batch_norm_statistics(NULL, type, rows, channels, x, room, sums));
    free(room);
}

void tutti_kernel_batch_norm_moments(size_t channels, double count, double epsilon, const double *sums, double *mean,
                                     double *variance, double *inverse_deviation) {
    GOOD(gpu->batch_norm_moments(NULL, channels, count, epsilon, sums, mean, variance, inverse_deviation));
}

void tutti_kernel_batch_norm_normalise(const tutti_kernel_batch_norm_args *args, void *y) {
    GOOD(gpu->batch_norm_normalise(NULL, args, y));
}

void tutti_kernel_batch_norm_backward_sums(const tutti_kernel_batch_norm_args *args, const void *dy, double *sums) {
    void *room = take_scratch(gpu->batch_norm_scratch_bytes(args->rows, args->channels));
    GOOD(gpu->batch_norm_backward_sums(NULL, args, dy, room, sums));
    free(room);
}

void tutti_kernel_batch_norm_backward(const tutti_kernel_batch_norm_args *args, const void *dy, const double *sums,
                                      double count, void *dx) {
    GOOD(gpu->batch_norm_backward(NULL, args, dy, sums, count, dx));
}

void tutti_kernel_softmax(tutti_type type, size_t rows, size_t classes, const void *x, void *y) {
    GOOD(gpu->softmax(NULL, type, rows, classes, x, y));
}

void tutti_kernel_softmax_backward(tutti_type type, size_t rows, size_t classes, const void *y, const void *dy,
                                   void *dx) {
    GOOD(gpu->softmax_backward(NULL, type, rows, classes, y, dy, dx));
}

void tutti_kernel_exp_sums(tutti_type type, size_t rows, size_t classes, const void *x, const void *max, void *sums) {
    GOOD(gpu->exp_sums(NULL, type, rows, classes, x, max, sums));
}

void tutti_kernel_label_logits(tutti_type type, size_t rows, size_t classes, const void *x,
                               const tutti_kernel_labels *labels, void *logits) {
    GOOD(gpu->label_logits(NULL, type, rows, classes, x, labels, logits));
}

void tutti_kernel_cross_entropy_losses(tutti_type type, size_t rows, const void *max, const void *sums,
                                       const void *logits, const tutti_kernel_labels *labels, void *losses) {
    GOOD(gpu->cross_entropy_losses(NULL, type, rows, max, sums, logits, labels, losses));
}

void tutti_kernel_cross_entropy(tutti_type type, size_t rows, size_t classes, const void *x,
                                const tutti_kernel_labels *labels, void *max, void *sums, void *losses) {
    GOOD(gpu->cross_entropy(NULL, type, rows, classes, x, labels, max, sums, losses));
}

void tutti_kernel_cross_entropy_backward(tutti_type type, size_t rows, size_t classes, const void *x,
                                         const tutti_kernel_labels *labels, const void *max, const void *sums,
                                         const void *dlosses, void *dx) {
    GOOD(gpu->cross_entropy_backward(NULL, type, rows, classes, x, labels, max, sums, dlosses, dx));
}

void tutti_kernel_embedding(const tutti_kernel_embedding_args *args, const void *table, void *y) {
    GOOD(gpu->embedding(NULL, args, table, y));
}

void tutti_kernel_embedding_backward(const tutti_kernel_embedding_args *args, const void *dy, void *dtable) {
    GOOD(gpu->embedding_backward(NULL, args, dy, dtable));
}

void tutti_kernel_dropout(tutti_type type, const tutti_kernel_shard *shard, const tutti_kernel_random *random,
                          double rate, const void *x, void *y) {
    GOOD(gpu->dropout(NULL, type, shard, random, rate, x, y));
}

void tutti_kernel_random_uniform(tutti_type type, const tutti_kernel_shard *shard, const tutti_kernel_random *random,
                                 double low, double high, void *y) {
    GOOD(gpu->random_uniform(NULL, type, shard, random, low, high, y));
}

void tutti_kernel_random_normal(tutti_type type, const tutti_kernel_shard *shard, const tutti_kernel_random *random,
                                double mean, double stddev, void *y) {
    GOOD(gpu->random_normal(NULL, type, shard, random, mean, stddev, y));
}

void tutti_kernel_arange(tutti_type type, const tutti_kernel_shard *shard, double start, double step, void *y) {
    GOOD(gpu->arange(NULL, type, shard, start, step, y));
}

void tutti_kernel_fill(tutti_type type, double value, size_t count, void *y) {
    GOOD(gpu->fill(NULL, type, value, count, y));
}
