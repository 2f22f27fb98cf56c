/*
 * Automatic parallelism between two hosts with a slow link: LeNet's first dense layer has nearly all of its
 * parameters, so data parallelism mainly sends its gradient. auto_parallel sends the layer's activations instead,
 * because it either divides the layer or lets both ranks compute it as a whole, and is faster, as it predicts.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/auto/measured.h"
#include "tests/support/hosts/hosts.h"
#include "tests/support/training/files.h"
#include "tests/support/training/training_run.h"

typedef struct comparison {
    char folder[FILES_PATH_BYTES];
    const char *model, *batch_size;
    bool divides; /* dense1 by outputs or inputs; else it may be whole, too */
} comparison;

/* A step's time by one mode, predicted and measured, and the strategy of dense1. */
static tutti_status time_mode(ranks_context *context, const char *mode, double *predicted_out, double *measured_out,
                              uint8_t *dense1_out) {
    const comparison *c = context->argument;
    training_run run = {.options = {"--model", c->model, "--batch-size", c->batch_size, "--parallel-mode", mode},
                        .data = c->folder};
    tutti_arguments arguments;
    tutti_trainer train = {.rank = 0};
    tutti_measured measured = {.step_us = 0};
    files_join(c->folder, "metrics", run.metrics);
    TUTTI_TRY(training_open(&run, context->comm, &arguments, &train));
    if (train.automatic == NULL) TUTTI_TRY(tutti_trainer_open_auto(&train, false));
    tutti_step_price *price = malloc(sizeof *price);
    TUTTI_TRY(tutti_auto_price(train.automatic, &train.strategy, price));
    *predicted_out = price->us;
    free(price);
    TUTTI_TRY(tutti_trainer_connect(&train));
    TUTTI_TRY(tutti_measure_steps(&train, *predicted_out, &measured));
    *measured_out = measured.step_us;
    for (int i = 0; i < train.list->count; i++)
        if (strcmp(train.list->layers[i].name, "dense1") == 0) *dense1_out = train.strategy.layers[i][0];
    free(measured.node_us);
    tutti_trainer_fini(&train);
    return TUTTI_OK;
}

static tutti_status compare(ranks_context *context) {
    double plain[2], automatic[2];
    uint8_t of_plain = 0, of_auto = 0;
    TUTTI_TRY(time_mode(context, "data_parallel", &plain[0], &plain[1], &of_plain));
    TUTTI_TRY(time_mode(context, "auto_parallel", &automatic[0], &automatic[1], &of_auto));
    RANKS_CHECK(of_plain == TUTTI_SPLIT_SAMPLES, "data_parallel divides dense1 in another way, %d", of_plain);
    RANKS_CHECK(of_auto != TUTTI_SPLIT_SAMPLES,
                "dense1 is divided by samples: predicted %.1f ms, and %.1f ms by data_parallel", automatic[0] / 1e3,
                plain[0] / 1e3);
    RANKS_CHECK(!((const comparison *)context->argument)->divides || of_auto != 0,
                "each rank computes all of dense1, in %.1f ms", automatic[0] / 1e3);
    RANKS_CHECK(plain[0] >= 1.5 * automatic[0], "predicted are %.1f ms, and %.1f ms by data_parallel",
                automatic[0] / 1e3, plain[0] / 1e3);
    RANKS_CHECK(plain[1] >= 1.5 * automatic[1], "a step takes %.1f ms, and %.1f ms by data_parallel",
                automatic[1] / 1e3, plain[1] / 1e3);
    return TUTTI_OK;
}

static void check(const char *model, const char *batch_size, bool divides) {
    comparison c = {.model = model, .batch_size = batch_size, .divides = divides};
    files_make_folder(c.folder);
    files_write_mnist(c.folder, 2048, 20);
    const char *failure = hosts_run(
        &(hosts_options){
            .ranks_per_host = (const int[]){1, 1, 0}, .network = {.rate = "100mbit"}, .timeout_s = 100, .argument = &c},
        compare);
    files_remove(c.folder);
    cr_assert_null(failure, "%s: %s", model, failure);
}

/* Few samples: gradients outweigh everything else. It is faster if each rank computes all of them than if any are
 * sent. */
Test(hosts_auto, over_a_slow_link_no_gradient_of_lenets_dense_layer_is_sent, .timeout = 120) {
    HOSTS_NEED(.rate = "100mbit");
    check("lenet", "16", false);
}

/* Each rank reads all samples, and has half of the hidden units: only sums of ten outputs are sent. */
Test(hosts_auto, over_a_slow_link_the_hidden_units_of_an_mlp_are_divided, .timeout = 120) {
    HOSTS_NEED(.rate = "100mbit");
    check("mlp", "512", true);
}
