/*
 * Sends and receives on CUDA memory: through pinned host memory, as ordinary host messages. So the peer may use
 * host memory.
 *
 *   send   stream: copy to pinned memory, mark      watcher: passed -> host send -> done
 *   recv   call: host receive into pinned memory
 *          stream: wait for `go`, copy `came` bytes, mark
 *                                                   watcher: received -> came, go; passed -> done
 *
 * Sends to one peer with one tag start in the order of their calls. A send does not block its stream; a receive
 * blocks it until the sent data is in its buffer. A receive may take less than it asked for; only that much is
 * written. All stream operations are enqueued by the call: the watcher only reads and writes host memory.
 *
 * Invariant: pinned memory is returned when the stream has passed the mark of the call.
 */
#include <stddef.h>
#include <stdlib.h>

#include "bootstrap/base/lock.h"
#include "comm/gpu/stream_state.h"
#include "comm/p2p/p2p.h"

#define GO UINT64_C(1)

/* The words that the stream of a receive waits for and reads; in pinned memory. Written by the watcher, or by the
 * thread that gives up the message. */
typedef struct message_signal {
    _Atomic uint64_t go;   /* release, after all else */
    _Atomic uint64_t came; /* bytes */
} message_signal;

typedef enum message_state {
    MESSAGE_STAGED,    /* send: the copy to pinned memory is in flight; receive: the host message is */
    MESSAGE_UNDER_WAY, /* send: the host message is in flight; receive: the copy from pinned memory is */
    MESSAGE_OVER       /* the stream may not have passed it yet */
} message_state;

typedef struct tutti_stream_message {
    TAILQ_ENTRY(tutti_stream_message) link;
    tutti_message call;
    message_state state;
    tutti_pinned *data;         /* NULL: no bytes */
    tutti_pinned *signal;       /* receive: message_signal */
    tutti_stream_event *passed; /* mark behind the message */
    tutti_work *host;           /* the host message; NULL: not started */
    tutti_work *work;           /* the user's work, or NULL */
} tutti_stream_message;

static void message_free(tutti_stream_message *m) {
    if (m == NULL) return;
    tutti_pinned_return(m->data);
    tutti_pinned_return(m->signal);
    tutti_stream_event_free(m->passed);
    tutti_work_free(m->host);
    tutti_work_free(m->work);
    free(m);
}

/* Releases the stream, which then copies `came` bytes; does nothing if the stream is already released. */
static void release(tutti_stream_message *m, size_t came) {
    if (m->signal == NULL) return;
    message_signal *signal = (message_signal *)(void *)m->signal->memory;
    if (atomic_load_explicit(&signal->go, memory_order_relaxed) == GO) return;
    atomic_store_explicit(&signal->came, came, memory_order_relaxed);
    atomic_store_explicit(&signal->go, GO, memory_order_release);
}

/* ---------------------------------------------------------------------------------------------- enqueueing */

static tutti_status enqueue_send(tutti_stream_comm *gpu, tutti_stream_message *m) {
    const tutti_device *device = gpu->device;
    if (m->data != NULL) TUTTI_TRY(device->copy(m->data->memory, m->call.src, m->call.bytes, m->call.stream));
    return tutti_stream_event_put(m->passed, m->call.stream);
}

static tutti_status enqueue_receive(tutti_stream_comm *gpu, tutti_stream_message *m) {
    const tutti_device *device = gpu->device;
    char *signal = m->signal->on_device;
    TUTTI_TRY(device->wait_value(m->call.stream, signal + offsetof(message_signal, go), GO));
    if (m->data != NULL)
        TUTTI_TRY(device->copy_counted(m->call.dst, m->data->on_device, signal + offsetof(message_signal, came),
                                       m->call.bytes, m->call.stream));
    return tutti_stream_event_put(m->passed, m->call.stream);
}

