/*
 * Batch normalisation of x[rows, channels]: sums over the rows, and what is done with them.
 *
 * A thread adds terms of one channel, its neighbours those of the next ones; each group of threads takes every groups-th row, and
 * the groups are joined (op_sums.h). All moments are float64 in GPU memory: nothing comes to the host.
 */
#include "kernels/cuda/op_kernels.h"
#include "kernels/cuda/op_sums.h"

/* sums[0, group, channel], sums[1, group, channel]. mean NULL: of x and its squares; else of dy and dy * (x - mean). */
template <typename Real>
static __global__ void add_rows(size_t rows, size_t channels, size_t groups, const Real *x, const Real *dy,
                                const double *mean, double *sums) {
    FOR_EACH(i, groups * channels) {
        const size_t group = i / channels, channel = i - group * channels;
        double sum = 0, product = 0;
        for (size_t row = group; row < rows; row += groups) {
            const double value = (double)x[row * channels + channel];
            const double slope = mean != nullptr ? (double)dy[row * channels + channel] : value;
            sum += slope;
            product += slope * (mean != nullptr ? value - mean[channel] : value);
        }
        sums[i] = sum;
        sums[groups * channels + i] = product;
    }
}

/* factors: of sums[1], NULL: 1. */
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

template <typename Real>
static tutti_status add_all(tutti_stream stream, size_t rows, size_t channels, const void *x, const void *dy,
                            const double *mean, const double *factors, void *scratch, double *sums) {
    const size_t groups = groups_for(channels, rows);
    if (channels == 0) return TUTTI_OK;
    TUTTI_TRY(enqueue(stream, add_rows<Real>, op_blocks(groups * channels), OP_THREADS, rows, channels, groups,
                      (const Real *)x, (const Real *)dy, mean, (double *)scratch));
    return enqueue(stream, join_rows, op_blocks(2 * channels), OP_THREADS, channels, groups, (const double *)scratch,
                   factors, sums);
}

tutti_status tutti_gpu_op_batch_norm_statistics(tutti_stream stream, tutti_type type, size_t rows, size_t channels,
                                                const void *x, void *scratch, double *sums) {
    const double *none = nullptr;
    if (type == TUTTI_FLOAT32) return add_all<float>(stream, rows, channels, x, nullptr, none, none, scratch, sums);
    return add_all<double>(stream, rows, channels, x, nullptr, none, none, scratch, sums);
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
                                 const double *inverse_deviation, const Real *gamma, const Real *beta, Real *y) {
    FOR_EACH(i, count) {
        const size_t c = i % channels;
        const Real scale = (Real)(inverse_deviation[c] * (gamma != nullptr ? (double)gamma[c] : 1));
        y[i] = (x[i] - (Real)mean[c]) * scale + (beta != nullptr ? beta[c] : 0);
    }
}

tutti_status tutti_gpu_op_batch_norm_normalise(tutti_stream stream, const tutti_kernel_batch_norm_args *a, void *y) {
    const size_t count = a->rows * a->channels;
    if (count == 0) return TUTTI_OK;
    if (a->type == TUTTI_FLOAT32)
        return enqueue(stream, normalise<float>, op_blocks(count), OP_THREADS, count, a->channels, (const float *)a->x,
                       a->mean, a->inverse_deviation, (const float *)a->gamma, (const float *)a->beta, (float *)y);
    return enqueue(stream, normalise<double>, op_blocks(count), OP_THREADS, count, a->channels, (const double *)a->x,
                   a->mean, a->inverse_deviation, (const double *)a->gamma, (const double *)a->beta, (double *)y);
}

tutti_status tutti_gpu_op_batch_norm_backward_sums(tutti_stream stream, const tutti_kernel_batch_norm_args *a,
                                                   const void *dy, void *scratch, double *sums) {
    if (a->type == TUTTI_FLOAT32)
        return add_all<float>(stream, a->rows, a->channels, a->x, dy, a->mean, a->inverse_deviation, scratch, sums);
    return add_all<double>(stream, a->rows, a->channels, a->x, dy, a->mean, a->inverse_deviation, scratch, sums);
}

template <typename Real>
static __global__ void differentiate(size_t count, size_t channels, const Real *x, const double *mean,
                                     const double *inverse_deviation, const Real *gamma, const Real *dy,
                                     const double *sums, double rows, Real *dx) {
    FOR_EACH(i, count) {
        const size_t c = i % channels;
        const Real scale = (Real)(inverse_deviation[c] * (gamma != nullptr ? (double)gamma[c] : 1));
        const Real shift = sums != nullptr ? (Real)(sums[c] / rows) : 0;
        const Real slope = sums != nullptr ? (Real)(inverse_deviation[c] * sums[channels + c] / rows) : 0;
        dx[i] = (dy[i] - shift - (x[i] - (Real)mean[c]) * slope) * scale;
    }
}

tutti_status tutti_gpu_op_batch_norm_backward(tutti_stream stream, const tutti_kernel_batch_norm_args *a,
                                              const void *dy, const double *sums, double count, void *dx) {
    const size_t elements = a->rows * a->channels;
    if (elements == 0) return TUTTI_OK;
    if (a->type == TUTTI_FLOAT32)
        return enqueue(stream, differentiate<float>, op_blocks(elements), OP_THREADS, elements, a->channels,
                       (const float *)a->x, a->mean, a->inverse_deviation, (const float *)a->gamma, (const float *)dy,
                       sums, count, (float *)dx);
    return enqueue(stream, differentiate<double>, op_blocks(elements), OP_THREADS, elements, a->channels,
                   (const double *)a->x, a->mean, a->inverse_deviation, (const double *)a->gamma, (const double *)dy,
                   sums, count, (double *)dx);
}
