/*
 * The DDP engine's public calls: create, the steps, statistics.
 *
 * A step is a number of tutti_ddp_ready calls and one tutti_ddp_finish. Each public call holds the engine's lock,
 * so gradients may become ready on several threads. The first synchronised finish lays the buckets out again, in
 * the order in which gradients became ready on rank 0, when all buckets hold the averaged gradients.
 */
#include <stdlib.h>
#include <string.h>

#include "ddp/ddp_state.h"

#define DEFAULT_BUCKET_BYTES       ((size_t)25 << 20)
#define DEFAULT_FIRST_BUCKET_BYTES ((size_t)1 << 20)

/* --------------------------------------------------------------------------------------------- create */

static tutti_status take_options(tutti_ddp *ddp, const tutti_ddp_options *options) {
    ddp->options = TUTTI_DDP_OPTIONS(.bucket_bytes = 0);
    if (options != NULL)
        TUTTI_TRY(tutti_struct_take("tutti_ddp_create: options", "TUTTI_DDP_OPTIONS(...)", options, &ddp->options,
                                    sizeof ddp->options));
    ddp->reduction = ddp->options.sums ? TUTTI_SUM : TUTTI_AVG;
    if (ddp->options.bucket_bytes == 0) ddp->options.bucket_bytes = DEFAULT_BUCKET_BYTES;
    if (ddp->options.first_bucket_bytes == 0) ddp->options.first_bucket_bytes = DEFAULT_FIRST_BUCKET_BYTES;
    if (ddp->options.first_bucket_bytes > ddp->options.bucket_bytes)
        ddp->options.first_bucket_bytes = ddp->options.bucket_bytes;
    if (ddp->options.memory != TUTTI_MEMORY_CUDA) ddp->options.memory = TUTTI_MEMORY_HOST;
    return TUTTI_OK;
}

static tutti_status take_parameter(tutti_ddp *ddp, size_t index, const tutti_ddp_parameter *given) {
    const char *name = given->name ? given->name : "";
    const size_t element_bytes = tutti_type_bytes(given->type);
    if (element_bytes == 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ddp_create: parameter %zu ('%s') has an invalid type %d", index,
                          name, (int)given->type);
    if (given->type == TUTTI_BOOL)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_ddp_create: parameter %zu ('%s') is of bool, which has no gradient", index, name);
    if (!given->data && given->count > 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ddp_create: parameter %zu ('%s') has %zu elements but no data",
                          index, name, given->count);
    if (given->count > SIZE_MAX / 4 / element_bytes)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ddp_create: parameter %zu ('%s') has %zu elements, more than fit",
                          index, name, given->count);
    ddp_parameter *parameter = &ddp->parameters[index];
    parameter->name = strdup(name);
    if (!parameter->name) return tutti_fail(TUTTI_ERR_MEMORY, "tutti_ddp_create: no memory for the name '%s'", name);
    parameter->data = given->data;
    parameter->count = given->count;
    parameter->type = given->type;
    ddp->statistics.bytes += given->count * element_bytes;
    return TUTTI_OK;
}

