/*
 * LeNet, as in the MNIST tutorials of several frameworks: two convolutions of 5x5 with ReLU and pooling, a dense
 * layer of 512, dropout, ten outputs (after LeCun et al., "Gradient-based learning applied to document
 * recognition", 1998).
 *
 *   input 28x28x1 - conv1 32 - pool1 14x14 - conv2 64 - pool2 7x7 - dense1 512 - dropout 0.5 - dense2 10
 *
 * Weights start as a truncated normal of 0.1, biases as 0: with these, SGD at its default rate of 0.1 is stable. On
 * MNIST two epochs of two ranks with --optimizer momentum --lr 0.05 give 98.7 %.
 */
#include "ddp/trainer/models/models.h"

#define STDDEV 0.1

void tutti_lenet_fill(const tutti_models_options *options, tutti_model_layers *list) {
    tutti_layer conv = {.kind = TUTTI_LAYER_CONV,
                        .kernel = 5,
                        .stride = 1,
                        .padding = TUTTI_PADDING_SAME,
                        .relu = true,
                        .stddev = STDDEV};
    tutti_layer pool = {.kind = TUTTI_LAYER_MAX_POOL, .kernel = 2, .stride = 2, .padding = TUTTI_PADDING_SAME};
    conv.name = "conv1", conv.units = 32;
    tutti_models_add(list, conv);
    pool.name = "pool1";
    tutti_models_add(list, pool);
    conv.name = "conv2", conv.units = 64;
    tutti_models_add(list, conv);
    pool.name = "pool2";
    tutti_models_add(list, pool);

    tutti_layer dense1 = {.kind = TUTTI_LAYER_DENSE, .name = "dense1", .units = 512, .relu = true, .stddev = STDDEV};
    tutti_models_add(list, dense1);
    tutti_layer dropout = {
        .kind = TUTTI_LAYER_DROPOUT, .name = "dropout", .rate = options->dropout >= 0 ? options->dropout : 0.5};
    tutti_models_add(list, dropout);
    tutti_layer dense2 = {.kind = TUTTI_LAYER_DENSE, .name = "dense2", .units = options->classes, .stddev = STDDEV};
    tutti_models_add(list, dense2);
}
