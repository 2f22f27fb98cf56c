/*
 * Inputs and outputs of an operation by rank. See op.h.
 */
#include "comm/op.h"

static tutti_span span(const void *base, size_t index, size_t count, tutti_type type) {
    size_t bytes = count * tutti_type_bytes(type);
    return (tutti_span){.data = base == NULL ? NULL : (const char *)base + index * bytes, .bytes = bytes};
}

static tutti_span entry(const void *const *pointers, const size_t *counts, int index, tutti_type type) {
    return span(pointers[index], 0, counts[index], type);
}

tutti_span tutti_op_input(const tutti_comm *comm, const tutti_op *op, int reader) {
    if (!tutti_op_has_input(op, comm->rank)) return (tutti_span){.data = NULL};
    switch (op->kind) {
    case TUTTI_KIND_REDUCE_SCATTER:
    case TUTTI_KIND_ALL_TO_ALL:
    case TUTTI_KIND_SCATTER: return span(op->src, (size_t)reader, op->count, op->type);
    case TUTTI_KIND_REDUCE_SCATTER_V:
    case TUTTI_KIND_ALL_TO_ALL_V:
    case TUTTI_KIND_SCATTER_V: return entry(op->srcs, op->src_counts, reader, op->type);
    default: return span(op->src, 0, op->count, op->type);
    }
}

tutti_span tutti_op_output(const tutti_comm *comm, const tutti_op *op, int source) {
    switch (op->kind) {
    case TUTTI_KIND_ALL_GATHER:
    case TUTTI_KIND_ALL_TO_ALL:
    case TUTTI_KIND_GATHER: return span(op->dst, (size_t)source, op->count, op->type);
    case TUTTI_KIND_ALL_GATHER_V:
    case TUTTI_KIND_ALL_TO_ALL_V:
    case TUTTI_KIND_GATHER_V: return entry((const void *const *)op->dsts, op->dst_counts, source, op->type);
    case TUTTI_KIND_REDUCE_SCATTER_V: return span(op->dst, 0, op->src_counts[comm->rank], op->type);
    default: return span(op->dst, 0, op->count, op->type);
    }
}

size_t tutti_op_input_bytes(const tutti_comm *comm, const tutti_op *op) {
    size_t bytes = op->count * tutti_type_bytes(op->type);
    switch (op->kind) {
    case TUTTI_KIND_BARRIER: return 0;
    case TUTTI_KIND_REDUCE_SCATTER:
    case TUTTI_KIND_ALL_TO_ALL:
    case TUTTI_KIND_SCATTER: return bytes * (size_t)comm->nranks;
    case TUTTI_KIND_ALL_GATHER_V:
    case TUTTI_KIND_REDUCE_SCATTER_V:
    case TUTTI_KIND_ALL_TO_ALL_V:
    case TUTTI_KIND_GATHER_V:
    case TUTTI_KIND_SCATTER_V: return SIZE_MAX;
    default: return bytes;
    }
}
