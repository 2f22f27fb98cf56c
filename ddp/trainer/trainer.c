/*
 * The calls of <tutti/train.h>.
 *
 * Failures that can happen on one rank alone (a missing file, a bad option) are collected before training starts:
 * the ranks agree on the lowest one that failed, all of them return its error, and the communicator stays usable.
 * Later failures abort the communicator, so that no rank waits for one that has failed.
 */
#include <stdio.h>
#include <stdlib.h>

#include <tutti/tensor.h>

#include "ddp/trainer/train.h"
#include "kernels/gemm.h"

enum { TEXT_BYTES = 1024 };

/* Collective: exchanges the status of a part of the preparation. */
static tutti_status agree_ready(tutti_comm *comm, tutti_status status) {
    struct {
        int32_t status;
        char text[TEXT_BYTES];
    } failure = {.status = status};
    const int rank = tutti_comm_rank(comm), nranks = tutti_comm_size(comm);
    int32_t failed = status == TUTTI_OK ? nranks : rank;
    snprintf(failure.text, sizeof failure.text, "%s", tutti_last_error());
    if (nranks == 1) return status;
    TUTTI_TRY(tutti_all_reduce(comm, &failed, &failed, 1, TUTTI_INT32, TUTTI_MIN, NULL));
    if (failed == nranks) return TUTTI_OK;
    TUTTI_TRY(tutti_broadcast(comm, &failure, sizeof failure, TUTTI_UINT8, failed, NULL));
    if (failed == 0)
        return tutti_fail((tutti_status)failure.status, "%s", failure.text); /* usually all ranks have this error */
    return tutti_fail((tutti_status)failure.status, "rank %d: %s", failed, failure.text);
}

/* Aborts the communicators after a failure, so that no rank waits for this one. Keeps the error's text. */
static tutti_status break_off(tutti_trainer *trainer, tutti_status status) {
    char text[TEXT_BYTES];
    if (status == TUTTI_OK) return status;
    snprintf(text, sizeof text, "%s", tutti_last_error());
    tutti_comm_abort(trainer->comm, "training failed on a rank");
    if (trainer->placement != NULL) tutti_placement_abort(trainer->placement, "training failed on a rank");
    return tutti_fail(status, "%s", text);
}

static tutti_status open_agreed(tutti_trainer *trainer, tutti_comm *comm, const tutti_train_model *model,
                                const tutti_train_data *data, const tutti_train_options *options) {
    TUTTI_TRY(agree_ready(comm, tutti_trainer_begin(trainer, model, data, options)));
    TUTTI_TRY(agree_ready(comm, tutti_trainer_prepare(trainer, comm)));
    TUTTI_TRY(agree_ready(comm, tutti_trainer_search(trainer)));
    TUTTI_TRY(agree_ready(comm, tutti_trainer_make(trainer)));
    TUTTI_TRY(tutti_trainer_agree(trainer));
    return break_off(trainer, tutti_trainer_connect(trainer));
}

/* Refuses calls by callbacks: one that starts a step, or a test after each test, would call itself without end. */
static tutti_status check_caller(const tutti_trainer *trainer, const char *call, unsigned events, const char *where) {
    if ((trainer->telling & events) == 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_ARGUMENT, "%s must not be called by a callback%s; see tutti_train_callback", call,
                      where);
}

#define ANY_EVENT (~0u)

tutti_status tutti_train_open(tutti_comm *comm, const tutti_train_model *model, const tutti_train_data *data,
                              const tutti_train_options *options, tutti_trainer **trainer_out) {
    if (comm == NULL || trainer_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_train_open: comm and trainer_out must not be NULL");
    tutti_gemm_use_one_thread();
    tutti_trainer *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL) return agree_ready(comm, tutti_fail(TUTTI_ERR_MEMORY, "no memory for a trainer"));
    const tutti_status status = open_agreed(trainer, comm, model, data, options);
    if (status != TUTTI_OK) tutti_train_close(trainer);
    else *trainer_out = trainer;
    return status;
}

void tutti_train_close(tutti_trainer *trainer) {
    if (trainer == NULL || trainer->telling != 0) return; /* the caller of the callback still uses it */
    tutti_trainer_fini(trainer);
    free(trainer);
}

tutti_status tutti_train_step(tutti_trainer *trainer, double *loss_out) {
    if (trainer == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_train_step: trainer must not be NULL");
    TUTTI_TRY(check_caller(trainer, "tutti_train_step", ANY_EVENT, ""));
    return break_off(trainer, tutti_trainer_step(trainer, loss_out));
}

tutti_status tutti_train_evaluate(tutti_trainer *trainer, tutti_train_evaluation *evaluation_out) {
    if (trainer == NULL || evaluation_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_train_evaluate: trainer and evaluation_out must not be NULL");
    TUTTI_TRY(check_caller(trainer, "tutti_train_evaluate", 1u << TUTTI_EVENT_EVALUATED, "'s evaluated"));
    return break_off(trainer, tutti_trainer_evaluate(trainer, evaluation_out));
}

tutti_status tutti_train_save(tutti_trainer *trainer, char *path_out, size_t capacity) {
    if (trainer == NULL || (path_out == NULL && capacity > 0))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_train_save: trainer must not be NULL, nor path_out with a capacity");
    TUTTI_TRY(check_caller(trainer, "tutti_train_save", 1u << TUTTI_EVENT_SAVED, "'s saved"));
    char path[TUTTI_CHECKPOINT_PATH_BYTES] = "";
    TUTTI_TRY(break_off(trainer, tutti_trainer_save(trainer, path)));
    if (path_out == NULL || (size_t)snprintf(path_out, capacity, "%s", path) < capacity) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_train_save: %s is written; its path does not fit into %zu bytes", path,
                      capacity);
}

tutti_status tutti_train_run(tutti_trainer *trainer, tutti_train_result *result_out) {
    if (trainer == NULL || result_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_train_run: trainer and result_out must not be NULL");
    TUTTI_TRY(check_caller(trainer, "tutti_train_run", ANY_EVENT, ""));
    return break_off(trainer, tutti_trainer_run(trainer, result_out));
}

tutti_status tutti_train_stop(tutti_trainer *trainer) {
    if (trainer == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_train_stop: trainer must not be NULL");
    trainer->asked = true;
    return TUTTI_OK;
}

tutti_status tutti_train_explain(tutti_trainer *trainer, FILE *file) {
    if (trainer == NULL || file == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_train_explain: trainer and file must not be NULL");
    TUTTI_TRY(check_caller(trainer, "tutti_train_explain", ANY_EVENT, ""));
    return break_off(trainer, tutti_trainer_explain(trainer, file));
}

tutti_status tutti_train(tutti_comm *comm, const tutti_train_model *model, const tutti_train_data *data,
                         const tutti_train_options *options, tutti_train_result *result_out) {
    tutti_trainer *trainer;
    if (result_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_train: result_out must not be NULL");
    TUTTI_TRY(tutti_train_open(comm, model, data, options, &trainer));
    const tutti_status status = tutti_train_run(trainer, result_out);
    tutti_train_close(trainer);
    return status;
}
