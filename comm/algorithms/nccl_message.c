/*
 * Messages by ncclSend and ncclRecv, with TUTTI_CUDA_MESSAGES=nccl, on a communicator of NCCL's that is theirs alone: so they
 * need not be in line with collectives.
 *
 * NCCL has no tags, tells no size, and each of its calls holds up its stream until the other side has come. That is why it is
 * not the default: here a rank's messages to another are received in the order in which they were sent, both ends are CUDA
 * memory of the same size, and ranks that exchange do so in a group, which is one call of NCCL's.
 *
 *   stream of the first message   ---- waits for the others ---- sends and receives ---- the others wait for it ----
 */
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/algorithms/nccl_state.h"

bool tutti_nccl_wants_messages(void) {
    return tutti_setting_int(TUTTI_SETTING_CUDA_MESSAGES) == 1;
}

/* Does an earlier message use the stream of this one? */
static bool is_known(const tutti_message *const *list, size_t at) {
    for (size_t i = 0; i < at; i++)
        if (list[i]->stream == list[at]->stream) return true;
    return false;
}

/* What is in the streams of all messages comes before what is put into the first one's, or after it. */
static tutti_status join_streams(tutti_nccl_state *state, const tutti_message *const *list, size_t count, bool before) {
    const tutti_device *device = state->comm->gpu->device;
    for (size_t i = 1; i < count; i++) {
        if (is_known(list, i)) continue;
        TUTTI_TRY(device->event_record(state->joint, before ? list[i]->stream : list[0]->stream));
        TUTTI_TRY(device->stream_wait_event(before ? list[0]->stream : list[i]->stream, state->joint));
    }
    return TUTTI_OK;
}

static void add(tutti_nccl_batch *batch, const tutti_message *m, tutti_stream stream) {
    const tutti_nccl *nccl = batch->state->nccl;
    if (m->bytes == 0) return; /* so it is at the other end */
    if (m->sends)
        tutti_nccl_note(batch, nccl->ncclSend(m->src, m->bytes, TUTTI_NCCL_UINT8, m->peer, batch->handle, stream),
                        "ncclSend");
    else
        tutti_nccl_note(batch, nccl->ncclRecv(m->dst, m->bytes, TUTTI_NCCL_UINT8, m->peer, batch->handle, stream),
                        "ncclRecv");
}

tutti_status tutti_nccl_messages(tutti_comm *comm, const tutti_message *const *list, size_t count, int64_t timeout_ms) {
    tutti_nccl_state *state = comm->gpu->engine_state;
    tutti_nccl_batch batch;
    tutti_stream stream;
    TUTTI_TRY(join_streams(state, list, count, /* before */ true));
    TUTTI_TRY(tutti_nccl_step_aside(state, list[0]->stream, &stream));
    TUTTI_TRY(tutti_nccl_begin_messages(state, timeout_ms, &batch));
    for (size_t i = 0; i < count; i++) add(&batch, list[i], stream);
    TUTTI_TRY(tutti_nccl_finish(&batch));
    TUTTI_TRY(tutti_nccl_step_back(state, list[0]->stream, stream));
    return join_streams(state, list, count, /* before */ false);
}
