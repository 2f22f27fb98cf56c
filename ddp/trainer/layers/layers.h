/*
 * The table of layers. A model is data: a list of tutti_layer (<tutti/train.h>), from which model.c makes nodes. A
 * row of this table defines how a kind of layer is placed, how it runs forward and backward, what it costs, and
 * along which axes it may be split over ranks. To add a kind of layer, add a row; no other code depends on kinds.
 *
 * Buffers hold [batch, height, width, channels]; a dense layer sees [batch, height * width * channels].
 */
#ifndef TUTTI_TRAINER_LAYERS_H
#define TUTTI_TRAINER_LAYERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tensor.h>
#include <tutti/train.h>

#include "kernels/kernels.h"

#define TUTTI_LAYER_PARAMETERS 2 /* weight, bias; for batch norm gamma, beta */
#define TUTTI_LAYER_STATES     2 /* batch norm: moving mean, moving variance */

/* Kinds of nodes that are in no caller's list; parallel.c makes them where layers are cut. */
/* bias and ReLU, after partial sums are added */
#define TUTTI_LAYER_BIAS ((tutti_layer_kind)(TUTTI_LAYER_AVERAGE_POOL + 1))
#define TUTTI_LAYER_REDISTRIBUTE                                                                                       \
    ((tutti_layer_kind)(TUTTI_LAYER_AVERAGE_POOL + 2)) /* runs one plan forward and another backward: model.c */
#define TUTTI_LAYER_KIND_COUNT (TUTTI_LAYER_AVERAGE_POOL + 3)

/* Shape of one sample. */
typedef struct tutti_shape {
    int height, width, channels;
} tutti_shape;

static inline size_t tutti_shape_count(tutti_shape shape) {
    return (size_t)shape.height * (size_t)shape.width * (size_t)shape.channels;
}

/* Axes along which a layer's work may be divided over ranks without changing its result. */
typedef enum tutti_split_axis {
    TUTTI_SPLIT_SAMPLES = 1, /* the batch: what data parallelism does */
    TUTTI_SPLIT_INPUTS = 2,  /* input channels or features: partial results are summed */
    TUTTI_SPLIT_OUTPUTS = 4, /* output channels or features */
    TUTTI_SPLIT_PIXELS = 8   /* rows of the image, with a margin where windows overlap */
} tutti_split_axis;

/* Cost of one sample in the forward pass. Bytes: inputs and parameters read, outputs written. */
typedef struct tutti_layer_cost {
    double flops, bytes;
} tutti_layer_cost;

/* How the gradient of an input is delivered. */
typedef enum tutti_gradient_way {
    TUTTI_GRADIENT_NONE,
    TUTTI_GRADIENT_WRITE, /* the first that reaches its node is written in place */
    TUTTI_GRADIENT_ADD,   /* later ones go to a spare buffer and are added */
    TUTTI_GRADIENT_SHARE  /* it is this node's own gradient, in the same buffer */
} tutti_gradient_way;

/* What backward reads besides dy. */
typedef enum tutti_backward_reads { TUTTI_READS_X = 1, TUTTI_READS_Y = 2 } tutti_backward_reads;

/* This rank's part of a layer that is cut over the ranks of a placement (parallel.h). Activations are tensors of
 * four dimensions: samples, rows, columns and channels. The first and the last are cut. */
typedef struct tutti_part {
    tutti_layer layer;               /* for a node that is not in the list */
    uint8_t splits[TUTTI_MOST_AXES]; /* tutti_split_axis along each axis of the placement; 0: none */
    tutti_sbp x[TUTTI_MOST_AXES], dx[TUTTI_MOST_AXES], y[TUTTI_MOST_AXES], dy[TUTTI_MOST_AXES];
    tutti_shape in, out;            /* shapes of the whole layer */
    int batch;                      /* samples of y on this rank, */
    uint64_t first_sample;          /* the first of them in the batch of all ranks, */
    int first_channel;              /* and the first of its channels */
    tutti_plan *forward, *backward; /* plans of a redistribution */
    tutti_tensor *tensors[4];       /* x, y, dy, dx of a redistribution */
} tutti_part;

