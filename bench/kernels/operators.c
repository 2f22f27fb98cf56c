/*
 * The operators of global tensors on local arrays (kernels/operators.h), as rows of kernels_perf: the host's only.
 *
 * All compute with float32 on whole regions: s->batch rows of s->count elements each.
 */
#include <stdio.h>

#include "bench/kernels/bench.h"
#include "kernels/operators.h"

#define TYPE TUTTI_FLOAT32

static void run_binary(bench_lab *lab, const bench_shape *s, tutti_kernel_binary_kind kind, int64_t b_row,
                       int64_t b_column) {
    const int64_t shape[] = {s->batch, (int64_t)s->count}, dense[] = {(int64_t)s->count, 1},
                  b_strides[] = {b_row, b_column};
    const tutti_kernel_binary_args args = {.type = TYPE,
                                           .ndims = 2,
                                           .shape = shape,
                                           .a = lab->regions[0],
                                           .a_strides = dense,
                                           .b = lab->regions[2],
                                           .b_strides = b_strides,
                                           .y = lab->regions[1]};
    tutti_kernel_binary(kind, &args);
}

static void run_add(bench_lab *lab, const bench_shape *s) {
    run_binary(lab, s, TUTTI_KERNEL_ADD, (int64_t)s->count, 1);
}

static void run_add_row(bench_lab *lab, const bench_shape *s) {
    run_binary(lab, s, TUTTI_KERNEL_ADD, 0, 1);
}

static void run_add_column(bench_lab *lab, const bench_shape *s) {
    run_binary(lab, s, TUTTI_KERNEL_ADD, 1, 0);
}

static void run_gelu_backward(bench_lab *lab, const bench_shape *s) {
    run_binary(lab, s, TUTTI_KERNEL_GELU_BACKWARD, (int64_t)s->count, 1);
}

static void run_unary(bench_lab *lab, const bench_shape *s, tutti_kernel_unary_kind kind) {
    tutti_kernel_unary(kind, TYPE, (size_t)s->batch * s->count, lab->regions[0], lab->regions[1]);
}

static void run_relu(bench_lab *lab, const bench_shape *s) {
    run_unary(lab, s, TUTTI_KERNEL_RELU);
}

static void run_gelu(bench_lab *lab, const bench_shape *s) {
    run_unary(lab, s, TUTTI_KERNEL_GELU);
}

static void run_gelu_tanh(bench_lab *lab, const bench_shape *s) {
    run_unary(lab, s, TUTTI_KERNEL_GELU_TANH);
}

static void run_exp(bench_lab *lab, const bench_shape *s) {
    run_unary(lab, s, TUTTI_KERNEL_EXP);
}

static void run_log(bench_lab *lab, const bench_shape *s) {
    run_unary(lab, s, TUTTI_KERNEL_LOG);
}

static void run_scale(bench_lab *lab, const bench_shape *s) {
    tutti_kernel_scale(TYPE, 0.5, (size_t)s->batch * s->count, lab->regions[0], lab->regions[1]);
}

static void run_cast(bench_lab *lab, const bench_shape *s) {
    tutti_kernel_cast(TYPE, TUTTI_BFLOAT16, (size_t)s->batch * s->count, lab->regions[0], lab->regions[1]);
}

static void reduce(bench_lab *lab, const bench_shape *s, tutti_reduction reduction, unsigned dims) {
    const int64_t shape[] = {s->batch, (int64_t)s->count};
    tutti_kernel_reduce(reduction, &(tutti_kernel_reduce_args){TYPE, 2, shape, dims, lab->regions[0], lab->regions[1]});
}

static void run_sum_rows(bench_lab *lab, const bench_shape *s) {
    reduce(lab, s, TUTTI_SUM, 2);
}

static void run_sum_columns(bench_lab *lab, const bench_shape *s) {
    reduce(lab, s, TUTTI_SUM, 1);
}

