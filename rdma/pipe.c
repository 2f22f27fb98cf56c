/*
 * The table of libtutti_verbs.so (rdma.h): the pipe's calls, and records: small messages through the ring.
 *
 * A small message is one RDMA write into the peer's ring; the peer polls its memory. Neither side posts anything
 * else: credits are sent in the records of the opposite direction, and in a write of their own only when a quarter
 * of the ring has been read since the last ones. Only a sleeping side is woken by a completion.
 */
#include <pthread.h>

#include "bootstrap/base/settings.h"
#include "rdma/stream.h"

enum {
    POLL_EVERY = 64,  /* idle rounds between two polls of the completions */
    CLOCK_EVERY = 64, /* idle rounds between two reads of the clock */
};
#define SOCKET_NS      (10 * TUTTI_NS_PER_MS) /* between two checks of the socket */
#define GRACE_NS       (50 * TUTTI_NS_PER_MS) /* for bytes still under way when the other side has ended */
#define LINGER_NS      (2 * TUTTI_NS_PER_S)   /* for sent bytes to arrive, after the last progress */
#define LINGER_MOST_NS (5 * TUTTI_NS_PER_S)   /* for sent bytes to arrive, in total */
#define SPIN_NS        TUTTI_NS_PER_MS        /* the part of that time spent spinning */

/* ---------------------------------------------------------------------------------------------------- sending */

static void note_consumed(tutti_rdma_stream *stream, uint32_t consumed) {
    int32_t more = (int32_t)(consumed - (uint32_t)stream->out_consumed);
    if (more > 0) stream->out_consumed += (uint32_t)more;
}

/* Bytes from here on that go by the ring: whole small parts that fit into one record, or what the peer requested. */
static size_t ring_run(tutti_rdma_stream *stream, size_t left) {
    if (stream->out_position < stream->ring_until)
        return tutti_min_size(left, stream->ring_until - stream->out_position);
    if (left > stream->direct_bytes) return 0;
    const tutti_rdma_parts *parts = &stream->parts;
    for (int i = parts->at + 1; i < parts->count && left < TUTTI_RDMA_RING_RECORD_BYTES; i++) {
        if (parts->part[i].iov_len > stream->direct_bytes) break;
        left += parts->part[i].iov_len;
    }
    return left;
}

/* Returns false if there is no room. */
static bool push_record(tutti_rdma_stream *stream, size_t run) {
    uint64_t line = stream->out_line;
    tutti_rdma_ring_head head = {.position = stream->out_position,
                                 .consumed = (uint32_t)stream->in_line,
                                 .bytes = (uint32_t)tutti_min_size(run, TUTTI_RDMA_RING_RECORD_BYTES)};
    uint32_t step = tutti_rdma_ring_step(line, head.bytes);
    if (line + step - stream->out_consumed > TUTTI_RDMA_RING_LINES) {
        tutti_rdma_ring_read_state(&stream->in->state, &stream->peer_state);
        note_consumed(stream, stream->peer_state.consumed);
        if (line + step - stream->out_consumed > TUTTI_RDMA_RING_LINES) return false;
    }
    if (!tutti_rdma_stream_has_room(stream)) return false;
    tutti_rdma_ring_pack(stream->out->ring, line, &head, &stream->parts);
    tutti_rdma_stream_write(stream, stream->out->ring + tutti_rdma_ring_slot(line),
                            (size_t)tutti_rdma_ring_lines_of(head.bytes) * TUTTI_RDMA_RING_LINE_BYTES);
    stream->out_line += step;
    stream->out_position += head.bytes;
    stream->reported_line = stream->in_line;
    stream->pipe.sent += head.bytes;
    stream->pipe.bytes_out += head.bytes;
    stream->pipe.counters.records++;
    return true;
}

