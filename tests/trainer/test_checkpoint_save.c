/*
 * Checkpoints that several ranks write and read by parts: the file is the same whichever rank writes which part, and
 * failures during the write are an error on all ranks and leave earlier checkpoints unchanged.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/trainer/checkpoint/safetensors.h"
#include "tests/support/training/training_run.h"

static char folder[FILES_PATH_BYTES], checkpoints[FILES_PATH_BYTES];

static void make_folder(void) {
    files_make_folder(folder);
    files_write_mnist(folder, 120, 31);
    files_join(folder, "checkpoints", checkpoints);
}

static void remove_folder(void) {
    files_remove(folder);
}

TestSuite(checkpoint_save, .init = make_folder, .fini = remove_folder, .timeout = 100);

/* ------------------------------------------------------------------------------------------------ runs */

typedef struct job {
    training_run run; /* must be first: training_run_body uses it */
    char words[2048];
    int rank;            /* the rank to which the failure happens */
    int signal_number;   /* sent by that rank to itself while a checkpoint is written */
    rlim_t most_bytes;   /* of a file that it writes; 0: no limit */
    const char *hides;   /* a folder that this rank does not see */
    const char *expects; /* text in the error of all ranks; NULL: they end well */
    int stops_by;        /* expected */
} job;

static job make_job(const char *format, const char *dir, const char *more) {
    job made = {.run = {.data = folder}, .rank = -1};
    snprintf(made.words, sizeof made.words, format, dir, more);
    return made;
}

static void cut_words(job *j) {
    int count = 0;
    for (char *word = strtok(j->words, " "); word != NULL; word = strtok(NULL, " ")) j->run.options[count++] = word;
}

/* The number of files in the folder: checkpoints, and files that are being written. */
static void count_files(const char *dir, int *whole_out, int *unfinished_out) {
    *whole_out = *unfinished_out = 0;
    DIR *listing = opendir(dir);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        if (strstr(entry->d_name, ".tmp") != NULL) ++*unfinished_out;
        else ++*whole_out;
    }
    if (listing != NULL) closedir(listing);
}

typedef struct watcher {
    ranks_context *context;
    int signal_number;
} watcher;

/* A thread: waits until a second checkpoint is being written, then sends the signal. */
static void *watch(void *argument) {
    const watcher *w = argument;
    int whole = 0, unfinished = 0;
    for (int i = 0; i < 300000 && (whole < 1 || unfinished < 1); i++) {
        usleep(100);
        count_files(checkpoints, &whole, &unfinished);
    }
    if (w->signal_number == SIGKILL) ranks_strike(w->context, SIGKILL);
    else kill(getpid(), w->signal_number);
    return NULL;
}

static tutti_status prepare(const job *j, watcher *w) {
    pthread_t thread;
    if (j->most_bytes > 0) {
        const struct rlimit limit = {j->most_bytes, j->most_bytes};
        RANKS_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "no limit");
    }
    if (j->hides != NULL) {
        mkdir(j->hides, 0777);
        RANKS_CHECK(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                        mount("none", j->hides, "tmpfs", 0, NULL) == 0,
                    "nothing can be mounted");
    }
    if (j->signal_number == 0) return TUTTI_OK;
    RANKS_CHECK(pthread_create(&thread, NULL, watch, w) == 0, "no thread");
    pthread_detach(thread);
    return TUTTI_OK;
}

static tutti_status run_rank(ranks_context *context) {
    job *j = context->argument;
    watcher w = {context, j->signal_number};
    tutti_arguments arguments;
    tutti_trainer train;
    tutti_train_result result;
    char text[1024] = "";
    if (context->rank == j->rank) TUTTI_TRY(prepare(j, &w));
    tutti_status status = training_open(&j->run, context->comm, &arguments, &train);
    /* Like the program: no rank begins unless all are ready. */
    int32_t worst = (int32_t)status;
    if (status != TUTTI_OK) snprintf(text, sizeof text, "%s", tutti_last_error());
    TUTTI_TRY(tutti_all_reduce(context->comm, &worst, &worst, 1, TUTTI_INT32, TUTTI_MIN, NULL));
    if (worst == TUTTI_OK && status == TUTTI_OK) {
        status = tutti_trainer_run(&train, &result);
        if (status != TUTTI_OK) {
            snprintf(text, sizeof text, "%s", tutti_last_error());
            tutti_comm_abort(context->comm, "a rank failed");
            if (train.placement != NULL) tutti_placement_abort(train.placement, "a rank failed");
        }
    }
    const int stopped_by = train.stopped_by;
    tutti_trainer_fini(&train);
    RANKS_CHECK(stopped_by == j->stops_by, "stopped by %d, not %d", stopped_by, j->stops_by);
    if (j->expects == NULL) return status == TUTTI_OK ? TUTTI_OK : tutti_fail(status, "%s", text);
    /* Ranks that are ready end with the error of a rank that is not. */
    RANKS_CHECK(status != TUTTI_OK || worst != TUTTI_OK, "all went well");
    RANKS_CHECK(status == TUTTI_OK || strstr(text, j->expects) != NULL, "\"%s\" lacks \"%s\"", text, j->expects);
    return TUTTI_OK;
}

