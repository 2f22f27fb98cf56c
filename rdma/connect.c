/*
 * Connects a pipe's lanes over its socket, at first and after a fault, and closes it. So polling the lanes, which may
 * start to reconnect them, and writing this side's state, which reconnecting repeats, are here, too.
 *
 *   hello    "my queue pairs and my ring are these; I have received this many of your pieces"   both sides, at once
 *   ready    "mine are connected to yours"
 *   probed   "I have written to you, and your adapter has acknowledged it"                     only when it is opened
 *
 * After a fault the side that detects it fails its lanes, waits until they are flushed, and sends a hello with a
 * higher round; the other side does the same when it reads that hello. Then both write again what the other may
 * lack: the whole ring, whose lines are unchanged, the state, and the pieces that have not arrived. Writing twice
 * changes nothing, so no exact record of what arrived is needed. This is retried until TUTTI_PEER_TIMEOUT_MS after
 * the lanes last worked.
 *
 *   bye      "I close this pipe; all that I sent has reached you, and I have received this many of your pieces"
 *
 * The closing side first waits for a moment until that is true. The other side takes the bytes that it has not yet
 * taken: only then is the pipe gone.
 *
 * Invariant: lanes carry data only after both sides have sent ready in the same round.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "rdma/stream.h"

#define DEATH_MS 200
#define PAUSE_NS (100 * TUTTI_NS_PER_MS) /* least time between two rounds */
enum { PIECE_BYTES = 1 << 20, NOTE_MS = 1000 };
static const char note_magic[4] = "TVrb";

/* ------------------------------------------------------------------------------------------------------- notes */

static bool say(int socket, tutti_rdma_note *note, tutti_rdma_note_kind kind) {
    memcpy(note->magic, note_magic, sizeof note->magic);
    note->version = TUTTI_MODULE_VERSION;
    note->kind = kind;
    note->pid = (uint32_t)getpid();
    gethostname(note->host, sizeof note->host - 1);
    const char *next = (const char *)note;
    size_t left = sizeof *note;
    while (left > 0) {
        ssize_t now = send(socket, next, left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0 && errno == EAGAIN && poll(&(struct pollfd){.fd = socket, .events = POLLOUT}, 1, NOTE_MS) == 1)
            continue;
        if (now <= 0) return false; /* the next read detects the end */
        next += now;
        left -= (size_t)now;
    }
    return true;
}

static void say_simple(tutti_rdma_stream *stream, tutti_rdma_note_kind kind) {
    tutti_rdma_note note = {.round = stream->round};
    say(stream->socket, &note, kind);
}

static void say_hello(tutti_rdma_stream *stream) {
    tutti_rdma_note note = {.round = stream->round,
                            .nlanes = (uint32_t)stream->nlanes,
                            .region = (uint64_t)(uintptr_t)stream->in,
                            .pieces_in = tutti_rdma_pieces_settle(stream)};
    for (int i = 0; i < stream->nlanes; i++) tutti_rdma_lane_address_of(&stream->lanes[i], &note.lanes[i]);
    stream->phase = TUTTI_RDMA_PHASE_HELLO;
    say(stream->socket, &note, TUTTI_RDMA_NOTE_HELLO);
}

void tutti_rdma_connect_bye(tutti_rdma_stream *stream, tutti_status status, const char *text) {
    if (stream->socket < 0) return;
    tutti_rdma_note note = {.status = status, .pieces_in = tutti_rdma_pieces_settle(stream)};
    snprintf(note.text, sizeof note.text, "%s", text);
    say(stream->socket, &note, TUTTI_RDMA_NOTE_BYE);
}

/* Reads the next note; true: it is complete. */
static bool read_note(tutti_rdma_stream *stream) {
    while (stream->note_bytes < sizeof stream->note && stream->ended_ns == 0) {
        ssize_t now = recv(stream->socket, (char *)&stream->note + stream->note_bytes,
                           sizeof stream->note - stream->note_bytes, MSG_DONTWAIT);
        if (now > 0) stream->note_bytes += (size_t)now;
        else if (now < 0 && errno == EINTR) continue;
        else if (now < 0 && errno == EAGAIN) return false;
        else stream->ended_ns = tutti_rdma_host_now_ns();
    }
    if (stream->note_bytes < sizeof stream->note) return false;
    stream->note_bytes = 0;
    return true;
}

