/*
 * Opening of links, and waiting for them: until one is open, or until transfers are complete.
 *
 * Of two processes, the one with the lower id connects, and the other one takes the connection from its listener while
 * it waits. So both may start at any time, and there is one connection (or the number set by TUTTI_TCP_SOCKETS), plus a
 * second one, the twin, for exchanges.
 *
 * A wait first spins, with no clock reads and no system calls but those of the pipes. Later it yields, then sleeps on
 * the pipes' descriptors, for 4 ms at most. Before each sleep, and every millisecond of a long transfer, it checks the
 * deadline, requests to interrupt the call, whether another thread or another rank of this host has broken the
 * communicator, and whether ranks have reported on their links that they have given up.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "comm/base/backoff.h"
#include "comm/base/hooks.h"
#include "comm/net/hosts.h"
#include "comm/net/link_state.h"
#include "comm/net/listener.h"
#include "comm/net/transport/multi_socket.h"
#include "comm/shm/flags.h"
#include "comm/shm/peer.h"

#define ROUNDS_PER_SERVICE 16
#define ROUNDS_PER_CLOCK   64
#define LOOK_EVERY_NS      INT64_C(1000000)
#define LEGACY_NS          INT64_C(1000000000)
#define REASON_MS          700 /* heartbeats, which carry reports of deaths, are sent every 500 ms */
#define SHORTEST_SLEEP_NS  INT64_C(50000)
#define LONGEST_SLEEP_NS   INT64_C(4000000) /* a thousand checks per second would use 2 % of a core */
#define MOST_DESCRIPTORS   32
/* Times that vary, from 250 ns on, made broadcasts of up to 512 bytes between distant cores 2 % slower. */
#define BETWEEN_POLLS_NS 500

typedef struct link_wait {
    tutti_comm *comm;
    uint64_t quiet_since, looked_at; /* ticks; 0: something has just moved */
    int64_t sleep_ns;
    unsigned rounds;
} link_wait;

/* The process of that rank; NULL: unknown. */
static const tutti_peer *process_of(const tutti_comm *comm, int rank) {
    return comm->members != NULL ? comm->members[rank].process : NULL;
}

/* ------------------------------------------------------------------------------------------------ opening */

static tutti_status get_links(tutti_comm *comm, tutti_links **links_out) {
    tutti_links *links = comm->net.links;
    if (links == NULL) {
        TUTTI_TRY(tutti_calloc(1, sizeof *links + 2 * (size_t)comm->nranks * sizeof links->all[0], &links));
        tutti_status status = tutti_calloc(2 * (size_t)comm->nranks, sizeof links->busy[0], &links->busy);
        if (status != TUTTI_OK) {
            free(links);
            return status;
        }
        comm->net.links = links;
    }
    *links_out = links;
    return TUTTI_OK;
}

/* Returns the link to that rank, which is created, but not opened, at the first call. */
static tutti_status get_link(tutti_comm *comm, int rank, bool twin, tutti_link **link_out) {
    tutti_links *links;
    TUTTI_TRY(get_links(comm, &links));
    int place = twin ? comm->nranks + rank : rank;
    if (links->all[place] == NULL) {
        tutti_link *link = aligned_alloc(TUTTI_CACHE_LINE, sizeof *link);
        if (link == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a link (%zu bytes)", sizeof *link);
        memset(link, 0, offsetof(tutti_link, in.buffer)); /* pages of the buffer are allocated at first use */
        link->rank = rank;
        link->is_twin = twin;
        links->all[place] = link;
    }
    *link_out = links->all[place];
    return TUTTI_OK;
}

/* The best transport that both sides support; both compute the same one. */
static tutti_status choose_transport(const tutti_comm *comm, int rank, uint32_t *transport_out) {
    const tutti_listener_info *own = &comm->net.hosts->listeners[comm->rank],
                              *other = &comm->net.hosts->listeners[rank];
    int common =
        tutti_transport_common(own->transports, other->transports & tutti_verbs_only_mask(process_of(comm, rank)));
    if (common < 0)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "the two ranks have no transport in common%s: see TUTTI_TRANSPORT and tutti-info",
                          own->transports == 0 ? " (TUTTI_TRANSPORT names shared memory only)" : "");
    *transport_out = (uint32_t)common;
    return TUTTI_OK;
}

