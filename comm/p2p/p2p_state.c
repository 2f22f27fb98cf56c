/*
 * The state of point to point: the ports, the end of requests when the lock is released, and why a communicator or
 * a channel can no longer be used. See p2p_state.h.
 */
#include "comm/p2p/p2p_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/hash.h"
#include "bootstrap/base/lock.h"
#include "comm/net/hosts.h"

tutti_p2p_state tutti_p2p = {
    .found = TAILQ_HEAD_INITIALIZER(tutti_p2p.found),
    .unfound = TAILQ_HEAD_INITIALIZER(tutti_p2p.unfound),
    .pulling = TAILQ_HEAD_INITIALIZER(tutti_p2p.pulling),
    .ended = TAILQ_HEAD_INITIALIZER(tutti_p2p.ended),
    .spare = TAILQ_HEAD_INITIALIZER(tutti_p2p.spare),
};

#define ENDINGS_AT_ONCE 16

typedef struct ending {
    tutti_work *work;
    tutti_status status;
    char *error;
} ending;

/* Takes ended requests off their list, for use without the lock, and makes the requests available for reuse. */
static size_t take_endings(ending endings[ENDINGS_AT_ONCE]) {
    size_t count = 0;
    tutti_request *request;
    while (count < ENDINGS_AT_ONCE && (request = TAILQ_FIRST(&tutti_p2p.ended)) != NULL) {
        TAILQ_REMOVE(&tutti_p2p.ended, request, state_link);
        endings[count++] = (ending){request->work, request->status, request->error};
        TAILQ_INSERT_HEAD(&tutti_p2p.spare, request, state_link);
    }
    return count;
}

void tutti_p2p_unlock(void) {
    ending endings[ENDINGS_AT_ONCE];
    for (bool more = true; more;) {
        size_t count = take_endings(endings);
        more = !TAILQ_EMPTY(&tutti_p2p.ended);
        tutti_unlock(TUTTI_LOCK_P2P);
        for (size_t i = 0; i < count; i++) {
            tutti_status status = endings[i].status;
            if (status != TUTTI_OK) tutti_fail(status, "%s", endings[i].error != NULL ? endings[i].error : "");
            free(endings[i].error);
            tutti_work_end(endings[i].work, status);
            tutti_work_free(endings[i].work); /* point to point's reference */
        }
        if (more) tutti_lock(TUTTI_LOCK_P2P);
    }
}

_Static_assert(TUTTI_PORT_BUCKETS == 256, "eight bits of the hash name the bucket");

tutti_port **tutti_p2p_bucket(uint64_t comm_id, int rank) {
    return &tutti_p2p.ports[tutti_hash_add(comm_id, (unsigned)rank) >> 56];
}

tutti_port *tutti_p2p_port(uint64_t comm_id, int rank) {
    tutti_port *port = *tutti_p2p_bucket(comm_id, rank);
    while (port != NULL && (port->comm_id != comm_id || port->rank != rank)) port = port->next;
    return port;
}

bool tutti_p2p_has_left(const tutti_port *port, int rank) {
    const tutti_page *page = port->comm->members[rank].page;
    return atomic_load_explicit(&page->departed, memory_order_acquire) != 0 ||
           atomic_load_explicit(&page->comm_id, memory_order_acquire) != port->comm_id;
}

bool tutti_p2p_read_reason(const tutti_port *port, int rank, tutti_verdict *verdict) {
    const tutti_comm *comm = port->comm;
    tutti_broken broken;
    if (!tutti_broken_read(comm, rank, &broken)) return false;
    bool own = rank == port->rank;
    verdict->status = own ? (tutti_status)broken.status : tutti_broken_peer_status(broken.status);
    if (comm->net.hosts != NULL && comm->members[rank].page == comm->net.hosts->elsewhere)
        rank = comm->net.hosts->reported_by;
    if (own) snprintf(verdict->text, sizeof verdict->text, "%s", broken.text);
    else tutti_broken_quote(broken.text, rank, verdict->text, sizeof verdict->text);
    return true;
}

void tutti_channel_break(tutti_channels *channel, const char *format, ...) {
    if (channel->broken) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(channel->error, sizeof channel->error, format, arguments);
    va_end(arguments);
    channel->broken = true;
    tutti_log(TUTTI_LOG_ERROR, "messages from process %d are no longer read: %s", (int)channel->peer->pid,
              channel->error);
}
