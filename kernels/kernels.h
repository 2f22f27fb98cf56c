/*
 * The trainer's kernels behind one table: memory, layers, loss, optimizers, recording of a step. kernels/host fills
 * it for the processor, libtutti_cuda.so (kernels/cuda) for a GPU; the trainer calls only this table and is
 * independent of both.
 *
 *   kernels->open(options)  ->  compute: on the host only the table, on a GPU a stream with what its kernels need
 *   kernels->dense_forward(compute, ...)      host: done at once; GPU: enqueued, in the order of the calls
 *
 * Invariant: pointers given to kernels are memory of that compute (alloc), and arrays of floats begin at multiples
 * of 16 bytes. Calls without a status record the first failure for check() and wait(). Between open and close only
 * alloc, open and recording allocate memory: a step allocates none.
 */
#ifndef TUTTI_KERNELS_KERNELS_H
#define TUTTI_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#include "kernels/layers.h"
#include "kernels/optimizer.h"
#include "kernels/random.h"

typedef struct tutti_kernels tutti_kernels;
typedef struct tutti_recording tutti_recording;

/* Where kernels run; one thread at a time uses it. The implementation's own members follow the table. */
typedef struct tutti_compute {
    const tutti_kernels *kernels;
} tutti_compute;

/* Precision of matrix products; parameters, activations and sums are float32 with each. */
typedef enum tutti_precision {
    TUTTI_PRECISION_FP32,
    TUTTI_PRECISION_TF32, /* GPUs: factors rounded to 10 bits of mantissa */
    TUTTI_PRECISION_BF16  /* GPUs: factors rounded to bfloat16 */
} tutti_precision;

typedef struct tutti_compute_options {
    int device; /* GPU's index; ignored on the host */
    tutti_precision precision;
} tutti_compute_options;

/* Values that change from step to step. Kernels read them from memory of the compute, so that a recorded step can
 * be replayed. */
typedef struct tutti_step_values {
    uint64_t time; /* the step, for dropout's random stream */
    tutti_real lr; /* SGD's learning rate */
    tutti_adam_factors adam;
} tutti_step_values;

struct tutti_kernels {
    const char *name; /* "host", "cuda" */
    tutti_memory memory;

    tutti_status (*open)(const tutti_compute_options *options, tutti_compute **compute_out);
    void (*close)(tutti_compute *compute); /* NULL is allowed */
    /* Returns the first failure of a call without a status. Does not wait. */
    tutti_status (*check)(tutti_compute *compute);
    /* Waits until all work is done, then returns what check returns. */
    tutti_status (*wait)(tutti_compute *compute);
    /* cudaStream_t for the options of collectives; NULL on the host. */
    void *(*stream)(const tutti_compute *compute);

    /* ------------------------------------------------------------------------------------------ memory */

    tutti_status (*alloc)(tutti_compute *compute, size_t bytes, void **memory_out); /* zeros; a multiple of 64 bytes */
    void (*free)(tutti_compute *compute, void *memory);                             /* waits; NULL is allowed */
    void (*upload)(tutti_compute *compute, void *dst, const void *src, size_t bytes); /* src may be changed at once */
    tutti_status (*download)(tutti_compute *compute, void *dst, const void *src, size_t bytes); /* waits */
    void (*copy)(tutti_compute *compute, void *dst, const void *src, size_t bytes);
    void (*zero)(tutti_compute *compute, void *dst, size_t bytes);

    /* --------------------------------------------------------------------------------------- recording */

    /* Calls between begin and end are recorded instead of carried out, and so is work of other streams that wait
     * for events of this one; replay enqueues all of it as one operation. The host fails with
     * TUTTI_ERR_UNSUPPORTED: it would gain nothing. After a failure between begin and end, end returns that
     * failure, and no recording is kept. upload, download and wait must not be called between begin and end. */
    tutti_status (*record_begin)(tutti_compute *compute);
    tutti_status (*record_end)(tutti_compute *compute, tutti_recording **recording_out);
    tutti_status (*replay)(tutti_compute *compute, tutti_recording *recording);
    void (*forget)(tutti_compute *compute, tutti_recording *recording); /* NULL is allowed */

    /* -------------------------------------------------------------------------------------------- layers
     * kernels/layers.h and kernels/random.h describe what each computes, and the order of the arguments. */