static tutti_status take_parameters(tutti_ddp *ddp, const tutti_ddp_parameter *parameters, size_t nparameters) {
    if (!parameters && nparameters > 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ddp_create: %zu parameters, but the list is NULL", nparameters);
    ddp->parameters = calloc(nparameters + 1, sizeof *ddp->parameters);
    ddp->ready_order = calloc(nparameters + 1, sizeof *ddp->ready_order);
    if (!ddp->parameters || !ddp->ready_order)
        return tutti_fail(TUTTI_ERR_MEMORY, "tutti_ddp_create: no memory for %zu parameters", nparameters);
    ddp->nparameters = nparameters;
    for (size_t i = 0; i < nparameters; i++) TUTTI_TRY(take_parameter(ddp, i, &parameters[i]));
    /* Backward begins at the last layer. */
    for (size_t i = 0; i < nparameters; i++) ddp->ready_order[i] = nparameters - 1 - i;
    return TUTTI_OK;
}

/* All preparation and checks that a rank can do alone. */
static tutti_status prepare(tutti_ddp *ddp, const tutti_ddp_parameter *parameters, size_t nparameters,
                            const tutti_ddp_options *options) {
    TUTTI_TRY(take_options(ddp, options));
    TUTTI_TRY(tutti_ddp_memory_open(ddp));
    TUTTI_TRY(take_parameters(ddp, parameters, nparameters));
    TUTTI_TRY(tutti_ddp_zero_prepare(ddp));
    ddp_layout made;
    TUTTI_TRY(tutti_ddp_layout_make(ddp, ddp->ready_order, &made));
    tutti_ddp_layout_use(ddp, &made);
    return TUTTI_OK;
}

/* Collective. True when every host has two cores for each of its ranks: one that computes, one that reduces
 * buckets. Reducing buckets inside finish() costs some overlap; taking a core from a computing rank costs more. */
static tutti_status find_spare_cores(tutti_comm *comm, bool *spare_out) {
    tutti_comm_details details;
    TUTTI_TRY(tutti_comm_get(comm, &details));
    int32_t spare = details.host_cores >= 2 * details.host_ranks;
    TUTTI_TRY(tutti_all_reduce(comm, &spare, &spare, 1, TUTTI_INT32, TUTTI_MIN, NULL));
    *spare_out = spare != 0;
    return TUTTI_OK;
}

tutti_status tutti_ddp_create(tutti_comm *comm, const tutti_ddp_parameter *parameters, size_t nparameters,
                              const tutti_ddp_options *options, tutti_ddp **ddp_out) {
    if (!comm || !ddp_out)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ddp_create: %s is NULL", comm ? "ddp_out" : "comm");
    tutti_ddp *ddp = calloc(1, sizeof *ddp);
    if (!ddp)
        return tutti_ddp_agree_on_success(comm, "tutti_ddp_create",
                                          tutti_fail(TUTTI_ERR_MEMORY, "tutti_ddp_create: no memory for the engine"));
    pthread_mutex_init(&ddp->lock, NULL);
    ddp->comm = comm;
    ddp->sync = true;
    tutti_status status = prepare(ddp, parameters, nparameters, options);
    TUTTI_TRY_GOTO(status, tutti_ddp_agree_on_model(ddp, status), fail);
    if (!ddp->options.no_broadcast) TUTTI_TRY_GOTO(status, tutti_ddp_agree_on_data(ddp), fail);
    bool spare = false;
    TUTTI_TRY_GOTO(status, find_spare_cores(comm, &spare), fail);
    ddp->statistics.overlapped =
        (spare || tutti_ddp_on_gpu(ddp)) && tutti_comm_size(comm) > 1; /* a single rank reduces nothing */
    *ddp_out = ddp;
    return TUTTI_OK;

fail:
    tutti_ddp_destroy(ddp);
    return status;
}

tutti_status tutti_ddp_divide(const tutti_ddp_parameter *parameters, size_t nparameters,
                              const tutti_ddp_options *options, int rank, int nranks, tutti_ddp_part *parts_out) {
    if (rank < 0 || rank >= nranks || (!parts_out && nparameters > 0))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_ddp_divide: rank %d of %d%s: expected a rank from 0 on, and parts_out", rank, nranks,
                          parts_out ? "" : ", parts_out is NULL");
    tutti_ddp *ddp = calloc(1, sizeof *ddp);
    if (!ddp) return tutti_fail(TUTTI_ERR_MEMORY, "tutti_ddp_divide: no memory for the engine");
    pthread_mutex_init(&ddp->lock, NULL);
    tutti_status status = take_options(ddp, options);
    if (status == TUTTI_OK) status = take_parameters(ddp, parameters, nparameters);
    for (size_t i = 0; status == TUTTI_OK && i < nparameters; i++)
        parts_out[i] = (tutti_ddp_part){0, parameters[i].count};
    if (status == TUTTI_OK && ddp->options.zero)
        status = tutti_ddp_layout_divide(ddp, ddp->ready_order, rank, nranks, parts_out);
    tutti_ddp_destroy(ddp);
    return status;
}

