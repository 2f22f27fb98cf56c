/*
 * Reading a tutti_op: what a rank has for whom, whatever the kind. Uniform kinds and v-kinds look alike from here on.
 *
 * An input is either `common` (every reader takes the whole) or `split` (rank i takes segment i).
 */
#ifndef TUTTI_OP_H
#define TUTTI_OP_H

#include "comm/comm.h"

typedef struct tutti_span {
    const char *data;
    size_t bytes;
} tutti_span;

static inline bool tutti_op_is_split(const tutti_op *op) {
    switch (op->kind) {
    case TUTTI_KIND_REDUCE_SCATTER:
    case TUTTI_KIND_REDUCE_SCATTER_V:
    case TUTTI_KIND_ALL_TO_ALL:
    case TUTTI_KIND_ALL_TO_ALL_V:
    case TUTTI_KIND_SCATTER:
    case TUTTI_KIND_SCATTER_V: return true;
    default: return false;
    }
}

static inline bool tutti_op_reduces(const tutti_op *op) {
    return op->kind == TUTTI_KIND_ALL_REDUCE || op->kind == TUTTI_KIND_REDUCE ||
           op->kind == TUTTI_KIND_REDUCE_SCATTER || op->kind == TUTTI_KIND_REDUCE_SCATTER_V;
}

/* Kinds whose data comes from the root only. */
static inline bool tutti_op_has_source(const tutti_op *op) {
    return op->kind == TUTTI_KIND_BROADCAST || op->kind == TUTTI_KIND_SCATTER || op->kind == TUTTI_KIND_SCATTER_V;
}

/* Kinds whose data goes to the root only. */
static inline bool tutti_op_has_sink(const tutti_op *op) {
    return op->kind == TUTTI_KIND_REDUCE || op->kind == TUTTI_KIND_GATHER || op->kind == TUTTI_KIND_GATHER_V;
}

/* Does `rank` have an input? (Only the root of broadcast and scatter has.) */
static inline bool tutti_op_has_input(const tutti_op *op, int rank) {
    switch (op->kind) {
    case TUTTI_KIND_BARRIER: return false;
    case TUTTI_KIND_BROADCAST:
    case TUTTI_KIND_SCATTER:
    case TUTTI_KIND_SCATTER_V: return rank == op->root;
    default: return true;
    }
}

/* Does `rank` get an output? (Only the root of reduce and gather does; the root of a broadcast has its own.) */
static inline bool tutti_op_has_output(const tutti_op *op, int rank) {
    switch (op->kind) {
    case TUTTI_KIND_BARRIER: return false;
    case TUTTI_KIND_BROADCAST: return rank != op->root;
    case TUTTI_KIND_REDUCE:
    case TUTTI_KIND_GATHER:
    case TUTTI_KIND_GATHER_V: return rank == op->root;
    default: return true;
    }
}

/* This rank's input for `reader`: a segment of a split input, or the whole common one. */
tutti_span tutti_op_input(const tutti_comm *comm, const tutti_op *op, int reader);
/* Where this rank's output from `source` goes; `source` is ignored by kinds that reduce. */
tutti_span tutti_op_output(const tutti_comm *comm, const tutti_op *op, int source);
/* Bytes of this rank's whole input when it is contiguous and its size the same on all ranks that have one; SIZE_MAX
 * for kinds whose counts differ by rank. */
size_t tutti_op_input_bytes(const tutti_comm *comm, const tutti_op *op);

#endif
