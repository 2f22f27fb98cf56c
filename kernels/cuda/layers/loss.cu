/*
 * Softmax cross-entropy, as kernels/host/layers/loss.c: the largest logit is subtracted first, and sums are kept in
 * double. One block: its threads take the samples in turn, then add up their sums in a fixed order.
 */
#include <math.h>

#include "kernels/cuda/layers/quad.h"

#define LOSS_THREADS 512

struct verdict {
    double loss;
    bool right;
};

static __device__ verdict judge(const tutti_softmax_loss_args &args, int sample) {
    const float *logits = args.logits + (size_t)sample * args.classes;
    int label = args.labels[sample], best = 0;
    for (int c = 1; c < args.classes; c++)
        if (logits[c] > logits[best]) best = c;
    double largest = (double)logits[best], at_label = (double)logits[label], sum = 0;
    for (int c = 0; c < args.classes; c++) sum += exp((double)logits[c] - largest);
    if (args.dlogits != NULL) {
        float *dlogits = args.dlogits + (size_t)sample * args.classes;
        for (int c = 0; c < args.classes; c++) {
            double softmax = exp((double)logits[c] - largest) / sum;
            dlogits[c] = (float)((double)args.scale * (softmax - (c == label)));
        }
    }
    return verdict{log(sum) - (at_label - largest), best == label};
}

static __global__ void softmax_loss(tutti_softmax_loss_args args, bool adds, double *sums) {
    __shared__ double losses[LOSS_THREADS], rights[LOSS_THREADS];
    double loss = 0, right = 0;
    for (int sample = (int)threadIdx.x; sample < args.batch; sample += LOSS_THREADS) {
        verdict of_sample = judge(args, sample);
        loss += of_sample.loss;
        right += of_sample.right ? 1 : 0;
    }
    losses[threadIdx.x] = loss;
    rights[threadIdx.x] = right;
    for (unsigned half = LOSS_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half) continue;
        losses[threadIdx.x] += losses[threadIdx.x + half];
        rights[threadIdx.x] += rights[threadIdx.x + half];
    }
    if (threadIdx.x > 0) return;
    sums[0] = adds ? sums[0] + losses[0] : losses[0];
    sums[1] = adds ? sums[1] + rights[0] : rights[0];
}

void tutti_gpu_softmax_loss(tutti_compute *compute, const tutti_softmax_loss_args *args, bool adds, double *sums) {
    launch(compute, softmax_loss, 1, LOSS_THREADS, *args, adds, sums);
}
