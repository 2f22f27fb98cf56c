/*
 * Residual networks (He et al., "Deep residual learning for image recognition", 2015), with batch norm after every
 * convolution, whose padding is TensorFlow's "same"; convolutions have no bias.
 *
 *   resnet50   conv 7x7 /2, max-pool 3x3 /2, stages of 3, 4, 6, 3 bottlenecks (1x1, 3x3, 1x1) with 256 to 2048 outputs;
 *              a stage's stride is in the first 1x1 of its first block, as in the paper (torchvision has it in the 3x3)
 *   resnet18   the same beginning, stages of 2 basic blocks (3x3, 3x3) with 64 ... 512 outputs
 *   resnet20   for small images: conv 3x3, stages of 3 basic blocks with 16, 32, 64 outputs
 *
 * Then the mean over the pixels and a dense layer. If a block changes the shape, its shortcut is a 1x1 convolution.
 * resnet50's weights start Xavier-uniform, the others' He-normal; the dense layer's bias in +-0.07; gamma as 1,
 * beta as 0. Layers have their torchvision names.
 */
#include "ddp/trainer/models/models.h"

#include <stddef.h>

#define MOST_STAGES 4
#define MOST_BLOCKS 6
#define EPSILON     1e-5
#define MOMENTUM    0.01
#define BIAS_LIMIT  0.07

typedef struct resnet {
    bool bottlenecks, large_images;
    int nstages, blocks[MOST_STAGES], outputs[MOST_STAGES];
    tutti_initializer initializer;
} resnet;

typedef struct block_names {
    const char *conv[3], *norm[3], *shortcut, *shortcut_norm, *add;
} block_names;

#define NAMES(block)                                                                                                   \
    {                                                                                                                  \
        {block ".conv1", block ".conv2", block ".conv3"}, {block ".bn1", block ".bn2", block ".bn3"},                  \
            block ".downsample.0", block ".downsample.1", block ".add"                                                 \
    }
#define STAGE(stage)                                                                                                   \
    { NAMES(stage ".0"), NAMES(stage ".1"), NAMES(stage ".2"), NAMES(stage ".3"), NAMES(stage ".4"), NAMES(stage ".5") }
static const block_names names[MOST_STAGES][MOST_BLOCKS] = {STAGE("layer1"), STAGE("layer2"), STAGE("layer3"),
                                                            STAGE("layer4")};

/* Adds a convolution that reads `input` (NULL: the previous layer), with its kernel and stride, then batch norm. */
static void add_conv(const resnet *net, tutti_model_layers *list, const char *name, const char *norm_name,
                     const char *input, int units, int kernel, int stride, bool relu) {
    tutti_layer conv = {.kind = TUTTI_LAYER_CONV,
                        .name = name,
                        .inputs = {input},
                        .units = units,
                        .kernel = kernel,
                        .stride = stride,
                        .padding = TUTTI_PADDING_SAME,
                        .no_bias = true,
                        .initializer = net->initializer};
    tutti_layer norm = {.kind = TUTTI_LAYER_BATCH_NORM,
                        .name = norm_name,
                        .epsilon = EPSILON,
                        .momentum = MOMENTUM,
                        .relu = relu,
                        .initializer = TUTTI_INITIALIZER_CONSTANT,
                        .constant = 1};
    tutti_models_add(list, conv);
    tutti_models_add(list, norm);
}

/* Adds a block with `inputs` input and `outputs` output channels. Returns the name of its last layer. */
static const char *add_block(const resnet *net, tutti_model_layers *list, const block_names *of, const char *input,
                             int inputs, int outputs, int stride) {
    const char *branch;
    if (net->bottlenecks) {
        add_conv(net, list, of->conv[0], of->norm[0], input, outputs / 4, 1, stride, true);
        add_conv(net, list, of->conv[1], of->norm[1], NULL, outputs / 4, 3, 1, true);
        add_conv(net, list, of->conv[2], of->norm[2], NULL, outputs, 1, 1, false);
        branch = of->norm[2];
    } else {
        add_conv(net, list, of->conv[0], of->norm[0], input, outputs, 3, stride, true);
        add_conv(net, list, of->conv[1], of->norm[1], NULL, outputs, 3, 1, false);
        branch = of->norm[1];
    }
    const char *shortcut = input;
    if (stride != 1 || inputs != outputs) {
        add_conv(net, list, of->shortcut, of->shortcut_norm, input, outputs, 1, stride, false);
        shortcut = of->shortcut_norm;
    }
    tutti_layer add = {.kind = TUTTI_LAYER_ADD, .name = of->add, .inputs = {branch, shortcut}, .relu = true};
    tutti_models_add(list, add);
    return of->add;
}

static void fill(const resnet *net, const tutti_models_options *options, tutti_model_layers *list) {
    int channels = net->large_images ? 64 : net->outputs[0];
    const char *last = "bn1";
    add_conv(net, list, "conv1", last, NULL, channels, net->large_images ? 7 : 3, net->large_images ? 2 : 1, true);
    if (net->large_images) {
        last = "maxpool";
        tutti_layer pool = {
            .kind = TUTTI_LAYER_MAX_POOL, .name = last, .kernel = 3, .stride = 2, .padding = TUTTI_PADDING_SAME};
        tutti_models_add(list, pool);
    }
    for (int s = 0; s < net->nstages; s++)
        for (int b = 0; b < net->blocks[s]; b++) {
            last = add_block(net, list, &names[s][b], last, channels, net->outputs[s], s > 0 && b == 0 ? 2 : 1);
            channels = net->outputs[s];
        }
    tutti_models_add(list, (tutti_layer){.kind = TUTTI_LAYER_AVERAGE_POOL, .name = "avgpool"});
    if (options->dropout > 0)
        tutti_models_add(list, (tutti_layer){.kind = TUTTI_LAYER_DROPOUT, .name = "dropout", .rate = options->dropout});
    tutti_layer dense = {.kind = TUTTI_LAYER_DENSE,
                         .name = "fc",
                         .units = options->classes,
                         .initializer = net->initializer,
                         .bias_limit = BIAS_LIMIT};
    tutti_models_add(list, dense);
}

void tutti_resnet50_fill(const tutti_models_options *options, tutti_model_layers *list) {
    static const resnet net = {.bottlenecks = true,
                               .large_images = true,
                               .nstages = 4,
                               .blocks = {3, 4, 6, 3},
                               .outputs = {256, 512, 1024, 2048},
                               .initializer = TUTTI_INITIALIZER_XAVIER_UNIFORM};
    fill(&net, options, list);
}

void tutti_resnet18_fill(const tutti_models_options *options, tutti_model_layers *list) {
    static const resnet net = {.large_images = true,
                               .nstages = 4,
                               .blocks = {2, 2, 2, 2},
                               .outputs = {64, 128, 256, 512},
                               .initializer = TUTTI_INITIALIZER_HE_NORMAL};
    fill(&net, options, list);
}

void tutti_resnet20_fill(const tutti_models_options *options, tutti_model_layers *list) {
    static const resnet net = {
        .nstages = 3, .blocks = {3, 3, 3}, .outputs = {16, 32, 64}, .initializer = TUTTI_INITIALIZER_HE_NORMAL};
    fill(&net, options, list);
}
