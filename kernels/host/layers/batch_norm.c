/*
 * Batch normalisation as a layer: the operator's loops (operators.h), and the moving values.
 */
#include <math.h>

#include "kernels/layers.h"
#include "kernels/operators.h"

#ifdef TUTTI_KERNELS_DOUBLE
#define REAL_TYPE TUTTI_FLOAT64
#else
#define REAL_TYPE TUTTI_FLOAT32
#endif

static void move(const tutti_batch_norm *norm, const tutti_batch_norm_forward_args *args, const double *mean,
                 const double *variance) {
    const double share = norm->momentum, rows = (double)args->rows;
    const double unbiased = args->rows > 1 ? rows / (rows - 1) : 1;
    for (int c = 0; c < norm->channels; c++) {
        const double old_mean = (double)args->moving_mean[c], old_variance = (double)args->moving_variance[c];
        args->moving_mean[c] = (tutti_real)((1 - share) * old_mean + share * mean[c]);
        args->moving_variance[c] = (tutti_real)((1 - share) * old_variance + share * unbiased * variance[c]);
    }
}

void tutti_batch_norm_forward(const tutti_batch_norm *norm, const tutti_batch_norm_forward_args *args) {
    const size_t channels = (size_t)norm->channels;
    double *sums = (void *)args->scratch, *mean = (void *)args->kept, *inverse_deviation = mean + channels;
    if (args->training) {
        double *variance = sums + channels; /* replaces the sums of the squares */
        tutti_kernel_batch_norm_statistics(REAL_TYPE, args->rows, channels, args->x, sums);
        tutti_kernel_batch_norm_moments(channels, (double)args->rows, norm->epsilon, sums, mean, variance,
                                        inverse_deviation);
        move(norm, args, mean, variance);
    } else {
        for (size_t c = 0; c < channels; c++) {
            mean[c] = (double)args->moving_mean[c];
            inverse_deviation[c] = 1 / sqrt((double)args->moving_variance[c] + norm->epsilon);
        }
    }
    tutti_kernel_batch_norm_args of = {
        .type = REAL_TYPE,
        .rows = args->rows,
        .channels = channels,
        .x = args->x,
        .mean = mean,
        .inverse_deviation = inverse_deviation,
        .gamma = args->gamma,
        .beta = args->beta,
        .relu = norm->relu,
    };
    tutti_kernel_batch_norm_normalise(&of, args->y);
}

void tutti_batch_norm_backward(const tutti_batch_norm *norm, const tutti_batch_norm_backward_args *args) {
    const size_t channels = (size_t)norm->channels;
    double *sums = (void *)args->scratch;
    const double *mean = (const void *)args->kept;
    tutti_kernel_batch_norm_args of = {
        .type = REAL_TYPE,
        .rows = args->rows,
        .channels = channels,
        .x = args->x,
        .mean = mean,
        .inverse_deviation = mean + channels,
        .gamma = args->gamma,
        .beta = args->beta,
        .relu = norm->relu,
    };
    tutti_kernel_batch_norm_backward_sums(&of, args->dy, sums);
    for (size_t c = 0; c < channels; c++) {
        args->dbeta[c] = (tutti_real)sums[c];
        args->dgamma[c] = (tutti_real)sums[channels + c];
    }
    if (args->dx != NULL) tutti_kernel_batch_norm_backward(&of, args->dy, sums, (double)args->rows, args->dx);
}
