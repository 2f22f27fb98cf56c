/*
 * Views and parallel modes of the trainer: losses are those of one rank with the whole batch, however the work is
 * divided.
 *
 * Tolerances: an MLP's losses differ by rounding only. LeNet's do for the first steps; then a max-pool whose two
 * largest values differ by a rounding may send a gradient elsewhere (support/training.h), and losses drift by up to
 * some thousandths.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "tests/support/training/files.h"
#include "tests/support/training/training_folder.h"
#include "tests/support/training/training_run.h"

TestSuite(train_modes, .init = training_folder_make, .fini = training_folder_remove);

static void expect_near(int count, const double *whole, const double *cut, int exact, const char *what) {
    for (int i = 0; i < count; i++) {
        const double most = i < exact ? 1e-6 : 1e-2;
        cr_assert(fabs(whole[i] - cut[i]) <= most * fabs(whole[i]), "%s, step %d: %.10f and %.10f", what, i + 1,
                  whole[i], cut[i]);
    }
}

/* ----------------------------------------------------------------------------------------------- views */

static void check_view(const char *model, const char *batch_size, const char *steps, int count, int exact) {
    training_run what = {.options = {"--model", model, "--view", "consistent", "--batch-size", batch_size, "--steps",
                                     steps, "--lr", "0.01"}};
    double whole[TRAINING_LOSSES], cut[TRAINING_LOSSES];
    cr_assert_eq(training_folder_losses(1, &what, whole), count);
    cr_assert(whole[count - 1] < whole[0]);
    for (int nranks = 2; nranks <= 4; nranks++) {
        char text[64];
        snprintf(text, sizeof text, "%s on %d ranks", model, nranks);
        cr_assert_eq(training_folder_losses(nranks, &what, cut), count);
        expect_near(count, whole, cut, exact, text);
    }
}

/* 17 samples: parts differ by one for any number of ranks; 12 are divided evenly by each number. */
Test(train_modes, with_the_consistent_view_losses_do_not_depend_on_the_number_of_ranks, .timeout = 100) {
    check_view("mlp", "17", "60", 60, 60);
    check_view("lenet", "12", "20", 20, 3);
}

Test(train_modes, a_batch_smaller_than_the_ranks_is_an_error, .timeout = 100) {
    training_run what = {.options = {"--model", "mlp", "--view", "consistent", "--batch-size", "2", "--steps", "1"},
                         .data = training_folder};
    double losses[TRAINING_LOSSES];
    int count;
    const char *failure = training_losses(RANKS_PROCESSES, 3, &what, losses, &count);
    cr_assert(failure != NULL && strstr(failure, "--batch-size 2: with --view consistent") != NULL, "%s", failure);
}

/* ----------------------------------------------------------------------------------------------- modes */

/* A run of the trainer: its model and steps, then its division. The batch is that of all ranks. */
typedef struct division {
    const char *model;
    int nranks;
    const char *mode, *mesh, *strategy; /* NULL: not given; strategy: the content of a file */
} division;

enum { MLP_STEPS = 12, LENET_STEPS = 3 };

static void write_strategy(const char *content, char *path_out) {
    files_join(training_folder, "strategy", path_out);
    files_write(training_folder, "strategy", false, content, strlen(content));
}

/* Options of `what` from index `at` on. */
static void add_division(const division *by, training_run *what, int at, char *path) {
    if (by->mode != NULL) what->options[at++] = "--parallel-mode", what->options[at++] = by->mode;
    if (by->mesh != NULL) what->options[at++] = "--mesh", what->options[at++] = by->mesh;
    if (by->strategy == NULL) return;
    write_strategy(by->strategy, path);
    what->options[at++] = "--strategy", what->options[at++] = path;
}

static int losses_by(const division *by, const char *steps, double *losses_out) {
    char path[FILES_PATH_BYTES];
    training_run what = {.options = {"--model", by->model, "--view", "consistent", "--batch-size", "13", "--lr", "0.01",
                                     "--optimizer", "momentum", "--steps", steps}};
    add_division(by, &what, 12, path);
    return training_folder_losses(by->nranks, &what, losses_out);
}

