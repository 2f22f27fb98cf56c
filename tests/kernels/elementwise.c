/*
 * Elementwise operators and casts against one element after the other: floats in long double, integers in 64 bits.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/operators.h"
#include "tests/kernels/arrays.h"
#include "tests/support/reference.h"

static bool is_signed(tutti_type type) {
    return type == TUTTI_INT8 || type == TUTTI_INT16 || type == TUTTI_INT32 || type == TUTTI_INT64;
}

static bool is_small(tutti_type type) {
    return reference_is_float(type) && type != TUTTI_FLOAT32 && type != TUTTI_FLOAT64;
}

/* --------------------------------------------------------------------------------------- two operands */

static uint64_t whole_result(tutti_kernel_binary_kind kind, tutti_type type, uint64_t a, uint64_t b) {
    const bool less = is_signed(type) ? (int64_t)a < (int64_t)b : a < b;
    switch (kind) {
    case TUTTI_KERNEL_ADD: return a + b;
    case TUTTI_KERNEL_SUB: return a - b;
    case TUTTI_KERNEL_MUL: return a * b;
    case TUTTI_KERNEL_DIV:
        if (b == 0) return 0;
        if (!is_signed(type)) return a / b;
        return (int64_t)b == -1 ? -a : (uint64_t)((int64_t)a / (int64_t)b);
    case TUTTI_KERNEL_MAXIMUM: return less ? b : a;
    case TUTTI_KERNEL_MINIMUM: return less ? a : b;
    case TUTTI_KERNEL_EQUAL: return a == b;
    default: return (is_signed(type) ? (int64_t)a <= 0 : a == 0) ? 0 : b;
    }
}

static uint64_t bool_result(tutti_kernel_binary_kind kind, uint64_t a, uint64_t b) {
    a = a != 0;
    b = b != 0;
    switch (kind) {
    case TUTTI_KERNEL_ADD:
    case TUTTI_KERNEL_MAXIMUM: return a | b;
    case TUTTI_KERNEL_MUL:
    case TUTTI_KERNEL_MINIMUM: return a & b;
    default: return a == b;
    }
}

static double extreme(bool smaller, double a, double b) {
    if (isnan(a) || isnan(b)) return NAN;
    if (a == b) return (bool)signbit(a) == smaller ? a : b;
    return (a < b) == smaller ? a : b;
}

/* Small floats compute in float32; for float32 and its sums, differences, products and quotients a double rounds to
 * the same. */
static double float_result(tutti_kernel_binary_kind kind, bool wide, double a, double b) {
    double y;
    switch (kind) {
    case TUTTI_KERNEL_ADD: y = a + b; break;
    case TUTTI_KERNEL_SUB: y = a - b; break;
    case TUTTI_KERNEL_MUL: y = a * b; break;
    case TUTTI_KERNEL_DIV: y = a / b; break;
    case TUTTI_KERNEL_MAXIMUM: return extreme(false, a, b);
    case TUTTI_KERNEL_MINIMUM: return extreme(true, a, b);
    case TUTTI_KERNEL_EQUAL: return a == b;
    default: return a <= 0 ? 0 : b;
    }
    return wide ? y : (double)(float)y;
}

static bool binary_exists(tutti_kernel_binary_kind kind, tutti_type type) {
    if (type != TUTTI_BOOL) return true;
    return kind != TUTTI_KERNEL_SUB && kind != TUTTI_KERNEL_DIV && kind != TUTTI_KERNEL_RELU_BACKWARD;
}

/* One operand: the dimensions in `broadcast` have stride 0; `reversed`: the others lie with the first one innermost. */
typedef struct operand {
    int64_t strides[8];
    size_t count;
} operand;

static operand place(int ndims, const int64_t *shape, unsigned broadcast, bool reversed) {
    operand o = {.count = 1};
    for (int i = 0; i < ndims; i++) {
        const int d = reversed ? i : ndims - 1 - i;
        o.strides[d] = broadcast >> d & 1 ? 0 : (int64_t)o.count;
        if (!(broadcast >> d & 1)) o.count *= (size_t)shape[d];
    }
    return o;
}