/* The id of the connection between this rank and another, and whether this rank connects. */
static tutti_status write_conn_id(const tutti_comm *comm, int rank, bool twin, tutti_conn_id *conn_id,
                                  bool *connects_out) {
    const tutti_listener_info *own = &comm->net.hosts->listeners[comm->rank],
                              *other = &comm->net.hosts->listeners[rank];
    int order = memcmp(own->process, other->process, sizeof own->process);
    bool connects = order != 0 ? order < 0 : comm->rank < rank;
    const tutti_listener_info *from = connects ? own : other, *to = connects ? other : own;
    memset(conn_id, 0, sizeof *conn_id);
    memcpy(conn_id->from, from->process, sizeof conn_id->from);
    memcpy(conn_id->to, to->process, sizeof conn_id->to);
    conn_id->comm_id = comm->id;
    conn_id->from_rank = connects ? comm->rank : rank;
    conn_id->to_rank = connects ? rank : comm->rank;
    conn_id->use = twin ? TUTTI_CONN_LINK_TWIN : TUTTI_CONN_LINK;
    *connects_out = connects;
    TUTTI_TRY(choose_transport(comm, rank, &conn_id->transport));
    conn_id->lanes = tutti_multi_socket_lanes(tutti_transports[conn_id->transport]);
    return TUTTI_OK;
}

static tutti_status open_link(tutti_comm *comm, tutti_link *link, const tutti_conn_id *conn_id,
                              const tutti_connection *taken) {
    tutti_listener_info listener = comm->net.hosts->listeners[link->rank];
    /* leaves no other transport to fall back to */
    listener.transports &= tutti_verbs_only_mask(process_of(comm, link->rank));
    return tutti_async_connect_start(&listener, conn_id, taken, comm->connect_timeout_ms, &link->attempt);
}

static tutti_status admit(tutti_comm *comm, int rank, bool twin) {
    tutti_link *link = twin ? tutti_link_twin(comm, rank) : tutti_link_first(comm, rank);
    tutti_conn_id conn_id;
    bool connects;
    tutti_connection taken[TUTTI_LANES_MOST];
    if (link != NULL && (link->pipe != NULL || link->attempt != NULL)) return TUTTI_OK;
    if (write_conn_id(comm, rank, twin, &conn_id, &connects) != TUTTI_OK || connects) return TUTTI_OK;
    if (tutti_listener_take(&conn_id, taken) != TUTTI_OK) return TUTTI_OK;
    tutti_status status = get_link(comm, rank, twin, &link);
    if (status == TUTTI_OK) return open_link(comm, link, &conn_id, taken);
    for (uint32_t lane = 0; lane < conn_id.lanes; lane++) close(taken[lane].socket);
    return status;
}

/* Starts to open the connections that other ranks have made: they may wait for them, whatever this rank waits for. */
static tutti_status admit_all(tutti_comm *comm) {
    uint64_t count = tutti_listener_count();
    if (comm->net.hosts == NULL || count == comm->net.links->arrivals_seen) return TUTTI_OK;
    comm->net.links->arrivals_seen = count;
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (rank == comm->rank) continue;
        TUTTI_TRY(admit(comm, rank, /* twin */ false));
        TUTTI_TRY(admit(comm, rank, /* twin */ true));
    }
    return TUTTI_OK;
}

/* Starts to connect, if that is this side's task. */
static tutti_status start_link(tutti_comm *comm, tutti_link *link) {
    bool connects;
    tutti_conn_id conn_id;
    TUTTI_TRY(write_conn_id(comm, link->rank, link->is_twin, &conn_id, &connects));
    return connects && link->attempt == NULL ? open_link(comm, link, &conn_id, /* taken */ NULL) : TUTTI_OK;
}

