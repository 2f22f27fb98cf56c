/*
 * Training runs inside a test.
 */
#include "tests/support/training/training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "ddp/trainer/models/models.h"
#include "kernels/gemm.h"
#include "tests/support/training/training_run.h"

tutti_compute *training_compute(void) {
    tutti_compute *compute = NULL;
    (void)tutti_kernels_host.open(&(tutti_compute_options){.precision = TUTTI_PRECISION_FP32}, &compute);
    return compute;
}

/* LeNet without the layers that have kinks. */
static void fill_smooth(tutti_model_layers *list) {
    tutti_layer conv = {.kind = TUTTI_LAYER_CONV,
                        .name = "conv1",
                        .units = 8,
                        .kernel = 5,
                        .stride = 1,
                        .padding = TUTTI_PADDING_SAME,
                        .stddev = 0.1};
    tutti_models_add(list, conv);
    conv.name = "conv2", conv.units = 16, conv.stride = 2;
    tutti_models_add(list, conv);
    tutti_models_add(list, (tutti_layer){.kind = TUTTI_LAYER_DENSE, .name = "dense1", .units = 128, .stddev = 0.05});
    tutti_models_add(list, (tutti_layer){.kind = TUTTI_LAYER_DROPOUT, .name = "dropout", .rate = 0.5});
    tutti_models_add(list, (tutti_layer){.kind = TUTTI_LAYER_DENSE, .name = "dense2", .units = 10, .stddev = 0.05});
}

tutti_status training_open(const training_run *run, tutti_comm *comm, tutti_arguments *arguments,
                           tutti_trainer *train) {
    char *argv[TRAINING_OPTIONS + 8] = {"tutti-train", "--data", (char *)run->data, "--metrics", (char *)run->metrics,
                                        "--log-every", "1",      "--device",        "host"};
    int argc = 9;
    *train = (tutti_trainer){.rank = 0};
    for (int i = 0; run->options[i] != NULL; i++) argv[argc++] = (char *)run->options[i];
    TUTTI_TRY(tutti_arguments_parse(argc, argv, arguments));
    tutti_arguments_settings settings;
    tutti_model_layers smooth = {.count = 0};
    TUTTI_TRY(tutti_arguments_fill(arguments, &settings));
    settings.options.distribute = run->distribute;
    if (run->smooth) {
        fill_smooth(&smooth);
        settings.model = TUTTI_TRAIN_MODEL(.name = "smooth", .layers = smooth.layers, .nlayers = smooth.count);
    }
    TUTTI_TRY(tutti_trainer_begin(train, &settings.model, &settings.data, &settings.options));
    TUTTI_TRY(tutti_trainer_prepare(train, comm));
    TUTTI_TRY(tutti_trainer_search(train));
    return tutti_trainer_make(train);
}

static tutti_status run_rank(ranks_context *context) {
    const training_run *run = context->argument;
    if (run->own_gpus) {
        char number[16];
        snprintf(number, sizeof number, "%d", context->rank);
        setenv("TUTTI_DEVICE", number, 1);
        tutti_settings_reload();
    }
    tutti_arguments arguments;
    tutti_trainer train;
    tutti_train_result result;
    tutti_status status = training_open(run, context->comm, &arguments, &train);
    if (status == TUTTI_OK) status = tutti_trainer_run(&train, &result);
    tutti_trainer_fini(&train);
    return status;
}

const char *training_run_body(const ranks_options *options, ranks_body body, double *losses_out, int *count_out) {
    training_run *run = options->argument;
    files_join(run->data, "metrics.jsonl", run->metrics);
    tutti_gemm_use_one_thread();
    const char *failure = ranks_run(options, body);
    size_t bytes;
    char *text = (char *)files_read(run->metrics, &bytes);
    remove(run->metrics);
    *count_out = 0;
    if (failure != NULL || text == NULL) {
        free(text);
        return failure != NULL ? failure : "the run wrote no metrics";
    }
    for (char *at = text; (at = strstr(at, "\"loss\":")) != NULL && *count_out < TRAINING_LOSSES; ++*count_out)
        losses_out[*count_out] = strtod(at + strlen("\"loss\":"), &at);
    for (char *at = text; (at = strstr(at, "\"test_loss\":")) != NULL;)
        run->test_loss = strtod(at + strlen("\"test_loss\":"), &at);
    for (char *at = text; (at = strstr(at, "\"test_accuracy\":")) != NULL;)
        run->test_accuracy = strtod(at + strlen("\"test_accuracy\":"), &at);
    free(text);
    return NULL;
}

const char *training_losses(ranks_kind kind, int nranks, training_run *run, double *losses_out, int *count_out) {
    ranks_options options = {.kind = kind, .nranks = nranks, .timeout_s = run->timeout_s, .argument = run};
    return training_run_body(&options, run_rank, losses_out, count_out);
}
