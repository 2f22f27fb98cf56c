/*
 * Sleeping until something arrives. A record or state is a plain write, which completes nothing at its receiver:
 * only polling finds it. So a side that goes to sleep announces that in the state that it sends to its peer, and
 * the next record or state that the peer writes carries immediate data, which completes one of the receives that
 * are posted for pieces. Completions signal a bell (a completion channel), armed only here: a side that polls again
 * soon, and its peer's writes, cost nothing more.
 *
 *   sleeper   state: sleeps = 7  ---------------------->  peer
 *             bell rings, polls  <--  record, immediate   sleeps is 7, I woke it from 6: wake it, once
 *
 * A write that the peer made before it read that state wakes no sleeper. It arrives within one round trip of the
 * first, short sleep of a wait, so that a later sleep finds it; in any case no sleep lasts longer than a moment
 * without a poll.
 *
 * Invariant: at most one write of the peer ends each announced sleep, so receives cannot run out.
 */
#include "rdma/stream.h"

/* Does nothing if the peer already knows, since it has not ended the previous sleep. */
static void announce(tutti_rdma_stream *stream) {
    if (stream->announced && stream->wakes == stream->lanes[0].wakes) return;
    stream->announced = true;
    stream->wakes = stream->lanes[0].wakes;
    stream->out->state.sleeps++;
    stream->pipe.counters.sleeps++;
    tutti_rdma_stream_tell(stream);
}

static uint64_t completions(const tutti_rdma_stream *stream) {
    uint64_t sum = 0;
    for (int i = 0; i < stream->nlanes; i++) sum += stream->lanes[i].taken;
    return sum;
}

int tutti_rdma_sleep_on(tutti_rdma_pipe *pipe) {
    tutti_rdma_stream *stream = (tutti_rdma_stream *)pipe;
    if (pipe->status != TUTTI_OK) return -1;
    tutti_rdma_connect_step(stream); /* unread notes would keep it awake */
    uint64_t before = completions(stream);
    if (stream->ended_ns != 0 || !tutti_rdma_stream_poll(stream)) return -1;
    for (int i = 0; i < stream->nlanes; i++)
        if (!tutti_rdma_lane_arm(&stream->lanes[i])) return -1;
    announce(stream);
    return tutti_rdma_stream_poll(stream) && completions(stream) == before ? stream->bells : -1;
}
