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
    if (rule->nesterov) {
        for (size_t i = 0; i < count; i++) {
            tutti_real g = gradient[i] + decay * parameter[i];
            velocity[i] = momentum * velocity[i] + g;
            parameter[i] -= lr * (g + momentum * velocity[i]);
        }
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

tutti_adam_factors tutti_optimizer_adam_factors(const tutti_adam *rule) {
    return (tutti_adam_factors){
        .keep = (tutti_real)(rule->decoupled ? 1 - rule->lr * rule->weight_decay : 1),
        .rate = (tutti_real)(rule->lr / (1 - pow(rule->beta_1, (double)rule->step))),
        .correction = (tutti_real)(1 / sqrt(1 - pow(rule->beta_2, (double)rule->step))),
    };
}

TUTTI_VECTOR_CLONES
void tutti_optimizer_adam_piece(const tutti_adam *rule, const tutti_adam_factors *factors,
                                const tutti_optimizer_piece *piece) {
    const tutti_real *restrict gradient = piece->gradient;
    tutti_real *restrict mean = piece->states[0], *restrict square = piece->states[1];
    tutti_real *restrict parameter = piece->parameter;
    tutti_real beta_1 = (tutti_real)rule->beta_1, beta_2 = (tutti_real)rule->beta_2;
    tutti_real coupled = (tutti_real)(rule->decoupled ? 0 : rule->weight_decay);
    tutti_real epsilon = (tutti_real)rule->epsilon;
    tutti_real keep = rule->weight_decay != 0 ? factors->keep : 1, rate = factors->rate,
               correction = factors->correction;
    size_t count = piece->count;
    for (size_t i = 0; i < count; i++) {
        tutti_real g = gradient[i] + coupled * parameter[i];
        mean[i] = beta_1 * mean[i] + (1 - beta_1) * g;
        square[i] = beta_2 * square[i] + (1 - beta_2) * g * g;
        parameter[i] = keep * parameter[i] - rate * mean[i] / (square_root(square[i]) * correction + epsilon);
    }
}

void tutti_optimizer_adam(const tutti_adam *rule, size_t count, const tutti_real *gradient, tutti_real *mean,
                          tutti_real *square, tutti_real *parameter) {
    tutti_adam_factors factors = tutti_optimizer_adam_factors(rule);
    tutti_optimizer_piece piece = {
        .count = count, .gradient = gradient, .states = {mean, square}, .parameter = parameter};
    tutti_optimizer_adam_piece(rule, &factors, &piece);
}
