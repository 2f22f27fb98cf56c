/*
 * The protocol of one connection between the first processes of two hosts, and the deaths that it carries. See
 * heartbeat_connection.h.
 */
#include "comm/health/heartbeat_connection.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/base/comm.h"
#include "comm/base/fork.h"
#include "comm/shm/heap.h"

#define CONNECT_MS 2000 /* for one attempt */
#define BEAT_MAGIC UINT32_C(0x74746274)

/* ------------------------------------------------------------------------------------------ deaths */

static tutti_deaths *own_deaths(void) {
    return &((tutti_channel_directory *)tutti_heap_base())->deaths;
}

/* Called by the heartbeat thread only. */
static void publish_death(const uint8_t id[TUTTI_PROCESS_ID_BYTES]) {
    tutti_deaths *own = own_deaths();
    uint64_t words[2], count = atomic_load_explicit(&own->count, memory_order_relaxed);
    memcpy(words, id, sizeof words);
    for (int i = 0; i < 2; i++)
        atomic_store_explicit(&own->ids[count % TUTTI_DEATHS][i], words[i], memory_order_relaxed);
    atomic_store_explicit(&own->count, count + 1, memory_order_release); /* pairs with tutti_heartbeat_read */
}

void tutti_heartbeat_read(tutti_peer *first) {
    const tutti_deaths *theirs = &((const tutti_channel_directory *)first->base)->deaths;
    uint64_t count = atomic_load_explicit(&theirs->count, memory_order_acquire);
    uint64_t seen = atomic_load_explicit(&first->deaths_read, memory_order_relaxed);
    if (TUTTI_LIKELY(count == seen)) return;
    if (count - seen > TUTTI_DEATHS) seen = count - TUTTI_DEATHS;
    for (; seen < count; seen++) {
        uint64_t words[2];
        uint8_t id[TUTTI_PROCESS_ID_BYTES];
        for (int i = 0; i < 2; i++)
            words[i] = atomic_load_explicit(&theirs->ids[seen % TUTTI_DEATHS][i], memory_order_relaxed);
        memcpy(id, words, sizeof id);
        tutti_peer_mark_dead(id);
    }
    atomic_store_explicit(&first->deaths_read, count, memory_order_relaxed);
}

static void declare_dead(tutti_heartbeat *b, const char *why) {
    tutti_log(TUTTI_LOG_INFO, "process %d of host %s: %s", (int)b->peer->pid, b->peer->host, why);
    tutti_peer_mark_dead(b->peer->id);
    publish_death(b->peer->id);
    b->over = true;
}

/* Publishes ended processes of this host: they are sent to the other hosts and, if this process is the first of its
 * host, recorded for the other processes here. */
void tutti_heartbeat_note_deaths(void) {
    uint8_t ids[16][TUTTI_PROCESS_ID_BYTES];
    int count = tutti_peer_new_deaths(ids, TUTTI_COUNT_OF(ids));
    for (int i = 0; i < count; i++) publish_death(ids[i]);
}

/* ------------------------------------------------------------------------------------------ connections */

static tutti_conn_id conn_id_of(const tutti_peer *self, const tutti_peer *peer, bool *connects_out) {
    *connects_out = memcmp(self->id, peer->id, sizeof self->id) < 0;
    tutti_conn_id conn_id = {.use = TUTTI_CONN_HEARTBEAT, .lanes = 1};
    memcpy(conn_id.from, *connects_out ? self->id : peer->id, sizeof conn_id.from);
    memcpy(conn_id.to, *connects_out ? peer->id : self->id, sizeof conn_id.to);
    return conn_id;
}

static void set_up(int socket) {
    unsigned timeout_ms = (unsigned)tutti_setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS);
    setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    tutti_fork_closes(socket);
}

static void connect_beat(tutti_heartbeat *b) {
    tutti_peer *self;
    bool connects;
    if (tutti_peer_self(&self) != TUTTI_OK) return;
    tutti_conn_id conn_id = conn_id_of(self, b->peer, &connects);
    tutti_deadline soon = tutti_deadline_after_ms(CONNECT_MS);
    tutti_status status = connects ? tutti_listener_connect(b->peer->listener, &conn_id, &soon, &b->connection)
                                   : tutti_listener_take(&conn_id, &b->connection);
    if (status == TUTTI_OK) set_up(b->connection.socket);
    else if (tutti_deadline_passed(&b->connect)) declare_dead(b, "cannot be reached");
}

static void drop(tutti_heartbeat *b) {
    tutti_fork_forget(b->connection.socket);
    close(b->connection.socket);
    explicit_bzero(b->connection.key, sizeof b->connection.key);
    b->connection.socket = -1;
    b->nsent = b->nheard = b->in_bytes = 0;
}

/* Another rank of this process may still be in a communicator that the first rank has left. */
tutti_heartbeat_stage tutti_heartbeat_state(const tutti_heartbeat *b) {
    const tutti_channel_directory *own = (const tutti_channel_directory *)tutti_heap_base();
    if (atomic_load(&b->watchers) > 0) return TUTTI_HEARTBEAT_MEMBER;
    if (atomic_load(&b->watchers_left) == 0) return TUTTI_HEARTBEAT_GOODBYE;
    return atomic_load_explicit(&own->memberships, memory_order_acquire) > 0 ? TUTTI_HEARTBEAT_MEMBER
                                                                             : TUTTI_HEARTBEAT_LEFT;
}

