/*
 * The list of watched processes, the heartbeat thread of this process, and the protocol of one connection. See
 * heartbeat.h.
 *
 * There is one thread per process, as long as a process is watched. Only that thread uses the connections; the list is
 * protected by the lock. Heartbeats are signed (frame_mac.h): an attacker who can modify network traffic can cut a
 * connection, but cannot report a death.
 */
#include "comm/health/heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/base/thread.h"
#include "comm/base/comm.h"
#include "comm/base/fork.h"
#include "comm/health/heartbeat_hosts.h"
#include "comm/net/frame_mac.h"
#include "comm/net/listener.h"
#include "comm/shm/directory.h"
#include "comm/shm/heap.h"

#define BEAT_MS 500
/* the longest wait for a goodbye: a process may end right after it has destroyed a communicator */
#define PARTING_S  2
#define MOST_BEATS 64   /* connections polled in one round; if there are more, they take turns */
#define CONNECT_MS 2000 /* for one attempt */
#define BEAT_MAGIC UINT32_C(0x74746274)

/* Meaning of an end of the connection. */
typedef enum heartbeat_state {
    HEARTBEAT_MEMBER,  /* the sender's death */
    HEARTBEAT_GOODBYE, /* nothing: the sender closes it and lives on */
    HEARTBEAT_LEFT,    /* nothing: the sender has left, and sends heartbeats on behalf of others of its host */
} heartbeat_state;

typedef struct heartbeat_frame {
    uint32_t magic, state;                /* state: heartbeat_state */
    uint8_t died[TUTTI_PROCESS_ID_BYTES]; /* a dead process of the sender's host; 0: none */
} heartbeat_frame;

/* What is sent over the connection. */
typedef struct signed_frame {
    heartbeat_frame frame;
    uint8_t seal[TUTTI_FRAME_MAC_BYTES];
} signed_frame;

typedef struct heartbeat {
    tutti_peer *peer; /* one reference */
    /* communicators that this process is in, and those that it has left but watches for; changed under the lock */
    atomic_int watchers, watchers_left;
    atomic_int said;             /* heartbeat_state: the last one sent to the other side, if there is a connection */
    bool has_left;               /* the other side has sent HEARTBEAT_LEFT */
    tutti_connection connection; /* socket -1: not connected */
    uint64_t nsent, nheard;      /* frames on this connection */
    tutti_deadline connect;
    bool heard;    /* data has been received over the socket */
    bool over;     /* the peer has said goodbye, or is dead */
    uint64_t told; /* number of own obituaries sent */
    signed_frame in;
    size_t in_bytes; /* bytes of it received so far */
    struct heartbeat *next;
} heartbeat;

/* ------------------------------------------------------------------------------------------ obituaries */

static tutti_obituaries *own_obituaries(void) {
    return &((tutti_channel_directory *)tutti_heap_base())->obituaries;
}

/* Called by the heartbeat thread only. */
static void publish_death(const uint8_t id[TUTTI_PROCESS_ID_BYTES]) {
    tutti_obituaries *own = own_obituaries();
    uint64_t words[2], count = atomic_load_explicit(&own->count, memory_order_relaxed);
    memcpy(words, id, sizeof words);
    for (int i = 0; i < 2; i++)
        atomic_store_explicit(&own->ids[count % TUTTI_OBITUARIES][i], words[i], memory_order_relaxed);
    atomic_store_explicit(&own->count, count + 1, memory_order_release); /* pairs with tutti_heartbeat_read */
}

void tutti_heartbeat_read(tutti_peer *first) {
    const tutti_obituaries *theirs = &((const tutti_channel_directory *)first->base)->obituaries;
    uint64_t count = atomic_load_explicit(&theirs->count, memory_order_acquire);
    uint64_t seen = atomic_load_explicit(&first->obituaries_read, memory_order_relaxed);
    if (TUTTI_LIKELY(count == seen)) return;
    if (count - seen > TUTTI_OBITUARIES) seen = count - TUTTI_OBITUARIES;
    for (; seen < count; seen++) {
        uint64_t words[2];
        uint8_t id[TUTTI_PROCESS_ID_BYTES];
        for (int i = 0; i < 2; i++)
            words[i] = atomic_load_explicit(&theirs->ids[seen % TUTTI_OBITUARIES][i], memory_order_relaxed);
        memcpy(id, words, sizeof id);
        tutti_peer_mark_dead(id);
    }
    atomic_store_explicit(&first->obituaries_read, count, memory_order_relaxed);
}

