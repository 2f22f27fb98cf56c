/*
 * Operators by the index in a global array: equal results for any division; dropout equal to the trainer's;
 * distributions.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layers.h"
#include "kernels/operators.h"
#include "kernels/random.h"
#include "tests/kernels/arrays.h"
#include "tests/support/reference.h"

static const tutti_kernel_random stream = {42, 7};

typedef enum kind { DROPOUT, UNIFORM, NORMAL, ARANGE, KINDS } kind;

static void make(kind k, tutti_type type, const tutti_kernel_shard *shard, const void *x, void *y) {
    switch (k) {
    case DROPOUT: tutti_kernel_dropout(type, shard, &stream, 0.3, x, y); break;
    case UNIFORM: tutti_kernel_random_uniform(type, shard, &stream, -2, 3, y); break;
    case NORMAL: tutti_kernel_random_normal(type, shard, &stream, 1, 2, y); break;
    default: tutti_kernel_arange(type, shard, -3, 2, y); break;
    }
}

static size_t count_of(int ndims, const int64_t *shape) {
    size_t count = 1;
    for (int d = 0; d < ndims; d++) count *= (size_t)shape[d];
    return count;
}

/* Every element of a part equals that of the whole. */
static void check_part(kind k, tutti_type type, int ndims, const int64_t *global, const int64_t *first,
                       const int64_t *shape, const unsigned char *whole_x, const unsigned char *whole) {
    const size_t bytes = tutti_type_bytes(type), count = count_of(ndims, shape);
    unsigned char *x = array_new(count * bytes), *y = array_new(count * bytes);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < count; i++) {
            size_t rest = i, at = 0, step = 1;
            for (int d = ndims - 1; d >= 0; d--) {
                at += ((size_t)first[d] + rest % (size_t)shape[d]) * step;
                step *= (size_t)global[d];
                rest /= (size_t)shape[d];
            }
            if (pass == 0) memcpy(x + i * bytes, whole_x + at * bytes, bytes);
            else
                cr_assert(memcmp(y + i * bytes, whole + at * bytes, bytes) == 0, "kind %d of %s [%zu]", (int)k,
                          tutti_type_name(type), i);
        }
        if (pass == 0) make(k, type, &(tutti_kernel_shard){ndims, global, first, shape}, x, y);
    }
    cr_assert(array_is_bounded(y, count * bytes));
    array_free(x);
    array_free(y);
}

Test(by_index, any_part_is_that_of_the_whole) {
    static const struct {
        int ndims;
        int64_t global[3];
    } wholes[] = {{0, {0}}, {1, {1}}, {1, {5000}}, {2, {7, 13}}, {2, {3, 2050}}, {3, {5, 4, 6}}, {3, {2, 3, 1500}}};
    for (size_t s = 0; s < sizeof wholes / sizeof *wholes; s++)
        for (int k = 0; k < KINDS; k++)
            for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
                if (type == TUTTI_BOOL || (k != ARANGE && !reference_is_float(type))) continue;
                const int ndims = wholes[s].ndims;
                const int64_t *global = wholes[s].global, zeros[3] = {0};
                const size_t count = count_of(ndims, global), bytes = tutti_type_bytes(type);
                unsigned char *x = array_new(count * bytes), *whole = array_new(count * bytes);
                reference_fill(x, count, type, TUTTI_SUM, 1, 2, 3);
                make(k, type, &(tutti_kernel_shard){ndims, global, zeros, global}, x, whole);
                cr_assert(array_is_bounded(whole, count * bytes));
                for (uint64_t cut = 0; cut < 6; cut++) {
                    int64_t first[3], shape[3];
                    for (int d = 0; d < ndims; d++) {
                        first[d] = (int64_t)(reference_hash(cut, (uint64_t)d, 1) % (uint64_t)global[d]);
                        shape[d] =
                            (int64_t)(reference_hash(cut, (uint64_t)d, 2) % (uint64_t)(global[d] - first[d] + 1));
                        if (cut % 3 == 0 && d > 0) first[d] = 0, shape[d] = global[d];
                    }
                    check_part(k, type, ndims, global, first, shape, x, whole);
                }
                array_free(x);
                array_free(whole);
            }
}