static int run(int nranks, job *j, double *losses_out) {
    double losses[TRAINING_LOSSES];
    ranks_options options = {.kind = RANKS_PROCESSES, .nranks = nranks, .argument = j, .timeout_s = 60};
    int count;
    cut_words(j);
    const char *failure = training_run_body(&options, run_rank, losses_out != NULL ? losses_out : losses, &count);
    const bool ended_early = failure != NULL && j->expects != NULL && strcmp(failure, "the run wrote no metrics") == 0;
    cr_assert(failure == NULL || ended_early, "%d ranks: %s", nranks, failure);
    return count;
}

/* Epochs have four steps with three ranks, or six with two. */
#define MLP   "--model mlp --batch-size 10 --lr 0.01 --optimizer adam --checkpoint-dir %s %s"
#define LENET "--model lenet --batch-size 10 --lr 0.01 --optimizer adam --checkpoint-dir %s %s"

/* The last checkpoint is complete: a run of one rank resumes from it. */
static void expect_resumable(const char *model) {
    char more[FILES_PATH_BYTES + 64];
    int whole, unfinished;
    snprintf(more, sizeof more, "--epochs 99 --steps 30 --resume %s", checkpoints);
    job rest = make_job(model, checkpoints, more);
    cr_assert(run(1, &rest, NULL) > 0);
    count_files(checkpoints, &whole, &unfinished);
    cr_assert(whole > 0 && unfinished == 0, "%d files, %d unfinished", whole, unfinished);
}

/* ------------------------------------------------------------------------------------------- writers */

static uint8_t *read_last(const char *dir, const char *name, size_t *bytes_out) {
    char path[FILES_PATH_BYTES];
    files_join(dir, name, path);
    uint8_t *bytes = files_read(path, bytes_out);
    cr_assert_not_null(bytes, "%s does not exist", path);
    return bytes;
}

static void expect_equal_files(int nranks, const char *format, const char *more, const char *name) {
    char whole[FILES_PATH_BYTES], parts[FILES_PATH_BYTES], with_zero[256];
    size_t a, b;
    files_join(folder, "whole", whole), files_join(folder, "parts", parts);
    snprintf(with_zero, sizeof with_zero, "%s --zero 1", more);
    job plain = make_job(format, whole, more), zero = make_job(format, parts, with_zero);
    run(nranks, &plain, NULL), run(nranks, &zero, NULL);
    uint8_t *first = read_last(whole, name, &a), *second = read_last(parts, name, &b);
    cr_assert(a == b && memcmp(first, second, a) == 0, "%d ranks, %s: the files differ", nranks, more);
    free(first), free(second);
    files_remove(whole), files_remove(parts);
}

Test(checkpoint_save, ranks_with_parts_of_the_optimizer_write_the_file_of_ranks_with_all_of_it) {
    expect_equal_files(1, MLP, "--steps 3", "step-00000003.safetensors");
    expect_equal_files(2, LENET, "--steps 2", "step-00000002.safetensors");
    expect_equal_files(3, MLP, "--steps 3", "step-00000003.safetensors");
    expect_equal_files(4, MLP, "--steps 2 --parallel-mode hybrid_parallel --mesh 2x2", "step-00000002.safetensors");
    expect_equal_files(3, MLP, "--steps 3 --freeze dense1.w", "step-00000003.safetensors");
}

Test(checkpoint_save, a_rank_that_does_not_see_the_folder_sends_its_parts_to_rank_0) {
    char seen[FILES_PATH_BYTES], hidden[FILES_PATH_BYTES];
    size_t a, b;
    if (geteuid() != 0) cr_skip("a folder can be hidden by root only");
    files_join(folder, "seen", seen), files_join(folder, "hidden", hidden);
    job plain = make_job(MLP, seen, "--steps 3 --zero 1"), apart = make_job(MLP, hidden, "--steps 3 --zero 1");
    run(3, &plain, NULL);
    apart.rank = 1, apart.hides = hidden;
    run(3, &apart, NULL);
    uint8_t *first = read_last(seen, "step-00000003.safetensors", &a);
    uint8_t *second = read_last(hidden, "step-00000003.safetensors", &b);
    cr_assert(a == b && memcmp(first, second, a) == 0, "the files differ");
    free(first), free(second);
}

/* Frozen at first, then trained: the optimizer begins with zeros for these, and only for these. */
Test(checkpoint_save, a_run_that_freezes_other_parameters_resumes) {
    char more[FILES_PATH_BYTES + 64];
    int whole, unfinished;
    job first = make_job(MLP, checkpoints, "--steps 2 --freeze dense1"), rest;
    run(2, &first, NULL);
    snprintf(more, sizeof more, "--steps 4 --zero 1 --freeze dense2.bias --resume %s", checkpoints);
    rest = make_job(MLP, checkpoints, more);
    cr_assert_eq(run(3, &rest, NULL), 2);
    count_files(checkpoints, &whole, &unfinished);
    cr_assert(whole == 2 && unfinished == 0);
}

/* --------------------------------------------------------------------------------------------- failures */