static void check_binary(tutti_kernel_binary_kind kind, tutti_type type, int ndims, const int64_t *shape, operand a,
                         operand b, bool in_place) {
    const size_t bytes = tutti_type_bytes(type);
    size_t count = 1;
    for (int d = 0; d < ndims; d++) count *= (size_t)shape[d];
    unsigned char *as = array_new(a.count * bytes), *bs = array_new(b.count * bytes), *ys = array_new(count * bytes);
    unsigned char *expected = array_new(count * bytes);
    reference_fill(as, a.count, type, kind == TUTTI_KERNEL_MUL ? TUTTI_PROD : TUTTI_MAX, 3, (int)kind, 1);
    reference_fill(bs, b.count, type, TUTTI_MAX, 4, ndims, 2);
    for (size_t i = 0; i < b.count; i += 5) /* also equal elements */
        if (i < a.count) memcpy(bs + i * bytes, as + i * bytes, bytes);
    for (size_t i = 0; i < count; i++) {
        size_t rest = i;
        int64_t at_a = 0, at_b = 0;
        for (int d = ndims - 1; d >= 0; d--) {
            at_a += (int64_t)(rest % (size_t)shape[d]) * a.strides[d];
            at_b += (int64_t)(rest % (size_t)shape[d]) * b.strides[d];
            rest /= (size_t)shape[d];
        }
        if (reference_is_float(type)) {
            reference_store_float(expected, i, type,
                                  float_result(kind, type == TUTTI_FLOAT64,
                                               reference_load_float(as, (size_t)at_a, type),
                                               reference_load_float(bs, (size_t)at_b, type)));
            continue;
        }
        const uint64_t p = reference_load_integer(as, (size_t)at_a, type),
                       q = reference_load_integer(bs, (size_t)at_b, type);
        reference_store_integer(expected, i, type,
                                type == TUTTI_BOOL ? bool_result(kind, p, q) : whole_result(kind, type, p, q));
    }
    void *y = in_place ? as : ys;
    const tutti_kernel_binary_args args = {.type = type,
                                           .ndims = ndims,
                                           .shape = shape,
                                           .a = as,
                                           .a_strides = a.strides,
                                           .b = bs,
                                           .b_strides = b.strides,
                                           .y = y};
    tutti_kernel_binary(kind, &args);
    const size_t wrong = reference_compare(y, expected, count, type);
    char text[2][64];
    cr_assert(wrong == count, "kind %d of %s, %d dimensions, [%zu]: %s, expected %s", (int)kind, tutti_type_name(type),
              ndims, wrong, reference_show(y, wrong, type, text[0]), reference_show(expected, wrong, type, text[1]));
    cr_assert(array_is_bounded(ys, count * bytes));
    array_free(as);
    array_free(bs);
    array_free(ys);
    array_free(expected);
}

static const struct {
    int ndims;
    int64_t shape[8];
} shapes[] = {{0, {0}},
              {1, {0}},
              {1, {1}},
              {1, {7}},
              {1, {2100}},
              {2, {3, 5}},
              {2, {300, 3}},
              {2, {2, 1500}},
              {2, {70, 33}},
              {2, {1, 6}},
              {3, {4, 1, 6}},
              {3, {5, 0, 3}},
              {3, {3, 2, 2}},
              {4, {2, 3, 4, 5}},
              {4, {2, 2, 3, 700}},
              {3, {2, 9, 5}},
              {8, {2, 1, 3, 2, 1, 2, 2, 3}}};

