/*
 * The functions of links: each starts its transfers and drives them until they are complete. See link.h for the
 * contract, link_state.h for the parts of a link.
 *
 * A rank that gives up sends the reason on all of its links where it fits between two transfers; it closes the
 * others. A rank that destroys its communicator sends that, too; it is an error only for ranks that still need data
 * from it.
 *
 * Invariant: when a call returns, with or without success, no transfer from or to its buffers is under way.
 */
#include "comm/net/link.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/net/link_state.h"
#include "comm/shm/flags.h"

/* ---------------------------------------------------------------------------------------------- starting */

static void enlist(tutti_comm *comm, tutti_link *link) {
    if (link->busy) return;
    link->busy = true;
    comm->net.links->busy[comm->net.links->nbusy++] = link;
}

static tutti_status start_send(const tutti_rail *rail, tutti_link *link, const void *src, size_t bytes) {
    tutti_link_out *out = &link->out;
    assert(!out->wanted);
    enlist(rail->comm, link);
    out->wanted = true;
    out->record = tutti_link_record_of(rail->op, bytes);
    struct iovec parts[2] = {{.iov_base = &out->record, .iov_len = sizeof out->record},
                             {.iov_base = (void *)src, .iov_len = bytes}};
    tutti_status status = link->pipe->transport->send(link->pipe, parts, bytes > 0 ? 2 : 1);
    return TUTTI_LIKELY(status == TUTTI_OK) ? TUTTI_OK : tutti_link_lost(rail->comm, rail->op, link, status);
}

static tutti_status start_receive(const tutti_rail *rail, tutti_link *link, void *dst, size_t bytes,
                                  const tutti_fold *fold) {
    enlist(rail->comm, link);
    tutti_status status = tutti_link_receive(rail, link, dst, bytes, fold);
    return TUTTI_LIKELY(status == TUTTI_OK) ? TUTTI_OK : tutti_link_lost(rail->comm, rail->op, link, status);
}

/* Ends the call. A failure breaks the communicator, is reported on all links, and releases the buffers. */
static tutti_status end(const tutti_rail *rail, tutti_status status) {
    if (TUTTI_LIKELY(status == TUTTI_OK)) return TUTTI_OK;
    status = tutti_comm_break(rail->comm, status);
    tutti_link_break_all(rail->comm);
    return status;
}

/* ------------------------------------------------------------------------------------------------- verbs */

typedef struct transfers {
    int to, from; /* in the rail; -1: none */
    const void *src;
    size_t send_bytes;
    void *dst;
    size_t receive_bytes;
    const tutti_fold *fold;
} transfers;

/* Selects one of the two links to a rank of the rail (link_state.h). */
static tutti_link *side(const tutti_rail *rail, int rank, bool sends, bool exchanges) {
    tutti_link *first = tutti_link_first(rail->comm, rail->ranks[rank]);
    tutti_link *twin = tutti_link_twin(rail->comm, rail->ranks[rank]);
    if (!exchanges || twin == NULL) return first;
    bool is_lower = rail->comm->rank < first->rank, turned = first->exchanges % 2 != 0;
    return (is_lower == sends) != turned ? first : twin;
}

static tutti_status begin(const tutti_rail *rail) {
    if (rail->comm->wait_state.op != rail->op) tutti_wait_state_begin(rail->comm, rail->op);
    return tutti_comm_check(rail->comm);
}

static tutti_status move(const tutti_rail *rail, const transfers *t) {
    tutti_link *to = NULL, *from = NULL;
    TUTTI_TRY(begin(rail));
    /* In the order of ranks: all ranks create their links in the same order, so there is no cyclic wait. */
    int first = t->to >= 0 && (t->from < 0 || rail->ranks[t->to] < rail->ranks[t->from]) ? t->to : t->from;
    bool exchanges =
        t->to == t->from && t->send_bytes <= TUTTI_LINK_TWIN_BYTES && t->receive_bytes <= TUTTI_LINK_TWIN_BYTES;
    TUTTI_TRY(tutti_link_make(rail, first, exchanges));
    if (t->to >= 0 && t->to != first) TUTTI_TRY(tutti_link_make(rail, t->to, exchanges));
    if (t->from >= 0 && t->from != first) TUTTI_TRY(tutti_link_make(rail, t->from, exchanges));
    if (t->to >= 0) to = side(rail, t->to, /* sends */ true, exchanges);
    if (t->from >= 0) from = side(rail, t->from, /* sends */ false, exchanges);
    if (exchanges) tutti_link_first(rail->comm, rail->ranks[t->to])->exchanges++;
    if (from != NULL) TUTTI_TRY(start_receive(rail, from, t->dst, t->receive_bytes, t->fold));
    if (to != NULL && to != from && !exchanges) tutti_link_listen(to); /* the other side may report that it gives up */
    if (to != NULL) TUTTI_TRY(start_send(rail, to, t->src, t->send_bytes));
    return tutti_link_drive(rail, NULL);
}

