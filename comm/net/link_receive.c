/*
 * The receiving half of a link, as a state machine, and the record that precedes a transfer. See link_state.h for the
 * stages.
 *
 * Invariant: a transfer is `wanted` until all of its bytes are in their destination; the buffer must not be read
 * before.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/net/link_state.h"
#include "comm/shm/peer.h"
#include "kernels/reduce.h"

#define MAGIC      UINT32_C(0x6b6e6c74) /* "tlnk"; differs on a host of another byte order */
#define FOLD_BYTES ((size_t)32 << 10)   /* between two polls of the pipes: about a microsecond */

/* ----------------------------------------------------------------------------------------- the record */

tutti_link_record tutti_link_record_of(const tutti_op *op, size_t bytes) {
    return (tutti_link_record){.magic = MAGIC, .signature = op->signature, .bytes = bytes, .call = tutti_call_of(op)};
}

/* Returns whether this is a record at all, with fields within their bounds. */
static bool is_sane(const tutti_link_record *record) {
    bool broken = record->signature == TUTTI_SIGNATURE_BROKEN;
    return record->magic == MAGIC && record->goodbye <= broken &&
           (broken ? record->reason_bytes < TUTTI_BROKEN_TEXT_BYTES : record->reason_bytes == 0);
}

static tutti_status tell_difference(tutti_comm *comm, const tutti_op *op, int rank, const tutti_link_record *record) {
    tutti_call own = tutti_call_of(op);
    return tutti_calls_differ(comm, &own, rank, &record->call,
                              " (their counts per rank differ, or calls before this one did)");
}

/* Checks a record that no receive waits for yet; if it is of another call than this one, breaks the communicator. */
static tutti_status check_unasked(tutti_comm *comm, const tutti_op *op, int rank, const tutti_link_record *record) {
    bool other = record->call.sequence == op->sequence && record->signature != op->signature;
    return other && record->signature != TUTTI_SIGNATURE_BROKEN ? tell_difference(comm, op, rank, record) : TUTTI_OK;
}

/* Compares a record with op and with the expected bytes; a difference breaks the communicator. */
static tutti_status compare(tutti_comm *comm, const tutti_op *op, int rank, const tutti_link_record *record,
                            size_t bytes) {
    if (TUTTI_UNLIKELY(record->signature != op->signature || record->call.sequence != op->sequence))
        return tell_difference(comm, op, rank, record);
    if (TUTTI_LIKELY(record->bytes == bytes)) return TUTTI_OK;
    char call[160];
    tutti_fail(TUTTI_ERR_MISMATCH,
               "counts differ on communicator \"%s\": in %s, rank %d sends %llu bytes to rank %d, which expects %zu",
               comm->name, tutti_call_describe(&record->call, call, sizeof call), rank,
               (unsigned long long)record->bytes, comm->rank, bytes);
    return tutti_comm_break(comm, TUTTI_ERR_MISMATCH);
}

/* ----------------------------------------------------------------------------------------- the pipe */

static tutti_status take(tutti_link *link, tutti_link_stage stage, void *dst, size_t bytes) {
    link->in.stage = stage;
    return link->pipe->transport->recv(link->pipe, dst, bytes);
}

static void fold(tutti_link_in *in, const char *piece, size_t start, size_t bytes) {
    char *acc = in->dst + start;
    const void *sources[2] = {acc, piece};
    tutti_reduce_args args = {.dst = acc,
                              .srcs = sources,
                              .nsrcs = 2,
                              .count = bytes / tutti_type_bytes(in->fold.type),
                              .type = in->fold.type,
                              .reduction = in->fold.reduction};
    tutti_reduce_host(&args);
    in->done += bytes;
}

/* --------------------------------------------------------------------------------------------- in pieces */

static tutti_status next_piece(tutti_comm *comm, tutti_link *link, int piece) {
    tutti_link_in *in = &link->in;
    in->receiving = piece;
    in->piece_start[piece] = in->posted;
    in->piece_bytes[piece] = tutti_min_size(in->bytes - in->posted, TUTTI_LINK_PIECE_BYTES);
    in->posted += in->piece_bytes[piece];
    return take(link, TUTTI_LINK_PIECES, comm->net.links->pieces + (size_t)piece * TUTTI_LINK_PIECE_BYTES,
                in->piece_bytes[piece]);
}

