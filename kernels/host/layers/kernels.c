/*
 * The table of kernels for the processor; each call is done when it returns.
 */
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/host/layers/conv_library.h"

#define ALIGN_BYTES 64

/* The host has no state to keep, so all computes are this one. */
static tutti_compute the_processor = {.kernels = &tutti_kernels_host};

static tutti_status host_open(const tutti_compute_options *options, tutti_compute **compute_out) {
    if (options->precision != TUTTI_PRECISION_FP32)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "the host's kernels multiply in fp32 only; tf32 and bf16 need a GPU");
    *compute_out = &the_processor;
    return TUTTI_OK;
}

static void host_close(tutti_compute *compute) {
    (void)compute;
}

static tutti_status host_check(tutti_compute *compute) {
    (void)compute;
    return TUTTI_OK;
}

static void *host_stream(const tutti_compute *compute) {
    (void)compute;
    return NULL;
}

/* ---------------------------------------------------------------------------------------------- memory */

/* Uses calloc, whose zeros cost nothing before they are touched. The pointer that calloc returned is stored in
 * front of the memory. */
static tutti_status host_alloc(tutti_compute *compute, size_t bytes, void **memory_out) {
    (void)compute;
    char *given = calloc(1, bytes + 2 * ALIGN_BYTES);
    if (given == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for %zu bytes", bytes);
    void **memory = (void **)(void *)(given + 2 * ALIGN_BYTES - (uintptr_t)given % ALIGN_BYTES);
    memory[-1] = given;
    *memory_out = memory;
    return TUTTI_OK;
}

static void host_free(tutti_compute *compute, void *memory) {
    (void)compute;
    if (memory != NULL) free(((void **)memory)[-1]);
}

static void host_copy(tutti_compute *compute, void *dst, const void *src, size_t bytes) {
    (void)compute;
    memcpy(dst, src, bytes);
}

static tutti_status host_download(tutti_compute *compute, void *dst, const void *src, size_t bytes) {
    (void)compute;
    memcpy(dst, src, bytes);
    return TUTTI_OK;
}

static void host_zero(tutti_compute *compute, void *dst, size_t bytes) {
    (void)compute;
    memset(dst, 0, bytes);
}

/* ------------------------------------------------------------------------------------------- recording */

static tutti_status host_record_begin(tutti_compute *compute) {
    (void)compute;
    return tutti_fail(TUTTI_ERR_UNSUPPORTED, "the host's kernels cannot record steps; only a GPU's can");
}

static tutti_status host_record_end(tutti_compute *compute, tutti_recording **recording_out) {
    (void)recording_out;
    return host_record_begin(compute);
}

static tutti_status host_replay(tutti_compute *compute, tutti_recording *recording) {
    (void)recording;
    return host_record_begin(compute);
}

static void host_forget(tutti_compute *compute, tutti_recording *recording) {
    (void)compute, (void)recording;
}

/* ---------------------------------------------------------------------------------------------- layers */

static size_t host_conv_scratch_count(const tutti_conv *conv, int batch) {
    size_t own = tutti_conv_scratch_count(conv), library = tutti_conv_library_scratch_count(conv, batch);
    return own > library ? own : library;
}

static size_t host_conv_kept_count(const tutti_conv *conv, int batch) {
    (void)conv, (void)batch;
    return 0;
}

static void host_conv_forward(tutti_compute *compute, const tutti_conv *conv, const tutti_conv_forward_args *args) {
    (void)compute;
    if (!tutti_conv_library_forward(conv, args)) tutti_conv_forward(conv, args);
}

static void host_conv_backward(tutti_compute *compute, const tutti_conv *conv, const tutti_conv_backward_args *args) {
    (void)compute;
    if (!tutti_conv_library_backward(conv, args)) tutti_conv_backward(conv, args);
}

static void host_max_pool_forward(tutti_compute *compute, const tutti_window *window, int batch, const tutti_real *x,
                                  tutti_real *y, int32_t *where) {
    (void)compute;
    tutti_max_pool_forward(window, batch, x, y, where);
}

static void host_max_pool_backward(tutti_compute *compute, const tutti_window *window, int batch, const tutti_real *dy,
                                   const int32_t *where, tutti_real *dx) {
    (void)compute;
    tutti_max_pool_backward(window, batch, dy, where, dx);
}

static void host_bias_forward(tutti_compute *compute, size_t rows, int channels, bool relu, const tutti_real *bias,
                              tutti_real *y) {
    (void)compute;
    tutti_bias_forward(rows, (size_t)channels, relu, bias, y);
}

static void host_bias_backward(tutti_compute *compute, const tutti_bias_backward_args *args) {
    (void)compute;
    memset(args->dbias, 0, (size_t)args->channels * sizeof *args->dbias);
    tutti_bias_backward(args->rows, (size_t)args->channels, args->relu, args->y, args->dy, args->dbias);
}

static void host_relu_forward(tutti_compute *compute, size_t count, const tutti_real *x, tutti_real *y) {
    (void)compute;
    tutti_relu_forward(count, x, y);
}

static void host_relu_backward(tutti_compute *compute, size_t count, const tutti_real *y, const tutti_real *dy,
                               tutti_real *dx) {
    (void)compute;
    tutti_relu_backward(count, y, dy, dx);
}

static void host_batch_norm_forward(tutti_compute *compute, const tutti_batch_norm *norm,
                                    const tutti_batch_norm_forward_args *args) {
    (void)compute;
    tutti_batch_norm_forward(norm, args);
}

static void host_batch_norm_backward(tutti_compute *compute, const tutti_batch_norm *norm,
                                     const tutti_batch_norm_backward_args *args) {
    (void)compute;
    tutti_batch_norm_backward(norm, args);
}

static void host_average_pool_forward(tutti_compute *compute, const tutti_window *window, int batch,
                                      const tutti_real *x, tutti_real *y) {
    (void)compute;
    tutti_average_pool_forward(window, batch, x, y);
}

static void host_average_pool_backward(tutti_compute *compute, const tutti_window *window, int batch,
                                       const tutti_real *dy, tutti_real *dx) {
    (void)compute;
    tutti_average_pool_backward(window, batch, dy, dx);
}

static void host_dense_forward(tutti_compute *compute, const tutti_dense *dense, const tutti_dense_forward_args *args) {
    (void)compute;
    tutti_dense_forward(dense, args);
}

static void host_dense_backward(tutti_compute *compute, const tutti_dense *dense,
                                const tutti_dense_backward_args *args) {
    (void)compute;
    tutti_dense_backward(dense, args);
}

static void host_add(tutti_compute *compute, size_t count, const tutti_real *a, const tutti_real *b, tutti_real *y) {
    (void)compute;
    tutti_add_forward(count, false, a, b, y);
}

static void host_add_relu(tutti_compute *compute, size_t count, const tutti_real *a, const tutti_real *b,
                          tutti_real *y) {
    (void)compute;
    tutti_add_forward(count, true, a, b, y);
}

static void host_dropout(tutti_compute *compute, const tutti_dropout *dropout, const tutti_step_values *values,
                         size_t count, const tutti_real *src, tutti_real *dst) {
    (void)compute;
    tutti_dropout now = *dropout;
    now.stream = tutti_random_stream_at(dropout->stream, values->time);
    tutti_dropout_apply(&now, count, src, dst);
}

static void host_softmax_loss(tutti_compute *compute, const tutti_softmax_loss_args *args, bool adds, double *sums) {
    (void)compute;
    tutti_softmax_loss_args counted = *args;
    int64_t correct;
    counted.correct_out = &correct;
    double loss = tutti_softmax_loss(&counted);
    sums[0] = adds ? sums[0] + loss : loss;
    sums[1] = adds ? sums[1] + (double)correct : (double)correct;
}

static void host_softmax_largest(tutti_compute *compute, const tutti_softmax_parts *parts) {
    (void)compute;
    tutti_softmax_largest(parts);
}

static void host_softmax_sums(tutti_compute *compute, const tutti_softmax_parts *parts) {
    (void)compute;
    tutti_softmax_sums(parts);
}

static void host_softmax_losses(tutti_compute *compute, const tutti_softmax_parts *parts, tutti_real scale,
                                tutti_real *dlogits, bool adds, double *sums) {
    (void)compute;
    int64_t right;
    const double loss = tutti_softmax_losses(parts, scale, dlogits, &right);
    sums[0] = adds ? sums[0] + loss : loss;
    sums[1] = adds ? sums[1] + (double)right : (double)right;
}

static void host_truncated_normal(tutti_compute *compute, const tutti_normal *normal, size_t count, tutti_real *data) {
    (void)compute;
    tutti_random_truncated_normal(normal->seed, normal->stream, normal->stddev, count, data);
}

static void host_fill(tutti_compute *compute, size_t count, tutti_real value, tutti_real *data) {
    (void)compute;
    for (size_t i = 0; i < count; i++) data[i] = value;
}

/* ------------------------------------------------------------------------------------------ optimizers */

static void host_sgd(tutti_compute *compute, const tutti_sgd *rule, const tutti_step_values *values,
                     const tutti_optimizer_piece *pieces, int npieces) {
    (void)compute;
    tutti_sgd now = *rule;
    now.lr = (double)values->lr;
    for (int i = 0; i < npieces; i++)
        tutti_optimizer_sgd(&now, pieces[i].count, pieces[i].gradient, pieces[i].states[0], pieces[i].parameter);
}

static void host_adam(tutti_compute *compute, const tutti_adam *rule, const tutti_step_values *values,
                      const tutti_optimizer_piece *pieces, int npieces) {
    (void)compute;
    for (int i = 0; i < npieces; i++) tutti_optimizer_adam_piece(rule, &values->adam, &pieces[i]);
}

const tutti_kernels tutti_kernels_host = {
    .name = "host",
    .memory = TUTTI_MEMORY_HOST,
    .open = host_open,
    .close = host_close,
    .check = host_check,
    .wait = host_check,
    .stream = host_stream,
    .alloc = host_alloc,
    .free = host_free,
    .upload = host_copy,
    .download = host_download,
    .copy = host_copy,
    .zero = host_zero,
    .record_begin = host_record_begin,
    .record_end = host_record_end,
    .replay = host_replay,
    .forget = host_forget,
    .conv_scratch_count = host_conv_scratch_count,
    .conv_kept_count = host_conv_kept_count,
    .conv_forward = host_conv_forward,
    .conv_backward = host_conv_backward,
    .max_pool_forward = host_max_pool_forward,
    .max_pool_backward = host_max_pool_backward,
    .bias_forward = host_bias_forward,
    .bias_backward = host_bias_backward,
    .relu_forward = host_relu_forward,
    .relu_backward = host_relu_backward,
    .batch_norm_forward = host_batch_norm_forward,
    .batch_norm_backward = host_batch_norm_backward,
    .average_pool_forward = host_average_pool_forward,
    .average_pool_backward = host_average_pool_backward,
    .dense_forward = host_dense_forward,
    .dense_backward = host_dense_backward,
    .add = host_add,
    .add_relu = host_add_relu,
    .dropout = host_dropout,
    .softmax_loss = host_softmax_loss,
    .softmax_largest = host_softmax_largest,
    .softmax_sums = host_softmax_sums,
    .softmax_losses = host_softmax_losses,
    .truncated_normal = host_truncated_normal,
    .fill = host_fill,
    .sgd = host_sgd,
    .adam = host_adam,
};
