/*
 * The heartbeats of this process: the protocol of a connection to the first process of another host, the deaths that it
 * carries, the heartbeat thread, and the communicators for which it watches. See heartbeat.h.
 *
 * Heartbeats are signed (frame_mac.h): an attacker who can modify network traffic can cut a connection, but cannot
 * report a death.
 *
 * There is one thread per process, as long as a process is watched. Only that thread uses the connections; the list is
 * protected by the lock.
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
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/thread.h"
#include "comm/base/fork.h"
#include "comm/base/hooks.h"
#include "comm/net/frame_mac.h"
#include "comm/net/hosts.h"
#include "comm/net/listener.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"
#include "comm/shm/segment.h"

#define CONNECT_MS 2000 /* for one attempt */
#define BEAT_MAGIC UINT32_C(0x74746274)
#define BEAT_MS    500
/* the longest wait for a goodbye: a process may end right after it has destroyed a communicator */
#define PARTING_MS 2000
#define MOST_BEATS 64 /* connections polled in one round; if there are more, they take turns */

/* Meaning of an end of the connection. */
typedef enum stage {
    MEMBER,  /* the sender's death */
    GOODBYE, /* nothing: the sender closes it and lives on */
    LEFT,    /* nothing: the sender has left, and sends heartbeats on behalf of others of its host */
} stage;

typedef struct beat_frame {
    uint32_t magic, state;                /* state: stage */
    uint8_t died[TUTTI_PROCESS_ID_BYTES]; /* a dead process of the sender's host; 0: none */
} beat_frame;

/* What is sent over the connection. */
typedef struct signed_frame {
    beat_frame frame;
    uint8_t mac[TUTTI_FRAME_MAC_BYTES];
} signed_frame;

/* One watched process. */
typedef struct heartbeat {
    tutti_peer *peer; /* one reference */
    /* communicators that this process is in, and those that it has left but watches for; changed under the lock */
    atomic_int watchers, watchers_left;
    atomic_int said;             /* stage: the last one sent to the other side, if there is a connection */
    bool has_left;               /* the other side has sent LEFT */
    tutti_connection connection; /* socket -1: not connected */
    uint64_t nsent, nheard;      /* frames on this connection */
    tutti_deadline connect;
    bool heard;           /* data has been received over the socket */
    bool over;            /* the peer has said goodbye, or is dead */
    uint64_t deaths_sent; /* of those that this host's processes have published */
    signed_frame in;
    size_t in_bytes; /* bytes of it received so far */
    struct heartbeat *next;
} heartbeat;

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
    atomic_store_explicit(&own->count, count + 1, memory_order_release); /* pairs with tutti_heartbeat_read_deaths */
}