/* ------------------------------------------------------------------------------------------- going up and down */

tutti_status tutti_rdma_stream_break(tutti_rdma_stream *stream, tutti_status status, const char *format, ...) {
    tutti_rdma_pipe *pipe = &stream->pipe;
    if (pipe->status != TUTTI_OK) return pipe->status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(pipe->error, sizeof pipe->error, format, arguments);
    va_end(arguments);
    tutti_rdma_connect_bye(stream, status, pipe->error);
    for (int i = 0; i < stream->nlanes; i++) tutti_rdma_lane_down(&stream->lanes[i]);
    tutti_rdma_memory_release(&stream->source); /* only now: the adapter no longer uses them */
    tutti_rdma_memory_release(&stream->target);
    pipe->status = status;
    return tutti_rdma_host->fail(status, "%s", pipe->error);
}

static uint32_t random_sequence(void) {
    uint32_t sequence = 0;
    if (getentropy(&sequence, sizeof sequence) != 0) sequence = (uint32_t)tutti_rdma_host_now_ns();
    return sequence & 0xffffff;
}

/* Takes this side's lanes down, makes them ready to connect again, and sends a hello. */
static void begin_round(tutti_rdma_stream *stream) {
    for (int i = 0; i < stream->nlanes; i++) tutti_rdma_lane_down(&stream->lanes[i]);
    stream->round++;
    stream->round_ns = tutti_rdma_host_now_ns();
    stream->pipe.counters.repairs++;
    for (int i = 0; i < stream->nlanes; i++) {
        if (tutti_rdma_lane_renew(&stream->lanes[i], random_sequence()) == TUTTI_OK) continue;
        tutti_rdma_stream_break(stream, TUTTI_ERR_SYSTEM, "%s", tutti_rdma_host->last_error());
        return;
    }
    say_hello(stream);
}

/* A process that ends loses its memory before its socket: a fault here may be the death of the peer. */
static bool ends(const tutti_rdma_stream *stream) {
    for (int waited_ms = 0; waited_ms < DEATH_MS; waited_ms++) {
        char byte;
        ssize_t got = recv(stream->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got >= 0 || (errno != EAGAIN && errno != EINTR)) return got <= 0;
        poll(&(struct pollfd){.fd = stream->socket, .events = POLLIN}, 1, 1);
    }
    return false;
}

/* Nothing arrives from the peer any more, and nothing reaches it. */
static void gone(tutti_rdma_stream *stream) {
    for (int i = 0; i < stream->nlanes; i++) tutti_rdma_lane_down(&stream->lanes[i]);
    stream->phase = TUTTI_RDMA_PHASE_GONE;
}

/* The peer has closed the pipe: it has received the last pieces, even if this adapter lacks their acknowledgement. */
static void closed(tutti_rdma_stream *stream, const tutti_rdma_note *note) {
    gone(stream);
    stream->ended_ns = tutti_rdma_host_now_ns();
    tutti_rdma_pieces_closed(stream, note->pieces_in);
    if (stream->pieces_done == stream->pieces_posted) tutti_rdma_memory_release(&stream->source);
}

/* The lanes do not work: takes them down now and reconnects them soon, unless that has been tried for long enough. */
static void again(tutti_rdma_stream *stream, bool may, const char *text) {
    int64_t now = tutti_rdma_host_now_ns();
    int64_t limit_ns = tutti_rdma_host->setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS) * TUTTI_NS_PER_MS;
    tutti_log_level level =
        stream->broken_ns == 0 ? TUTTI_LOG_INFO : TUTTI_LOG_DEBUG; /* the first failure of a series */
    if (stream->broken_ns == 0) stream->broken_ns = now;
    if (!may && ends(stream)) may = true; /* the socket will report it */
    if (!may || now - stream->broken_ns > limit_ns) {
        tutti_rdma_stream_break(stream, TUTTI_ERR_SYSTEM, "RDMA to %s failed on %s%s", stream->peer, text,
                                may ? "; reconnecting did not help" : "");
        return;
    }
    tutti_rdma_host->log(level, "RDMA to %s: %s; reconnecting", stream->peer, text);
    for (int i = 0; i < stream->nlanes; i++) tutti_rdma_lane_down(&stream->lanes[i]);
    stream->phase = TUTTI_RDMA_PHASE_BROKEN;
    if (now - stream->round_ns >= PAUSE_NS) begin_round(stream);
}

