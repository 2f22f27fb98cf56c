/*
 * The record that precedes a transfer on a link. See link_state.h.
 */
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/base/call.h"
#include "comm/net/link_state.h"

#define MAGIC UINT32_C(0x6b6e6c74) /* "tlnk"; differs on a host of another byte order */

tutti_link_record tutti_link_record_of(const tutti_op *op, size_t bytes) {
    return (tutti_link_record){.magic = MAGIC, .signature = op->signature, .bytes = bytes, .call = tutti_call_of(op)};
}

bool tutti_link_record_sane(const tutti_link_record *record) {
    bool broken = record->signature == TUTTI_SIGNATURE_BROKEN;
    return record->magic == MAGIC && record->goodbye <= broken &&
           (broken ? record->reason_bytes < TUTTI_BROKEN_TEXT_BYTES : record->reason_bytes == 0);
}

static tutti_status tell_difference(tutti_comm *comm, const tutti_op *op, int rank, const tutti_link_record *record) {
    tutti_call own = tutti_call_of(op);
    return tutti_calls_differ(comm, &own, rank, &record->call,
                              " (their counts per rank differ, or calls before this one did)");
}

tutti_status tutti_link_record_unasked(tutti_comm *comm, const tutti_op *op, int rank,
                                       const tutti_link_record *record) {
    bool other = record->call.sequence == op->sequence && record->signature != op->signature;
    return other && record->signature != TUTTI_SIGNATURE_BROKEN ? tell_difference(comm, op, rank, record) : TUTTI_OK;
}

tutti_status tutti_link_record_compare(tutti_comm *comm, const tutti_op *op, int rank, const tutti_link_record *record,
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