static void bury(heartbeat *b, const char *why) {
    tutti_log(TUTTI_LOG_INFO, "process %d of host %s: %s", (int)b->peer->pid, b->peer->host, why);
    tutti_peer_mark_dead(b->peer->id);
    publish_death(b->peer->id);
    b->over = true;
}

/* Publishes ended processes of this host: they are sent to the other hosts and, if this process is the first of its
 * host, recorded for the other processes here. */
static void note_deaths(void) {
    uint8_t ids[16][TUTTI_PROCESS_ID_BYTES];
    int count = tutti_peer_new_deaths(ids, TUTTI_COUNT_OF(ids));
    for (int i = 0; i < count; i++) publish_death(ids[i]);
}

/* ------------------------------------------------------------------------------------------ connections */

static tutti_conn_id ticket_of(const tutti_peer *self, const tutti_peer *peer, bool *connects_out) {
    *connects_out = memcmp(self->id, peer->id, sizeof self->id) < 0;
    tutti_conn_id ticket = {.use = TUTTI_CONN_HEARTBEAT, .lanes = 1};
    memcpy(ticket.from, *connects_out ? self->id : peer->id, sizeof ticket.from);
    memcpy(ticket.to, *connects_out ? peer->id : self->id, sizeof ticket.to);
    return ticket;
}

static void set_up(int socket) {
    unsigned timeout_ms = (unsigned)tutti_setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS);
    setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    tutti_fork_closes(socket);
}

static void connect_beat(heartbeat *b) {
    tutti_peer *self;
    bool connects;
    if (tutti_peer_self(&self) != TUTTI_OK) return;
    tutti_conn_id ticket = ticket_of(self, b->peer, &connects);
    tutti_deadline soon = tutti_deadline_after_ms(CONNECT_MS);
    tutti_status status = connects ? tutti_listener_connect(b->peer->listener, &ticket, &soon, &b->connection)
                                   : tutti_listener_take(&ticket, &b->connection);
    if (status == TUTTI_OK) set_up(b->connection.socket);
    else if (tutti_deadline_passed(&b->connect)) bury(b, "cannot be reached");
}

static void drop(heartbeat *b) {
    tutti_fork_forget(b->connection.socket);
    close(b->connection.socket);
    explicit_bzero(b->connection.key, sizeof b->connection.key);
    b->connection.socket = -1;
    b->nsent = b->nheard = b->in_bytes = 0;
}

/* Another rank of this process may still be in a communicator that the first rank has left. */
static heartbeat_state state_of(const heartbeat *b) {
    const tutti_channel_directory *own = (const tutti_channel_directory *)tutti_heap_base();
    if (atomic_load(&b->watchers) > 0) return HEARTBEAT_MEMBER;
    if (atomic_load(&b->watchers_left) == 0) return HEARTBEAT_GOODBYE;
    return atomic_load_explicit(&own->memberships, memory_order_acquire) > 0 ? HEARTBEAT_MEMBER : HEARTBEAT_LEFT;
}

/* Drops a dead connection. If nothing was received over it, the connecting side had given it up, and tries again. */
static void lose(heartbeat *b, const char *why) {
    drop(b);
    if (b->heard && !b->over) bury(b, why);
}

/* The other side has closed the connection. */
static void end(heartbeat *b, const char *why) {
    b->over = b->over || b->has_left;
    lose(b, why);
}

/* A failed send does not prove a death: an unread goodbye may have been received. receive_beats finds out. */
static void send_beat(heartbeat *b, heartbeat_state state, const uint64_t died[2]) {
    signed_frame out = {.frame = {.magic = BEAT_MAGIC, .state = state}};
    memcpy(out.frame.died, died, sizeof out.frame.died);
    tutti_frame_mac_make(&b->connection, /* sent by this side */ true, b->nsent, &out.frame, sizeof out.frame,
                         out.seal);
    ssize_t sent = send(b->connection.socket, &out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == (ssize_t)sizeof out) {
        b->nsent++;
        atomic_store(&b->said, (int)state);
    }
    if (sent < 0 && errno == ETIMEDOUT) lose(b, "no longer responds");
    if (sent >= 0 && sent < (ssize_t)sizeof out) lose(b, "a heartbeat was sent only in part");
}

static const uint64_t nobody[2];

