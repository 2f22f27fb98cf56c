/*
 * Heartbeats. See beat.h.
 *
 * One thread for the process, as long as something is watched. It alone uses the sockets; the list is under the lock.
 * Beats are sealed (seal.h): who can change what is on the network can cut a connection, but not tell of a death.
 */
#include "comm/beat.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/channel.h"
#include "comm/comm.h"
#include "comm/door.h"
#include "comm/fork.h"
#include "comm/heap.h"
#include "comm/seal.h"

#define BEAT_MS    500
#define CONNECT_MS 2000 /* of one attempt */
#define PARTING_S  2 /* the longest wait for a goodbye: a process may end right after it has destroyed a communicator */
#define MOST_BEATS 64 /* connections that one round of poll looks at; more take turns */
#define BEAT_MAGIC UINT32_C(0x74746274)

typedef struct beat_frame {
    uint32_t magic, goodbye;              /* goodbye: the sender will close, and lives on */
    uint8_t died[TUTTI_PROCESS_ID_BYTES]; /* a process of the sender's host; 0: none */
} beat_frame;

/* What goes over the connection. */
typedef struct sealed_frame {
    beat_frame frame;
    uint8_t seal[TUTTI_SEAL_BYTES];
} sealed_frame;

typedef struct beat {
    tutti_peer *peer; /* one reference */
    int watchers;
    tutti_connection connection; /* its socket is -1: not connected */
    uint64_t nsent, nheard;      /* frames on this connection */
    tutti_deadline connect;
    bool heard;    /* something has come over the socket */
    bool over;     /* the peer has said goodbye, or is dead */
    uint64_t told; /* of our obituaries */
    sealed_frame in;
    size_t in_bytes; /* of it that have come */
    struct beat *next;
} beat;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t parted; /* goodbyes have been said */
    beat *beats;
    bool runs;
    bool parting;     /* goodbyes are being said */
    _Atomic int bell; /* eventfd; -1: there never was a thread */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .parted = PTHREAD_COND_INITIALIZER, .bell = -1};

/* ------------------------------------------------------------------------------------------ obituaries */

static tutti_obituaries *own_obituaries(void) {
    return &((tutti_lobby *)tutti_heap_base())->obituaries;
}

/* Only the thread writes. */
static void publish_death(const uint8_t id[TUTTI_PROCESS_ID_BYTES]) {
    tutti_obituaries *own = own_obituaries();
    uint64_t words[2], count = atomic_load_explicit(&own->count, memory_order_relaxed);
    memcpy(words, id, sizeof words);
    for (int i = 0; i < 2; i++)
        atomic_store_explicit(&own->ids[count % TUTTI_OBITUARIES][i], words[i], memory_order_relaxed);
    atomic_store_explicit(&own->count, count + 1, memory_order_release); /* pairs with tutti_beat_read */
}

