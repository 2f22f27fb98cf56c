/*
 * Carries out checked calls. See api.h.
 *
 * Groups: the calls that a thread makes between begin and end are recorded, and started together by end. All sends and
 * receives are posted first, so that none of them waits for another; the collectives follow in the order of their
 * calls. Of messages on CUDA memory the sends come first: a receive makes the following work in its stream wait. The
 * group's work ends with its last part; while parts are being added it counts one part more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/api/api.h"
#include "comm/base/backoff.h"
#include "comm/base/spread.h"
#include "comm/gpu/stream.h"
#include "comm/p2p/channel.h"
#include "comm/p2p/p2p.h"
#include "comm/queue/queue.h"

static void tell_received(const tutti_message *message, const tutti_work *work) {
    if (message->received == NULL) return;
    *message->received = (tutti_received){.source = work->source, .tag = work->tag, .count = work->count};
}

/* For a message that does not end at once. A thread that waits for it must not look at the pages of the ranks, since
 * the communicator may be destroyed meanwhile, so the call does. */
static void leave_shared_core(tutti_comm *comm, int peer) {
    if (comm->net.hosts != NULL || tutti_backoff_yields || peer < 0 || peer == comm->rank) return;
    if (tutti_core_of(comm, peer) == sched_getcpu()) tutti_spread(comm);
}

/* ------------------------------------------------------------------------------------------------- groups */

typedef struct group {
    tutti_comm *comm; /* NULL: no group is open on this thread */
    tutti_work **ops; /* works whose op is filled in; not started */
    size_t nops, ops_capacity;
    tutti_message *messages;
    tutti_work **message_works; /* one for each message; NULL: not started */
    size_t nmessages, messages_capacity;
} group;

static TUTTI_THREAD_LOCAL group open_group;

bool tutti_group_is_open(const tutti_comm *comm) {
    return open_group.comm == comm;
}

