/*
 * Options of tutti-train for how ranks train together: ZeRO-1, frozen parameters, initial values and the reduction of
 * gradients.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/check_parameters.h"
#include "tests/support/training/training_folder.h"
#include "tests/support/training/training_run.h"

TestSuite(train_options, .init = training_folder_make, .fini = training_folder_remove, .timeout = 100);

/* The options' words, split by blanks, become those of a run. Modifies `words`. */
static training_run make_run(char *words) {
    training_run run = {.data = training_folder};
    int count = 0;
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) run.options[count++] = word;
    return run;
}

static int losses_of(int nranks, const char *options, double *losses_out) {
    char words[512];
    int count;
    snprintf(words, sizeof words, "%s", options);
    training_run run = make_run(words);
    const char *failure = training_losses(RANKS_PROCESSES, nranks, &run, losses_out, &count);
    cr_assert_null(failure, "%s, %d ranks: %s", options, nranks, failure);
    return count;
}

static void expect_refusal(int nranks, const char *options, const char *said) {
    char words[512];
    double losses[TRAINING_LOSSES];
    int count;
    snprintf(words, sizeof words, "%s", options);
    training_run run = make_run(words);
    const char *failure = training_losses(RANKS_PROCESSES, nranks, &run, losses, &count);
    cr_assert(failure != NULL && strstr(failure, said) != NULL, "\"%s\" lacks \"%s\"", failure, said);
}

static void with(const char *options, const char *more, char text[1024]) {
    snprintf(text, 1024, "%s %s", options, more);
}

/* ------------------------------------------------------------------------------------------------ ZeRO */

/* Sums of reduce_scatter have the same order as those of all_reduce, and the same code updates each element. */
static void expect_equal_bits(int nranks, const char *options) {
    double plain[TRAINING_LOSSES], zero[TRAINING_LOSSES];
    char text[1024];
    with(options, "--zero 1", text);
    const int count = losses_of(nranks, options, plain);
    cr_assert_eq(losses_of(nranks, text, zero), count);
    cr_assert(count > 3 && plain[count - 1] != plain[0]);
    for (int i = 0; i < count; i++)
        cr_assert_eq(plain[i], zero[i], "%s, %d ranks, step %d: %.10f and %.10f", options, nranks, i + 1, plain[i],
                     zero[i]);
}

Test(train_options, zero_gives_the_bits_of_whole_optimizers_with_any_number_of_ranks) {
    for (int nranks = 1; nranks <= 4; nranks++)
        expect_equal_bits(nranks, "--model lenet --batch-size 5 --steps 4 --optimizer adam");
}

Test(train_options, zero_gives_the_bits_of_whole_optimizers_with_each_optimizer) {
    static const char *const optimizers[] = {
        "sgd --weight-decay 0.01", "sgd --momentum 0.5 --nesterov", "momentum --weight-decay 0.01 --no-decay-norm-bias",
        "adam --weight-decay 0.01", "adamw --weight-decay 0.01 --no-decay-norm-bias"};
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        char text[1024];
        with("--model mlp --batch-size 5 --steps 8 --view consistent --lr 0.01 --optimizer", optimizers[i], text);
        expect_equal_bits(3, text);
    }
}

Test(train_options, zero_gives_the_bits_of_whole_optimizers_in_each_mode) {
    const char *mlp = "--model mlp --batch-size 13 --steps 8 --lr 0.01 --optimizer momentum";
    char text[1024], path[FILES_PATH_BYTES], strategy[FILES_PATH_BYTES + 64];
    with(mlp, "--parallel-mode layerwise_parallel", text);
    expect_equal_bits(2, text);
    with(mlp, "--parallel-mode hybrid_parallel --mesh 2x2 --view consistent", text);
    expect_equal_bits(4, text);
    static const char lines[] = "dense1 samples,none\ndense2 none,samples\n";
    files_write(training_folder, "strategy", false, lines, strlen(lines));
    files_join(training_folder, "strategy", path);
    snprintf(strategy, sizeof strategy, "--mesh 2x2 --strategy %s", path);
    with(mlp, strategy, text);
    expect_equal_bits(4, text);
}