void tutti_heartbeat_read_deaths(const tutti_comm *comm) {
    tutti_peer *first = comm->net.hosts->local->members[0].process;
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

static void declare_dead(heartbeat *b, const char *why) {
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

static void connect_beat(heartbeat *b) {
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

static void drop(heartbeat *b) {
    tutti_fork_forget(b->connection.socket);
    close(b->connection.socket);
    explicit_bzero(b->connection.key, sizeof b->connection.key);
    b->connection.socket = -1;
    b->nsent = b->nheard = b->in_bytes = 0;
}

/* The state that the other side should know. Another rank of this process may still be in a communicator that the first
 * rank has left. */
static stage state_of(const heartbeat *b) {
    const tutti_channel_directory *own = (const tutti_channel_directory *)tutti_heap_base();
    if (atomic_load(&b->watchers) > 0) return MEMBER;
    if (atomic_load(&b->watchers_left) == 0) return GOODBYE;
    return atomic_load_explicit(&own->memberships, memory_order_acquire) > 0 ? MEMBER : LEFT;
}

/* Drops a dead connection. If nothing was received over it, the connecting side had given it up, and tries again. */
static void lose(heartbeat *b, const char *why) {
    drop(b);
    if (b->heard && !b->over) declare_dead(b, why);
}

/* A failed send does not prove a death: an unread goodbye may have been received. receive_beats finds out. */
static void send_beat(heartbeat *b, stage state, const uint64_t died[2]) {
    signed_frame out = {.frame = {.magic = BEAT_MAGIC, .state = state}};
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

/* Sends the new deaths, or a heartbeat without any. Goodbye comes last: free_heartbeat. */
static void send_beats(heartbeat *b) {
    const tutti_deaths *own = own_deaths();
    uint64_t count = atomic_load_explicit(&own->count, memory_order_relaxed);
    stage state = state_of(b);
    if (state == GOODBYE) state = LEFT;
    if (count - b->deaths_sent > TUTTI_DEATHS) b->deaths_sent = count - TUTTI_DEATHS;
    if (b->deaths_sent == count) send_beat(b, state, no_process);
    for (; b->deaths_sent < count && b->connection.socket >= 0; b->deaths_sent++) {
        uint64_t died[2];
        for (int i = 0; i < 2; i++)
            died[i] = atomic_load_explicit(&own->ids[b->deaths_sent % TUTTI_DEATHS][i], memory_order_relaxed);
        send_beat(b, state, died);
    }
}

static void take_frame(heartbeat *b) {
    const beat_frame *frame = &b->in.frame;
    if (frame->magic != BEAT_MAGIC) declare_dead(b, "sent a frame that is not a heartbeat");
    else if (!tutti_frame_mac_check(&b->connection, b->nheard++, frame, sizeof *frame, b->in.mac))
        declare_dead(b, "is unreachable: its frames are modified on the network");
    else if (frame->state == GOODBYE) b->over = true;
    else {
        b->has_left = frame->state == LEFT;
        if (memcmp(frame->died, no_process, sizeof no_process) != 0 && tutti_peer_mark_dead(frame->died))
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
            bool closed = got == 0 || errno == ECONNRESET;
            b->over = closed && b->has_left;
            lose(b, closed ? "has ended" : errno == ETIMEDOUT ? "no longer responds" : strerror(errno));
            return;
        }
        b->in_bytes += (size_t)got;
        if (b->in_bytes < sizeof b->in) continue;
        b->in_bytes = 0;
        b->heard = true;
        take_frame(b);
    }
}

/* Connects, receives, and sends what is new; a heartbeat if it is due. */
static void go_on(heartbeat *b, bool due) {
    if (b->over) return;
    if (b->connection.socket < 0) connect_beat(b);
    if (b->connection.socket < 0) return;
    receive_beats(b);
    if (b->over || b->connection.socket < 0) return;
    bool news = b->deaths_sent != atomic_load_explicit(&own_deaths()->count, memory_order_relaxed);
    if (due || news || atomic_load(&b->said) != (int)state_of(b)) send_beats(b);
}

/* Says goodbye, closes the connection, and frees the state. The last deaths are sent before the goodbye: one of them
 * may be the reason for the end of the communicator. */
static void free_heartbeat(heartbeat *b) {
    if (b->connection.socket >= 0) {
        note_deaths();
        if (!b->over) send_beats(b);
        if (!b->over && b->connection.socket >= 0) send_beat(b, GOODBYE, no_process);
        if (b->connection.socket >= 0) drop(b);
    }
    tutti_peer_release(b->peer);
    free(b);
}

/* --------------------------------------------------------------------------------------------- the list */

static struct {
    pthread_cond_t parted; /* signaled when goodbyes have been sent */
    heartbeat *heartbeats;
    bool runs;
    bool parting;     /* goodbyes are being sent */
    _Atomic int bell; /* eventfd; -1: the thread has never run */
} watch = {.bell = -1};

/* Wakes the thread. */
void tutti_heartbeat_now(void) {
    uint64_t one = 1;
    if (watch.bell < 0) return;
    if (write(watch.bell, &one, sizeof one) < 0) return; /* full: it is already ringing */
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

/* Changes the counts of communicators that this process is in and of those that it has left, and returns once the
 * other side knows the resulting state. */
static void change(tutti_peer *remote, int watchers, int watchers_left) {
    if (tutti_forked()) return;
    const int64_t until_ns = tutti_now_ns() + PARTING_MS * TUTTI_NS_PER_MS;
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    heartbeat *b = find(remote);
    if (b != NULL) {
        atomic_fetch_add(&b->watchers, watchers);
        atomic_fetch_add(&b->watchers_left, watchers_left);
    }
    bool last = b != NULL && state_of(b) == GOODBYE;
    tutti_heartbeat_now();
    while (b != NULL && watch.runs && (last ? find(remote) == b || watch.parting : is_unsaid(remote)) &&
           tutti_cond_wait_until(&watch.parted, tutti_lock_mutex(TUTTI_LOCK_HEARTBEAT), until_ns)) {}
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
}

static void unwatch(tutti_peer *remote) {
    change(remote, -1, 0);
}

static void unwatch_left(tutti_peer *remote) {
    change(remote, 0, -1);
}

/* The same for the heartbeat thread itself, which cannot wait for its own goodbye. */
static void drop_left(tutti_peer *remote) {
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    heartbeat *b = find(remote);
    if (b != NULL) atomic_fetch_sub(&b->watchers_left, 1);
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
}

/* ---------------------------------------------------------------------------------------- on behalf of others */

/* State of one communicator. Holds references to all of its processes, since only the deaths of known processes are
 * reported, and to the segment, which may contain pages. */
typedef struct proxy {
    uint64_t comm_id;
    int nmembers, nfar, nprocesses;
    tutti_member *members; /* ranks of this host except this one */
    tutti_peer **remote;   /* the first processes of the other hosts; they are watched */
    tutti_peer **processes;
    tutti_shm_segment *segment;
    struct proxy *next;
} proxy;

static proxy *all_proxies;

/* True if the rank has left, or has died and its death has been published. */
static bool has_gone(const tutti_member *member, uint64_t comm_id) {
    return atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0 ||
           atomic_load_explicit(&member->page->comm_id, memory_order_acquire) != comm_id ||
           tutti_peer_death_is_published(member->process);
}

static bool have_gone(const proxy *w) {
    for (int i = 0; i < w->nmembers; i++)
        if (!has_gone(&w->members[i], w->comm_id)) return false;
    return true;
}

static void free_proxy(proxy *w) {
    for (int i = 0; i < w->nprocesses; i++) tutti_peer_release(w->processes[i]);
    tutti_shm_segment_release(w->segment);
    free(w->members);
    free(w->remote);
    free(w->processes);
    free(w);
}

static void fill(const tutti_comm *comm, proxy *w) {
    const tutti_hosts *hosts = comm->net.hosts;
    const tutti_comm *local = hosts->local;
    for (int i = 0; i < local->nranks; i++)
        if (i != local->rank) w->members[w->nmembers++] = local->members[i];
    for (int host = 0; host < hosts->nhosts; host++)
        if (host != hosts->host) w->remote[w->nfar++] = comm->members[hosts->all[host].ranks[0]].process;
    for (int rank = 0; rank < comm->nranks; rank++) {
        w->processes[w->nprocesses++] = comm->members[rank].process;
        tutti_peer_retain(comm->members[rank].process);
    }
}

static tutti_status make(const tutti_comm *comm, proxy **proxy_out) {
    proxy *w;
    TUTTI_TRY(tutti_calloc(1, sizeof *w, &w));
    w->comm_id = comm->id;
    if (comm->shm.segment != NULL) tutti_shm_segment_retain(comm->shm.segment);
    w->segment = comm->shm.segment;
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->net.hosts->local->nranks, sizeof *w->members, &w->members), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->net.hosts->nhosts, sizeof(tutti_peer *), &w->remote), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->nranks, sizeof(tutti_peer *), &w->processes), fail);
    fill(comm, w);
    *proxy_out = w;
    return TUTTI_OK;
fail:
    free_proxy(w);
    return status;
}

