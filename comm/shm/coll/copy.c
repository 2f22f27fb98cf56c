/*
 * Kinds that only move data: broadcast, all_gather, all_to_all, gather, scatter and the v-variants, any size.
 *
 * Each rank is a source of segments: one per reader, or one for all readers. A source whose buffers the other ranks can
 * read lends them; any other source stages its segments, one piece of each at a time:
 *
 *   1. copy piece 0 of each segment into the first slot; post, meet
 *   2. round k: copy piece k + 1 (k, if the ring has only two slots) of each segment into its slot when that is free;
 *      publish that; copy as much of my own part
 *   3. each round, for each staging source: when it has staged piece k, copy mine out
 *   4. copy from the lending sources
 *
 * The root of a long scatter (offers) would copy everything while the readers wait for it. So each reader also fetches
 * pieces out of the root's memory, from the end of its segment, until it meets the pieces that the root stages from the
 * beginning. Readers that the system does not allow to read that memory leave all pieces to the root.
 *
 *      slot of a common input:  | piece                            |
 *      slot of a split input:   | for rank 0 | for rank 1 | ...    |   piece bytes each
 *
 * All ranks go through as many rounds as the source with the most pieces has posted. The v-kinds post a table of
 * addresses and counts, and each reader compares its count with the source's.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "comm/base/hooks.h"
#include "comm/shm/coll/shared.h"

typedef struct move {
    tutti_comm *comm;
    const tutti_op *op;
    tutti_staging staging;
    bool split, tables; /* segments differ by reader; addresses and counts are in tables */
    bool lends;         /* peers read my buffers in place */
    bool offers;        /* peers fetch a part of my segments; I am the root of a long scatter */
    bool streams;       /* my outputs are large */
    size_t piece_bytes; /* bytes of a segment staged per round */
    uint64_t pieces;    /* number of pieces that I stage */
    uint64_t rounds;    /* the largest number of pieces staged by a rank that I meet */
} move;

/* A reader follows its source through the slots: the pieces of a broadcast are a fraction of it, so that source and
 * reader copy at the same time. But a second piece is staged only when all ranks have finished the call before, so the
 * root of short ones waits where it could run ahead: between far cores one piece of 8 KiB is 2.5 times as fast as four.
 * On shared cores that wait is a turn of every rank: one piece of up to 512 KiB is up to 2.3 times as fast. */
#define PARTS               4
#define LEAST_PART_BYTES    ((size_t)32 << 10)
#define CROWDED_WHOLE_BYTES ((size_t)512 << 10)
/* Pieces of the longest segment of a scatter in which readers fetch some: 8 to 256 MiB between 2 ranks take 0.75 to 0.9
 * of the time. Shorter segments come from the root's cache. If ranks share cores it gains nothing: readers then take
 * the time of the root. */
#define LEAST_OFFERED_PIECES 16

/* Equal on all ranks: does not depend on the counts per rank. */
static size_t piece_bytes(const move *m) {
    size_t share = m->split ? (size_t)m->comm->nranks : 1, bytes = m->op->count * tutti_type_bytes(m->op->type);
    if (m->tables) return tutti_staging_piece(m->comm, SIZE_MAX / 2, share);
    if (m->op->kind == TUTTI_KIND_BROADCAST && (m->comm->spins || bytes > CROWDED_WHOLE_BYTES))
        bytes = tutti_min_size(bytes, tutti_max_size(bytes / PARTS, LEAST_PART_BYTES));
    return tutti_staging_piece(m->comm, bytes, share);
}

static size_t largest_segment(const move *m) {
    size_t largest = 0;
    for (int reader = 0; reader < m->comm->nranks; reader++)
        if (reader != m->comm->rank) largest = tutti_max_size(largest, tutti_op_input(m->comm, m->op, reader).bytes);
    return largest;
}

/* A reader's segment in a scatter whose root offers its memory: tutti_page's `shares` holds the low half of the call's
 * number, and how many pieces the root has staged and the reader has fetched. The first of the two to take a piece
 * replaces the number of an earlier call. */
#define MOST_SHARED_PIECES ((uint64_t)UINT16_MAX)
#define ONE_STAGED         (UINT64_C(1) << 16)
#define ONE_FETCHED        UINT64_C(1)

static _Atomic uint64_t *shares_at(const move *m, int reader) {
    return &m->comm->members[reader].page->shares[m->op->sequence % TUTTI_POSTS];
}

