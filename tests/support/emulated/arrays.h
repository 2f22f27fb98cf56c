/*
 * Shared by tests of the GPU's kernels: a compute, arrays, and their comparison. These functions assert.
 *
 * Two files implement it: arrays.c, with kernels that are compiled for the host and run on its memory;
 * module_kernels.c, with the kernels of a module, on its GPU.
 */
#ifndef TUTTI_TESTS_EMULATED_ARRAYS_H
#define TUTTI_TESTS_EMULATED_ARRAYS_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/compute.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static const size_t counts[] = {0, 1, 3, 4, 5, 255, 256, 1023, 1024, 1025, 4099};

extern tutti_cuda_compute the_compute;
extern tutti_compute *const compute; /* it */

float of_bfloat16(uint16_t value);

/* Memory for kernels, with a GPU's alignment. The memory of the following functions is released by FREE. */
void *bytes_array(size_t bytes);
/* Followed by guard memory that must not be written. */
float *array(size_t count);
/* Filled with NaN, so that elements that were not written are visible. */
float *unwritten(size_t count);
float *copy_of(const float *values, size_t count);
/* Bit for bit; on a real GPU, which has its own functions and fused multiply-add, within some roundings. */
void expect_same(const char *what, size_t count, const float *got, const float *expected);
void expect_near(const char *what, size_t count, const float *got, const float *expected, double tolerance);

/* Sums of doubles, relative: exact except for their order if the values are the host's. */
double tolerance_of_sums(void);
void array_free(void *array);

#define FREE(...)                                                                                                      \
    do {                                                                                                               \
        void *all_[] = {__VA_ARGS__};                                                                                  \
        for (size_t i_ = 0; i_ < COUNT_OF(all_); i_++) array_free(all_[i_]);                                           \
    } while (0)

#endif
