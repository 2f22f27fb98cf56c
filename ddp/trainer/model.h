/*
 * A model at work: nodes made from a list of layers, their buffers, and runs forwards and backwards over the list.
 *
 * All memory is one block of the compute's, taken when the model is made; a step allocates nothing. Buffers that are not needed at
 * the same time lie in the same place (memory_plan.h), so only input and logits may be looked at between runs. Gradients of parameters are not
 * kept here: backward asks a sink where each goes, and tells it as soon as one is complete.
 */
#ifndef TUTTI_TRAINER_MODEL_H
#define TUTTI_TRAINER_MODEL_H

#include "ddp/trainer/layers.h"
#include "ddp/trainer/memory_plan.h"

#define TUTTI_MODEL_LAYERS     TUTTI_TRAIN_LAYERS
#define TUTTI_MODEL_NAME_BYTES 64

/* The list that a function in models/ fills. */
typedef struct tutti_model_layers {
    tutti_layer layers[TUTTI_MODEL_LAYERS];
    int count;
    uint8_t frozen[TUTTI_MODEL_LAYERS]; /* parameters that are not trained: freeze.h */
} tutti_model_layers;

typedef struct tutti_parameter {
    char name[TUTTI_MODEL_NAME_BYTES]; /* "conv1.weight" */
    float *data;
    size_t count; /* of this rank's part */
    int ndims;
    int64_t dims[4]; /* of the whole */
    int node;
    bool frozen; /* not trained: it has no gradient, and the optimizer no state of it */
    /* Where the model is cut over ranks (parallel.h); elsewhere the part is the whole. */
    int64_t first[4], part[4];      /* where this rank's box begins, and its extents */
    tutti_sbp sbp[TUTTI_MOST_AXES]; /* how it is divided */
    unsigned sums;                  /* axes over whose ranks gradients are summed: bit a, axis a */
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
    tutti_status failure; /* of a redistribution */

    tutti_parameter *
        states; /* not trained: batch norm's moving values; one array of state_count, with gaps, from states[0].data on */
    int nstates;
    size_t state_count;

    void *memory;
    size_t memory_bytes;
    tutti_memory_plan plan;
    void *planned; /* the plan's part of the memory */
    float *scratch;
    size_t scratch_count;
    float *discard; /* where backward writes gradients of frozen parameters; behind a layer that is trained */
    bool poisons;   /* for tests: buffers whose time is over are filled with NaN */
    int64_t *
        times; /* the caller's; nanoseconds of each node, forwards and backwards, are added up here; NULL: not wanted */
} tutti_model;

/* Where gradients of parameters go; frozen ones have none. */
typedef struct tutti_gradient_sink {
    void *context;
    float *(*where)(void *context, int parameter);
    tutti_status (*ready)(void *context, int parameter);
} tutti_gradient_sink;

/* Makes the model for samples of shape `in`, in batches of up to batch_capacity. A list that does not fit together
 * (unknown input, shapes that differ, a layer whose output is not read) is an error that names the layer. */
tutti_status tutti_model_create(const tutti_model_layers *list, tutti_shape in, int batch_capacity,
                                tutti_compute *compute, tutti_model **model_out);
/* This rank's part of one that is cut over ranks. tutti_model_connect is called before it runs, by all ranks. */
tutti_status tutti_model_create_part(const tutti_model_layers *list, tutti_shape in,
                                     const struct tutti_parallel *parallel, tutti_compute *compute,
                                     tutti_model **model_out);
/* Nodes, parameters' shapes and memory_bytes only; parallel NULL: of a model that is not cut. Local. */
tutti_status tutti_model_create_outline(const tutti_model_layers *list, tutti_shape in, int batch_capacity,
                                        const struct tutti_parallel *parallel, tutti_compute *compute,
                                        tutti_model **model_out);
tutti_status tutti_model_connect(tutti_model *model);
void tutti_model_destroy(tutti_model *model);

/* Initial parameters and states: depend on the seed only. */
tutti_status tutti_model_initialize(tutti_model *model, uint64_t seed);

/* The caller writes a batch here: [batch, height, width, channels]. */
float *tutti_model_input(const tutti_model *model);

/* Runs all layers; gives the logits, [pass->batch, classes], which backward overwrites. NULL: a redistribution failed, and
 * model->failure says how; tutti_last_error has its text. */
const float *tutti_model_forward(tutti_model *model, const tutti_pass *pass);

/* Before backward the caller writes the loss's gradient with respect to the logits here. */
float *tutti_model_logits_gradient(const tutti_model *model);

/* Runs all layers backwards, last first, after a forward with the same pass. */
tutti_status tutti_model_backward(tutti_model *model, const tutti_pass *pass, const tutti_gradient_sink *sink);

/* The number of classes, of all ranks together. */
int tutti_model_classes(const tutti_model *model);
/* Samples that the logits are of, from which one of the batch of all ranks on; in a model that is cut. */
const tutti_part *tutti_model_output_part(const tutti_model *model);
/* Copies this rank's box between a whole parameter on the host and its part, there too. */
void tutti_parameter_copy_box(const tutti_parameter *parameter, float *part, const float *whole);
/* Elements of all ranks' parts together. */
size_t tutti_parameter_whole_count(const tutti_parameter *parameter);
/* Sum over the layers, one sample, forwards; what several ranks compute counts as often. */
tutti_layer_cost tutti_model_cost(const tutti_model *model);
/* Counts for the whole model, with the parts of all ranks: parameters; parameters that are not trained; states. */
size_t tutti_model_parameter_count(const tutti_model *model);
size_t tutti_model_frozen_count(const tutti_model *model);
size_t tutti_model_state_count(const tutti_model *model);

#endif