static void send_step(tutti_rdma_stream *stream) {
    tutti_rdma_pipe *pipe = &stream->pipe;
    while (pipe->sent < pipe->to_send && stream->phase == TUTTI_RDMA_PHASE_UP) {
        size_t left = tutti_rdma_parts_left(&stream->parts);
        bool direct = tutti_rdma_memory_is_held(&stream->source) || stream->pieces_done != stream->pieces_posted;
        size_t run = direct ? 0 : ring_run(stream, left);
        if (run > 0 ? !push_record(stream, run) : !tutti_rdma_direct_send(stream)) break;
    }
}

static tutti_status send_parts(tutti_rdma_pipe *pipe, const struct iovec *parts, int nparts) {
    tutti_rdma_stream *stream = (tutti_rdma_stream *)pipe;
    size_t bytes = 0;
    for (int i = 0; i < nparts; i++) bytes += parts[i].iov_len;
    pipe->to_send = bytes;
    pipe->sent = 0;
    if (pipe->status != TUTTI_OK) return tutti_rdma_host->fail(pipe->status, "%s", pipe->error);
    tutti_rdma_parts_set(&stream->parts, parts, nparts);
    stream->looks = 0;
    if (TUTTI_UNLIKELY(tutti_rdma_host->fault("rdma_break"))) tutti_rdma_lane_fail(&stream->lanes[0]);
    send_step(stream);
    return pipe->status;
}

/* -------------------------------------------------------------------------------------------------- receiving */

/* Takes bytes that have arrived in the ring for the receive under way; true: it took some. */
static bool take_record(tutti_rdma_stream *stream) {
    tutti_rdma_pipe *pipe = &stream->pipe;
    tutti_rdma_ring_head head;
    if (!tutti_rdma_ring_look(stream->in->ring, stream->in_line, &head)) return false;
    if (head.position + stream->in_offset != stream->in_position) return false; /* pieces come before it */
    if (TUTTI_UNLIKELY(head.bytes <= stream->in_offset || head.bytes > TUTTI_RDMA_RING_RECORD_BYTES)) {
        tutti_rdma_stream_break(stream, TUTTI_ERR_DATA, "%s sent an invalid record of %u bytes", stream->peer,
                                head.bytes);
        return false;
    }
    size_t wanted = tutti_min_size(head.bytes - stream->in_offset, pipe->to_receive - pipe->received);
    size_t got = tutti_rdma_ring_unpack(stream->in->ring, stream->in_line, stream->in_offset,
                                        stream->dst + pipe->received, wanted);
    tutti_rdma_stream_note_received(stream, got);
    stream->in_offset += got;
    if (stream->in_offset == head.bytes) {
        note_consumed(stream, head.consumed);
        stream->in_line += tutti_rdma_ring_step(stream->in_line, head.bytes);
        stream->in_offset = 0;
        if (stream->in_line - stream->reported_line >= TUTTI_RDMA_RING_LINES / 4) tutti_rdma_stream_tell(stream);
    }
    return got > 0;
}

/* Takes a piece, or a record: records are posted before the piece, hence are there if the piece is. */
static bool take_piece(tutti_rdma_stream *stream) {
    if (stream->phase == TUTTI_RDMA_PHASE_UP && !tutti_rdma_stream_poll(stream)) return false;
    return take_record(stream) || tutti_rdma_direct_take(stream);
}

static void recv_step(tutti_rdma_stream *stream) {
    tutti_rdma_pipe *pipe = &stream->pipe;
    bool may_take = stream->phase == TUTTI_RDMA_PHASE_UP || stream->phase == TUTTI_RDMA_PHASE_GONE;
    while (pipe->received < pipe->to_receive && may_take && pipe->status == TUTTI_OK) {
        if (take_record(stream)) continue;
        if (tutti_rdma_memory_is_held(&stream->target) && take_piece(stream)) continue;
        tutti_rdma_direct_ask(stream);
        break;
    }
    if (tutti_rdma_memory_is_held(&stream->target) && pipe->received == pipe->to_receive)
        tutti_rdma_memory_release(&stream->target);
}

