/*
 * Training runs inside a test.
 */
#include "tests/support/training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "ddp/trainer/train.h"
#include "kernels/gemm.h"

tutti_compute *training_compute(void) {
    tutti_compute *compute = NULL;
    (void)tutti_kernels_host.open(&(tutti_compute_options){.precision = TUTTI_PRECISION_FP32}, &compute);
    return compute;
}

static tutti_status run_rank(ranks_context *context) {
    const training_run *run = context->argument;
    char *argv[TRAINING_OPTIONS + 8] = {"tutti-train", "--data", (char *)run->data, "--metrics", (char *)run->metrics,
                                        "--log-every", "1",      "--device",        "host"};
    int argc = 9;
    for (int i = 0; run->options[i] != NULL; i++) argv[argc++] = (char *)run->options[i];
    if (run->own_gpus) {
        char number[16];
        snprintf(number, sizeof number, "%d", context->rank);
        setenv("TUTTI_DEVICE", number, 1);
        tutti_settings_reload();
    }
    tutti_arguments arguments;
    tutti_train train;
    double accuracy = 0;
    TUTTI_TRY(tutti_arguments_parse(argc, argv, &arguments));
    tutti_status status = tutti_train_open(&train, &arguments, context->comm);
    if (status == TUTTI_OK) status = tutti_train_run(&train, &accuracy);
    tutti_train_close(&train);
    return status;
}

const char *training_losses(ranks_kind kind, int nranks, training_run *run, double *losses_out, int *count_out) {
    files_join(run->data, "metrics.jsonl", run->metrics);
    tutti_gemm_use_one_thread();
    ranks_options options = {.kind = kind, .nranks = nranks, .argument = run};
    const char *failure = ranks_run(&options, run_rank);
    size_t bytes;
    char *text = (char *)files_read(run->metrics, &bytes);
    remove(run->metrics);
    *count_out = 0;
    if (failure != NULL || text == NULL) {
        free(text);
        return failure != NULL ? failure : "no metrics were written";
    }
    for (char *at = text; (at = strstr(at, "\"loss\":")) != NULL && *count_out < TRAINING_LOSSES; ++*count_out)
        losses_out[*count_out] = strtod(at + strlen("\"loss\":"), &at);
    free(text);
    return NULL;
}