/* For a communicator that this process leaves and in which it watches the first processes of other hosts: takes over
 * the watching. Returns false if all processes of this host have left the communicator or an allocation fails; the
 * caller must then end the watching. */
static bool take_over(const tutti_comm *comm) {
    proxy *w;
    if (make(comm, &w) != TUTTI_OK) return false;
    if (have_gone(w)) {
        free_proxy(w);
        return false;
    }
    tutti_hooks.p2p_see_off(comm);
    for (int i = 0; i < w->nfar; i++) change(w->remote[i], -1, 1);
    tutti_lock(TUTTI_LOCK_PROXIES);
    w->next = all_proxies;
    all_proxies = w;
    tutti_unlock(TUTTI_LOCK_PROXIES);
    return true;
}

/* Removes the communicators that all processes of this host have left from the list and returns them. */
static proxy *take_gone(void) {
    proxy *taken = NULL;
    tutti_lock(TUTTI_LOCK_PROXIES);
    for (proxy **link = &all_proxies; *link != NULL;) {
        proxy *w = *link;
        if (!have_gone(w)) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        w->next = taken;
        taken = w;
    }
    tutti_unlock(TUTTI_LOCK_PROXIES);
    return taken;
}

/* Stops watching for communicators that all processes of this host have left. `end` is unwatch_left, or drop_left on
 * the heartbeat thread, after it has sent all deaths. */
