/*
 * Residual networks of the trainer: their sizes, the plan of their memory, and runs that end and resume.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/models/models.h"
#include "ddp/trainer/update.h"
#include "tests/support/training/training.h"

static char folder[FILES_PATH_BYTES];

static void make_folder(void) {
    files_make_folder(folder);
}

static void remove_folder(void) {
    files_remove(folder);
}

TestSuite(resnet, .init = make_folder, .fini = remove_folder);

static tutti_model *make(const char *name, int classes, tutti_shape in, int batch) {
    tutti_model_layers *list = calloc(1, sizeof *list);
    tutti_model *model = NULL;
    tutti_models_find(name)->fill(&(tutti_models_options){.classes = classes, .dropout = -1}, list);
    cr_assert_eq(tutti_model_create(list, in, batch, training_compute(), &model), TUTTI_OK, "%s", tutti_last_error());
    free(list);
    return model;
}

static int count_kind(const tutti_model *model, tutti_layer_kind kind) {
    int count = 0;
    for (int i = 1; i < model->nnodes; i++) count += model->nodes[i].layer->kind == kind;
    return count;
}

static void expect_sizes(const char *name, int classes, int side, int convolutions, int tensors, size_t parameters,
                         size_t moving) {
    tutti_model *model = make(name, classes, (tutti_shape){side, side, 3}, 1);
    cr_assert_eq(count_kind(model, TUTTI_LAYER_CONV), convolutions);
    cr_assert_eq(count_kind(model, TUTTI_LAYER_BATCH_NORM), convolutions);
    cr_assert_eq(model->nparameters, tensors, "%s: %d tensors", name, model->nparameters);
    cr_assert_eq(tutti_model_parameter_count(model), parameters, "%s: %zu parameters", name,
                 tutti_model_parameter_count(model));
    cr_assert_eq(tutti_model_state_count(model), moving);
    tutti_model_destroy(model);
}

Test(resnet, models_have_the_numbers_of_parameters_that_are_published) {
    expect_sizes("resnet50", 10, 224, 53, 161, 23528522, 53120);
    expect_sizes("resnet50", 1000, 224, 53, 161, 25557032, 53120);
    expect_sizes("resnet18", 1000, 224, 20, 62, 11689512, 9600);
    expect_sizes("resnet20", 10, 32, 21, 65, 272474, 1568);
    tutti_model *model = make("resnet50", 10, (tutti_shape){224, 224, 3}, 1);
    cr_assert_eq(count_kind(model, TUTTI_LAYER_ADD), 16);
    cr_assert_float_eq(tutti_model_cost(model).flops, 7.71e9, 0.1e9);
    tutti_model_destroy(model);
}

/* 9.2 GB with a buffer for each output and each gradient. Pages that are not touched cost nothing. */
Test(resnet, memory_of_a_large_batch_is_planned) {
    tutti_model *model = make("resnet50", 10, (tutti_shape){224, 224, 3}, 32);
    double gb = (double)model->memory_bytes * 1e-9;
    cr_assert(gb < 3.0, "%g GB", gb);
    tutti_model_destroy(model);
}

/* ------------------------------------------------------------------------------------------ the memory */

typedef struct batch {
    tutti_model *model;
    float *gradients[256];
    float logits[80];
} batch;

static float *gradient_where(void *context, int parameter) {
    return ((batch *)context)->gradients[parameter];
}

static tutti_status gradient_ready(void *context, int parameter) {
    (void)context, (void)parameter;
    return TUTTI_OK;
}

/* Two runs, so that the second one would read data that the first one has left behind. */
static void run_batch(batch *b, const char *name, bool poisons) {
    enum { BATCH = 3, SIDE = 16, CLASSES = 10 };
    b->model = make(name, CLASSES, (tutti_shape){SIDE, SIDE, 3}, BATCH);
    b->model->poisons = poisons;
    tutti_model_initialize(b->model, 3);
    for (int i = 0; i < b->model->nparameters; i++)
        b->gradients[i] = calloc(b->model->parameters[i].count, sizeof(float));
    for (int i = 0; i < BATCH * SIDE * SIDE * 3; i++) tutti_model_input(b->model)[i] = sinf((float)i);
    const int32_t labels[BATCH] = {1, 7, 2};
    const tutti_pass pass = {.batch = BATCH, .training = true};
    for (int i = 0; i < 2; i++) {
        tutti_softmax_loss_args loss = {.batch = BATCH,
                                        .classes = CLASSES,
                                        .logits = tutti_model_forward(b->model, &pass),
                                        .labels = labels,
                                        .scale = 1,
                                        .dlogits = tutti_model_logits_gradient(b->model)};
        memcpy(b->logits, loss.logits, sizeof(float) * BATCH * CLASSES);
        tutti_softmax_loss(&loss);
        tutti_gradient_sink sink = {.context = b, .where = gradient_where, .ready = gradient_ready};
        cr_assert_eq(tutti_model_backward(b->model, &pass, &sink), TUTTI_OK);
    }
}