/* Bytes of this rank's optimizer state. */
static tutti_status measure_state(ranks_context *context) {
    const training_run *run = context->argument;
    tutti_arguments arguments;
    tutti_trainer train;
    TUTTI_TRY(training_open(run, context->comm, &arguments, &train));
    const size_t states = (size_t)train.update.row->nstates, whole = states * 1663370 * sizeof(float);
    const size_t bytes = states * train.update.count * sizeof(float);
    const size_t expected = arguments.zero == 1 ? whole / (size_t)context->nranks : whole;
    fprintf(stderr, "zero %d, rank %d of %d: %zu bytes of optimizer state, of %zu\n", (int)arguments.zero,
            context->rank, context->nranks, bytes, whole);
    tutti_trainer_fini(&train);
    RANKS_CHECK(bytes + 8192 > expected && bytes < expected + 8192, "%zu bytes, expected about %zu", bytes, expected);
    return TUTTI_OK;
}

Test(train_options, with_zero_the_state_of_the_optimizer_is_divided_by_the_ranks) {
    for (int nranks = 1; nranks <= 4; nranks++)
        for (int zero = 0; zero <= 1; zero++) {
            training_run run = {
                .options = {"--model", "lenet", "--optimizer", "adam", "--batch-size", "5", "--zero", zero ? "1" : "0"},
                .data = training_folder};
            ranks_options options = {.kind = RANKS_PROCESSES, .nranks = nranks, .argument = &run};
            files_join(training_folder, "metrics.jsonl", run.metrics);
            const char *failure = ranks_run(&options, measure_state);
            cr_assert_null(failure, "%s", failure);
        }
}

/* ---------------------------------------------------------------------------------------------- freeze */

static double digest_of(const tutti_parameter *parameter) {
    double sum = 0;
    for (size_t k = 0; k < parameter->count; k++) sum += (double)parameter->data[k] * (double)(k % 1009 + 1);
    return sum;
}

/* Results of a run of one rank: parameters before and after some steps, and whether backward writes to a node's
 * gradient. */
static tutti_status train_frozen(ranks_context *context) {
    const training_run *run = context->argument;
    tutti_arguments arguments;
    tutti_trainer train;
    tutti_train_result result;
    double first[16];
    TUTTI_TRY(training_open(run, context->comm, &arguments, &train));
    const tutti_model *model = train.model;
    for (int i = 0; i < model->nparameters; i++) first[i] = digest_of(&model->parameters[i]);
    size_t trained = 0;
    for (int i = 0; i < model->nparameters; i++)
        trained += model->parameters[i].frozen ? 0 : model->parameters[i].count;
    RANKS_CHECK(train.update.count < trained + 64, "a state of %zu elements for %zu", train.update.count, trained);
    TUTTI_TRY(tutti_trainer_run(&train, &result));
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        const bool same = digest_of(parameter) == first[i];
        const bool expected = strncmp(parameter->name, "conv", 4) == 0 || strcmp(parameter->name, "dense1.bias") == 0;
        RANKS_CHECK(parameter->frozen == expected && same == expected, "%s: frozen %d, unchanged %d", parameter->name,
                    parameter->frozen, same);
    }
    /* Both convolutions and the pools: nothing before dense1 has a gradient. */
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        const bool wants = strncmp(node->layer->name, "conv", 4) != 0 && strncmp(node->layer->name, "pool", 4) != 0;
        RANKS_CHECK(node->wants_gradient == wants && (node->dy != NULL) == wants, "layer %s: gradient %d",
                    node->layer->name, node->wants_gradient);
    }
    tutti_trainer_fini(&train);
    return TUTTI_OK;
}

Test(train_options, frozen_parameters_stay_and_backward_ends_before_them) {
    for (int nranks = 1; nranks <= 3; nranks += 2)
        for (int zero = 0; zero <= 1; zero++) {
            training_run run = {.options = {"--model", "lenet", "--freeze", "conv", "--freeze", "dense1.b",
                                            "--batch-size", "5", "--steps", "3", "--momentum", "0.9", "--zero",
                                            zero ? "1" : "0"},
                                .data = training_folder};
            ranks_options options = {.kind = RANKS_PROCESSES, .nranks = nranks, .argument = &run};
            double losses[TRAINING_LOSSES];
            int count;
            const char *failure = training_run_body(&options, train_frozen, losses, &count);
            cr_assert_null(failure, "%s", failure);
        }
}

