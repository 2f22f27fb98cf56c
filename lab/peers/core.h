/*
 * The timing core that all libraries of a comparison share, so that only the library differs.
 *
 * A driver (mpi.c, tutti_calls.c, gloo.py) starts its library and passes the core one function that carries out one
 * operation. The core makes the buffers, rewrites them before each operation and reads every element after it, as a
 * program does, lines the ranks up, takes the time and writes the rows. None of that goes through the library: the
 * ranks meet in a page of a file that all of them map.
 */
#ifndef BENCH_PEERS_CORE_H
#define BENCH_PEERS_CORE_H

#include <stddef.h>

typedef enum core_collective {
    CORE_ALL_REDUCE = 0,
    CORE_ALL_GATHER,
    CORE_REDUCE_SCATTER,
    CORE_BROADCAST, /* from the root, in dst */
    CORE_ALL_TO_ALL,
    CORE_BARRIER,
    CORE_PING_PONG, /* with rank ^ 1: the even one sends src, then receives into dst; the odd one the other way round */
    CORE_GATHER,    /* to the root */
    CORE_SCATTER,   /* from the root */
    CORE_COLLECTIVES
} core_collective;

typedef struct core_peer {
    int rank, size;
    int slice_stays; /* reduce_scatter in place: the result is in the rank's own slice (else at the start of dst) */
    void *(*alloc)(size_t bytes); /* NULL: malloc */
    void (*release)(void *memory);
    /* One operation, float32, sum. `count`: elements per rank's slice for all_gather, reduce_scatter, all_to_all,
     * gather and scatter, else elements of the buffer. In place when src == dst. The root changes with each
     * operation. Not 0: failed, or the library has no such operation. */
    int (*run)(int collective, const float *src, float *dst, size_t count, int root);
} core_peer;

/* Must be called first: binds the process to core (rank mod cores), unless the arguments disable that. */
void core_start(int argc, char **argv);

/* Runs the measurements of the arguments; returns the exit status. Arguments, as bench/compare passes them:
 * MEETING-FILE ROWS-FILE COLLECTIVE SIZES(a,b,...) SAMPLES SAMPLE-MS pin|free MEMORY */
int core_run(const core_peer *peer, int argc, char **argv);

/* The last argument: the kind of memory, for drivers that have several. */
const char *core_memory(int argc, char **argv);

#endif
