/*
 * Arrays for the tests of operators.
 */
#include "tests/kernels/arrays.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/reference.h"

#define GUARD_BYTES 64
#define GUARD       0xa5

void *array_new(size_t bytes) {
    unsigned char *array = aligned_alloc(64, (bytes + GUARD_BYTES + 63) / 64 * 64);
    cr_assert(array != NULL);
    memset(array, GUARD, bytes + GUARD_BYTES);
    return array;
}

bool array_is_bounded(const void *array, size_t bytes) {
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (((const unsigned char *)array)[bytes + i] != GUARD) return false;
    return true;
}

void array_free(void *array) {
    free(array);
}

double array_number(uint64_t seed, size_t i) {
    return (double)(int64_t)reference_hash(seed, i, 77) * 0x1p-63;
}

void *array_random(tutti_type type, uint64_t seed, size_t count) {
    void *values = array_new(count * tutti_type_bytes(type));
    for (size_t i = 0; i < count; i++) reference_store_float(values, i, type, (long double)array_number(seed, i));
    return values;
}

double *array_doubles(tutti_type type, const void *values, size_t count) {
    double *doubles = array_new(count * sizeof *doubles);
    for (size_t i = 0; i < count; i++) doubles[i] = reference_load_float(values, i, type);
    return doubles;
}

void array_store_rounded(void *array, size_t i, tutti_type type, double whole) {
    const int bits = 8 * (int)tutti_type_bytes(type);
    const bool has_sign = type == TUTTI_INT8 || type == TUTTI_INT16 || type == TUTTI_INT32 || type == TUTTI_INT64;
    const double above = ldexp(1, has_sign ? bits - 1 : bits), least = has_sign ? -above : 0;
    uint64_t stored;
    if (isnan(whole)) stored = 0;
    else if (whole >= above) stored = has_sign ? (UINT64_C(1) << (bits - 1)) - 1 : UINT64_MAX;
    else if (whole < least) stored = has_sign ? UINT64_C(1) << (bits - 1) : 0;
    else stored = whole < 0 ? (uint64_t)(int64_t)whole : (uint64_t)whole;
    reference_store_integer(array, i, type, stored);
}

void array_check_near(const char *what, tutti_type type, const void *got, const double *expected, size_t count,
                      double tolerance) {
    for (size_t i = 0; i < count; i++) {
        const double value = reference_load_float(got, i, type);
        const bool same = isnan(expected[i])   ? isnan(value)
                          : isinf(expected[i]) ? value == expected[i]
                                               : fabs(value - expected[i]) <= tolerance * (1 + fabs(expected[i]));
        cr_assert(same, "%s of %s [%zu of %zu]: %.12g, expected %.12g", what, tutti_type_name(type), i, count, value,
                  expected[i]);
    }
}

void array_check_gradient(const char *what, double (*evaluate)(void *context), void *context, size_t count,
                          double *values, const double *gradient) {
    const double step = 1e-6;
    for (size_t i = 0; i < count; i++) {
        const double old = values[i];
        values[i] = old + step;
        const double above = evaluate(context);
        values[i] = old - step;
        const double below = evaluate(context);
        values[i] = old;
        const double expected = (above - below) / (2 * step);
        cr_assert(fabs(expected - gradient[i]) <= 2e-7 * (1 + fabs(expected)), "%s[%zu]: %.12g, expected %.12g", what,
                  i, gradient[i], expected);
    }
}
