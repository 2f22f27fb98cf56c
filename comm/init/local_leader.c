/*
 * The leader accepts the other ranks of its host. local_bootstrap.h describes the messages.
 *
 * It serves all visitors (connections that have not authenticated yet) at once; each sends a few messages.
 * Processes that the peer table names have until the deadline, and their failure is the communicator's. All other
 * processes are unexpected: a few are served at a time, for a short time, with few lines in the log. The process
 * ids in the peer table also show when a missing rank has ended.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm/base/namespace.h"
#include "comm/init/local_state.h"
#include "comm/net/listener.h"

#define UNEXPECTED_MS   2000 /* a process that is not in the peer table must authenticate within this */
#define MOST_UNEXPECTED 32   /* at a time; a further one replaces the oldest */
#define MOST_ACCEPTED   64   /* in one turn, before visitors are served again */
#define DEATH_MS        1000 /* a process that has ended may have left messages, which are read first */
#define LOOK_MS         200  /* interval of checks whether missing ranks have ended */

tutti_status tutti_local_list_ranks(tutti_local_bootstrap *c, const tutti_peer_table *table) {
    TUTTI_TRY(tutti_calloc((size_t)tutti_local_nmembers(c), sizeof *c->ranks, &c->ranks));
    int count = 0;
    for (int rank = 0; rank < c->nranks; rank++) {
        if (tutti_peer_table_ranks(table)[rank].host != c->place->host) continue;
        if (count == tutti_local_nmembers(c))
            return tutti_fail(TUTTI_ERR_DATA, "the peer table contradicts this host's entry in the store");
        if (rank == c->rank) c->local_rank = count;
        c->ranks[count++] = rank;
    }
    if (count == tutti_local_nmembers(c) && c->ranks[0] == c->place->leader && c->ranks[c->local_rank] == c->rank)
        return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA, "the peer table contradicts this host's entry in the store");
}

/* -------------------------------------------------------------------------------------------- the leader */

/* A connection that has not authenticated yet. */
typedef struct visitor {
    int fd, local_rank;
    int64_t pid;      /* in the pid namespace of this process; 0: unknown */
    bool awaited;     /* the peer table names that process */
    bool is_answered; /* its hello has arrived and the proof is sent: its entry comes next */
    int64_t born_ns;
    tutti_local_hello hello;
    uint8_t nonce[TUTTI_LOCAL_NONCE_BYTES]; /* nonce of the proof that was sent */
} visitor;

typedef struct directory {
    tutti_local_bootstrap *local;
    const tutti_peer_table *table;
    visitor *visitors;     /* oldest first */
    struct pollfd *polled; /* the listening socket, then the visitors in order */
    int nvisitors, capacity;
    uint64_t refused;
    int64_t death_ns; /* when a missing rank was first seen to have ended; 0: none has */
} directory;

static int local_rank_of(const tutti_local_bootstrap *c, int rank) {
    int local_rank = 0;
    while (local_rank < tutti_local_nmembers(c) && c->ranks[local_rank] != rank) local_rank++;
    return local_rank;
}

