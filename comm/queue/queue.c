/*
 * The queue of a communicator, its worker thread and the timer on which it sleeps, and waiting for works, which runs
 * queued operations. See queue.h.
 *
 * `busy` is held by the one thread that runs an operation. The thread that clears it wakes the worker if more
 * operations are queued. It stores `busy` and then loads `queued`; the worker has seen `queued` and then loads
 * `busy`: one of the two must see the other's store. A barrier between store and load would take a twentieth of a
 * short call, so the worker, before it sleeps, executes a barrier in all threads (tutti_membarrier).
 */
#include "comm/queue/queue.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/thread.h"
#include "comm/base/backoff.h"
#include "comm/base/hooks.h"
#include "comm/base/page.h"

#define WORKER_IDLE_MS   1000
#define LEAST_DELAY_NS   INT64_C(100000)
#define MOST_DELAY_NS    INT64_C(400000)    /* once the worker has always found nothing to do */
#define MOST_SHORT_BYTES ((size_t)64 << 10) /* takes some 10 us: not worth a switch to another thread */

/* ---------------------------------------------------------------------------------------------- the timer
 * One thread sleeps on it, and any other thread sets it. Setting it to ring soon when it is already set needs no
 * system call, so a queue that is mostly emptied by other threads does not wake its worker for nothing.
 */

enum { OFF, SOON, NOW };

typedef struct wake_timer {
    int fd;                 /* timerfd */
    atomic_int on;          /* OFF, SOON, NOW; set by setters, cleared by the sleeper when it rings */
    _Atomic int64_t due_ns; /* when it rings, according to the last setter; a hint */
} wake_timer;

static tutti_status open_timer(wake_timer *timer) {
    atomic_init(&timer->on, OFF);
    timer->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return timer->fd >= 0 ? TUTTI_OK : tutti_fail_errno(errno, "cannot create a timer for a worker thread");
}

static void close_timer(wake_timer *timer) {
    if (timer->fd >= 0) close(timer->fd);
    timer->fd = -1;
}

static void start_timer(wake_timer *timer, int64_t delay_ns) {
    struct itimerspec when = {.it_value.tv_nsec = delay_ns > 0 ? delay_ns : 1};
    atomic_store_explicit(&timer->due_ns, tutti_now_ns() + delay_ns, memory_order_relaxed);
    timerfd_settime(timer->fd, 0, &when, NULL);
}

/* Rings after at most delay_ns; 0: at once. */
static void set_timer(wake_timer *timer, int64_t delay_ns) {
    int wanted = delay_ns > 0 ? SOON : NOW, on = atomic_load_explicit(&timer->on, memory_order_seq_cst);
    do
        if (on >= wanted) return;
    while (!atomic_compare_exchange_weak_explicit(&timer->on, &on, wanted, memory_order_seq_cst, memory_order_seq_cst));
    start_timer(timer, delay_ns);
}

/* The same, when other threads have done all work for which the timer was set: it rings after delay_ns, and not
 * before half of that. So a timer that is postponed often enough never rings. One setter at a time may call it. */
static void postpone_timer(wake_timer *timer, int64_t delay_ns) {
    int64_t left_ns = atomic_load_explicit(&timer->due_ns, memory_order_relaxed) - tutti_now_ns();
    if (delay_ns <= 0 || atomic_load_explicit(&timer->on, memory_order_seq_cst) != SOON) set_timer(timer, delay_ns);
    else if (left_ns < delay_ns / 2)
        start_timer(timer, delay_ns); /* `on` stays SOON; if the timer has just rung, it rings once more */
}

/* Sleeps until the timer rings; false: most_ms passed first. Stores made before a set_timer are visible after
 * the ring. */
