/*
 * The buffers of a measurement, in host memory or on a GPU: where each call finds its data, what is written into them before
 * it and read after it.
 */
#ifndef TUTTI_BENCH_BUFFERS_H
#define TUTTI_BENCH_BUFFERS_H

#include "bench/measure.h"

/* Allocates send and receive buffers and a row's lists, and touches every page. */
tutti_status bench_buffers_open(bench_run *run);
void bench_buffers_close(bench_run *run);

/* What each rank sends to all, where no file of traffic says it. */
size_t bench_buffers_total_bytes(const bench_run *run, const bench_case *c);

/* Points the call at the buffers, a step further for each iteration, round and round: results must not depend on data that
 * happens to be in a cache, or on one address. */
void bench_buffers_place(const bench_run *run, const bench_case *c, int64_t iteration, bench_call *call);

/* How many elements of this rank's go where, and where in the others' data its own part begins. For a row that is uneven. */
void bench_buffers_list(const bench_run *run, const bench_case *c, bench_call *call);

/* What a program does around an iteration's operations: writes all that it sends; reads all that it received. */
tutti_status bench_buffers_rewrite(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration);
tutti_status bench_buffers_read(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration);

/* Clears where results go and writes what is sent, at the buffers' start. */
tutti_status bench_buffers_prepare(bench_run *run, const bench_case *c, bench_call *call, bench_pattern *pattern_out);

#endif