static tutti_status make(tutti_stream_comm *gpu, const tutti_message *call, tutti_stream_message **message_out) {
    const tutti_device *device = gpu->device;
    tutti_stream_message *m;
    tutti_status status;
    TUTTI_TRY(tutti_calloc(1, sizeof *m, &m));
    m->call = *call;
    if (call->bytes > 0) TUTTI_TRY_GOTO(status, tutti_pinned_lease(device, call->bytes, &m->data), fail);
    TUTTI_TRY_GOTO(status, tutti_stream_event_make(gpu, &m->passed), fail);
    if (!call->sends) TUTTI_TRY_GOTO(status, tutti_pinned_lease(device, sizeof(message_signal), &m->signal), fail);
    *message_out = m;
    return TUTTI_OK;
fail:
    message_free(m);
    return status;
}

static tutti_status start_on_host(tutti_stream_comm *gpu, tutti_stream_message *m) {
    tutti_message host = m->call;
    host.src = host.sends && m->data != NULL ? m->data->memory : NULL;
    host.dst = !host.sends && m->data != NULL ? m->data->memory : NULL;
    host.gpu = TUTTI_PLACE_HOST;
    TUTTI_TRY(tutti_p2p_start(gpu->comm, &host, NULL, &m->host));
    if (!tutti_work_done(m->host)) tutti_queue_serve_p2p(gpu->comm);
    return TUTTI_OK;
}

/* Fails with TUTTI_ERR_UNSUPPORTED if the stream is being captured into a CUDA graph. */
static tutti_status refuse_capture(const tutti_stream_comm *gpu, tutti_stream stream, const char *name) {
    bool captures;
    TUTTI_TRY(gpu->device->stream_captures(stream, &captures));
    if (!captures) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_UNSUPPORTED, "%s cannot be captured into a CUDA graph", name);
}

tutti_status tutti_stream_message_submit(tutti_stream_comm *gpu, const tutti_message *call, tutti_work *whole,
                                         tutti_work **work_out) {
    tutti_stream_message *m;
    TUTTI_TRY(refuse_capture(gpu, call->stream, call->sends ? "send" : "recv"));
    TUTTI_TRY(make(gpu, call, &m));
    tutti_status status = call->sends ? TUTTI_OK : start_on_host(gpu, m);
    if (status == TUTTI_OK) status = call->sends ? enqueue_send(gpu, m) : enqueue_receive(gpu, m);
    if (status == TUTTI_OK && work_out != NULL) status = tutti_stream_work(gpu->comm, whole, &m->work);
    if (status != TUTTI_OK) {
        status = tutti_comm_give_up(gpu->comm, status);
        m->state = MESSAGE_OVER;
        release(m, 0);
        tutti_pinned_abandon(m->signal); /* the stream may wait for it and then read data, with no mark behind that */
        tutti_pinned_abandon(m->data);
        m->signal = m->data = NULL;
    } else if (work_out != NULL) {
        tutti_work_retain(m->work);
        *work_out = m->work;
    }
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    TAILQ_INSERT_TAIL(&gpu->tracks->messages, m, link);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return status;
}

/* ------------------------------------------------------------------------------------------------ progress */

static void end_work(tutti_stream_message *m, tutti_status status) {
    if (m->work == NULL) return;
    if (m->host != NULL && tutti_work_done(m->host)) {
        m->work->source = m->host->source;
        m->work->tag = m->host->tag;
        m->work->count = m->host->count;
    }
    tutti_work_end(m->work, status);
    tutti_work_free(m->work);
    m->work = NULL;
}

/* Ends the message with this status and this thread's error. A failure without a work breaks the communicator. */
static void finish(tutti_stream_comm *gpu, tutti_stream_message *m, tutti_status status) {
    if (status != TUTTI_OK && m->work == NULL) status = tutti_comm_give_up(gpu->comm, status);
    m->state = MESSAGE_OVER;
    release(m, 0);
    end_work(m, status);
}

