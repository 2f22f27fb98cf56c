/*
 * Collectives on a rail: n ranks of different hosts, one of each host, in the order of the hosts. Written over the verbs of
 * link.h; the table that chooses among algorithms (rail.c) is filled from the cost model (cost.h).
 *
 *   tutti_rail_table_fill()      once for each communicator, equal arguments on all ranks of the rail
 *   tutti_rail_scratch_bytes()   before a call: how much memory it needs
 *   tutti_rail_all_reduce() ...  block until this rank's part is done; keep nothing, allocate nothing
 *
 * Sums and products of float32 and float64 are made in pairs of ranks, then pairs of pairs (tutti_rail_pairs); those of
 * float16 and smaller from the first rank to the last, in float32 and rounded once. So results are equal bit for bit on all
 * ranks, whatever the sizes and the algorithm. Where the table allows another order (`reorders`) floats may use it; where
 * the order makes no difference (integers, bool, min and max) the fastest algorithm is taken.
 *
 * Invariant: what chooses an algorithm, and the size of its pieces, is equal on all ranks: the table, and arguments that are
 * equal by contract. Scratch memory may be anywhere and may be larger than needed.
 */
#ifndef TUTTI_RAIL_H
#define TUTTI_RAIL_H

#include "comm/net/coll/cost.h"
#include "comm/net/link.h"

/* A vector that is reduced over the rail. */
typedef struct tutti_rail_vector {
    const void *src;
    void *dst; /* src == dst: in place; no other overlap. reduce: of the root only */
    size_t count;
    tutti_type type;
    tutti_reduction reduction; /* not PREMUL_SUM */
    int divisor;               /* AVG: what the sum is divided by, once; >= 1 */
} tutti_rail_vector;

typedef struct tutti_rail_block {
    void *data; /* sources are only read */
    size_t bytes;
} tutti_rail_block;

/* Called when the block of `rank` (of the rail) has arrived, in any order, once each; never for the own one. */
typedef struct tutti_rail_watch {
    tutti_status (*arrived)(void *context, int rank);
    void *context;
} tutti_rail_watch;

/* ------------------------------------------------------------------------------------------------ the table */

#define TUTTI_RAIL_CLASSES 48 /* class c: from 2^c bytes on; 0: up to 1 byte */

/* What the bits of a result ask of an algorithm. */
typedef enum tutti_rail_order {
    TUTTI_RAIL_ANY_ORDER,
    TUTTI_RAIL_IN_PAIRS,     /* sums of pairs, then of pairs of pairs */
    TUTTI_RAIL_ALL_TOGETHER, /* a rank has all inputs of an element when it adds: one rounding */
    TUTTI_RAIL_ORDERS
} tutti_rail_order;

/* Which row carries out which call. Equal on all ranks of the rail. */
typedef struct tutti_rail_table {
    int n;
    tutti_cost cost;
    size_t piece_bytes; /* of what is pipelined */
    const char *forced; /* rows of that name are taken where they fit; NULL: none */
    /* all_to_all_v: all_to_all of blocks that are not uniform. */
    uint8_t rows[TUTTI_RAIL_ORDERS][TUTTI_KIND_COUNT][TUTTI_RAIL_CLASSES];
    size_t scratch_below[TUTTI_KIND_COUNT][TUTTI_RAIL_CLASSES]; /* what the rows of all lesser classes need at most */
} tutti_rail_table;

typedef struct tutti_rail_rules {
    int n;              /* ranks of the rail */
    bool reorders;      /* floats may be summed in any order: TUTTI_DETERMINISTIC=0 */
    size_t piece_bytes; /* 0: by the costs */
    const char *forced; /* name of a row that is taken where it fits; "" or NULL, or no name of a row: none */
} tutti_rail_rules;

void tutti_rail_table_fill(const tutti_rail_rules *rules, const tutti_cost *cost, tutti_rail_table *table_out);
/* Is there a row of that name? (For the check of TUTTI_ALGORITHM.) And all of them, as text. */
bool tutti_rail_has_row(const char *name);
const char *tutti_rail_row_names(void);

