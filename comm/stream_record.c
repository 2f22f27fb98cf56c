/*
 * What the ranks of a host have called of late on CUDA memory, where no post tells it: NCCL compares nothing, and calls that
 * differ hang. Each call leaves a record in its rank's page; who has waited for long compares.
 *
 * Invariant: a record is written by its owner only. `number` is 0 while it changes, so that a reader who finds the same number
 * before and after has a whole one.
 */
#include "bootstrap/base/status.h"
#include "comm/monitor.h"
#include "comm/stream_state.h"

/* A record as it was read. */
typedef struct known {
    uint64_t signature;
    tutti_call call;
} known;

void tutti_stream_record_call(tutti_comm *comm, const tutti_op *op) {
    tutti_stream_record *record = &comm->page->stream_records[op->sequence % TUTTI_STREAM_RECORDS];
    uint64_t what = (uint64_t)(uint32_t)op->root << 32 | (uint64_t)op->kind << 16 | (uint64_t)op->type << 8 |
                    (uint64_t)op->reduction;
    atomic_store_explicit(&record->number, 0, memory_order_relaxed);
    /* Pair with the acquires in `look_up`: who sees one of these sees the 0, who sees the number sees all of them. */
    atomic_store_explicit(&record->signature, op->signature, memory_order_release);
    atomic_store_explicit(&record->count, op->count, memory_order_release);
    atomic_store_explicit(&record->what, what, memory_order_release);
    atomic_store_explicit(&record->number, op->sequence, memory_order_release);
}

/* False: the rank has not made that call, or so many since that it is not kept, or it is on another host. */
static bool look_up(const tutti_page *page, uint64_t number, known *known_out) {
    const tutti_stream_record *record = &page->stream_records[number % TUTTI_STREAM_RECORDS];
    if (atomic_load_explicit(&record->number, memory_order_acquire) != number) return false;
    known_out->signature = atomic_load_explicit(&record->signature, memory_order_acquire);
    uint64_t count = atomic_load_explicit(&record->count, memory_order_acquire);
    uint64_t what = atomic_load_explicit(&record->what, memory_order_acquire);
    known_out->call = (tutti_call){.sequence = number,
                                   .shown = number,
                                   .count = count,
                                   .root = (int32_t)(what >> 32),
                                   .kind = (uint8_t)(what >> 16),
                                   .type = (uint8_t)(what >> 8),
                                   .reduction = (uint8_t)what,
                                   .cuda = 1};
    return atomic_load_explicit(&record->number, memory_order_relaxed) == number;
}

/* From the oldest on: what differed first has made the rest go wrong. */
static tutti_status compare_with(tutti_comm *comm, int rank, uint64_t number) {
    known own, other;
    uint64_t first = number >= TUTTI_STREAM_RECORDS ? number - TUTTI_STREAM_RECORDS + 1 : 1;
    for (uint64_t at = first; at <= number; at++) {
        if (!look_up(comm->page, at, &own) || !look_up(comm->members[rank].page, at, &other)) continue;
        if (own.signature == other.signature) continue;
        tutti_status status =
            tutti_monitor_calls_differ(comm, &own.call, rank, &other.call, " (their counts per rank differ)");
        return tutti_comm_give_up(comm, status);
    }
    return TUTTI_OK;
}

tutti_status tutti_stream_records_compare(tutti_comm *comm, uint64_t number) {
    for (int rank = 0; rank < comm->nranks; rank++)
        if (rank != comm->rank) TUTTI_TRY(compare_with(comm, rank, number));
    return TUTTI_OK;
}
