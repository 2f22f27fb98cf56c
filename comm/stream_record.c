/*
 * The records of calls on CUDA memory. See stream_ledger.h.
 *
 * Invariant: a record is written by its owner only. `number` is 0 while it changes, so that a reader who finds the same number
 * before and after has a whole one.
 */
#include "comm/stream_ledger.h"

#include "comm/stream.h"

static uint64_t mix(uint64_t x) {
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 32;
}

void tutti_stream_record_call(tutti_stream_comm *gpu, const tutti_op *op) {
    tutti_page *page = gpu->comm->page;
    tutti_stream_record *record = &page->stream_records[op->sequence % TUTTI_STREAM_RECORDS];
    uint64_t what = (uint64_t)(uint32_t)op->root << 32 | (uint64_t)op->kind << 16 | (uint64_t)op->type << 8 |
                    (uint64_t)op->reduction;
    gpu->history = mix(gpu->history ^ op->signature);
    atomic_store_explicit(&record->number, 0, memory_order_relaxed);
    /* Pair with the acquires of who reads: who sees one of these sees the 0, who sees the number sees all of them. */
    atomic_store_explicit(&record->signature, gpu->history, memory_order_release);
    atomic_store_explicit(&record->count, op->count, memory_order_release);
    atomic_store_explicit(&record->what, what, memory_order_release);
    atomic_store_explicit(&record->number, op->sequence, memory_order_release);
    atomic_store_explicit(&page->stream_number, op->sequence, memory_order_release);
}

bool tutti_stream_record_read(const tutti_page *page, uint64_t number, tutti_stream_entry *entry_out) {
    const tutti_stream_record *record = &page->stream_records[number % TUTTI_STREAM_RECORDS];
    if (atomic_load_explicit(&record->number, memory_order_acquire) != number) return false;
    entry_out->number = number;
    entry_out->signature = atomic_load_explicit(&record->signature, memory_order_acquire);
    entry_out->count = atomic_load_explicit(&record->count, memory_order_acquire);
    entry_out->what = atomic_load_explicit(&record->what, memory_order_acquire);
    return atomic_load_explicit(&record->number, memory_order_relaxed) == number;
}

uint64_t tutti_stream_record_newest(const tutti_page *page) {
    return atomic_load_explicit(&page->stream_number, memory_order_acquire);
}

tutti_call tutti_stream_entry_call(const tutti_stream_entry *entry) {
    return (tutti_call){.sequence = entry->number,
                        .shown = entry->number,
                        .count = entry->count,
                        .root = (int32_t)(entry->what >> 32),
                        .kind = (uint8_t)(entry->what >> 16),
                        .type = (uint8_t)(entry->what >> 8),
                        .reduction = (uint8_t)entry->what,
                        .cuda = 1};
}