/* 13 samples: not divisible by 2, 3 or 4. Includes LeNet's dropout. */
static void check_divisions(const division *all, int count, const char *steps, int nsteps) {
    double whole[TRAINING_LOSSES], cut[TRAINING_LOSSES];
    const division alone = {.model = all[0].model, .nranks = 1};
    cr_assert_eq(losses_by(&alone, steps, whole), nsteps);
    for (int i = 0; i < count; i++) {
        char text[256];
        snprintf(text, sizeof text, "%s on %d ranks, mode %s, mesh %s, strategy %s", all[i].model, all[i].nranks,
                 all[i].mode, all[i].mesh, all[i].strategy);
        cr_assert_eq(losses_by(&all[i], steps, cut), nsteps, "%s", text);
        expect_near(nsteps, whole, cut, nsteps, text);
    }
}

Test(train_modes, every_division_of_an_mlp_gives_the_losses_of_one_rank, .timeout = 100) {
    static const division all[] = {
        {"mlp", 2, "layerwise_parallel", NULL, NULL},
        {"mlp", 3, "HYBRID_PARALLEL", NULL, NULL},
        {"mlp", 2, NULL, "2", "dense1 inputs\ndense2 inputs\n"},
        {"mlp", 3, NULL, "3", "dense1 inputs # then by samples\n"},
        {"mlp", 4, NULL, "2x2", "dense1 inputs,outputs\ndense2 outputs,none\n"},
        {"mlp", 4, NULL, "2x2", "dense1 outputs,outputs\n\ndense2 none,inputs\n"},
    };
    check_divisions(all, sizeof all / sizeof *all, "12", MLP_STEPS);
}

Test(train_modes, every_division_of_lenet_gives_the_losses_of_one_rank, .timeout = 100) {
    static const division all[] = {
        {"lenet", 4, "hybrid_parallel", NULL, NULL},
        {"lenet", 2, NULL, "2",
         "conv1 outputs\npool1 samples\nconv2 inputs\npool2 none\ndense1 inputs\ndropout outputs\n"},
        {"lenet", 4, NULL, "2x2",
         "conv1 outputs,samples\nconv2 inputs,outputs\ndense1 inputs,inputs\ndense2 none,inputs\n"},
    };
    check_divisions(all, sizeof all / sizeof *all, "3", LENET_STEPS);
}

/* Batch norm divided along outputs has all samples of its channels, as with one rank; along samples only those of its
 * rank. An activation that a rounding moves over a ReLU's edge has more effect here, since a channel has few rows. */
Test(train_modes, a_divided_residual_network_has_the_losses_of_a_whole_one, .timeout = 100) {
    training_run what = {.options = {"--model", "resnet20", "--view", "consistent", "--batch-size", "4", "--steps", "2",
                                     "--lr", "0.01"}};
    double whole[TRAINING_LOSSES], cut[TRAINING_LOSSES];
    files_write_mnist(training_folder, 12, 2);
    cr_assert_eq(training_folder_losses(1, &what, whole), 2);
    what.options[10] = "--parallel-mode", what.options[11] = "layerwise_parallel";
    cr_assert_eq(training_folder_losses(2, &what, cut), 2);
    expect_near(1, whole, cut, 1, "resnet20 by outputs");
    cr_assert(fabs(whole[0] - whole[1]) > 0.01 && fabs(whole[1] - cut[1]) < 1e-3, "%.10f and %.10f", whole[1], cut[1]);
}

/* ---------------------------------------------------------------------------------------------- tests */

static double *tested; /* shared memory */

static tutti_status train_and_test(ranks_context *context) {
    tutti_arguments arguments;
    tutti_trainer train;
    tutti_train_result found = {.steps = 0};
    tutti_status status = training_open(context->argument, context->comm, &arguments, &train);
    if (status == TUTTI_OK) status = tutti_trainer_run(&train, &found);
    if (context->rank == 0) *tested = found.test.accuracy;
    tutti_trainer_fini(&train);
    return status;
}