/* Whether that process is a missing rank. */
static bool is_awaited(const tutti_local_bootstrap *c, const tutti_peer_table *table, int64_t pid) {
    uint64_t space = tutti_namespace_pid();
    for (int local_rank = 1; local_rank < tutti_local_nmembers(c) && pid > 0; local_rank++) {
        const tutti_peer_table_rank *rank = &tutti_peer_table_ranks(table)[c->ranks[local_rank]];
        if (c->peers[local_rank].connection < 0 && rank->pid == pid && rank->pid_space == space) return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------------------------ visitors */

static void remove_visitor(directory *l, int index) {
    l->nvisitors--;
    memmove(l->visitors + index, l->visitors + index + 1, (size_t)(l->nvisitors - index) * sizeof l->visitors[0]);
}

/* Logs a line; the more refusals there are, the fewer lines. */
static void refuse(directory *l, int fd, const char *why) {
    uint64_t count = ++l->refused;
    close(fd);
    if (count > 8 && (count & (count - 1)) != 0) return;
    tutti_log(TUTTI_LOG_WARN, "refused connection %llu to the first rank of this host: %s", (unsigned long long)count,
              why);
}

static void refuse_visitor(directory *l, int index, const char *why) {
    int fd = l->visitors[index].fd;
    remove_visitor(l, index);
    refuse(l, fd, why);
}

static int oldest_unexpected(const directory *l) {
    int index = 0;
    while (index < l->nvisitors && l->visitors[index].awaited) index++;
    return index;
}

static int count_unexpected(const directory *l) {
    int count = 0;
    for (int i = 0; i < l->nvisitors; i++) count += !l->visitors[i].awaited;
    return count;
}

static tutti_status make_room(directory *l) {
    if (l->nvisitors < l->capacity) return TUTTI_OK;
    int capacity = l->capacity > 0 ? 2 * l->capacity : 16;
    visitor *visitors = realloc(l->visitors, (size_t)capacity * sizeof *visitors);
    if (visitors != NULL) l->visitors = visitors;
    struct pollfd *polled = realloc(l->polled, (size_t)(capacity + 1) * sizeof *polled);
    if (polled != NULL) l->polled = polled;
    if (visitors == NULL || polled == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for connections of ranks");
    l->capacity = capacity;
    return TUTTI_OK;
}

/* No descriptor is free: closes the oldest unexpected connection; fails if there is none. */
static tutti_status free_descriptor(directory *l, int error) {
    int index = oldest_unexpected(l);
    if (index == l->nvisitors)
        return tutti_fail_errno(
            error, "the first rank of a host needs two descriptors for each other rank; raise 'ulimit -n'");
    refuse_visitor(l, index, "no descriptor is free for it");
    return TUTTI_OK;
}

/* TUTTI_NOT_YET: no further connection is waiting. */
static tutti_status accept_one(directory *l) {
    tutti_local_bootstrap *c = l->local;
    int64_t pid = 0;
    int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) return free_descriptor(l, errno);
    if (fd < 0) return TUTTI_NOT_YET;
    bool same_user = tutti_local_wire_is_same_user(fd, &pid), awaited = is_awaited(c, l->table, pid);
    if (!same_user && !c->others && awaited) {
        close(fd);
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "a rank of this host (pid %lld) runs as another user; to allow that, set TUTTI_SECRET and "
                          "TUTTI_OTHER_USERS=1 on all ranks",
                          (long long)pid);
    }
    if (!same_user && !c->others) {
        refuse(l, fd, "it belongs to another user");
        return TUTTI_OK;
    }
    if (!awaited && count_unexpected(l) == MOST_UNEXPECTED)
        refuse_visitor(l, oldest_unexpected(l), "too many other connections arrived before it authenticated");
    tutti_status status = make_room(l);
    if (status != TUTTI_OK) {
        close(fd);
        return status;
    }
    l->visitors[l->nvisitors++] = (visitor){.fd = fd, .pid = pid, .awaited = awaited, .born_ns = tutti_now_ns()};
    return TUTTI_OK;
}

static tutti_status answer_hello(const directory *l, visitor *v) {
    tutti_local_bootstrap *c = l->local;
    tutti_local_proof p;
    TUTTI_TRY(tutti_local_wire_receive(v->fd, &v->hello, sizeof v->hello, NULL, 0, NULL, c->deadline, "hello"));
    v->local_rank = local_rank_of(c, v->hello.rank);
    if (v->local_rank == 0 || v->local_rank == tutti_local_nmembers(c) || c->peers[v->local_rank].connection >= 0)
        return tutti_fail(TUTTI_ERR_REFUSED, "it claims to be rank %d, which is %s", v->hello.rank,
                          v->local_rank == 0                         ? "this process's own rank"
                          : v->local_rank == tutti_local_nmembers(c) ? "not a rank of this host"
                                                                     : "connected already");
    TUTTI_TRY(tutti_getrandom(p.nonce, sizeof p.nonce));
    memcpy(v->nonce, p.nonce, sizeof v->nonce);
    tutti_local_mac(c, '0', &v->hello, p.nonce, p.mac);
    TUTTI_TRY(tutti_local_wire_send(v->fd, &p, sizeof p, NULL, 0, c->deadline));
    v->is_answered = true;
    return TUTTI_OK;
}

/* Checks the MAC of the entry; if it is right, sends the segment and keeps the connection. */
static tutti_status take_entry(const directory *l, visitor *v) {
    tutti_local_bootstrap *c = l->local;
    tutti_local_entry e;
    uint8_t expected[TUTTI_SHA256_BYTES];
    int heap_fd = -1, nfds = 0;
    tutti_status status = tutti_local_wire_receive(v->fd, &e, sizeof e, &heap_fd, 1, &nfds, c->deadline, "entry");
    if (status == TUTTI_ERR_PEER_DIED) return tutti_local_fail_secret(v->hello.rank); /* it rejected our proof */
    TUTTI_TRY(status);
    tutti_local_mac(c, 'r', &v->hello, v->nonce, expected);
    bool proved = tutti_hmac_equal(expected, e.mac, sizeof expected) && e.rank == v->hello.rank && nfds == 1;
    if (!proved || c->peers[v->local_rank].connection >= 0) {
        if (nfds == 1) close(heap_fd);
        return tutti_local_fail_secret(v->hello.rank);
    }
    tutti_local_message welcome;
    int segment_fd = tutti_shm_segment_fd(c->segment);
    tutti_local_fill_message(&welcome, TUTTI_OK);
    c->peers[v->local_rank].connection = v->fd; /* from now on tutti_local_bootstrap_close closes it */
    c->peers[v->local_rank].heap_fd = heap_fd;
    return tutti_local_wire_send(v->fd, &welcome, sizeof welcome, &segment_fd, 1, c->deadline);
}

/* A visitor has sent a message, or has closed the connection. */
static tutti_status hear(directory *l, int index) {
    visitor *v = &l->visitors[index];
    int fd = v->fd, local_rank = v->local_rank;
    bool is_entry = v->is_answered, awaited = v->awaited;
    tutti_status status = is_entry ? take_entry(l, v) : answer_hello(l, v);
    bool kept = is_entry && l->local->peers[local_rank].connection == fd;
    if (kept) {
        remove_visitor(l, index);
        return status;
    }
    if (status == TUTTI_OK) return TUTTI_OK;
    if (!awaited) {
        refuse_visitor(l, index, tutti_last_error());
        return TUTTI_OK;
    }
    remove_visitor(l, index);
    close(fd);
    return status;
}

/* Refuses unexpected processes that have not authenticated in time. */
static void expire(directory *l) {
    int64_t now_ns = tutti_now_ns();
    for (int i = l->nvisitors - 1; i >= 0; i--)
        if (!l->visitors[i].awaited && now_ns - l->visitors[i].born_ns > UNEXPECTED_MS * TUTTI_NS_PER_MS)
            refuse_visitor(l, i, "it did not authenticate in time");
}

/* Waits for at most LOOK_MS; reads from all visitors that have sent something, and accepts new connections. */
static tutti_status serve(directory *l) {
    TUTTI_TRY(make_room(l));
    l->polled[0] = (struct pollfd){.fd = l->local->listen_fd, .events = POLLIN};
    for (int i = 0; i < l->nvisitors; i++)
        l->polled[1 + i] = (struct pollfd){.fd = l->visitors[i].fd, .events = POLLIN};
    int polled = l->nvisitors, ready = poll(l->polled, (nfds_t)polled + 1, LOOK_MS);
    if (ready < 0 && errno != EINTR) return tutti_fail_errno(errno, "poll while waiting for ranks of this host");
    if (ready <= 0) return TUTTI_OK;
    for (int i = polled - 1; i >= 0; i--) /* from the end: hear() may remove the visitor that it reads */
        if (l->polled[1 + i].revents != 0) TUTTI_TRY(hear(l, i));
    tutti_status status = l->polled[0].revents != 0 ? TUTTI_OK : TUTTI_NOT_YET;
    for (int i = 0; i < MOST_ACCEPTED && status == TUTTI_OK; i++) status = accept_one(l);
    return status == TUTTI_NOT_YET ? TUTTI_OK : status;
}

/* ---------------------------------------------------------------------------------------------- missing ranks */

static void list_missing(const tutti_local_bootstrap *c, const tutti_peer_table *table, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int local_rank = 1; local_rank < tutti_local_nmembers(c) && used < capacity; local_rank++)
        if (c->peers[local_rank].connection < 0)
            used +=
                (size_t)snprintf(text + used, capacity - used, "%srank %d (host %s, pid %lld)", used > 0 ? ", " : "",
                                 c->ranks[local_rank], tutti_peer_table_hosts(table)[c->place->host].name,
                                 (long long)tutti_peer_table_ranks(table)[c->ranks[local_rank]].pid);
}

