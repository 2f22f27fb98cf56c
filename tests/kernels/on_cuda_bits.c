/*
 * The operators' kernels for GPUs compared with the host's, bit for bit where kernels/operators.h guarantees it: all
 * types, on random bits, with NaN, infinities and zeros of both signs; and sums that are long enough to be computed
 * in parts.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/operators/op_kernels.h"
#include "tests/kernels/arrays.h"
#include "tests/support/reference.h"

static const tutti_operators *const gpu = &tutti_cuda_operators;

static unsigned char *random_bits(uint64_t seed, size_t bytes) {
    unsigned char *values = array_new(bytes);
    for (size_t i = 0; i < bytes; i++) values[i] = (unsigned char)(reference_hash(seed, i, 5) >> 20);
    return values;
}

/* Random bits, with special values among them. */
static void *any_values(tutti_type type, uint64_t seed, size_t count) {
    const size_t bytes = tutti_type_bytes(type);
    unsigned char *values = random_bits(seed, count * bytes);
    const double special[] = {0, -0.0, INFINITY, -INFINITY, NAN, 1, -1, 0.5, 1e-40, -3e38};
    if (!reference_is_float(type)) return values;
    for (size_t i = 0; i < count; i += 3) reference_store_float(values, i, type, (long double)special[i / 3 % 10]);
    for (size_t i = 1; i < count; i += 5)
        reference_store_float(values, i, type, (long double)(4 * array_number(seed, i)));
    return values;
}

/* The bits of a NaN are not specified: processors that convert float16 keep some of them. */
static bool both_nan(tutti_type type, const void *a, const void *b, size_t i) {
    return reference_is_float(type) && isnan(reference_load_float(a, i, type)) &&
           isnan(reference_load_float(b, i, type));
}

static void expect_bits(const char *what, int kind, tutti_type type, const void *got, const void *expected,
                        size_t count) {
    const size_t bytes = tutti_type_bytes(type);
    char text[2][64];
    for (size_t i = 0; i < count; i++)
        cr_assert(memcmp((const char *)got + i * bytes, (const char *)expected + i * bytes, bytes) == 0 ||
                      both_nan(type, got, expected, i),
                  "%s %d of %s [%zu of %zu]: %s, the host gives %s", what, kind, tutti_type_name(type), i, count,
                  reference_show(got, i, type, text[0]), reference_show(expected, i, type, text[1]));
    cr_assert(array_is_bounded(got, count * bytes), "%s %d: written behind its %zu elements", what, kind, count);
}

#define GOOD(call) cr_assert_eq(call, TUTTI_OK, #call ": %s", tutti_last_error())
#define FREE(...)                                                                                                      \
    do {                                                                                                               \
        void *all_[] = {__VA_ARGS__};                                                                                  \
        for (size_t i_ = 0; i_ < sizeof all_ / sizeof *all_; i_++) array_free(all_[i_]);                               \
    } while (0)

enum { COUNT = 2002 };

/* Except float64 with CUDA's own functions, which are the host's here. */
Test(bits, elementwise_with_two_operands) {
    const int64_t shape[] = {COUNT}, dense[] = {1}, table[] = {7, 11, 26}, rows[] = {286, 26, 1},
                  columns[] = {0, 1, 11}, none[] = {0, 0, 0};
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
        for (int kind = 0; kind <= TUTTI_KERNEL_GELU_TANH_BACKWARD; kind++) {
            const size_t bytes = tutti_type_bytes(type);
            if (type == TUTTI_BOOL &&
                (kind == TUTTI_KERNEL_SUB || kind == TUTTI_KERNEL_DIV || kind == TUTTI_KERNEL_RELU_BACKWARD))
                continue;
            if (kind >= TUTTI_KERNEL_GELU_BACKWARD && !reference_is_float(type)) continue;
            void *a = any_values(type, 1, COUNT), *b = any_values(type, 2, COUNT);
            void *host = array_new(COUNT * bytes), *got = array_new(COUNT * bytes);
            const tutti_kernel_binary_args cases[] = {{type, 1, shape, a, dense, b, dense, host},
                                                      {type, 3, table, a, rows, b, columns, host},
                                                      {type, 3, table, a, none, b, rows, host}};
            for (int i = 0; i < 3; i++) {
                tutti_kernel_binary_args args = cases[i];
                tutti_kernel_binary(kind, &args);
                args.y = got;
                GOOD(gpu->binary(NULL, kind, &args));
                expect_bits("binary", kind, type, got, host, COUNT);
            }
            FREE(a, b, host, got);
        }
}