/* True if an earlier send to the same peer with the same tag has not started. */
static bool must_wait(const tutti_stream_message *m) {
    const tutti_stream_message *earlier = m;
    while ((earlier = TAILQ_PREV(earlier, tutti_stream_message_list, link)) != NULL)
        if (earlier->call.sends && earlier->state == MESSAGE_STAGED && earlier->call.peer == m->call.peer &&
            earlier->call.tag == m->call.tag)
            return true;
    return false;
}

static tutti_status host_outcome(const tutti_stream_message *m) {
    return m->host->status == TUTTI_OK ? TUTTI_OK : tutti_fail(m->host->status, "%s", tutti_work_error(m->host));
}

static void advance_send(tutti_stream_comm *gpu, tutti_stream_message *m) {
    if (m->state == MESSAGE_STAGED) {
        tutti_status status = tutti_stream_event_ask(m->passed);
        if (status == TUTTI_NOT_YET || (status == TUTTI_OK && must_wait(m))) return;
        if (status == TUTTI_OK) status = start_on_host(gpu, m);
        if (status != TUTTI_OK) {
            finish(gpu, m, tutti_comm_give_up(gpu->comm, status));
            return;
        }
        m->state = MESSAGE_UNDER_WAY;
    }
    if (m->state == MESSAGE_UNDER_WAY && tutti_work_done(m->host)) finish(gpu, m, host_outcome(m));
}

static void advance_receive(tutti_stream_comm *gpu, tutti_stream_message *m) {
    tutti_status status = TUTTI_NOT_YET;
    if (m->state == MESSAGE_STAGED) {
        if (!tutti_work_done(m->host)) return;
        status = host_outcome(m);
        if (status == TUTTI_OK) {
            release(m, m->host->count * m->call.item_bytes);
            m->state = MESSAGE_UNDER_WAY;
        }
    }
    if (m->state == MESSAGE_UNDER_WAY) status = tutti_stream_event_ask(m->passed);
    if (status != TUTTI_NOT_YET) finish(gpu, m, status);
}

/* True if neither the host nor the GPU uses the message any more. */
static bool has_passed(const tutti_stream_message *m) {
    if (m->state != MESSAGE_OVER || (m->host != NULL && !tutti_work_done(m->host))) return false;
    return tutti_stream_event_ask(m->passed) != TUTTI_NOT_YET;
}

void tutti_stream_messages_advance(tutti_stream_comm *gpu) {
    tutti_stream_message *m = TAILQ_FIRST(&gpu->tracks->messages), *next;
    if (m != NULL) tutti_p2p_progress();
    for (; m != NULL; m = next) {
        next = TAILQ_NEXT(m, link);
        if (m->state != MESSAGE_OVER && m->call.sends) advance_send(gpu, m);
        else if (m->state != MESSAGE_OVER) advance_receive(gpu, m);
        if (!has_passed(m)) continue;
        TAILQ_REMOVE(&gpu->tracks->messages, m, link);
        message_free(m);
    }
}

void tutti_stream_messages_fail(tutti_stream_comm *gpu) {
    tutti_stream_message *m;
    TAILQ_FOREACH(m, &gpu->tracks->messages, link)
    if (m->state != MESSAGE_OVER) finish(gpu, m, tutti_comm_check(gpu->comm));
}

void tutti_stream_messages_free(tutti_stream_comm *gpu) {
    struct tutti_stream_message_list left = TAILQ_HEAD_INITIALIZER(left);
    tutti_stream_message *m;
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    TAILQ_CONCAT(&left, &gpu->tracks->messages, link);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    while ((m = TAILQ_FIRST(&left)) != NULL) {
        TAILQ_REMOVE(&left, m, link);
        if (m->data != NULL) tutti_pinned_return_after(m->data, tutti_stream_event_share(m->passed));
        if (m->signal != NULL) tutti_pinned_return_after(m->signal, tutti_stream_event_share(m->passed));
        m->data = m->signal = NULL;
        message_free(m);
    }
}