static double accuracy_by(const division *by) {
    char path[FILES_PATH_BYTES];
    training_run run = {.options = {"--model", "mlp", "--view", "consistent", "--batch-size", "13", "--steps", "30"},
                        .data = training_folder};
    ranks_options options = {.kind = RANKS_PROCESSES, .nranks = by->nranks, .argument = &run};
    double losses[TRAINING_LOSSES];
    int count;
    add_division(by, &run, 8, path);
    const char *failure = training_run_body(&options, train_and_test, losses, &count);
    cr_assert_null(failure, "%s", failure);
    return *tested;
}

/* 31 samples by batches of 13: in the last one, with 5, ranks after the first have nothing to count. In these
 * divisions a rank's losses are for other samples than it reads, for all samples, or for the same ones. */
Test(train_modes, tests_count_each_sample_once, .timeout = 100) {
    static const division all[] = {
        {"mlp", 2, NULL, "2", "dense1 outputs\ndense2 samples\n"},
        {"mlp", 2, NULL, "2", "dense1 samples\ndense2 outputs\n"},
        {"mlp", 4, NULL, "2x2", "dense1 samples,inputs\ndense2 none,samples\n"},
        {"mlp", 3, NULL, NULL, NULL},
    };
    tested = mmap(NULL, sizeof *tested, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const double whole = accuracy_by(&(division){.nranks = 1});
    cr_assert(whole > 0.4 && whole < 1, "%g", whole);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const double cut = accuracy_by(&all[i]);
        cr_assert_eq(cut, whole, "division %zu: %g, expected %g", i, cut, whole);
    }
}

/* ----------------------------------------------------------------------------------------- checkpoints */

/* Half of a run under one division, the rest under another: the losses of a whole run on one rank. */
static void check_crossing(const division *first, const char *zero_first, const division *second,
                           const char *zero_second, const double *whole) {
    char checkpoints[FILES_PATH_BYTES], path[FILES_PATH_BYTES];
    double losses[TRAINING_LOSSES];
    files_join(training_folder, "checkpoints", checkpoints);
    training_run half = {.options = {"--model", "mlp", "--view", "consistent", "--batch-size", "13", "--lr", "0.01",
                                     "--optimizer", "adam", "--steps", "6", "--checkpoint-dir", checkpoints, "--zero",
                                     zero_first}};
    training_run rest = half;
    add_division(first, &half, 16, path);
    cr_assert_eq(training_folder_losses(first->nranks, &half, losses), 6);
    rest.options[11] = "12";
    rest.options[12] = "--resume";
    rest.options[15] = zero_second;
    add_division(second, &rest, 16, path);
    cr_assert_eq(training_folder_losses(second->nranks, &rest, losses + 6), 6);
    expect_near(12, whole, losses, 12, "a run that changes its mode");
    files_remove(checkpoints);
}

Test(train_modes, a_checkpoint_of_any_mode_resumes_in_any_other, .timeout = 100) {
    static const division alone = {.nranks = 1}, data = {.nranks = 3},
                          layers = {.nranks = 3, .mode = "layerwise_parallel"},
                          hybrid = {.nranks = 4,
                                    .mesh = "2x2",
                                    .strategy = "dense1 inputs,outputs\ndense2 outputs,none\n"},
                          mixed = {
                              .nranks = 4, .mesh = "2x2", .strategy = "dense1 samples,outputs\ndense2 none,samples\n"};
    training_run what = {.options = {"--model", "mlp", "--view", "consistent", "--batch-size", "13", "--lr", "0.01",
                                     "--optimizer", "adam", "--steps", "12"}};
    double whole[TRAINING_LOSSES];
    cr_assert_eq(training_folder_losses(1, &what, whole), 12);
    check_crossing(&hybrid, "0", &alone, "0", whole);
    check_crossing(&alone, "0", &hybrid, "0", whole);
    check_crossing(&data, "0", &layers, "0", whole);
    check_crossing(&data, "1", &mixed, "0", whole);
    check_crossing(&mixed, "1", &alone, "0", whole);
    check_crossing(&layers, "0", &mixed, "1", whole);
    check_crossing(&mixed, "1", &data, "1", whole);
}

