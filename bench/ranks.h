/*
 * Start-up of a benchmark's ranks: processes started by a launcher, or processes or threads started here.
 */
#ifndef TUTTI_BENCH_RANKS_H
#define TUTTI_BENCH_RANKS_H

#include <stdbool.h>

#include <tutti/tutti.h>

#define BENCH_RANKS_MOST 4096 /* the most ranks that are started here */

typedef struct bench_rank {
    tutti_comm *world; /* all ranks */
    int rank, size, local_rank;
} bench_rank;

/* The work of each rank; `body` returns its exit code. */
typedef struct bench_start {
    int (*body)(const bench_rank *self, void *context);
    void *context;
    bool bind; /* rank k is pinned to the k-th core that it may use, modulo their number */
} bench_start;

/* The number of ranks on this host. */
int bench_ranks_local(const bench_rank *self);

/* Runs the body in this process, as one rank of the launcher's world. Returns the exit code. */
int bench_ranks_join(const tutti_world *world, const bench_start *start);

/* Forks `nranks` processes (at most BENCH_RANKS_MOST) that run the body, and waits for them. When one fails, the
 * others have 2 s to report why, then they are killed; they also end when this process dies. Returns the first
 * failure's exit code, else 0. */
int bench_ranks_fork(int nranks, const bench_start *start);

/* The same with threads of this process; threads that are still busy 2 s after the first failure end with the
 * process. */
int bench_ranks_threads(int nranks, const bench_start *start);

#endif
