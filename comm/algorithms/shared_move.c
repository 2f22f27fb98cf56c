/*
 * Kinds that only move data: broadcast, all_gather, all_to_all, gather, scatter and the v-variants, any size.
 *
 * Each rank is a source of segments, one per reader, or one for all of them. A source whose buffers the others can
 * read lends them; any other one stages its segments, a piece of each at a time:
 *
 *   round c:  1. wait until all ranks have staged c - 1, hence have read c - 2      (in[c % 2] is free again)
 *             2. copy piece c of each segment into in[c % 2]; say "staged c"
 *             3. for each staging source: wait for its "staged c", copy my piece out
 *
 *      in[c % 2] of a common input:  | piece                            |
 *      in[c % 2] of a split input:   | for rank 0 | for rank 1 | ...    |   piece bytes each
 *
 * All ranks go through the same number of rounds, the largest that a source has posted. The v-kinds post a table of
 * addresses and counts, and each reader compares its count with the source's.
 */
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/algorithms/shared.h"
#include "comm/monitor.h"

typedef struct move {
    tutti_comm *comm;
    const tutti_op *op;
    bool split, tables; /* segments differ by reader; addresses and counts are in tables */
    bool lends;         /* my buffers are read where they are */
    size_t piece_bytes; /* of a segment that is staged in a round */
    uint64_t rounds;
} move;

static bool has_table(tutti_kind kind) {
    return kind == TUTTI_KIND_ALL_GATHER_V || kind == TUTTI_KIND_ALL_TO_ALL_V || kind == TUTTI_KIND_GATHER_V ||
           kind == TUTTI_KIND_SCATTER_V;
}

static size_t largest_segment(const move *m) {
    size_t largest = 0;
    for (int reader = 0; reader < m->comm->nranks; reader++)
        if (reader != m->comm->rank) largest = tutti_max_size(largest, tutti_op_input(m->comm, m->op, reader).bytes);
    return largest;
}

static bool lends_all(const move *m) {
    if (m->op->kind == TUTTI_KIND_ALL_TO_ALL && m->op->src == m->op->dst) return false; /* overwritten meanwhile */
    for (int reader = 0; reader < m->comm->nranks; reader++) {
        tutti_span segment = tutti_op_input(m->comm, m->op, reader);
        if (segment.bytes > 0 && !tutti_shared_lends(m->comm, segment.data, segment.bytes)) return false;
    }
    return true;
}

static void begin(move *m) {
    tutti_comm *comm = m->comm;
    size_t slot_bytes = comm->slots->in_bytes;
    m->split = tutti_op_is_split(m->op);
    m->tables = has_table(m->op->kind);
    m->piece_bytes = (m->split ? slot_bytes / (size_t)comm->nranks : slot_bytes) / TUTTI_CACHE_LINE * TUTTI_CACHE_LINE;
    m->lends = lends_all(m);
    tutti_post *post = tutti_post_own(comm, m->op);
    post->src = (uint64_t)(uintptr_t)m->op->src;
    post->slots = (uint64_t)(uintptr_t)comm->slots->memory;
    post->flags = m->lends ? TUTTI_POST_SRC_DIRECT : 0;
    post->rounds = m->lends ? 0 : (largest_segment(m) + m->piece_bytes - 1) / m->piece_bytes;
    tutti_segment *table = tutti_slots_table(comm->slots, m->op->sequence);
    for (int reader = 0; m->tables && reader < comm->nranks; reader++) {
        tutti_span segment = tutti_op_input(comm, m->op, reader);
        table[reader] = (tutti_segment){.address = (uint64_t)(uintptr_t)segment.data,
                                        .count = segment.bytes / tutti_type_bytes(m->op->type)};
    }
    tutti_post_publish(comm, m->op);
}

/* What the source has for me, and that I expect just that. */
static tutti_status compare_counts(const move *m, int source, size_t expected_bytes) {
    tutti_slots slots = tutti_shared_slots_of(m->comm, m->op, source);
    size_t expected = expected_bytes / tutti_type_bytes(m->op->type);
    size_t count = tutti_slots_table(&slots, m->op->sequence)[m->comm->rank].count;
    if (count == expected) return TUTTI_OK;
    tutti_call call = tutti_call_of(m->op);
    return tutti_fail(TUTTI_ERR_MISMATCH,
                      "calls differ on communicator \"%s\": in %s #%llu rank %d sends %zu %s to rank "
                      "%d, which expects %zu",
                      m->comm->name, tutti_kind_name((tutti_kind)call.kind), (unsigned long long)call.sequence, source,
                      count, tutti_type_name(m->op->type), m->comm->rank, expected);
}

