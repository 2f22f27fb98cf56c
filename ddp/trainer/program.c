/*
 * tutti-train: options, communicator, training, last line.
 *
 * What can go wrong on one rank alone (a missing file, a bad option) is gathered before training starts: the ranks agree
 * on the lowest one that failed, it tells its error in one line, and all end. Later failures break the communicator, so
 * that no rank waits for one that is gone.
 */
#include "ddp/trainer/program.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ddp/trainer/train.h"
#include "kernels/gemm.h"

#define EXIT_FAILED 1

static int report(int rank, int nranks) {
    if (nranks > 1) fprintf(stderr, "tutti-train: rank %d: %s\n", rank, tutti_last_error());
    else fprintf(stderr, "tutti-train: %s\n", tutti_last_error());
    return EXIT_FAILED;
}

/* All ranks tell how their preparation went. True when all are well; else the lowest rank that failed reports. */
static bool all_ranks_ready(tutti_comm *comm, tutti_status status) {
    int rank = tutti_comm_rank(comm), nranks = tutti_comm_size(comm);
    int32_t failed = status == TUTTI_OK ? nranks : rank;
    if (nranks > 1 && tutti_all_reduce(comm, &failed, &failed, 1, TUTTI_INT32, TUTTI_MIN, NULL) != TUTTI_OK) {
        report(rank, nranks);
        return false;
    }
    if (failed == rank) report(rank, rank > 0 ? nranks : 1); /* from rank 0 on it is every rank's, so none is named */
    return failed == nranks;
}

/* FNV-1a. */
static uint64_t mix(uint64_t digest, const void *data, size_t bytes) {
    const unsigned char *next = data;
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ next[i]) * UINT64_C(0x100000001b3);
    return digest;
}

/* Options and data that must be equal on all ranks, or training would go wrong without a word. */
static tutti_status check_agreement(const tutti_train *train) {
    const tutti_arguments *arguments = train->arguments;
    const tutti_input *input = &train->input;
    const char *texts[] = {train->model_name,
                           train->optimizer_name,
                           arguments->lr_schedule,
                           arguments->precision,
                           arguments->view,
                           train->compute->kernels->name,
                           arguments->dataset != NULL ? arguments->dataset : ""};
    int64_t numbers[] = {arguments->batch_size,     arguments->log_every,
                         arguments->eval_every,     train->step,
                         input->train_count,        train->total_steps,
                         (int64_t)train->seed,      input->test_count,
                         input->details.height,     input->details.width,
                         input->details.channels,   input->details.classes,
                         arguments->no_augment,     arguments->no_shuffle,
                         arguments->shuffle_buffer, arguments->repeat,
                         arguments->nesterov,       arguments->no_decay_norm_bias,
                         arguments->warmup_steps};
    double reals[] = {train->schedule.lr, train->schedule.factor, train->update.options.momentum,
                      arguments->weight_decay};
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) digest = mix(digest, texts[i], strlen(texts[i]) + 1);
    digest = mix(digest, numbers, sizeof numbers);
    digest = mix(digest, train->strategy.sizes, sizeof train->strategy.sizes);
    digest = mix(digest, train->strategy.layers, sizeof train->strategy.layers);
    digest = mix(digest, reals, sizeof reals);
    digest = mix(digest, train->schedule.milestones, sizeof train->schedule.milestones);

    int64_t value = (int64_t)(digest >> 2), both[2] = {value, -value};
    TUTTI_TRY(tutti_all_reduce(train->comm, both, both, 2, TUTTI_INT64, TUTTI_MAX, NULL));
    if (both[0] != value || both[1] != -value)
        return tutti_fail(
            TUTTI_ERR_MISMATCH,
            "the ranks were started with different options or data, or only some found a GPU; give all the "
            "same options, --device among them, and the same --data on all hosts");
    return TUTTI_OK;
}

static bool speaks(const tutti_train *train) {
    return train->rank == 0 && !train->arguments->silent;
}

