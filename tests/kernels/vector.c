/*
 * Loops that are compiled for each instruction set have the baseline's results, bit for bit, with each that this
 * processor supports.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/host/vector/op_vector.h"
#include "kernels/random.h"
#include "tests/kernels/arrays.h"
#include "tests/support/reference.h"

enum { MOST = 400, RESULTS = 60000 };

static float x[MOST], y[MOST];
static double wide_x[MOST], wide_y[MOST];

/* Appends to the results; NaN without its payload. */
static size_t note(unsigned char *results, size_t used, tutti_type type, const void *values, size_t count) {
    const size_t bytes = tutti_type_bytes(type);
    cr_assert(used + count * bytes <= RESULTS * 8);
    memcpy(results + used, values, count * bytes);
    for (size_t i = 0; i < count && reference_is_float(type); i++)
        if (isnan(reference_load_float(values, i, type))) memset(results + used + i * bytes, 0x7f, bytes);
    return used + count * bytes;
}

static size_t run_loops(const tutti_kernel_loops *loops, tutti_type type, size_t count, const void *a, const void *b,
                        unsigned char *results, size_t used) {
    unsigned char out[MOST * 8];
    void (*const unary[])(size_t, const void *, void *) = {loops->exp, loops->log, loops->gelu, loops->gelu_tanh};
    for (size_t k = 0; k < sizeof unary / sizeof *unary; k++) {
        unary[k](count, a, out);
        used = note(results, used, type, out, count);
    }
    loops->gelu_backward(count, a, b, out);
    used = note(results, used, type, out, count);
    loops->gelu_tanh_backward(count, a, b, out);
    used = note(results, used, type, out, count);
    loops->exp_below(count, 50, a, out);
    used = note(results, used, type, out, count);
    loops->exp_below_times(count, 50, 0.3, a, out);
    used = note(results, used, type, out, count);
    const double numbers[] = {loops->largest(count, b), loops->total(count, b), loops->products(count, b, b)};
    return note(results, used, TUTTI_FLOAT64, numbers, 3);
}

static size_t run_all(size_t count, unsigned char *results) {
    static const tutti_type smalls[] = {TUTTI_FLOAT16, TUTTI_BFLOAT16, TUTTI_FLOAT8_E4M3, TUTTI_FLOAT8_E5M2};
    const tutti_vector *vector = tutti_vector_in_use();
    uint32_t words[4 * (MOST + OP_DRAW_BLOCKS)];
    float floats[MOST + 1];
    size_t used = run_loops(&vector->f32, TUTTI_FLOAT32, count, x, y, results, 0);
    used = run_loops(&vector->f64, TUTTI_FLOAT64, count, wide_x, wide_y, results, used);
    for (size_t t = 0; t < sizeof smalls / sizeof *smalls; t++) {
        uint16_t codes[MOST];
        vector->narrow[smalls[t]](codes, x, count);
        used = note(results, used, smalls[t], codes, count);
        vector->widen[smalls[t]](floats, codes, count);
        used = note(results, used, TUTTI_FLOAT32, floats, count);
    }
    vector->draw(3, UINT64_C(5) << 40 | 1, (UINT64_C(1) << 32) - 3, count, words);
    for (size_t i = 0; i < count; i++) {
        uint32_t block[4];
        tutti_random_block(3, UINT64_C(5) << 40 | 1, (UINT64_C(1) << 32) - 3 + i, block);
        cr_assert(memcmp(block, words + 4 * i, sizeof block) == 0, "block %zu", i);
    }
    used = note(results, used, TUTTI_UINT32, words, 4 * count);
    vector->uniform(count, words, -1, 3, 1.5f, floats);
    used = note(results, used, TUTTI_FLOAT32, floats, count);
    vector->normal(count / 2, words, 1, 2, floats);
    return note(results, used, TUTTI_FLOAT32, floats, count / 2 * 2);
}

Test(vector, every_instruction_set_gives_the_bits_of_the_baseline) {
    static const char *const names[] = {"avx2", "avx512"};
    static const size_t counts[] = {0, 1, 7, 15, 16, 17, 63, 64, 65, 127, 128, 200, 399};
    unsigned char *expected = array_new(RESULTS * 8), *results = array_new(RESULTS * 8);
    reference_fill(x, MOST, TUTTI_FLOAT32, TUTTI_MAX, 1, 2, 3);
    for (size_t i = 0; i < MOST; i++) {
        if (i % 3 != 0) x[i] *= 40;
        y[i] = (float)array_number(5, i);
        wide_x[i] = (double)x[i];
        wide_y[i] = array_number(6, i);
    }
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        cr_assert(tutti_vector_use("plain"));
        const size_t used = run_all(counts[c], expected);
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            if (!tutti_vector_use(names[n])) continue;
            cr_assert(run_all(counts[c], results) == used);
            for (size_t i = 0; i < used; i++)
                cr_assert(results[i] == expected[i], "%s, %zu elements: byte %zu of %zu", names[n], counts[c], i, used);
        }
    }
    cr_assert(!tutti_vector_use("none") && tutti_vector_use(NULL));
    array_free(expected);
    array_free(results);
}

/* More accurate than a float32 sum in any order. */
Test(vector, sums_and_maxima_of_every_length) {
    for (size_t count = 0; count < MOST; count++) {
        double sum = 0, products = 0, largest = -INFINITY;
        for (size_t i = 0; i < count; i++) {
            x[i] = (float)array_number(count, i);
            y[i] = (float)array_number(count + 1, i);
            sum += (double)x[i];
            products += (double)x[i] * (double)y[i];
            largest = fmax(largest, (double)x[i]);
        }
        const tutti_kernel_loops *loops = &tutti_vector_in_use()->f32;
        cr_assert(fabs(loops->total(count, x) - sum) < 1e-13 && fabs(loops->products(count, x, y) - products) < 1e-13);
        cr_assert(loops->largest(count, x) == largest, "%zu", count);
    }
}
