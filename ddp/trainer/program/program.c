/*
 * tutti-train: options, communicator, training, last line. It uses only the public calls of <tutti/train.h>.
 *
 * A failure on one rank before training starts ends all ranks with the error of the lowest rank that failed,
 * printed in one line. Later each rank reports its own error.
 */
#include "ddp/trainer/program/program.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <tutti/train.h>

#include "ddp/trainer/program/arguments.h"

#define EXIT_FAILED 1

static int report(int rank, int nranks) {
    if (nranks > 1) fprintf(stderr, "tutti-train: rank %d: %s\n", rank, tutti_last_error());
    else fprintf(stderr, "tutti-train: %s\n", tutti_last_error());
    return EXIT_FAILED;
}

/* Reports a failure before training that all ranks know: rank 0 prints it. If the ranks could not agree, each
 * prints its own. */
static int report_agreed(tutti_comm *comm) {
    char text[1024];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    const bool agreed = tutti_comm_error(comm) == TUTTI_OK;
    tutti_fail(TUTTI_ERR_CONFIG, "%s", text);
    if (!agreed) return report(tutti_comm_rank(comm), tutti_comm_size(comm));
    return tutti_comm_rank(comm) == 0 ? report(0, 1) : EXIT_FAILED;
}

/* Collective: exchanges the status of reading the options. Returns true if all succeeded; else the lowest rank that
 * failed reports. */
static bool all_ranks_ready(tutti_comm *comm, tutti_status status) {
    int rank = tutti_comm_rank(comm), nranks = tutti_comm_size(comm);
    int32_t failed = status == TUTTI_OK ? nranks : rank;
    if (nranks > 1 && tutti_all_reduce(comm, &failed, &failed, 1, TUTTI_INT32, TUTTI_MIN, NULL) != TUTTI_OK) {
        report(rank, nranks);
        return false;
    }
    /* if rank 0 failed, usually all ranks did, so none is named */
    if (failed == rank) report(rank, rank > 0 ? nranks : 1);
    return failed == nranks;
}

static void announce(const tutti_arguments *arguments, const tutti_train_details *details) {
    if (details->resumed != NULL)
        printf("resumed at step %lld from %s%s\n", (long long)details->step, details->resumed,
               details->step < details->total_steps ? "" : "; nothing is left to train");
    if (details->drawn)
        printf("%straining on %lld digits that tutti-train draws itself (--data names a folder)\n",
               arguments->dataset == NULL ? "no MNIST found: " : "", (long long)details->train_samples);
    fflush(stdout);
}

static int tell_accuracy(const tutti_train_details *details, const tutti_train_evaluation *test) {
    printf("test accuracy%s: %.2f %%", details->drawn ? " (drawn digits, not MNIST)" : "", 100 * test->accuracy);
    if (test->samples < details->test_samples)
        printf(" (on %lld of %lld samples)", (long long)test->samples, (long long)details->test_samples);
    putchar('\n');
    return fflush(stdout) == 0 ? 0 : EXIT_FAILED;
}

/* The exit code as in a shell: 128 + signal. */
static int tell_stop(const tutti_arguments *arguments, const tutti_train_details *details, int by, bool speaks) {
    fflush(stdout);
    if (speaks)
        fprintf(stderr, "tutti-train: stopped by SIG%s after step %lld of %lld; --resume %s continues\n",
                sigabbrev_np(by), (long long)details->step, (long long)details->total_steps, arguments->checkpoint_dir);
    return 128 + by;
}

static int train(tutti_comm *comm, const tutti_arguments *arguments, tutti_trainer *trainer) {
    const bool speaks = tutti_comm_rank(comm) == 0;
    tutti_train_details details;
    tutti_train_result result;
    tutti_status status = tutti_train_get(trainer, &details);
    if (status == TUTTI_OK && arguments->explain) {
        status = tutti_train_explain(trainer, stdout);
        if (status == TUTTI_OK) return 0;
    }
    if (speaks && status == TUTTI_OK) announce(arguments, &details);
    if (status == TUTTI_OK) status = tutti_train_run(trainer, &result);
    if (status == TUTTI_OK) status = tutti_train_get(trainer, &details);
    if (status != TUTTI_OK) return report(tutti_comm_rank(comm), tutti_comm_size(comm));
    if (result.stopped_by != 0) return tell_stop(arguments, &details, result.stopped_by, speaks);
    return speaks ? tell_accuracy(&details, &result.test) : 0;
}

static int open_and_train(tutti_comm *comm, const tutti_arguments *arguments) {
    tutti_arguments_settings settings;
    tutti_trainer *trainer = NULL;
    tutti_status status = tutti_arguments_fill(arguments, &settings);
    if (!all_ranks_ready(comm, status)) return EXIT_FAILED;
    status = tutti_train_open(comm, &settings.model, &settings.data, &settings.options, &trainer);
    if (status != TUTTI_OK) return report_agreed(comm);
    const int code = train(comm, arguments, trainer);
    tutti_train_close(trainer);
    return code;
}

int tutti_program_run(int argc, char **argv) {
    tutti_arguments arguments;
    tutti_comm *comm;
    tutti_status parsed = tutti_arguments_parse(argc, argv, &arguments);
    if (parsed == TUTTI_OK && arguments.help) {
        tutti_arguments_print(stdout);
        return 0;
    }
    if (parsed == TUTTI_OK && arguments.version) {
        printf("tutti-train %s\n", tutti_version());
        return 0;
    }
    char text[1024]; /* creating the communicator may replace the error text */
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (tutti_comm_create_world(&comm) != TUTTI_OK) return report(0, 1);
    if (parsed != TUTTI_OK) tutti_fail(parsed, "%s", text);
    const int code = all_ranks_ready(comm, parsed) ? open_and_train(comm, &arguments) : EXIT_FAILED;
    tutti_comm_destroy(comm);
    return code;
}