Test(elementwise, two_operands_in_every_type_and_broadcast) {
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int ndims = shapes[s].ndims;
        const unsigned masks = ndims > 4 ? 1 : 1u << ndims;
        for (unsigned m = 0; m < masks * masks; m++)
            for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
                /* All kinds and types on dense arrays; the loops are the same for broadcast ones. */
                if (ndims > 2 && m != 0 && (m / 3 + (unsigned)type) % 5 != 0) continue;
                const operand a = place(ndims, shapes[s].shape, m % masks, false);
                const operand b = place(ndims, shapes[s].shape, m / masks, false);
                const int first = m == 0 ? 0 : (int)((m + (unsigned)type) % 8), last = m == 0 ? 7 : first;
                for (int kind = first; kind <= last; kind++)
                    if (binary_exists(kind, type))
                        check_binary(kind, type, ndims, shapes[s].shape, a, b, m % masks == 0);
            }
    }
}

Test(elementwise, operands_of_any_stride) {
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
            const operand a = place(shapes[s].ndims, shapes[s].shape, 0, true);
            const operand b = place(shapes[s].ndims, shapes[s].shape, 1, true);
            check_binary(TUTTI_KERNEL_ADD, type, shapes[s].ndims, shapes[s].shape, a, b, false);
        }
}

/* ----------------------------------------------------------------------------------------- one operand */

static double phi(double x) {
    return 0.5 * erfc(-x / sqrt(2));
}

static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static double unary_result(tutti_kernel_unary_kind kind, double x) {
    switch (kind) {
    case TUTTI_KERNEL_RELU: return x < 0 ? 0 : x;
    case TUTTI_KERNEL_GELU: return x * phi(x);
    case TUTTI_KERNEL_GELU_TANH: return gelu_tanh(x);
    case TUTTI_KERNEL_EXP: return exp(x);
    default: return log(x);
    }
}

/* Numbers of all magnitudes and signs, and the turning points of functions. */
static size_t fill_all_magnitudes(tutti_type type, void *x, size_t most) {
    static const double specials[] = {0,        -0.0,     INFINITY, -INFINITY, NAN,        1,         -1,     88.5,
                                      88.72,    88.73,    89.5,     -87,       -88,        -103.5,    -104.5, -1000,
                                      0x1p-149, 0x1p-126, 1e-40,    -1e-40,    0.70710678, 1.41421356};
    size_t count = 0;
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        reference_store_float(x, count++, type, specials[i]);
    for (int exponent = -140; exponent < 127; exponent++)
        for (int i = 0; i < 40; i++)
            reference_store_float(
                x, count++, type,
                (i % 2 ? -1 : 1) *
                    ldexp(1 + (double)(reference_hash(9, (uint64_t)i, (uint64_t)(exponent + 200)) >> 40) * 0x1p-24,
                          exponent));
    for (; count < most; count++) reference_store_float(x, count, type, ((double)count / (double)most - 0.6) * 30);
    return count;
}

/* Units in the last place of a float32 at this magnitude. */
static double float_unit(double x) {
    int exponent;
    frexp(x, &exponent);
    return ldexp(1, exponent < -125 ? -149 : exponent - 24);
}

