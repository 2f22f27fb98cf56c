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

/* LANES of them, in registers as wide as they are: so the order of a sum is that of any other instruction set. */
typedef REAL OF(lanes) __attribute__((vector_size(REGISTER_BYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL OF(part) __attribute__((vector_size(REGISTER_BYTES * sizeof(REAL) / 8), aligned(sizeof(REAL)), may_alias));

static double OF(largest_step)(size_t count, const void *x) {
    enum { EACH = REGISTER_BYTES / sizeof(REAL), PARTS = LANES / EACH };
    const REAL *xs = x;
    REAL best = -(REAL)INFINITY;
    size_t i = 0;
    if (count >= LANES) {
        OF(lanes) most[PARTS];
        for (int p = 0; p < PARTS; p++) most[p] = *(const OF(lanes) *)(xs + p * EACH);
        for (i = LANES; i + LANES <= count; i += LANES)
            for (int p = 0; p < PARTS; p++) {
                const OF(lanes) value = *(const OF(lanes) *)(xs + i + (size_t)(p * EACH));
                const __typeof__(value > value) takes = (value > most[p]) | (value != value);
                most[p] = (OF(lanes))(((__typeof__(takes))value & takes) | ((__typeof__(takes))most[p] & ~takes));
            }
        for (int p = 0; p < PARTS; p++)
            for (int l = 0; l < EACH; l++) best = most[p][l] > best || most[p][l] != most[p][l] ? most[p][l] : best;
    }
    for (; i < count; i++) best = xs[i] > best || xs[i] != xs[i] ? xs[i] : best;
    return (double)best;
}

/* Lanes of float64, fed by parts of a register of REAL. */
static inline __attribute__((always_inline)) double OF(add_up)(bool multiplies, size_t count, const REAL *a,
                                                               const REAL *b) {
    enum { EACH = REGISTER_BYTES / 8, PARTS = LANES / EACH };
    double sum = 0;
    size_t i = 0;
    if (count >= LANES) {
        double8 totals[PARTS];
        for (int p = 0; p < PARTS; p++) totals[p] = (double8){0};
        for (; i + LANES <= count; i += LANES)
            for (int p = 0; p < PARTS; p++) {
                const size_t at = i + (size_t)(p * EACH);
                double8 value = __builtin_convertvector(*(const OF(part) *)(a + at), double8);
                if (multiplies) value *= __builtin_convertvector(*(const OF(part) *)(b + at), double8);
                totals[p] += value;
            }
        double lanes[LANES];
        for (int p = 0; p < PARTS; p++)
            for (int l = 0; l < EACH; l++) lanes[p * EACH + l] = totals[p][l];
        for (int width = LANES / 2; width > 0; width /= 2)
            for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
        sum = lanes[0];
    }
    for (; i < count; i++) sum += (double)a[i] * (multiplies ? (double)b[i] : 1);
    return sum;
}

static double OF(total_step)(size_t count, const void *x) {
    return OF(add_up)(false, count, x, NULL);
}

static double OF(products_step)(size_t count, const void *a, const void *b) {
    return OF(add_up)(true, count, a, b);
}
