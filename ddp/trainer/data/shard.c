/*
 * The permutation of an epoch (Fisher and Yates' shuffle) and its division over ranks.
 */
#include "ddp/trainer/data/shard.h"

#include <stdlib.h>

#include "kernels/random.h"

tutti_status tutti_shard_init(tutti_shard *shard, int64_t count, int rank, int nranks, int batch, uint64_t seed) {
    *shard = (tutti_shard){
        .count = count, .rank = rank, .nranks = nranks, .batch = batch, .seed = seed, .epoch = -1, .order = NULL};
    if (count < (int64_t)nranks * batch)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "%lld training samples are fewer than one batch of %d ranks times %d; lower --batch-size",
                          (long long)count, nranks, batch);
    if (count > UINT32_MAX)
        return tutti_fail(TUTTI_ERR_CONFIG, "%lld training samples are more than the %lld that are supported",
                          (long long)count, (long long)UINT32_MAX);
    shard->order = malloc((size_t)count * sizeof *shard->order);
    if (shard->order == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a permutation of %lld samples", (long long)count);
    return TUTTI_OK;
}

void tutti_shard_fini(tutti_shard *shard) {
    free(shard->order);
    shard->order = NULL;
}

int64_t tutti_shard_batches(const tutti_shard *shard) {
    return shard->count / ((int64_t)shard->nranks * shard->batch);
}

static void shuffle(tutti_shard *shard, int64_t epoch) {
    uint64_t stream = tutti_random_stream(TUTTI_RANDOM_PERMUTATION, 0, (uint64_t)epoch);
    uint32_t *order = shard->order;
    for (int64_t i = 0; i < shard->count; i++) order[i] = (uint32_t)i;
    for (uint64_t i = (uint64_t)shard->count - 1; i > 0; i--) {
        /* 32-bit halves would favour some values; of 64 bits the remainder's bias is below 2^-32. */
        uint64_t j = tutti_random_bits(shard->seed, stream, i) % (i + 1);
        uint32_t other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
    shard->epoch = epoch;
}

const uint32_t *tutti_shard_batch(tutti_shard *shard, int64_t epoch, int64_t index) {
    if (shard->epoch != epoch) shuffle(shard, epoch);
    return shard->order + (index * shard->nranks + shard->rank) * shard->batch;
}

void tutti_shard_range(int64_t count, int rank, int nranks, int64_t *first_out, int64_t *end_out) {
    *first_out = count * rank / nranks;
    *end_out = count * (rank + 1) / nranks;
}