/* Reduces a part and returns, so that sends can progress in between. */
static tutti_status advance_pieces(tutti_comm *comm, tutti_link *link) {
    tutti_link_in *in = &link->in;
    int piece = in->folding;
    bool whole = piece != in->receiving || tutti_pipe_has_received(link->pipe);
    size_t there = whole ? in->piece_bytes[piece] : link->pipe->received;
    size_t folded = in->done - in->piece_start[piece];
    /* The other buffer has been folded: it can receive the next piece while this one is folded. */
    if (whole && piece == in->receiving && in->posted < in->bytes) TUTTI_TRY(next_piece(comm, link, 1 - piece));
    size_t ready = there - folded;
    if (!whole && ready < FOLD_BYTES) return TUTTI_OK;
    fold(in, comm->net.links->pieces + (size_t)piece * TUTTI_LINK_PIECE_BYTES + folded, in->done,
         tutti_min_size(ready, FOLD_BYTES));
    if (in->done == in->piece_start[piece] + in->piece_bytes[piece]) in->folding = 1 - piece;
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------- records and data */

static tutti_status begin_data(tutti_comm *comm, tutti_link *link) {
    tutti_link_in *in = &link->in;
    in->stage = TUTTI_LINK_IDLE;
    if (in->bytes == 0) return TUTTI_OK;
    if (!in->folds) return take(link, TUTTI_LINK_STRAIGHT, in->dst, in->bytes);
    in->posted = 0;
    in->folding = 0;
    return next_piece(comm, link, 0);
}

/* Reads the record at the start of `buffer`. If the other side has given up, its reason follows. */
static tutti_status read_record(tutti_comm *comm, const tutti_op *op, tutti_link *link, bool *broken_out) {
    tutti_link_in *in = &link->in;
    tutti_link_record record;
    memcpy(&record, in->buffer, sizeof record);
    *broken_out = record.signature == TUTTI_SIGNATURE_BROKEN;
    if (TUTTI_UNLIKELY(!is_sane(&record))) {
        char name[128];
        tutti_fail(TUTTI_ERR_DATA, "received an invalid link record from %s: its memory or the network is damaged",
                   tutti_peer_describe_rank(comm, link->rank, name, sizeof name));
        return tutti_comm_break(comm, TUTTI_ERR_DATA);
    }
    if (*broken_out || !in->wanted) return TUTTI_OK;
    return compare(comm, op, link->rank, &record, in->bytes);
}

/* The reason that follows a "broken" record may have been received as data already. */
static tutti_status advance_reason(tutti_comm *comm, tutti_link *link) {
    tutti_link_in *in = &link->in;
    tutti_link_record record;
    memcpy(&record, in->buffer, sizeof record);
    char *text = in->buffer + sizeof record;
    size_t there = link->pipe->received;
    if (in->stage == TUTTI_LINK_REASON) there += in->posted;
    else there -= sizeof record;
    if (there < record.reason_bytes) {
        if (!tutti_pipe_has_received(link->pipe)) return TUTTI_OK;
        in->posted = there;
        return take(link, TUTTI_LINK_REASON, text + there, record.reason_bytes - there);
    }
    text[record.reason_bytes] = '\0';
    if (record.goodbye && !in->wanted && !link->out.wanted) return TUTTI_OK;
    return tutti_broken_adopt(comm, link->rank, record.status, text);
}

static tutti_status advance_short(tutti_comm *comm, const tutti_op *op, tutti_link *link) {
    tutti_link_in *in = &link->in;
    bool broken = false;
    if (!in->checked) {
        TUTTI_TRY(read_record(comm, op, link, &broken));
        if (broken) return advance_reason(comm, link);
        in->checked = true;
    }
    if (!tutti_pipe_has_received(link->pipe)) return TUTTI_OK;
    const char *data = in->buffer + sizeof(tutti_link_record);
    in->stage = TUTTI_LINK_IDLE;
    if (in->folds) {
        fold(in, data, 0, in->bytes);
    } else if (in->bytes > 0) {
        memcpy(in->dst, data, in->bytes);
        in->done = in->bytes;
    }
    return TUTTI_OK;
}

static tutti_status advance_record(tutti_comm *comm, const tutti_op *op, tutti_link *link) {
    bool broken;
    TUTTI_TRY(read_record(comm, op, link, &broken));
    if (broken) return advance_reason(comm, link);
    return link->in.wanted ? begin_data(comm, link) : TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- calls */

tutti_status tutti_link_receive_advance(tutti_comm *comm, const tutti_op *op, tutti_link *link) {
    tutti_link_in *in = &link->in;
    switch (in->stage) {
    case TUTTI_LINK_RECORD:
    case TUTTI_LINK_SHORT:
        if (link->pipe->received < sizeof(tutti_link_record)) return TUTTI_OK;
        TUTTI_TRY(in->stage == TUTTI_LINK_SHORT ? advance_short(comm, op, link) : advance_record(comm, op, link));
        break;
    case TUTTI_LINK_STRAIGHT:
        in->done = link->pipe->received;
        if (tutti_pipe_has_received(link->pipe)) in->stage = TUTTI_LINK_IDLE;
        break;
    case TUTTI_LINK_PIECES:
        TUTTI_TRY(advance_pieces(comm, link));
        if (in->done == in->bytes) in->stage = TUTTI_LINK_IDLE;
        break;
    case TUTTI_LINK_REASON: return advance_reason(comm, link);
    case TUTTI_LINK_IDLE: break;
    }
    if (in->stage == TUTTI_LINK_IDLE) in->wanted = false;
    return TUTTI_OK;
}

/* Largest transfer that is received together with its record. */
static size_t short_bytes(const tutti_link *link) {
    const tutti_transport *transport = link->pipe->transport;
    bool by_rdma = tutti_transport_can(transport, TUTTI_TRANSPORT_ADAPTER);
    return by_rdma ? TUTTI_LINK_TINY_BYTES : TUTTI_LINK_SHORT_BYTES;
}

tutti_status tutti_link_receive(const tutti_rail *rail, tutti_link *link, void *dst, size_t bytes,
                                const tutti_fold *fold_with) {
    tutti_comm *comm = rail->comm;
    tutti_link_in *in = &link->in;
    assert(!in->wanted);
    in->wanted = true;
    in->checked = false;
    in->dst = dst;
    in->bytes = bytes;
    in->done = 0;
    in->folds = fold_with != NULL;
    if (in->folds) in->fold = *fold_with;
    if (in->folds && comm->net.links->pieces == NULL) {
        comm->net.links->pieces = aligned_alloc(4096, 2 * TUTTI_LINK_PIECE_BYTES);
        if (comm->net.links->pieces == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a link's pieces");
    }
    if (in->stage != TUTTI_LINK_IDLE) return TUTTI_OK; /* already listening for the record */
    bool short_ = bytes <= short_bytes(link);
    return take(link, short_ ? TUTTI_LINK_SHORT : TUTTI_LINK_RECORD, in->buffer,
                sizeof(tutti_link_record) + (short_ ? bytes : 0));
}

tutti_status tutti_link_listen(tutti_link *link) {
    if (link->in.stage != TUTTI_LINK_IDLE) return TUTTI_OK;
    return take(link, TUTTI_LINK_RECORD, link->in.buffer, sizeof(tutti_link_record));
}

tutti_status tutti_link_receive_unasked(tutti_comm *comm, const tutti_op *op, const tutti_link *link) {
    tutti_link_record record;
    if (link->in.stage != TUTTI_LINK_RECORD || !tutti_pipe_has_received(link->pipe)) return TUTTI_OK;
    memcpy(&record, link->in.buffer, sizeof record);
    return check_unasked(comm, op, link->rank, &record);
}