Test(by_index, dropout_is_the_trainers) {
    static const double rates[] = {0, 0.1, 0.5, 0.999};
    enum { COUNT = 5003 };
    float *x = array_random(TUTTI_FLOAT32, 1, COUNT), y[COUNT], expected[COUNT];
    for (size_t r = 0; r < sizeof rates / sizeof *rates; r++)
        for (int64_t first = 0; first < 8; first += 3) {
            const int64_t global[] = {10000}, shape[] = {COUNT};
            const tutti_dropout dropout = {rates[r], 42, 7, (uint64_t)first};
            tutti_dropout_apply(&dropout, COUNT, x, expected);
            tutti_kernel_dropout(TUTTI_FLOAT32, &(tutti_kernel_shard){1, global, &first, shape}, &stream, rates[r], x,
                                 y);
            cr_assert(memcmp(y, expected, sizeof y) == 0, "rate %g", rates[r]);
            size_t kept = 0;
            for (size_t i = 0; i < COUNT; i++) kept += y[i] != 0;
            cr_assert(fabs((double)kept / COUNT - (1 - rates[r])) < 0.03);
        }
    tutti_kernel_dropout(TUTTI_FLOAT32,
                         &(tutti_kernel_shard){1, (int64_t[]){COUNT}, (int64_t[]){0}, (int64_t[]){COUNT}}, &stream, 1,
                         x, y);
    for (size_t i = 0; i < COUNT; i++) cr_assert(y[i] == 0);
    array_free(x);
}

/* Beyond 2^32 elements, where a counter of 32 bits would repeat. */
Test(by_index, far_indices_have_numbers_of_their_own) {
    const int64_t global[] = {INT64_C(1) << 40, 5}, shape[] = {100, 5}, near[] = {0, 0}, far[] = {INT64_C(1) << 36, 0};
    double a[500], b[500];
    tutti_kernel_random_uniform(TUTTI_FLOAT64, &(tutti_kernel_shard){2, global, near, shape}, &stream, 0, 1, a);
    tutti_kernel_random_uniform(TUTTI_FLOAT64, &(tutti_kernel_shard){2, global, far, shape}, &stream, 0, 1, b);
    for (size_t i = 0; i < 500; i++) cr_assert(a[i] != b[i]);
    int64_t y[500];
    tutti_kernel_arange(TUTTI_INT64, &(tutti_kernel_shard){2, global, far, shape}, 1, 3, y);
    for (int64_t i = 0; i < 500; i++) cr_assert(y[i] == 1 + 3 * ((far[0] + i / 5) * 5 + i % 5));
}

static double normal_share(double x) {
    return 0.5 * erfc(-x / sqrt(2));
}

