/*
 * Predicted times of the algorithms on rails, by the cost model: successive steps, messages, bytes, and additions.
 * Rough: they only have to show which of two algorithms is faster.
 */
#ifndef TUTTI_PREDICT_H
#define TUTTI_PREDICT_H

#include "comm/net/coll/cost.h"

/* Vectors and pieces of this size stay in a cache. */
#define TUTTI_PREDICT_CACHE_BYTES ((size_t)1 << 20)

/* Input of a prediction. `bytes` as in tutti_rail_scratch_bytes. */
typedef struct tutti_question {
    const tutti_cost *cost;
    double n, bytes, piece_bytes;
    double log_n;  /* rounded up */
    bool is_power; /* of two */
} tutti_question;

/* Microseconds. */
double tutti_predict_dissemination(const tutti_question *q);
double tutti_predict_whole(const tutti_question *q);
double tutti_predict_sliced(const tutti_question *q);
double tutti_predict_scattered(const tutti_question *q);
double tutti_predict_ring_all_reduce(const tutti_question *q);
double tutti_predict_ring_scatter(const tutti_question *q);
double tutti_predict_doubling(const tutti_question *q);
double tutti_predict_halving(const tutti_question *q);
double tutti_predict_tree(const tutti_question *q);
double tutti_predict_tree_reduce(const tutti_question *q);
double tutti_predict_double_tree(const tutti_question *q);
double tutti_predict_double_tree_reduce(const tutti_question *q);
double tutti_predict_double_tree_all_reduce(const tutti_question *q);
double tutti_predict_chain(const tutti_question *q);
double tutti_predict_direct_broadcast(const tutti_question *q);
double tutti_predict_direct(const tutti_question *q);
double tutti_predict_ring(const tutti_question *q);
double tutti_predict_direct_all_to_all(const tutti_question *q);
double tutti_predict_bruck_gather(const tutti_question *q);
double tutti_predict_bruck_all_to_all(const tutti_question *q);

#endif
