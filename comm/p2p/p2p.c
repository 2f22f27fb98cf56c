/*
 * Point to point: sends and receives of this process's ranks. This file holds the entry points; immediate.c is the
 * short path of blocking calls, incoming.c handles incoming records, matching.c finds the receive for a message,
 * transfer.c moves bytes, request.c ends requests, watchdog.c checks requests that wait too long, channel*.c are the
 * rings, remote_*.c mirror them between hosts, notify.c notifies other hosts of communicators that broke or were left.
 *
 *   sender                                 receiver
 *   small:
 *     1 EAGER(bytes) ------------------->  2 matches: copies from the ring; else keeps a copy
 *   large:
 *     1 ANNOUNCE(id, address) ---------->  2 matches, or keeps the announcement
 *   then, from tutti_mem_alloc memory, or while no thread waits at the sender and the system permits reads of its
 *   memory:
 *                                          3 copies slice by slice from the sender's memory
 *     5 the send is complete <-----------  4 DONE(id)
 *   or else, or as soon as a thread waits at the sender, for the rest:
 *            <---------------------------  3 CLEAR(id, answer, from)
 *     4 FRAGMENT(answer, bytes) ... ---->  5 copies from the ring; the last one completes the receive
 *       the last one completes the send
 *
 * Small means up to TUTTI_EAGER_BYTES (half of it to another host by a transport whose receives cannot move to
 * another buffer; less where the receiver can copy from the sender's buffer), as long as the peer keeps no more
 * than a bounded backlog of unmatched bytes; messages beyond the bound are announced. To another host by sockets,
 * the announcement carries the message's first TUTTI_EAGER_BYTES, within the same bound, if the ring has room:
 * without them, 256 KiB took 1.1 times as long. The path over the ring takes two copies, at once on two cores and
 * past their caches, and is faster than the single copy by the system; but a sender thread must be present for it.
 * A send that finds no room in the ring waits in line; fragments leave room for others. Answers wait only for room,
 * and reading never waits, so both directions at once cannot block. Ranks of one process use no ring: the
 * receiver's side copies straight from the sender's buffer.
 *
 * Invariant: one lock guards all of it. It is never held while a work ends, a communicator breaks or a thread
 * waits.
 */
#include "comm/p2p/p2p.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/hash.h"
#include "bootstrap/base/lock.h"
#include "comm/base/backoff.h"
#include "comm/net/transport/transport.h"
#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"

/* ------------------------------------------------------------------------------------- sends, receives */

/* Locks, and makes a request of the communicator's port; on failure the lock is free again. */
static tutti_status begin(tutti_comm *comm, tutti_work *work, tutti_request **request_out) {
    if (tutti_forked())
        return tutti_fail(TUTTI_ERR_FORKED, "this process was forked after communicator \"%s\" was made", comm->name);
    tutti_lock(TUTTI_LOCK_P2P);
    tutti_port *port = tutti_p2p_port(comm->id, comm->rank);
    tutti_status status = port == NULL
                              ? tutti_fail(TUTTI_ERR_ABORTED, "communicator \"%s\" is being destroyed", comm->name)
                              : tutti_request_make(port, work, request_out);
    if (status != TUTTI_OK) tutti_unlock(TUTTI_LOCK_P2P);
    return status;
}

tutti_status tutti_p2p_send(tutti_comm *comm, const void *src, size_t bytes, int peer, int64_t tag, tutti_work *work) {
    tutti_request *request;
    TUTTI_TRY(begin(comm, work, &request));
    request->peer = peer;
    request->tag = tag;
    request->buffer = (char *)(uintptr_t)src; /* only read */
    request->bytes = bytes;
    if (comm->members[peer].process->self) tutti_incoming_local(request, tutti_p2p_port(comm->id, peer));
    else tutti_transfer_send(request);
    tutti_p2p_unlock();
    return TUTTI_OK;
}

tutti_status tutti_p2p_recv(tutti_comm *comm, void *dst, size_t bytes, size_t item_bytes, int peer, int64_t tag,
                            tutti_work *work) {
    tutti_request *request;
    TUTTI_TRY(begin(comm, work, &request));
    request->peer = peer;
    request->tag = tag;
    request->buffer = dst;
    request->bytes = bytes;
    request->item_bytes = item_bytes > 0 ? item_bytes : 1;
    tutti_incoming_receive(request);
    tutti_p2p_unlock();
    return TUTTI_OK;
}