static double uniform_share(double x) {
    return x;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Kolmogorov-Smirnov test: one sample in a thousand exceeds 1.95 / sqrt(n); the stream is fixed. Neighbours, which
 * would show pairs and blocks, must not be correlated. */
static void check_distribution(const char *what, double *values, size_t count, double (*share)(double)) {
    for (size_t distance = 1; distance <= 4; distance++) {
        double sum = 0, squares = 0, mean = 0;
        for (size_t i = 0; i < count; i++) mean += values[i] / (double)count;
        for (size_t i = 0; i + distance < count; i++) {
            sum += (values[i] - mean) * (values[i + distance] - mean);
            squares += (values[i] - mean) * (values[i] - mean);
        }
        cr_assert(fabs(sum / squares) < 4 / sqrt((double)count), "%s: correlation %g at %zu", what, sum / squares,
                  distance);
    }
    qsort(values, count, sizeof *values, compare);
    double worst = 0;
    for (size_t i = 0; i < count; i++) worst = fmax(worst, fabs(share(values[i]) - ((double)i + 0.5) / (double)count));
    cr_assert(worst < 1.95 / sqrt((double)count), "%s: off by %g", what, worst);
}

Test(by_index, numbers_are_uniform_and_normal) {
    enum { COUNT = 100000 };
    static const tutti_type reals[] = {TUTTI_FLOAT32, TUTTI_FLOAT64};
    const int64_t shape[] = {COUNT}, first[] = {0};
    const tutti_kernel_shard shard = {1, shape, first, shape};
    for (int t = 0; t < 2; t++) {
        void *y = array_new(COUNT * 8);
        tutti_kernel_random_uniform(reals[t], &shard, &stream, 0, 1, y);
        double *values = array_doubles(reals[t], y, COUNT);
        check_distribution("uniform", values, COUNT, uniform_share);
        array_free(values);
        tutti_kernel_random_normal(reals[t], &shard, &stream, 0, 1, y);
        values = array_doubles(reals[t], y, COUNT);
        check_distribution("normal", values, COUNT, normal_share);
        array_free(values);
        array_free(y);
    }
}

/* float32's deviates follow the formula, in double. */
Test(by_index, normal_deviates_are_box_and_mullers) {
    enum { COUNT = 4000 };
    const int64_t shape[] = {COUNT}, first[] = {0};
    float y[COUNT];
    tutti_kernel_random_normal(TUTTI_FLOAT32, &(tutti_kernel_shard){1, shape, first, shape}, &stream, 0, 1, y);
    for (size_t i = 0; i < COUNT; i += 2) {
        uint32_t w[4];
        tutti_random_block(stream.seed, stream.stream, i / 4, w);
        const double radius = sqrt(-2 * log(((double)(w[i % 4] >> 1) + 1) * 0x1p-31));
        const double angle = 2 * acos(-1) * (double)(int32_t)w[i % 4 + 1] * 0x1p-32;
        cr_assert(fabs((double)y[i] - radius * cos(angle)) < 1e-6 + 1e-3 * (radius < 0.01), "[%zu] %.9g, expected %.9g",
                  i, (double)y[i], radius * cos(angle));
        cr_assert(fabs((double)y[i + 1] - radius * sin(angle)) < 1e-6 + 1e-3 * (radius < 0.01));
    }
}

Test(by_index, uniform_numbers_stay_below_the_end) {
    enum { COUNT = 60000 };
    static const double ranges[][2] = {{0, 1}, {-1, 0}, {-3, -2}, {1, 1.0078125}, {5, 5.0000001}, {0, 1e-7}};
    const int64_t shape[] = {COUNT}, first[] = {0};
    const tutti_kernel_shard shard = {1, shape, first, shape};
    void *y = array_new(COUNT * 8);
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
        for (size_t r = 0; reference_is_float(type) && r < sizeof ranges / sizeof *ranges; r++) {
            uint64_t code;
            reference_store_float(&code, 0, type, ranges[r][0]);
            const double low = reference_load_float(&code, 0, type);
            tutti_kernel_random_uniform(type, &shard, &stream, ranges[r][0], ranges[r][1], y);
            for (size_t i = 0; i < COUNT; i++) {
                const double value = reference_load_float(y, i, type);
                cr_assert(value >= low && (value < ranges[r][1] || value == low), "%s in [%g, %g): %.12g",
                          tutti_type_name(type), ranges[r][0], ranges[r][1], value);
            }
        }
    array_free(y);
}

Test(by_index, arange_of_integers_wraps) {
    enum { COUNT = 2500 };
    const int64_t shape[] = {COUNT}, first[] = {0};
    uint64_t y[COUNT], expected[COUNT];
    for (int type = TUTTI_INT8; type <= TUTTI_UINT64; type++) {
        tutti_kernel_arange(type, &(tutti_kernel_shard){1, shape, first, shape}, -3, 2, y);
        for (size_t i = 0; i < COUNT; i++) reference_store_integer(expected, i, type, 2 * (uint64_t)i - 3);
        cr_assert(reference_compare(y, expected, COUNT, type) == COUNT, "%s", tutti_type_name(type));
    }
}

Test(by_index, arange_of_floats_and_of_steps_that_are_not_whole) {
    enum { COUNT = 2500 };
    const int64_t shape[] = {COUNT}, first[] = {0};
    const tutti_kernel_shard shard = {1, shape, first, shape};
    uint64_t y[COUNT], expected[COUNT];
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
        if (type == TUTTI_BOOL) continue;
        tutti_kernel_arange(type, &shard, 1.5, 0.25, y);
        for (size_t i = 0; i < COUNT; i++) {
            const double value = 1.5 + 0.25 * (double)i;
            if (reference_is_float(type)) reference_store_float(expected, i, type, value);
            else array_store_rounded(expected, i, type, trunc(value));
        }
        cr_assert(reference_compare(y, expected, COUNT, type) == COUNT, "%s", tutti_type_name(type));
    }
}
