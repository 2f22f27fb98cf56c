/*
 * Softmax cross-entropy. The largest logit is subtracted first, so that no exponential overflows; sums are kept in
 * double.
 */
#include "kernels/layers.h"

#include <math.h>

static int index_of_largest(int classes, const tutti_real *logits) {
    int best = 0;
    for (int c = 1; c < classes; c++)
        if (logits[c] > logits[best]) best = c;
    return best;
}

double tutti_softmax_loss(const tutti_softmax_loss_args *args) {
    double loss = 0;
    int64_t correct = 0;
    for (int b = 0; b < args->batch; b++) {
        const tutti_real *logits = args->logits + (size_t)b * (size_t)args->classes;
        int label = args->labels[b], best = index_of_largest(args->classes, logits);
        double largest = (double)logits[best], sum = 0;
        for (int c = 0; c < args->classes; c++) sum += exp((double)logits[c] - largest);
        loss += log(sum) - ((double)logits[label] - largest);
        correct += best == label;
        if (args->dlogits == NULL) continue;
        tutti_real *dlogits = args->dlogits + (size_t)b * (size_t)args->classes;
        for (int c = 0; c < args->classes; c++) {
            double softmax = exp((double)logits[c] - largest) / sum;
            dlogits[c] = (tutti_real)((double)args->scale * (softmax - (c == label)));
        }
    }
    if (args->correct_out != NULL) *args->correct_out = correct;
    return loss;
}
