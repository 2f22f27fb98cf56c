/*
 * Opening of links. Of two processes, the one with the lower id connects, and the other one takes the connection
 * from its listener while it waits. So both may start at any time, and there is one connection (or the
 * number set by TUTTI_TCP_SOCKETS), plus a second one, the twin, for exchanges.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/status.h"
#include "comm/net/hosts.h"
#include "comm/net/link_state.h"
#include "comm/net/listener.h"
#include "comm/net/transport/multi_socket.h"
#include "comm/net/verbs_only.h"
#include "comm/shm/peer.h"

/* The process of that rank; NULL: unknown. */
static const tutti_peer *process_of(const tutti_comm *comm, int rank) {
    return comm->members != NULL ? comm->members[rank].process : NULL;
}

const char *tutti_link_peer_name(const tutti_comm *comm, int rank, char *text, size_t capacity) {
    const tutti_peer *process = process_of(comm, rank);
    char job[40];
    if (process != NULL)
        snprintf(text, capacity, "rank %d (host %s, pid %d%s)", rank, process->host, (int)process->pid,
                 tutti_comm_job_rank(comm, rank, job));
    else snprintf(text, capacity, "rank %d", rank);
    return text;
}

/* ------------------------------------------------------------------------------------------------ making */

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

tutti_status tutti_link_get(tutti_comm *comm, int rank, bool twin, tutti_link **link_out) {
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

/* The ticket of the connection between this rank and another, and whether this rank connects. */
static tutti_status write_ticket(const tutti_comm *comm, int rank, bool twin, tutti_conn_id *ticket,
                                 bool *connects_out) {
    const tutti_listener_info *own = &comm->net.hosts->listeners[comm->rank],
                              *other = &comm->net.hosts->listeners[rank];
    int order = memcmp(own->process, other->process, sizeof own->process);
    bool connects = order != 0 ? order < 0 : comm->rank < rank;
    const tutti_listener_info *from = connects ? own : other, *to = connects ? other : own;
    memset(ticket, 0, sizeof *ticket);
    memcpy(ticket->from, from->process, sizeof ticket->from);
    memcpy(ticket->to, to->process, sizeof ticket->to);
    ticket->comm_id = comm->id;
    ticket->from_rank = connects ? comm->rank : rank;
    ticket->to_rank = connects ? rank : comm->rank;
    ticket->use = twin ? TUTTI_CONN_LINK_TWIN : TUTTI_CONN_LINK;
    *connects_out = connects;
    TUTTI_TRY(choose_transport(comm, rank, &ticket->transport));
    ticket->lanes = tutti_multi_socket_lanes(tutti_transports[ticket->transport]);
    return TUTTI_OK;
}

static tutti_status open_link(tutti_comm *comm, tutti_link *link, const tutti_conn_id *ticket,
                              const tutti_connection *taken) {
    tutti_listener_info listener = comm->net.hosts->listeners[link->rank];
    /* leaves no other transport to fall back to */
    listener.transports &= tutti_verbs_only_mask(process_of(comm, link->rank));
    return tutti_async_connect_start(&listener, ticket, taken, comm->connect_timeout_ms, &link->attempt);
}

static tutti_status admit(tutti_comm *comm, int rank, bool twin) {
    tutti_link *link = twin ? tutti_link_twin(comm, rank) : tutti_link_first(comm, rank);
    tutti_conn_id ticket;
    bool connects;
    tutti_connection taken[TUTTI_LANES_MOST];
    if (link != NULL && (link->pipe != NULL || link->attempt != NULL)) return TUTTI_OK;
    if (write_ticket(comm, rank, twin, &ticket, &connects) != TUTTI_OK || connects) return TUTTI_OK;
    if (tutti_listener_take(&ticket, taken) != TUTTI_OK) return TUTTI_OK;
    tutti_status status = tutti_link_get(comm, rank, twin, &link);
    if (status == TUTTI_OK) return open_link(comm, link, &ticket, taken);
    for (uint32_t lane = 0; lane < ticket.lanes; lane++) close(taken[lane].socket);
    return status;
}

tutti_status tutti_link_admit(tutti_comm *comm) {
    uint64_t count = tutti_listener_count();
    if (comm->net.hosts == NULL || count == comm->net.links->door_seen) return TUTTI_OK;
    comm->net.links->door_seen = count;
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (rank == comm->rank) continue;
        TUTTI_TRY(admit(comm, rank, /* twin */ false));
        TUTTI_TRY(admit(comm, rank, /* twin */ true));
    }
    return TUTTI_OK;
}

tutti_status tutti_link_start(tutti_comm *comm, tutti_link *link) {
    bool connects;
    tutti_conn_id ticket;
    TUTTI_TRY(write_ticket(comm, link->rank, link->is_twin, &ticket, &connects));
    return connects && link->attempt == NULL ? open_link(comm, link, &ticket, /* taken */ NULL) : TUTTI_OK;
}

tutti_status tutti_link_poll(tutti_comm *comm, tutti_link *link) {
    TUTTI_TRY(tutti_link_admit(comm));
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
    tutti_status status = tutti_link_get(comm, rank, /* twin */ false, &link);
    if (status == TUTTI_OK && link->pipe != NULL)
        status = tutti_fail(TUTTI_ERR_ARGUMENT, "there is a link to rank %d already", rank);
    if (status != TUTTI_OK) {
        pipe->transport->close(pipe);
        return status;
    }
    link->pipe = pipe;
    return TUTTI_OK;
}
