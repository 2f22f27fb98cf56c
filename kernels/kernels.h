/*
 * The trainer's kernels behind one table: memory, layers, loss, optimizers, recording of a step. kernels/host fills it for
 * the processor, libtutti_cuda.so (kernels/cuda) for a GPU; the trainer calls nothing else, and knows neither.
 *
 *   kernels->open(options)  ->  compute: on the host nothing but the table, on a GPU a stream with what its kernels need
 *   kernels->dense_forward(compute, ...)      host: at once; GPU: enqueued, in the order of the calls
 *
 * Invariant: pointers given to kernels are memory of that compute (alloc), and floats begin at multiples of 16 bytes. Calls without a status keep the first failure
 * for check() and wait(). Between open and close only alloc, open and recording take memory: a step takes none.
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

/* Where kernels run; one thread at a time. What follows its table is the implementation's. */
typedef struct tutti_compute {
    const tutti_kernels *kernels;
} tutti_compute;

/* Of matrix products; parameters, activations and sums are float32 with each. */
typedef enum tutti_precision {
    TUTTI_PRECISION_FP32,
    TUTTI_PRECISION_TF32, /* GPUs: factors rounded to 10 bits of mantissa */
    TUTTI_PRECISION_BF16  /* GPUs: factors rounded to bfloat16 */
} tutti_precision;

typedef struct tutti_compute_options {
    int device; /* GPU's index; ignored on the host */
    tutti_precision precision;
} tutti_compute_options;

/* What changes from step to step. Kernels read it from memory of the compute, so that a recorded step can be replayed. */
typedef struct tutti_step_values {
    uint64_t time; /* of dropout's random stream: the step */
    tutti_real lr; /* of SGD */
    tutti_adam_factors adam;
} tutti_step_values;

struct tutti_kernels {
    const char *name; /* "host", "cuda" */
    tutti_memory memory;

    tutti_status (*open)(const tutti_compute_options *options, tutti_compute **compute_out);
    void (*close)(tutti_compute *compute); /* NULL is allowed */
    /* The first failure of a call without a status. Does not wait. */
    tutti_status (*check)(tutti_compute *compute);
    /* Until all is done; then check. */
    tutti_status (*wait)(tutti_compute *compute);
    /* cudaStream_t for the options of collectives; NULL on the host. */
    void *(*stream)(const tutti_compute *compute);

    /* ------------------------------------------------------------------------------------------ memory */

    tutti_status (*alloc)(tutti_compute *compute, size_t bytes, void **memory_out); /* zeros; a multiple of 64 bytes */
    void (*free)(tutti_compute *compute, void *memory);                             /* waits; NULL is allowed */
    void (*upload)(tutti_compute *compute, void *dst, const void *src, size_t bytes); /* src may change at once */
    tutti_status (*download)(tutti_compute *compute, void *dst, const void *src, size_t bytes); /* waits */
    void (*copy)(tutti_compute *compute, void *dst, const void *src, size_t bytes);
    void (*zero)(tutti_compute *compute, void *dst, size_t bytes);

    /* --------------------------------------------------------------------------------------- recording */

    /* What is called between begin and end is not carried out but recorded, other streams that wait for events of this one
     * included; replay enqueues it all as one. TUTTI_ERR_UNSUPPORTED: the host, where it would gain nothing. After a
     * failure in between, end gives it, and nothing stays recorded. No upload, download or wait in between. */
    tutti_status (*record_begin)(tutti_compute *compute);
    tutti_status (*record_end)(tutti_compute *compute, tutti_recording **recording_out);
    tutti_status (*replay)(tutti_compute *compute, tutti_recording *recording);
    void (*forget)(tutti_compute *compute, tutti_recording *recording); /* NULL is allowed */

    /* -------------------------------------------------------------------------------------------- layers
     * What each computes, and the order of the arguments: kernels/layers.h, kernels/random.h. */

    /* Elements of scratch, which all layers share, and of what forward keeps for backward. */
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
    /* The same, and negative sums become 0. */
    void (*add_relu)(tutti_compute *compute, size_t count, const tutti_real *a, const tutti_real *b, tutti_real *y);
    /* Of the stream dropout->stream at time values->time. */
    void (*dropout)(tutti_compute *compute, const tutti_dropout *dropout, const tutti_step_values *values, size_t count,
                    const tutti_real *src, tutti_real *dst);
    /* sums[0] becomes, or with args->adds grows by, the batch's losses; sums[1] its number of right answers. */
    void (*softmax_loss)(tutti_compute *compute, const tutti_softmax_loss_args *args, bool adds, double *sums);
    /* The same where ranks have some of the classes each. All that parts names is memory of the compute. */
    void (*softmax_largest)(tutti_compute *compute, const tutti_softmax_parts *parts);
    void (*softmax_sums)(tutti_compute *compute, const tutti_softmax_parts *parts);
    /* parts' sums and best are used up. */
    void (*softmax_losses)(tutti_compute *compute, const tutti_softmax_parts *parts, tutti_real scale,
                           tutti_real *dlogits, bool adds, double *sums);
    void (*truncated_normal)(tutti_compute *compute, const tutti_normal *normal, size_t count, tutti_real *data);
    void (*fill)(tutti_compute *compute, size_t count, tutti_real value, tutti_real *data);

    /* ---------------------------------------------------------------------------------------- optimizers
     * All pieces as one; lr and Adam's factors are those of values. */

    void (*sgd)(tutti_compute *compute, const tutti_sgd *rule, const tutti_step_values *values,
                const tutti_optimizer_piece *pieces, int npieces);
    void (*adam)(tutti_compute *compute, const tutti_adam *rule, const tutti_step_values *values,
                 const tutti_optimizer_piece *pieces, int npieces);
};

/* The processor: the reference, always there. */
extern const tutti_kernels tutti_kernels_host;

#endif