/* The gradient of trained parameters does not depend on frozen ones: the first update is the same. */
Test(train_options, a_layer_frozen_behind_trained_ones_passes_their_gradient_on) {
    double whole[TRAINING_LOSSES], cut[TRAINING_LOSSES];
    const char *options = "--model mlp --view consistent --batch-size 12 --steps 8 --lr 0.01 --freeze dense2";
    char text[1024];
    const int count = losses_of(1, options, whole);
    cr_assert(whole[count - 1] < whole[0]);
    with(options, "--parallel-mode layerwise_parallel", text);
    losses_of(2, text, cut);
    for (int i = 0; i < count; i++) cr_assert_float_eq(whole[i], cut[i], 1e-6 * whole[i]);
    losses_of(1, "--model mlp --view consistent --batch-size 12 --steps 8 --lr 0.01", cut);
    cr_assert(cut[0] == whole[0] && cut[1] != whole[1]);
}

Test(train_options, a_prefix_that_matches_nothing_or_all_is_refused) {
    expect_refusal(2, "--model mlp --freeze dens1", "--freeze dens1: no parameter's name begins with that");
    expect_refusal(2, "--model mlp --freeze dense", "all parameters are frozen");
    expect_refusal(1, "--model resnet20 --freeze conv1.bias", "no parameter's name begins with that");
}

/* ------------------------------------------------------------------------------- means, sums, beginnings */

Test(train_options, sums_at_a_rate_are_means_at_as_many_times_the_rate) {
    double sums[TRAINING_LOSSES], means[TRAINING_LOSSES];
    const int count = losses_of(2, "--model mlp --batch-size 5 --steps 8 --mirror-mean no --lr 0.0078125", sums);
    losses_of(2, "--model mlp --batch-size 5 --steps 8 --lr 0.015625", means);
    for (int i = 0; i < count; i++)
        cr_assert_eq(sums[i], means[i], "step %d: %.10f and %.10f", i + 1, sums[i], means[i]);
    losses_of(2, "--model mlp --batch-size 5 --steps 8 --lr 0.0078125", means);
    cr_assert(means[1] != sums[1]);
    expect_refusal(2, "--model mlp --batch-size 5 --view consistent --mirror-mean no", "--mirror-mean no: it is for");
}

/* Each rank has its own seed, if options permit it. */
static tutti_status train_by_own_seed(ranks_context *context) {
    training_run run = *(const training_run *)context->argument;
    char seed[16];
    int at = 0;
    while (run.options[at] != NULL) at++;
    snprintf(seed, sizeof seed, "%d", 1 + (context->rank == 2));
    run.options[at++] = "--seed", run.options[at] = seed;
    tutti_arguments arguments;
    tutti_trainer train;
    TUTTI_TRY(training_open(&run, context->comm, &arguments, &train));
    tutti_train_result result;
    tutti_status status = tutti_trainer_run(&train, &result);
    tutti_trainer_fini(&train);
    return status;
}

static const char *run_by_own_seed(char *options, int *count_out) {
    static double losses[TRAINING_LOSSES];
    training_run run = make_run(options);
    ranks_options ranks = {.kind = RANKS_PROCESSES, .nranks = 3, .argument = &run};
    return training_run_body(&ranks, train_by_own_seed, losses, count_out);
}

Test(train_options, a_check_of_parameters_names_the_rank_that_began_with_others) {
    int count;
    char with_broadcast[] = "--model mlp --batch-size 4 --steps 6 --check-parameters 2";
    char without[] = "--model mlp --batch-size 4 --steps 6 --check-parameters 2 --parameter-broadcast no";
    char unchecked[] = "--model mlp --batch-size 4 --steps 6 --parameter-broadcast no";
    const char *failure = run_by_own_seed(with_broadcast, &count);
    cr_assert_null(failure, "%s", failure);
    failure = run_by_own_seed(without, &count);
    cr_assert(failure != NULL &&
                  strstr(failure, "after step 2 parameter dense1.weight of rank 2 differs from that of rank 0") != NULL,
              "%s", failure);
    failure = run_by_own_seed(unchecked, &count);
    cr_assert_null(failure, "%s", failure);
}

