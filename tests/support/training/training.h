/*
 * Training runs of several ranks inside a test, and their losses.
 *
 * What holds mathematically for two runs that sum in different orders (other kernels, another number of ranks):
 *
 *   LeNet, first loss     equal but for rounding: a loss is a continuous function of the parameters
 *   LeNet, later losses   may differ: two values of a max-pool's window that differ by a rounding may change
 *                         places, and then a part of a gradient goes elsewhere. One such place moves the next
 *                         loss by up to 1e-3 of it
 *   the smooth model      all losses equal but for rounding: it has neither ReLU nor max-pool
 *   parts on one rank     the same bits: the same products in the same order
 *
 * An MLP's ReLU has such places, too, but few: some ten thousand values in a test, each as near to 0 as a rounding
 * (1e-7) once in millions, and then one unit's gradient lacks one sample.
 */
#ifndef TUTTI_TESTS_TRAINING_H
#define TUTTI_TESTS_TRAINING_H

#include <tutti/train.h>

#include "kernels/kernels.h"
#include "tests/support/ranks.h"
#include "tests/support/training/files.h"

#define TRAINING_LOSSES  256
#define TRAINING_OPTIONS 28

/* Tolerance for losses that differ by rounding only, relative to 1 + loss. They consist of sums of up to some 10^4
 * products of float32, whose errors are up to 2^-24 of a term and of either sign: 2^-24 * sqrt(10^4). Losses, which
 * are means of many such sums, differ by a hundredth of it: 1e-7 with every kernel of OpenBLAS that was tried. */
#define TRAINING_ROUNDING (100 * 0x1p-24)

/* The processor's. */
tutti_compute *training_compute(void);

typedef struct training_run {
    const char
        *options[TRAINING_OPTIONS]; /* of tutti-train, ended by NULL; --data, --metrics, --log-every are added here */
    const char *data;               /* folder with MNIST's files; metrics are written into it for a while */
    char metrics[FILES_PATH_BYTES]; /* filled in by the run */
    bool own_gpus;                  /* each rank, a process, takes the GPU of its number */
    bool smooth; /* in place of the model that `options` name: convolutions, dense layers and dropout */
    tutti_train_distribute distribute; /* labels as distributions; NULL: as classes */
    int parts;                         /* filled in by training_losses_of_parts */
    double test_loss, test_accuracy;   /* filled in by the run: the last test's */
    int timeout_s;                     /* of all ranks; 0: 60 */
} training_run;

/* Runs the ranks. losses_out: up to TRAINING_LOSSES losses, as the metrics hold them, ten digits. NULL when all went
 * well, else the first failure. */
const char *training_losses(ranks_kind kind, int nranks, training_run *run, double *losses_out, int *count_out);

/* The losses that `parts` ranks must compute, computed by one rank, without tutti_step and tutti_ddp: it computes the
 * gradient of each rank's part of a batch, one after the other, and updates with their mean. For two ranks they are
 * equal bit for bit, since a sum of two has only one order. */
const char *training_losses_of_parts(ranks_kind kind, int parts, training_run *run, double *losses_out, int *count_out);

#endif
