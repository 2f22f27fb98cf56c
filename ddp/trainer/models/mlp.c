/*
 * A multilayer perceptron: one hidden layer with ReLU, of 512 units by default.
 */
#include "ddp/trainer/models/models.h"

#define STDDEV 0.1
#define HIDDEN 512

void tutti_mlp_fill(const tutti_models_options *options, tutti_model_layers *list) {
    tutti_layer dense1 = {.kind = TUTTI_LAYER_DENSE,
                          .name = "dense1",
                          .units = options->hidden > 0 ? options->hidden : HIDDEN,
                          .relu = true,
                          .stddev = STDDEV};
    tutti_models_add(list, dense1);
    if (options->dropout > 0) {
        tutti_layer dropout = {.kind = TUTTI_LAYER_DROPOUT, .name = "dropout", .rate = options->dropout};
        tutti_models_add(list, dropout);
    }
    tutti_layer dense2 = {.kind = TUTTI_LAYER_DENSE, .name = "dense2", .units = options->classes, .stddev = STDDEV};
    tutti_models_add(list, dense2);
}