/* -------------------------------------------------------------------------------------------- errors */

static void expect_refusal(int nranks, training_run what, const char *said) {
    double losses[TRAINING_LOSSES];
    int count;
    what.data = training_folder;
    const char *failure = training_losses(RANKS_PROCESSES, nranks, &what, losses, &count);
    cr_assert(failure != NULL && strstr(failure, said) != NULL, "\"%s\" lacks \"%s\"", failure, said);
}

static void expect_bad_file(const char *content, const char *said) {
    char path[FILES_PATH_BYTES], where[FILES_PATH_BYTES + 64];
    write_strategy(content, path);
    snprintf(where, sizeof where, "%s%s", path, said);
    expect_refusal(
        2, (training_run){.options = {"--model", "lenet", "--batch-size", "4", "--mesh", "2x1", "--strategy", path}},
        where);
}

Test(train_modes, a_wrong_strategy_is_an_error_with_file_and_line, .timeout = 100) {
    expect_bad_file("# a comment\nconv9 samples,none\n", ":2: the model has no layer conv9");
    expect_bad_file("conv1 samples\n", ":1: layer conv1 has 1 words, expected one for each of the mesh's 2 axes");
    expect_bad_file("conv1 samples,none,none\n", ":1: layer conv1 has 3 words");
    expect_bad_file("\n\npool1 inputs,none\n", ":3: layer pool1 (max_pool) cannot be divided by inputs");
    expect_bad_file("dense1 rows,none\n", ":1: layer dense1: \"rows\" is not one of samples, inputs, outputs, none");
    expect_bad_file("conv1 samples,none\nconv1 none,none\n", ":2: layer conv1 occurs twice");
    expect_bad_file("conv1 samples\n",
                    ":1: layer conv1 has 1 words, expected one for each of the mesh's 2 axes; give a word for "
                    "each, or --mesh 2 (");
    expect_bad_file("conv1 samples,none\nmesh 1x2\n", ":2: the file is for --mesh 1x2, not 2x1; leave out --mesh");
    expect_bad_file("mesh 3 # of other ranks\n", ":1: mesh 3: expected the sizes");
    expect_bad_file("conv1 sam\x1b[31mples\n", ":1: byte 0x1b in column 10 is not a letter");
    expect_bad_file("# caf\xc3\xa9\n\xc3\xa9", ":2: byte 0xc3 in column 1 ");
}

/* No --mesh is given: without the file's line a mesh of two axes is expected, 1x2. */
Test(train_modes, a_strategy_that_names_its_mesh_is_read_as_it_was_saved, .timeout = 100) {
    char path[FILES_PATH_BYTES], saved[FILES_PATH_BYTES], text[1024] = "";
    double found[TRAINING_LOSSES], again[TRAINING_LOSSES];
    files_join(training_folder, "saved", saved);
    static const char *const modes[] = {"layerwise_parallel", "data_parallel", "hybrid_parallel"};
    static const char *const meshes[] = {"mesh 2 ", "mesh 2 ", "mesh 1x2 "};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        training_run what = {.options = {"--model", "mlp", "--batch-size", "6", "--steps", "2", "--save-strategy",
                                         saved, "--parallel-mode", modes[i]}};
        cr_assert_eq(training_folder_losses(2, &what, found), 2);
        FILE *file = fopen(saved, "re");
        cr_assert(file != NULL && fread(text, 1, sizeof text - 1, file) > 0);
        fclose(file);
        cr_assert(strncmp(text, meshes[i], strlen(meshes[i])) == 0, "%s wrote \"%s\"", modes[i], text);
        what.options[6] = "--strategy";
        what.options[8] = what.options[9] = NULL;
        cr_assert_eq(training_folder_losses(2, &what, again), 2, "%s", modes[i]);
        cr_assert_arr_eq(found, again, 2 * sizeof *found, "%s", modes[i]);
    }
    write_strategy("mesh 4\ndense1 outputs\n", path);
    expect_refusal(2, (training_run){.options = {"--strategy", path}}, ":1: mesh 4: expected the sizes of 1 to 8 axes");
}

