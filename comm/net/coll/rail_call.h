/*
 * One call on a rail, as the algorithms see it, and what they have in common. An algorithm is a function of a call; it takes
 * its memory from the call's scratch and says beforehand how much that will be.
 */
#ifndef TUTTI_RAIL_CALL_H
#define TUTTI_RAIL_CALL_H

#include "comm/net/coll/rail.h"

typedef struct tutti_rail_call {
    const tutti_rail *rail;
    tutti_kind kind; /* uniform ones */
    int root;
    tutti_rail_vector vector;         /* kinds that reduce */
    const void *const *srcs;          /* reduce_scatter */
    const size_t *counts;             /* reduce_scatter */
    const tutti_rail_block *sends;    /* all_to_all, scatter */
    const tutti_rail_block *receives; /* all_to_all, gather; all_gather: all blocks; broadcast: one */
    tutti_rail_block own;             /* gather, scatter */
    const tutti_rail_watch *watch;    /* may be NULL */
    size_t bytes;                     /* the size by which the algorithm was chosen, equal on all ranks */
    size_t piece_bytes;               /* of what is pipelined; whole cache lines */
    char *scratch;                    /* what is left of it */
    size_t scratch_bytes;
} tutti_rail_call;

/* Bytes to be asked for where tutti_rail_take will be called with `bytes`. */
static inline size_t tutti_rail_room(size_t bytes) {
    return tutti_align_up(bytes, TUTTI_CACHE_LINE);
}
/* Memory from the call's scratch, aligned to a cache line. There is enough: the algorithm has asked for it. */
void *tutti_rail_take(tutti_rail_call *call, size_t bytes);

/* Ranks in a circle: the one `steps` further on (or back). */
static inline int tutti_rail_next(const tutti_rail_call *call, int rank, int steps) {
    int n = call->rail->n;
    return ((rank + steps) % n + n) % n;
}

/* Tells the caller that a block is there. */
tutti_status tutti_rail_log(const tutti_rail_call *call, int rank);

static inline size_t tutti_rail_pieces(size_t bytes, size_t piece_bytes) {
    return (bytes + piece_bytes - 1) / piece_bytes;
}

/* base + offset, also where there is nothing. */
static inline char *tutti_rail_at(const void *base, size_t offset) {
    return offset > 0 ? (char *)base + offset : (char *)base;
}

/* Piece k of a part of `bytes`: empty behind its end. */
typedef struct tutti_rail_piece {
    size_t start, bytes;
} tutti_rail_piece;
static inline tutti_rail_piece tutti_rail_piece_of(size_t bytes, size_t piece_bytes, size_t k) {
    size_t start = tutti_min_size(k * piece_bytes, bytes);
    return (tutti_rail_piece){.start = start, .bytes = tutti_min_size(piece_bytes, bytes - start)};
}

/*
 * Pairwise summation: of n ranks the first 2 * extra make pairs, so that a power of two of members is left; then
 * neighbouring members are added, then neighbouring sums, until there is one. That is the order in which pairs of ranks
 * add while they exchange vectors (recursive_doubling.c).
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

/* dst = srcs[0] op srcs[1] ..., from the first to the last; avg divides. */
void tutti_rail_reduce_now(const tutti_rail_vector *vector, void *dst, const void *const *srcs, int nsrcs,
                           size_t bytes);
/* The same, in the order that sums on rails have: srcs are the inputs of all n ranks. */
void tutti_rail_sum(const tutti_rail_vector *vector, void *dst, const void *const *srcs, int nsrcs, size_t bytes);
/* What links fold with: avg sums; tutti_rail_divide does the rest, once. */
tutti_fold tutti_rail_fold_of(const tutti_rail_vector *vector);
void tutti_rail_divide(const tutti_rail_vector *vector, void *data, size_t bytes);
/* memcpy, but for nothing to nothing, or a buffer to itself. */
void tutti_rail_copy(void *dst, const void *src, size_t bytes);

/* Moves the parts, those without bytes left out, and does the work meanwhile; work may be NULL. */
tutti_status tutti_rail_move(const tutti_rail_call *call, tutti_link_part *parts, int nparts,
                             const tutti_link_work *work);

/* The work of adding up. */
typedef struct tutti_rail_adding {
    const tutti_rail_vector *vector;
    const void **views; /* the inputs of all ranks; they move on */
    int nviews;
    char *dst;
    size_t left; /* bytes */
} tutti_rail_adding;
bool tutti_rail_add_some(void *adding);

/* Slice `rank` of the call's vector, in bytes. */
tutti_rail_piece tutti_rail_slice(const tutti_rail_call *call, int rank);

/* The row of the table for that kind and the call's size. */
tutti_status tutti_rail_choose_and_run(const tutti_rail_table *table, tutti_kind kind, tutti_rail_order order,
                                       tutti_rail_call *call);

/*
 * The algorithms. Each has a function that says how much scratch it takes for n ranks and `bytes` (see rail.h).
 */

/* direct.c: each rank sends to all others at once. */
tutti_status tutti_direct_whole(tutti_rail_call *call);  /* all_reduce, reduce: whole vectors are sent */
tutti_status tutti_direct_sliced(tutti_rail_call *call); /* all_reduce, reduce, reduce_scatter: slices are sent */
tutti_status tutti_direct_move(tutti_rail_call *call);   /* all_gather, gather, scatter */
tutti_status tutti_direct_all_to_all(tutti_rail_call *call);
tutti_status tutti_direct_broadcast(tutti_rail_call *call);
size_t tutti_direct_whole_scratch(int n, size_t bytes, size_t piece_bytes);
size_t tutti_direct_sliced_scratch(int n, size_t bytes, size_t piece_bytes);
size_t tutti_direct_move_scratch(int n, size_t bytes, size_t piece_bytes);
size_t tutti_direct_all_to_all_scratch(int n, size_t bytes, size_t piece_bytes);

/* ring.c: each rank sends to the next one only. */
tutti_status tutti_ring_all_gather(tutti_rail_call *call);
tutti_status tutti_ring_reduce_scatter(tutti_rail_call *call);
tutti_status tutti_ring_all_reduce(tutti_rail_call *call);
tutti_status tutti_ring_broadcast(tutti_rail_call *call); /* a chain: the ring, cut before its root */
size_t tutti_ring_scratch(int n, size_t bytes, size_t piece_bytes);

/* recursive_doubling.c: pairs of ranks at growing or shrinking distance. */
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

/* bruck.c: log2(n) steps, blocks travel together. */
tutti_status tutti_bruck_all_gather(tutti_rail_call *call);
tutti_status tutti_bruck_all_to_all(tutti_rail_call *call); /* uniform blocks */
size_t tutti_bruck_scratch(int n, size_t bytes, size_t piece_bytes);

/* dissemination.c: barrier. */
tutti_status tutti_dissemination_barrier(tutti_rail_call *call);

#endif
