/*
 * Messages on CUDA memory that the communicator's engine carries itself, instead of by way of the host: it is told of all of a
 * group at once. Each has a track like a collective, with its peer as the only rank that it needs.
 */
#include <stdlib.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/stream_state.h"

tutti_status tutti_stream_direct_message(tutti_comm *comm, tutti_message *message) {
    tutti_stream_comm *gpu = atomic_load_explicit(&comm->gpu, memory_order_acquire);
    const tutti_stream_engine *engine = gpu != NULL ? gpu->engine : NULL;
    if (message->peer == comm->rank || tutti_setting_int(TUTTI_SETTING_CUDA_MESSAGES) != 1) return TUTTI_OK;
    if (engine == NULL)
        return tutti_fail(
            TUTTI_ERR_UNSUPPORTED,
            "%s on CUDA memory: with TUTTI_CUDA_MESSAGES=nccl a collective on CUDA memory must come first "
            "on communicator \"%s\" (a barrier with options.memory will do), since in it the ranks meet",
            message->sends ? "send" : "recv", comm->name);
    if (engine->messages == NULL) return TUTTI_OK;
    if (!message->sends && (message->peer == TUTTI_ANY_SOURCE || message->tag == TUTTI_ANY_TAG))
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "recv on CUDA memory: NCCL has no tags and cannot receive from anyone; name the rank and the "
                          "tag, or unset TUTTI_CUDA_MESSAGES");
    message->direct = true;
    return TUTTI_OK;
}

/* A group's messages on their way into streams. */
typedef struct batch {
    tutti_stream_comm *gpu;
    const tutti_message **list;
    tutti_track **tracks;
    size_t count;
    int64_t timeout_ms; /* the shortest */
} batch;

static void batch_free(batch *b) {
    for (size_t i = 0; i < b->count && b->tracks != NULL; i++) tutti_track_drop(b->gpu, b->tracks[i]);
    free(b->list);
    free(b->tracks);
}

/* What is refused here has done nothing. */
static tutti_status check(batch *b, const tutti_message *m) {
    TUTTI_TRY(tutti_stream_gpu(b->gpu->comm, m->gpu, &b->gpu));
    return tutti_stream_refuse_capture(b->gpu, m->stream, m->sends ? "send" : "recv");
}

/* The list of those that are direct. */
static tutti_status gather(batch *b, const tutti_message *messages, size_t count) {
    TUTTI_TRY(tutti_calloc(count, sizeof(tutti_message *), &b->list));
    TUTTI_TRY(tutti_calloc(count, sizeof(tutti_track *), &b->tracks));
    for (size_t i = 0; i < count; i++) {
        if (!messages[i].direct) continue;
        TUTTI_TRY(check(b, &messages[i]));
        int64_t own_ms = messages[i].timeout_ms > 0 ? messages[i].timeout_ms : b->gpu->comm->timeout_ms;
        if (b->count == 0 || own_ms < b->timeout_ms) b->timeout_ms = own_ms;
        b->list[b->count++] = &messages[i];
    }
    return TUTTI_OK;
}

static tutti_status take_track(batch *b, size_t at, tutti_work *whole, tutti_work **work_out) {
    const tutti_message *m = b->list[at];
    TUTTI_TRY(tutti_track_take(b->gpu, &b->tracks[at]));
    tutti_track *track = b->tracks[at];
    track->engine = b->gpu->engine;
    track->op = (tutti_op){.cuda = true};
    track->message = *m;
    track->timeout_ms = m->timeout_ms > 0 ? m->timeout_ms : b->gpu->comm->timeout_ms;
    if (work_out != NULL) {
        TUTTI_TRY(tutti_stream_work(b->gpu->comm, whole, &track->work));
        track->work->source = m->sends ? -1 : m->peer;
        track->work->tag = m->sends ? -1 : m->tag;
        track->work->count = m->sends ? 0 : m->bytes / m->item_bytes;
        tutti_work_retain(track->work);
        *work_out = track->work;
    }
    return tutti_mark_put(track->begun, m->stream);
}

static tutti_status enqueue(batch *b) {
    TUTTI_TRY(b->gpu->engine->messages(b->gpu->comm, b->list, b->count, b->timeout_ms));
    for (size_t i = 0; i < b->count; i++) TUTTI_TRY(tutti_mark_put(b->tracks[i]->done, b->list[i]->stream));
    return TUTTI_OK;
}

/* Their works end; nobody gets them. */
static void take_back(batch *b, const tutti_message *messages, tutti_status status, tutti_work **works_out) {
    for (size_t i = 0; i < b->count; i++) {
        tutti_work *work = b->tracks[i] != NULL ? b->tracks[i]->work : NULL;
        if (work == NULL) continue;
        tutti_work_end(work, status);
        tutti_work_free(work);
        works_out[b->list[i] - messages] = NULL;
    }
}

/* In order, with the GPU current. A failure breaks the communicator: another rank waits for these. */
static tutti_status submit(batch *b, const tutti_message *messages, tutti_work *whole, tutti_work **works_out) {
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < b->count && status == TUTTI_OK; i++)
        status = take_track(b, i, whole, works_out != NULL ? &works_out[b->list[i] - messages] : NULL);
    if (status == TUTTI_OK) status = enqueue(b);
    if (status != TUTTI_OK) status = tutti_comm_give_up(b->gpu->comm, status);
    if (status != TUTTI_OK) {
        take_back(b, messages, status, works_out);
        tutti_stream_watch(b->gpu);
        return status;
    }
    for (size_t i = 0; i < b->count; i++) {
        tutti_track_add(b->gpu, b->tracks[i]);
        b->tracks[i] = NULL;
    }
    return TUTTI_OK;
}

tutti_status tutti_stream_submit_direct(tutti_comm *comm, const tutti_message *messages, size_t count,
                                        tutti_work *whole, tutti_work **works_out) {
    batch b = {.count = 0};
    int before;
    size_t first = 0;
    while (first < count && !messages[first].direct) first++;
    if (first == count) return TUTTI_OK;
    TUTTI_TRY(tutti_stream_gpu(comm, messages[first].gpu, &b.gpu));
    pthread_mutex_lock(&b.gpu->order);
    tutti_status status = tutti_stream_enter(b.gpu, &before);
    if (status == TUTTI_OK) {
        status = gather(&b, messages, count);
        if (status == TUTTI_OK) status = submit(&b, messages, whole, works_out);
        tutti_stream_leave(b.gpu, before);
    }
    pthread_mutex_unlock(&b.gpu->order);
    batch_free(&b);
    return status;
}
