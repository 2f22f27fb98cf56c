/*
 * tutti-train --parallel-mode auto_parallel: the chosen strategy trains like any other, respects a memory limit, and
 * is the same on all ranks; measured times are kept in a file.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/training/files.h"
#include "tests/support/training/training_folder.h"
#include "tests/support/training/training_run.h"

TestSuite(train_auto, .init = training_folder_make, .fini = training_folder_remove);

/* ---------------------------------------------------------------------------------------------- losses */

/* Losses equal those of one rank except for rounding, and those of the same strategy from a file bit for bit. */
static void check_losses(const char *model, int nranks, int steps) {
    char path[FILES_PATH_BYTES], number[16];
    double whole[TRAINING_LOSSES], found[TRAINING_LOSSES], again[TRAINING_LOSSES];
    files_join(training_folder, "strategy", path);
    snprintf(number, sizeof number, "%d", steps);
    training_run alone = {
        .options = {"--model", model, "--view", "consistent", "--batch-size", "16", "--lr", "0.01", "--steps", number}};
    training_run automatic = alone, file = alone;
    const char *of_auto[] = {"--parallel-mode", "AUTO_PARALLEL", "--save-strategy", path};
    memcpy(&automatic.options[10], of_auto, sizeof of_auto);
    cr_assert_eq(training_folder_losses(1, &alone, whole), steps);
    cr_assert_eq(training_folder_losses(nranks, &automatic, found), steps);
    for (int i = 0; i < steps; i++)
        cr_assert(fabs(found[i] - whole[i]) <= 1e-6 * fabs(whole[i]), "%s on %d ranks, step %d: %.10f and %.10f", model,
                  nranks, i + 1, found[i], whole[i]);
    const char *of_file[] = {"--strategy", path};
    memcpy(&file.options[10], of_file, sizeof of_file);
    cr_assert_eq(training_folder_losses(nranks, &file, again), steps);
    cr_assert_arr_eq(found, again, (size_t)steps * sizeof *found);
}

Test(train_auto, trains_as_one_rank_does_and_as_its_strategy_from_a_file, .timeout = 200) {
    check_losses("mlp", 2, 8);
    check_losses("mlp", 4, 8);
    check_losses("lenet", 2, 3);
}

/* ---------------------------------------------------------------------------------------------- choosing */

typedef struct question {
    training_run run;
    const char *expected; /* text in the error; NULL: no error is expected */
    double least, most;   /* bytes that the strategy may take */
    int measured;         /* pieces that are measured: at least 1, or 0 */
    double crowding;      /* 0: any */
} question;

static tutti_status ask(ranks_context *context) {
    const question *q = context->argument;
    tutti_arguments arguments;
    tutti_trainer train = {.rank = 0};
    const tutti_status status = training_open(&q->run, context->comm, &arguments, &train);
    double bytes = 0;
    if (q->expected != NULL) {
        RANKS_CHECK(status != TUTTI_OK && strstr(tutti_last_error(), q->expected) != NULL,
                    "expected \"%s\", not \"%s\"", q->expected, status == TUTTI_OK ? "success" : tutti_last_error());
        tutti_trainer_fini(&train);
        return TUTTI_OK;
    }
    TUTTI_TRY(status);
    TUTTI_TRY(tutti_auto_bytes(train.automatic, &train.strategy, &bytes));
    RANKS_CHECK(bytes >= q->least && bytes <= q->most, "the strategy takes %.0f bytes, expected are %.0f to %.0f",
                bytes, q->least, q->most);
    const int measured = train.automatic->pieces.measured;
    RANKS_CHECK((measured > 0) == (q->measured > 0), "%d pieces were measured", measured);
    RANKS_CHECK(train.automatic->setup.sample_us > 0, "the time to make a sample of a batch is 0");
    const double crowding = train.automatic->pieces.crowding;
    RANKS_CHECK(q->crowding == 0 || crowding == q->crowding, "%g ranks of a core", crowding);
    for (int i = 0; i < train.automatic->pieces.count; i++) {
        const tutti_piece_entry *entry = &train.automatic->pieces.entries[i];
        RANKS_CHECK(entry->measured != i || (entry->times.forward_us > 0 && entry->times.forward_us < 1e9),
                    "piece %d of kind %d takes %g us", i, (int)entry->piece.kind, entry->times.forward_us);
    }
    uint64_t sum = 0, most;
    const unsigned char *plan = (const unsigned char *)&train.strategy;
    for (size_t i = 0; i < sizeof train.strategy; i++) sum = sum * 31 + plan[i];
    sum >>= 1;
    TUTTI_TRY(tutti_all_reduce(context->comm, &sum, &most, 1, TUTTI_UINT64, TUTTI_MAX, NULL));
    RANKS_CHECK(sum == most, "the ranks have different strategies");
    tutti_trainer_fini(&train);
    return TUTTI_OK;
}