Test(elementwise, functions_of_float32_are_within_some_units_of_the_last_place) {
    enum { COUNT = 60000 };
    float *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y);
    cr_assert(fill_all_magnitudes(TUTTI_FLOAT32, x, COUNT) == COUNT);
    for (int kind = TUTTI_KERNEL_RELU; kind <= TUTTI_KERNEL_LOG; kind++) {
        tutti_kernel_unary(kind, TUTTI_FLOAT32, COUNT, x, y);
        double worst = 0;
        for (size_t i = 0; i < COUNT; i++) {
            const double p = (double)x[i], expected = unary_result(kind, p);
            if (isnan(expected) || isinf((float)expected)) {
                cr_assert(isnan(expected) ? isnan(y[i]) : y[i] == (float)expected,
                          "kind %d of %.9g: %.9g, expected %.9g", kind, p, (double)y[i], expected);
                continue;
            }
            /* The approximation by tanh cancels in the reference, too; far left both are almost 0. */
            double units = kind == TUTTI_KERNEL_RELU ? 0 : kind == TUTTI_KERNEL_GELU ? 8 + p * p / 2 : 2;
            if (kind == TUTTI_KERNEL_GELU_TANH) units = 8 + 4 * fabs(p * p * p);
            if ((kind == TUTTI_KERNEL_GELU || kind == TUTTI_KERNEL_GELU_TANH) && p < -5) {
                cr_assert(fabs((double)y[i] - expected) <= 1e-9 && y[i] <= 0, "kind %d of %.9g: %.9g, expected %.9g",
                          kind, p, (double)y[i], expected);
                continue;
            }
            const double off = fabs((double)y[i] - expected) / float_unit(expected);
            cr_assert(off <= units, "kind %d of %.9g: %.9g, expected %.9g (%g units)", kind, p, (double)y[i], expected,
                      off);
            if (off > worst) worst = off;
        }
        cr_log_info("kind %d: at most %g units", kind, worst);
    }
    free(x);
    free(y);
}

Test(elementwise, functions_of_other_floats) {
    enum { COUNT = 20000 };
    double x[COUNT], y[COUNT];
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
        if (!reference_is_float(type) || type == TUTTI_FLOAT32) continue;
        fill_all_magnitudes(type, x, COUNT);
        for (int kind = TUTTI_KERNEL_RELU; kind <= TUTTI_KERNEL_LOG; kind++) {
            tutti_kernel_unary(kind, type, COUNT, x, y);
            for (size_t i = 0; i < COUNT; i++) {
                const double p = reference_load_float(x, i, type), expected = unary_result(kind, p),
                             got = reference_load_float(y, i, type);
                double near[2]; /* the nearest number, rounded */
                uint64_t code;
                const double slack = type == TUTTI_FLOAT64 ? 1e-12 : 1e-4;
                for (int k = 0; k < 2; k++) {
                    const double off = fabs(expected) * slack + (type == TUTTI_FLOAT64 ? 1e-15 : 1e-9);
                    reference_store_float(&code, 0, type,
                                          isinf(expected) ? expected
                                          : k             ? expected + off
                                                          : expected - off);
                    near[k] = reference_load_float(&code, 0, type);
                }
                cr_assert(isnan(expected) ? isnan(got) : near[0] <= got && got <= near[1],
                          "kind %d of %s %.9g: %.9g, expected %.9g", kind, tutti_type_name(type), p, got, expected);
            }
        }
    }
}

Test(elementwise, relu_of_integers) {
    for (int type = TUTTI_INT8; type <= TUTTI_UINT64; type++) {
        uint64_t x[37], y[37];
        reference_fill(x, 37, type, TUTTI_MAX, 1, type, 0);
        tutti_kernel_unary(TUTTI_KERNEL_RELU, type, 37, x, y);
        for (size_t i = 0; i < 37; i++) {
            const uint64_t p = reference_load_integer(x, i, type);
            cr_assert(reference_load_integer(y, i, type) == (is_signed(type) && (int64_t)p < 0 ? 0 : p));
        }
    }
}

