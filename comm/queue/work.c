/*
 * Works: the life cycle of an asynchronous operation. See tutti.h for the guarantees, queue.h for the threads that
 * run operations.
 *
 * A work is reference-counted: the user's handle, the queue (or point to point) and each waiter hold a reference.
 * `done` is stored last, with release, so that a thread that reads 1 sees status, text and details.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/interrupt.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/status.h"
#include "comm/base/backoff.h"
#include "comm/base/hooks.h"
#include "comm/base/page.h"
#include "comm/queue/callback_pool.h"
#include "comm/queue/queue.h"

tutti_status tutti_work_create(tutti_comm *comm, tutti_work **work_out) {
    tutti_work *work;
    TUTTI_TRY(tutti_calloc(1, sizeof *work, &work));
    atomic_init(&work->references, 1);
    pthread_mutex_init(&work->lock, NULL);
    tutti_comm_retain(comm);
    work->comm = comm;
    work->status = TUTTI_NOT_YET;
    work->source = -1;
    work->tag = -1;
    work->created_ns = tutti_now_ns();
    *work_out = work;
    return TUTTI_OK;
}

tutti_status tutti_work_own_arrays(const tutti_comm *comm, tutti_work *work) {
    tutti_op *op = &work->op;
    size_t n = (size_t)comm->nranks, entry_bytes = n * sizeof(void *);
    _Static_assert(sizeof(size_t) == sizeof(void *), "pointers and counts share one block");
    if (op->srcs == NULL && op->dsts == NULL) return TUTTI_OK;
    char *block;
    TUTTI_TRY(tutti_calloc(4 * n, sizeof(void *), &block));
    work->arrays = block;
    const void *sources[4] = {op->srcs, op->src_counts, op->dsts, op->dst_counts};
    for (int i = 0; i < 4; i++)
        if (sources[i] != NULL) memcpy(block + (size_t)i * entry_bytes, sources[i], entry_bytes);
    if (op->srcs != NULL) op->srcs = (const void *const *)(void *)block;
    if (op->src_counts != NULL) op->src_counts = (const size_t *)(void *)(block + entry_bytes);
    if (op->dsts != NULL) op->dsts = (void *const *)(void *)(block + 2 * entry_bytes);
    if (op->dst_counts != NULL) op->dst_counts = (const size_t *)(void *)(block + 3 * entry_bytes);
    return TUTTI_OK;
}

void tutti_work_retain(tutti_work *work) {
    atomic_fetch_add_explicit(&work->references, 1, memory_order_relaxed);
}

void tutti_work_free(tutti_work *work) {
    if (work == NULL || atomic_fetch_sub_explicit(&work->references, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_destroy(&work->lock);
    tutti_comm_release(work->comm);
    free(work->error);
    free(work->arrays);
    free(work);
}

int tutti_work_done(const tutti_work *work) {
    return work != NULL && atomic_load_explicit(&work->done, memory_order_acquire) != 0;
}

static void end_now(tutti_work *work) {
    work->end_ns = tutti_now_ns();
    tutti_lock_in(TUTTI_LOCK_WORK, &work->lock);
    atomic_store_explicit(&work->done, 1, memory_order_seq_cst);
    tutti_callback callback = work->callback;
    tutti_unlock_in(TUTTI_LOCK_WORK, &work->lock);
    if (atomic_load_explicit(&work->sleepers, memory_order_seq_cst) > 0)
        syscall(SYS_futex, &work->done, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    tutti_hooks.channel_ring_own(); /* a thread that waits for peers may wait for this work, too */
    if (callback != NULL) tutti_callback_pool_run(work);
}

/* Records the first failure of a work; a group's work collects the failures of its parts. */
static void note_status(tutti_work *work, tutti_status status, const char *text) {
    tutti_lock_in(TUTTI_LOCK_WORK, &work->lock);
    if (work->status == TUTTI_NOT_YET || (work->status == TUTTI_OK && status != TUTTI_OK)) {
        work->status = status;
        if (status != TUTTI_OK) work->error = strdup(text);
    }
    tutti_unlock_in(TUTTI_LOCK_WORK, &work->lock);
}

void tutti_work_end(tutti_work *work, tutti_status status) {
    note_status(work, status, tutti_last_error());
    if (work->release != NULL) work->release(work->context);
    tutti_work *whole = work->whole;
    end_now(work);
    if (whole == NULL) return;
    note_status(whole, status, tutti_last_error());
    if (atomic_fetch_sub_explicit(&whole->parts, 1, memory_order_acq_rel) == 1) end_now(whole);
    tutti_work_free(whole);
}

static void nap(tutti_work *work, int64_t most_ns) {
    atomic_fetch_add_explicit(&work->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&work->done, memory_order_seq_cst) == 0) {
        struct timespec most = {.tv_nsec = most_ns};
        syscall(SYS_futex, &work->done, FUTEX_WAIT_PRIVATE, 0, &most, NULL, 0);
    }
    atomic_fetch_sub_explicit(&work->sleepers, 1, memory_order_relaxed);
}

#define ROUNDS_BEFORE_NAP 400
#define NAP_NS            INT64_C(1000000)
#define SHORTEST_NAP_NS   INT64_C(250000)
#define LONGEST_NAP_NS    INT64_C(20000000) /* if peers wake this thread */