Test(bits, elementwise_with_one_operand_and_a_number) {
    const double numbers[] = {3, -2, 0.37, -1e10, 1e300, 2.5};
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
        const size_t bytes = tutti_type_bytes(type);
        void *x = any_values(type, 3, COUNT), *host = array_new(COUNT * bytes), *got = array_new(COUNT * bytes);
        for (int kind = 0; kind <= TUTTI_KERNEL_LOG && type != TUTTI_BOOL; kind++) {
            if (kind != TUTTI_KERNEL_RELU && !reference_is_float(type)) break;
            tutti_kernel_unary(kind, type, COUNT, x, host);
            GOOD(gpu->unary(NULL, kind, type, COUNT, x, got));
            expect_bits("unary", kind, type, got, host, COUNT);
        }
        for (int i = 0; i < 6 && type != TUTTI_BOOL; i++) {
            tutti_kernel_scale(type, numbers[i], COUNT, x, host);
            GOOD(gpu->scale(NULL, type, numbers[i], COUNT, x, got));
            expect_bits("scale", i, type, got, host, COUNT);
            tutti_kernel_add_number(type, numbers[i], COUNT, x, host);
            GOOD(gpu->add_number(NULL, type, numbers[i], COUNT, x, got));
            expect_bits("add_number", i, type, got, host, COUNT);
        }
        for (int i = 0; i < 6; i++) {
            tutti_kernel_fill(type, numbers[i], COUNT, host);
            GOOD(gpu->fill(NULL, type, numbers[i], COUNT, got));
            expect_bits("fill", i, type, got, host, COUNT);
        }
        FREE(x, host, got);
    }
}

Test(bits, casts) {
    for (int from = 0; from < TUTTI_TYPE_COUNT; from++)
        for (int to = 0; to < TUTTI_TYPE_COUNT; to++) {
            const size_t bytes = tutti_type_bytes(to);
            void *x = any_values(from, 4, COUNT), *host = array_new(COUNT * bytes), *got = array_new(COUNT * bytes);
            tutti_kernel_cast(from, to, COUNT, x, host);
            GOOD(gpu->cast(NULL, from, to, COUNT, x, got));
            expect_bits("cast to", from, to, got, host, COUNT);
            FREE(x, host, got);
        }
}

/* Sums of integers, which are exact in any order; a computed NaN has other bits. */
static void check_reduce(tutti_reduction reduction, tutti_type type, int ndims, const int64_t *shape, unsigned dims) {
    const size_t bytes = tutti_type_bytes(type);
    size_t count = 1, results = 1;
    for (int d = 0; d < ndims; d++) {
        count *= (size_t)shape[d];
        results *= dims >> d & 1 ? 1 : (size_t)shape[d];
    }
    void *x = reduction == TUTTI_SUM ? array_new(count * bytes) : any_values(type, 6, count);
    if (reduction == TUTTI_SUM) reference_fill(x, count, type, TUTTI_SUM, 7, ndims, 1);
    if (reduction == TUTTI_SUM && reference_is_float(type))
        for (size_t i = 0; i < count; i++) reference_store_float(x, i, type, (long double)(i % 7) - 3);
    void *host = array_new(results * bytes), *got = array_new(results * bytes);
    tutti_kernel_reduce_args args = {type, ndims, shape, dims, x, host};
    tutti_kernel_reduce(reduction, &args);
    const size_t scratch_bytes = gpu->reduce_scratch_bytes(&args);
    void *scratch = array_new(scratch_bytes);
    args.y = got;
    GOOD(gpu->reduce(NULL, reduction, &args, scratch));
    expect_bits("reduction", reduction, type, got, host, results);
    cr_assert(array_is_bounded(scratch, scratch_bytes));
    FREE(x, host, got, scratch);
}