static bool sleep_on_timer(wake_timer *timer, int most_ms) {
    struct pollfd waited = {.fd = timer->fd, .events = POLLIN};
    if (poll(&waited, 1, most_ms) <= 0) return false;
    uint64_t rings;
    if (read(timer->fd, &rings, sizeof rings) < 0) return true; /* set again meanwhile: check, then sleep again */
    /* Must precede the sleeper's check for work. */
    atomic_exchange_explicit(&timer->on, OFF, memory_order_seq_cst);
    return true;
}

/* ---------------------------------------------------------------------------------------------- the queue */

struct tutti_work_queue {
    pthread_mutex_t lock;
    wake_timer timer;        /* the worker sleeps on it; open while the worker is alive */
    int64_t delay_ns;        /* age at which the worker takes a short operation; under lock */
    pthread_cond_t left;     /* for close: the worker has exited */
    tutti_work *head, *tail; /* under lock */
    atomic_int queued;       /* changed under lock, read without */
    atomic_bool for_worker;  /* only the worker may run the oldest operation; changed under lock, read without */
    atomic_int busy;         /* 1: a thread runs an operation */
    bool alive, closed;      /* state of the worker; under lock */
    bool serves_p2p;         /* the worker stays while point-to-point messages are pending; under lock */
    bool fenced; /* the worker cannot order other threads (no membarrier): threads that leave do it themselves */
};

TUTTI_THREAD_LOCAL tutti_comm *tutti_task_comm;

tutti_status tutti_queue_create(tutti_comm *comm) {
    struct tutti_work_queue *queue;
    TUTTI_TRY(tutti_calloc(1, sizeof *queue, &queue));
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->left, NULL);
    queue->timer.fd = -1;
    queue->delay_ns = LEAST_DELAY_NS;
    queue->fenced = !tutti_can_membarrier();
    comm->queue = queue;
    return TUTTI_OK;
}

void tutti_queue_destroy(tutti_comm *comm) {
    struct tutti_work_queue *queue = comm->queue;
    if (queue == NULL) return;
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->left);
    free(queue);
    comm->queue = NULL;
}

/* ---------------------------------------------------------------------------------------------- running */

static bool is_short(const tutti_op *op) {
    return op->src_counts == NULL && op->dst_counts == NULL &&
           op->count * tutti_type_bytes(op->type) <= MOST_SHORT_BYTES;
}

static bool try_busy(struct tutti_work_queue *queue) {
    int free_ = 0;
    return atomic_compare_exchange_strong_explicit(&queue->busy, &free_, 1, memory_order_acquire, memory_order_relaxed);
}

static bool is_busy(struct tutti_work_queue *queue) {
    return atomic_load_explicit(&queue->busy, memory_order_seq_cst) != 0;
}

/* How long the worker leaves the oldest operation to other threads. The thread that started a short operation most
 * likely waits for it next, and then runs it itself. The worker would take its core, so it waits that long. Lock
 * held. */
static int64_t head_start_ns(const struct tutti_work_queue *queue) {
    const tutti_work *head = queue->head;
    if (head == NULL) return queue->delay_ns; /* messages are pending */
    if (head->run != NULL || atomic_load_explicit(&head->hurried, memory_order_relaxed) || !is_short(&head->op))
        return 0;
    int64_t left_ns = queue->delay_ns - (tutti_now_ns() - head->created_ns);
    return left_ns > 0 ? left_ns : 0;
}

/* Makes the worker check the queue. Lock held. */
static void wake_worker(struct tutti_work_queue *queue) {
    if (queue->alive && (queue->head != NULL || queue->serves_p2p)) set_timer(&queue->timer, head_start_ns(queue));
}

static void leave_busy(struct tutti_work_queue *queue) {
    if (TUTTI_LIKELY(!queue->fenced)) {
        atomic_store_explicit(&queue->busy, 0, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst); /* the hardware ordering comes from the worker's barrier */
    } else {
        atomic_store_explicit(&queue->busy, 0, memory_order_seq_cst);
    }
    if (TUTTI_LIKELY(atomic_load_explicit(&queue->queued, memory_order_seq_cst) == 0)) return;
    tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    wake_worker(queue);
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
}