tutti_status tutti_local_fail_death(const tutti_local_bootstrap *c, const tutti_peer_table *table, int local_rank) {
    return tutti_fail(TUTTI_ERR_PEER_DIED, "rank %d (host %s, pid %lld) died while the communicator was being created",
                      c->ranks[local_rank], tutti_peer_table_hosts(table)[c->place->host].name,
                      (long long)tutti_peer_table_ranks(table)[c->ranks[local_rank]].pid);
}

/* Whether that process, which has ended, may have sent messages that were not read yet. */
static bool is_visiting(directory *l, int64_t pid) {
    struct pollfd listener = {.fd = l->local->listen_fd, .events = POLLIN};
    if (l->death_ns == 0) l->death_ns = tutti_now_ns();
    if (tutti_now_ns() - l->death_ns > DEATH_MS * TUTTI_NS_PER_MS) return false;
    for (int i = 0; i < l->nvisitors; i++)
        if (l->visitors[i].pid == pid) return true;
    return poll(&listener, 1, 0) > 0;
}

/* Checks whether a missing rank or a connected one has ended. */
static tutti_status look_for_deaths(directory *l) {
    const tutti_local_bootstrap *c = l->local;
    const tutti_peer_table *table = l->table;
    uint64_t space = tutti_namespace_pid();
    for (int local_rank = 1; local_rank < tutti_local_nmembers(c); local_rank++) {
        tutti_local_peer *peer = &c->peers[local_rank];
        const tutti_peer_table_rank *rank = &tutti_peer_table_ranks(table)[c->ranks[local_rank]];
        struct pollfd look = {.fd = peer->connection, .events = 0};
        if (peer->connection < 0) {
            if (rank->pid_space != space || space == 0) continue;
            if (peer->pidfd < 0) peer->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)rank->pid, 0);
            if (peer->pidfd < 0 && errno == ESRCH) return tutti_local_fail_death(c, table, local_rank);
            look = (struct pollfd){.fd = peer->pidfd, .events = POLLIN};
        }
        if (look.fd >= 0 && poll(&look, 1, 0) > 0) {
            if (peer->connection >= 0 || !is_visiting(l, rank->pid))
                return tutti_local_fail_death(c, table, local_rank);
        }
    }
    return TUTTI_OK;
}

