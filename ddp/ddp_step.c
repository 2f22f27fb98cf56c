/*
 * Reduces the buckets of one step.
 *
 * With a spare core each bucket is launched as soon as it and all before it are complete, and finish() waits for it.
 * Without one, reducing during backward would only take the core from backward: finish() then reduces the buckets
 * itself, one after the other. Both ways issue the same collectives in the same order.
 *
 * On a GPU buckets are always launched at once, in their own stream, and only the caller's stream waits: a step can
 * be captured into a CUDA graph where the collectives can. A failure breaks the communicator, and the next call
 * reports it.
 */
#include <stdio.h>
#include <time.h>

#include "ddp/ddp_state.h"

int64_t tutti_ddp_step_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static tutti_status reduce_in_stream(tutti_ddp *ddp, ddp_bucket *bucket) {
    const size_t count = bucket->bytes / tutti_type_bytes(bucket->type);
    if (tutti_comm_size(ddp->comm) == 1) return TUTTI_OK; /* one rank: its sum and mean are the bucket itself */
    TUTTI_TRY(tutti_ddp_memory_fork(ddp));
    if (ddp->options.zero)
        return tutti_ddp_zero_reduce(ddp, bucket, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = ddp->stream));
    return tutti_all_reduce(ddp->comm, bucket->memory, bucket->memory, count, bucket->type, ddp->reduction,
                            &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = ddp->stream));
}

static tutti_status reduce_bucket(tutti_ddp *ddp, ddp_bucket *bucket, tutti_work **work) {
    if (tutti_ddp_on_gpu(ddp)) return reduce_in_stream(ddp, bucket);
    if (ddp->options.zero)
        return tutti_ddp_zero_reduce(ddp, bucket, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST, .work = work));
    const size_t count = bucket->bytes / tutti_type_bytes(bucket->type);
    return tutti_all_reduce(ddp->comm, bucket->memory, bucket->memory, count, bucket->type, ddp->reduction,
                            &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST, .work = work));
}

tutti_status tutti_ddp_step_launch(tutti_ddp *ddp) {
    for (; ddp->nlaunched < ddp->nbuckets; ddp->nlaunched++) {
        ddp_bucket *bucket = &ddp->buckets[ddp->nlaunched];
        if (bucket->nready < bucket->nparameters) break;
        TUTTI_TRY(reduce_bucket(ddp, bucket, &bucket->work));
    }
    return TUTTI_OK;
}

static tutti_status complete_in_place(tutti_ddp *ddp) {
    for (size_t i = 0; i < ddp->nbuckets; i++) {
        const int64_t start_ns = tutti_ddp_step_now_ns();
        TUTTI_TRY(reduce_bucket(ddp, &ddp->buckets[i], NULL));
        ddp->statistics.communication_ns += tutti_ddp_step_now_ns() - start_ns;
    }
    return TUTTI_OK;
}

/* Waits for every launched bucket, even after a failure: a bucket under way uses the buckets' memory. */
static tutti_status wait_for_launched(tutti_ddp *ddp) {
    tutti_work *failed = NULL;
    for (size_t i = 0; i < ddp->nlaunched; i++) {
        tutti_work *work = ddp->buckets[i].work;
        tutti_work_details details;
        if (tutti_work_wait(work, -1) != TUTTI_OK && !failed) failed = work;
        if (tutti_work_get(work, &details) == TUTTI_OK)
            ddp->statistics.communication_ns += details.end_ns - details.start_ns;
    }
    return failed ? tutti_work_wait(failed, -1) : TUTTI_OK; /* waits again to get the text of the first failure */
}

tutti_status tutti_ddp_step_complete(tutti_ddp *ddp) {
    if (tutti_ddp_on_gpu(ddp)) {
        TUTTI_TRY(tutti_ddp_step_launch(ddp));
        return tutti_comm_size(ddp->comm) > 1 ? tutti_ddp_memory_join(ddp) : TUTTI_OK;
    }
    if (!ddp->statistics.overlapped) return complete_in_place(ddp);
    char text[1024];
    const tutti_status launched = tutti_ddp_step_launch(ddp); /* a bucket that failed to start in ready() fails again */
    snprintf(text, sizeof text, "%s", launched == TUTTI_OK ? "" : tutti_last_error());
    TUTTI_TRY(wait_for_launched(ddp));
    return launched == TUTTI_OK ? TUTTI_OK : tutti_fail(launched, "%s", text);
}

void tutti_ddp_step_cancel(tutti_ddp *ddp) {
    for (size_t i = 0; i < ddp->nbuckets; i++) {
        if (!ddp->buckets[i].work) continue;
        (void)tutti_work_wait(ddp->buckets[i].work, -1); /* the operation has its own deadline */
        tutti_work_free(ddp->buckets[i].work);
        ddp->buckets[i].work = NULL;
    }
}

void tutti_ddp_step_reset(tutti_ddp *ddp) {
    for (size_t i = 0; i < ddp->nparameters; i++) ddp->parameters[i].ready = false;
    for (size_t i = 0; i < ddp->nbuckets; i++) {
        tutti_work_free(ddp->buckets[i].work);
        ddp->buckets[i].work = NULL;
        ddp->buckets[i].nready = 0;
    }
    ddp->nready = 0;
    ddp->nlaunched = 0;
    ddp->first_ready_ns = 0;
}