static void announce(const tutti_train *train) {
    if (!speaks(train)) return;
    if (train->arguments->resume != NULL)
        printf("resumed at step %lld from %s%s\n", (long long)train->step, train->resumed.path,
               train->step < train->total_steps ? "" : "; nothing is left to train");
    if (train->input.drawn)
        printf("%straining on %lld digits that tutti-train draws itself (--data names a folder)\n",
               train->arguments->dataset == NULL ? "no MNIST found: " : "", (long long)train->input.train_count);
    fflush(stdout);
}

static int tell_accuracy(const tutti_train *train, double accuracy) {
    if (speaks(train))
        printf("test accuracy%s: %.2f %%\n", train->input.drawn ? " (drawn digits, not MNIST)" : "", 100 * accuracy);
    return fflush(stdout) == 0 ? 0 : EXIT_FAILED;
}

/* As a shell counts: 128 + signal. */
static int tell_stop(const tutti_train *train) {
    fflush(stdout);
    if (speaks(train))
        fprintf(stderr, "tutti-train: stopped by SIG%s after step %lld of %lld; --resume %s goes on\n",
                sigabbrev_np(train->stopped_by), (long long)train->step, (long long)train->total_steps,
                train->arguments->checkpoint_dir);
    return 128 + train->stopped_by;
}

static int train_on(tutti_comm *comm, const tutti_arguments *arguments, tutti_status parsed) {
    tutti_train train = {.rank = 0};
    double accuracy = 0;
    int code = EXIT_FAILED;
    tutti_status status = parsed == TUTTI_OK ? tutti_train_open(&train, arguments, comm) : parsed;
    if (!all_ranks_ready(comm, status)) goto close;
    TUTTI_TRY_GOTO(status, check_agreement(&train), failed);
    if (arguments->explain) {
        TUTTI_TRY_GOTO(status, tutti_train_explain(&train), failed);
        code = 0;
        goto close;
    }
    announce(&train);
    TUTTI_TRY_GOTO(status, tutti_train_run(&train, &accuracy), failed);
    if (train.stopped_by != 0) code = tell_stop(&train);
    else code = tell_accuracy(&train, accuracy);
    goto close;
failed:
    code = report(train.rank, train.nranks);
    tutti_comm_abort(comm, "a rank of tutti-train failed");
    if (train.placement != NULL) tutti_placement_abort(train.placement, "a rank of tutti-train failed");
close:
    tutti_train_close(&train);
    return code;
}

/* stand_alone with several ranks: each trains on a communicator of its own, and rank 0 writes and prints. */
static tutti_status stand_alone(tutti_comm *world, tutti_arguments *arguments, tutti_comm **own_out) {
    tutti_parallel_mode mode = TUTTI_MODE_DATA_PARALLEL;
    *own_out = NULL;
    if (arguments->parallel_mode != NULL) TUTTI_TRY(tutti_strategy_find_mode(arguments->parallel_mode, &mode));
    if (mode != TUTTI_MODE_STAND_ALONE || tutti_comm_size(world) == 1) return TUTTI_OK;
    const int rank = tutti_comm_rank(world);
    arguments->silent = rank != 0;
    if (arguments->silent) arguments->metrics = arguments->checkpoint_dir = NULL;
    return tutti_comm_split(world, rank, 0, NULL, own_out);
}

int tutti_program_run(int argc, char **argv) {
    tutti_arguments arguments;
    tutti_comm *comm, *own = NULL;
    tutti_status parsed = tutti_arguments_parse(argc, argv, &arguments);
    if (parsed == TUTTI_OK && arguments.help) {
        tutti_arguments_print(stdout);
        return 0;
    }
    if (parsed == TUTTI_OK && arguments.version) {
        printf("tutti-train %s\n", tutti_version());
        return 0;
    }
    tutti_gemm_use_one_thread();
    char text[1024]; /* creating the communicator may leave a text of its own */
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (tutti_comm_create_world(&comm) != TUTTI_OK) return report(0, 1);
    if (parsed != TUTTI_OK) tutti_fail(parsed, "%s", text);
    if (parsed == TUTTI_OK) parsed = stand_alone(comm, &arguments, &own);
    int code = train_on(own != NULL ? own : comm, &arguments, parsed);
    if (own != NULL) tutti_comm_destroy(own);
    tutti_comm_destroy(comm);
    return code;
}