/* Sends the new deaths, or a heartbeat without any. Goodbye comes last: tutti_heartbeat_end. */
static void send_beats(heartbeat *b) {
    const tutti_obituaries *own = own_obituaries();
    uint64_t count = atomic_load_explicit(&own->count, memory_order_relaxed);
    heartbeat_state state = state_of(b);
    if (state == HEARTBEAT_GOODBYE) state = HEARTBEAT_LEFT;
    if (count - b->told > TUTTI_OBITUARIES) b->told = count - TUTTI_OBITUARIES;
    if (b->told == count) send_beat(b, state, nobody);
    for (; b->told < count && b->connection.socket >= 0; b->told++) {
        uint64_t died[2];
        for (int i = 0; i < 2; i++)
            died[i] = atomic_load_explicit(&own->ids[b->told % TUTTI_OBITUARIES][i], memory_order_relaxed);
        send_beat(b, state, died);
    }
}

static void take_frame(heartbeat *b) {
    const heartbeat_frame *frame = &b->in.frame;
    if (frame->magic != BEAT_MAGIC) bury(b, "sent a frame that is not a heartbeat");
    else if (!tutti_frame_mac_check(&b->connection, b->nheard++, frame, sizeof *frame, b->in.seal))
        bury(b, "is unreachable: its frames are modified on the network");
    else if (frame->state == HEARTBEAT_GOODBYE) b->over = true;
    else {
        b->has_left = frame->state == HEARTBEAT_LEFT;
        if (memcmp(frame->died, nobody, sizeof nobody) != 0 && tutti_peer_mark_dead(frame->died))
            publish_death(frame->died);
    }
}

static void receive_beats(heartbeat *b) {
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

static void go_on(heartbeat *b, bool due) {
    if (b->over) return;
    if (b->connection.socket < 0) connect_beat(b);
    if (b->connection.socket < 0) return;
    receive_beats(b);
    if (b->over || b->connection.socket < 0) return;
    bool news = b->told != atomic_load_explicit(&own_obituaries()->count, memory_order_relaxed);
    if (due || news || atomic_load(&b->said) != (int)state_of(b)) send_beats(b);
}

static void end_heartbeat(heartbeat *b) {
    if (b->connection.socket < 0) return;
    note_deaths();
    if (!b->over) send_beats(b);
    if (!b->over && b->connection.socket >= 0) send_beat(b, HEARTBEAT_GOODBYE, nobody);
    if (b->connection.socket >= 0) drop(b);
}

static struct {
    pthread_cond_t parted; /* signaled when goodbyes have been sent */
    heartbeat *heartbeats;
    bool runs;
    bool parting;     /* goodbyes are being sent */
    _Atomic int bell; /* eventfd; -1: the thread has never run */
} watch = {.parted = PTHREAD_COND_INITIALIZER, .bell = -1};

/* ----------------------------------------------------------------------------------------------- thread */

/* The last deaths are sent before the goodbye: one of them may be the reason for the end of the communicator. */
static void free_heartbeat(heartbeat *b) {
    end_heartbeat(b);
    tutti_peer_release(b->peer);
    free(b);
}

/* Removes unwatched heartbeats from the list and returns them. */
static heartbeat *take_unwatched(void) {
    heartbeat *taken = NULL;
    for (heartbeat **link = &watch.heartbeats; *link != NULL;) {
        heartbeat *b = *link;
        if (state_of(b) != HEARTBEAT_GOODBYE) {
            link = &b->next;
            continue;
        }
        *link = b->next;
        b->next = taken;
        taken = b;
    }
    return taken;
}

static void go_round(int64_t *last_ns) {
    int64_t now_ns = tutti_now_ns();
    bool due = now_ns - *last_ns >= BEAT_MS * TUTTI_NS_PER_MS;
    if (due) *last_ns = now_ns;
    note_deaths();
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    heartbeat *first = watch.heartbeats; /* other threads only add, in front of it */
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
    for (heartbeat *b = first; b != NULL; b = b->next) {
        go_on(b, due);
        if (b->over || b->connection.socket < 0)
            atomic_store(&b->said, (int)state_of(b)); /* no connection can carry it */
    }
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    pthread_cond_broadcast(&watch.parted);
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
}

/* Waits until data arrives or the next heartbeat is due. */
static void wait_for_next(void) {
    struct pollfd polled[1 + MOST_BEATS] = {{.fd = watch.bell, .events = POLLIN}};
    nfds_t count = 1;
    bool connecting = false;
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    for (const heartbeat *b = watch.heartbeats; b != NULL; b = b->next) {
        connecting = connecting || (b->connection.socket < 0 && !b->over);
        if (b->connection.socket >= 0 && !b->over && count < TUTTI_COUNT_OF(polled))
            polled[count++] = (struct pollfd){.fd = b->connection.socket, .events = POLLIN};
    }
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
    poll(polled, count, connecting ? BEAT_MS / 10 : BEAT_MS);
    uint64_t rung;
    if (polled[0].revents != 0 && read(watch.bell, &rung, sizeof rung) < 0) return; /* only drains it */
}

static void *heartbeat_thread(void *argument) {
    (void)argument;
    int64_t last_ns = 0;
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    for (;;) {
        heartbeat *unwatched = take_unwatched();
        bool last = watch.heartbeats == NULL;
        watch.parting = unwatched != NULL;
        tutti_unlock(TUTTI_LOCK_HEARTBEAT);
        for (heartbeat *next; unwatched != NULL; unwatched = next) {
            next = unwatched->next;
            free_heartbeat(unwatched);
        }
        tutti_lock(TUTTI_LOCK_HEARTBEAT);
        watch.parting = false;
        pthread_cond_broadcast(&watch.parted);
        last = last && watch.heartbeats == NULL; /* unless one was just added */
        if (last) watch.runs = false;
        tutti_unlock(TUTTI_LOCK_HEARTBEAT);
        if (last) return NULL;
        go_round(&last_ns);
        tutti_heartbeat_hosts_release();
        wait_for_next();
        tutti_lock(TUTTI_LOCK_HEARTBEAT);
    }
}

static void ring(void) {
    uint64_t one = 1;
    if (watch.bell < 0) return;
    if (write(watch.bell, &one, sizeof one) < 0) return; /* full: it is already ringing */
}

/* Lock held. */
static tutti_status start_thread(void) {
    if (watch.runs) return TUTTI_OK;
    if (watch.bell < 0) watch.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (watch.bell < 0) return tutti_fail_errno(errno, "cannot create an eventfd for heartbeats");
    int error = tutti_thread_start(TUTTI_THREAD_HEARTBEAT, heartbeat_thread, NULL, NULL);
    if (error != 0) return tutti_fail_errno(error, "cannot start the heartbeat thread");
    watch.runs = true;
    return TUTTI_OK;
}

static heartbeat *find(const tutti_peer *remote) {
    heartbeat *b = watch.heartbeats;
    while (b != NULL && b->peer != remote) b = b->next;
    return b;
}

/* True if the other side does not yet know our current state. Lock held. */
static bool is_unsaid(const tutti_peer *remote) {
    const heartbeat *b = find(remote);
    return b != NULL && atomic_load(&b->said) != (int)state_of(b);
}

static tutti_status add(tutti_peer *remote) {
    heartbeat *b;
    TUTTI_TRY(tutti_calloc(1, sizeof *b, &b));
    *b = (heartbeat){.peer = remote, .connection.socket = -1, .next = watch.heartbeats, .watchers = 1};
    b->connect = tutti_deadline_after_ms(tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS));
    tutti_peer_retain(remote);
    watch.heartbeats = b;
    return TUTTI_OK;
}