Test(bits, reductions_in_parts) {
    static const tutti_reduction reductions[] = {TUTTI_SUM, TUTTI_MIN, TUTTI_MAX};
    static const struct {
        int ndims;
        int64_t shape[4];
        unsigned dims;
    } cases[] = {{1, {30011}, 1},         {2, {9001, 3}, 1},      {2, {3, 9001}, 2},  {2, {301, 70}, 1},
                 {2, {70, 301}, 3},       {3, {40, 5, 60}, 5},    {3, {9, 90, 9}, 2}, {3, {50, 3, 70}, 5},
                 {4, {7, 20, 3, 35}, 10}, {4, {7, 20, 3, 35}, 5}, {2, {17000, 1}, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
            check_reduce(reductions[(i + (size_t)type) % 3], type, cases[i].ndims, cases[i].shape, cases[i].dims);
    check_reduce(TUTTI_SUM, TUTTI_FLOAT64, 1, (const int64_t[]){130003}, 1);
}

Test(bits, by_the_index_in_a_global_array) {
    const int64_t global[] = {9, 40, 13}, first[] = {2, 11, 3}, shape[] = {5, 20, 9};
    const tutti_kernel_shard shard = {3, global, first, shape};
    const tutti_kernel_random random = {42, UINT64_C(7) << 33};
    enum { ELEMENTS = 5 * 20 * 9 };
    const double ranges[][2] = {{0, 1}, {-3, 2}, {1, 1.001}, {-1, 0}};
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
        const size_t bytes = tutti_type_bytes(type);
        void *x = any_values(type, 8, ELEMENTS), *host = array_new(ELEMENTS * bytes),
             *got = array_new(ELEMENTS * bytes);
        for (int i = 0; i < 4 && type != TUTTI_BOOL; i++) {
            tutti_kernel_arange(type, &shard, ranges[i][0], ranges[i][1] * 3, host);
            GOOD(gpu->arange(NULL, type, &shard, ranges[i][0], ranges[i][1] * 3, got));
            expect_bits("arange", i, type, got, host, ELEMENTS);
        }
        for (int i = 0; i < 4 && reference_is_float(type); i++) {
            tutti_kernel_random_uniform(type, &shard, &random, ranges[i][0], ranges[i][1], host);
            GOOD(gpu->random_uniform(NULL, type, &shard, &random, ranges[i][0], ranges[i][1], got));
            expect_bits("uniform", i, type, got, host, ELEMENTS);
            tutti_kernel_random_normal(type, &shard, &random, ranges[i][0], ranges[i][1], host);
            GOOD(gpu->random_normal(NULL, type, &shard, &random, ranges[i][0], ranges[i][1], got));
            expect_bits("normal", i, type, got, host, ELEMENTS);
            const double rate = i == 3 ? 1 : 0.3 * i;
            tutti_kernel_dropout(type, &shard, &random, rate, x, host);
            GOOD(gpu->dropout(NULL, type, &shard, &random, rate, x, got));
            expect_bits("dropout", i, type, got, host, ELEMENTS);
        }
        FREE(x, host, got);
    }
}

Test(bits, pooling_and_embedding) {
    const tutti_kernel_window w = {2, 7, 6, 5, 3, 2, 2, 1, 1, 0, 4, 6};
    const size_t x_count = 2 * 7 * 6 * 5, y_count = 2 * 4 * 6 * 5;
    int64_t indices[90];
    for (int i = 0; i < 90; i++) indices[i] = i * 37 % 23 - 2;
    for (int t = 0; t < 2; t++) {
        const tutti_type type = t == 0 ? TUTTI_FLOAT32 : TUTTI_FLOAT64;
        const size_t bytes = tutti_type_bytes(type);
        void *x = any_values(type, 9, x_count), *dy = array_random(type, 10, y_count);
        void *host = array_new(x_count * bytes), *got = array_new(x_count * bytes);
        void *host_y = array_new(y_count * bytes), *got_y = array_new(y_count * bytes);
        tutti_kernel_max_pool_forward(type, &w, x, host_y);
        GOOD(gpu->max_pool_forward(NULL, type, &w, x, got_y));
        expect_bits("maximum", 0, type, got_y, host_y, y_count);
        tutti_kernel_max_pool_backward(type, &w, x, dy, host);
        GOOD(gpu->max_pool_backward(NULL, type, &w, x, dy, got));
        expect_bits("gradient of the maximum", 0, type, got, host, x_count);
        FREE(x);
        x = array_random(type, 9, x_count);
        for (int pads = 0; pads < 2; pads++) {
            tutti_kernel_average_pool_forward(type, &w, pads, x, host_y);
            GOOD(gpu->average_pool_forward(NULL, type, &w, pads, x, got_y));
            expect_bits("average", pads, type, got_y, host_y, y_count);
            tutti_kernel_average_pool_backward(type, &w, pads, dy, host);
            GOOD(gpu->average_pool_backward(NULL, type, &w, pads, dy, got));
            expect_bits("gradient of the average", pads, type, got, host, x_count);
        }
        FREE(dy, host, got, host_y, got_y);
        const tutti_kernel_embedding_args args = {type, TUTTI_INT64, 90, 4, 1, 20, indices};
        void *from = array_random(type, 11, 90 * 4), *a = array_new(20 * 4 * bytes), *b = array_new(20 * 4 * bytes);
        tutti_kernel_embedding_backward(&args, from, a);
        GOOD(gpu->embedding_backward(NULL, &args, from, b));
        expect_bits("gradient of a table", 0, type, b, a, 20 * 4);
        FREE(from, a, b, x);
    }
}
