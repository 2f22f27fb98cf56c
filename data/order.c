/*
 * The permutation of a pass (Fisher and Yates' shuffle), the shuffle buffer, and the division over shards.
 */
#include "data/order.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/random.h"

tutti_status tutti_data_order_init(tutti_data_order *order, int64_t count, uint64_t seed, bool permuted,
                                   int64_t buffer) {
    *order = (tutti_data_order){
        .count = count, .seed = seed, .permuted = permuted, .buffer = buffer < count ? buffer : count, .pass = -1};
    if (count > UINT32_MAX)
        return tutti_fail(TUTTI_ERR_CONFIG, "%lld samples are more than the %lld that are supported", (long long)count,
                          (long long)UINT32_MAX);
    if (!permuted && buffer == 0) return TUTTI_OK;
    order->order = malloc((size_t)count * sizeof *order->order + 1);
    order->held = malloc((size_t)order->buffer * sizeof *order->held + 1);
    if (order->order == NULL || order->held == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a permutation of %lld samples", (long long)count);
    return TUTTI_OK;
}

void tutti_data_order_fini(tutti_data_order *order) {
    free(order->order);
    free(order->held);
    order->order = order->held = NULL;
}

static void permute(tutti_data_order *order, int64_t pass) {
    uint64_t stream = tutti_random_stream(TUTTI_RANDOM_PERMUTATION, 0, (uint64_t)pass);
    for (uint64_t i = (uint64_t)order->count - 1; i > 0; i--) {
        /* 32-bit halves would favour some values; of 64 bits the remainder's bias is below 2^-32. */
        uint64_t j = tutti_random_bits(order->seed, stream, i) % (i + 1);
        uint32_t other = order->order[j];
        order->order[j] = order->order[i];
        order->order[i] = other;
    }
}

/* In place: what is written was read into the buffer before. */
static void pass_through_buffer(tutti_data_order *order, int64_t pass) {
    uint64_t stream = tutti_random_stream(TUTTI_RANDOM_SHUFFLE_BUFFER, 0, (uint64_t)pass);
    int64_t held = order->buffer;
    memcpy(order->held, order->order, (size_t)held * sizeof *order->held);
    for (int64_t i = 0; i < order->count; i++) {
        uint64_t taken = tutti_random_bits(order->seed, stream, (uint64_t)i) % (uint64_t)held;
        uint32_t given = order->held[taken];
        if (i + order->buffer < order->count) order->held[taken] = order->order[i + order->buffer];
        else order->held[taken] = order->held[--held];
        order->order[i] = given;
    }
}

int64_t tutti_data_order_at(tutti_data_order *order, int64_t pass, int64_t place) {
    if (order->order == NULL) return place;
    if (order->pass != pass) {
        for (int64_t i = 0; i < order->count; i++) order->order[i] = (uint32_t)i;
        if (order->permuted) permute(order, pass);
        if (order->buffer > 0) pass_through_buffer(order, pass);
        order->pass = pass;
    }
    return order->order[place];
}

int64_t tutti_data_share_count(const tutti_data_share *share) {
    switch (share->division) {
    case TUTTI_DATA_WRAP: return (share->count + share->nshards - 1) / share->nshards;
    case TUTTI_DATA_CUT: return share->count / share->nshards;
    case TUTTI_DATA_RANGES: break;
    }
    return share->count * (share->shard + 1) / share->nshards - share->count * share->shard / share->nshards;
}

int64_t tutti_data_share_place(const tutti_data_share *share, int64_t index) {
    if (share->division == TUTTI_DATA_RANGES) return share->count * share->shard / share->nshards + index;
    int64_t samples = tutti_data_share_count(share), run = share->batch, whole = samples / run * run;
    int64_t first = index / run * run * share->nshards, within = index % run;
    if (index >= whole) run = samples - whole;
    return (first + share->shard * run + within) % share->count;
}
