/*
 * Carries out checked calls. See submit.h.
 */
#include "comm/api/submit.h"

#include "bootstrap/base/status.h"
#include "comm/queue/queue.h"
#include "comm/gpu/stream.h"
#include "comm/p2p/channel.h"
#include "comm/p2p/p2p.h"

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
        return tutti_group_add_op(comm, op, gpu, options != NULL ? options->stream : NULL);
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

static void tell_received(const tutti_message *message, const tutti_work *work) {
    if (message->received == NULL) return;
    *message->received = (tutti_received){.source = work->source, .tag = work->tag, .count = work->count};
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
        return tutti_group_add_message(comm, message);
    }
    if (TUTTI_UNLIKELY(message->gpu != TUTTI_PLACE_HOST))
        return tutti_stream_submit_message(comm, message, NULL, queued ? options->work : NULL);
    if (!queued) {
        if (message_now(comm, message)) return TUTTI_OK;
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