Test(checkpoint_save, a_rank_that_dies_while_a_checkpoint_is_written_ends_the_others) {
    for (int victim = 0; victim < 3; victim += 2) {
        job killed = make_job(LENET, checkpoints, "--epochs 1000 --zero 1");
        int whole, unfinished;
        killed.rank = victim, killed.signal_number = SIGKILL, killed.expects = "died";
        run(3, &killed, NULL);
        count_files(checkpoints, &whole, &unfinished);
        cr_assert(whole >= 1 && unfinished <= (victim == 0), "%d files, %d unfinished", whole, unfinished);
        expect_resumable(LENET);
        files_remove(checkpoints);
    }
}

Test(checkpoint_save, a_signal_while_a_checkpoint_is_written_ends_the_run_with_one) {
    job stopped = make_job(LENET, checkpoints, "--epochs 1000 --zero 1");
    stopped.rank = 1, stopped.signal_number = stopped.stops_by = SIGTERM;
    run(3, &stopped, NULL);
    int whole, unfinished;
    count_files(checkpoints, &whole, &unfinished);
    cr_assert(whole >= 2 && unfinished == 0, "%d files, %d unfinished", whole, unfinished);
    expect_resumable(LENET);
}

/* A first run writes a checkpoint, whose file has about 3 * 1.6 MB. */
static void fail_after_first(job *limited, const char *expects) {
    int whole, unfinished;
    job first = make_job(MLP, checkpoints, "--steps 2 --zero 1");
    run(3, &first, NULL);
    limited->expects = expects;
    run(3, limited, NULL);
    count_files(checkpoints, &whole, &unfinished);
    cr_assert(whole == 1 && unfinished == 0, "%d files, %d unfinished", whole, unfinished);
    expect_resumable(MLP);
    files_remove(checkpoints);
}

Test(checkpoint_save, a_file_that_cannot_grow_is_an_error_of_all_ranks_that_names_it) {
    char more[FILES_PATH_BYTES + 64];
    snprintf(more, sizeof more, "--steps 4 --zero 1 --resume %s", checkpoints);
    job limited = make_job(MLP, checkpoints, more);
    limited.rank = 0, limited.most_bytes = 4 << 20;
    fail_after_first(&limited, "step-00000004.safetensors: writing failed: no room for its ");
    limited = make_job(MLP, checkpoints, more);
    limited.rank = 1, limited.most_bytes = 4 << 20;
    fail_after_first(&limited, "cannot be written: File too large");
}

Test(checkpoint_save, a_full_disk_is_an_error_of_all_ranks_and_leaves_earlier_checkpoints) {
    int whole, unfinished;
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0) cr_skip("only root can mount a small file system");
    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
    mkdir(checkpoints, 0777);
    cr_assert_eq(mount("none", checkpoints, "tmpfs", 0, "size=12m"), 0);
    job filled = make_job(MLP, checkpoints, "--epochs 9 --zero 1");
    filled.expects = "No space left on device";
    run(3, &filled, NULL);
    count_files(checkpoints, &whole, &unfinished);
    cr_assert(whole == 2 && unfinished == 0, "%d files, %d unfinished", whole, unfinished);
    char more[FILES_PATH_BYTES + 64];
    snprintf(more, sizeof more, "--steps 9 --resume %s", checkpoints);
    job rest = make_job("--model mlp --batch-size 10 --checkpoint-dir %s/none %s", folder, more);
    cr_assert_eq(run(3, &rest, NULL), 1);
    umount(checkpoints);
}

/* ---------------------------------------------------------------------------------------------- damage */

static void expect_damaged(uint8_t *file, size_t bytes, const char *expects) {
    char more[FILES_PATH_BYTES + 64], path[FILES_PATH_BYTES];
    files_write(folder, "damaged.safetensors", false, file, bytes);
    files_join(folder, "damaged.safetensors", path);
    snprintf(more, sizeof more, "--steps 4 --zero 1 --resume %s", path);
    job resumed = make_job(MLP, checkpoints, more);
    resumed.expects = expects;
    run(3, &resumed, NULL);
}

Test(checkpoint_save, a_damaged_or_cut_file_is_an_error_with_name_and_offset_and_keeps_no_rank_waiting) {
    size_t bytes;
    job first = make_job(MLP, checkpoints, "--steps 2 --zero 1");
    run(3, &first, NULL);
    uint8_t *file = read_last(checkpoints, "step-00000002.safetensors", &bytes);
    expect_damaged(file, bytes - 1, "damaged.safetensors: at offset ");
    expect_damaged(file, 4, "damaged.safetensors: truncated at offset 4");
    expect_damaged(file, bytes / 2, "damaged.safetensors: at offset ");
    /* Only rank 2 reads the end of the last state. */
    const float wrong = NAN;
    char text[128];
    memcpy(file + bytes - sizeof wrong, &wrong, sizeof wrong);
    snprintf(text, sizeof text, "(offset %zu of the file), expected finite numbers", bytes - sizeof wrong);
    expect_damaged(file, bytes, text);
    file[12] ^= 1;
    expect_damaged(file, bytes, "damaged.safetensors: ");
    free(file);
}