static void expect_same_with_poison(const char *name) {
    static batch plain, poisoned;
    run_batch(&plain, name, false);
    run_batch(&poisoned, name, true);
    cr_assert_eq(memcmp(plain.logits, poisoned.logits, sizeof plain.logits), 0);
    for (int i = 0; i < plain.model->nparameters; i++) {
        const tutti_parameter *parameter = &plain.model->parameters[i];
        float largest = 0;
        for (size_t e = 0; e < parameter->count; e++) largest = fmaxf(largest, fabsf(plain.gradients[i][e]));
        cr_assert(largest > 0 && isfinite(largest), "%s: the gradient's largest value is %g", parameter->name,
                  (double)largest);
        cr_assert_eq(memcmp(plain.gradients[i], poisoned.gradients[i], parameter->count * sizeof(float)), 0,
                     "%s: data was read after its lifetime", parameter->name);
        free(plain.gradients[i]), free(poisoned.gradients[i]);
    }
    for (int i = 0; i < plain.model->nstates; i++)
        cr_assert_eq(memcmp(plain.model->states[i].data, poisoned.model->states[i].data,
                            plain.model->states[i].count * sizeof(float)),
                     0);
    tutti_model_destroy(plain.model), tutti_model_destroy(poisoned.model);
}

Test(resnet, buffers_are_not_read_after_their_lifetime) {
    expect_same_with_poison("resnet20");
    expect_same_with_poison("resnet50");
}

/* ---------------------------------------------------------------------------------------- weight decay */

/* Gradients are 0: only decay changes parameters. */
static void check_decay(const char *optimizer, bool only_arrays_decay) {
    batch b = {.model = make("resnet20", 10, (tutti_shape){8, 8, 3}, 1)};
    tutti_update update;
    tutti_step_values values;
    tutti_model_initialize(b.model, 3);
    for (int i = 0; i < b.model->nparameters; i++) {
        b.gradients[i] = calloc(b.model->parameters[i].count, sizeof(float));
        for (size_t e = 0; e < b.model->parameters[i].count; e++) b.model->parameters[i].data[e] = 2;
    }
    tutti_update_options options = {.momentum = -1, .weight_decay = 0.25, .only_arrays_decay = only_arrays_decay};
    cr_assert_eq(tutti_update_init(&update, optimizer, &options, b.model, NULL), TUTTI_OK);
    tutti_update_begin(&update, 0.5, &values);
    tutti_gradient_sink sink = {.context = &b, .where = gradient_where, .ready = gradient_ready};
    tutti_update_step(&update, b.model, &values, &sink);
    for (int i = 0; i < b.model->nparameters; i++) {
        const tutti_parameter *parameter = &b.model->parameters[i];
        bool decays = !only_arrays_decay || (strstr(parameter->name, ".weight") != NULL);
        float expected = decays ? 1.75f : 2;
        cr_assert_eq(parameter->data[0], expected, "%s: %s is %g", optimizer, parameter->name,
                     (double)parameter->data[0]);
        cr_assert_eq(parameter->data[parameter->count - 1], expected);
        free(b.gradients[i]);
    }
    tutti_update_fini(&update);
    tutti_model_destroy(b.model);
}

Test(resnet, weight_decay_can_leave_out_batch_norm_and_biases) {
    static const char *const optimizers[] = {"sgd", "momentum", "adamw"};
    for (int i = 0; i < 3; i++) check_decay(optimizers[i], false), check_decay(optimizers[i], true);
}

/* -------------------------------------------------------------------------------------------- the runs */

static void train(int nranks, const char *steps, const char *resume, const char *checkpoints) {
    training_run what = {.options = {"--model", "resnet20", "--batch-size", "4", "--steps", steps, "--lr", "0.01",
                                     "--optimizer", "momentum", "--checkpoint-dir", checkpoints}};
    if (resume != NULL) what.options[12] = "--resume", what.options[13] = resume;
    what.data = folder;
    double losses[TRAINING_LOSSES];
    int count;
    const char *failure = training_losses(RANKS_PROCESSES, nranks, &what, losses, &count);
    cr_assert_null(failure, "%s", failure);
}

/* Includes moving values: compares the last checkpoints byte for byte. */
Test(resnet, a_resumed_run_writes_the_checkpoint_of_one_that_never_stopped, .timeout = 60) {
    char whole[FILES_PATH_BYTES], parts[FILES_PATH_BYTES], name[] = "step-00000005.safetensors";
    char of_whole[FILES_PATH_BYTES], of_parts[FILES_PATH_BYTES];
    files_write_mnist(folder, 60, 9);
    files_join(folder, "whole", whole), files_join(folder, "parts", parts);
    files_join(whole, name, of_whole), files_join(parts, name, of_parts);
    train(2, "5", NULL, whole);
    train(2, "3", NULL, parts);
    train(2, "5", parts, parts);
    size_t a, b;
    uint8_t *first = files_read(of_whole, &a), *second = files_read(of_parts, &b);
    cr_assert(first != NULL && second != NULL);
    cr_assert(a == b && memcmp(first, second, a) == 0, "the checkpoints differ");
    free(first), free(second);
}