static tutti_status receive(tutti_rdma_pipe *pipe, void *dst, size_t bytes) {
    tutti_rdma_stream *stream = (tutti_rdma_stream *)pipe;
    pipe->to_receive = bytes;
    pipe->received = 0;
    if (pipe->status != TUTTI_OK) return tutti_rdma_host->fail(pipe->status, "%s", pipe->error);
    stream->dst = dst;
    recv_step(stream);
    return pipe->status;
}

/* --------------------------------------------------------------------------------------------------- progress */

static bool under_way(const tutti_rdma_pipe *pipe) {
    return pipe->sent != pipe->to_send || pipe->received != pipe->to_receive;
}

/* Nothing moved: checks for faults, rarely, since it costs a system call. */
static void look_around(tutti_rdma_stream *stream) {
    if (++stream->idle % POLL_EVERY == 0) tutti_rdma_stream_poll(stream);
    if (stream->idle % CLOCK_EVERY != 0 && stream->phase == TUTTI_RDMA_PHASE_UP) return;
    bool over = stream->phase == TUTTI_RDMA_PHASE_GONE; /* set before the last look into the ring */
    int64_t now = tutti_rdma_host_now_ns();
    if (now - stream->checked_ns < SOCKET_NS && stream->phase == TUTTI_RDMA_PHASE_UP) return;
    stream->checked_ns = now;
    tutti_rdma_connect_step(stream);
    over = over || (stream->ended_ns != 0 && now - stream->ended_ns > GRACE_NS);
    if (over && under_way(&stream->pipe))
        tutti_rdma_stream_break(stream, TUTTI_ERR_PEER_DIED, "%s has ended, or closed the connection", stream->peer);
}

static tutti_status progress(tutti_rdma_pipe *pipe) {
    tutti_rdma_stream *stream = (tutti_rdma_stream *)pipe;
    if (pipe->status != TUTTI_OK) return tutti_rdma_host->fail(pipe->status, "%s", pipe->error);
    uint64_t before = pipe->bytes_out + pipe->bytes_in;
    if (stream->unreported) tutti_rdma_stream_tell(stream);
    if (pipe->sent < pipe->to_send) send_step(stream);
    if (pipe->received < pipe->to_receive) recv_step(stream);
    if (pipe->bytes_out + pipe->bytes_in == before) look_around(stream);
    return pipe->status;
}

/* ----------------------------------------------------------------------------------------------------- sleeping
 * A record or state is a plain write, which completes nothing at its receiver: only polling finds it. So a side that
 * goes to sleep announces that in the state that it sends to its peer, and the next record or state that the peer
 * writes carries immediate data, which completes one of the receives that are posted for pieces. Completions signal a
 * bell (a completion channel), armed only here: a side that polls again soon, and its peer's writes, cost nothing more.
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

static int sleep_on(tutti_rdma_pipe *pipe) {
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

/* ------------------------------------------------------------------------------------------------------ closing */

/* Returns whether a cancel would interrupt a transfer. A receive that has not begun can be withdrawn: no byte has
 * arrived, and no buffer is granted to the peer. */
static bool is_cut(const tutti_rdma_stream *stream) {
    const tutti_rdma_pipe *pipe = &stream->pipe;
    bool receiving = pipe->received != pipe->to_receive;
    return pipe->sent != pipe->to_send ||
           (receiving && (pipe->received > 0 || tutti_rdma_memory_is_held(&stream->target)));
}

static void cancel(tutti_rdma_pipe *pipe) {
    tutti_rdma_stream *stream = (tutti_rdma_stream *)pipe;
    if (is_cut(stream))
        tutti_rdma_stream_break(stream, TUTTI_ERR_ABORTED, "the transfer with %s was cut off", stream->peer);
    tutti_rdma_memory_release(&stream->source);
    pipe->to_send = pipe->sent;
    pipe->to_receive = pipe->received;
}

