/* The loops of one real type; a template (op_both_reals.h). */

#define STEP(word, expression)                                                                                         \
    static void OF(word##_step)(size_t count, const void *x, void *y) {                                                \
        const REAL *xs = x;                                                                                            \
        REAL *ys = y;                                                                                                  \
        REDUCE_SAME_INDEX_ONLY                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const REAL p = xs[i];                                                                                      \
            ys[i] = expression;                                                                                        \
        }                                                                                                              \
    }
STEP(exp, OF(exp)(p))
STEP(log, OF(log)(p))
STEP(gelu, OF(gelu)(p))
STEP(gelu_tanh, OF(gelu_tanh)(p))
#undef STEP

#define STEP(word, expression)                                                                                         \
    static void OF(word##_step)(size_t count, const void *a, const void *b, void *y) {                                 \
        const REAL *as = a, *bs = b;                                                                                   \
        REAL *ys = y;                                                                                                  \
        REDUCE_SAME_INDEX_ONLY                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const REAL p = as[i], q = bs[i];                                                                           \
            ys[i] = (expression)*q;                                                                                    \
        }                                                                                                              \
    }
STEP(gelu_backward, OF(gelu_slope)(p))
STEP(gelu_tanh_backward, OF(gelu_tanh_slope)(p))
#undef STEP

static void OF(exp_below_step)(size_t count, double shift, const void *x, void *y) {
    const REAL *xs = x, by = (REAL)shift;
    REAL *ys = y;
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) ys[i] = OF(exp_below)(xs[i] - by);
}

static void OF(exp_below_times_step)(size_t count, double shift, double factor, const void *x, void *y) {
    const REAL *xs = x, by = (REAL)shift, times = (REAL)factor;
    REAL *ys = y;
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) ys[i] = OF(exp_below)(xs[i] - by) * times;
}

/* Where LANES accumulators run side by side, LANES determines the order of a sum, not the width of the registers. */

static double OF(largest_step)(size_t count, const void *x) {
    const REAL *xs = x;
    REAL best = -(REAL)INFINITY;
    size_t i = 0;
    if (count >= LANES) {
        REAL lanes[LANES];
        memcpy(lanes, xs, sizeof lanes);
        for (i = LANES; i + LANES <= count; i += LANES)
            for (size_t l = 0; l < LANES; l++) lanes[l] = xs[i + l] > lanes[l] ? xs[i + l] : lanes[l];
        for (size_t width = LANES / 2; width > 0; width /= 2)
            for (size_t l = 0; l < width; l++) lanes[l] = lanes[l + width] > lanes[l] ? lanes[l + width] : lanes[l];
        best = lanes[0];
    }
    for (; i < count; i++) best = xs[i] > best ? xs[i] : best;
    return (double)best;
}

static inline __attribute__((always_inline)) double OF(add_up)(bool multiplies, size_t count, const REAL *a,
                                                               const REAL *b) {
    double sum = 0;
    size_t i = 0;
    if (count >= LANES) {
        double lanes[LANES] = {0};
        for (; i + LANES <= count; i += LANES)
            for (size_t l = 0; l < LANES; l++)
                lanes[l] += multiplies ? (double)a[i + l] * (double)b[i + l] : (double)a[i + l];
        for (size_t width = LANES / 2; width > 0; width /= 2)
            for (size_t l = 0; l < width; l++) lanes[l] += lanes[l + width];
        sum = lanes[0];
    }
    for (; i < count; i++) sum += multiplies ? (double)a[i] * (double)b[i] : (double)a[i];
    return sum;
}

static double OF(total_step)(size_t count, const void *x) {
    return OF(add_up)(false, count, x, NULL);
}

static double OF(products_step)(size_t count, const void *a, const void *b) {
    return OF(add_up)(true, count, a, b);
}