tutti_status tutti_queue_carry_out(tutti_comm *comm, tutti_op *op) {
    return comm->run(comm, op);
}

/* Must be called after the list has changed. Lock held. */
static void note_head(struct tutti_work_queue *queue) {
    atomic_store_explicit(&queue->for_worker, queue->head != NULL && queue->head->run != NULL, memory_order_relaxed);
}

/* all: also operations that only the worker runs. */
static tutti_work *pop(struct tutti_work_queue *queue, bool all) {
    tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    tutti_work *work = queue->head;
    if (work != NULL && work->run != NULL && !all) work = NULL;
    if (work != NULL) {
        queue->head = work->next;
        if (queue->head == NULL) queue->tail = NULL;
        note_head(queue);
        atomic_fetch_sub_explicit(&queue->queued, 1, memory_order_seq_cst);
    }
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    return work;
}

static bool run_next(tutti_comm *comm, bool worker) {
    struct tutti_work_queue *queue = comm->queue;
    if (atomic_load_explicit(&queue->queued, memory_order_acquire) == 0) return false;
    if (!worker && atomic_load_explicit(&queue->for_worker, memory_order_relaxed)) return false;
    if (!try_busy(queue)) return false;
    tutti_work *work = pop(queue, worker);
    if (work == NULL) {
        leave_busy(queue);
        return false;
    }
    work->start_ns = work->op.begun_ns = tutti_now_ns();
    tutti_status status = work->run != NULL ? work->run(work) : comm->run(comm, &work->op);
    work->sequence = work->op.sequence;
    leave_busy(queue);
    tutti_work_end(work, status);
    tutti_work_free(work);
    return true;
}

static tutti_status append(struct tutti_work_queue *queue, tutti_work *work) {
    if (queue->closed) return tutti_fail(TUTTI_ERR_ABORTED, "the communicator is being destroyed");
    tutti_work_retain(work);
    work->next = NULL;
    if (queue->tail != NULL) queue->tail->next = work;
    else queue->head = work;
    queue->tail = work;
    note_head(queue);
    atomic_fetch_add_explicit(&queue->queued, 1, memory_order_seq_cst);
    return TUTTI_OK;
}

/* Another thread runs operations here: queue op behind the operations already queued, and help. */
static tutti_status run_in_turn(tutti_comm *comm, tutti_op *op) {
    tutti_work *work;
    TUTTI_TRY(tutti_work_create(comm, &work));
    work->op = *op;
    tutti_lock_in(TUTTI_LOCK_QUEUE, &comm->queue->lock);
    tutti_status status = append(comm->queue, work);
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &comm->queue->lock);
    if (status == TUTTI_OK) {
        status = tutti_work_finish(work);
    }
    tutti_work_free(work);
    return status;
}

bool tutti_queue_try_enter(tutti_comm *comm) {
    return try_busy(comm->queue);
}

void tutti_queue_leave(tutti_comm *comm) {
    leave_busy(comm->queue);
}

tutti_status tutti_queue_run(tutti_comm *comm, tutti_op *op) {
    struct tutti_work_queue *queue = comm->queue;
    if (TUTTI_UNLIKELY(!try_busy(queue)))
        return tutti_task_comm == comm ? comm->run(comm, op) : run_in_turn(comm, op); /* a task holds `busy` itself */
    if (TUTTI_UNLIKELY(atomic_load_explicit(&queue->queued, memory_order_acquire) > 0)) {
        leave_busy(queue);
        return run_in_turn(comm, op);
    }
    tutti_status status = comm->run(comm, op);
    leave_busy(queue);
    return status;
}

/* ----------------------------------------------------------------------------------------------- worker */

static bool has_work(struct tutti_work_queue *queue) {
    return queue->serves_p2p || (queue->head != NULL && !is_busy(queue) && head_start_ns(queue) == 0);
}