Test(elementwise, gradients_of_gelu_match_finite_differences) {
    enum { COUNT = 400 };
    double x[COUNT], dy[COUNT], dx[COUNT], above[COUNT], below[COUNT];
    float xf[COUNT], dyf[COUNT], dxf[COUNT];
    const int64_t shape[] = {COUNT}, strides[] = {1};
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = ((double)i - 200) / 25;
        dy[i] = array_number(1, i);
        xf[i] = (float)x[i];
        dyf[i] = (float)dy[i];
    }
    for (int k = 0; k < 2; k++) {
        const tutti_kernel_binary_kind kind = k ? TUTTI_KERNEL_GELU_TANH_BACKWARD : TUTTI_KERNEL_GELU_BACKWARD;
        const tutti_kernel_binary_args args = {TUTTI_FLOAT64, 1, shape, x, strides, dy, strides, dx};
        const tutti_kernel_binary_args args_f32 = {TUTTI_FLOAT32, 1, shape, xf, strides, dyf, strides, dxf};
        tutti_kernel_binary(kind, &args);
        tutti_kernel_binary(kind, &args_f32);
        double moved[COUNT];
        for (int side = 0; side < 2; side++) {
            tutti_kernel_add_number(TUTTI_FLOAT64, side ? 1e-5 : -1e-5, COUNT, x, moved);
            tutti_kernel_unary(k ? TUTTI_KERNEL_GELU_TANH : TUTTI_KERNEL_GELU, TUTTI_FLOAT64, COUNT, moved,
                               side ? above : below);
        }
        for (size_t i = 0; i < COUNT; i++) {
            const double expected = (above[i] - below[i]) / 2e-5 * dy[i];
            cr_assert(fabs(dx[i] - expected) < 1e-9, "%g: %.12g, expected %.12g", x[i], dx[i], expected);
            cr_assert(fabs((double)dxf[i] - expected) < 2e-6, "%g: %.9g, expected %.9g", x[i], (double)dxf[i],
                      expected);
        }
    }
}

/* ------------------------------------------------------------------------------------------ with a number */

Test(elementwise, integers_times_whole_numbers_wrap_and_others_round) {
    static const double numbers[] = {3, -1, 0, 0x1p40, 0.5, -0.25, 1.5, 1e30, -1e30, NAN, INFINITY};
    for (int type = TUTTI_INT8; type <= TUTTI_UINT64; type++)
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
            for (int adds = 0; adds < 2; adds++) {
                enum { COUNT = 1100 };
                uint64_t x[COUNT], y[COUNT], expected[COUNT];
                const double number = numbers[n];
                reference_fill(x, COUNT, type, TUTTI_MAX, 1, type, 0);
                for (size_t i = 0; i < COUNT; i++) {
                    const uint64_t p = reference_load_integer(x, i, type);
                    if (floor(number) == number && fabs(number) < 0x1p63) {
                        const uint64_t whole = (uint64_t)(int64_t)number;
                        reference_store_integer(expected, i, type, adds ? p + whole : p * whole);
                        continue;
                    }
                    const double wide = is_signed(type) ? (double)(int64_t)p : (double)p;
                    array_store_rounded(expected, i, type, nearbyint(adds ? wide + number : wide * number));
                }
                (adds ? tutti_kernel_add_number : tutti_kernel_scale)(type, number, COUNT, x, y);
                const size_t wrong = reference_compare(y, expected, COUNT, type);
                char text[3][64];
                cr_assert(wrong == COUNT, "%s %s and %g: %s, expected %s", tutti_type_name(type),
                          reference_show(x, wrong, type, text[2]), number, reference_show(y, wrong, type, text[0]),
                          reference_show(expected, wrong, type, text[1]));
            }
}

Test(elementwise, floats_and_a_number_round_once) {
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
        enum { COUNT = 1100 };
        double x[COUNT], y[COUNT], expected[COUNT];
        if (!reference_is_float(type)) continue;
        reference_fill(x, COUNT, type, TUTTI_MAX, 1, type, 0);
        for (int adds = 0; adds < 2; adds++) {
            const double number = type == TUTTI_FLOAT64 ? 0.1 : (double)0.1f;
            for (size_t i = 0; i < COUNT; i++) {
                const double p = reference_load_float(x, i, type), wide = adds ? p + number : p * number;
                reference_store_float(expected, i, type, is_small(type) ? (double)(float)wide : wide);
            }
            (adds ? tutti_kernel_add_number : tutti_kernel_scale)(type, 0.1, COUNT, x, y);
            cr_assert(reference_compare(y, expected, COUNT, type) == COUNT, "%s", tutti_type_name(type));
        }
    }
}

/* -------------------------------------------------------------------------------------------------- casts */