tutti_status tutti_p2p_start(tutti_comm *comm, const tutti_message *message, tutti_work *whole, tutti_work **work_out) {
    tutti_work *work;
    TUTTI_TRY(tutti_work_create(comm, &work));
    work->op.timeout_ms = message->timeout_ms;
    if (whole != NULL) {
        work->whole = whole;
        tutti_work_retain(whole);
        atomic_fetch_add_explicit(&whole->parts, 1, memory_order_relaxed);
    }
    tutti_status status = message->sends
                              ? tutti_p2p_send(comm, message->src, message->bytes, message->peer, message->tag, work)
                              : tutti_p2p_recv(comm, message->dst, message->bytes, message->item_bytes, message->peer,
                                               message->tag, work);
    if (status != TUTTI_OK) {
        if (whole != NULL) {
            atomic_fetch_sub_explicit(&whole->parts, 1, memory_order_relaxed);
            tutti_work_free(whole);
        }
        tutti_work_free(work);
        return status;
    }
    *work_out = work;
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- progress */

static void fail_all(tutti_port *port, tutti_status status, const char *text) {
    tutti_request *request;
    while ((request = TAILQ_FIRST(&port->all)) != NULL) tutti_request_fail(request, status, text);
}

/* Breaks a communicator, without the lock, and fails all of its requests. */
static void carry_out(const tutti_verdict *verdict) {
    tutti_fail(verdict->status, "%s", verdict->text);
    tutti_status status = tutti_comm_break(verdict->port->comm, verdict->status);
    tutti_p2p_notify_broken(verdict->port->comm);
    const tutti_error error = tutti_fail_save();
    tutti_lock(TUTTI_LOCK_P2P);
    fail_all(verdict->port, status, error.text);
    verdict->port->pins--;
    tutti_p2p_unlock();
}

/* Under the lock, which it unlocks. */
static bool progress(void) {
    tutti_verdict verdict;
    tutti_p2p.moved = false;
    tutti_incoming_progress();
    tutti_watch_check(&verdict);
    bool moved = tutti_p2p.moved;
    tutti_p2p_unlock();
    if (TUTTI_UNLIKELY(verdict.port != NULL)) carry_out(&verdict);
    return moved;
}

bool tutti_p2p_progress(void) {
    if (atomic_load_explicit(&tutti_p2p.channels, memory_order_relaxed) == 0 && !tutti_p2p_pending()) return false;
    if (tutti_forked() || !tutti_try_lock(TUTTI_LOCK_P2P)) return false;
    return progress();
}

bool tutti_p2p_progress_in_turn(void) {
    if (tutti_forked()) return false;
    tutti_lock(TUTTI_LOCK_P2P);
    return progress();
}

bool tutti_p2p_pending(void) {
    return atomic_load_explicit(&tutti_p2p.pending, memory_order_relaxed) > 0;
}

/* --------------------------------------------------------------------------------------- communicators */

/* Opens channels to the processes of all members. Under the lock. */
static tutti_status open_channels(tutti_comm *comm) {
    for (int rank = 0; rank < comm->nranks; rank++) {
        tutti_peer *peer = comm->members[rank].process;
        if (peer->self || peer->channels != NULL) continue;
        TUTTI_TRY(tutti_channel_open(peer, &peer->channels));
        TAILQ_INSERT_TAIL(peer->remote ? &tutti_p2p.found : &tutti_p2p.unfound, peer->channels, link);
        atomic_fetch_add_explicit(&tutti_p2p.channels, 1, memory_order_relaxed);
        tutti_p2p.callers_seen = 0; /* the peer may have called before */
    }
    return TUTTI_OK;
}

/* Under the lock. */
static void count_users(const tutti_comm *comm, int change) {
    for (int rank = 0; rank < comm->nranks; rank++)
        if (!comm->members[rank].process->self) comm->members[rank].process->channels->users += change;
}

tutti_status tutti_p2p_open(tutti_comm *comm) {
    tutti_ticks_to_ns(0); /* calibrates now, not within the first wait */
    tutti_port *port;
    TUTTI_TRY(tutti_calloc(1, sizeof *port + (size_t)comm->nranks * sizeof *port->left, &port));
    port->left = (bool *)(port + 1);
    port->comm = comm;
    port->comm_id = comm->id;
    port->rank = comm->rank;
    TAILQ_INIT(&port->all);
    TAILQ_INIT(&port->posted);
    TAILQ_INIT(&port->unexpected);
    tutti_lock(TUTTI_LOCK_P2P);
    tutti_status status = open_channels(comm);
    if (status == TUTTI_OK) {
        tutti_port **bucket = tutti_p2p_bucket(port->comm_id, port->rank);
        port->next = *bucket;
        *bucket = port;
        count_users(comm, 1);
    }
    tutti_unlock(TUTTI_LOCK_P2P);
    if (status != TUTTI_OK) free(port); /* channels stay until their peer is forgotten */
    return status;
}

const struct tutti_transport *tutti_p2p_not_by(const tutti_peer *peer, const struct tutti_transport *transport,
                                               char *why, size_t capacity) {
    tutti_lock(TUTTI_LOCK_P2P);
    const tutti_pipe *pipe = peer->channels != NULL ? tutti_remote_not_by(peer->channels, transport) : NULL;
    const struct tutti_transport *other = pipe != NULL ? pipe->transport : NULL;
    if (pipe != NULL) snprintf(why, capacity, "%s", pipe->error);
    tutti_p2p_unlock();
    return other;
}

void tutti_p2p_close(tutti_comm *comm) {
    if (tutti_forked()) return; /* the parent's channels are not mapped here */
    char text[256];
    snprintf(text, sizeof text, "communicator \"%s\" was destroyed while this request was in progress", comm->name);
    tutti_lock(TUTTI_LOCK_P2P);
    tutti_port *port = tutti_p2p_port(comm->id, comm->rank);
    /* A communicator whose creation failed may not know its rank; the port is then another rank's, of this process. */
    if (port != NULL && port->comm != comm) port = NULL;
    while (port != NULL && port->pins > 0) { /* another thread is about to break the communicator */
        tutti_p2p_unlock();
        sched_yield();
        tutti_lock(TUTTI_LOCK_P2P);
    }
    if (port != NULL) {
        tutti_p2p_notify_left(comm);
        tutti_port **link = tutti_p2p_bucket(comm->id, comm->rank);
        while (*link != port) link = &(*link)->next;
        *link = port->next;
        count_users(comm, -1);
        fail_all(port, TUTTI_ERR_ABORTED, text);
        tutti_incoming_drop(port);
        free(port);
    }
    tutti_p2p_unlock();
}

#define FLUSH_MS 5000

/* Gives the data sent to a process of another host to the system before the pipe is closed. */
static void flush_far(tutti_peer *peer) {
    if (!peer->remote) return;
    tutti_deadline deadline = tutti_deadline_after_ms(FLUSH_MS);
    tutti_backoff backoff = {.yields = true};
    for (bool busy = true; busy && !tutti_deadline_passed(&deadline); tutti_backoff_pause(&backoff)) {
        tutti_lock(TUTTI_LOCK_P2P);
        if (peer->channels != NULL) tutti_remote_progress(peer->channels);
        busy = peer->channels != NULL && tutti_remote_is_busy(peer->channels);
        tutti_unlock(TUTTI_LOCK_P2P);
    }
}

/* Under the lock. */
static void close_channel(tutti_peer *peer) {
    tutti_channels *channel = peer->channels;
    if (channel->busy) atomic_fetch_sub_explicit(&tutti_p2p.pending, 1, memory_order_relaxed);
    tutti_note *note;
    while ((note = STAILQ_FIRST(&channel->notes)) != NULL) {
        STAILQ_REMOVE_HEAD(&channel->notes, link);
        atomic_fetch_sub_explicit(&tutti_p2p.pending, 1, memory_order_relaxed);
        free(note);
    }
    if (channel->theirs != NULL) TAILQ_REMOVE(&tutti_p2p.found, channel, link);
    else TAILQ_REMOVE(&tutti_p2p.unfound, channel, link);
    tutti_channel_close(channel);
    peer->channels = NULL;
    atomic_fetch_sub_explicit(&tutti_p2p.channels, 1, memory_order_relaxed);
}

void tutti_p2p_forget(tutti_peer *peer) {
    if (tutti_forked()) return;
    flush_far(peer);
    tutti_lock(TUTTI_LOCK_P2P);
    if (peer->channels != NULL) close_channel(peer);
    tutti_p2p_unlock();
}

void tutti_p2p_see_off(const tutti_comm *comm) {
    for (int rank = 0; rank < comm->nranks; rank++) {
        tutti_peer *peer = comm->members[rank].process;
        if (!peer->remote) continue;
        flush_far(peer);
        tutti_lock(TUTTI_LOCK_P2P);
        if (peer->channels != NULL && peer->channels->users == 0) close_channel(peer);
        tutti_p2p_unlock();
    }
}
