/*
 * Notices to ranks of other hosts about a communicator, outside of calls that they take part in: that it is broken,
 * that a rank has left, and which calls a rank has made on CUDA memory. Ranks of this host read that in shared
 * pages.
 *
 * A notice is a record like any other, so it comes after the data sent before it. The notice that a rank has left
 * goes only where messages have gone: no connection is made for it. A failure also goes to each peer that has
 * connected, as a rank that waits for a message does (tutti_remote_reach). Ranks that have links get notices of
 * failures there, too; the first notice counts.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/lock.h"
#include "comm/net/hosts.h"
#include "comm/net/link.h"
#include "comm/p2p/p2p.h"
#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"

static void tell_rank(const tutti_comm *comm, int rank, tutti_record record, const char *text) {
    tutti_channels *channel = comm->members[rank].process->channels;
    if (channel == NULL || channel->remote == NULL || channel->broken || channel->gone) return;
    tutti_remote_progress(channel); /* accepts peers that have connected */
    bool reached = record.kind == TUTTI_RECORD_LEFT ? tutti_remote_is_open(channel) : tutti_remote_is_used(channel);
    if (!reached || tutti_channel_make(channel) != TUTTI_OK) return;
    record.comm_id = comm->id;
    record.source = comm->rank;
    record.destination = rank;
    record.payload_bytes = text != NULL ? (uint32_t)strlen(text) : 0;
    tutti_channel_notify(channel, &record, text);
}

static void tell_all(const tutti_comm *comm, tutti_record record, const char *text) {
    for (int rank = 0; rank < comm->nranks; rank++)
        if (comm->members[rank].process != NULL) tell_rank(comm, rank, record, text);
}

void tutti_p2p_notify_broken(tutti_comm *comm) {
    if (comm->net.hosts == NULL || atomic_exchange(&comm->net.hosts->reported, true)) return;
    tutti_status status = tutti_comm_check(comm);
    if (status == TUTTI_OK) return;
    const tutti_error error = tutti_fail_save();
    tutti_lock(TUTTI_LOCK_P2P);
    tell_all(comm, (tutti_record){.kind = TUTTI_RECORD_BROKEN, .bytes = (uint64_t)-(int64_t)status}, error.text);
    tutti_p2p_unlock();
    tutti_queue_serve_rest(comm);
    tutti_fail_again(status, &error);
}

tutti_status tutti_comm_give_up_running(tutti_comm *comm, tutti_status status) {
    status = tutti_comm_break(comm, status);
    if (comm->net.hosts != NULL) {
        tutti_link_break_all(comm);
        tutti_p2p_notify_broken(comm);
    }
    return status;
}

tutti_status tutti_comm_give_up(tutti_comm *comm, tutti_status status) {
    status = tutti_comm_break(comm, status);
    /* else the thread that runs the operation notifies the others */
    if (comm->net.hosts != NULL && tutti_queue_try_enter(comm)) {
        tutti_link_break_all(comm);
        tutti_queue_leave(comm);
    }
    tutti_p2p_notify_broken(comm);
    return tutti_fail(status, "%s", comm->page->broken_text);
}

void tutti_p2p_notify_left(const tutti_comm *comm) {
    if (comm->net.hosts != NULL) tell_all(comm, (tutti_record){.kind = TUTTI_RECORD_LEFT}, NULL);
}

/* ---------------------------------------------------------------------------------------------- hearing of it */

bool tutti_notify_received_broken(tutti_channels *channel, const tutti_record *record, tutti_port *port) {
    tutti_hosts *hosts = port->comm->net.hosts;
    tutti_page *page = hosts != NULL ? hosts->elsewhere : NULL;
    if (page == NULL || record->payload_bytes >= TUTTI_BROKEN_TEXT_BYTES || record->bytes > INT32_MAX) return false;
    if (atomic_load_explicit(&page->state, memory_order_relaxed) != TUTTI_PAGE_WHOLE) return true; /* already known */
    tutti_channel_copy(channel, record, page->broken_text, record->payload_bytes);
    page->broken_text[record->payload_bytes] = '\0';
    if (record->payload_bytes == 0) /* there was no room for the text */
        snprintf(page->broken_text, sizeof page->broken_text, "rank %d reports that communicator \"%s\" is broken",
                 record->source, port->comm->name);
    page->broken_status = -(int32_t)record->bytes;
    hosts->reported_by = record->source;
    atomic_store_explicit(&page->state, TUTTI_PAGE_BROKEN, memory_order_release); /* read by tutti_watch_check */
    return true;
}
