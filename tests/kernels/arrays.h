/*
 * Arrays for the tests of operators: with a guard behind them, and pseudo-random numbers.
 */
#ifndef TUTTI_TESTS_KERNELS_ARRAYS_H
#define TUTTI_TESTS_KERNELS_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

/* Unwritten bytes with a guard behind them. */
void *array_new(size_t bytes);
bool array_is_bounded(const void *array, size_t bytes);
void array_free(void *array);

/* A number in (-1, 1) that depends on both. */
double array_number(uint64_t seed, size_t i);

/* New arrays of float32 or float64: of such numbers, or from doubles; and conversion to doubles. */
void *array_random(tutti_type type, uint64_t seed, size_t count);
double *array_doubles(tutti_type type, const void *values, size_t count);

/* A number as an integer or bool, clamped to the range of the type; NaN: 0. */
void array_store_rounded(void *array, size_t i, tutti_type type, double whole);

/* Asserts |got - expected| <= tolerance * (1 + |expected|) for each; NaN and infinities are equal to themselves. */
void array_check_near(const char *what, tutti_type type, const void *got, const double *expected, size_t count,
                      double tolerance);

/* evaluate(context) depends on values[0, count): asserts that gradient is its derivative, by central differences. */
void array_check_gradient(const char *what, double (*evaluate)(void *context), void *context, size_t count,
                          double *values, const double *gradient);

#endif