/* The shares of this call, if that is what the word holds. */
static uint64_t as_shares(const move *m, uint64_t word) {
    uint64_t none = m->op->sequence << 32;
    return word >> 32 == none >> 32 ? word : none;
}

static uint64_t shares_of(const move *m, int reader) {
    return as_shares(m, atomic_load_explicit(shares_at(m, reader), memory_order_acquire));
}

static uint64_t staged_of(uint64_t shares) {
    return shares / ONE_STAGED & UINT16_MAX;
}

static uint64_t fetched_of(uint64_t shares) {
    return shares & UINT16_MAX;
}

static uint64_t pieces_of(const move *m, size_t bytes) {
    return (bytes + m->piece_bytes - 1) / m->piece_bytes;
}

/* Counts one more piece of the reader's segment as staged or fetched; false: all pieces are. */
static bool take_piece(const move *m, int reader, size_t segment_bytes, uint64_t one) {
    _Atomic uint64_t *shares = shares_at(m, reader);
    uint64_t word = atomic_load_explicit(shares, memory_order_relaxed), now;
    do {
        now = as_shares(m, word);
        if (staged_of(now) + fetched_of(now) >= pieces_of(m, segment_bytes)) return false;
    } while (
        !atomic_compare_exchange_weak_explicit(shares, &word, now + one, memory_order_acq_rel, memory_order_relaxed));
    return true;
}

/* False: no reader needs that piece or a later one. */
static bool stage(const move *m, uint64_t round) {
    char *slot = tutti_staging_own(&m->staging, round);
    size_t start = round * m->piece_bytes;
    bool any = false;
    for (int reader = 0; reader < m->comm->nranks; reader++) {
        bool skip = m->split ? reader == m->comm->rank : reader > 0;
        tutti_span segment = tutti_op_input(m->comm, m->op, reader);
        if (skip || segment.bytes <= start) continue;
        if (m->offers && !take_piece(m, reader, segment.bytes, ONE_STAGED)) continue;
        tutti_slots_write(m->comm, slot + (m->split ? (size_t)reader * m->piece_bytes : 0), segment.data + start,
                          tutti_min_size(m->piece_bytes, segment.bytes - start));
        any = true;
    }
    return any;
}

static void fill_table(const move *m) {
    tutti_count_entry *table = tutti_slots_table(m->comm->shm.slots, m->op->sequence);
    for (int reader = 0; reader < m->comm->nranks; reader++) {
        tutti_span segment = tutti_op_input(m->comm, m->op, reader);
        table[reader] = (tutti_count_entry){.address = (uint64_t)(uintptr_t)segment.data,
                                            .count = segment.bytes / tutti_type_bytes(m->op->type)};
    }
}

static tutti_status begin(move *m) {
    tutti_comm *comm = m->comm;
    m->split = tutti_op_is_split(m->op);
    m->tables = tutti_kind_has(m->op->kind, TUTTI_KIND_COUNTS);
    m->piece_bytes = piece_bytes(m);
    /* An in-place all_to_all overwrites its inputs while peers read them. */
    bool overwrites = m->op->kind == TUTTI_KIND_ALL_TO_ALL && m->op->src == m->op->dst;
    m->lends = !overwrites && tutti_shared_lends_segments(comm, m->op);
    bool unread = m->lends || (tutti_op_has_sink(m->op) && comm->rank == m->op->root);
    m->pieces = unread ? 0 : pieces_of(m, largest_segment(m));
    m->offers = comm->spins && m->split && tutti_op_has_source(m->op) && m->pieces >= LEAST_OFFERED_PIECES &&
                m->pieces <= MOST_SHARED_PIECES;
    TUTTI_TRY(tutti_staging_begin(comm, m->op, m->piece_bytes * (m->split ? (size_t)comm->nranks : 1), &m->staging));
    if (m->tables) fill_table(m);
    if (m->pieces > 0) stage(m, 0);
    tutti_staging_post(&m->staging, m->pieces, m->lends ? TUTTI_POST_SRC_DIRECT : m->offers ? TUTTI_POST_OFFERED : 0);
    return TUTTI_OK;
}