void tutti_ddp_destroy(tutti_ddp *ddp) {
    if (!ddp) return;
    tutti_ddp_step_cancel(ddp);
    tutti_ddp_layout_release(ddp->buckets, ddp->nbuckets);
    tutti_ddp_memory_close(ddp);
    for (size_t i = 0; ddp->parameters && i < ddp->nparameters; i++) free(ddp->parameters[i].name);
    free(ddp->parameters);
    free(ddp->ready_order);
    pthread_mutex_destroy(&ddp->lock);
    free(ddp);
}

/* ----------------------------------------------------------------------------------------------- steps */

/* Runs `call`, which returns a status, under the lock; refuses a NULL engine. */
#define LOCKED(ddp, name, call)                                                                                        \
    do {                                                                                                               \
        if (!(ddp)) return tutti_fail(TUTTI_ERR_ARGUMENT, name ": ddp is NULL");                                       \
        pthread_mutex_lock(&(ddp)->lock);                                                                              \
        const tutti_status locked_status_ = (call);                                                                    \
        pthread_mutex_unlock(&(ddp)->lock);                                                                            \
        return locked_status_;                                                                                         \
    } while (0)

void *tutti_ddp_gradient(tutti_ddp *ddp, size_t index) {
    if (!ddp || index >= ddp->nparameters) return NULL;
    pthread_mutex_lock(&ddp->lock);
    void *view = tutti_ddp_layout_view(ddp, &ddp->parameters[index]);
    pthread_mutex_unlock(&ddp->lock);
    return view;
}

static tutti_status mark_ready(tutti_ddp *ddp, size_t index) {
    if (index >= ddp->nparameters)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ddp_ready: index %zu, but there are %zu parameters", index,
                          ddp->nparameters);
    ddp_parameter *parameter = &ddp->parameters[index];
    if (parameter->ready)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_ddp_ready: parameter %zu ('%s') was ready already in this step: call it once per "
                          "parameter, and tutti_ddp_finish after each step",
                          index, parameter->name);
    if (ddp->nready == 0) ddp->first_ready_ns = tutti_ddp_step_now_ns();
    parameter->ready = true;
    ddp->ready_order[ddp->nready++] = index;
    ddp->buckets[parameter->bucket].nready++;
    return ddp->sync && ddp->statistics.overlapped ? tutti_ddp_step_launch(ddp) : TUTTI_OK;
}

tutti_status tutti_ddp_ready(tutti_ddp *ddp, size_t index) {
    LOCKED(ddp, "tutti_ddp_ready", mark_ready(ddp, index));
}

/* The step keeps its state: after the missing calls, finish may be called again. */
static tutti_status check_all_ready(const tutti_ddp *ddp) {
    if (ddp->nready == ddp->nparameters) return TUTTI_OK;
    size_t missing = 0;
    while (ddp->parameters[missing].ready) missing++;
    return tutti_fail(TUTTI_ERR_ARGUMENT,
                      "tutti_ddp_finish: parameter %zu ('%s') was not ready, %zu of %zu were: call tutti_ddp_ready for "
                      "each, also for those without a gradient in this step, then finish again",
                      missing, ddp->parameters[missing].name, ddp->nready, ddp->nparameters);
}