static void check(int nranks, question *q, const char *const *environment) {
    q->run.data = training_folder;
    files_join(training_folder, "metrics", q->run.metrics);
    const char *failure = ranks_run(
        &(ranks_options){.kind = RANKS_PROCESSES, .nranks = nranks, .argument = q, .environment = environment}, ask);
    cr_assert_null(failure, "%s", failure);
}

#define AUTO "--model", "lenet", "--batch-size", "8", "--parallel-mode", "auto_parallel"

/* LeNet's parameters, gradients and velocity are 20 MB on each rank if nothing is divided; divided by two ranks, half
 * of that and some activations. */
Test(train_auto, respects_a_memory_limit_or_reports_the_least_possible, .timeout = 200) {
    question any = {.run = {.options = {AUTO}}, .least = 1e6, .most = 40e6, .measured = 1};
    question tight = {.run = {.options = {AUTO, "--memory-limit", "14MB"}}, .least = 1e6, .most = 14e6, .measured = 1};
    question lacking = {.run = {.options = {AUTO, "--memory-limit", "2 MiB"}},
                        .expected = "--memory-limit 2097152: no strategy fits it; the smallest found needs 1"};
    question wrong = {.run = {.options = {AUTO, "--memory-limit", "much"}},
                      .expected = "--memory-limit much: expected a size"};
    question other = {.run = {.options = {"--model", "lenet", "--memory-limit", "2GiB"}},
                      .expected = "only --parallel-mode auto_parallel uses it"};
    check(2, &any, NULL);
    check(2, &tight, NULL);
    check(2, &lacking, NULL);
    check(1, &wrong, NULL);
    check(1, &other, NULL);
}

/* Frozen layers keep neither gradient nor velocity: dense1 has 6.4 of LeNet's 6.7 MB of parameters, and nothing is
 * trained before it, so that it does not run backwards, either. */
Test(train_auto, prices_frozen_layers_and_the_expanded_loss, .timeout = 200) {
    question frozen = {.run = {.options = {AUTO, "--freeze", "conv", "--freeze", "dense1"}},
                       .least = 1e6,
                       .most = 12e6,
                       .measured = 1};
    question expanded = {.run = {.options = {AUTO, "--loss", "softmax_cross_entropy_expand"}},
                         .least = 1e6,
                         .most = 40e6,
                         .measured = 1};
    check(2, &frozen, NULL);
    check(2, &expanded, NULL);
}

/* One rank measures for three. */
Test(train_auto, ranks_that_share_a_core_have_the_times_of_one, .timeout = 200) {
    static const char *const crowded[] = {"TUTTI_CPUS=1", NULL};
    question q = {.run = {.options = {AUTO}}, .least = 1e6, .most = 40e6, .measured = 1, .crowding = 3};
    check(3, &q, crowded);
}

/* ------------------------------------------------------------------------------------------- the file */

static void write_speeds(const char *content) {
    files_write(training_folder, "speeds", false, content, strlen(content));
}

