/*
 * Optimizer steps on one array of parameters. State arrays start as zeros.
 */
#ifndef TUTTI_KERNELS_OPTIMIZER_H
#define TUTTI_KERNELS_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/real.h"

/* A parameter, or several contiguous ones: arrays of count elements. */
typedef struct tutti_optimizer_piece {
    size_t count;
    const tutti_real *gradient;
    tutti_real *states[2]; /* SGD: velocity; Adam: mean, square */
    tutti_real *parameter;
} tutti_optimizer_piece;

/* g = gradient + weight_decay * parameter; velocity = momentum * velocity + g; parameter -= lr * velocity. momentum
 * 0: velocity is not used and may be NULL. nesterov: parameter -= lr * (g + momentum * velocity) instead.
 * (PyTorch's SGD.) */
typedef struct tutti_sgd {
    double lr, momentum, weight_decay;
    bool nesterov;
} tutti_sgd;
void tutti_optimizer_sgd(const tutti_sgd *rule, size_t count, const tutti_real *gradient, tutti_real *velocity,
                         tutti_real *parameter);

/* Adam (Kingma and Ba, ICLR 2015) with bias correction; weight decay is added to the gradient, or, decoupled,
 * taken from the parameter (AdamW: Loshchilov and Hutter, ICLR 2019). step counts from 1. */
typedef struct tutti_adam {
    double lr, beta_1, beta_2, epsilon, weight_decay;
    bool decoupled;
    int64_t step;
} tutti_adam;

/* The factors of Adam that change from step to step: keep * parameter - rate * mean / (sqrt(square) * correction +
 * epsilon). */
typedef struct tutti_adam_factors {
    tutti_real keep, rate, correction;
} tutti_adam_factors;
tutti_adam_factors tutti_optimizer_adam_factors(const tutti_adam *rule);

void tutti_optimizer_adam(const tutti_adam *rule, size_t count, const tutti_real *gradient, tutti_real *mean,
                          tutti_real *square, tutti_real *parameter);
/* As tutti_optimizer_adam, with given factors; rule's lr and step are not used. Without weight decay factors->keep
 * is not used either, so pieces with and without it can use the same factors. */
void tutti_optimizer_adam_piece(const tutti_adam *rule, const tutti_adam_factors *factors,
                                const tutti_optimizer_piece *piece);

#endif
