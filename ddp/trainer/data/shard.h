/*
 * Which samples each rank trains on, and which it evaluates.
 *
 * An epoch is a permutation of all samples, drawn from (seed, epoch), so it is the same on every rank and for any
 * number of ranks. Global batch k is the k-th run of nranks * batch samples; rank r takes its r-th part:
 *
 *   permutation   | batch 0: rank 0, rank 1, ... | batch 1: rank 0, rank 1, ... | ... | rest, dropped |
 */
#ifndef TUTTI_TRAINER_SHARD_H
#define TUTTI_TRAINER_SHARD_H

#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_shard {
    int64_t count; /* samples in the data set */
    int rank, nranks, batch;
    uint64_t seed;
    uint32_t *order; /* the permutation of `epoch` */
    int64_t epoch;   /* -1: none yet */
} tutti_shard;

/* Fewer samples than one global batch is an error. */
tutti_status tutti_shard_init(tutti_shard *shard, int64_t count, int rank, int nranks, int batch, uint64_t seed);
void tutti_shard_fini(tutti_shard *shard);

/* Global batches in an epoch. */
int64_t tutti_shard_batches(const tutti_shard *shard);

/* This rank's part of a global batch: `batch` indices, valid until another epoch is asked for. */
const uint32_t *tutti_shard_batch(tutti_shard *shard, int64_t epoch, int64_t index);

/* [first, end) of this rank when `count` samples are divided in order, as evenly as possible. */
void tutti_shard_range(int64_t count, int rank, int nranks, int64_t *first_out, int64_t *end_out);

#endif
