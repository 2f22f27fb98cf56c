/*
 * Collectives on a rail: n ranks of different hosts, one of each host, in the order of the hosts. Built on the
 * functions of link.h; the table that selects the algorithm (rail_table.c) is filled from the cost model (cost.c).
 *
 *   tutti_rail_table_fill()      once for each communicator, equal arguments on all ranks of the rail
 *   tutti_rail_scratch_bytes()   before a call: how much memory it needs
 *   tutti_rail_all_reduce() ...  block until this rank's part is done; keep nothing, allocate nothing
 *
 * Sums and products of float32 and float64 are made of pairs of ranks, then pairs of pairs (tutti_rail_pairs);
 * those of float16 and smaller types from the first rank to the last, in float32, rounded once. So results are
 * equal bit for bit on all ranks, for all sizes and algorithms. If the table allows another order (`reorders`),
 * floats may use it; if the order makes no difference (integers, bool, min and max), the fastest algorithm is
 * taken.
 *
 * Invariant: everything that selects an algorithm and its piece size is equal on all ranks: the table, and
 * arguments that are equal by contract. Scratch memory may be anywhere and may be larger than needed.
 */
#ifndef TUTTI_RAIL_H
#define TUTTI_RAIL_H

#include "comm/net/link.h"

/* A vector that is reduced over the rail. */
typedef struct tutti_rail_vector {
    const void *src;
    void *dst; /* src == dst: in place; no other overlap. reduce: only used on the root */
    size_t count;
    tutti_type type;
    tutti_reduction reduction; /* not PREMUL_SUM */
    int divisor;               /* AVG: what the sum is divided by, once; >= 1 */
} tutti_rail_vector;

typedef struct tutti_rail_block {
    void *data; /* sources are only read */
    size_t bytes;
} tutti_rail_block;

/* ------------------------------------------------------------------------------------------------- the costs
 * Numbers from which the time of an algorithm is predicted. All ranks measure them at the same time by a few exchanges
 * when a communicator is made, and the worst values count: rank 0 of the rail sends them to the others, so that all
 * ranks choose alike.
 */

typedef struct tutti_cost {
    double latency_us;    /* of a step: a short message to one rank while one arrives from another */
    double message_us;    /* cost of each further message at the same time */
    double bandwidth_gbs; /* of a link, in each direction, while both directions are in use (1e9 bytes per second) */
    double reduce_gbs;    /* input that one rank reduces */
    double cores;         /* cores per rank on the host with the fewest; at most 1 */
} tutti_cost;

/* Values of an ordinary network, used if nothing was measured. */
extern const tutti_cost tutti_cost_ordinary;

/* Scratch bytes for tutti_cost_agree. */
#define TUTTI_COST_SCRATCH_BYTES ((size_t)4 << 20)

/* Measures the costs of the rail; the result is equal on all ranks. Collective over the rail. */
tutti_status tutti_cost_agree(const tutti_rail *rail, char *scratch, tutti_cost *cost_out);

/* Microseconds of `steps` steps in which this rank sends `messages` of `bytes` in total and receives as much. */
static inline double tutti_cost_of_moving(const tutti_cost *cost, double steps, double messages, double bytes) {
    return steps * cost->latency_us + (messages - steps) * cost->message_us + bytes / (cost->bandwidth_gbs * 1e3);
}
static inline double tutti_cost_of_reducing(const tutti_cost *cost, double bytes) {
    return bytes / (cost->reduce_gbs * 1e3);
}

/* ------------------------------------------------------------------------------------------------ the table */

#define TUTTI_RAIL_CLASSES 48 /* class c: from 2^c bytes on; 0: up to 1 byte */

/* The order of additions that a result requires of an algorithm. */
typedef enum tutti_rail_order {
    TUTTI_RAIL_ANY_ORDER,
    TUTTI_RAIL_IN_PAIRS,     /* sums of pairs, then of pairs of pairs */
    TUTTI_RAIL_ALL_TOGETHER, /* a rank has all inputs of an element when it adds them: one rounding */
    TUTTI_RAIL_ORDERS
} tutti_rail_order;

/* The row that runs each call. Equal on all ranks of the rail. */
typedef struct tutti_rail_table {
    int n;
    tutti_cost cost;
    size_t piece_bytes; /* for pipelined algorithms */
    const char *forced; /* rows of that name are taken where they are applicable; NULL: none */
    /* all_to_all_v: all_to_all whose blocks differ in size. */
    uint8_t rows[TUTTI_RAIL_ORDERS][TUTTI_KIND_COUNT][TUTTI_RAIL_CLASSES];
    size_t scratch_below[TUTTI_KIND_COUNT][TUTTI_RAIL_CLASSES]; /* upper bound for the rows of all lower classes */
} tutti_rail_table;