/* A lane has failed: starts to reconnect all lanes, or fails the pipe. */
static void reconnect(tutti_rdma_stream *stream) {
    char text[320] = "";
    bool may = true;
    for (int i = 0; i < stream->nlanes; i++) {
        if (stream->lanes[i].error == 0) continue;
        if (text[0] == '\0' || stream->lanes[i].error != IBV_WC_WR_FLUSH_ERR)
            tutti_rdma_lane_explain(&stream->lanes[i], text, sizeof text);
        may = may && tutti_rdma_lane_may_retry(stream->lanes[i].error);
    }
    again(stream, may, text);
}

bool tutti_rdma_stream_poll(tutti_rdma_stream *stream) {
    bool good = true;
    if (stream->phase != TUTTI_RDMA_PHASE_UP || stream->pipe.status != TUTTI_OK) return false;
    stream->pipe.counters.receives = 0;
    for (int i = 0; i < stream->nlanes; i++) {
        good = tutti_rdma_lane_poll(&stream->lanes[i]) && good;
        stream->pipe.counters.receives += stream->lanes[i].reposted;
    }
    stream->pipe.counters.wakes = stream->lanes[0].wakes;
    if (stream->broken_ns != 0 && good && stream->lanes[0].completed >= stream->replayed) stream->broken_ns = 0;
    if (!good) reconnect(stream);
    return good;
}

/* Returns whether the peer sleeps and this side has not woken it: the caller must wake it (pipe.c). */
static bool ends_sleep(tutti_rdma_stream *stream) {
    tutti_rdma_ring_read_state(&stream->in->state, &stream->peer_state);
    if (TUTTI_LIKELY(stream->peer_state.sleeps == stream->woken)) return false;
    stream->woken = stream->peer_state.sleeps;
    return true;
}

void tutti_rdma_stream_write(tutti_rdma_stream *stream, const void *from, size_t bytes) {
    tutti_rdma_lane *lane = &stream->lanes[0];
    size_t offset = (size_t)((const char *)from - (const char *)stream->out);
    tutti_rdma_lane_post(lane, &(tutti_rdma_lane_write){.from = from,
                                                        .bytes = bytes,
                                                        .local_key = lane->out->lkey,
                                                        .to = stream->remote + offset,
                                                        .remote_key = lane->remote_key,
                                                        .immediate = ends_sleep(stream)});
    stream->pipe.counters.work_requests++;
}

void tutti_rdma_stream_tell(tutti_rdma_stream *stream) {
    tutti_rdma_ring_state *state = &stream->out->state;
    stream->unreported = true;
    if (stream->phase != TUTTI_RDMA_PHASE_UP || !tutti_rdma_stream_has_room(stream)) return;
    state->consumed = (uint32_t)stream->in_line;
    state->first++;
    state->last = state->first;
    stream->reported_line = stream->in_line;
    stream->unreported = false;
    tutti_rdma_stream_write(stream, state, sizeof *state);
    stream->pipe.counters.states++;
}

/* Writes again everything that the peer may lack. */
static void replay(tutti_rdma_stream *stream) {
    tutti_rdma_lane *lane = &stream->lanes[0];
    tutti_rdma_lane_post(lane, &(tutti_rdma_lane_write){.from = stream->out->ring,
                                                        .bytes = sizeof stream->out->ring,
                                                        .local_key = lane->out->lkey,
                                                        .to = stream->remote,
                                                        .remote_key = lane->remote_key,
                                                        .signaled = true});
    stream->replayed = lane->posted;
    stream->announced = false; /* the write that ends the sleep may be lost */
    tutti_rdma_pieces_replay(stream);
    tutti_rdma_stream_tell(stream);
}

/* ------------------------------------------------------------------------------------------------ handling notes */

