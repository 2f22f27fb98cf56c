/*
 * Batch normalisation of x[rows, channels]: sums over the rows, and the results computed from them.
 *
 * A thread adds terms of one channel, its neighbours those of the next channels; each group of threads takes every
 * groups-th row, and the groups are joined (op_sums.h). All moments are float64 in GPU memory; the host reads none.
 */
#include "kernels/cuda/operators/op_kernels.h"
#include "kernels/cuda/operators/op_sums.h"

/* The values that the forward pass applies to each element of one channel. */
template <typename Real> struct factors { Real mean, scale, beta; };

template <typename Real>
static __device__ inline factors<Real> factors_of(size_t c, const double *mean, const double *inverse_deviation,
                                                  const Real *gamma, const Real *beta) {
    factors<Real> f;
    f.mean = (Real)mean[c];
    f.scale = (Real)(inverse_deviation[c] * (gamma != nullptr ? (double)gamma[c] : 1));
    f.beta = beta != nullptr ? beta[c] : 0;
    return f;
}

/* dy, or 0 where ReLU's output was 0: recomputed with forward's arithmetic, so y need not be read. NaN passes. */
template <typename Real> static __device__ inline Real masked(const factors<Real> &f, bool relu, Real x, Real dy) {
    return relu && (x - f.mean) * f.scale + f.beta <= 0 ? 0 : dy;
}

/* sums[0, group, channel], sums[1, group, channel], of x and its squares. */
template <typename Real>
static __global__ void add_rows(size_t rows, size_t channels, size_t groups, const Real *x, double *sums) {
    FOR_EACH(i, groups * channels) {
        const size_t group = i / channels, channel = i - group * channels;
        double sum = 0, product = 0;
        for (size_t row = group; row < rows; row += groups) {
            const double value = (double)x[row * channels + channel];
            sum += value;
            product += value * value;
        }
        sums[i] = sum;
        sums[groups * channels + i] = product;
    }
}

/* The same for dy and dy * (x - mean). */
template <typename Real>
static __global__ void add_slopes(size_t rows, size_t channels, size_t groups, const Real *x, const double *mean,
                                  const double *inverse_deviation, const Real *gamma, const Real *beta, bool relu,
                                  const Real *dy, double *sums) {
    FOR_EACH(i, groups * channels) {
        const size_t group = i / channels, channel = i - group * channels;
        const factors<Real> f = factors_of(channel, mean, inverse_deviation, gamma, beta);
        double sum = 0, product = 0;
        for (size_t row = group; row < rows; row += groups) {
            const Real value = x[row * channels + channel];
            const double slope = (double)masked(f, relu, value, dy[row * channels + channel]);
            sum += slope;
            product += slope * ((double)value - mean[channel]);
        }
        sums[i] = sum;
        sums[groups * channels + i] = product;
    }
}

/* factors: applied to sums[1]; NULL: 1. */
static __global__ void join_rows(size_t channels, size_t groups, const double *partials, const double *factors,
                                 double *sums) {
    FOR_EACH(i, 2 * channels) {
        const size_t which = i / channels, channel = i - which * channels;
        const double *from = partials + which * groups * channels + channel;
        double sum = from[0];
        for (size_t group = 1; group < groups; group++) sum += from[group * channels];
        sums[i] = which == 1 && factors != nullptr ? sum * factors[channel] : sum;
    }
}

size_t tutti_gpu_op_batch_norm_scratch(size_t rows, size_t channels) {
    return 2 * groups_for(channels, rows) * channels * sizeof(double);
}

static tutti_status join_all(tutti_stream stream, size_t channels, size_t groups, const double *partials,
                             const double *factors, double *sums) {
    return enqueue(stream, join_rows, op_blocks(2 * channels), OP_THREADS, channels, groups, partials, factors, sums);
}

template <typename Real>
static tutti_status add_all(tutti_stream stream, size_t rows, size_t channels, const void *x, double *scratch,
                            double *sums) {
    const size_t groups = groups_for(channels, rows);
    const double *no_factors = nullptr;
    if (channels == 0) return TUTTI_OK;
    TUTTI_TRY(enqueue(stream, add_rows<Real>, op_blocks(groups * channels), OP_THREADS, rows, channels, groups,
                      (const Real *)x, scratch));
    return join_all(stream, channels, groups, scratch, no_factors, sums);
}

template <typename Real>
static tutti_status add_all_slopes(tutti_stream stream, const tutti_kernel_batch_norm_args *a, const void *dy,
                                   double *scratch, double *sums) {
    const size_t groups = groups_for(a->channels, a->rows);
    if (a->channels == 0) return TUTTI_OK;
    TUTTI_TRY(enqueue(stream, add_slopes<Real>, op_blocks(groups * a->channels), OP_THREADS, a->rows, a->channels,
                      groups, (const Real *)a->x, a->mean, a->inverse_deviation, (const Real *)a->gamma,
                      (const Real *)a->beta, a->relu, (const Real *)dy, scratch));
    return join_all(stream, a->channels, groups, scratch, a->inverse_deviation, sums);
}

