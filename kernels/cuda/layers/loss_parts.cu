/*
 * Softmax cross-entropy over some of the classes, as kernels/host/layers/loss.c: a block takes a sample, its threads
 * take the classes in turn, and their results are combined in an order that depends on the block's size only.
 *
 * The last step leaves each sample's loss in `sums`, and in `best` whether its answer is right; one block adds those
 * up.
 */
#include <limits.h>
#include <math.h>

#include "kernels/cuda/layers/quad.h"

#define SAMPLE_THREADS 128 /* per sample */

/* Every thread gets the sum over the block. */
static __device__ double sum_of_block(double value) {
    __shared__ double values[SAMPLE_THREADS];
    __syncthreads(); /* all threads have read the last call's values */
    values[threadIdx.x] = value;
    for (unsigned half = SAMPLE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
    }
    __syncthreads();
    return values[0];
}

/* Every thread gets the index of the largest value, the first of equals. */
static __device__ int largest_of_block(const float *values, int count) {
    __shared__ float largest[SAMPLE_THREADS];
    __shared__ int where[SAMPLE_THREADS];
    int best = (int)threadIdx.x < count ? (int)threadIdx.x : INT_MAX;
    for (int c = best; c < count; c += SAMPLE_THREADS)
        if (values[c] > values[best]) best = c;
    __syncthreads();
    where[threadIdx.x] = best;
    largest[threadIdx.x] = best < count ? values[best] : -INFINITY;
    for (unsigned half = SAMPLE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half) continue;
        const float mine = largest[threadIdx.x], other = largest[threadIdx.x + half];
        const int at = where[threadIdx.x + half];
        if (!(other > mine || (other == mine && at < where[threadIdx.x]))) continue;
        largest[threadIdx.x] = other;
        where[threadIdx.x] = at;
    }
    __syncthreads();
    return where[0];
}

static __device__ inline const float *logits_of(const tutti_softmax_parts &parts) {
    return parts.logits + (size_t)blockIdx.x * parts.classes;
}

static __global__ void find_largest(tutti_softmax_parts parts) {
    const float *logits = logits_of(parts);
    const int best = largest_of_block(logits, parts.classes);
    if (threadIdx.x > 0) return;
    parts.largest[blockIdx.x] = (double)logits[best];
    if (parts.best != NULL) parts.best[blockIdx.x] = parts.first_class + best;
}

static __global__ void find_sums(tutti_softmax_parts parts) {
    const float *logits = logits_of(parts);
    const double largest = parts.largest[blockIdx.x];
    double sum = 0;
    for (int c = (int)threadIdx.x; c < parts.classes; c += SAMPLE_THREADS) sum += exp((double)logits[c] - largest);
    sum = sum_of_block(sum);
    if (threadIdx.x > 0) return;
    parts.sums[blockIdx.x] = sum;
    if (parts.best == NULL) return;
    int32_t *best = &parts.best[blockIdx.x];
    if ((double)logits[*best - parts.first_class] != largest) *best = INT32_MAX;
}

/* dlogits may alias the logits: a thread is done with a logit when it writes to that place. */
static __global__ void judge_sample(tutti_softmax_parts parts, float scale, float *dlogits) {
    const float *logits = logits_of(parts);
    const float *shares =
        parts.distributions != NULL ? parts.distributions + (size_t)blockIdx.x * parts.all_classes : NULL;
    const int label = shares == NULL ? parts.labels[blockIdx.x] : 0;
    const double largest = parts.largest[blockIdx.x], sum = parts.sums[blockIdx.x], log_sum = log(sum);
    double whole = shares == NULL ? 1 : 0, loss = 0;
    if (shares != NULL) {
        for (int c = (int)threadIdx.x; c < parts.all_classes; c += SAMPLE_THREADS) whole += (double)shares[c];
        whole = sum_of_block(whole);
    }
    for (int c = (int)threadIdx.x; c < parts.classes; c += SAMPLE_THREADS) {
        const int of_all = parts.first_class + c;
        const double above = (double)logits[c] - largest, of_label = shares != NULL    ? (double)shares[of_all]
                                                                     : of_all == label ? 1
                                                                                       : 0;
        if (of_label != 0) loss += of_label * (log_sum - above);
        if (dlogits != NULL)
            dlogits[(size_t)blockIdx.x * parts.classes + c] =
                (float)((double)scale * (exp(above) / sum * whole - of_label));
    }
    loss = sum_of_block(loss);
    const int answer = shares != NULL && parts.best != NULL ? largest_of_block(shares, parts.all_classes) : label;
    if (threadIdx.x > 0) return;
    parts.sums[blockIdx.x] = loss;
    if (parts.best != NULL) parts.best[blockIdx.x] = parts.best[blockIdx.x] == answer;
}

static __global__ void add_samples(int batch, const double *losses, const int32_t *rights, bool adds, double *sums) {
    double loss = 0, right = 0;
    for (int sample = (int)threadIdx.x; sample < batch; sample += SAMPLE_THREADS) {
        loss += losses[sample];
        right += rights != NULL ? (double)rights[sample] : 0;
    }
    loss = sum_of_block(loss);
    right = sum_of_block(right);
    if (threadIdx.x > 0) return;
    sums[0] = adds ? sums[0] + loss : loss;
    sums[1] = adds ? sums[1] + right : right;
}

void tutti_gpu_softmax_largest(tutti_compute *compute, const tutti_softmax_parts *parts) {
    if (parts->batch > 0) launch(compute, find_largest, (unsigned)parts->batch, SAMPLE_THREADS, *parts);
}

void tutti_gpu_softmax_sums(tutti_compute *compute, const tutti_softmax_parts *parts) {
    if (parts->batch > 0) launch(compute, find_sums, (unsigned)parts->batch, SAMPLE_THREADS, *parts);
}

void tutti_gpu_softmax_losses(tutti_compute *compute, const tutti_softmax_parts *parts, float scale, float *dlogits,
                              bool adds, double *sums) {
    if (parts->batch > 0) launch(compute, judge_sample, (unsigned)parts->batch, SAMPLE_THREADS, *parts, scale, dlogits);
    launch(compute, add_samples, 1, SAMPLE_THREADS, parts->batch, (const double *)parts->sums,
           (const int32_t *)parts->best, adds, sums);
}
