/*
 * Predictions of what moves between ranks, remembered: a search asks for each of them many times.
 */
#ifndef TUTTI_TRAINER_EDGES_H
#define TUTTI_TRAINER_EDGES_H

#include "ddp/trainer/auto/price.h"

/* An activation, or a gradient of one, of a layout and shape that becomes one of another. */
typedef struct tutti_edge {
    const tutti_sbp *from, *to;
    tutti_shape in, out;
} tutti_edge;

/* In microseconds; 0 where nothing is predicted yet. */
double tutti_edges_price(tutti_prices *prices, const tutti_edge *edge);
/* About how many bytes it brings the rank. */
double tutti_edges_received(const tutti_prices *prices, const tutti_edge *edge);
/* Elements of the rank's part. */
double tutti_edges_part(const tutti_prices *prices, const tutti_sbp *sbp, tutti_shape shape);
/* Microseconds to reduce two numbers (doubles) of each of `count` samples over the ranks of these axes; 0 where nothing is
 * predicted yet. */
double tutti_edges_agreement(tutti_prices *prices, unsigned axes, int count);
/* Microseconds to sum `count` elements, in buckets as the engine cuts them, over the ranks of these axes. */
double tutti_edges_reduction(tutti_prices *prices, unsigned axes, double count);

#endif
