/*
 * The table of layers. A model is data: a list of tutti_layer (models/), from which model.c makes nodes; a row of
 * this table tells how a kind of layer is placed, run forwards and backwards, what it costs, and along which axes
 * it may be split over ranks. Whoever adds a layer adds a row; nobody else knows kinds.
 *
 * Buffers hold [batch, height, width, channels]; a dense layer sees [batch, height * width * channels].
 */
#ifndef TUTTI_TRAINER_LAYERS_H
#define TUTTI_TRAINER_LAYERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#include "kernels/kernels.h"

#define TUTTI_LAYER_INPUTS     2
#define TUTTI_LAYER_PARAMETERS 2 /* weight, bias */

typedef enum tutti_layer_kind {
    TUTTI_LAYER_CONV,
    TUTTI_LAYER_MAX_POOL,
    TUTTI_LAYER_RELU,
    TUTTI_LAYER_DENSE,
    TUTTI_LAYER_DROPOUT,
    TUTTI_LAYER_ADD, /* of two inputs of one shape: a residual connection */
    TUTTI_LAYER_KIND_COUNT
} tutti_layer_kind;

/* What a model says of one layer; members that its kind does not use are 0. */
typedef struct tutti_layer {
    const char *name; /* lives as long as the model */
    tutti_layer_kind kind;
    const char *inputs[TUTTI_LAYER_INPUTS]; /* names of earlier layers, or "input"; inputs[0] NULL: the layer before */
    int units;                              /* filters of a convolution, outputs of a dense layer */
    int kernel, stride;                     /* of a window */
    tutti_padding padding;
    bool relu;     /* fused behind a convolution or dense layer */
    double rate;   /* of dropout */
    double stddev; /* weights start as a truncated normal of this standard deviation */
    double bias;   /* biases start as this */
} tutti_layer;

/* Shape of one sample. */
typedef struct tutti_shape {
    int height, width, channels;
} tutti_shape;

static inline size_t tutti_shape_count(tutti_shape shape) {
    return (size_t)shape.height * (size_t)shape.width * (size_t)shape.channels;
}

/* Along these axes a layer's work may be divided over ranks without a change of its result. */
typedef enum tutti_split_axis {
    TUTTI_SPLIT_SAMPLES = 1, /* the batch: what data parallelism does */
    TUTTI_SPLIT_INPUTS = 2,  /* input channels or features: partial results are summed */
    TUTTI_SPLIT_OUTPUTS = 4, /* output channels or features */
    TUTTI_SPLIT_PIXELS = 8   /* rows of the image, with a margin where windows overlap */
} tutti_split_axis;

/* Of one sample, forwards. Bytes: inputs and parameters read, outputs written. */
typedef struct tutti_cost {
    double flops, bytes;
} tutti_cost;

/* A layer at its place in a model. */
typedef struct tutti_node {
    const tutti_layer *layer;
    int inputs[TUTTI_LAYER_INPUTS]; /* nodes; node 0 is the model's input */
    tutti_shape in, out;
    union {
        tutti_conv conv;
        tutti_window pool;
        tutti_dense dense;
    } plan;
    size_t parameter_counts[TUTTI_LAYER_PARAMETERS]; /* 0: the layer has none */
    bool wants_gradient;                             /* it, or a node before it, has parameters */
    int index;                                       /* its own */
    int first_parameter;                             /* index in the model's list */
    int consumers;                                   /* nodes that read its output */

    float *parameters[TUTTI_LAYER_PARAMETERS];
    float *y, *dy;
    float *kept;     /* convolution: by forward for backward */
    int32_t *where;  /* max-pool: see tutti_max_pool_forward */
    bool dy_written; /* during backward: dy holds a part already, the next one is added */
} tutti_node;

/* One run over one batch. */
typedef struct tutti_pass {
    int batch;
    bool training; /* false: dropout passes everything */
    uint64_t seed;
    uint64_t first_sample;           /* of this rank's part, in the global batch */
    const tutti_step_values *values; /* in the compute's memory; NULL while not training */
} tutti_pass;

/* Where a layer's backward writes; NULL: not wanted. */
typedef struct tutti_layer_gradients {
    float *dx[TUTTI_LAYER_INPUTS];
    float *parameters[TUTTI_LAYER_PARAMETERS];
} tutti_layer_gradients;

typedef struct tutti_layer_row {
    const char *name;
    int ninputs;
    unsigned split_axes;
    const char *parameter_names[TUTTI_LAYER_PARAMETERS];
    /* From node->in and node->layer: fills in out, plan and parameter_counts. */
    tutti_status (*place)(tutti_node *node);
    void (*forward)(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                    float *scratch);
    void (*backward)(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                     float *scratch, const tutti_layer_gradients *gradients);
    tutti_cost (*cost)(const tutti_node *node);
} tutti_layer_row;

const tutti_layer_row *tutti_layers_row(tutti_layer_kind kind);

#endif