/* Flips a bit of one copy, in a mesh whose ranks hold copies along one axis only. */
static tutti_status check_damaged(ranks_context *context) {
    tutti_arguments arguments;
    tutti_trainer train;
    tutti_train_result result;
    TUTTI_TRY(training_open(context->argument, context->comm, &arguments, &train));
    TUTTI_TRY(tutti_trainer_run(&train, &result));
    TUTTI_TRY(tutti_check_parameters(train.model, train.comm, 7));
    if (context->rank == 3) train.model->parameters[1].data[0] += 1;
    const tutti_status status = tutti_check_parameters(train.model, train.comm, 7);
    char text[1024];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    tutti_trainer_fini(&train);
    const char *said =
        context->rank % 2 == 1 ? "parameter dense1.bias of rank 3 differs from that of rank 1" : "see their errors";
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH && strstr(text, said) != NULL, "rank %d: %s", context->rank, text);
    return TUTTI_OK;
}

Test(train_options, a_check_of_parameters_compares_the_ranks_of_a_mesh_that_hold_copies) {
    char options[] = "--model mlp --batch-size 4 --steps 2 --parallel-mode layerwise_parallel --mesh 2x2";
    training_run run = make_run(options);
    ranks_options ranks = {.kind = RANKS_PROCESSES, .nranks = 4, .argument = &run};
    double losses[TRAINING_LOSSES];
    int count;
    const char *failure = training_run_body(&ranks, check_damaged, losses, &count);
    cr_assert_null(failure, "%s", failure);
}

/* --------------------------------------------------------------------------------------------- no effect */

Test(train_options, options_without_an_effect_are_refused_with_their_purpose) {
    static const char *const wrong[][2] = {
        {"--blob img_raw:28,28,1:float32", "--blob: it is for --dataset ofrecord, and would be ignored here"},
        {"--data-part-num 1", "--data-part-num: it is for --dataset ofrecord"},
        {"--test-part-num 1", "--test-part-num: it is for --dataset ofrecord"},
        {"--part-prefix part-", "--part-prefix: it is for --dataset ofrecord"},
        {"--part-suffix-length 5", "--part-suffix-length: it is for --dataset ofrecord"},
        {"--classes 3", "--classes: it is for --dataset ofrecord"},
        {"--no-augment", "--no-augment: it is for --dataset cifar10 and cifar100"},
        {"--no-shuffle --shuffle-buffer 10", "--shuffle-buffer: it is for training without --no-shuffle"},
        {"--model lenet --hidden 64", "--hidden: it is for --model mlp"},
        {"--model resnet20 --dropout 0.5", "--dropout: it is for --model lenet and mlp"},
        {"--optimizer adam --momentum 0.5", "--momentum: it is for --optimizer sgd and momentum"},
        {"--lr-factor 0.1", "--lr-factor: it is for --lr-schedule step"},
        {"--eager", "--eager: it is for training on a GPU"},
        {"--overwrite", "--overwrite: it is for --checkpoint-dir"},
        {"--parallel-mode stand_alone --zero 1", "--zero: it is for modes in which ranks train together"},
        {"--parallel-mode stand_alone --check-parameters 2", "--check-parameters: it is for modes in which"},
        {"--parallel-mode stand_alone --mirror-mean no", "--mirror-mean no: it is for modes in which"},
        {"--parallel-mode stand_alone --parameter-broadcast no", "--parameter-broadcast no: it is for modes in which"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[1024];
        with("--batch-size 5 --steps 1", wrong[i][0], text);
        expect_refusal(2, text, wrong[i][1]);
    }
}

Test(train_options, the_same_options_are_accepted_where_they_have_an_effect) {
    static const char *const right[] = {"--model mlp --hidden 64 --dropout 0.5 --momentum 0.5 --shuffle-buffer 10",
                                        "--model lenet --dropout 0 --no-shuffle --zero 1 --check-parameters 2",
                                        "--model mlp --lr-schedule step --lr-factor 0.5 --optimizer adam --momentum 0"};
    double losses[TRAINING_LOSSES];
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        char text[1024];
        with(right[i], "--batch-size 5 --steps 2", text);
        cr_assert_eq(losses_of(2, text, losses), 2);
    }
}