tutti_status tutti_link_send(const tutti_rail *rail, int to, const void *src, size_t bytes) {
    return end(rail, move(rail, &(transfers){.to = to, .from = -1, .src = src, .send_bytes = bytes}));
}

tutti_status tutti_link_recv(const tutti_rail *rail, int from, void *dst, size_t bytes) {
    return end(rail, move(rail, &(transfers){.to = -1, .from = from, .dst = dst, .receive_bytes = bytes}));
}

tutti_status tutti_link_exchange(const tutti_rail *rail, int to, const void *src, size_t send_bytes, int from,
                                 void *dst, size_t receive_bytes) {
    return end(rail, move(rail, &(transfers){.to = to,
                                             .from = from,
                                             .src = src,
                                             .send_bytes = send_bytes,
                                             .dst = dst,
                                             .receive_bytes = receive_bytes}));
}

tutti_status tutti_link_recv_reduce(const tutti_rail *rail, int from, void *acc, size_t count, tutti_fold fold) {
    return end(rail, move(rail, &(transfers){.to = -1,
                                             .from = from,
                                             .dst = acc,
                                             .receive_bytes = count * tutti_type_bytes(fold.type),
                                             .fold = &fold}));
}

tutti_status tutti_link_exchange_reduce(const tutti_rail *rail, int to, const void *src, size_t send_bytes, int from,
                                        void *acc, size_t count, tutti_fold fold) {
    return end(rail, move(rail, &(transfers){.to = to,
                                             .from = from,
                                             .src = src,
                                             .send_bytes = send_bytes,
                                             .dst = acc,
                                             .receive_bytes = count * tutti_type_bytes(fold.type),
                                             .fold = &fold}));
}

/* Creates all missing links, in the order of ranks, and records which ranks exchange data in both directions. */
static tutti_status make_all(const tutti_rail *rail, const tutti_link_part *parts, int nparts) {
    for (int last = -1;;) {
        int next = -1;
        unsigned ways = 0;
        for (int i = 0; i < nparts; i++) {
            int rank = rail->ranks[parts[i].rank];
            if (rank <= last || (next >= 0 && rank > rail->ranks[next])) continue;
            if (next < 0 || rank < rail->ranks[next]) ways = 0;
            next = parts[i].rank;
            ways |= parts[i].bytes > TUTTI_LINK_TWIN_BYTES ? TUTTI_LINK_LONG
                    : parts[i].sends                       ? TUTTI_LINK_SENDS
                                                           : TUTTI_LINK_RECEIVES;
        }
        if (next < 0) return TUTTI_OK;
        TUTTI_TRY(tutti_link_make(rail, next, ways == TUTTI_LINK_EXCHANGES));
        last = rail->ranks[next];
        tutti_link_first(rail->comm, last)->ways = ways;
    }
}

