/*
 * Times one collective at one size, and checks its results. The procedure is that of nccl-tests: the place in the
 * buffers moves from call to call, the time is that of all iterations divided by their number and combined over
 * ranks, and the checked calls come after the timed ones.
 */
#ifndef TUTTI_BENCH_MEASURE_H
#define TUTTI_BENCH_MEASURE_H

#include "bench/collectives.h"
#include "bench/options.h"
#include "bench/ranks.h"
#include "bench/report/report.h"
#include "bench/traffic.h"

/* The values that stay the same for a whole program. */
typedef struct bench_run {
    const bench_collective *row;
    const bench_options *options;
    const bench_traffic *traffic; /* for an uneven row */
    const bench_rank *self;       /* this rank in the world: for barriers, averages, sums of errors */
    tutti_comm *comm;             /* the measured group */
    int rank, nranks;             /* in the group */
    struct bench_gpu *gpu;        /* where the buffers are; NULL: host memory */
    size_t buffer_bytes;          /* usable bytes of each buffer */
    void *send, *receive;
    bench_lists lists;
    double *times_us, *all_times_us; /* with -I and --percentiles: of this rank; of all ranks and the slowest, twice */
    uint32_t round;
    int failed_checks; /* this rank's */
    int64_t graphs;    /* -G; 0 once calls proved not capturable; `refusal`: the reason */
    char refusal[256];
    int64_t products; /* --compute on a GPU; 0: not known yet */
} bench_run;

/* One line of the table. */
typedef struct bench_case {
    const bench_type *type;
    tutti_reduction reduction;
    int root;
    size_t count;
} bench_case;

/* Allocates the buffers, of max_bytes each, and touches every page. Free with bench_measure_close. */
tutti_status bench_measure_open(bench_run *run);
void bench_measure_close(bench_run *run);

/* The table's bytes. */
size_t bench_measure_bytes(const bench_run *run, const bench_case *c);

/* Runs the warm-up iterations of one size. */
tutti_status bench_measure_warm_up(bench_run *run, const bench_case *c);

/* Collective over the world. The times that half_out->iterations points to are valid until the next call for the same
 * half. */
tutti_status bench_measure_half(bench_run *run, const bench_case *c, bool in_place, bench_half *half_out);

#endif
