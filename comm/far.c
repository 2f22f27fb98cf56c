/*
 * Rings that are mirrored over pipes. See far.h.
 */
#include <string.h>

#include "bootstrap/base/deadline.h"
#include "comm/far_state.h"

#define FRAME_MAGIC    UINT32_C(0x74746672)
#define LEGACY_NS      INT64_C(1000000000)
#define LOOKS_PER_NEWS 8
#define PARTS_AT_ONCE  16                             /* of frames that come in: then others have a turn */
#define NEWS_BYTES     (TUTTI_CHANNEL_RING_BYTES / 8) /* read of the ring since the last news: time for others */

/* -------------------------------------------------------------------------------------------- our ring */

/* Sends what the ring has and the peer has not been sent. */
static bool send_ring(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    uint64_t bytes = channel->head - far->sent;
    if (bytes == 0 || !tutti_pipe_has_sent(far->out)) return false;
    size_t offset = far->sent & (TUTTI_CHANNEL_RING_BYTES - 1);
    size_t first = tutti_min_size(bytes, TUTTI_CHANNEL_RING_BYTES - offset);
    far->out_frame = (tutti_far_frame){.magic = FRAME_MAGIC, .bytes = (uint32_t)bytes};
    struct iovec parts[3] = {{.iov_base = &far->out_frame, .iov_len = offsetof(tutti_far_frame, lead)},
                             {.iov_base = channel->own->ring + offset, .iov_len = first},
                             {.iov_base = channel->own->ring, .iov_len = bytes - first}};
    far->sent = channel->head;
    far->out->transport->send(far->out, parts, first < bytes ? 3 : 2);
    return true;
}

/* Bytes that still have to be given to the pipe count as something pending: somebody has to come back for them. */
static void count_busy(tutti_channels *channel) {
    bool busy = tutti_far_is_busy(channel);
    if (busy != channel->busy) atomic_fetch_add_explicit(&tutti_p2p.pending, busy ? 1 : -1, memory_order_relaxed);
    channel->busy = busy;
}

bool tutti_far_can_stream(const tutti_channels *channel) {
    const struct tutti_far *far = channel->far;
    return far->out != NULL && far->out->status == TUTTI_OK && tutti_pipe_has_sent(far->out) &&
           channel->head == far->sent;
}

static void send_stream(struct tutti_far *far, const char *data) {
    struct iovec parts[2] = {{.iov_base = &far->out_frame, .iov_len = sizeof far->out_frame},
                             {.iov_base = (char *)(uintptr_t)data, .iov_len = far->out_frame.bytes}}; /* only read */
    far->out->transport->send(far->out, parts, 2);
}

void tutti_far_stream(tutti_channels *channel, tutti_request *request) {
    struct tutti_far *far = channel->far;
    const char *data = request->buffer + request->moved;
    far->out_frame =
        (tutti_far_frame){.magic = FRAME_MAGIC,
                          .bytes = (uint32_t)tutti_min_size(TUTTI_FAR_STREAM_BYTES, request->wanted - request->moved),
                          .transfer = request->answer,
                          .offset = request->moved};
    far->out_request = far->out->movable ? request : NULL;
    send_stream(far, far->out->movable ? data : memcpy(far->stream, data, far->out_frame.bytes));
    request->moved += far->out_frame.bytes;
    count_busy(channel);
}

void tutti_far_let_go(tutti_channels *channel, const tutti_request *request) {
    struct tutti_far *far = channel->far;
    if (far->out_request == request) {
        far->out_request = NULL;
        const char *data = request->buffer + far->out_frame.offset;
        if (!tutti_pipe_has_sent(far->out)) send_stream(far, memcpy(far->stream, data, far->out_frame.bytes));
    }
    if (far->in_request == request) {
        far->in_request = NULL;
        if (!tutti_pipe_has_received(far->in)) far->in->transport->recv(far->in, far->body, far->in_frame.bytes);
    }
}