static void run_max_rows(bench_lab *lab, const bench_shape *s) {
    reduce(lab, s, TUTTI_MAX, 2);
}

static void run_softmax(bench_lab *lab, const bench_shape *s) {
    tutti_kernel_softmax(TYPE, (size_t)s->batch, s->count, lab->regions[0], lab->regions[1]);
}

static void run_softmax_backward(bench_lab *lab, const bench_shape *s) {
    tutti_kernel_softmax_backward(TYPE, (size_t)s->batch, s->count, lab->regions[0], lab->regions[2], lab->regions[1]);
}

/* Losses and labels are much smaller than a region. Labels are arbitrary data: those that are not classes only give
 * NaN losses. */
static void run_cross_entropy(bench_lab *lab, const bench_shape *s) {
    const tutti_kernel_labels labels = {TUTTI_INT32, lab->regions[BENCH_REGIONS - 1], (int64_t)s->count, 0};
    tutti_real *results = lab->regions[1];
    tutti_kernel_cross_entropy(TYPE, (size_t)s->batch, s->count, lab->regions[0], &labels, results, results + s->batch,
                               results + 2 * s->batch);
}

static void run_statistics(bench_lab *lab, const bench_shape *s) {
    tutti_kernel_batch_norm_statistics(TYPE, (size_t)s->batch, s->count, lab->regions[0],
                                       (double *)(void *)lab->regions[1]);
}

static void run_normalise(bench_lab *lab, const bench_shape *s) {
    const double *moments = (const double *)(const void *)lab->regions[BENCH_REGIONS - 1];
    const tutti_kernel_batch_norm_args args = {
        TYPE, (size_t)s->batch, s->count, lab->regions[0], moments, moments, NULL, NULL, false};
    tutti_kernel_batch_norm_normalise(&args, lab->regions[1]);
}

static const tutti_kernel_random stream = {1, 2};

static void run_dropout(bench_lab *lab, const bench_shape *s) {
    const int64_t shape[] = {s->batch, (int64_t)s->count}, first[] = {0, 0};
    tutti_kernel_dropout(TYPE, &(tutti_kernel_shard){2, shape, first, shape}, &stream, 0.5, lab->regions[0],
                         lab->regions[1]);
}

static void run_uniform(bench_lab *lab, const bench_shape *s) {
    const int64_t shape[] = {s->batch, (int64_t)s->count}, first[] = {0, 0};
    tutti_kernel_random_uniform(TYPE, &(tutti_kernel_shard){2, shape, first, shape}, &stream, 0, 1, lab->regions[1]);
}

static void run_normal(bench_lab *lab, const bench_shape *s) {
    const int64_t shape[] = {s->batch, (int64_t)s->count}, first[] = {0, 0};
    tutti_kernel_random_normal(TYPE, &(tutti_kernel_shard){2, shape, first, shape}, &stream, 0, 1, lab->regions[1]);
}

/* Images of 32 x 32 x 32, windows of 2 x 2. */
static tutti_kernel_window pooling_window(const bench_shape *s) {
    return (tutti_kernel_window){(int64_t)((size_t)s->batch * s->count / 32768), 32, 32, 32, 2, 2, 2, 2, 0, 0, 16, 16};
}

static void run_max_pool(bench_lab *lab, const bench_shape *s) {
    const tutti_kernel_window window = pooling_window(s);
    tutti_kernel_max_pool_forward(TYPE, &window, lab->regions[0], lab->regions[1]);
}

static void run_max_pool_backward(bench_lab *lab, const bench_shape *s) {
    const tutti_kernel_window window = pooling_window(s);
    tutti_kernel_max_pool_backward(TYPE, &window, lab->regions[0], lab->regions[2], lab->regions[1]);
}