/* A layer in a model. */
typedef struct tutti_node {
    const tutti_layer *layer;
    int inputs[TUTTI_LAYER_INPUTS]; /* nodes; node 0 is the model's input */
    tutti_shape in, out;            /* of this rank */
    int units;                      /* units of the layer on this rank */
    int number;                     /* number of its layer in the list, from 1: random numbers depend on it */
    tutti_part *part;               /* NULL: the layer is not cut */
    union {
        tutti_conv conv;
        tutti_window pool;
        tutti_dense dense;
        tutti_batch_norm norm;
    } plan;
    size_t parameter_counts[TUTTI_LAYER_PARAMETERS]; /* 0: the layer has none */
    size_t state_counts[TUTTI_LAYER_STATES];
    unsigned frozen;     /* parameters that are not trained: bit i for the row's parameter_names[i] */
    bool wants_gradient; /* this node, or one before it, has parameters that are trained */
    int index;           /* of this node */
    int first_parameter; /* index in the model's list */
    int consumers;       /* nodes that read its output */
    tutti_gradient_way way[TUTTI_LAYER_INPUTS];

    float *parameters[TUTTI_LAYER_PARAMETERS];
    float *states[TUTTI_LAYER_STATES];
    float *y, *dy;  /* dy: NULL if it is not needed */
    float *kept;    /* written by forward for backward */
    float *scratch; /* used only while the node runs */
    size_t scratch_count;
    float *spares[TUTTI_LAYER_INPUTS]; /* for TUTTI_GRADIENT_ADD */
} tutti_node;

static inline bool tutti_node_is_redistribution(const tutti_node *node) {
    return node->layer != NULL && node->layer->kind == TUTTI_LAYER_REDISTRIBUTE;
}

/* Samples of a node on this rank. `batch`: samples of the pass, which count for a node that is not cut. */
static inline int tutti_node_batch(const tutti_node *node, int batch) {
    return node->part != NULL ? node->part->batch : batch;
}

/* One run over one batch. */
typedef struct tutti_pass {
    int batch;     /* samples of nodes that are not cut */
    bool training; /* false: dropout passes everything, batch norm uses the moving values */
    uint64_t seed;
    uint64_t first_sample;           /* first sample of this rank's part in the global batch */
    const tutti_step_values *values; /* in the compute's memory; NULL while not training */
} tutti_pass;

/* Where a layer's backward writes; NULL: the gradient is not needed. */
typedef struct tutti_layer_gradients {
    float *dx[TUTTI_LAYER_INPUTS];
    float *parameters[TUTTI_LAYER_PARAMETERS];
} tutti_layer_gradients;

typedef struct tutti_layer_row {
    const char *name;
    int ninputs;
    unsigned split_axes;
    const char *parameter_names[TUTTI_LAYER_PARAMETERS];
    const char *state_names[TUTTI_LAYER_STATES]; /* neither trained nor averaged over ranks */
    double state_starts[TUTTI_LAYER_STATES];
    /* The gradients of its inputs equal its own after backward has changed that in place. backward gets no dx for a
     * shared gradient. */
    bool passes_gradient;
    /* Fills in out, plan, parameter_counts and state_counts from node->in and node->layer. */
    tutti_status (*place)(tutti_node *node);
    /* Returns whether a compute has the layer's kernels; NULL: all have. */
    bool (*runs_on)(const tutti_node *node, const tutti_kernels *kernels);
    /* What backward reads (tutti_backward_reads); NULL: nothing. */
    unsigned (*backward_reads)(const tutti_node *node);
    /* Returns whether backward writes to dy; NULL: it does not. */
    bool (*changes_dy)(const tutti_node *node);
    /* Number of floats; NULL: none. */
    size_t (*scratch_count)(const tutti_compute *compute, const tutti_node *node, int batch);
    size_t (*kept_count)(const tutti_compute *compute, const tutti_node *node, int batch);
    void (*forward)(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x);
    void (*backward)(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                     const tutti_layer_gradients *gradients);
    tutti_layer_cost (*cost)(const tutti_node *node);
} tutti_layer_row;

const tutti_layer_row *tutti_layers_row(tutti_layer_kind kind);

#endif