static bool take_news(struct tutti_far *far) {
    if (far->out->to_receive == 0) {
        far->out->transport->recv(far->out, &far->out_news, sizeof far->out_news);
        return false;
    }
    if (!tutti_pipe_has_received(far->out)) return false;
    atomic_store_explicit(&far->copy->tail, far->out_news.tail, memory_order_release);
    atomic_store_explicit(&far->copy->matched, far->out_news.matched, memory_order_relaxed);
    far->out->transport->recv(far->out, &far->out_news, sizeof far->out_news);
    return true;
}

static bool drive_out(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    if (far->out == NULL) {
        if (far->out_opener == NULL && channel->head != far->sent) tutti_far_start_out(channel);
        if (far->out_opener != NULL) far->out = tutti_far_take_pipe(channel, &far->out_opener);
        if (far->out == NULL) return false;
    }
    /* Without anything to send there are at most news, which are not urgent. */
    if (!tutti_pipe_has_sent(far->out) || far->looks++ % LOOKS_PER_NEWS == 0) far->out->transport->progress(far->out);
    bool moved = take_news(far);
    return send_ring(channel) || moved;
}

/* ------------------------------------------------------------------------------------------ their ring */

static _Atomic uint32_t *word_at(tutti_channel_block *block, uint64_t at) {
    return (_Atomic uint32_t *)(void *)(block->ring + (at & (TUTTI_CHANNEL_RING_BYTES - 1)));
}

/* Puts a frame into the copy of the ring: the end mark first, the first word last (pairs with tutti_channel_peek). */
static void copy_in(struct tutti_far *far, size_t bytes) {
    uint32_t kind;
    memcpy(&kind, far->body, sizeof kind);
    atomic_store_explicit(word_at(far->copy, far->came + bytes), 0, memory_order_relaxed);
    size_t offset = far->came & (TUTTI_CHANNEL_RING_BYTES - 1);
    size_t first = tutti_min_size(bytes, TUTTI_CHANNEL_RING_BYTES - offset);
    memcpy(far->copy->ring + offset + sizeof kind, far->body + sizeof kind, first - sizeof kind);
    memcpy(far->copy->ring, far->body + first, bytes - first);
    atomic_store_explicit(word_at(far->copy, far->came), kind, memory_order_release);
    far->came += bytes;
}

/* Could the peer have sent so much? It may not overwrite what has not been read. */
static bool is_possible(const tutti_channels *channel, const tutti_far_frame *f) {
    uint64_t unread = channel->far->came - channel->tail;
    if (f->magic == FRAME_MAGIC && f->transfer != 0) return f->bytes > 0 && f->bytes <= TUTTI_FAR_STREAM_BYTES;
    return f->magic == FRAME_MAGIC && f->bytes >= TUTTI_CACHE_LINE && f->bytes % TUTTI_CACHE_LINE == 0 &&
           f->bytes <= TUTTI_CHANNEL_RING_BYTES - TUTTI_CACHE_LINE - unread;
}

static bool begin_stream(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    const tutti_far_frame *f = &far->in_frame;
    tutti_request *request = tutti_incoming_stream(channel, f->transfer, f->offset, f->bytes);
    bool straight = request != NULL && far->in->movable;
    far->in_request = straight ? request : NULL;
    far->in->transport->recv(far->in, straight ? request->buffer + request->moved : far->body, f->bytes);
    return true;
}

/* Receives what comes after a frame's header; false: nothing does. */
static bool begin_body(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    const tutti_far_frame *f = &far->in_frame;
    if (f->transfer != 0) return begin_stream(channel);
    memcpy(far->body, f->lead, sizeof f->lead);
    if (f->bytes == sizeof f->lead) return false;
    far->in->transport->recv(far->in, far->body + sizeof f->lead, f->bytes - sizeof f->lead);
    return true;
}

static void take_stream(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    const tutti_far_frame *f = &far->in_frame;
    tutti_request *request = far->in_request;
    far->in_request = NULL;
    if (request == NULL) {
        request = tutti_incoming_stream(channel, f->transfer, f->offset, f->bytes);
        if (request != NULL) memcpy(request->buffer + request->moved, far->body, f->bytes);
    }
    if (request != NULL) tutti_incoming_came(request, f->bytes);
}

/* What has been asked for is there: a frame's header, or its body. Gives whether more of it, or of its stream, must be on
 * its way. */