static void run_matmul(bench_lab *lab, const bench_shape *s) {
    const tutti_kernel_matmul_args args = {.type = TYPE,
                                           .m = s->dense.outputs,
                                           .n = s->dense.outputs,
                                           .k = s->dense.inputs,
                                           .a = lab->regions[0],
                                           .b = lab->regions[2],
                                           .y = lab->regions[1]};
    tutti_kernel_matmul(&args);
}

int bench_kernels_list_operators(const bench_lab *lab, bench_kernel *rows) {
    /* `passes`: the number of times that each element of a region is read or written. */
    static const struct {
        const char *name;
        void (*run)(bench_lab *, const bench_shape *);
        double passes;
        size_t columns;
        const char *bound;
    } kinds[] = {
        {"op_add", run_add, 3, 1024, "memory"},
        {"op_add_row", run_add_row, 2, 1024, "memory"},
        {"op_add_row", run_add_row, 2, 8, "memory"},
        {"op_add_column", run_add_column, 2, 1024, "memory"},
        {"op_relu", run_relu, 2, 1024, "memory"},
        {"op_exp", run_exp, 2, 1024, "memory"},
        {"op_log", run_log, 2, 1024, "arithmetic"},
        {"op_gelu", run_gelu, 2, 1024, "arithmetic"},
        {"op_gelu_tanh", run_gelu_tanh, 2, 1024, "arithmetic"},
        {"op_gelu_backward", run_gelu_backward, 3, 1024, "arithmetic"},
        {"op_scale", run_scale, 2, 1024, "memory"},
        {"op_cast_bfloat16", run_cast, 1.5, 1024, "memory"},
        {"op_sum_rows", run_sum_rows, 1, 1024, "memory"},
        {"op_sum_rows", run_sum_rows, 1, 8, "memory"},
        {"op_sum_columns", run_sum_columns, 1, 1024, "memory"},
        {"op_sum_columns", run_sum_columns, 1, 8, "memory"},
        {"op_max_rows", run_max_rows, 1, 1024, "memory"},
        {"op_softmax", run_softmax, 2, 1024, "memory"},
        {"op_softmax", run_softmax, 2, 16, "arithmetic"},
        {"op_softmax_backward", run_softmax_backward, 3, 1024, "memory"},
        {"op_cross_entropy", run_cross_entropy, 1, 1024, "arithmetic"},
        {"op_batch_statistics", run_statistics, 1, 64, "memory"},
        {"op_batch_normalise", run_normalise, 2, 64, "memory"},
        {"op_max_pool_forward", run_max_pool, 1.25, 1024, "memory"},
        {"op_max_pool_backward", run_max_pool_backward, 2.25, 1024, "memory"},
        {"op_dropout", run_dropout, 2, 1024, "arithmetic"},
        {"op_uniform", run_uniform, 1, 1024, "arithmetic"},
        {"op_normal", run_normal, 1, 1024, "arithmetic"},
    };
    int count = 0;
    if (lab->device != NULL) return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bench_kernel *row = &rows[count++];
        *row = (bench_kernel){.name = kinds[i].name,
                              .bytes = kinds[i].passes * (double)lab->bytes,
                              .run = kinds[i].run,
                              .bound = kinds[i].bound};
        row->shape.count = kinds[i].columns;
        row->shape.batch = (int)(lab->bytes / sizeof(tutti_real) / kinds[i].columns);
        snprintf(row->text, sizeof row->text, "%d x %zu", row->shape.batch, kinds[i].columns);
    }
    for (int side = 128; side <= 1024 && (size_t)side * (size_t)side * sizeof(tutti_real) <= lab->bytes; side *= 2) {
        bench_kernel *row = &rows[count++];
        *row = (bench_kernel){.name = "op_matmul",
                              .shape.dense = {.inputs = side, .outputs = side},
                              .bytes = 3.0 * side * side * sizeof(tutti_real),
                              .flops = 2.0 * side * side * side,
                              .bound = "arithmetic",
                              .run = run_matmul};
        snprintf(row->text, sizeof row->text, "%d x %d x %d", side, side, side);
    }
    return count;
}
