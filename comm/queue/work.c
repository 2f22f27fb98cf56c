/*
 * Works: the life cycle of an asynchronous operation, and the threads that run callbacks. See tutti.h for the
 * guarantees, queue.h for the threads that run operations, queue.c for waiting.
 *
 * A work is reference-counted: the user's handle, the queue (or point to point) and each waiter hold a reference.
 * `done` is stored last, with release, so that a thread that reads 1 sees status, text and details.
 */
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/thread.h"
#include "comm/base/hooks.h"
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

/* ------------------------------------------------------------------------------------------- callbacks */

/* A callback may wait for other operations, even for those whose callbacks are queued here, so a thread is added
 * whenever all threads are inside callbacks. */
typedef struct job {
    tutti_work *work; /* one reference */
    struct job *next;
} job;

static job *first, **last = &first;

static void run(tutti_work *work) {
    work->callback(work->status, work->callback_context);
    tutti_work_free(work);
}

static bool run_next(int64_t *nap_ns_out) {
    job *next = first;
    *nap_ns_out = TUTTI_NS_PER_S;
    if (next == NULL) return false;
    first = next->next;
    if (first == NULL) last = &first;
    tutti_unlock(TUTTI_LOCK_CALLBACKS);
    run(next->work);
    free(next);
    tutti_lock(TUTTI_LOCK_CALLBACKS);
    return true;
}

static tutti_service callbacks = {
    .thread = TUTTI_THREAD_CALLBACK, .lock = TUTTI_LOCK_CALLBACKS, .round = run_next, .most_threads = INT_MAX};

void tutti_work_call_back(tutti_work *work) {
    job *added = malloc(sizeof *added);
    tutti_work_retain(work);
    if (added == NULL) { /* running it late on this thread is better than never */
        tutti_log(TUTTI_LOG_WARN, "no memory to queue a callback; it runs on the completing thread");
        run(work);
        return;
    }
    *added = (job){.work = work};
    tutti_lock(TUTTI_LOCK_CALLBACKS);
    *last = added;
    last = &added->next;
    bool woken = tutti_service_wake(&callbacks);
    tutti_unlock(TUTTI_LOCK_CALLBACKS);
    if (!woken) tutti_log(TUTTI_LOG_WARN, "cannot start a callback thread; callbacks wait for a running thread");
}

/* ------------------------------------------------------------------------------------------------- end */

static void end_now(tutti_work *work) {
    work->end_ns = tutti_now_ns();
    tutti_lock_in(TUTTI_LOCK_WORK, &work->lock);
    atomic_store_explicit(&work->done, 1, memory_order_seq_cst);
    tutti_callback callback = work->callback;
    tutti_unlock_in(TUTTI_LOCK_WORK, &work->lock);
    if (atomic_load_explicit(&work->sleepers, memory_order_seq_cst) > 0)
        syscall(SYS_futex, &work->done, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    tutti_hooks.channel_ring_own(); /* a thread that waits for peers may wait for this work, too */
    if (callback != NULL) tutti_work_call_back(work);
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