typedef struct tutti_rail_rules {
    int n;              /* ranks of the rail */
    bool reorders;      /* floats may be summed in any order: TUTTI_DETERMINISTIC=0 */
    size_t piece_bytes; /* 0: derived from the costs */
    const char *forced; /* name of a row that is taken where it is applicable; "", NULL or an unknown name: none */
} tutti_rail_rules;

void tutti_rail_table_fill(const tutti_rail_rules *rules, const tutti_cost *cost, tutti_rail_table *table_out);
/* tutti_rail_has_row checks a name (for TUTTI_ALGORITHM); tutti_rail_row_names lists all names, as text. */
bool tutti_rail_has_row(const char *name);
const char *tutti_rail_row_names(void);

/* Name of the row for a size as in tutti_rail_scratch_bytes. */
const char *tutti_rail_chosen(const tutti_rail_table *table, tutti_kind kind, size_t bytes, tutti_rail_order order);

/* Predicted microseconds of a call, for a sum of float32. */
double tutti_rail_predict(const tutti_rail_table *table, tutti_kind kind, size_t bytes);

/* Lines that explain the choices for `kind` (sums of float32): from how many bytes on, which algorithm, its
 * predicted time, and the second-best algorithm. Returns `text`; NULL after the last line. */
const char *tutti_rail_explain(const tutti_rail_table *table, tutti_kind kind, int line, char *text, size_t capacity);

/* ------------------------------------------------------------------------------------------------ the calls */

/* The memory of a call, besides the caller's buffers. */
typedef struct tutti_rail_setup {
    const tutti_rail_table *table;
    char *scratch; /* aligned to a cache line */
    size_t scratch_bytes;
} tutti_rail_setup;

/* Bytes of scratch memory that a call needs. `bytes`: all_reduce, reduce, broadcast: the vector; reduce_scatter:
 * the largest segment; all_gather: the largest block; all_to_all, gather_v, scatter_v: the largest block that this
 * rank sends or receives. Also enough for fewer bytes. Grows with the number of ranks and the piece size, but not
 * with long vectors, except for forced or reordering rows. Kinds are the uniform ones: BARRIER, ALL_REDUCE, REDUCE,
 * BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER. */
size_t tutti_rail_scratch_bytes(const tutti_rail_table *table, tutti_kind kind, size_t bytes);

/* Returns only after every rank has called it. */
tutti_status tutti_rail_barrier(const tutti_rail *rail, const tutti_rail_setup *setup);

/* root's buffer is copied to buffer on every rank. */
tutti_status tutti_rail_broadcast(const tutti_rail *rail, const tutti_rail_setup *setup, int root, void *buffer,
                                  size_t bytes);

/* vector.dst = reduction over the rail of vector.src; count, type, reduction and divisor are equal on every rank. */
tutti_status tutti_rail_all_reduce(const tutti_rail *rail, const tutti_rail_setup *setup,
                                   const tutti_rail_vector *vector);
/* The same on root only. */
tutti_status tutti_rail_reduce(const tutti_rail *rail, const tutti_rail_setup *setup, int root,
                               const tutti_rail_vector *vector);
/* vector.dst (counts[me] elements) = reduction over the rail of srcs[me]; srcs[i]: counts[i] elements for rank i;
 * counts are equal on every rank. In place: dst == srcs[me]. vector.src and vector.count are ignored. */
tutti_status tutti_rail_reduce_scatter(const tutti_rail *rail, const tutti_rail_setup *setup, const void *const *srcs,
                                       const size_t *counts, const tutti_rail_vector *vector);

/* blocks[i] of rank i is copied to blocks[i] of every rank; blocks[me] is in place. Sizes are equal on every rank. */
tutti_status tutti_rail_all_gather(const tutti_rail *rail, const tutti_rail_setup *setup,
                                   const tutti_rail_block *blocks);

/* sends[i] is sent to rank i's receives[me]; sends[me] is copied. `uniform`: all blocks of all ranks have the same
 * size. In place: sends[i].data == receives[i].data for all i. */
tutti_status tutti_rail_all_to_all(const tutti_rail *rail, const tutti_rail_setup *setup, const tutti_rail_block *sends,
                                   const tutti_rail_block *receives, bool uniform);

/* Each rank's own is sent to root's blocks[rank]; n blocks, used on root only. Root's own is copied if it differs. */
tutti_status tutti_rail_gather(const tutti_rail *rail, const tutti_rail_setup *setup, int root, tutti_rail_block own,
                               const tutti_rail_block *blocks);
/* Root's blocks[rank] is sent to each rank's own. */
tutti_status tutti_rail_scatter(const tutti_rail *rail, const tutti_rail_setup *setup, int root, tutti_rail_block own,
                                const tutti_rail_block *blocks);

#endif
