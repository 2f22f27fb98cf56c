/*
 * The record of a call, as ranks compare it and as errors and reports show it. See comm.h.
 */
#include "comm/base/comm.h"

#include <stdio.h>
#include <string.h>

#include "bootstrap/base/hash.h"

const char *tutti_call_describe(const tutti_call *call, char *text, size_t capacity) {
    char reduction[32] = "", root[32] = "";
    const char *memory = call->cuda != 0 ? " on CUDA memory" : "";
    bool known = call->kind < TUTTI_KIND_COUNT; /* it may have come from another process */
    if (known && tutti_kind_has((tutti_kind)call->kind, TUTTI_KIND_REDUCES))
        snprintf(reduction, sizeof reduction, ", %s", tutti_reduction_name((tutti_reduction)call->reduction));
    if (known && tutti_kind_has_root((tutti_kind)call->kind)) snprintf(root, sizeof root, ", root %d", call->root);
    if (call->kind == TUTTI_KIND_BARRIER)
        snprintf(text, capacity, "barrier%s #%llu", memory, (unsigned long long)call->shown);
    else
        snprintf(text, capacity, "%s(%s, %llu%s%s)%s #%llu", tutti_kind_name((tutti_kind)call->kind),
                 tutti_type_name((tutti_type)call->type), (unsigned long long)call->count, reduction, root, memory,
                 (unsigned long long)call->shown);
    return text;
}

tutti_call tutti_call_of(const tutti_op *op) {
    const tutti_op *shown = op->part_of != NULL ? op->part_of : op;
    return (tutti_call){.sequence = op->sequence,
                        .shown = shown->sequence,
                        .count = shown->count,
                        .root = shown->root,
                        .kind = (uint8_t)shown->kind,
                        .type = (uint8_t)shown->type,
                        .reduction = (uint8_t)shown->reduction,
                        .cuda = (uint8_t)shown->cuda};
}

uint64_t tutti_call_pack(const tutti_call *call) {
    uint64_t what = (uint64_t)call->kind << 48 | (uint64_t)call->type << 40 | (uint64_t)call->reduction << 32 |
                    (uint32_t)call->root;
    uint64_t hash = tutti_hash_add(tutti_hash_add(0, call->count), what);
    return call->shown << TUTTI_STREAM_CALL_BITS | hash >> (64 - TUTTI_STREAM_CALL_BITS);
}

tutti_status tutti_calls_differ(tutti_comm *comm, const tutti_call *own, int rank, const tutti_call *other,
                                const char *hint) {
    char mine[160], theirs[160];
    tutti_call_describe(own, mine, sizeof mine);
    tutti_call_describe(other, theirs, sizeof theirs);
    if (strcmp(mine, theirs) != 0) hint = "";
    bool first = comm->rank < rank;
    tutti_fail(TUTTI_ERR_MISMATCH,
               "calls differ on communicator \"%s\": rank %d %s, rank %d %s%s; all ranks must make "
               "the same calls in the same order",
               comm->name, tutti_comm_shown(comm, first ? comm->rank : rank), first ? mine : theirs,
               tutti_comm_shown(comm, first ? rank : comm->rank), first ? theirs : mine, hint);
    return tutti_comm_break(comm, TUTTI_ERR_MISMATCH);
}
