/*
 * The timing core of bench/overlap: gradients that backward writes bucket by bucket, while earlier buckets travel.
 *
 * A driver (overlap_mpi.c, overlap_tutti_calls.c, overlap_gloo.py) starts its library and passes the core the few
 * functions below. The core makes the buckets, computes, writes and checks every gradient, lines the ranks up and
 * takes the time; none of that goes through the library.
 */
#ifndef BENCH_PEERS_OVERLAP_H
#define BENCH_PEERS_OVERLAP_H

#include <stddef.h>

typedef struct overlap_peer {
    int rank, size;
    void *(*alloc)(size_t bytes); /* allocates a bucket; NULL: malloc */
    void (*release)(void *memory);
    /* Called before the first step with these buckets and after the last one; NULL: nothing to do. Not 0: failed. */
    int (*open)(int buckets, const size_t *counts);
    void (*close)(void);
    /* The place of bucket `index` in this step, if the library owns the memory; NULL: the core makes the buckets. */
    float *(*bucket)(int index);
    /* Starts to sum bucket `index`, which is completely written, over ranks, in place. Returns at once. Not 0:
     * failed. */
    int (*start)(int index, float *data, size_t count);
    /* Called at intervals while the rank computes, for a library that moves data only inside its calls; NULL: never. */
    int (*progress)(void);
    /* Returns when all started buckets hold their sums. */
    int (*finish)(void);
} overlap_peer;

/* Must be called first: binds the process to core (rank mod cores), if the arguments request that. */
void overlap_begin(int argc, char **argv);

/* Runs the measurements of the arguments; returns the exit status. Arguments, as bench/overlap passes them:
 * MEETING-FILE ROWS-FILE pin|free KIND TOTAL-BYTES SAMPLES LOADS, where LOADS is BUCKET-BYTES:ROUNDS,... */
int overlap_run(const overlap_peer *peer, int argc, char **argv);

/* KIND: the way in which the driver uses its library, for drivers that support several. */
const char *overlap_kind(int argc, char **argv);

#endif