static int count_missing(const tutti_local_bootstrap *c) {
    int missing = 0;
    for (int local_rank = 1; local_rank < tutti_local_nmembers(c); local_rank++)
        missing += c->peers[local_rank].connection < 0;
    return missing;
}

static tutti_status await_ranks(directory *l) {
    tutti_local_bootstrap *c = l->local;
    char missing[600];
    int64_t looked_ns = tutti_now_ns();
    while (count_missing(c) > 0) {
        TUTTI_TRY(serve(l));
        expire(l);
        if (tutti_now_ns() - looked_ns >= LOOK_MS * TUTTI_NS_PER_MS) {
            looked_ns = tutti_now_ns();
            TUTTI_TRY(look_for_deaths(l));
        }
        if (!tutti_deadline_passed(c->deadline)) {
            if (!tutti_notice_due(&c->notice, c->deadline->spent_ns - c->begin_ns)) continue;
            list_missing(c, l->table, missing, sizeof missing);
            tutti_log(TUTTI_LOG_WARN,
                      "the start has waited %lld s for ranks of this host that make no progress: %s; waits until "
                      "TUTTI_CONNECT_TIMEOUT_MS",
                      (long long)(c->deadline->spent_ns - c->begin_ns) / TUTTI_NS_PER_S, missing);
            continue;
        }
        list_missing(c, l->table, missing, sizeof missing);
        return tutti_fail(TUTTI_ERR_TIMEOUT,
                          "not all ranks of this host have connected before the deadline "
                          "(TUTTI_CONNECT_TIMEOUT_MS); missing: %s",
                          missing);
    }
    return TUTTI_OK;
}

tutti_status tutti_local_open_leader(tutti_local_bootstrap *c, const tutti_peer_table *table) {
    TUTTI_TRY(tutti_calloc((size_t)tutti_local_nmembers(c), sizeof *c->peers, &c->peers));
    for (int local_rank = 0; local_rank < tutti_local_nmembers(c); local_rank++)
        c->peers[local_rank] = (tutti_local_peer){.connection = -1, .heap_fd = -1, .pidfd = -1};
    TUTTI_TRY(tutti_local_list_ranks(c, table));
    size_t listeners_bytes = table->nhosts > 1 ? (size_t)table->nranks * sizeof(tutti_listener_info) : 0;
    TUTTI_TRY(tutti_shm_segment_create(table->nranks, tutti_peer_table_hosts(table)[c->place->host].nranks, table,
                                       tutti_peer_table_bytes(table), listeners_bytes, &c->segment));
    directory l = {.local = c, .table = table};
    tutti_status status = await_ranks(&l);
    for (int i = 0; i < l.nvisitors; i++) close(l.visitors[i].fd);
    free(l.visitors);
    free(l.polled);
    return status;
}
