/*
 * What the algorithms for shared memory share: meetings, lent buffers, slots, and the calls of the reduction kernels
 * (kernels/reduce.h). See shared.h.
 */
#include "comm/shm/coll/shared.h"

#include <string.h>

#include "comm/shm/heap.h"
#include "kernels/copy.h"
#include "kernels/reduce.h"

/* --------------------------------------------------------------------------------------------- meeting */

tutti_status tutti_shared_meet(tutti_comm *comm, const tutti_op *op) {
    bool is_root = comm->rank == op->root;
    if (tutti_op_has_sink(op)) return is_root ? tutti_meet(comm, op) : TUTTI_OK;
    if (tutti_op_has_source(op)) return is_root ? TUTTI_OK : tutti_meet_rank(comm, op, op->root);
    return tutti_meet(comm, op);
}

/* Waits until all readers of this rank's data have reached that progress. */
static tutti_status wait_for_readers(tutti_comm *comm, const tutti_op *op, uint64_t progress) {
    return tutti_op_has_sink(op) ? tutti_step_wait(comm, op, op->root, progress)
                                 : tutti_progress_wait_all(comm, op, progress);
}

tutti_status tutti_shared_finish(tutti_comm *comm, const tutti_op *op, bool lends) {
    tutti_progress_publish(comm, op, TUTTI_STEP_DONE);
    return lends ? wait_for_readers(comm, op, TUTTI_STEP_DONE) : TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- lending */

/* Lending saves a copy and costs a second meeting at the end: some hundred nanoseconds if each rank has a core,
 * otherwise a turn of every rank on its core. */
#define LEAST_LENT_BYTES         ((size_t)1 << 10)
#define LEAST_LENT_CROWDED_BYTES ((size_t)256 << 10)
#define LEAST_PUSHED_BYTES       ((size_t)16 << 10) /* also with shared cores: it saves two copies */
/* For a broadcast, all ranks together: readers fetch lines that the root has just written from the root's own
 * cache, one after the other, and the root waits for them. Between 2 ranks, pieces of 512 KiB are 3 times as fast.
 * Between distant cores, where they are written past the caches, pieces of 8 MiB are, too; between near cores both
 * ways are equal from 2 to 8 MiB. */
#define LEAST_LENT_BROADCAST_BYTES ((size_t)32 << 20)

static bool is_readable(const tutti_comm *comm, const void *data, size_t bytes) {
    return comm->one_process || tutti_heap_holds(data, bytes);
}

bool tutti_shared_lends_segments(const tutti_comm *comm, const tutti_op *op) {
    size_t all_bytes = 0;
    for (int reader = 0; reader < comm->nranks; reader++) {
        tutti_span segment = tutti_op_input(comm, op, reader);
        if (segment.bytes > 0 && !is_readable(comm, segment.data, segment.bytes)) return false;
        all_bytes += segment.bytes;
    }
    size_t least =
        op->kind == TUTTI_KIND_BROADCAST ? LEAST_LENT_BROADCAST_BYTES * (size_t)(comm->nranks - 1) : LEAST_LENT_BYTES;
    return all_bytes >= (comm->spins ? least : LEAST_LENT_CROWDED_BYTES);
}

uint32_t tutti_shared_flags(tutti_comm *comm, const tutti_op *op) {
    size_t bytes = op->count * tutti_type_bytes(op->type);
    bool in_place = op->kind == TUTTI_KIND_ALL_REDUCE && op->src == op->dst;
    size_t least = comm->spins ? LEAST_LENT_BYTES : in_place ? LEAST_PUSHED_BYTES : LEAST_LENT_CROWDED_BYTES;
    uint32_t flags = in_place ? TUTTI_POST_IN_PLACE : 0;
    if (bytes < least) return flags;
    if (is_readable(comm, op->src, bytes)) flags |= TUTTI_POST_SRC_DIRECT;
    if (op->kind == TUTTI_KIND_ALL_REDUCE && is_readable(comm, op->dst, bytes)) flags |= TUTTI_POST_DST_DIRECT;
    /* Other ranks may choose push.c before this rank does. */
    if ((flags & TUTTI_POST_DST_DIRECT) != 0) comm->shm.exposed = op->sequence;
    return flags;
}

bool tutti_shared_all_lend(const tutti_comm *comm, const tutti_op *op) {
    const uint32_t both = TUTTI_POST_SRC_DIRECT | TUTTI_POST_DST_DIRECT;
    uint32_t flags = both;
    for (int rank = 0; rank < comm->nranks; rank++) flags &= tutti_post_of(comm, op, rank)->flags;
    return flags == both;
}

tutti_status tutti_shared_at(const tutti_comm *comm, int rank, uint64_t address, size_t bytes, const void **here_out) {
    const void *here = tutti_peer_translate(comm->members[rank].process, address, bytes);
    if (here == NULL) return tutti_fail(TUTTI_ERR_DATA, "rank %d posted an address outside of its heap", rank);
    *here_out = here;
    return TUTTI_OK;
}

/* The slots that `rank` leased for op; the leases of all ranks have the same shape. */
static tutti_slots slots_of(const tutti_comm *comm, const tutti_op *op, int rank) {
    tutti_slots slots = *comm->shm.slots;
    uint64_t address = tutti_post_of(comm, op, rank)->slots;
    slots.memory = (char *)tutti_peer_translate(comm->members[rank].process, address, slots.bytes);
    return slots;
}

const tutti_count_entry *tutti_shared_table_of(const tutti_comm *comm, const tutti_op *op, int rank) {
    tutti_slots slots = slots_of(comm, op, rank);
    return tutti_slots_table(&slots, op->sequence);
}

/* --------------------------------------------------------------------------------------------- staging */

size_t tutti_staging_piece(const tutti_comm *comm, size_t bytes, size_t share) {
    size_t most = comm->chunk_bytes / share;
    if (comm->counts && share == 1 && bytes > most) most /= 2; /* the ring has two chunks: then it has four slots */
    most = most / TUTTI_CACHE_LINE * TUTTI_CACHE_LINE;
    most = tutti_max_size(most, TUTTI_CACHE_LINE);
    return tutti_align_up(tutti_max_size(tutti_min_size(bytes, most), 1), TUTTI_CACHE_LINE);
}

/* Slots have a gap after each if the ring then holds that many; where they are fewer, gaps would cost some of them. */
#define LEAST_SLOTS_FOR_GAPS 15
#define LEAST_SLOTS_AHEAD    3

tutti_status tutti_staging_begin(tutti_comm *comm, const tutti_op *op, size_t stride, tutti_staging *staging_out) {
    if (comm->shm.slots->ring_bytes / (stride + TUTTI_GAP_BYTES) >= LEAST_SLOTS_FOR_GAPS) stride += TUTTI_GAP_BYTES;
    tutti_staging staging = {.comm = comm, .op = op, .stride = stride, .depth = comm->shm.slots->ring_bytes / stride};
    staging.ahead = staging.depth >= LEAST_SLOTS_AHEAD ? 1 : 0;
    TUTTI_TRY(tutti_slots_take(comm, op, stride, &staging.first));
    *staging_out = staging;
    return TUTTI_OK;
}

void tutti_staging_post(const tutti_staging *staging, uint64_t rounds, uint32_t flags) {
    tutti_post *post = tutti_post_own(staging->comm, staging->op);
    post->src = (uint64_t)(uintptr_t)staging->op->src;
    post->dst = (uint64_t)(uintptr_t)staging->op->dst;
    post->slots = (uint64_t)(uintptr_t)staging->comm->shm.slots->memory;
    post->rounds = rounds;
    post->first = staging->first;
    post->flags = flags;
    tutti_post_publish(staging->comm, staging->op);
}

tutti_status tutti_staging_await(const tutti_staging *staging, uint64_t round, uint64_t steps_a_round) {
    if (round < staging->depth) return tutti_finished_wait(staging->comm, staging->op->sequence - 1);
    return wait_for_readers(staging->comm, staging->op,
                            steps_a_round * (round - staging->depth + 1 + staging->ahead) + 1);
}

char *tutti_staging_own(const tutti_staging *staging, uint64_t round) {
    return staging->comm->shm.slots->memory + (staging->first + round) % staging->depth * staging->stride;
}

const char *tutti_staging_of(const tutti_staging *staging, int rank, uint64_t round) {
    uint32_t first = tutti_post_of(staging->comm, staging->op, rank)->first;
    return slots_of(staging->comm, staging->op, rank).memory + (first + round) % staging->depth * staging->stride;
}

void tutti_staging_end(const tutti_staging *staging, uint64_t rounds) {
    if (rounds > 0) tutti_slots_taken(staging->comm, staging->op, staging->stride, staging->first, rounds);
}

/* ---------------------------------------------------------------------------------------------- output */

/* The outputs of all ranks together: they share the last-level cache. 4 MiB of 4 ranks are faster through it, 8 MiB
 * past it, as 8 and 16 MiB of 2 ranks. */
#define LEAST_STREAMED_BYTES ((size_t)32 << 20)

bool tutti_shared_streams(const tutti_comm *comm, size_t output_bytes) {
    return output_bytes >= LEAST_STREAMED_BYTES / (size_t)comm->nranks;
}

void tutti_shared_copy_out(void *dst, const void *src, size_t bytes, bool streams) {
    if (streams) tutti_copy_stream(dst, src, bytes);
    else tutti_copy_loop(dst, src, bytes);
}

static tutti_reduce_args views_to(tutti_comm *comm, const tutti_op *op, void *dst, size_t count) {
    bool premul = op->reduction == TUTTI_PREMUL_SUM;
    for (int rank = 0; premul && rank < comm->nranks; rank++)
        comm->shm.factors[rank] = rank == comm->rank ? op->factor : tutti_post_of(comm, op, rank)->factor;
    return (tutti_reduce_args){
        .dst = dst,
        .srcs = comm->shm.views,
        .factors = premul ? comm->shm.factors : NULL,
        .nsrcs = comm->nranks,
        .count = count,
        .type = op->type,
        .reduction = op->reduction,
        .divisor = comm->nranks,
    };
}

void tutti_shared_reduce_views(tutti_comm *comm, const tutti_op *op, void *dst, size_t count) {
    tutti_reduce_args args = views_to(comm, op, dst, count);
    tutti_reduce_host(&args);
}

void tutti_shared_stream_views(tutti_comm *comm, const tutti_op *op, void *const *dsts, int ndsts, size_t count) {
    tutti_reduce_args args = views_to(comm, op, NULL, count);
    tutti_reduce_host_stream(&args, dsts, ndsts);
}
