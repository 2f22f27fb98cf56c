/*
 * Reductions over every set of dimensions, against one element after the other.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/operators.h"
#include "tests/kernels/arrays.h"
#include "tests/support/reference.h"

static const struct {
    int ndims;
    int64_t shape[8];
} shapes[] = {{0, {0}},
              {1, {0}},
              {1, {1}},
              {1, {31}},
              {1, {3001}},
              {1, {65}},
              {2, {3, 129}},
              {2, {5, 7}},
              {2, {400, 3}},
              {2, {3, 400}},
              {2, {37, 67}},
              {2, {2, 1100}},
              {2, {1100, 2}},
              {3, {4, 0, 3}},
              {3, {0, 4, 3}},
              {3, {3, 5, 90}},
              {3, {90, 1, 11}},
              {4, {3, 4, 5, 6}},
              {4, {2, 40, 3, 35}},
              {5, {2, 3, 2, 3, 2}},
              {8, {2, 1, 3, 1, 2, 2, 1, 3}}};

/* The reduction of nothing. */
static void store_identity(void *y, size_t i, tutti_type type, tutti_reduction reduction) {
    if (type == TUTTI_BOOL) reference_store_integer(y, i, type, reduction == TUTTI_MIN);
    else if (reference_is_float(type))
        reference_store_float(y, i, type, reduction == TUTTI_SUM ? 0 : reduction == TUTTI_MIN ? INFINITY : -INFINITY);
    else array_store_rounded(y, i, type, reduction == TUTTI_SUM ? 0 : reduction == TUTTI_MIN ? INFINITY : -INFINITY);
}

/* y[i] = y[i] reduced with x, except for sums of floats. */
static void take_in(void *y, size_t i, const void *x, size_t at, tutti_type type, tutti_reduction reduction) {
    const size_t bytes = tutti_type_bytes(type);
    unsigned char result[8];
    const void *sources[] = {(unsigned char *)y + i * bytes, (const unsigned char *)x + at * bytes};
    reference_reduce(result, sources, 2, 1, type, reduction);
    memcpy((unsigned char *)y + i * bytes, result, bytes);
}

static void check(tutti_reduction reduction, tutti_type type, int ndims, const int64_t *shape, unsigned dims) {
    const bool adds_floats = reduction == TUTTI_SUM && reference_is_float(type);
    const size_t bytes = tutti_type_bytes(type);
    size_t count = 1, results = 1;
    for (int d = 0; d < ndims; d++) count *= (size_t)shape[d];
    for (int d = 0; d < ndims; d++) results *= dims >> d & 1 ? 1 : (size_t)shape[d];
    unsigned char *x = array_new(count * bytes), *y = array_new(results * bytes),
                  *expected = array_new(results * bytes);
    long double *sums = calloc(results + 1, sizeof *sums);
    if (count == results) /* -0 stays */
        for (size_t i = 0; i < results; i++) sums[i] = -0.0L;
    reference_fill(x, count, type, reduction, 11, ndims, (int)dims);
    for (size_t i = 0; i < results; i++) store_identity(expected, i, type, reduction);
    for (size_t at = 0; at < count; at++) {
        size_t rest = at, i = 0, step = 1;
        for (int d = ndims - 1; d >= 0; d--) {
            if (!(dims >> d & 1)) {
                i += rest % (size_t)shape[d] * step;
                step *= (size_t)shape[d];
            }
            rest /= (size_t)shape[d];
        }
        if (adds_floats) sums[i] += (long double)reference_load_float(x, at, type);
        else take_in(expected, i, x, at, type, reduction);
    }
    for (size_t i = 0; adds_floats && i < results; i++) reference_store_float(expected, i, type, sums[i]);
    tutti_kernel_reduce(reduction, &(tutti_kernel_reduce_args){type, ndims, shape, dims, x, y});
    cr_assert(array_is_bounded(y, results * bytes));
    const bool rounds = type == TUTTI_FLOAT64 && adds_floats; /* in another order */
    double *numbers = reference_is_float(type) ? array_doubles(type, expected, results) : NULL;
    if (rounds) array_check_near("sum", type, y, numbers, results, 1e-12);
    const size_t wrong = reference_compare(y, expected, results, type);
    char text[2][64];
    cr_assert(rounds || wrong == results, "%s of %s, %d dimensions, those of %#x: [%zu] %s, expected %s",
              tutti_reduction_name(reduction), tutti_type_name(type), ndims, dims, wrong,
              reference_show(y, wrong, type, text[0]), reference_show(expected, wrong, type, text[1]));
    array_free(x);
    array_free(y);
    array_free(expected);
    array_free(numbers);
    free(sums);
}

Test(reduce, over_every_set_of_dimensions) {
    static const tutti_reduction reductions[] = {TUTTI_SUM, TUTTI_MIN, TUTTI_MAX};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (unsigned dims = 0; dims < 1u << shapes[s].ndims; dims++)
            for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
                /* Each type with each reduction, but not on all sets of many dimensions. */
                const bool all = shapes[s].ndims < 3;
                for (int r = 0; r < 3; r++)
                    if (all || (int)((dims + (unsigned)type) % 3) == r)
                        check(reductions[r], type, shapes[s].ndims, shapes[s].shape, dims);
            }
}

Test(reduce, long_sums_of_float32_lose_nothing) {
    const int64_t shape[] = {3000, 1001};
    float *x = malloc(3000 * 1001 * sizeof *x), y[3000];
    for (size_t i = 0; i < 3000 * 1001; i++) x[i] = 0.1f;
    for (unsigned dims = 1; dims <= 3; dims++) {
        tutti_kernel_reduce(TUTTI_SUM, &(tutti_kernel_reduce_args){TUTTI_FLOAT32, 2, shape, dims, x, y});
        const double expected = (double)0.1f * (dims & 1 ? 3000 : 1) * (dims & 2 ? 1001 : 1);
        const size_t results = (dims & 1 ? 1 : 3000) * (dims & 2 ? 1 : 1001);
        for (size_t i = 0; i < results && i < 3000; i++)
            cr_assert(y[i] == (float)expected, "%.9g, expected %.9g", (double)y[i], expected);
    }
    free(x);
}