/* The first hello: use the smaller number of lanes of both sides. */
static void agree_on_lanes(tutti_rdma_stream *stream, const tutti_rdma_note *note) {
    snprintf(stream->peer, sizeof stream->peer, "%.63s (pid %u)", note->host, note->pid);
    stream->remote = note->region;
    while (stream->nlanes > (int)note->nlanes) tutti_rdma_lane_destroy(&stream->lanes[--stream->nlanes]);
}

static void hello(tutti_rdma_stream *stream, const tutti_rdma_note *note) {
    if (note->status != TUTTI_OK || note->nlanes < 1 || note->nlanes > TUTTI_RDMA_DEVICES_PORTS) {
        tutti_rdma_stream_break(stream, TUTTI_ERR_UNSUPPORTED, "%.63s (pid %u) has no RDMA: %s", note->host, note->pid,
                                note->text);
        return;
    }
    if (note->round == stream->round + 1) begin_round(stream); /* only the peer saw the fault */
    if (stream->pipe.status != TUTTI_OK) return;
    if (note->round != stream->round || stream->phase != TUTTI_RDMA_PHASE_HELLO) {
        tutti_rdma_stream_break(stream, TUTTI_ERR_DATA, "%s sent an unexpected hello", stream->peer);
        return;
    }
    if (note->round == 0) agree_on_lanes(stream, note);
    if (!tutti_rdma_pieces_settled(stream, note->pieces_in)) {
        tutti_rdma_stream_break(stream, TUTTI_ERR_SYSTEM, "RDMA to %s broke and lost data that had been acknowledged",
                                stream->peer);
        return;
    }
    for (int i = 0; i < stream->nlanes; i++) {
        tutti_status status = tutti_rdma_lane_connect(&stream->lanes[i], &note->lanes[i]);
        if (status == TUTTI_OK) continue;
        if (note->round == 0) tutti_rdma_stream_break(stream, status, "%s", tutti_rdma_host->last_error());
        else again(stream, true, tutti_rdma_host->last_error()); /* the port may be down for a moment */
        return;
    }
    stream->phase = TUTTI_RDMA_PHASE_READY;
    say_simple(stream, TUTTI_RDMA_NOTE_READY);
}

static void ready(tutti_rdma_stream *stream, const tutti_rdma_note *note) {
    if (note->round != stream->round || stream->phase != TUTTI_RDMA_PHASE_READY)
        return; /* it belongs to a round that failed on this side */
    stream->phase = TUTTI_RDMA_PHASE_UP;
    if (stream->round > 0) replay(stream);
}

void tutti_rdma_connect_step(tutti_rdma_stream *stream) {
    while (stream->pipe.status == TUTTI_OK && read_note(stream)) {
        tutti_rdma_note *note = &stream->note;
        note->host[sizeof note->host - 1] = note->text[sizeof note->text - 1] = '\0';
        if (memcmp(note->magic, note_magic, sizeof note_magic) != 0 || note->version != TUTTI_MODULE_VERSION) {
            tutti_rdma_stream_break(
                stream, TUTTI_ERR_DATA,
                "%s uses another version of the RDMA protocol; install the same library on all hosts", stream->peer);
        } else if (note->kind == TUTTI_RDMA_NOTE_HELLO) {
            hello(stream, note);
        } else if (note->kind == TUTTI_RDMA_NOTE_READY) {
            ready(stream, note);
        } else if (note->kind == TUTTI_RDMA_NOTE_PROBED) {
            stream->peer_probed = true;
        } else if (note->kind == TUTTI_RDMA_NOTE_BYE && note->status != TUTTI_OK) {
            tutti_rdma_stream_break(stream, TUTTI_ERR_PEER_DIED, "%s failed: %s", stream->peer, note->text);
        } else if (note->kind == TUTTI_RDMA_NOTE_BYE) {
            closed(stream, note);
        }
    }
    if (stream->pipe.status != TUTTI_OK) return;
    if (stream->ended_ns != 0 && stream->phase != TUTTI_RDMA_PHASE_UP) gone(stream);
    else if (stream->phase == TUTTI_RDMA_PHASE_BROKEN && tutti_rdma_host_now_ns() - stream->round_ns >= PAUSE_NS)
        begin_round(stream);
}

