/*
 * Inputs and outputs of an operation by rank. See op.h.
 */
#include "comm/base/op.h"

static tutti_span span(const void *base, size_t index, size_t count, tutti_type type) {
    size_t bytes = count * tutti_type_bytes(type);
    return (tutti_span){.data = base == NULL ? NULL : (const char *)base + index * bytes, .bytes = bytes};
}

static tutti_span entry(const void *const *pointers, const size_t *counts, int index, tutti_type type) {
    return span(pointers[index], 0, counts[index], type);
}

const char *tutti_kind_name(tutti_kind kind) {
#define NAME(kind, name, traits) name,
    static const char *const names[] = {TUTTI_KINDS(NAME)};
#undef NAME
    return (unsigned)kind < TUTTI_KIND_COUNT ? names[kind] : "?";
}

tutti_span tutti_op_input(const tutti_comm *comm, const tutti_op *op, int reader) {
    if (!tutti_op_has_input(op, comm->rank)) return (tutti_span){.data = NULL};
    if (!tutti_op_is_split(op)) return span(op->src, 0, op->count, op->type);
    return tutti_op_has_counts(op) ? entry(op->srcs, op->src_counts, reader, op->type)
                                   : span(op->src, (size_t)reader, op->count, op->type);
}

tutti_span tutti_op_output(const tutti_comm *comm, const tutti_op *op, int source) {
    if (tutti_op_collects(op))
        return tutti_op_has_counts(op) ? entry((const void *const *)op->dsts, op->dst_counts, source, op->type)
                                       : span(op->dst, (size_t)source, op->count, op->type);
    return span(op->dst, 0, op->kind == TUTTI_KIND_REDUCE_SCATTER_V ? op->src_counts[comm->rank] : op->count, op->type);
}

size_t tutti_op_input_bytes(const tutti_comm *comm, const tutti_op *op) {
    if (tutti_op_has_counts(op)) return SIZE_MAX;
    if (tutti_kind_has(op->kind, TUTTI_KIND_MOVES_NONE)) return 0;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    return tutti_op_is_split(op) ? bytes * (size_t)comm->nranks : bytes;
}
