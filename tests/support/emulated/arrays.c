/*
 * Replaces what the module otherwise provides to the kernels, and makes arrays to test them on. See arrays.h.
 */
#include "tests/support/emulated/arrays.h"

#include "kernels/gemm.h"
#include "tests/support/emulated/enqueue.h"

void emulated_enqueue(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context) {
    (void)stream;
    run(context);
    forget(context);
}

void *emulated_reach(const void *address) {
    return (void *)(uintptr_t)address;
}

float of_bfloat16(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static tutti_status current(int *device_out) {
    *device_out = 0;
    return TUTTI_OK;
}

static const tutti_module_host host = {.fail = tutti_fail, .last_error = tutti_last_error};
static const tutti_device device = {.current = current};
const tutti_module_host *tutti_cuda_host = &host;
const tutti_device *tutti_cuda_device = &device;

void tutti_compute_note(tutti_compute *by, tutti_status status) {
    (void)by;
    cr_assert_eq(status, TUTTI_OK, "%s", tutti_last_error());
}

/* In place of cuBLAS. */
void tutti_blas_multiply(tutti_compute *by, const tutti_product *product) {
    (void)by;
    size_t count = (size_t)product->m * (size_t)product->k;
    float *a = malloc((count + 1) * sizeof *a);
    for (size_t i = 0; i < count; i++)
        a[i] = product->a.rounded ? of_bfloat16(((const uint16_t *)product->a.data)[i])
                                  : ((const float *)product->a.data)[i];
    tutti_gemm(product->a.transposed, product->b.transposed, product->m, product->n, product->k, 1, a, product->b.data,
               0, product->c);
    free(a);
}

static float partials[TUTTI_COMPUTE_PARTIALS + 4]; /* the last ones stay 0 */
tutti_cuda_compute the_compute = {.partials = partials};
tutti_compute *const compute = &the_compute.base;

static uint64_t next_stream = 1;

void *bytes_array(size_t bytes) {
    return aligned_alloc(64, (bytes + 127) / 64 * 64);
}

void array_free(void *array) {
    free(array);
}

double tolerance_of_sums(void) {
    return 1e-10;
}

float *array(size_t count) {
    float *made = bytes_array(count * sizeof *made);
    next_stream++;
    for (size_t i = 0; i < count; i++) made[i] = (float)(2 * tutti_random_uniform(11, next_stream, i) - 1);
    made[count] = 77;
    return made;
}

float *unwritten(size_t count) {
    float *made = array(count);
    for (size_t i = 0; i < count; i++) made[i] = NAN;
    return made;
}

float *copy_of(const float *values, size_t count) {
    float *made = array(count);
    memcpy(made, values, count * sizeof *made);
    return made;
}

static void expect_bounded(const char *what, const float *got, size_t count) {
    cr_assert_eq(got[count], 77, "%s: written behind its %zu elements", what, count);
    for (size_t i = TUTTI_COMPUTE_PARTIALS; i < COUNT_OF(partials); i++)
        cr_assert_eq(partials[i], 0, "%s: written behind the partials", what);
}

void expect_same(const char *what, size_t count, const float *got, const float *expected) {
    for (size_t i = 0; i < count; i++)
        cr_assert(got[i] == expected[i] || (isnan(got[i]) && isnan(expected[i])), "%s[%zu of %zu]: %.9g, expected %.9g",
                  what, i, count, (double)got[i], (double)expected[i]);
    expect_bounded(what, got, count);
}

void expect_near(const char *what, size_t count, const float *got, const float *expected, double tolerance) {
    for (size_t i = 0; i < count; i++) {
        if (isnan(got[i]) && isnan(expected[i])) continue;
        cr_assert(fabs((double)got[i] - (double)expected[i]) <= tolerance * (1 + fabs((double)expected[i])),
                  "%s[%zu of %zu]: %.9g, expected %.9g", what, i, count, (double)got[i], (double)expected[i]);
    }
    expect_bounded(what, got, count);
}