/* Difficult numbers: limits of all types, midpoints between small floats, and slightly more. */
static size_t fill_for_cast(tutti_type type, void *x, size_t most) {
    size_t count = 0;
    if (!reference_is_float(type)) {
        reference_fill(x, most, type, TUTTI_MAX, 5, type, 0);
        for (int bit = 0; bit < 64 && type != TUTTI_BOOL; bit++)
            for (int off = -2; off <= 2; off++) {
                reference_store_integer(x, count++, type, (UINT64_C(1) << bit) + (uint64_t)off);
                reference_store_integer(x, count++, type, (uint64_t)off - (UINT64_C(1) << bit));
                /* Close to the midpoint of two bfloat16 numbers, or two float16 numbers. */
                reference_store_integer(x, count++, type, (UINT64_C(0x101) << bit) + (uint64_t)off);
                reference_store_integer(x, count++, type, (UINT64_C(0x801) << bit) + (uint64_t)off);
            }
        return most;
    }
    reference_fill(x, most, type, TUTTI_MAX, 5, type, 0);
    for (int bit = -30; bit < 66; bit++)
        for (int i = 0; i < 12; i++) {
            static const double factors[] = {1, -1, 1.5, -1.5, 257.0 / 256, 2049.0 / 2048, 9.0 / 8, 17.0 / 16};
            const double f = i < 8 ? factors[i] : factors[i - 4] * (1 + 0x1p-40);
            reference_store_float(x, count++, type, ldexp(f, bit));
            reference_store_float(x, count++, type, ldexp(f, bit) - 1);
            reference_store_float(x, count++, type, ldexp(f, bit) + 0.5);
        }
    return most;
}

Test(elementwise, casts_between_all_types) {
    enum { COUNT = 4000 };
    static uint64_t x[COUNT], y[COUNT], expected[COUNT];
    for (int from = 0; from < TUTTI_TYPE_COUNT; from++)
        for (int to = 0; to < TUTTI_TYPE_COUNT; to++) {
            fill_for_cast(from, x, COUNT);
            for (size_t i = 0; i < COUNT; i++) {
                if (!reference_is_float(from)) {
                    uint64_t p = reference_load_integer(x, i, from);
                    if (from == TUTTI_BOOL) p = p != 0;
                    if (to == TUTTI_BOOL) reference_store_integer(expected, i, to, p != 0);
                    else if (!reference_is_float(to)) reference_store_integer(expected, i, to, p);
                    else
                        reference_store_float(expected, i, to,
                                              is_signed(from) ? (long double)(int64_t)p : (long double)p);
                    continue;
                }
                const double p = reference_load_float(x, i, from);
                if (reference_is_float(to)) reference_store_float(expected, i, to, p);
                else array_store_rounded(expected, i, to, to == TUTTI_BOOL ? p != 0 : trunc(p));
            }
            tutti_kernel_cast(from, to, COUNT, x, y);
            const size_t wrong = reference_compare(y, expected, COUNT, to);
            char text[3][64];
            cr_assert(wrong == COUNT, "%s %s to %s: %s, expected %s", tutti_type_name(from),
                      reference_show(x, wrong, from, text[0]), tutti_type_name(to),
                      reference_show(y, wrong, to, text[1]), reference_show(expected, wrong, to, text[2]));
        }
}

Test(elementwise, fill_is_a_cast_of_one_number) {
    static const size_t counts[] = {0, 1, 7, 1023, 1024, 1025, 3000};
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
            const size_t count = counts[n], bytes = tutti_type_bytes(type);
            unsigned char *y = array_new(count * bytes), one[8];
            const double value = -3.7;
            tutti_kernel_cast(TUTTI_FLOAT64, type, 1, &value, one);
            tutti_kernel_fill(type, value, count, y);
            for (size_t i = 0; i < count; i++) cr_assert(memcmp(y + i * bytes, one, bytes) == 0);
            cr_assert(array_is_bounded(y, count * bytes));
            array_free(y);
        }
}