/* Drops a dead connection. If nothing was received over it, the connecting side had given it up, and tries again. */
static void lose(tutti_heartbeat *b, const char *why) {
    drop(b);
    if (b->heard && !b->over) declare_dead(b, why);
}

/* The other side has closed the connection. */
static void end(tutti_heartbeat *b, const char *why) {
    b->over = b->over || b->has_left;
    lose(b, why);
}

/* A failed send does not prove a death: an unread goodbye may have been received. receive_beats finds out. */
static void send_beat(tutti_heartbeat *b, tutti_heartbeat_stage state, const uint64_t died[2]) {
    tutti_heartbeat_signed out = {.frame = {.magic = BEAT_MAGIC, .state = state}};
    memcpy(out.frame.died, died, sizeof out.frame.died);
    tutti_frame_mac_make(&b->connection, /* sent by this side */ true, b->nsent, &out.frame, sizeof out.frame, out.mac);
    ssize_t sent = send(b->connection.socket, &out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == (ssize_t)sizeof out) {
        b->nsent++;
        atomic_store(&b->said, (int)state);
    }
    if (sent < 0 && errno == ETIMEDOUT) lose(b, "no longer responds");
    if (sent >= 0 && sent < (ssize_t)sizeof out) lose(b, "a heartbeat was sent only in part");
}

static const uint64_t no_process[2];

/* Sends the new deaths, or a heartbeat without any. Goodbye comes last: tutti_heartbeat_end. */
static void send_beats(tutti_heartbeat *b) {
    const tutti_deaths *own = own_deaths();
    uint64_t count = atomic_load_explicit(&own->count, memory_order_relaxed);
    tutti_heartbeat_stage state = tutti_heartbeat_state(b);
    if (state == TUTTI_HEARTBEAT_GOODBYE) state = TUTTI_HEARTBEAT_LEFT;
    if (count - b->deaths_sent > TUTTI_DEATHS) b->deaths_sent = count - TUTTI_DEATHS;
    if (b->deaths_sent == count) send_beat(b, state, no_process);
    for (; b->deaths_sent < count && b->connection.socket >= 0; b->deaths_sent++) {
        uint64_t died[2];
        for (int i = 0; i < 2; i++)
            died[i] = atomic_load_explicit(&own->ids[b->deaths_sent % TUTTI_DEATHS][i], memory_order_relaxed);
        send_beat(b, state, died);
    }
}

static void take_frame(tutti_heartbeat *b) {
    const tutti_heartbeat_frame *frame = &b->in.frame;
    if (frame->magic != BEAT_MAGIC) declare_dead(b, "sent a frame that is not a heartbeat");
    else if (!tutti_frame_mac_check(&b->connection, b->nheard++, frame, sizeof *frame, b->in.mac))
        declare_dead(b, "is unreachable: its frames are modified on the network");
    else if (frame->state == TUTTI_HEARTBEAT_GOODBYE) b->over = true;
    else {
        b->has_left = frame->state == TUTTI_HEARTBEAT_LEFT;
        if (memcmp(frame->died, no_process, sizeof no_process) != 0 && tutti_peer_mark_dead(frame->died))
            publish_death(frame->died);
    }
}

static void receive_beats(tutti_heartbeat *b) {
    while (!b->over && b->connection.socket >= 0) {
        ssize_t got =
            recv(b->connection.socket, (char *)&b->in + b->in_bytes, sizeof b->in - b->in_bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {
            if (got == 0 || errno == ECONNRESET) end(b, "has ended");
            else lose(b, errno == ETIMEDOUT ? "no longer responds" : strerror(errno));
            return;
        }
        b->in_bytes += (size_t)got;
        if (b->in_bytes < sizeof b->in) continue;
        b->in_bytes = 0;
        b->heard = true;
        take_frame(b);
    }
}

void tutti_heartbeat_go_on(tutti_heartbeat *b, bool due) {
    if (b->over) return;
    if (b->connection.socket < 0) connect_beat(b);
    if (b->connection.socket < 0) return;
    receive_beats(b);
    if (b->over || b->connection.socket < 0) return;
    bool news = b->deaths_sent != atomic_load_explicit(&own_deaths()->count, memory_order_relaxed);
    if (due || news || atomic_load(&b->said) != (int)tutti_heartbeat_state(b)) send_beats(b);
}

static void end_heartbeat(tutti_heartbeat *b) {
    if (b->connection.socket < 0) return;
    tutti_heartbeat_note_deaths();
    if (!b->over) send_beats(b);
    if (!b->over && b->connection.socket >= 0) send_beat(b, TUTTI_HEARTBEAT_GOODBYE, no_process);
    if (b->connection.socket >= 0) drop(b);
}

/* The last deaths are sent before the goodbye: one of them may be the reason for the end of the communicator. */
void tutti_heartbeat_free(tutti_heartbeat *b) {
    end_heartbeat(b);
    tutti_peer_release(b->peer);
    free(b);
}

tutti_status tutti_heartbeat_make(tutti_peer *remote, tutti_heartbeat **heartbeat_out) {
    tutti_heartbeat *b;
    TUTTI_TRY(tutti_calloc(1, sizeof *b, &b));
    *b = (tutti_heartbeat){.peer = remote, .connection.socket = -1, .watchers = 1};
    b->connect = tutti_deadline_after_ms(tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS));
    tutti_peer_retain(remote);
    *heartbeat_out = b;
    return TUTTI_OK;
}