static tutti_status grow(void *array_pointer, size_t count, size_t *capacity, size_t item_bytes) {
    void *array;
    if (count < *capacity) return TUTTI_OK;
    size_t wanted = *capacity > 0 ? 2 * *capacity : 16;
    memcpy(&array, array_pointer, sizeof array);
    array = realloc(array, wanted * item_bytes);
    if (array == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a group of %zu calls", wanted);
    memcpy(array_pointer, &array, sizeof array);
    *capacity = wanted;
    return TUTTI_OK;
}

static void forget(group *g) {
    for (size_t i = 0; i < g->nops; i++) tutti_work_free(g->ops[i]);
    for (size_t i = 0; i < g->nmessages && g->message_works != NULL; i++) tutti_work_free(g->message_works[i]);
    free(g->ops);
    free(g->messages);
    free(g->message_works);
    *g = (group){.comm = NULL};
}

tutti_status tutti_group_begin(tutti_comm *comm) {
    if (comm == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_group_begin: comm is NULL");
    TUTTI_TRY(tutti_comm_check(comm));
    if (open_group.comm != NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_group_begin: this thread has a group open; end it first");
    open_group = (group){.comm = comm};
    return TUTTI_OK;
}

/* gpu: the GPU that holds its buffers, used with `stream`, or TUTTI_PLACE_HOST (stream.h). */
static tutti_status add_op(tutti_comm *comm, const tutti_op *op, int gpu, void *stream) {
    group *g = &open_group;
    TUTTI_TRY(grow(&g->ops, g->nops, &g->ops_capacity, sizeof *g->ops));
    tutti_work *work;
    TUTTI_TRY(tutti_work_create(comm, &work));
    work->op = *op;
    work->gpu = gpu;
    work->stream = stream;
    tutti_status status = tutti_work_own_arrays(comm, work);
    if (status != TUTTI_OK) {
        tutti_work_free(work);
        return status;
    }
    g->ops[g->nops++] = work;
    return TUTTI_OK;
}

static tutti_status add_message(const tutti_message *message) {
    group *g = &open_group;
    TUTTI_TRY(grow(&g->messages, g->nmessages, &g->messages_capacity, sizeof *g->messages));
    g->messages[g->nmessages++] = *message;
    return TUTTI_OK;
}

/* Starts the messages on host memory and the sends, or the receives on CUDA memory. */
static tutti_status start_messages(group *g, tutti_work *whole, bool queued, bool waiting_ones) {
    for (size_t i = 0; i < g->nmessages; i++) {
        const tutti_message *message = &g->messages[i];
        bool cuda = message->gpu != TUTTI_PLACE_HOST;
        if ((cuda && !message->sends) != waiting_ones) continue;
        if (tutti_fault("group_start")) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a part of a group");
        if (cuda)
            TUTTI_TRY(tutti_stream_submit_message(g->comm, message, queued ? whole : NULL,
                                                  queued ? &g->message_works[i] : NULL));
        else {
            tutti_core_publish(g->comm);
            leave_shared_core(g->comm, message->peer);
            TUTTI_TRY(tutti_p2p_start(g->comm, message, whole, &g->message_works[i]));
        }
    }
    return TUTTI_OK;
}

static tutti_status queue_op(group *g, tutti_work *work, tutti_work *whole) {
    work->whole = whole;
    tutti_work_retain(whole);
    atomic_fetch_add_explicit(&whole->parts, 1, memory_order_relaxed);
    tutti_status status = tutti_queue_push(g->comm, work);
    if (status != TUTTI_OK) tutti_work_end(work, status); /* the queue refused the work: end the part here */
    return status;
}

/* Posts all messages, then runs or queues the collectives. A part that could not be started fails the whole. A
 * caller that does not ask for a work waits only for the parts on host memory: the rest is done in stream order. */
static tutti_status start(group *g, tutti_work *whole, bool queued) {
    tutti_work *unseen = NULL;
    TUTTI_TRY(tutti_calloc(g->nmessages, sizeof *g->message_works, &g->message_works));
    TUTTI_TRY(start_messages(g, whole, queued, /* waiting_ones */ false));
    TUTTI_TRY(start_messages(g, whole, queued, /* waiting_ones */ true));
    for (size_t i = 0; i < g->nops; i++) {
        tutti_work *work = g->ops[i];
        if (work->gpu != TUTTI_PLACE_HOST) {
            TUTTI_TRY(tutti_stream_submit(g->comm, &work->op, work->gpu, work->stream, queued ? whole : NULL,
                                          queued ? &unseen : NULL));
            tutti_work_free(unseen);
            unseen = NULL;
        } else if (queued) {
            TUTTI_TRY(queue_op(g, work, whole));
        } else {
            TUTTI_TRY(tutti_queue_run(g->comm, &work->op));
        }
    }
    return TUTTI_OK;
}

static void tell_group(const group *g) {
    for (size_t i = 0; i < g->nmessages; i++) {
        const tutti_work *work = g->message_works[i];
        if (work != NULL && tutti_work_done(work)) tell_received(&g->messages[i], work);
    }
}

tutti_status tutti_group_cancel(tutti_comm *comm) {
    if (comm == NULL || open_group.comm != comm)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_group_cancel: this thread has no group open on that communicator");
    group mine = open_group;
    open_group = (group){.comm = NULL};
    forget(&mine);
    return TUTTI_OK;
}

/* A part could not be started, and peers wait for it; those before it are under way, in the caller's buffers. The
 * communicator breaks, which ends them. */
static tutti_status end_started(tutti_comm *comm, tutti_work *whole, tutti_status status) {
    const tutti_error error = tutti_fail_save();
    tutti_comm_give_up(comm, status);
    (void)tutti_work_finish(whole);
    return tutti_fail_again(status, &error);
}

tutti_status tutti_group_end(tutti_comm *comm, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("tutti_group_end");
    group *g = &open_group;
    if (comm == NULL || g->comm != comm)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_group_end: this thread has no group open on that communicator");
    group mine = *g;
    *g = (group){.comm = NULL}; /* from here on, calls are no longer recorded */
    bool queued = options != NULL && options->work != NULL;
    tutti_work *whole;
    tutti_status status = tutti_work_create(comm, &whole);
    if (status != TUTTI_OK) {
        forget(&mine);
        return status;
    }
    atomic_init(&whole->parts, 1);
    if (!queued) tutti_channel_attend(1); /* as in tutti_submit_message */
    tutti_work *guard = NULL;             /* the part that keeps the whole open while others are added */
    status = tutti_work_create(comm, &guard);
    if (status == TUTTI_OK) {
        guard->whole = whole;
        tutti_work_retain(whole);
        status = start(&mine, whole, queued);
        tutti_work_end(guard, status);
        if (status != TUTTI_OK && !tutti_work_done(whole)) status = end_started(comm, whole, status);
        if (queued && mine.nmessages > 0 && !tutti_work_done(whole)) tutti_queue_serve_p2p(comm);
    }
    tutti_work_free(guard);
    if (status == TUTTI_OK && !queued) {
        status = tutti_work_finish(whole);
        tutti_queue_serve_rest(comm);
    }
    if (!queued) tutti_channel_attend(-1);
    if (!queued) tell_group(&mine);
    forget(&mine);
    if (queued && status == TUTTI_OK) *options->work = whole;
    else tutti_work_free(whole);
    return status;
}

/* -------------------------------------------------------------------------------------------------- calls */

static tutti_memory said_by(const tutti_options *options) {
    return options != NULL ? options->memory : TUTTI_MEMORY_ASK;
}

tutti_status tutti_submit_op(tutti_comm *comm, tutti_op *op, const tutti_options *options) {
    TUTTI_TRY(tutti_comm_check(comm));
    int gpu = TUTTI_PLACE_HOST;
    op->begun_ns = tutti_coarse_now_ns();
    if (TUTTI_UNLIKELY(tutti_stream_concerns(options, op->begun_ns)))
        TUTTI_TRY(tutti_pointer_place_op(comm, op, said_by(options), &gpu));
    if (TUTTI_UNLIKELY(gpu != TUTTI_PLACE_HOST && tutti_task_comm == comm))
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "%s: a function of tutti_submit cannot call collectives on CUDA memory on its communicator",
                          tutti_kind_name(op->kind));
    op->timeout_ms = options != NULL ? options->timeout_ms : 0;
    bool queued = options != NULL && options->work != NULL;
    if (TUTTI_UNLIKELY(tutti_group_is_open(comm))) {
        if (queued) return tutti_fail(TUTTI_ERR_ARGUMENT, "inside a group only tutti_group_end takes options.work");
        return add_op(comm, op, gpu, options != NULL ? options->stream : NULL);
    }
    if (TUTTI_UNLIKELY(gpu != TUTTI_PLACE_HOST))
        return tutti_stream_submit(comm, op, gpu, options != NULL ? options->stream : NULL, NULL,
                                   queued ? options->work : NULL);
    return queued ? tutti_queue_submit(comm, op, options->work) : tutti_queue_run(comm, op);
}

/* Completes a blocking message by the short path; false: the caller must take the long path. */
static bool message_now(tutti_comm *comm, const tutti_message *message) {
    if (message->sends)
        return tutti_p2p_send_now(comm, message->src, message->bytes, message->peer, message->tag) == TUTTI_OK;
    tutti_received received;
    if (tutti_p2p_recv_now(comm, message->dst, message->bytes, message->peer, message->tag, &received) != TUTTI_OK)
        return false;
    if (TUTTI_UNLIKELY(message->received != NULL)) {
        received.count /= message->item_bytes;
        *message->received = received;
    }
    return true;
}

/* The long path of a blocking message. */
static tutti_status message_finish(tutti_comm *comm, const tutti_message *message) {
    tutti_work *work;
    TUTTI_TRY(tutti_p2p_start(comm, message, NULL, &work));
    tutti_status status = tutti_work_finish(work);
    tutti_queue_serve_rest(comm);
    if (status == TUTTI_OK || status == TUTTI_ERR_TRUNCATED) tell_received(message, work);
    tutti_work_free(work);
    return status;
}

tutti_status tutti_submit_message(tutti_comm *comm, tutti_message *message, const tutti_options *options) {
    TUTTI_TRY(tutti_comm_check(comm));
    message->gpu = TUTTI_PLACE_HOST;
    if (TUTTI_UNLIKELY(tutti_stream_concerns(options, tutti_coarse_now_ns()))) {
        TUTTI_TRY(tutti_pointer_place_message(message, said_by(options), &message->gpu));
        message->stream = options != NULL ? options->stream : NULL;
        if (message->gpu != TUTTI_PLACE_HOST && message->received != NULL)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "recv: on CUDA memory the call returns before the message has come; use "
                              "options.work and tutti_work_get instead of options.received");
    }
    bool queued = options != NULL && options->work != NULL;
    if (TUTTI_UNLIKELY(tutti_group_is_open(comm))) {
        if (queued) return tutti_fail(TUTTI_ERR_ARGUMENT, "inside a group only tutti_group_end takes options.work");
        return add_message(message);
    }
    if (TUTTI_UNLIKELY(message->gpu != TUTTI_PLACE_HOST))
        return tutti_stream_submit_message(comm, message, NULL, queued ? options->work : NULL);
    tutti_core_publish(comm);
    if (!queued && message_now(comm, message)) return TUTTI_OK;
    leave_shared_core(comm, message->peer);
    if (!queued) {
        tutti_channel_attend(1); /* before the announcement: a peer that reads it checks whether we wait */
        tutti_status status = message_finish(comm, message);
        tutti_channel_attend(-1);
        return status;
    }
    tutti_work *work;
    TUTTI_TRY(tutti_p2p_start(comm, message, NULL, &work));
    if (!tutti_work_done(work)) tutti_queue_serve_p2p(comm);
    *options->work = work;
    return TUTTI_OK;
}