/* Waits for work; false: the worker must exit, because the queue is closed or was idle for a second. Lock held. */
static bool wait_for_work(struct tutti_work_queue *queue) {
    while (!queue->closed && !has_work(queue)) {
        bool ordered = queue->fenced || queue->head == NULL || tutti_membarrier();
        if (!ordered || !is_busy(queue)) wake_worker(queue); /* else the busy thread wakes it */
        tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
        bool rang = sleep_on_timer(&queue->timer, WORKER_IDLE_MS);
        tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
        if (!rang && queue->head == NULL && !queue->serves_p2p) return false;
        queue->delay_ns = has_work(queue) ? LEAST_DELAY_NS : tutti_min_i64(2 * queue->delay_ns, MOST_DELAY_NS);
    }
    return !queue->closed;
}

static void serve_p2p(tutti_comm *comm) {
    struct tutti_work_queue *queue = comm->queue;
    tutti_backoff backoff = {.yields = true};
    while (tutti_hooks.p2p_pending() && atomic_load_explicit(&queue->queued, memory_order_relaxed) == 0 &&
           !atomic_load_explicit(&comm->destroyed, memory_order_relaxed)) {
        if (tutti_hooks.p2p_progress()) backoff.rounds = 0; /* more messages may follow */
        tutti_backoff_pause(&backoff);
    }
    tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    if (!tutti_hooks.p2p_pending()) queue->serves_p2p = false;
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
}

static void *work_thread(void *argument) {
    tutti_comm *comm = argument;
    struct tutti_work_queue *queue = comm->queue;
    tutti_backoff_yields = true; /* other threads of the process compute meanwhile */
    tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    while (wait_for_work(queue)) {
        bool serves = queue->serves_p2p;
        tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
        if (!run_next(comm, /* worker */ true)) {
            if (serves) serve_p2p(comm);
            sched_yield(); /* another thread runs the operation that woke this one */
        }
        tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    }
    queue->alive = false;
    close_timer(&queue->timer);
    pthread_cond_broadcast(&queue->left);
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    tutti_comm_release(comm);
    return NULL;
}

/* Lock held. */
static tutti_status start_worker(tutti_comm *comm) {
    TUTTI_TRY(open_timer(&comm->queue->timer));
    tutti_comm_retain(comm);
    int error = tutti_thread_start(TUTTI_THREAD_QUEUE, work_thread, comm, NULL);
    if (error != 0) {
        close_timer(&comm->queue->timer);
        tutti_comm_release(comm);
        return tutti_fail_errno(error, "cannot start the worker thread of communicator \"%s\"", comm->name);
    }
    comm->queue->alive = true;
    return TUTTI_OK;
}

tutti_status tutti_queue_push(tutti_comm *comm, tutti_work *work) {
    struct tutti_work_queue *queue = comm->queue;
    if (tutti_task_comm == comm)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "a function of tutti_submit on communicator \"%s\" has started something that would wait for the end of "
            "the function: leave options.work NULL in collectives there, and call tutti_submit from elsewhere",
            comm->name);
    tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    tutti_status status = queue->alive || queue->closed ? TUTTI_OK : start_worker(comm);
    if (status == TUTTI_OK) status = append(queue, work);
    /* Earlier works, for which the timer was set, were run by the threads that waited for them. */
    if (queue->alive && queue->head == work && !queue->serves_p2p) postpone_timer(&queue->timer, head_start_ns(queue));
    else wake_worker(queue);
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    return status;
}

tutti_status tutti_queue_submit(tutti_comm *comm, const tutti_op *op, tutti_work **work_out) {
    tutti_work *work;
    TUTTI_TRY(tutti_work_create(comm, &work));
    work->op = *op;
    tutti_status status = tutti_work_own_arrays(comm, work);
    if (status == TUTTI_OK) status = tutti_queue_push(comm, work);
    if (status != TUTTI_OK) {
        tutti_work_free(work);
        return status;
    }
    *work_out = work;
    return TUTTI_OK;
}

