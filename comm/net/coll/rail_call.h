/*
 * One call on a rail, as passed to an algorithm, and the helpers that algorithms share. An algorithm is a function
 * of a call; it takes its memory from the call's scratch, and declares beforehand how much it needs.
 */
#ifndef TUTTI_RAIL_CALL_H
#define TUTTI_RAIL_CALL_H

#include "comm/net/coll/rail.h"

typedef struct tutti_rail_call {
    const tutti_rail *rail;
    tutti_kind kind; /* a uniform kind */
    int root;
    tutti_rail_vector vector;         /* kinds that reduce */
    const void *const *srcs;          /* reduce_scatter */
    const size_t *counts;             /* reduce_scatter */
    const tutti_rail_block *sends;    /* all_to_all, scatter */
    const tutti_rail_block *receives; /* all_to_all, gather; all_gather: all blocks; broadcast: one block */
    tutti_rail_block own;             /* gather, scatter */
    size_t bytes;                     /* the size by which the algorithm was chosen; equal on all ranks */
    size_t piece_bytes;               /* for pipelined algorithms; a multiple of the cache line */
    char *scratch;                    /* the rest of it */
    size_t scratch_bytes;
} tutti_rail_call;

/* Scratch bytes to declare for a later tutti_rail_take of `bytes`. */
static inline size_t tutti_rail_room(size_t bytes) {
    return tutti_align_up(bytes, TUTTI_CACHE_LINE);
}
/* Takes memory from the call's scratch, aligned to a cache line. The algorithm has declared it, so there is enough. */
void *tutti_rail_take(tutti_rail_call *call, size_t bytes);

/* The rank `steps` after `rank` in the ring of ranks; negative: before it. */
static inline int tutti_rail_next(const tutti_rail_call *call, int rank, int steps) {
    int n = call->rail->n;
    return ((rank + steps) % n + n) % n;
}

static inline size_t tutti_rail_pieces(size_t bytes, size_t piece_bytes) {
    return (bytes + piece_bytes - 1) / piece_bytes;
}

/* base + offset; base may be NULL if offset is 0. */
static inline char *tutti_rail_at(const void *base, size_t offset) {
    return offset > 0 ? (char *)base + offset : (char *)base;
}

/* Piece k of a part of `bytes`; empty beyond its end. */
typedef struct tutti_rail_piece {
    size_t start, bytes;
} tutti_rail_piece;
static inline tutti_rail_piece tutti_rail_piece_of(size_t bytes, size_t piece_bytes, size_t k) {
    size_t start = tutti_min_size(k * piece_bytes, bytes);
    return (tutti_rail_piece){.start = start, .bytes = tutti_min_size(piece_bytes, bytes - start)};
}

/*
 * Pairwise summation: the first 2 * extra of n ranks form pairs, so that the number of members is a power of two;
 * then neighbouring members are added, then neighbouring sums, until one is left. This is the order in which pairs
 * of ranks add when they exchange vectors (recursive_doubling.c).
 */
typedef struct tutti_rail_pairs {
    int members; /* a power of two */
    int extra;   /* members that are pairs of ranks */
} tutti_rail_pairs;
static inline tutti_rail_pairs tutti_rail_pair_up(int n) {
    tutti_rail_pairs pairs = {.members = 1};
    while (2 * pairs.members <= n) pairs.members *= 2;
    pairs.extra = n - pairs.members;
    return pairs;
}
/* The first rank of a member. */
static inline int tutti_rail_rank_of(tutti_rail_pairs pairs, int member) {
    return member < pairs.extra ? 2 * member : member + pairs.extra;
}

/* dst = srcs[0] op srcs[1] ..., from the first to the last; avg divides the result. */
void tutti_rail_reduce_now(const tutti_rail_vector *vector, void *dst, const void *const *srcs, int nsrcs,
                           size_t bytes);
/* tutti_rail_fold_of: the reduction for links, which is a sum for avg; tutti_rail_divide then divides, once. */
tutti_fold tutti_rail_fold_of(const tutti_rail_vector *vector);
void tutti_rail_divide(const tutti_rail_vector *vector, void *data, size_t bytes);
/* memcpy that does nothing for 0 bytes, or if dst == src. */
void tutti_rail_copy(void *dst, const void *src, size_t bytes);

