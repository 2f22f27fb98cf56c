/*
 * Predictions for data that moves between ranks, cached: a search needs each of them many times.
 */
#ifndef TUTTI_TRAINER_EDGES_H
#define TUTTI_TRAINER_EDGES_H

#include "ddp/trainer/auto/price.h"

/* A change of an activation, or of its gradient, from one layout and shape to another. */
typedef struct tutti_edge {
    const tutti_sbp *from, *to;
    tutti_shape in, out;
} tutti_edge;

/* Microseconds of the change; 0 while nothing is predicted yet. */
double tutti_edges_price(tutti_prices *prices, const tutti_edge *edge);
/* The approximate number of bytes that the rank receives. */
double tutti_edges_received(const tutti_prices *prices, const tutti_edge *edge);
/* The elements of the rank's part. */
double tutti_edges_part(const tutti_prices *prices, const tutti_sbp *sbp, tutti_shape shape);
/* Microseconds to reduce two numbers (doubles) for each of `count` samples over the ranks of these axes; 0 while
 * nothing is predicted yet. */
double tutti_edges_agreement(tutti_prices *prices, unsigned axes, int count);
/* Microseconds to sum `count` elements over the ranks of these axes, in buckets of the engine's size. */
double tutti_edges_reduction(tutti_prices *prices, unsigned axes, double count);

#endif