Test(train_modes, indivisible_layers_are_refused_with_advice, .timeout = 100) {
    char path[FILES_PATH_BYTES];
    expect_refusal(2, (training_run){.options = {"--parallel-mode", "sideways"}},
                   "expected one of stand_alone|data_parallel");
    expect_refusal(2, (training_run){.options = {"--mesh", "2x2"}}, "--mesh 2x2: ");
    expect_refusal(2, (training_run){.options = {"--mesh", "1x1"}}, "must be the number of ranks, 2");
    expect_refusal(2, (training_run){.options = {"--mesh", "2x"}}, "--mesh 2x: expected the sizes");
    write_strategy("conv1 inputs\n", path);
    expect_refusal(2, (training_run){.options = {"--strategy", path, "--mesh", "2", "--batch-size", "4"}},
                   "layer conv1: 1 channels");
    expect_refusal(2, (training_run){.options = {"--strategy", path, "--parallel-mode", "data_parallel"}},
                   "it is for --parallel-mode hybrid_parallel");
    write_strategy("conv1 none\n", path);
    expect_refusal(
        3, (training_run){.options = {"--strategy", path, "--mesh", "3", "--view", "consistent", "--batch-size", "2"}},
        "a batch of 2 samples is divided into more parts");
}

/* --------------------------------------------------------------------------------------------- failure */

enum { VICTIM = 3 };

static atomic_int *named; /* shared memory: ranks whose error names the victim's process */
static ranks_context *struck;
static const tutti_trainer *under_way;

/* At a random place in a step. */
static void strike(int number) {
    (void)number;
    if (*(volatile const int64_t *)&under_way->step >= 20) ranks_strike(struck, SIGKILL);
}

/* Like the program: a rank that fails ends everything that waits for it. */
static tutti_status train_until_one_dies(ranks_context *context) {
    const training_run *run = context->argument;
    tutti_arguments arguments;
    tutti_trainer train;
    tutti_train_result result;
    TUTTI_TRY(training_open(run, context->comm, &arguments, &train));
    if (context->rank == VICTIM) {
        struck = context;
        under_way = &train;
        signal(SIGALRM, strike);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = 7000}, .it_interval = {.tv_usec = 7000}},
                  NULL);
    }
    const tutti_status status = tutti_trainer_run(&train, &result);
    /* Ranks are numbered by the communicator; if that is a part of the job, the rank's number in the job follows. */
    char died[64], of_job[64];
    snprintf(died, sizeof died, "pid %d) died", ranks_pid(context, VICTIM));
    snprintf(of_job, sizeof of_job, "pid %d, rank %d of the job) died", ranks_pid(context, VICTIM), VICTIM);
    if (strstr(tutti_last_error(), died) != NULL || strstr(tutti_last_error(), of_job) != NULL)
        atomic_fetch_add(named, 1);
    tutti_comm_abort(context->comm, "a rank failed");
    if (train.placement != NULL) tutti_placement_abort(train.placement, "a rank failed");
    tutti_trainer_fini(&train);
    RANKS_CHECK(status != TUTTI_OK, "a run without rank 3 went on");
    return TUTTI_OK;
}

Test(train_modes, a_rank_that_dies_in_a_hybrid_run_ends_the_others_and_is_named, .timeout = 40) {
    training_run run = {.options = {"--model", "mlp", "--batch-size", "4", "--steps", "1000000", "--epochs", "1000000",
                                    "--lr", "0.001", "--parallel-mode", "hybrid_parallel"},
                        .data = training_folder};
    ranks_options options = {.kind = RANKS_PROCESSES, .nranks = 4, .argument = &run};
    double losses[TRAINING_LOSSES];
    int count;
    named = mmap(NULL, sizeof *named, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *failure = training_run_body(&options, train_until_one_dies, losses, &count);
    cr_assert_null(failure, "%s", failure);
    cr_assert(count > 0 && atomic_load(named) > 0, "%d losses; %d ranks named the one that died", count,
              atomic_load(named));
}
