/*
 * The bundled models, by name. Each is one file with one function that fills the list of layers.
 */
#ifndef TUTTI_TRAINER_MODELS_H
#define TUTTI_TRAINER_MODELS_H

#include <assert.h>

#include "ddp/trainer/layers/model.h"

typedef struct tutti_models_options {
    int classes;
    double dropout; /* rate; below 0: the model's default */
    int hidden;     /* units of mlp's hidden layer; 0: 512 */
} tutti_models_options;

typedef struct tutti_models_row {
    const char *name;
    void (*fill)(const tutti_models_options *options, tutti_model_layers *list);
    double lr; /* default rate of sgd and momentum that does not diverge at the start; 0: the optimizer's default */
} tutti_models_row;

/* Names, separated by '|'. */
#define TUTTI_MODELS_NAMES "lenet|mlp|resnet20|resnet18|resnet50"

/* NULL: no such model. */
const tutti_models_row *tutti_models_find(const char *name);

/* Appends a layer; for the functions that fill lists. */
static inline void tutti_models_add(tutti_model_layers *list, tutti_layer layer) {
    assert(list->count < TUTTI_MODEL_LAYERS);
    list->layers[list->count++] = layer;
}

void tutti_lenet_fill(const tutti_models_options *options, tutti_model_layers *list);
void tutti_mlp_fill(const tutti_models_options *options, tutti_model_layers *list);
void tutti_resnet50_fill(const tutti_models_options *options, tutti_model_layers *list);
void tutti_resnet18_fill(const tutti_models_options *options, tutti_model_layers *list);
void tutti_resnet20_fill(const tutti_models_options *options, tutti_model_layers *list);

#endif