tutti_status tutti_heartbeat_watch(tutti_peer *remote) {
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    heartbeat *b = find(remote);
    if (b != NULL) atomic_fetch_add(&b->watchers, 1);
    tutti_status status = b != NULL ? TUTTI_OK : add(remote);
    if (status == TUTTI_OK) status = start_thread();
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
    ring();
    return status;
}

/* Changes the counts, and returns once the other side knows the resulting state. */
static void change(tutti_peer *remote, int watchers, int watchers_left) {
    struct timespec until;
    if (tutti_forked()) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PARTING_S;
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    heartbeat *b = find(remote);
    if (b != NULL) {
        atomic_fetch_add(&b->watchers, watchers);
        atomic_fetch_add(&b->watchers_left, watchers_left);
    }
    bool last = b != NULL && state_of(b) == HEARTBEAT_GOODBYE;
    ring();
    while (b != NULL && watch.runs && (last ? find(remote) == b || watch.parting : is_unsaid(remote)) &&
           pthread_cond_timedwait(&watch.parted, tutti_lock_mutex(TUTTI_LOCK_HEARTBEAT), &until) == 0) {}
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
}

void tutti_heartbeat_unwatch(tutti_peer *remote) {
    change(remote, -1, 0);
}

void tutti_heartbeat_leave(tutti_peer *remote) {
    change(remote, -1, 1);
}

void tutti_heartbeat_unwatch_left(tutti_peer *remote) {
    change(remote, 0, -1);
}

void tutti_heartbeat_drop_left(tutti_peer *remote) {
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    heartbeat *b = find(remote);
    if (b != NULL) atomic_fetch_sub(&b->watchers_left, 1);
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
}

void tutti_heartbeat_now(void) {
    ring();
}
