/*
 * The order of samples, and their division over shards.
 *
 * The order of a pass is a permutation of all samples, drawn from (seed, pass), and possibly changed by a shuffle
 * buffer: it is the same on every shard, for any number of shards. Then it is divided (tutti_data_division). With
 * batches of b samples:
 *
 *   order   | batch 0: shard 0, shard 1, ... | batch 1: shard 0, shard 1, ... | ... | the rest, in runs below b |
 */
#ifndef TUTTI_DATA_ORDER_H
#define TUTTI_DATA_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/data.h>

typedef struct tutti_data_order {
    int64_t count;
    uint64_t seed;
    bool permuted;
    int64_t buffer; /* size of the shuffle buffer; 0: none */
    uint32_t *order, *held;
    int64_t pass; /* pass of `order`; -1: none yet */
} tutti_data_order;

tutti_status tutti_data_order_init(tutti_data_order *order, int64_t count, uint64_t seed, bool permuted,
                                   int64_t buffer);
void tutti_data_order_fini(tutti_data_order *order);

/* Returns the sample at a place of a pass's order. */
int64_t tutti_data_order_at(tutti_data_order *order, int64_t pass, int64_t place);

typedef struct tutti_data_share {
    tutti_data_division division;
    int64_t count; /* number of all samples */
    int shard, nshards, batch;
} tutti_data_share;

/* Number of samples of the shard in a pass, and the place in the order of the shard's sample `index`. */
int64_t tutti_data_share_count(const tutti_data_share *share);
int64_t tutti_data_share_place(const tutti_data_share *share, int64_t index);

#endif
