/*
 * Access to a tutti_op: the input of a rank for each reader and its output from each source, for every kind. These
 * functions hide the difference between uniform kinds and v-kinds.
 *
 * An input is either `common` (every reader takes the whole) or `split` (rank i takes segment i).
 */
#ifndef TUTTI_OP_H
#define TUTTI_OP_H

#include "comm/base/comm.h"

typedef struct tutti_span {
    const char *data;
    size_t bytes;
} tutti_span;

static inline bool tutti_op_is_split(const tutti_op *op) {
    return tutti_kind_has(op->kind, TUTTI_KIND_SPLITS);
}

static inline bool tutti_op_reduces(const tutti_op *op) {
    return tutti_kind_has(op->kind, TUTTI_KIND_REDUCES);
}

/* Kinds with an output that has a segment from each rank. */
static inline bool tutti_op_collects(const tutti_op *op) {
    return tutti_kind_has(op->kind, TUTTI_KIND_COLLECTS);
}

/* Kinds whose counts differ by rank. */
static inline bool tutti_op_has_counts(const tutti_op *op) {
    return tutti_kind_has(op->kind, TUTTI_KIND_COUNTS);
}

/* Kinds whose data comes from the root only. */
static inline bool tutti_op_has_source(const tutti_op *op) {
    return tutti_kind_has(op->kind, TUTTI_KIND_FROM_ROOT);
}

/* Kinds whose data goes to the root only. */
static inline bool tutti_op_has_sink(const tutti_op *op) {
    return tutti_kind_has(op->kind, TUTTI_KIND_TO_ROOT);
}

/* True if `rank` has an input. (In broadcast and scatter only the root has one.) */
static inline bool tutti_op_has_input(const tutti_op *op, int rank) {
    if (tutti_op_has_source(op)) return rank == op->root;
    return !tutti_kind_has(op->kind, TUTTI_KIND_MOVES_NONE);
}

/* True if `rank` gets an output. (In reduce and gather only the root gets one; in a broadcast the root already has
 * the data.) */
static inline bool tutti_op_has_output(const tutti_op *op, int rank) {
    if (tutti_op_has_sink(op)) return rank == op->root;
    if (op->kind == TUTTI_KIND_BROADCAST) return rank != op->root;
    return !tutti_kind_has(op->kind, TUTTI_KIND_MOVES_NONE);
}

/* This rank's input for `reader`: a segment of a split input, or the whole common one. */
tutti_span tutti_op_input(const tutti_comm *comm, const tutti_op *op, int reader);
/* The place of this rank's output from `source`; kinds that reduce ignore `source`. */
tutti_span tutti_op_output(const tutti_comm *comm, const tutti_op *op, int source);
/* Bytes of this rank's whole input if it is contiguous and the same on all ranks; SIZE_MAX where counts differ. */
size_t tutti_op_input_bytes(const tutti_comm *comm, const tutti_op *op);

/* Instead of a GPU's index: the buffers are host memory. */
#define TUTTI_PLACE_HOST (-1)

/* A point-to-point call. */
typedef struct tutti_message {
    bool sends;
    const void *src;
    void *dst;
    size_t bytes, item_bytes;
    int peer;
    int64_t tag;
    int64_t timeout_ms; /* 0: the communicator's timeout */
    tutti_received *received;
    int gpu; /* GPU that holds the buffer; TUTTI_PLACE_HOST */
    void *stream;
} tutti_message;

#endif