/* TUTTI_OK: the link has been opened. TUTTI_NOT_YET: call again. */
static tutti_status poll_link(tutti_comm *comm, tutti_link *link) {
    TUTTI_TRY(admit_all(comm));
    tutti_status status = link->attempt != NULL ? tutti_async_connect_take(link->attempt, &link->pipe) : TUTTI_NOT_YET;
    if (status == TUTTI_NOT_YET) return status;
    link->attempt = NULL;
    if (status == TUTTI_OK) status = tutti_verbs_only_admit(process_of(comm, link->rank), link->pipe);
    if (status != TUTTI_OK) link->pipe = NULL;
    return status;
}

const tutti_pipe *tutti_link_pipe(const tutti_comm *comm, int rank) {
    const tutti_link *link = comm->net.links != NULL ? tutti_link_first(comm, rank) : NULL;
    return link != NULL ? link->pipe : NULL;
}

tutti_status tutti_link_adopt(tutti_comm *comm, int rank, tutti_pipe *pipe) {
    tutti_link *link = NULL;
    tutti_status status = get_link(comm, rank, /* twin */ false, &link);
    if (status == TUTTI_OK && link->pipe != NULL)
        status = tutti_fail(TUTTI_ERR_ARGUMENT, "there is a link to rank %d already", rank);
    if (status != TUTTI_OK) {
        pipe->transport->close(pipe);
        return status;
    }
    link->pipe = pipe;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ reports */

/* "has taken 5 of 10 bytes and has sent 0 of 10 bytes". */
static const char *describe_progress(const tutti_comm *comm, int rank, char *text, size_t capacity) {
    char sends[64] = "", receives[96] = "";
    const tutti_link *both[2] = {tutti_link_first(comm, rank), tutti_link_twin(comm, rank)};
    for (int i = 0; i < 2 && both[i] != NULL; i++) {
        const tutti_pipe *pipe = both[i]->pipe;
        const tutti_link_in *in = &both[i]->in;
        if (both[i]->out.wanted) snprintf(sends, sizeof sends, "has taken %zu of %zu bytes", pipe->sent, pipe->to_send);
        if (in->wanted) snprintf(receives, sizeof receives, "has sent %zu of %zu bytes", in->done, in->bytes);
    }
    snprintf(text, capacity, "%s%s%s", sends, *sends != '\0' && *receives != '\0' ? " and " : "", receives);
    return text;
}

/* What the waiting call still needs, for reports and errors. */
static void tell_awaited(const tutti_comm *comm, char *text, size_t capacity) {
    const tutti_links *links = comm->net.links;
    char name[128];
    size_t used = 0;
    text[0] = '\0';
    if (links->awaited != NULL)
        snprintf(text, capacity, "%s, which has not connected",
                 tutti_peer_describe_rank(comm, links->awaited->rank, name, sizeof name));
    for (int i = 0; i < links->nbusy && used + 1 < capacity; i++) {
        char progress[160];
        int rank = links->busy[i]->rank;
        if (links->busy[i]->is_twin && tutti_link_first(comm, rank)->busy) continue; /* reported with the first link */
        used += (size_t)snprintf(text + used, capacity - used, "%s%s, which %s", used > 0 ? ", " : "",
                                 tutti_peer_describe_rank(comm, rank, name, sizeof name),
                                 describe_progress(comm, rank, progress, sizeof progress));
    }
}

/* ----------------------------------------------------------------------------------------------- checks */

/* Another rank of this host may have found the failure first. */
static tutti_status look_at_host(tutti_comm *comm) {
    if (comm->net.hosts == NULL || comm->net.hosts->local == NULL) return TUTTI_OK;
    tutti_comm *local = comm->net.hosts->local;
    for (int rank = 0; rank < local->nranks; rank++) {
        tutti_broken broken;
        if (!tutti_broken_read(local, rank, &broken)) continue;
        return tutti_broken_adopt(comm, comm->net.hosts->all[comm->net.hosts->host].ranks[rank], broken.status,
                                  broken.text);
    }
    return TUTTI_OK;
}

/* Checks all links: a rank that gives up reports it on all its links, not only to ranks that wait for it. */
static tutti_status look_at_links(tutti_comm *comm, const tutti_op *op) {
    for (int i = 0; i < 2 * comm->nranks; i++) {
        tutti_link *link = comm->net.links->all[i];
        if (link == NULL || link->pipe == NULL || link->busy || link->pipe->status != TUTTI_OK) continue;
        /* The other side may have finished and closed, which is no error: a call that needs data from it will fail. */
        if (tutti_link_listen(link) != TUTTI_OK || link->pipe->transport->progress(link->pipe) != TUTTI_OK) continue;
        tutti_link_receive_advance(comm, op, link);
        TUTTI_TRY(tutti_comm_check(comm));
        TUTTI_TRY(tutti_link_receive_unasked(comm, op, link));
    }
    return TUTTI_OK;
}

/* Other ranks often end because of the first one, for example when a launcher stops them: the error names the first. */
static int first_to_die(const tutti_comm *comm, int rank) {
    int first = rank;
    for (int other = 0; other < comm->nranks; other++)
        if (tutti_peer_death_turn(comm->members[other].process) < tutti_peer_death_turn(comm->members[first].process))
            first = other;
    return first;
}

static tutti_status fail_dead_peer(tutti_comm *comm, int rank) {
    char call[160];
    if (!tutti_peer_ended(comm->members[rank].process)) return TUTTI_OK;
    tutti_call record = tutti_call_of(comm->wait_state.op);
    tutti_call_describe(&record, call, sizeof call);
    return tutti_comm_break(comm, tutti_peer_fail_died(comm, first_to_die(comm, rank), call));
}

/* A lost connection may only be a consequence of a death elsewhere, after which the other side could not send its final
 * record. Then a report of that death is on its way: by heartbeats, on another link, or to a rank of this host. */
static tutti_status await_reason(tutti_comm *comm, const tutti_op *op) {
    tutti_deadline deadline = tutti_deadline_after_ms(REASON_MS);
    if (comm->net.hosts == NULL || comm->net.hosts->local == NULL) return TUTTI_OK;
    while (!tutti_deadline_passed(&deadline)) {
        TUTTI_TRY(tutti_comm_check(comm));
        TUTTI_TRY(look_at_host(comm));
        TUTTI_TRY(look_at_links(comm, op));
        tutti_hooks.heartbeat_read_deaths(comm);
        for (int rank = 0; rank < comm->nranks; rank++)
            if (comm->net.hosts->host_of[rank] != comm->net.hosts->host) TUTTI_TRY(fail_dead_peer(comm, rank));
        tutti_nap(2 * TUTTI_NS_PER_MS);
    }
    return TUTTI_OK;
}

tutti_status tutti_link_lost(tutti_comm *comm, const tutti_op *op, tutti_link *link, tutti_status status) {
    if (link->pipe->status == TUTTI_OK) return status; /* another error */
    TUTTI_TRY(await_reason(comm, op));
    char name[128], progress[160], call[160];
    tutti_call record = tutti_call_of(op);
    tutti_fail(
        link->pipe->status,
        "rank %d lost its connection to %s, which has ended, has given up (its own output says why) or cannot be "
        "reached any more (%s; it %s); %s of communicator \"%s\" cannot go on",
        comm->rank, tutti_peer_describe_rank(comm, link->rank, name, sizeof name), link->pipe->error,
        describe_progress(comm, link->rank, progress, sizeof progress), tutti_call_describe(&record, call, sizeof call),
        comm->name);
    return tutti_comm_break(comm, link->pipe->status);
}

/* A link shows a death only if it was connected, and while the network still works. */
static tutti_status look_for_deaths(const link_wait *wait) {
    tutti_comm *comm = wait->comm;
    const tutti_links *links = comm->net.links;
    if (comm->net.hosts == NULL || comm->net.hosts->local == NULL) return TUTTI_OK;
    tutti_hooks.heartbeat_read_deaths(comm);
    if (links->awaited != NULL) TUTTI_TRY(fail_dead_peer(comm, links->awaited->rank));
    /* Data sent before the process ended may still be on its way. */
    if (wait->quiet_since == 0 || tutti_ticks_to_ns(tutti_ticks() - wait->quiet_since) < LEGACY_NS) return TUTTI_OK;
    for (int i = 0; i < links->nbusy; i++) TUTTI_TRY(fail_dead_peer(comm, links->busy[i]->rank));
    return TUTTI_OK;
}

static tutti_status look(link_wait *wait) {
    tutti_comm *comm = wait->comm;
    TUTTI_TRY(tutti_comm_check(comm));
    TUTTI_TRY(tutti_interrupt_check());
    TUTTI_TRY(look_at_host(comm));
    TUTTI_TRY(admit_all(comm));
    TUTTI_TRY(look_at_links(comm, comm->wait_state.op));
    TUTTI_TRY(look_for_deaths(wait));
    return tutti_wait_state_check(comm, tell_awaited);
}

/* ---------------------------------------------------------------------------------------------- sleeping */

static void nap(link_wait *wait) {
    struct pollfd waited[MOST_DESCRIPTORS];
    const tutti_links *links = wait->comm->net.links;
    int count = 0;
    int64_t most_ns = wait->sleep_ns;
    if (links->awaited != NULL) waited[count++] = (struct pollfd){.fd = tutti_listener_notify_fd(), .events = POLLIN};
    if (links->nbusy > MOST_DESCRIPTORS - count)
        most_ns = tutti_min_i64(most_ns, LOOK_EVERY_NS); /* the remaining links cannot end the sleep */
    for (int i = 0; i < links->nbusy && count < MOST_DESCRIPTORS; i++) {
        tutti_pipe *pipe = links->busy[i]->pipe;
        waited[count].fd = pipe->transport->sleep_on(pipe, &waited[count].events);
        if (waited[count].fd >= 0) count++;
        else most_ns = SHORTEST_SLEEP_NS;
    }
    if (tutti_hooks.p2p_pending()) most_ns = SHORTEST_SLEEP_NS;
    struct timespec most = {.tv_nsec = most_ns};
    if (ppoll(waited, (nfds_t)count, &most, NULL) > 0 && links->awaited != NULL && waited[0].revents != 0) {
        uint64_t rings; /* stays readable until it is read; other waiting threads check again soon */
        (void)!read(waited[0].fd, &rings, sizeof rings);
    }
    wait->sleep_ns = tutti_min_i64(2 * wait->sleep_ns, LONGEST_SLEEP_NS);
}

/* An adapter is polled in its memory: no lock, no pause. */
static bool polls_sockets(const tutti_links *links) {
    return links->nbusy == 0 || !tutti_transport_can(links->busy[0]->pipe->transport, TUTTI_TRANSPORT_ADAPTER);
}

/* Called after each round, in which bytes `moved`. Spins, yields or sleeps, and runs the checks now and then. */
static tutti_status pause_wait(link_wait *wait, bool moved) {
    unsigned round = ++wait->rounds;
    if (round % ROUNDS_PER_SERVICE == 0 || wait->sleep_ns == LONGEST_SLEEP_NS) tutti_hooks.p2p_progress();
    if (moved) {
        wait->quiet_since = 0;
        wait->sleep_ns = SHORTEST_SLEEP_NS;
        if (round % ROUNDS_PER_CLOCK != 0) return TUTTI_OK;
    }
    uint64_t now = tutti_ticks();
    if (wait->looked_at == 0) wait->looked_at = now;
    if (!moved && wait->quiet_since == 0) wait->quiet_since = now;
    bool tired =
        !moved && tutti_ticks_to_ns(now - wait->quiet_since) >= tutti_setting_int(TUTTI_SETTING_SPIN_US) * 1000;
    if (tired || tutti_ticks_to_ns(now - wait->looked_at) >= LOOK_EVERY_NS) {
        wait->looked_at = now;
        TUTTI_TRY(look(wait));
    }
    if (tired) nap(wait);
    else if (!moved && wait->comm->wait_state.yields) sched_yield();
    else if (!moved && polls_sockets(wait->comm->net.links))
        tutti_backoff_between_polls(BETWEEN_POLLS_NS, BETWEEN_POLLS_NS);
    else if (!moved) tutti_relax();
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------- waiting until a link is open */

/* Waits until the link is open: the other side may start the operation as late as its deadline allows. */
static tutti_status await_link(tutti_comm *comm, tutti_link *link) {
    link_wait wait = {.comm = comm, .sleep_ns = SHORTEST_SLEEP_NS};
    for (;;) {
        tutti_status status = poll_link(comm, link);
        if (status != TUTTI_NOT_YET) return status;
        TUTTI_TRY(pause_wait(&wait, /* moved */ false));
    }
}

static tutti_status make(tutti_comm *comm, tutti_link *link) {
    char name[128];
    if (comm->net.hosts == NULL || comm->net.hosts->listeners == NULL)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "there is no link to rank %d", link->rank);
    tutti_status status = start_link(comm, link);
    comm->net.links->awaited = link;
    if (status == TUTTI_OK) status = await_link(comm, link);
    comm->net.links->awaited = NULL;
    if (status == TUTTI_OK || tutti_comm_check(comm) != TUTTI_OK) return status;
    return tutti_fail_context(status, "rank %d cannot make a link to %s", comm->rank,
                              tutti_peer_describe_rank(comm, link->rank, name, sizeof name));
}

/* Only socket transports have twins, and only if a link has a single socket (multi_socket.h). */
static bool has_twin(const tutti_comm *comm, const tutti_link *link) {
    const tutti_transport *transport = link->pipe->transport;
    return tutti_transport_can(transport, TUTTI_TRANSPORT_SOCKETS) && comm->net.hosts != NULL &&
           comm->net.hosts->listeners != NULL;
}

tutti_status tutti_link_make(const tutti_rail *rail, int rank, bool exchanges) {
    tutti_comm *comm = rail->comm;
    assert(rank >= 0 && rank < rail->n && rank != rail->me);
    tutti_link *link = NULL;
    TUTTI_TRY(get_link(comm, rail->ranks[rank], /* twin */ false, &link));
    if (TUTTI_UNLIKELY(link->pipe == NULL)) TUTTI_TRY(make(comm, link));
    if (!exchanges || !has_twin(comm, link)) return TUTTI_OK;
    TUTTI_TRY(get_link(comm, link->rank, /* twin */ true, &link));
    return TUTTI_LIKELY(link->pipe != NULL) ? TUTTI_OK : make(comm, link);
}

/* ----------------------------------------------------------------------------------------------- driving */

/* Moves what can be moved on one link; adds the bytes to `moved`. */
static tutti_status drive_link(const tutti_rail *rail, tutti_link *link, uint64_t *moved) {
    tutti_pipe *pipe = link->pipe;
    uint64_t before = pipe->bytes_in + pipe->bytes_out + link->in.done;
    tutti_status status = pipe->transport->progress(pipe);
    if (link->out.wanted && tutti_pipe_has_sent(pipe)) link->out.wanted = false;
    /* Also after a failure: the other side's final record may have arrived. */
    if (link->in.stage != TUTTI_LINK_IDLE) {
        tutti_status received = tutti_link_receive_advance(rail->comm, rail->op, link);
        if (status == TUTTI_OK) status = received;
    }
    *moved += pipe->bytes_in + pipe->bytes_out + link->in.done - before;
    if (TUTTI_LIKELY(status == TUTTI_OK)) return TUTTI_OK;
    TUTTI_TRY(tutti_comm_check(rail->comm)); /* the other side has reported the reason */
    return link->in.wanted || link->out.wanted ? tutti_link_lost(rail->comm, rail->op, link, status) : TUTTI_OK;
}

tutti_status tutti_link_drive(const tutti_rail *rail, const tutti_link_work *work) {
    tutti_links *links = rail->comm->net.links;
    link_wait wait = {.comm = rail->comm, .sleep_ns = SHORTEST_SLEEP_NS};
    for (;;) {
        uint64_t moved = 0;
        for (int i = 0; i < links->nbusy;) {
            tutti_link *link = links->busy[i];
            TUTTI_TRY(drive_link(rail, link, &moved));
            if (link->in.wanted || link->out.wanted) {
                i++;
                continue;
            }
            link->busy = false;
            links->busy[i] = links->busy[--links->nbusy];
        }
        bool worked = work != NULL;
        if (worked && !work->some(work->context)) work = NULL;
        if (links->nbusy == 0 && work == NULL) return TUTTI_OK;
        TUTTI_TRY(pause_wait(&wait, moved > 0 || worked));
    }
}