void tutti_rdma_connect_nap(const tutti_rdma_stream *stream) {
    poll(&(struct pollfd){.fd = stream->socket, .events = POLLIN}, 1, 1);
}

/* ----------------------------------------------------------------------------------------------------- opening */

static tutti_status map_region(tutti_rdma_region **region_out) {
    void *memory = mmap(NULL, sizeof(tutti_rdma_region), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return tutti_rdma_host->fail(TUTTI_ERR_MEMORY, "no memory for an RDMA ring: %s", strerror(errno));
    madvise(memory, sizeof(tutti_rdma_region),
            MADV_DONTFORK); /* after a fork, copy-on-write would move the parent off the adapter's pages */
    madvise(memory, sizeof(tutti_rdma_region), MADV_DONTDUMP);
    *region_out = memory;
    return TUTTI_OK;
}

/* The bells of all lanes and the socket, for sleeps (pipe.c). */
static tutti_status open_bells(tutti_rdma_stream *stream) {
    struct epoll_event event = {.events = EPOLLIN};
    stream->bells = epoll_create1(EPOLL_CLOEXEC);
    bool good = epoll_ctl(stream->bells, EPOLL_CTL_ADD, stream->socket, &event) == 0;
    for (int i = 0; i < stream->nlanes; i++)
        good = good && epoll_ctl(stream->bells, EPOLL_CTL_ADD, stream->lanes[i].bell->fd, &event) == 0;
    if (good) return TUTTI_OK;
    return tutti_rdma_host->fail(TUTTI_ERR_SYSTEM, "cannot wait for RDMA: %s (is 'ulimit -n' too low?)",
                                 strerror(errno));
}

static tutti_status create(tutti_rdma_stream *stream) {
    const tutti_rdma_port *ports;
    int nports;
    TUTTI_TRY(tutti_rdma_devices_get(&ports, &nports));
    TUTTI_TRY(map_region(&stream->in));
    TUTTI_TRY(map_region(&stream->out));
    stream->out->state.waiting_at = TUTTI_RDMA_STREAM_NOWHERE;
    stream->peer_state.waiting_at = TUTTI_RDMA_STREAM_NOWHERE;
    stream->direct_bytes = (size_t)tutti_rdma_host->setting_int(TUTTI_SETTING_RDMA_DIRECT_BYTES);
    stream->piece_bytes = PIECE_BYTES;
    for (int i = 0; i < nports; i++) {
        stream->ports[i] = &ports[i];
        stream->nlanes = i + 1;
        TUTTI_TRY(tutti_rdma_lane_create(&stream->lanes[i], &ports[i], stream->in, stream->out, sizeof *stream->in));
        stream->lanes[i].sequence = random_sequence();
        stream->piece_bytes = tutti_min_size(stream->piece_bytes, ports[i].max_message_bytes);
    }
    return open_bells(stream);
}

/* Waits until the socket may be readable; fails at the deadline. */
static tutti_status wait_note(tutti_rdma_stream *stream, tutti_deadline *deadline) {
    if (tutti_rdma_host->deadline_passed(deadline))
        return tutti_rdma_host->fail(TUTTI_ERR_TIMEOUT,
                                     "RDMA to %s did not come up in time: the other side did not answer", stream->peer);
    int left_ms = tutti_rdma_host->deadline_left_ms(deadline);
    poll(&(struct pollfd){.fd = stream->socket, .events = POLLIN}, 1, left_ms < 100 ? left_ms : 100);
    return TUTTI_OK;
}

/* Writes on each lane: addresses that look right may still lead nowhere. */
static tutti_status probe(tutti_rdma_stream *stream, tutti_deadline *deadline) {
    char text[320];
    for (int i = 0; i < stream->nlanes; i++) {
        tutti_rdma_lane *lane = &stream->lanes[i];
        tutti_rdma_lane_post(lane, &(tutti_rdma_lane_write){.from = &stream->out->probe,
                                                            .bytes = sizeof stream->out->probe,
                                                            .local_key = lane->out->lkey,
                                                            .to = stream->remote + offsetof(tutti_rdma_region, probe),
                                                            .remote_key = lane->remote_key,
                                                            .signaled = true});
        while (lane->completed < lane->posted) {
            if (!tutti_rdma_lane_poll(lane)) {
                tutti_rdma_lane_explain(lane, text, sizeof text);
                return tutti_rdma_host->fail(TUTTI_ERR_SYSTEM, "RDMA to %s does not work: %s", stream->peer, text);
            }
            if (tutti_rdma_host->deadline_passed(deadline))
                return tutti_rdma_host->fail(TUTTI_ERR_TIMEOUT,
                                             "RDMA to %s: the first write was not acknowledged in time", stream->peer);
        }
    }
    say_simple(stream, TUTTI_RDMA_NOTE_PROBED);
    return TUTTI_OK;
}

static tutti_status bring_up(tutti_rdma_stream *stream, tutti_deadline *deadline) {
    bool probed = false;
    say_hello(stream);
    for (;;) {
        tutti_rdma_connect_step(stream);
        if (stream->pipe.status != TUTTI_OK)
            return tutti_rdma_host->fail(stream->pipe.status, "%s", stream->pipe.error);
        if (probed && stream->peer_probed) break; /* even if the peer has already used the pipe and closed it */
        if (stream->ended_ns != 0)
            return tutti_rdma_host->fail(TUTTI_ERR_PEER_DIED, "%s ended while RDMA was being set up", stream->peer);
        if (stream->phase == TUTTI_RDMA_PHASE_UP && !probed) {
            TUTTI_TRY(probe(stream, deadline));
            probed = true;
        } else {
            TUTTI_TRY(wait_note(stream, deadline));
        }
    }
    return TUTTI_OK;
}

/* Returns whether the other side connected and learned of the failure: unknown after a timeout or an abrupt end. */
static bool has_heard(const tutti_rdma_stream *stream, tutti_status status) {
    if (status == TUTTI_ERR_TIMEOUT) return false;
    return status != TUTTI_ERR_PEER_DIED || (stream != NULL && stream->pipe.status != TUTTI_OK);
}

tutti_status tutti_rdma_connect_open(int socket, tutti_deadline *deadline, tutti_rdma_stream **stream_out) {
    tutti_rdma_stream *stream = NULL;
    tutti_status status = tutti_rdma_host->calloc(1, sizeof *stream, &stream);
    if (status == TUTTI_OK) {
        stream->socket = socket;
        stream->bells = -1;
        snprintf(stream->peer, sizeof stream->peer, "the other side");
        status = create(stream);
    }
    if (status != TUTTI_OK) {
        /* The other side waits for a hello: send it the reason why there is none. */
        tutti_rdma_note note = {.status = status};
        snprintf(note.text, sizeof note.text, "%s", tutti_rdma_host->last_error());
        say(socket, &note, TUTTI_RDMA_NOTE_HELLO);
        if (stream == NULL) close(socket);
    } else {
        status = bring_up(stream, deadline);
        if (status != TUTTI_OK && stream->pipe.status == TUTTI_OK)
            tutti_rdma_connect_bye(stream, status, tutti_rdma_host->last_error());
    }
    if (status != TUTTI_OK) {
        if (has_heard(stream, status))
            status = tutti_rdma_host->fail(TUTTI_ERR_UNSUPPORTED, "%s", tutti_rdma_host->last_error());
        tutti_rdma_connect_close(stream);
        return status;
    }
    stream->pipe.counters = (tutti_rdma_counters){0};
    for (int i = 0; i < stream->nlanes; i++) stream->lanes[i].reposted = 0;
    *stream_out = stream;
    return TUTTI_OK;
}

void tutti_rdma_connect_close(tutti_rdma_stream *stream) {
    if (stream == NULL) return;
    for (int i = 0; i < stream->nlanes; i++) {
        tutti_rdma_lane_down(&stream->lanes[i]);
        tutti_rdma_lane_destroy(&stream->lanes[i]);
    }
    tutti_rdma_memory_release(&stream->source);
    tutti_rdma_memory_release(&stream->target);
    if (stream->in != NULL) munmap(stream->in, sizeof *stream->in);
    if (stream->out != NULL) munmap(stream->out, sizeof *stream->out);
    if (stream->bells >= 0) close(stream->bells);
    if (stream->socket >= 0) close(stream->socket);
    free(stream);
}