static tutti_status move_parts(const tutti_rail *rail, const tutti_link_part *parts, int nparts,
                               const tutti_link_work *work) {
    TUTTI_TRY(begin(rail));
    TUTTI_TRY(make_all(rail, parts, nparts));
    for (int i = 0; i < nparts; i++) {
        const tutti_link *first = tutti_link_first(rail->comm, rail->ranks[parts[i].rank]);
        if (parts[i].sends) continue;
        tutti_link *link = side(rail, parts[i].rank, /* sends */ false, first->ways == TUTTI_LINK_EXCHANGES);
        TUTTI_TRY(start_receive(rail, link, parts[i].data, parts[i].bytes, NULL));
    }
    for (int i = 0; i < nparts; i++) {
        tutti_link *first = tutti_link_first(rail->comm, rail->ranks[parts[i].rank]);
        bool exchanges = first->ways == TUTTI_LINK_EXCHANGES;
        if (!parts[i].sends) continue;
        tutti_link *link = side(rail, parts[i].rank, /* sends */ true, exchanges);
        if (exchanges) first->exchanges++; /* after its receive, which has been started already */
        else tutti_link_listen(link);
        TUTTI_TRY(start_send(rail, link, parts[i].data, parts[i].bytes));
    }
    return tutti_link_drive(rail, work);
}

tutti_status tutti_link_move(const tutti_rail *rail, const tutti_link_part *parts, int nparts) {
    if (nparts == 0) return TUTTI_OK;
    return end(rail, move_parts(rail, parts, nparts, NULL));
}

tutti_status tutti_link_move_meanwhile(const tutti_rail *rail, const tutti_link_part *parts, int nparts,
                                       const tutti_link_work *work) {
    if (nparts > 0) return end(rail, move_parts(rail, parts, nparts, work));
    while (work->some(work->context)) continue;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ ending */

/* Sends a final record, if it fits between two transfers and can be sent at once; the link then sends nothing more. */
static void say(tutti_comm *comm, tutti_link *link, tutti_status status, const char *reason, bool goodbye) {
    tutti_pipe *pipe = link->pipe;
    tutti_async_connect_abandon(link->attempt); /* closes connections that the other side may have accepted already */
    link->attempt = NULL;
    if (pipe == NULL) return;
    if (pipe->status == TUTTI_OK && tutti_pipe_has_sent(pipe) && !link->out.ended) {
        tutti_op none = {.kind = TUTTI_KIND_BARRIER, .signature = TUTTI_SIGNATURE_BROKEN, .sequence = comm->sequence};
        tutti_link_record record = tutti_link_record_of(&none, 0);
        record.status = status;
        record.goodbye = goodbye;
        record.reason_bytes = (uint32_t)tutti_min_size(strlen(reason), TUTTI_BROKEN_TEXT_BYTES - 1);
        struct iovec parts[2] = {{.iov_base = &record, .iov_len = sizeof record},
                                 {.iov_base = (void *)reason, .iov_len = record.reason_bytes}};
        if (pipe->transport->send(pipe, parts, 2) == TUTTI_OK) pipe->transport->progress(pipe);
    }
    link->out.ended = true;
    bool cut = !tutti_pipe_has_sent(pipe);
    pipe->transport->cancel(pipe);
    link->out.wanted = link->in.wanted = link->busy = false;
    link->in.stage = TUTTI_LINK_IDLE;
    if (!cut) return;
    pipe->transport->close(pipe); /* lets the other side detect the end at all */
    link->pipe = NULL;
}

void tutti_link_break_all(tutti_comm *comm) {
    tutti_status status = comm->net.links != NULL ? tutti_comm_check(comm) : TUTTI_OK;
    if (status == TUTTI_OK) return;
    const tutti_error error = tutti_fail_save();
    comm->net.links->nbusy = 0;
    for (int i = 0; i < 2 * comm->nranks; i++)
        if (comm->net.links->all[i] != NULL)
            say(comm, comm->net.links->all[i], status, error.text, /* goodbye */ false);
    tutti_fail_again(status, &error);
}

void tutti_link_close_all(tutti_comm *comm) {
    tutti_links *links = comm->net.links;
    char reason[160];
    if (links == NULL) return;
    snprintf(reason, sizeof reason, "rank %d has destroyed communicator \"%s\" and does not take part", comm->rank,
             comm->name);
    for (int i = 0; i < 2 * comm->nranks; i++) {
        tutti_link *link = links->all[i];
        if (link == NULL) continue;
        say(comm, link, TUTTI_ERR_BROKEN, reason, /* goodbye */ true);
        if (link->pipe != NULL) link->pipe->transport->close(link->pipe);
        free(link);
    }
    free(links->pieces);
    free(links->busy);
    free(links);
    comm->net.links = NULL;
}
