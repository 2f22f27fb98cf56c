/*
 * Start-up of a benchmark's ranks: those that a launcher has started, or ranks forked here.
 */
#ifndef TUTTI_BENCH_RANKS_H
#define TUTTI_BENCH_RANKS_H

#include <stdbool.h>

#include <tutti/tutti.h>

#define BENCH_RANKS_MOST 4096 /* that are forked */

typedef struct bench_rank {
    tutti_comm *world; /* of all ranks */
    int rank, size, local_rank;
} bench_rank;

/* What each rank does; gives the process's exit code. */
typedef struct bench_start {
    int (*body)(const bench_rank *self, void *context);
    void *context;
    bool bind; /* rank k stays on the k-th core that it may use, round and round */
} bench_start;

/* Runs the body in this process, as one rank of the launcher's world. Gives the exit code. */
int bench_ranks_join(const tutti_world *world, const bench_start *start);

/* Forks `nranks` processes (at most BENCH_RANKS_MOST) that run the body, and waits for them. When one fails the
 * others get 2 s to say why, then they are killed; they end as well when this process dies. Gives the first
 * failure's exit code, else 0. */
int bench_ranks_fork(int nranks, const bench_start *start);

#endif