/* All ranks use the new layout, or, if one of them cannot make it, none. */
static tutti_status rebuild(tutti_ddp *ddp) {
    ddp_layout made = {.nbuckets = 0};
    tutti_status status = tutti_ddp_agree_on_order(ddp);
    if (status == TUTTI_OK) status = tutti_ddp_layout_make(ddp, ddp->ready_order, &made);
    status = tutti_ddp_agree_on_success(ddp->comm, "tutti_ddp_finish", status);
    if (status != TUTTI_OK) {
        tutti_ddp_layout_drop(&made);
        return status;
    }
    tutti_ddp_layout_use(ddp, &made);
    ddp->statistics.rebuilt = 1;
    if (!tutti_ddp_on_gpu(ddp)) return TUTTI_OK;
    /* Freeing the old buckets waits for all streams of the process. If ranks are threads, the stream of a rank that has
     * begun the next step would wait for a bucket of the rank that frees. */
    return tutti_barrier(ddp->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST));
}

static void add_times(tutti_ddp *ddp, int64_t finish_called_ns) {
    ddp->statistics.steps++;
    if (ddp->nready > 0) ddp->statistics.compute_ns += finish_called_ns - ddp->first_ready_ns;
    ddp->statistics.exposed_ns += tutti_ddp_step_now_ns() - finish_called_ns;
}

static tutti_status finish_step(tutti_ddp *ddp) {
    const int64_t called_ns = tutti_ddp_step_now_ns();
    tutti_status status = TUTTI_OK;
    if (ddp->sync) {
        TUTTI_TRY(check_all_ready(ddp));
        status = tutti_ddp_step_complete(ddp);
        if (status == TUTTI_OK && !ddp->statistics.rebuilt && !ddp->options.zero) status = rebuild(ddp);
        if (status == TUTTI_OK) add_times(ddp, called_ns);
    }
    tutti_ddp_step_reset(ddp);
    return status;
}

tutti_status tutti_ddp_finish(tutti_ddp *ddp) {
    LOCKED(ddp, "tutti_ddp_finish", finish_step(ddp));
}

static tutti_status share(tutti_ddp *ddp) {
    if (ddp->nready > 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_ddp_share: a step is under way, %zu of %zu gradients are ready: call it after "
                          "tutti_ddp_finish and the update",
                          ddp->nready, ddp->nparameters);
    return tutti_ddp_zero_share(ddp);
}

tutti_status tutti_ddp_share(tutti_ddp *ddp) {
    LOCKED(ddp, "tutti_ddp_share", share(ddp));
}

static tutti_status set_sync(tutti_ddp *ddp, int sync) {
    if (ddp->nready > 0)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "tutti_ddp_set_sync: %zu gradients are ready in the step under way: call it before the first, or "
            "after tutti_ddp_finish",
            ddp->nready);
    ddp->sync = sync != 0;
    return TUTTI_OK;
}

tutti_status tutti_ddp_set_sync(tutti_ddp *ddp, int sync) {
    LOCKED(ddp, "tutti_ddp_set_sync", set_sync(ddp, sync));
}

static tutti_status zero_gradients(tutti_ddp *ddp) {
    if (ddp->nlaunched > 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_ddp_zero: %zu buckets of this step are under way: call tutti_ddp_finish first",
                          ddp->nlaunched);
    for (size_t i = 0; i < ddp->nbuckets; i++)
        TUTTI_TRY(tutti_ddp_memory_zero(ddp, ddp->buckets[i].memory, ddp->buckets[i].bytes));
    return TUTTI_OK;
}

tutti_status tutti_ddp_zero(tutti_ddp *ddp) {
    LOCKED(ddp, "tutti_ddp_zero", zero_gradients(ddp));
}

static tutti_status copy_statistics(const tutti_ddp *ddp, tutti_ddp_statistics *statistics_out) {
    if (!statistics_out) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ddp_get_statistics: statistics_out is NULL");
    *statistics_out = ddp->statistics;
    return TUTTI_OK;
}

tutti_status tutti_ddp_get_statistics(const tutti_ddp *ddp, tutti_ddp_statistics *statistics_out) {
    tutti_ddp *engine = (tutti_ddp *)(uintptr_t)ddp; /* reading changes nothing but the lock */
    LOCKED(engine, "tutti_ddp_get_statistics", copy_statistics(ddp, statistics_out));
}