Test(train_auto, a_second_start_measures_nothing, .timeout = 200) {
    char path[FILES_PATH_BYTES], setting[FILES_PATH_BYTES + 32];
    files_join(training_folder, "speeds", path);
    snprintf(setting, sizeof setting, "TUTTI_SPEED_FILE=%s", path);
    const char *environment[] = {setting, NULL};
    question first = {.run = {.options = {AUTO}}, .least = 1, .most = 1e9, .measured = 1};
    question second = first;
    second.measured = 0;
    check(2, &first, environment);
    check(2, &second, environment);
}

Test(train_auto, a_damaged_or_foreign_file_of_times_is_an_error_that_names_it, .timeout = 200) {
    char path[FILES_PATH_BYTES], setting[FILES_PATH_BYTES + 32];
    files_join(training_folder, "speeds", path);
    snprintf(setting, sizeof setting, "TUTTI_SPEED_FILE=%s", path);
    const char *environment[] = {setting, NULL};
    static const struct {
        const char *content, *expected;
    } cases[] = {
        {"latency_us 3\n", "speeds, line 1: expected \"tutti speeds 1\""},
        {"tutti speeds 1\nconv", "speeds, line 2: the line is truncated"},
        {"tutti speeds 1\nmachine a toaster\n", "was measured elsewhere (a toaster), and this is "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        question q = {.run = {.options = {AUTO}}, .expected = cases[i].expected};
        write_speeds(cases[i].content);
        check(2, &q, environment);
    }
}

/* --------------------------------------------------------------------------------------------- failures */

/* Rank 1 has other options than the other ranks. */
static tutti_status differ(ranks_context *context) {
    tutti_trainer *trainer;
    const tutti_train_model model = TUTTI_TRAIN_MODEL(.name = "lenet");
    const tutti_train_options options =
        TUTTI_TRAIN_OPTIONS(.batch_size = 8, .parallel_mode = context->rank == 1 ? "data_parallel" : "auto_parallel",
                            .device = "host");
    const tutti_train_data data = TUTTI_TRAIN_DATA(.dataset = "mnist", .folder = context->argument);
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_train_open(context->comm, &model, &data, &options, &trainer));
    RANKS_CHECK(strstr(tutti_last_error(), "only some ranks were started with --parallel-mode auto_parallel") != NULL,
                "%s", tutti_last_error());
    return TUTTI_OK;
}

Test(train_auto, ranks_with_other_modes_are_an_error_on_all, .timeout = 60) {
    const char *failure = ranks_run(
        &(ranks_options){.kind = RANKS_PROCESSES, .nranks = 3, .argument = training_folder, .timeout_s = 20}, differ);
    cr_assert_null(failure, "%s", failure);
}

/* Rank 1 does not find its data: all ranks get its error before any of them measures. */
static tutti_status fail_before(ranks_context *context) {
    tutti_trainer *trainer;
    const tutti_train_model model = TUTTI_TRAIN_MODEL(.name = "lenet");
    const tutti_train_options options =
        TUTTI_TRAIN_OPTIONS(.batch_size = 8, .parallel_mode = "auto_parallel", .device = "host");
    const tutti_train_data data =
        TUTTI_TRAIN_DATA(.dataset = "mnist", .folder = context->rank == 1 ? "/no/such/folder" : context->argument);
    const tutti_status status = tutti_train_open(context->comm, &model, &data, &options, &trainer);
    RANKS_CHECK(status != TUTTI_OK && strstr(tutti_last_error(), "/no/such/folder") != NULL,
                "rank %d's error does not mention rank 1's failure: %s", context->rank,
                status == TUTTI_OK ? "success" : tutti_last_error());
    return TUTTI_OK;
}

Test(train_auto, a_rank_that_fails_before_the_search_ends_the_others, .timeout = 60) {
    const char *failure =
        ranks_run(&(ranks_options){.kind = RANKS_PROCESSES, .nranks = 3, .argument = training_folder, .timeout_s = 20},
                  fail_before);
    cr_assert_null(failure, "%s", failure);
}
