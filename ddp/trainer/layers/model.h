/*
 * A model that runs: nodes made from a list of layers, their buffers, and forward and backward passes over the
 * list.
 *
 * All memory is one block of the compute's, allocated when the model is made; a step allocates nothing. Buffers
 * that are not needed at the same time share memory (memory_plan.h), so only input and logits may be read between
 * passes. The model does not hold the gradients of parameters: backward asks a sink where each goes, and calls it
 * as soon as one is complete.
 */
#ifndef TUTTI_TRAINER_MODEL_H
#define TUTTI_TRAINER_MODEL_H

#include "ddp/trainer/layers/layers.h"
#include "ddp/trainer/layers/memory_plan.h"

#define TUTTI_MODEL_LAYERS     TUTTI_TRAIN_LAYERS
#define TUTTI_MODEL_NAME_BYTES 64

/* The list that a function in models/ fills. */
typedef struct tutti_model_layers {
    tutti_layer layers[TUTTI_MODEL_LAYERS];
    int count;
    uint8_t frozen[TUTTI_MODEL_LAYERS]; /* parameters that are not trained, as bits: freeze.h */
} tutti_model_layers;

typedef struct tutti_parameter {
    char name[TUTTI_MODEL_NAME_BYTES]; /* "conv1.weight" */
    float *data;
    size_t count; /* elements of this rank's part */
    int ndims;
    int64_t dims[4]; /* of the whole parameter */
    int node;
    bool frozen; /* not trained: it has no gradient and no optimizer state */
    /* Used where the model is cut over ranks (parallel.h); otherwise the part is the whole. */
    int64_t first[4], part[4];      /* start and extents of this rank's box */
    tutti_sbp sbp[TUTTI_MOST_AXES]; /* how it is divided */
    unsigned sums;                  /* axes over whose ranks gradients are summed: bit a for axis a */
} tutti_parameter;

struct tutti_parallel;

typedef struct tutti_model {
    tutti_model_layers list;
    tutti_node *nodes; /* nodes[0] is the input, the last gives the logits */
    int nnodes;
    tutti_parameter *parameters; /* in the order of the layers */
    int nparameters;
    tutti_compute *compute; /* the caller's */
    int batch_capacity;
    const struct tutti_parallel *parallel; /* the caller's; NULL: this rank has all of the model */
    tutti_part *parts;
    tutti_status failure; /* status of a redistribution that failed */

    /* not trained: batch norm's moving values; one array of state_count elements, with gaps, from states[0].data on */
    tutti_parameter *states;
    int nstates;
    size_t state_count;

    void *memory;
    size_t memory_bytes;
    tutti_memory_plan plan;
    void *planned; /* the plan's part of the memory */
    float *scratch;
    size_t scratch_count;
    /* buffer for gradients of frozen parameters that backward computes anyway, behind a trained layer */
    float *discard;
    bool poisons; /* for tests: buffers that are no longer needed are filled with NaN */
    /* The caller's; each pass adds the nanoseconds of each node, forward and backward. NULL: not measured. */
    int64_t *times;
} tutti_model;

/* The destination of parameters' gradients; frozen parameters have none. */
typedef struct tutti_gradient_sink {
    void *context;
    float *(*where)(void *context, int parameter);
    tutti_status (*ready)(void *context, int parameter);
} tutti_gradient_sink;

/* Makes the model for samples of shape `in`, in batches of up to batch_capacity. A list that does not fit together
 * (unknown input, shapes that differ, a layer whose output is not read) is an error that names the layer. */
tutti_status tutti_model_create(const tutti_model_layers *list, tutti_shape in, int batch_capacity,
                                tutti_compute *compute, tutti_model **model_out);
/* Makes this rank's part of a model that is cut over ranks. All ranks must call tutti_model_connect before it runs. */
tutti_status tutti_model_create_part(const tutti_model_layers *list, tutti_shape in,
                                     const struct tutti_parallel *parallel, tutti_compute *compute,
                                     tutti_model **model_out);
/* Makes nodes, parameters' shapes and memory_bytes only; parallel NULL: of a model that is not cut. Local. */
tutti_status tutti_model_create_outline(const tutti_model_layers *list, tutti_shape in, int batch_capacity,
                                        const struct tutti_parallel *parallel, tutti_compute *compute,
                                        tutti_model **model_out);
tutti_status tutti_model_connect(tutti_model *model);
void tutti_model_destroy(tutti_model *model);

/* Sets the initial parameters and states, which depend on the seed only. */
tutti_status tutti_model_initialize(tutti_model *model, uint64_t seed);

/* The caller writes a batch here: [batch, height, width, channels]. */
float *tutti_model_input(const tutti_model *model);

/* Runs all layers; returns the logits, [pass->batch, classes], which backward overwrites. NULL: a redistribution
 * failed; model->failure is its status, and tutti_last_error has its text. */
const float *tutti_model_forward(tutti_model *model, const tutti_pass *pass);

/* Before backward the caller writes the loss's gradient with respect to the logits here. */
float *tutti_model_logits_gradient(const tutti_model *model);

/* Runs all layers backward, the last first, after a forward with the same pass. */
tutti_status tutti_model_backward(tutti_model *model, const tutti_pass *pass, const tutti_gradient_sink *sink);

/* The number of classes, of all ranks together. */
int tutti_model_classes(const tutti_model *model);
/* The part of the last node in a model that is cut: the samples of the logits, and the first of them in the batch
 * of all ranks. */
const tutti_part *tutti_model_output_part(const tutti_model *model);
/* Elements of the whole parameter: all ranks' parts together. */
size_t tutti_parameter_whole_count(const tutti_parameter *parameter);
/* The sum over the layers, for the forward pass of one sample; work that several ranks repeat counts each time. */
tutti_layer_cost tutti_model_cost(const tutti_model *model);
/* Counts for the whole model, with the parts of all ranks: parameters, parameters that are not trained, states. */
size_t tutti_model_parameter_count(const tutti_model *model);
size_t tutti_model_frozen_count(const tutti_model *model);
size_t tutti_model_state_count(const tutti_model *model);

#endif