/* For a thread that waits for messages: sleeps until a peer has done something, or a request is complete. */
static void sleep_for_peers(tutti_work *work, int64_t most_ns) {
    uint32_t bell;
    tutti_hooks.channel_sleep_begin(&bell);
    /* Not by the communicator's page: another thread may be destroying the communicator. */
    if (!tutti_can_membarrier() || !tutti_membarrier()) most_ns = SHORTEST_NAP_NS; /* a change may be missed */
    if (!tutti_hooks.p2p_progress_in_turn() && !tutti_work_done(work)) tutti_hooks.channel_sleep(bell, most_ns);
    tutti_hooks.channel_sleep_end();
}

/* Naps become longer while no other work needs this thread. */
static void rest(tutti_work *work, int64_t *nap_ns) {
    if (!tutti_hooks.p2p_pending()) {
        nap(work, NAP_NS);
    } else if (work->streamed || !tutti_queue_is_empty(work->comm)) {
        nap(work, SHORTEST_NAP_NS);
    } else {
        sleep_for_peers(work, *nap_ns);
        /* Peers on other hosts do not wake us. */
        if (work->comm->net.hosts == NULL) *nap_ns = tutti_min_i64(2 * *nap_ns, LONGEST_NAP_NS);
    }
}

static tutti_status attend(tutti_work *work, tutti_deadline *deadline) {
    tutti_backoff backoff = {.yields = !work->comm->spins};
    int64_t nap_ns = SHORTEST_NAP_NS;
    for (unsigned round = 0; !tutti_work_done(work); round++) {
        /* An operation run here lasts as long as its peers take, so a caller with a timeout must not run it. */
        if (deadline->budget_ns == INT64_MAX && tutti_queue_run_next(work->comm)) continue;
        if (tutti_hooks.p2p_progress()) { /* more messages may follow */
            backoff.rounds = 0;
            nap_ns = SHORTEST_NAP_NS;
        }
        if (tutti_work_done(work)) break;
        if (round % 16 == 15 || nap_ns > NAP_NS) {
            TUTTI_TRY(tutti_interrupt_check());
            if (tutti_deadline_passed(deadline)) return TUTTI_NOT_YET;
        }
        if (backoff.rounds < ROUNDS_BEFORE_NAP) tutti_backoff_pause(&backoff);
        else rest(work, &nap_ns);
    }
    return TUTTI_OK;
}

static tutti_status wait_until_done(tutti_work *work, tutti_deadline *deadline) {
    tutti_hooks.channel_attend(1);
    if (work->streamed) tutti_hooks.stream_attend(1);
    tutti_status status = attend(work, deadline);
    if (work->streamed) tutti_hooks.stream_attend(-1);
    tutti_hooks.channel_attend(-1);
    return status;
}

static tutti_status outcome(const tutti_work *work) {
    return work->status == TUTTI_OK ? TUTTI_OK : tutti_fail(work->status, "%s", tutti_work_error(work));
}

tutti_status tutti_work_wait(tutti_work *work, int64_t timeout_ms) {
    if (work == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_work_wait: work is NULL");
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "tutti_work_wait: this process was forked after the call");
    if (!tutti_work_done(work)) {
        tutti_deadline deadline = tutti_deadline_after_ms(timeout_ms);
        tutti_work_retain(work);
        tutti_status status = timeout_ms == 0 ? TUTTI_NOT_YET : wait_until_done(work, &deadline);
        bool done = tutti_work_done(work);
        tutti_work_free(work);
        if (status != TUTTI_OK && !done) return status;
    }
    return outcome(work);
}

tutti_status tutti_work_finish(tutti_work *work) {
    tutti_deadline never = tutti_deadline_after_ms(-1);
    while (wait_until_done(work, &never) != TUTTI_OK) tutti_comm_break(work->comm, TUTTI_ERR_INTERRUPTED);
    return outcome(work);
}

tutti_status tutti_work_get(const tutti_work *work, tutti_work_details *details_out) {
    if (work == NULL || details_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_work_get: NULL argument");
    bool done = tutti_work_done(work);
    int64_t start_ns = 0;
    if (done) start_ns = work->start_ns != 0 ? work->start_ns : work->created_ns; /* not queued: starts when created */
    *details_out = (tutti_work_details){
        .status = done ? work->status : TUTTI_NOT_YET,
        .source = done ? work->source : -1,
        .tag = done ? work->tag : -1,
        .count = done ? work->count : 0,
        .sequence = done ? work->sequence : 0,
        .created_ns = work->created_ns,
        .start_ns = start_ns,
        .end_ns = done ? work->end_ns : 0,
    };
    return TUTTI_OK;
}

const char *tutti_work_error(const tutti_work *work) {
    return tutti_work_done(work) && work->error != NULL ? work->error : "";
}

tutti_status tutti_work_on_done(tutti_work *work, tutti_callback callback, void *context) {
    if (work == NULL || callback == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_work_on_done: NULL argument");
    tutti_lock_in(TUTTI_LOCK_WORK, &work->lock);
    bool first = work->callback == NULL;
    if (first) {
        work->callback = callback;
        work->callback_context = context;
    }
    bool done = atomic_load_explicit(&work->done, memory_order_relaxed) != 0;
    tutti_unlock_in(TUTTI_LOCK_WORK, &work->lock);
    if (!first) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_work_on_done: this work has a callback already");
    if (done) tutti_callback_pool_run(work);
    else tutti_queue_hurry(work);
    return TUTTI_OK;
}
