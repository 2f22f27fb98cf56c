/*
 * Template of the loops of one element type; included once per type by reduce_loops.h.
 *
 * Parameters: ELEMENT (the C type), SUFFIX, FACTOR(scalars, input) and the functions start_SUFFIX (applied to each
 * input), combine_SUFFIX (left to right) and finish_SUFFIX (applied to the result). The fold and the number of
 * inputs are constants in each loop, so every loop is straight-line code. Loops are named by fold, inputs and type:
 * sum_2_f32 adds two arrays of float32; STEP makes these names.
 */
#define GLUE_(a, b) a##_##b
#define GLUE(a, b)  GLUE_(a, b)
#define NAME(word)  GLUE(word, SUFFIX)

REDUCE_INLINE void NAME(fold)(tutti_reduce_fold fold, int inputs, void *result, const void *const *ins,
                              const tutti_fold_scalars *scalars, size_t count) {
    ELEMENT *out = result;
    const ELEMENT *a = ins[0], *b = inputs > 1 ? ins[1] : a, *c = inputs > 2 ? ins[2] : a, *d = inputs > 3 ? ins[3] : a;
    const ELEMENT factor_a = FACTOR(scalars, 0), factor_b = FACTOR(scalars, 1), scale = (ELEMENT)scalars->scale;
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) {
        ELEMENT x = NAME(start)(fold, a[i], factor_a);
        if (inputs > 1) x = NAME(combine)(fold, x, NAME(start)(fold, b[i], factor_b));
        if (inputs > 2) x = NAME(combine)(fold, x, c[i]);
        if (inputs > 3) x = NAME(combine)(fold, x, d[i]);
        out[i] = NAME(finish)(fold, x, scale);
    }
}

#define STEP(word, fold_kind, inputs)                                                                                  \
    static void NAME(GLUE(word, inputs))(void *out, const void *const *ins, const tutti_fold_scalars *scalars,         \
                                         size_t count) {                                                               \
        NAME(fold)(fold_kind, inputs, out, ins, scalars, count);                                                       \
    }
#define STEPS_TO_2(word, fold_kind) STEP(word, fold_kind, 1) STEP(word, fold_kind, 2)
#define STEPS_TO_4(word, fold_kind)                                                                                    \
    STEPS_TO_2(word, fold_kind)                                                                                        \
    STEP(word, fold_kind, 3)                                                                                           \
    STEP(word, fold_kind, 4)

#if defined(STEPS_ARITHMETIC)
STEPS_TO_4(sum, TUTTI_FOLD_SUM)
STEPS_TO_2(prod, TUTTI_FOLD_PROD)
STEPS_TO_2(premul, TUTTI_FOLD_PREMUL)
#endif
#if defined(STEPS_ORDER)
STEPS_TO_2(min, TUTTI_FOLD_MIN)
STEPS_TO_2(max, TUTTI_FOLD_MAX)
#endif
#if defined(STEPS_SCALED)
STEPS_TO_4(times, TUTTI_FOLD_SUM_TIMES)
STEPS_TO_4(over, TUTTI_FOLD_SUM_OVER)
#endif
#if defined(STEPS_BITWISE)
STEPS_TO_2(and, TUTTI_FOLD_AND)
STEPS_TO_2(or, TUTTI_FOLD_OR)
STEPS_TO_2(xor, TUTTI_FOLD_XOR)
#endif

#undef STEPS_ARITHMETIC
#undef STEPS_ORDER
#undef STEPS_SCALED
#undef STEPS_BITWISE
#undef STEPS_TO_4
#undef STEPS_TO_2
#undef STEP
#undef NAME
#undef GLUE
#undef GLUE_
#undef FACTOR
#undef SUFFIX
#undef ELEMENT