    /* Elements of scratch, which all layers share, and of the memory that forward keeps for backward. */
    size_t (*conv_scratch_count)(const tutti_conv *conv, int batch);
    size_t (*conv_kept_count)(const tutti_conv *conv, int batch);
    void (*conv_forward)(tutti_compute *compute, const tutti_conv *conv, const tutti_conv_forward_args *args);
    void (*conv_backward)(tutti_compute *compute, const tutti_conv *conv, const tutti_conv_backward_args *args);
    void (*max_pool_forward)(tutti_compute *compute, const tutti_window *window, int batch, const tutti_real *x,
                             tutti_real *y, int32_t *where);
    void (*max_pool_backward)(tutti_compute *compute, const tutti_window *window, int batch, const tutti_real *dy,
                              const int32_t *where, tutti_real *dx);
    void (*bias_forward)(tutti_compute *compute, size_t rows, int channels, bool relu, const tutti_real *bias,
                         tutti_real *y);
    void (*bias_backward)(tutti_compute *compute, const tutti_bias_backward_args *args);
    void (*relu_forward)(tutti_compute *compute, size_t count, const tutti_real *x, tutti_real *y);
    void (*relu_backward)(tutti_compute *compute, size_t count, const tutti_real *y, const tutti_real *dy,
                          tutti_real *dx);
    void (*batch_norm_forward)(tutti_compute *compute, const tutti_batch_norm *norm,
                               const tutti_batch_norm_forward_args *args);
    void (*batch_norm_backward)(tutti_compute *compute, const tutti_batch_norm *norm,
                                const tutti_batch_norm_backward_args *args);
    void (*average_pool_forward)(tutti_compute *compute, const tutti_window *window, int batch, const tutti_real *x,
                                 tutti_real *y);
    void (*average_pool_backward)(tutti_compute *compute, const tutti_window *window, int batch, const tutti_real *dy,
                                  tutti_real *dx);
    void (*dense_forward)(tutti_compute *compute, const tutti_dense *dense, const tutti_dense_forward_args *args);
    void (*dense_backward)(tutti_compute *compute, const tutti_dense *dense, const tutti_dense_backward_args *args);
    /* y[i] = a[i] + b[i]; y may be a. */
    void (*add)(tutti_compute *compute, size_t count, const tutti_real *a, const tutti_real *b, tutti_real *y);
    /* The same, with negative sums set to 0. */
    void (*add_relu)(tutti_compute *compute, size_t count, const tutti_real *a, const tutti_real *b, tutti_real *y);
    /* Dropout with the stream dropout->stream at time values->time. */
    void (*dropout)(tutti_compute *compute, const tutti_dropout *dropout, const tutti_step_values *values, size_t count,
                    const tutti_real *src, tutti_real *dst);
    /* sums[0] is set to the sum of the batch's losses, and sums[1] to the number of correct predictions; with
     * `adds` they are increased by these numbers instead. */
    void (*softmax_loss)(tutti_compute *compute, const tutti_softmax_loss_args *args, bool adds, double *sums);
    /* The same in parts, where each rank has some of the classes. All pointers in parts are memory of the compute. */
    void (*softmax_largest)(tutti_compute *compute, const tutti_softmax_parts *parts);
    void (*softmax_sums)(tutti_compute *compute, const tutti_softmax_parts *parts);
    /* The call consumes parts' sums and best. */
    void (*softmax_losses)(tutti_compute *compute, const tutti_softmax_parts *parts, tutti_real scale,
                           tutti_real *dlogits, bool adds, double *sums);
    void (*truncated_normal)(tutti_compute *compute, const tutti_normal *normal, size_t count, tutti_real *data);
    void (*fill)(tutti_compute *compute, size_t count, tutti_real value, tutti_real *data);

    /* ---------------------------------------------------------------------------------------- optimizers
     * One operation for all pieces; lr and Adam's factors are taken from values. */

    void (*sgd)(tutti_compute *compute, const tutti_sgd *rule, const tutti_step_values *values,
                const tutti_optimizer_piece *pieces, int npieces);
    void (*adam)(tutti_compute *compute, const tutti_adam *rule, const tutti_step_values *values,
                 const tutti_optimizer_piece *pieces, int npieces);
};

/* The processor's kernels: the reference, always available. */
extern const tutti_kernels tutti_kernels_host;

#endif
