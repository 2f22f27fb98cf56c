/*
 * SGD with momentum, Adam and AdamW, each one pass over its arrays.
 */
#include "kernels/optimizer.h"

#include <math.h>

TUTTI_VECTOR_CLONES
void tutti_optimizer_sgd(const tutti_sgd *rule, size_t count, const tutti_real *restrict gradient,
                         tutti_real *restrict velocity, tutti_real *restrict parameter) {
    tutti_real lr = (tutti_real)rule->lr, momentum = (tutti_real)rule->momentum;
    tutti_real decay = (tutti_real)rule->weight_decay;
    if (rule->momentum == 0) {
        for (size_t i = 0; i < count; i++) parameter[i] -= lr * (gradient[i] + decay * parameter[i]);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        velocity[i] = momentum * velocity[i] + (gradient[i] + decay * parameter[i]);
        parameter[i] -= lr * velocity[i];
    }
}

static inline tutti_real square_root(tutti_real value) {
#ifdef TUTTI_KERNELS_DOUBLE
    return sqrt(value);
#else
    return sqrtf(value);
#endif
}

TUTTI_VECTOR_CLONES
void tutti_optimizer_adam(const tutti_adam *rule, size_t count, const tutti_real *restrict gradient,
                          tutti_real *restrict mean, tutti_real *restrict square, tutti_real *restrict parameter) {
    tutti_real beta_1 = (tutti_real)rule->beta_1, beta_2 = (tutti_real)rule->beta_2;
    tutti_real coupled = (tutti_real)(rule->decoupled ? 0 : rule->weight_decay);
    tutti_real keep = (tutti_real)(rule->decoupled ? 1 - rule->lr * rule->weight_decay : 1);
    tutti_real epsilon = (tutti_real)rule->epsilon;
    tutti_real rate = (tutti_real)(rule->lr / (1 - pow(rule->beta_1, (double)rule->step)));
    tutti_real correction = (tutti_real)(1 / sqrt(1 - pow(rule->beta_2, (double)rule->step)));
    for (size_t i = 0; i < count; i++) {
        tutti_real g = gradient[i] + coupled * parameter[i];
        mean[i] = beta_1 * mean[i] + (1 - beta_1) * g;
        square[i] = beta_2 * square[i] + (1 - beta_2) * g * g;
        parameter[i] = keep * parameter[i] - rate * mean[i] / (square_root(square[i]) * correction + epsilon);
    }
}