/* Moves the parts, except those of 0 bytes, and does the work meanwhile; work may be NULL. */
tutti_status tutti_rail_move(const tutti_rail_call *call, tutti_link_part *parts, int nparts,
                             const tutti_link_work *work);

/* Context of tutti_rail_add_some. */
typedef struct tutti_rail_adding {
    const tutti_rail_vector *vector;
    const void **views; /* the inputs of all ranks; they advance */
    int nviews;
    char *dst;
    size_t left; /* bytes */
} tutti_rail_adding;
bool tutti_rail_add_some(void *adding);

/* Slice `rank` of the call's vector, in bytes. */
tutti_rail_piece tutti_rail_slice(const tutti_rail_call *call, int rank);

/* Runs the row of the table for that kind and the call's size. */
tutti_status tutti_rail_choose_and_run(const tutti_rail_table *table, tutti_kind kind, tutti_rail_order order,
                                       tutti_rail_call *call);

/*
 * The algorithms. Each has a function that returns its scratch bytes for n ranks and `bytes` (see rail.h).
 */

/* direct.c: each rank sends to all others at once. */
tutti_status tutti_direct_whole(tutti_rail_call *call);  /* all_reduce, reduce: whole vectors are sent */
tutti_status tutti_direct_sliced(tutti_rail_call *call); /* all_reduce, reduce, reduce_scatter: slices are sent */
tutti_status tutti_direct_move(tutti_rail_call *call);   /* all_gather, gather, scatter */
tutti_status tutti_direct_all_to_all(tutti_rail_call *call);
tutti_status tutti_direct_broadcast(tutti_rail_call *call);
size_t tutti_direct_reduce_scratch(int n, size_t bytes, size_t piece_bytes); /* whole, sliced */
size_t tutti_direct_move_scratch(int n, size_t bytes, size_t piece_bytes);
size_t tutti_direct_all_to_all_scratch(int n, size_t bytes, size_t piece_bytes);

/* ring.c: each rank sends only to the next one. */
tutti_status tutti_ring_all_gather(tutti_rail_call *call);
tutti_status tutti_ring_reduce_scatter(tutti_rail_call *call);
tutti_status tutti_ring_all_reduce(tutti_rail_call *call);
tutti_status tutti_ring_broadcast(tutti_rail_call *call); /* a chain: the ring, cut before its root */
size_t tutti_ring_scratch(int n, size_t bytes, size_t piece_bytes);

/* recursive_doubling.c: pairs of ranks at increasing or decreasing distance. */
tutti_status tutti_doubling_all_reduce(tutti_rail_call *call);
tutti_status tutti_doubling_halving(tutti_rail_call *call); /* all_reduce of long vectors: Rabenseifner */
tutti_status tutti_tree_reduce(tutti_rail_call *call);
size_t tutti_doubling_scratch(int n, size_t bytes, size_t piece_bytes); /* all_reduce by doubling, reduce */

/* tree.c: a binomial tree, for short vectors. */
tutti_status tutti_tree_broadcast(tutti_rail_call *call);

/* double_tree.c: two binary trees, for long vectors. */
tutti_status tutti_double_tree_broadcast(tutti_rail_call *call);
tutti_status tutti_double_tree_reduce(tutti_rail_call *call);
tutti_status tutti_double_tree_all_reduce(tutti_rail_call *call);
size_t tutti_double_tree_scratch(int n, size_t bytes, size_t piece_bytes);

/* bruck.c: log2(n) steps; several blocks share a message. */
tutti_status tutti_bruck_all_gather(tutti_rail_call *call);
tutti_status tutti_bruck_all_to_all(tutti_rail_call *call); /* uniform blocks */
size_t tutti_bruck_scratch(int n, size_t bytes, size_t piece_bytes);

/* dissemination.c: barrier. */
tutti_status tutti_dissemination_barrier(tutti_rail_call *call);

#endif
