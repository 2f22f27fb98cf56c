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

/* ------------------------------------------------------------------------------------------- in parts */

void tutti_softmax_largest(const tutti_softmax_parts *parts) {
    for (int b = 0; b < parts->batch; b++) {
        const tutti_real *logits = parts->logits + (size_t)b * (size_t)parts->classes;
        const int best = index_of_largest(parts->classes, logits);
        parts->largest[b] = (double)logits[best];
        if (parts->best != NULL) parts->best[b] = parts->first_class + best;
    }
}

void tutti_softmax_sums(const tutti_softmax_parts *parts) {
    for (int b = 0; b < parts->batch; b++) {
        const tutti_real *logits = parts->logits + (size_t)b * (size_t)parts->classes;
        double sum = 0;
        for (int c = 0; c < parts->classes; c++) sum += exp((double)logits[c] - parts->largest[b]);
        parts->sums[b] = sum;
        if (parts->best != NULL && (double)logits[parts->best[b] - parts->first_class] != parts->largest[b])
            parts->best[b] = INT32_MAX;
    }
}

/* Returns the probability that the label of sample b gives to class c of this rank. */
static double share(const tutti_softmax_parts *parts, int b, int c) {
    const int of_all = parts->first_class + c;
    if (parts->distributions == NULL) return parts->labels[b] == of_all ? 1 : 0;
    return (double)parts->distributions[(size_t)b * (size_t)parts->all_classes + (size_t)of_all];
}

/* Returns the sum of the probabilities of all classes. */
static double all_shares(const tutti_softmax_parts *parts, int b) {
    double sum = 0;
    if (parts->distributions == NULL) return 1;
    for (int c = 0; c < parts->all_classes; c++)
        sum += (double)parts->distributions[(size_t)b * (size_t)parts->all_classes + (size_t)c];
    return sum;
}

/* Returns the class of the label of sample b: with a distribution, the first of its largest classes. */
static int32_t answer(const tutti_softmax_parts *parts, int b) {
    if (parts->distributions == NULL) return parts->labels[b];
    return index_of_largest(parts->all_classes, parts->distributions + (size_t)b * (size_t)parts->all_classes);
}

double tutti_softmax_losses(const tutti_softmax_parts *parts, tutti_real scale, tutti_real *dlogits,
                            int64_t *right_out) {
    double loss = 0;
    int64_t right = 0;
    for (int b = 0; b < parts->batch; b++) {
        const size_t at = (size_t)b * (size_t)parts->classes;
        const double largest = parts->largest[b], sum = parts->sums[b], whole = all_shares(parts, b);
        right += parts->best != NULL && parts->best[b] == answer(parts, b);
        for (int c = 0; c < parts->classes; c++) {
            const double above = (double)parts->logits[at + (size_t)c] - largest, of_label = share(parts, b, c);
            if (of_label != 0) loss += of_label * (log(sum) - above);
            if (dlogits != NULL)
                dlogits[at + (size_t)c] = (tutti_real)((double)scale * (exp(above) / sum * whole - of_label));
        }
    }
    if (right_out != NULL) *right_out = right;
    return loss;
}