static void release_gone(void (*end)(tutti_peer *remote)) {
    for (proxy *w = take_gone(), *next; w != NULL; w = next) {
        next = w->next;
        for (int i = 0; i < w->nfar; i++) end(w->remote[i]);
        free_proxy(w);
    }
}

/* ------------------------------------------------------------------------------------------- the thread */

/* Removes unwatched heartbeats from the list and returns them. */
static heartbeat *take_unwatched(void) {
    heartbeat *taken = NULL;
    for (heartbeat **link = &watch.heartbeats; *link != NULL;) {
        heartbeat *b = *link;
        if (state_of(b) != GOODBYE) {
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
        release_gone(drop_left);
        wait_for_next();
        tutti_lock(TUTTI_LOCK_HEARTBEAT);
    }
}

/* Lock held. */
static tutti_status start_thread(void) {
    if (watch.runs) return TUTTI_OK;
    if (watch.bell < 0) {
        tutti_cond_init(&watch.parted);
        watch.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    }
    if (watch.bell < 0) return tutti_fail_errno(errno, "cannot create an eventfd for heartbeats");
    int error = tutti_thread_start(TUTTI_THREAD_HEARTBEAT, heartbeat_thread, NULL, NULL);
    if (error != 0) return tutti_fail_errno(error, "cannot start the heartbeat thread");
    watch.runs = true;
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------- of a communicator */

/* Adds a heartbeat, watched once; the thread connects. Lock held. */
static tutti_status add(tutti_peer *remote) {
    heartbeat *b;
    TUTTI_TRY(tutti_calloc(1, sizeof *b, &b));
    *b = (heartbeat){.peer = remote, .connection.socket = -1, .watchers = 1, .next = watch.heartbeats};
    b->connect = tutti_deadline_after_ms(tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS));
    tutti_peer_retain(remote);
    watch.heartbeats = b;
    return TUTTI_OK;
}

static tutti_status watch_first(tutti_peer *remote) {
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    heartbeat *b = find(remote);
    if (b != NULL) atomic_fetch_add(&b->watchers, 1);
    tutti_status status = b != NULL ? TUTTI_OK : add(remote);
    if (status == TUTTI_OK) status = start_thread();
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
    tutti_heartbeat_now();
    return status;
}

/* The first process of another host. */
static tutti_peer *first_of(const tutti_comm *comm, int host) {
    return comm->members[comm->net.hosts->all[host].ranks[0]].process;
}

tutti_status tutti_heartbeat_watch_hosts(tutti_comm *comm) {
    tutti_hosts *hosts = comm->net.hosts;
    if (hosts->local->rank != 0) return TUTTI_OK;
    release_gone(unwatch_left); /* sends pending goodbyes first: later they would apply to this communicator */
    for (int host = 0; host < hosts->nhosts; host++) {
        if (host == hosts->host) continue;
        tutti_status status = watch_first(first_of(comm, host));
        if (status != TUTTI_OK) {
            for (int before = 0; before < host; before++)
                if (before != hosts->host) unwatch(first_of(comm, before));
            return status;
        }
    }
    hosts->watches = true;
    return TUTTI_OK;
}

void tutti_heartbeat_leave_hosts(tutti_comm *comm) {
    const tutti_hosts *hosts = comm->net.hosts;
    if (!hosts->watches) release_gone(unwatch_left); /* possibly of another rank in this process */
    if (!hosts->watches || take_over(comm)) return;
    for (int host = 0; host < hosts->nhosts; host++)
        if (host != hosts->host) unwatch(first_of(comm, host));
}