static tutti_span output_from(const move *m, int source) {
    bool takes = tutti_op_has_output(m->op, m->comm->rank) && tutti_op_has_input(m->op, source);
    return takes ? tutti_op_output(m->comm, m->op, source) : (tutti_span){.data = NULL};
}

static tutti_status check(move *m) {
    for (int source = 0; source < m->comm->nranks; source++) {
        if (m->tables && tutti_op_has_input(m->op, source) && tutti_op_has_output(m->op, m->comm->rank))
            TUTTI_TRY(compare_counts(m, source, output_from(m, source).bytes));
        m->rounds = m->rounds > tutti_post_of(m->comm, m->op, source)->rounds
                        ? m->rounds
                        : tutti_post_of(m->comm, m->op, source)->rounds;
    }
    return TUTTI_OK;
}

static bool is_lent(const move *m, int source) {
    return (tutti_post_of(m->comm, m->op, source)->flags & TUTTI_POST_SRC_DIRECT) != 0;
}

static tutti_status pull_lent(const move *m, int source) {
    tutti_span output = output_from(m, source);
    if (output.bytes == 0) return TUTTI_OK;
    uint64_t address =
        tutti_post_of(m->comm, m->op, source)->src + (m->split ? (size_t)m->comm->rank * output.bytes : 0);
    if (m->tables) {
        tutti_slots slots = tutti_shared_slots_of(m->comm, m->op, source);
        address = tutti_slots_table(&slots, m->op->sequence)[m->comm->rank].address;
    }
    const char *segment = tutti_shared_at(m->comm, source, address, output.bytes);
    if (segment == NULL) return tutti_fail(TUTTI_ERR_DATA, "rank %d posted an address outside of its heap", source);
    memcpy((char *)output.data, segment, output.bytes);
    return TUTTI_OK;
}

static void stage(const move *m, uint64_t round) {
    char *slot = tutti_slots_in(m->comm->slots, round);
    size_t start = round * m->piece_bytes;
    for (int reader = 0; reader < m->comm->nranks; reader++) {
        bool skip = m->split ? reader == m->comm->rank : reader > 0;
        tutti_span segment = tutti_op_input(m->comm, m->op, reader);
        if (skip || segment.bytes <= start) continue;
        memcpy(slot + (m->split ? (size_t)reader * m->piece_bytes : 0), segment.data + start,
               tutti_min_size(m->piece_bytes, segment.bytes - start));
    }
}

static tutti_status pull_staged(const move *m, int source, uint64_t round) {
    tutti_span output = output_from(m, source);
    size_t start = round * m->piece_bytes;
    if (output.bytes <= start) return TUTTI_OK;
    TUTTI_TRY(tutti_step_wait(m->comm, m->op, source, round + 1));
    tutti_slots slots = tutti_shared_slots_of(m->comm, m->op, source);
    memcpy((char *)output.data + start,
           tutti_slots_in(&slots, round) + (m->split ? (size_t)m->comm->rank * m->piece_bytes : 0),
           tutti_min_size(m->piece_bytes, output.bytes - start));
    return TUTTI_OK;
}

static tutti_status run_round(const move *m, uint64_t round) {
    tutti_comm *comm = m->comm;
    if (round >= 2) TUTTI_TRY(tutti_step_wait_all(comm, m->op, round));
    if (!m->lends) stage(m, round);
    tutti_step_publish(comm, m->op, round + 1);
    for (int i = 1; i < comm->nranks; i++) {
        int source = (comm->rank + i) % comm->nranks;
        if (!is_lent(m, source)) TUTTI_TRY(pull_staged(m, source, round));
    }
    return TUTTI_OK;
}

static tutti_status run(move *m) {
    tutti_comm *comm = m->comm;
    begin(m);
    TUTTI_TRY(tutti_meet(comm, m->op));
    TUTTI_TRY(check(m));
    tutti_span own = output_from(m, comm->rank), input = tutti_op_input(comm, m->op, comm->rank);
    for (uint64_t round = 0; round < m->rounds; round++) TUTTI_TRY(run_round(m, round));
    /* After the rounds: in place, what is pulled overwrites what had to be staged first. */
    for (int i = 1; i < comm->nranks; i++) {
        int source = (comm->rank + i) % comm->nranks;
        if (is_lent(m, source)) TUTTI_TRY(pull_lent(m, source));
    }
    if (own.bytes > 0 && own.data != input.data) memcpy((char *)own.data, input.data, own.bytes);
    return tutti_shared_finish(comm, m->op, m->lends && tutti_op_has_input(m->op, comm->rank));
}

tutti_status tutti_shared_move(tutti_comm *comm, const tutti_op *op) {
    move m = {.comm = comm, .op = op};
    TUTTI_TRY(tutti_slots_acquire(comm, op));
    tutti_status status = run(&m);
    tutti_slots_release(comm);
    return status;
}
