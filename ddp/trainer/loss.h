/*
 * Losses of a batch from its logits, and the gradient of the logits.
 *
 *   softmax_cross_entropy          one kernel, of whole logits
 *   softmax_cross_entropy_expand   in steps: largest, exponentials, sum, quotient, logarithm, times the labels. Labels may be
 *                                  distributions. Where the last layer is divided by outputs each rank has some of the classes: of
 *                                  each sample the largest and the sum are reduced over these ranks, and logits stay where they
 *                                  are
 */
#ifndef TUTTI_TRAINER_LOSS_H
#define TUTTI_TRAINER_LOSS_H

#include "ddp/trainer/model.h"

#define TUTTI_LOSS_NAMES "softmax_cross_entropy|softmax_cross_entropy_expand"

bool tutti_loss_is_expanded(const tutti_train_options *options);

typedef struct tutti_loss {
    bool expanded;
    tutti_compute *compute;
    tutti_comm *comm; /* of the ranks that have the other classes of the same samples; NULL: this rank has all */
    bool counts;      /* of these ranks the first one counts samples and right answers */
    int first_class, classes, all_classes;
    tutti_train_distribute distribute; /* NULL: labels are classes */
    void *distribute_context;
    void *memory; /* of the compute's, for what follows, of each sample: kernels/layers.h */
    double *largest, *sums;
    int32_t *best;
    float *distributions;
    float *prepared; /* these, on the host */
} tutti_loss;

/* A batch: `count` samples of what the model gave last. */
typedef struct tutti_loss_batch {
    int count;
    const float *logits;
    const int32_t *labels; /* in the compute's memory */
    float scale;
    float *dlogits; /* NULL: a test, which counts right answers */
    bool adds;
} tutti_loss_batch;

/* For batches of up to `batch` samples. Collective where classes are divided. */
tutti_status tutti_loss_open(tutti_loss *loss, const tutti_train_options *options, const tutti_model *model, int batch);
void tutti_loss_close(tutti_loss *loss);

/* Before each batch, and no part of a recorded step: what labels say of the classes goes to the compute's memory. Labels, and the
 * samples' indices (NULL: unknown), are on the host. */
tutti_status tutti_loss_prepare(tutti_loss *loss, const int32_t *labels, const int64_t *indices, int count);

/* sums[0] becomes, or grows by, the losses; sums[1] of a test the right answers. In the compute's memory. */
tutti_status tutti_loss_run(tutti_loss *loss, const tutti_loss_batch *batch, double *sums);

#endif