static bool take_part(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    if (!far->in_body) {
        if (!is_possible(channel, &far->in_frame)) {
            tutti_channel_break(channel, "it sent a frame that makes no sense");
            return false;
        }
        far->in_body = begin_body(channel);
        if (far->in_body) return true;
    }
    bool stream = far->in_frame.transfer != 0;
    far->in_body = false;
    if (stream) take_stream(channel);
    else copy_in(far, far->in_frame.bytes);
    far->in->transport->recv(far->in, &far->in_frame, sizeof far->in_frame);
    return stream;
}

static bool take_frames(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    bool moved = false, looks = true;
    if (far->in->to_receive == 0) far->in->transport->recv(far->in, &far->in_frame, sizeof far->in_frame);
    for (int parts = 0; parts < PARTS_AT_ONCE && !channel->broken; parts++) {
        if (looks && !tutti_pipe_has_received(far->in)) far->in->transport->progress(far->in);
        if (!tutti_pipe_has_received(far->in) || far->in->status != TUTTI_OK) break;
        looks = take_part(channel);
        moved = true;
    }
    return moved;
}

static void tell_news(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    bool due = channel->tail - far->told.tail >= NEWS_BYTES || channel->matched - far->told.matched >= NEWS_BYTES;
    if (!due || !tutti_pipe_has_sent(far->in)) return;
    far->in_news = far->told = (tutti_far_news){.tail = channel->tail, .matched = channel->matched};
    struct iovec part = {.iov_base = &far->in_news, .iov_len = sizeof far->in_news};
    far->in->transport->send(far->in, &part, 1);
}

static bool drive_in(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    if (far->in == NULL) {
        if (far->in_opener == NULL) tutti_far_look_for_in(channel);
        if (far->in_opener != NULL) far->in = tutti_far_take_pipe(channel, &far->in_opener);
        if (far->in == NULL) return false;
    }
    if (!tutti_pipe_has_sent(far->in)) far->in->transport->progress(far->in);
    tell_news(channel);
    return take_frames(channel);
}

/* ----------------------------------------------------------------------------------------------- both */

/* Our connection has ended: what the peer sent before may be on its way on its own, which we may not even have taken yet. */
static bool may_still_come(struct tutti_far *far) {
    int64_t now_ns = tutti_now_ns();
    if (far->cut_since_ns == 0) far->cut_since_ns = now_ns;
    return now_ns - far->cut_since_ns < LEGACY_NS;
}

/* A pipe that has failed: the peer has gone, or can no longer be reached; what it sent before is still read. */
static void note_failures(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    if (channel->gone || far->came != channel->tail) return;
    if (far->in != NULL && far->in->status != TUTTI_OK) tutti_far_lose(channel, far->in->error);
    else if (far->out != NULL && far->out->status != TUTTI_OK && !may_still_come(far))
        tutti_far_lose(channel, far->out->error);
}

bool tutti_far_progress(tutti_channels *channel) {
    bool moved = false;
    if (!channel->broken && !channel->gone) {
        moved = drive_out(channel);
        moved = drive_in(channel) || moved;
        note_failures(channel);
    }
    count_busy(channel);
    return moved;
}

bool tutti_far_is_open(const tutti_channels *channel) {
    return channel->far->out != NULL;
}

bool tutti_far_is_used(const tutti_channels *channel) {
    const struct tutti_far *far = channel->far;
    return far->out != NULL || far->in != NULL || far->out_opener != NULL || far->in_opener != NULL;
}

void tutti_far_reach(tutti_channels *channel) {
    if (!tutti_far_is_used(channel)) tutti_far_start_out(channel);
}

void tutti_far_flush(tutti_channels *channel) {
    if (!channel->broken && !channel->gone) drive_out(channel);
    count_busy(channel);
}

bool tutti_far_is_busy(const tutti_channels *channel) {
    const struct tutti_far *far = channel->far;
    if (channel->broken || channel->gone || (far->out != NULL && far->out->status != TUTTI_OK)) return false;
    return channel->head != far->sent || (far->out != NULL && !tutti_pipe_has_sent(far->out));
}