/* Name of the row for a size as in tutti_rail_scratch_bytes. */
const char *tutti_rail_chosen(const tutti_rail_table *table, tutti_kind kind, size_t bytes, tutti_rail_order order);

/* Microseconds that a call is to take, a sum of float32. */
double tutti_rail_predict(const tutti_rail_table *table, tutti_kind kind, size_t bytes);

/* Lines that explain the choices for `kind` (sums of float32): from how many bytes, which algorithm, the predicted time, what
 * would have been second. NULL after the last; `text` else. */
const char *tutti_rail_explain(const tutti_rail_table *table, tutti_kind kind, int line, char *text, size_t capacity);

/* ------------------------------------------------------------------------------------------------ the calls */

/* Where a call works, besides the caller's buffers. */
typedef struct tutti_rail_setup {
    const tutti_rail_table *table;
    char *scratch; /* aligned to a cache line */
    size_t scratch_bytes;
} tutti_rail_setup;

/* Scratch memory that a call needs. `bytes`: all_reduce, reduce, broadcast: the vector; reduce_scatter: the largest segment;
 * all_gather: the largest block; all_to_all, gather_v, scatter_v: the largest block that this rank sends or receives.
 * Enough for less bytes, too. Grows with the number of ranks and the size of pieces, not with long vectors, except for
 * forced or reordering rows.
 * Kinds are the uniform ones: BARRIER, ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER,
 * SCATTER. */
size_t tutti_rail_scratch_bytes(const tutti_rail_table *table, tutti_kind kind, size_t bytes);

/* Returns on no rank before every rank has called it. */
tutti_status tutti_rail_barrier(const tutti_rail *rail, const tutti_rail_setup *setup);

/* buffer of root goes to buffer on every rank. */
tutti_status tutti_rail_broadcast(const tutti_rail *rail, const tutti_rail_setup *setup, int root, void *buffer,
                                  size_t bytes);

/* vector.dst = reduction over the rail of vector.src; count, type, reduction, divisor equal on every rank. */
tutti_status tutti_rail_all_reduce(const tutti_rail *rail, const tutti_rail_setup *setup,
                                   const tutti_rail_vector *vector);
/* The same on root only. */
tutti_status tutti_rail_reduce(const tutti_rail *rail, const tutti_rail_setup *setup, int root,
                               const tutti_rail_vector *vector);
/* vector.dst (counts[me] elements) = reduction over the rail of srcs[me]; srcs[i]: counts[i] elements for rank i; counts
 * equal on every rank. In place: dst == srcs[me]. vector.src and vector.count are not looked at. */
tutti_status tutti_rail_reduce_scatter(const tutti_rail *rail, const tutti_rail_setup *setup, const void *const *srcs,
                                       const size_t *counts, const tutti_rail_vector *vector);

/* blocks[i] of rank i goes to blocks[i] of every rank; blocks[me] is there. Sizes may differ, and are equal on every rank.
 * watch may be NULL. */
tutti_status tutti_rail_all_gather(const tutti_rail *rail, const tutti_rail_setup *setup,
                                   const tutti_rail_block *blocks, const tutti_rail_watch *watch);

/* sends[i] goes to rank i's receives[me]; sends[me] is copied. `uniform`: all blocks of all ranks are of one size. In
 * place: sends[i].data == receives[i].data for all i. */
tutti_status tutti_rail_all_to_all(const tutti_rail *rail, const tutti_rail_setup *setup, const tutti_rail_block *sends,
                                   const tutti_rail_block *receives, bool uniform);

/* own of each rank goes to root's blocks[rank]; n blocks, looked at on root only. Root's own is copied where the two differ. */
tutti_status tutti_rail_gather(const tutti_rail *rail, const tutti_rail_setup *setup, int root, tutti_rail_block own,
                               const tutti_rail_block *blocks, const tutti_rail_watch *watch);
/* Root's blocks[rank] goes to own of each rank. */
tutti_status tutti_rail_scatter(const tutti_rail *rail, const tutti_rail_setup *setup, int root, tutti_rail_block own,
                                const tutti_rail_block *blocks);

#endif