void tutti_queue_serve_p2p(tutti_comm *comm) {
    struct tutti_work_queue *queue = comm->queue;
    tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    queue->serves_p2p = true;
    /* Without a worker thread, the transfer progresses whenever the program waits for something. */
    if (!queue->closed && (queue->alive || start_worker(comm) == TUTTI_OK)) wake_worker(queue);
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
}

void tutti_queue_serve_rest(tutti_comm *comm) {
    if (TUTTI_UNLIKELY(comm->net.hosts != NULL) && tutti_hooks.p2p_pending()) tutti_queue_serve_p2p(comm);
}

bool tutti_queue_is_active(tutti_comm *comm) {
    return atomic_load_explicit(&comm->queue->queued, memory_order_acquire) > 0 ||
           atomic_load_explicit(&comm->queue->busy, memory_order_acquire) != 0;
}

#define SETTLE_MS 100

void tutti_queue_settle(tutti_comm *comm) {
    tutti_deadline deadline = tutti_deadline_after_ms(SETTLE_MS);
    while (is_busy(comm->queue) && !tutti_deadline_passed(&deadline)) sched_yield();
}

void tutti_queue_close(tutti_comm *comm) {
    struct tutti_work_queue *queue = comm->queue;
    if (queue == NULL) return;
    tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    queue->closed = true;
    if (queue->alive) set_timer(&queue->timer, 0);
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    for (tutti_work *work; (work = pop(queue, /* all */ true)) != NULL; tutti_work_free(work))
        tutti_work_end(work, tutti_fail(TUTTI_ERR_ABORTED, "communicator \"%s\" was destroyed before the operation ran",
                                        comm->name));
    while (!try_busy(queue)) sched_yield(); /* the running operation finds the communicator broken and returns */
    tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    while (queue->alive) pthread_cond_wait(&queue->left, &queue->lock);
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
}

/* ---------------------------------------------------------------------------------------------- waiting */

static bool is_done(const tutti_work *work) {
    return atomic_load_explicit(&work->done, memory_order_acquire) != 0;
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
    if (!tutti_hooks.p2p_progress_in_turn() && !is_done(work)) tutti_hooks.channel_sleep(bell, most_ns);
    tutti_hooks.channel_sleep_end();
}

/* Naps become longer while no other work needs this thread. */
static void rest(tutti_work *work, int64_t *nap_ns) {
    if (!tutti_hooks.p2p_pending()) {
        nap(work, NAP_NS);
    } else if (work->streamed || atomic_load_explicit(&work->comm->queue->queued, memory_order_acquire) > 0) {
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
    for (unsigned round = 0; !is_done(work); round++) {
        /* An operation run here lasts as long as its peers take, so a caller with a timeout must not run it. */
        if (deadline->budget_ns == INT64_MAX && run_next(work->comm, /* worker */ false)) continue;
        if (tutti_hooks.p2p_progress()) { /* more messages may follow */
            backoff.rounds = 0;
            nap_ns = SHORTEST_NAP_NS;
        }
        if (is_done(work)) break;
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
    if (!is_done(work)) {
        tutti_deadline deadline = tutti_deadline_after_ms(timeout_ms);
        tutti_work_retain(work);
        tutti_status status = timeout_ms == 0 ? TUTTI_NOT_YET : wait_until_done(work, &deadline);
        bool done = is_done(work);
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

/* Makes the worker run the operation as soon as possible. */
static void hurry(tutti_work *work) {
    struct tutti_work_queue *queue = work->comm->queue;
    atomic_store_explicit(&work->hurried, true, memory_order_relaxed);
    tutti_lock_in(TUTTI_LOCK_QUEUE, &queue->lock);
    if (queue->alive) set_timer(&queue->timer, 0);
    tutti_unlock_in(TUTTI_LOCK_QUEUE, &queue->lock);
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
    if (done) tutti_work_call_back(work);
    else hurry(work);
    return TUTTI_OK;
}
