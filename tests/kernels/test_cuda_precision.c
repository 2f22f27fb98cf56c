/*
 * Precision of matrix products on a module's compute (tests/support/emulated/module_kernels.c): 1 + 2^-12 has more
 * bits than TF32 and bfloat16 keep, and sums of it are exact in float32. So a product shows the precision in which it
 * was computed, and whether TF32 is used without being requested.
 */
#include "tests/support/emulated/arrays.h"

enum { SIDE = 256, TERMS = 512 };

static void expect_products(tutti_precision precision, float expected) {
    tutti_dense dense = {TERMS, SIDE, false};
    the_compute.precision = precision;
    float *x = array(SIDE * TERMS), *weight = array(TERMS * SIDE), *bias = array(SIDE), *y = unwritten(SIDE * SIDE);
    for (int i = 0; i < SIDE * TERMS; i++) x[i] = 1 + 0x1p-12f;
    for (int i = 0; i < TERMS * SIDE; i++) weight[i] = 1;
    for (int i = 0; i < SIDE; i++) bias[i] = 0;
    tutti_dense_forward_args args = {SIDE, x, weight, bias, y};
    tutti_gpu_dense_forward(compute, &dense, &args);
    for (int i = 0; i < SIDE * SIDE; i++)
        cr_assert_eq(y[i], expected, "y[%d] is %.9g instead of %.9g", i, (double)y[i], (double)expected);
    the_compute.precision = TUTTI_PRECISION_FP32;
    FREE(x, weight, bias, y);
}

Test(precision, products_are_in_float32_unless_another_precision_is_asked_for) {
    expect_products(TUTTI_PRECISION_FP32, TERMS * (1 + 0x1p-12f));
}

Test(precision, products_in_tf32_keep_ten_bits) {
    expect_products(TUTTI_PRECISION_TF32, TERMS);
}

Test(precision, products_in_bfloat16_keep_seven_bits) {
    expect_products(TUTTI_PRECISION_BF16, TERMS);
}