/* Returns whether all writes have arrived in the peer's memory: pieces have, as they count as sent; lane 0 decides. */
static bool has_arrived(tutti_rdma_stream *stream) {
    tutti_rdma_lane *lane = &stream->lanes[0];
    if (!tutti_rdma_stream_poll(stream)) return false;
    if (lane->completed == lane->posted) return true;
    if (lane->quiet > 0 &&
        tutti_rdma_lane_has_room(lane, 1)) /* its completion proves that the writes before it are done */
        tutti_rdma_lane_post(
            lane, &(tutti_rdma_lane_write){.to = stream->remote, .remote_key = lane->remote_key, .signaled = true});
    return false;
}

/* Waits until all sent bytes have arrived, even if lanes must be reconnected for that, while that makes progress. */
static void linger(tutti_rdma_stream *stream) {
    int64_t start = tutti_rdma_host_now_ns(), now = start, moved = start;
    tutti_rdma_phase phase = stream->phase;
    while (now - moved < LINGER_NS && now - start < LINGER_MOST_NS) {
        tutti_rdma_connect_step(stream);
        if (stream->pipe.status != TUTTI_OK || stream->ended_ns != 0 || has_arrived(stream)) return;
        now = tutti_rdma_host_now_ns();
        if (stream->phase != phase) moved = now;
        phase = stream->phase;
        if (now - start > SPIN_NS) tutti_rdma_connect_nap(stream);
    }
}

static void close_pipe(tutti_rdma_pipe *pipe) {
    tutti_rdma_stream *stream = (tutti_rdma_stream *)pipe;
    if (stream == NULL) return;
    const tutti_rdma_counters *counters = &pipe->counters;
    tutti_rdma_host->log(
        TUTTI_LOG_DEBUG,
        "RDMA to %s is closed: %llu bytes sent, %llu received; %llu records, %llu pieces, %llu buffers "
        "registered, %llu found registered, reconnected %llu times",
        stream->peer, (unsigned long long)pipe->bytes_out, (unsigned long long)pipe->bytes_in,
        (unsigned long long)counters->records, (unsigned long long)counters->pieces,
        (unsigned long long)counters->registrations, (unsigned long long)counters->cache_hits,
        (unsigned long long)counters->repairs);
    if (pipe->sent != pipe->to_send) cancel(pipe);
    if (pipe->status == TUTTI_OK) linger(stream);
    if (pipe->status == TUTTI_OK) tutti_rdma_connect_bye(stream, TUTTI_OK, "closed");
    tutti_rdma_connect_close(stream);
}

static tutti_status open_pipe(int socket, tutti_deadline *deadline, tutti_rdma_pipe **pipe_out) {
    tutti_rdma_stream *stream;
    TUTTI_TRY(tutti_rdma_connect_open(socket, deadline, &stream));
    *pipe_out = &stream->pipe;
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------------- the module */

static tutti_status check(void) {
    const tutti_rdma_port *ports;
    int nports;
    return tutti_rdma_devices_get(&ports, &nports);
}

static void forked(void) {
    tutti_devices_forked();
    tutti_rdma_memory_forked();
}

tutti_status tutti_module_start(const tutti_module_host *caller, const tutti_module_calls **calls_out) {
    static const tutti_rdma_module calls = {.head.version = TUTTI_MODULE_VERSION,
                                            .check = check,
                                            .open = open_pipe,
                                            .send = send_parts,
                                            .recv = receive,
                                            .progress = progress,
                                            .sleep_on = sleep_on,
                                            .cancel = cancel,
                                            .close = close_pipe,
                                            .ask = tutti_rdma_memory_ask,
                                            .forget_memory = tutti_rdma_memory_forget,
                                            .describe = tutti_rdma_devices_describe};
    if (caller->version == TUTTI_MODULE_VERSION && tutti_rdma_host == NULL) pthread_atfork(NULL, NULL, forked);
    if (caller->version == TUTTI_MODULE_VERSION)
        tutti_rdma_host = caller; /* else the caller detects the difference, and makes no call */
    *calls_out = &calls.head;
    return TUTTI_OK;
}