void tutti_beat_read(tutti_peer *first) {
    const tutti_obituaries *theirs = &((const tutti_lobby *)first->base)->obituaries;
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

static void bury(beat *b, const char *why) {
    tutti_log(TUTTI_LOG_INFO, "process %d of host %s: %s", (int)b->peer->pid, b->peer->host, why);
    tutti_peer_mark_dead(b->peer->id);
    publish_death(b->peer->id);
    b->over = true;
}

/* Processes of this host that have ended: told to the others, and, where we are the first, written down. */
static void note_deaths(void) {
    uint8_t ids[16][TUTTI_PROCESS_ID_BYTES];
    int count = tutti_peer_new_deaths(ids, TUTTI_COUNT_OF(ids));
    for (int i = 0; i < count; i++) publish_death(ids[i]);
}

/* ------------------------------------------------------------------------------------------ connections */

static tutti_ticket ticket_of(const tutti_peer *self, const tutti_peer *peer, bool *connects_out) {
    *connects_out = memcmp(self->id, peer->id, sizeof self->id) < 0;
    tutti_ticket ticket = {.use = TUTTI_TICKET_HEARTBEAT};
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

static void connect_beat(beat *b) {
    tutti_peer *self;
    bool connects;
    if (tutti_peer_self(&self) != TUTTI_OK) return;
    tutti_ticket ticket = ticket_of(self, b->peer, &connects);
    tutti_deadline soon = tutti_deadline_after_ms(CONNECT_MS);
    tutti_status status = connects ? tutti_door_connect(b->peer->door, &ticket, &soon, &b->connection)
                                   : tutti_door_take(&ticket, &b->connection);
    if (status == TUTTI_OK) set_up(b->connection.socket);
    else if (tutti_deadline_passed(&b->connect)) bury(b, "cannot be reached");
}

static void drop(beat *b) {
    tutti_fork_forget(b->connection.socket);
    close(b->connection.socket);
    explicit_bzero(b->connection.key, sizeof b->connection.key);
    b->connection.socket = -1;
    b->nsent = b->nheard = b->in_bytes = 0;
}

/* The connection is of no use any more. If nothing ever came over it, its maker had given it up, and tries again. */
static void lose(beat *b, const char *why) {
    drop(b);
    if (b->heard && !b->over) bury(b, why);
}

/* That it cannot be sent is no proof of a death: a goodbye may lie there unread. receive_beats finds out. */
static void send_beat(beat *b, beat_frame frame) {
    frame.magic = BEAT_MAGIC;
    sealed_frame out = {.frame = frame};
    tutti_seal_make(&b->connection, /* ours */ true, b->nsent, &out.frame, sizeof out.frame, out.seal);
    ssize_t sent = send(b->connection.socket, &out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == (ssize_t)sizeof out) b->nsent++;
    if (sent < 0 && errno == ETIMEDOUT) lose(b, "does not answer any more");
    if (sent >= 0 && sent < (ssize_t)sizeof out) lose(b, "a beat went out in parts");
}

static void send_beats(beat *b) {
    const tutti_obituaries *own = own_obituaries();
    uint64_t count = atomic_load_explicit(&own->count, memory_order_relaxed);
    if (count - b->told > TUTTI_OBITUARIES) b->told = count - TUTTI_OBITUARIES;
    if (b->told == count) send_beat(b, (beat_frame){.goodbye = 0});
    for (; b->told < count && b->connection.socket >= 0; b->told++) {
        beat_frame frame = {.goodbye = 0};
        uint64_t words[2];
        for (int i = 0; i < 2; i++)
            words[i] = atomic_load_explicit(&own->ids[b->told % TUTTI_OBITUARIES][i], memory_order_relaxed);
        memcpy(frame.died, words, sizeof words);
        send_beat(b, frame);
    }
}

static void take_frame(beat *b) {
    static const uint8_t nobody[TUTTI_PROCESS_ID_BYTES];
    const beat_frame *frame = &b->in.frame;
    if (frame->magic != BEAT_MAGIC) bury(b, "sent what is no beat");
    else if (!tutti_seal_check(&b->connection, b->nheard++, frame, sizeof *frame, b->in.seal))
        bury(b, "is out of reach: somebody changes what it sends");
    else if (frame->goodbye != 0) b->over = true;
    else if (memcmp(frame->died, nobody, sizeof nobody) != 0 && tutti_peer_mark_dead(frame->died))
        publish_death(frame->died);
}

static void receive_beats(beat *b) {
    while (!b->over && b->connection.socket >= 0) {
        ssize_t got =
            recv(b->connection.socket, (char *)&b->in + b->in_bytes, sizeof b->in - b->in_bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {
            lose(b, got == 0 ? "has ended" : errno == ETIMEDOUT ? "does not answer any more" : strerror(errno));
            return;
        }
        b->in_bytes += (size_t)got;
        if (b->in_bytes < sizeof b->in) continue;
        b->in_bytes = 0;
        b->heard = true;
        take_frame(b);
    }
}

/* ----------------------------------------------------------------------------------------------- thread */

/* The last deaths are told before the goodbye: it may be one of them that ends the communicator. */
static void free_beat(beat *b) {
    if (b->connection.socket >= 0) {
        note_deaths();
        if (!b->over) send_beats(b);
        if (!b->over && b->connection.socket >= 0) send_beat(b, (beat_frame){.goodbye = 1});
        if (b->connection.socket >= 0) drop(b);
    }
    tutti_peer_release(b->peer);
    free(b);
}

/* Takes beats that nobody watches any more off the list. */
static beat *take_unwatched(void) {
    beat *taken = NULL;
    for (beat **link = &watch.beats; *link != NULL;) {
        beat *b = *link;
        if (b->watchers > 0) {
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
    pthread_mutex_lock(&watch.lock);
    beat *first = watch.beats; /* others only add, in front of it */
    pthread_mutex_unlock(&watch.lock);
    for (beat *b = first; b != NULL; b = b->next) {
        if (b->over) continue;
        if (b->connection.socket < 0) connect_beat(b);
        if (b->connection.socket < 0) continue;
        receive_beats(b);
        if (!b->over && b->connection.socket >= 0 &&
            (due || b->told != atomic_load_explicit(&own_obituaries()->count, memory_order_relaxed)))
            send_beats(b);
    }
}

/* Until something comes, or the next beat is due. */
static void wait_for_next(void) {
    struct pollfd polled[1 + MOST_BEATS] = {{.fd = watch.bell, .events = POLLIN}};
    nfds_t count = 1;
    bool connecting = false;
    pthread_mutex_lock(&watch.lock);
    for (const beat *b = watch.beats; b != NULL; b = b->next) {
        connecting = connecting || (b->connection.socket < 0 && !b->over);
        if (b->connection.socket >= 0 && !b->over && count < TUTTI_COUNT_OF(polled))
            polled[count++] = (struct pollfd){.fd = b->connection.socket, .events = POLLIN};
    }
    pthread_mutex_unlock(&watch.lock);
    poll(polled, count, connecting ? BEAT_MS / 10 : BEAT_MS);
    uint64_t rung;
    if (polled[0].revents != 0 && read(watch.bell, &rung, sizeof rung) < 0) return; /* only to empty it */
}

static void *beat_thread(void *argument) {
    (void)argument;
    int64_t last_ns = 0;
    pthread_mutex_lock(&watch.lock);
    for (;;) {
        beat *unwatched = take_unwatched();
        bool last = watch.beats == NULL;
        watch.parting = unwatched != NULL;
        pthread_mutex_unlock(&watch.lock);
        for (beat *next; unwatched != NULL; unwatched = next) {
            next = unwatched->next;
            free_beat(unwatched);
        }
        pthread_mutex_lock(&watch.lock);
        watch.parting = false;
        pthread_cond_broadcast(&watch.parted);
        last = last && watch.beats == NULL; /* or somebody has just come */
        if (last) watch.runs = false;
        pthread_mutex_unlock(&watch.lock);
        if (last) return NULL;
        go_round(&last_ns);
        wait_for_next();
        pthread_mutex_lock(&watch.lock);
    }
}

static void ring(void) {
    uint64_t one = 1;
    if (watch.bell < 0) return;
    if (write(watch.bell, &one, sizeof one) < 0) return; /* full: it rings already */
}

/* Lock held. */
static tutti_status start_thread(void) {
    sigset_t all, before;
    pthread_t thread;
    if (watch.runs) return TUTTI_OK;
    if (watch.bell < 0) watch.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (watch.bell < 0) return tutti_fail_errno(errno, "cannot make an eventfd for heartbeats");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, beat_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) return tutti_fail_errno(error, "cannot start the thread of heartbeats");
    pthread_detach(thread);
    watch.runs = true;
    return TUTTI_OK;
}

static beat *find(const tutti_peer *far) {
    beat *b = watch.beats;
    while (b != NULL && b->peer != far) b = b->next;
    return b;
}

static tutti_status add(tutti_peer *far) {
    beat *b;
    TUTTI_TRY(tutti_calloc(1, sizeof *b, &b));
    *b = (beat){.peer = far, .connection.socket = -1, .next = watch.beats, .watchers = 1};
    b->connect = tutti_deadline_after_ms(tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS));
    tutti_peer_retain(far);
    watch.beats = b;
    return TUTTI_OK;
}

tutti_status tutti_beat_watch(tutti_peer *far) {
    pthread_mutex_lock(&watch.lock);
    beat *b = find(far);
    if (b != NULL) b->watchers++;
    tutti_status status = b != NULL ? TUTTI_OK : add(far);
    if (status == TUTTI_OK) status = start_thread();
    pthread_mutex_unlock(&watch.lock);
    ring();
    return status;
}

void tutti_beat_unwatch(tutti_peer *far) {
    if (tutti_forked()) return;
    pthread_mutex_lock(&watch.lock);
    beat *b = find(far);
    if (b != NULL) b->watchers--;
    bool last = b != NULL && b->watchers == 0;
    ring();
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PARTING_S;
    while (last && watch.runs && (find(far) == b || watch.parting) &&
           pthread_cond_timedwait(&watch.parted, &watch.lock, &until) == 0) {}
    pthread_mutex_unlock(&watch.lock);
}

void tutti_beat_hurry(void) {
    ring();
}
