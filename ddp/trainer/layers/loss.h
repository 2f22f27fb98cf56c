/*
 * The losses of a batch from its logits, and the gradient of the logits.
 *
 *   softmax_cross_entropy          one kernel, for whole logits
 *   softmax_cross_entropy_expand   in steps: maximum, exponentials, sum, quotient, logarithm, product with the labels.
 *                                  Labels may be distributions. If the last layer is divided by outputs, each rank has
 *                                  some of the classes: the maximum and the sum of each sample are reduced over these
 *                                  ranks, and the logits are not moved.
 */
#ifndef TUTTI_TRAINER_LOSS_H
#define TUTTI_TRAINER_LOSS_H

#include "ddp/trainer/layers/model.h"

#define TUTTI_LOSS_NAMES "softmax_cross_entropy|softmax_cross_entropy_expand"

bool tutti_loss_is_expanded(const tutti_train_options *options);

typedef struct tutti_loss {
    bool expanded;
    tutti_compute *compute;
    tutti_comm *comm; /* the ranks with the other classes of the same samples; NULL: this rank has all classes */
    bool counts;      /* true on the first of these ranks: it counts samples and right answers */
    int first_class, classes, all_classes;
    tutti_train_distribute distribute; /* NULL: labels are classes */
    void *distribute_context;
    void *memory; /* memory of the compute for the arrays below, by sample: kernels/layers.h */
    double *largest, *sums;
    int32_t *best;
    float *distributions;
    float *prepared; /* the distributions, on the host */
} tutti_loss;

/* A batch: `count` samples of the model's last output. */
typedef struct tutti_loss_batch {
    int count;
    const float *logits;
    const int32_t *labels; /* in the compute's memory */
    float scale;
    float *dlogits; /* NULL: a test, which counts right answers */
    bool adds;
} tutti_loss_batch;

/* For batches of up to `batch` samples. Collective if classes are divided over ranks. */
tutti_status tutti_loss_open(tutti_loss *loss, const tutti_train_options *options, const tutti_model *model, int batch);
void tutti_loss_close(tutti_loss *loss);

/* Call this before each batch, outside a recorded step: it copies the labels to the compute's memory, as classes or
 * as distributions. Labels and the samples' indices (NULL: unknown) are on the host. */
tutti_status tutti_loss_prepare(tutti_loss *loss, const int32_t *labels, const int64_t *indices, int count);

/* Sets sums[0] to the losses, or adds them to it; in a test, also sums[1] to the number of right answers. `sums` is
 * in the compute's memory. */
tutti_status tutti_loss_run(tutti_loss *loss, const tutti_loss_batch *batch, double *sums);

#endif