tutti_status tutti_gpu_op_batch_norm_statistics(tutti_stream stream, tutti_type type, size_t rows, size_t channels,
                                                const void *x, void *scratch, double *sums) {
    if (type == TUTTI_FLOAT32) return add_all<float>(stream, rows, channels, x, (double *)scratch, sums);
    return add_all<double>(stream, rows, channels, x, (double *)scratch, sums);
}

static __global__ void find_moments(size_t channels, double count, double epsilon, const double *sums, double *mean,
                                    double *variance, double *inverse_deviation) {
    FOR_EACH(c, channels) {
        const double average = sums[c] / count;
        const double difference = sums[channels + c] / count - average * average;
        const double spread = difference < 0 ? 0 : difference;
        mean[c] = average;
        if (variance != nullptr) variance[c] = spread;
        inverse_deviation[c] = 1 / sqrt(spread + epsilon);
    }
}

tutti_status tutti_gpu_op_batch_norm_moments(tutti_stream stream, size_t channels, double count, double epsilon,
                                             const double *sums, double *mean, double *variance,
                                             double *inverse_deviation) {
    if (channels == 0) return TUTTI_OK;
    return enqueue(stream, find_moments, op_blocks(channels), OP_THREADS, channels, count, epsilon, sums, mean,
                   variance, inverse_deviation);
}

template <typename Real>
static __global__ void normalise(size_t count, size_t channels, const Real *x, const double *mean,
                                 const double *inverse_deviation, const Real *gamma, const Real *beta, bool relu,
                                 Real *y) {
    FOR_EACH(i, count) {
        const factors<Real> f = factors_of(i % channels, mean, inverse_deviation, gamma, beta);
        const Real value = (x[i] - f.mean) * f.scale + f.beta;
        y[i] = relu && value < 0 ? 0 : value;
    }
}

tutti_status tutti_gpu_op_batch_norm_normalise(tutti_stream stream, const tutti_kernel_batch_norm_args *a, void *y) {
    const size_t count = a->rows * a->channels;
    if (count == 0) return TUTTI_OK;
    if (a->type == TUTTI_FLOAT32)
        return enqueue(stream, normalise<float>, op_blocks(count), OP_THREADS, count, a->channels, (const float *)a->x,
                       a->mean, a->inverse_deviation, (const float *)a->gamma, (const float *)a->beta, a->relu,
                       (float *)y);
    return enqueue(stream, normalise<double>, op_blocks(count), OP_THREADS, count, a->channels, (const double *)a->x,
                   a->mean, a->inverse_deviation, (const double *)a->gamma, (const double *)a->beta, a->relu,
                   (double *)y);
}

tutti_status tutti_gpu_op_batch_norm_backward_sums(tutti_stream stream, const tutti_kernel_batch_norm_args *a,
                                                   const void *dy, void *scratch, double *sums) {
    if (a->type == TUTTI_FLOAT32) return add_all_slopes<float>(stream, a, dy, (double *)scratch, sums);
    return add_all_slopes<double>(stream, a, dy, (double *)scratch, sums);
}

template <typename Real>
static __global__ void differentiate(size_t count, size_t channels, const Real *x, const double *mean,
                                     const double *inverse_deviation, const Real *gamma, const Real *beta, bool relu,
                                     const Real *dy, const double *sums, double rows, Real *dx) {
    FOR_EACH(i, count) {
        const size_t c = i % channels;
        const factors<Real> f = factors_of(c, mean, inverse_deviation, gamma, beta);
        const Real shift = sums != nullptr ? (Real)(sums[c] / rows) : 0;
        const Real slope = sums != nullptr ? (Real)(inverse_deviation[c] * sums[channels + c] / rows) : 0;
        dx[i] = (masked(f, relu, x[i], dy[i]) - shift - (x[i] - f.mean) * slope) * f.scale;
    }
}

tutti_status tutti_gpu_op_batch_norm_backward(tutti_stream stream, const tutti_kernel_batch_norm_args *a,
                                              const void *dy, const double *sums, double count, void *dx) {
    const size_t elements = a->rows * a->channels;
    if (elements == 0) return TUTTI_OK;
    if (a->type == TUTTI_FLOAT32)
        return enqueue(stream, differentiate<float>, op_blocks(elements), OP_THREADS, elements, a->channels,
                       (const float *)a->x, a->mean, a->inverse_deviation, (const float *)a->gamma,
                       (const float *)a->beta, a->relu, (const float *)dy, sums, count, (float *)dx);
    return enqueue(stream, differentiate<double>, op_blocks(elements), OP_THREADS, elements, a->channels,
                   (const double *)a->x, a->mean, a->inverse_deviation, (const double *)a->gamma,
                   (const double *)a->beta, a->relu, (const double *)dy, sums, count, (double *)dx);
}