/* Checks that the source's count for this rank is the count that this rank expects. */
static tutti_status compare_counts(const move *m, int source, size_t expected_bytes) {
    size_t expected = expected_bytes / tutti_type_bytes(m->op->type);
    size_t count = tutti_shared_table_of(m->comm, m->op, source)[m->comm->rank].count;
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

static bool has_large_output(const move *m) {
    size_t bytes = 0;
    for (int source = 0; source < m->comm->nranks; source++) bytes += output_from(m, source).bytes;
    return tutti_shared_streams(m->comm, bytes);
}

/* Reads only the posts of ranks that were met: the sources of this rank's outputs. */
static tutti_status check(move *m) {
    m->rounds = m->pieces;
    for (int source = 0; source < m->comm->nranks; source++) {
        if (!tutti_op_has_input(m->op, source) || !tutti_op_has_output(m->op, m->comm->rank)) continue;
        if (m->tables) TUTTI_TRY(compare_counts(m, source, output_from(m, source).bytes));
        uint64_t rounds = tutti_post_of(m->comm, m->op, source)->rounds;
        if (rounds > m->rounds) m->rounds = rounds;
    }
    return TUTTI_OK;
}

/* Address of my segment in the source's process, of `bytes` bytes. */
static uint64_t segment_address(const move *m, int source, size_t bytes) {
    if (m->tables) return tutti_shared_table_of(m->comm, m->op, source)[m->comm->rank].address;
    return tutti_post_of(m->comm, m->op, source)->src + (m->split ? (size_t)m->comm->rank * bytes : 0);
}

static tutti_status pull_lent(const move *m, int source) {
    tutti_span output = output_from(m, source);
    const void *segment;
    if (output.bytes == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_shared_at(m->comm, source, segment_address(m, source, output.bytes), output.bytes, &segment));
    tutti_shared_copy_out((char *)output.data, segment, output.bytes, m->streams);
    return TUTTI_OK;
}

static tutti_status pull_staged(const move *m, int source, uint64_t round) {
    tutti_span output = output_from(m, source);
    size_t start = round * m->piece_bytes;
    if (output.bytes <= start) return TUTTI_OK;
    if (round > 0) TUTTI_TRY(tutti_step_wait(m->comm, m->op, source, round + 1));
    size_t offset = m->split ? (size_t)m->comm->rank * m->piece_bytes : 0;
    tutti_shared_copy_out((char *)output.data + start, tutti_staging_of(&m->staging, source, round) + offset,
                          tutti_min_size(m->piece_bytes, output.bytes - start), m->streams);
    return TUTTI_OK;
}

/* Copies my part of my own output, a piece whenever I stage one: then a common input is read from memory once, and the
 * readers of a split one need not wait meanwhile. `last`: also what is left. */
static void copy_own(const move *m, uint64_t round, bool last) {
    tutti_span own = output_from(m, m->comm->rank), input = tutti_op_input(m->comm, m->op, m->comm->rank);
    size_t start = round * m->piece_bytes;
    if (start >= own.bytes || own.data == input.data) return;
    size_t bytes = last ? own.bytes - start : tutti_min_size(m->piece_bytes, own.bytes - start);
    tutti_shared_copy_out((char *)own.data + start, input.data + start, bytes, m->streams);
}

static tutti_status run_round(const move *m, uint64_t round) {
    tutti_comm *comm = m->comm;
    uint64_t next = round + m->staging.ahead;
    if (next > 0 && next < m->pieces) {
        TUTTI_TRY(tutti_staging_await(&m->staging, next, 1));
        stage(m, next);
    }
    if (m->rounds > 1) tutti_progress_publish(comm, m->op, next + 1);
    if (next > 0 && next < m->pieces) copy_own(m, next, next + 1 == m->pieces);
    for (int i = 1; i < comm->nranks; i++) {
        int source = (comm->rank + i) % comm->nranks;
        if (output_from(m, source).bytes == 0) continue;
        if (!tutti_shared_posted(comm, m->op, source, TUTTI_POST_SRC_DIRECT)) TUTTI_TRY(pull_staged(m, source, round));
    }
    return TUTTI_OK;
}

/* The root's rounds of a scatter in which readers fetch pieces, too. */
static tutti_status run_offered(const move *m) {
    uint64_t round = 1;
    for (; round < m->pieces; round++) {
        TUTTI_TRY(tutti_staging_await(&m->staging, round, 1));
        if (!stage(m, round)) break;
        if (TUTTI_UNLIKELY(tutti_fault("offer_death"))) raise(SIGKILL);
        tutti_progress_publish(m->comm, m->op, round + 1);
        copy_own(m, round, /* last */ false);
    }
    copy_own(m, round, /* last */ true);
    tutti_staging_end(&m->staging, round);
    return TUTTI_OK;
}

/* Reads the last piece of my segment that is neither staged nor fetched, and only then counts it as fetched. If the
 * root has staged it meanwhile, it is copied twice. So the root can still stage all pieces if a read fails: false. */
static bool fetch(const move *m, int source, tutti_span output) {
    uint64_t pieces = pieces_of(m, output.bytes), piece = pieces - 1 - fetched_of(shares_of(m, m->comm->rank));
    size_t start = piece * m->piece_bytes, bytes = tutti_min_size(m->piece_bytes, output.bytes - start);
    uint64_t address = segment_address(m, source, output.bytes) + start;
    if (!tutti_peer_read(m->comm->members[source].process, address, (char *)output.data + start, bytes)) return false;
    take_piece(m, m->comm->rank, output.bytes, ONE_FETCHED);
    return true;
}

/* A reader's part of such a scatter: copies the next piece that the root has staged, or else fetches one. */
static tutti_status pull_offered(const move *m, int source) {
    tutti_comm *comm = m->comm;
    tutti_span output = output_from(m, source);
    bool fetches = tutti_peer_can_read(comm->members[source].process), fetched = false;
    uint64_t next = 0;
    while (output.bytes > 0) {
        bool reached =
            tutti_flag_reached(&comm->members[source].page->step, tutti_progress_at(m->op->sequence, next + 1));
        uint64_t shares = shares_of(m, comm->rank);
        bool all = staged_of(shares) + fetched_of(shares) >= pieces_of(m, output.bytes);
        if ((next == 0 || reached) && staged_of(shares) > next) {
            tutti_progress_publish(comm, m->op, next + 1 + m->staging.ahead);
            TUTTI_TRY(pull_staged(m, source, next++));
        } else if (all && staged_of(shares) == next) {
            break;
        } else if (!all && fetches) {
            fetches = fetch(m, source, output);
            fetched = fetched || fetches;
        } else {
            TUTTI_TRY(tutti_step_wait(comm, m->op, source, next + 1));
        }
    }
    /* If the root has given up or died, its memory may have changed, or its pid may belong to another process. */
    return fetched ? tutti_hooks.monitor_look(comm, m->op, /* deaths */ true) : TUTTI_OK;
}

static tutti_status run_rounds(move *m) {
    bool reads_root = tutti_op_has_source(m->op) && m->comm->rank != m->op->root;
    if (m->offers) return run_offered(m);
    if (reads_root && tutti_shared_posted(m->comm, m->op, m->op->root, TUTTI_POST_OFFERED))
        return pull_offered(m, m->op->root);
    for (uint64_t round = 0; round < m->rounds; round++) TUTTI_TRY(run_round(m, round));
    tutti_staging_end(&m->staging, m->pieces);
    return TUTTI_OK;
}

static tutti_status run(move *m) {
    tutti_comm *comm = m->comm;
    TUTTI_TRY(begin(m));
    m->streams = has_large_output(m);
    copy_own(m, 0, m->pieces <= 1); /* while the posts of the other ranks are on their way */
    TUTTI_TRY(tutti_shared_meet(comm, m->op));
    TUTTI_TRY(check(m));
    TUTTI_TRY(run_rounds(m));
    /* Must follow the rounds: in place, pulled data overwrites data that had to be staged first. */
    for (int i = 1; i < comm->nranks; i++) {
        int source = (comm->rank + i) % comm->nranks;
        if (output_from(m, source).bytes > 0 && tutti_shared_posted(comm, m->op, source, TUTTI_POST_SRC_DIRECT))
            TUTTI_TRY(pull_lent(m, source));
    }
    /* A reader that fetches may still be reading a piece that I have staged meanwhile: my memory must not go away. */
    return tutti_shared_finish(comm, m->op, (m->lends || m->offers) && tutti_op_has_input(m->op, comm->rank));
}

tutti_status tutti_shared_copy(tutti_comm *comm, const tutti_op *op) {
    move m = {.comm = comm, .op = op};
    TUTTI_TRY(tutti_slots_acquire(comm, op));
    tutti_status status = run(&m);
    tutti_slots_release(comm);
    return status;
}
