/*
 * The buffers of a measurement, in host memory or on a GPU: where each call finds its data, and how they are written
 * before a call and read after it.
 */
#ifndef TUTTI_BENCH_BUFFERS_H
#define TUTTI_BENCH_BUFFERS_H

#include "bench/measure.h"

/* Allocates send and receive buffers and a row's lists, and touches every page. */
tutti_status bench_buffers_open(bench_run *run);
void bench_buffers_close(bench_run *run);

/* The bytes that each rank sends to all ranks together, unless a traffic file sets them. */
size_t bench_buffers_total_bytes(const bench_run *run, const bench_case *c);

/* Points the call at a place in the buffers that moves with each iteration and wraps around: results must not depend
 * on data that happens to be in a cache, or on one address. */
void bench_buffers_place(const bench_run *run, const bench_case *c, int64_t iteration, bench_call *call);

/* Fills the lists of an uneven row: how many of this rank's elements go to each rank, and where this rank's part
 * begins in each other rank's data. */
void bench_buffers_list(const bench_run *run, const bench_case *c, bench_call *call);

/* Simulates a program around an iteration's operations: writes all data to send, and reads all received data. */
tutti_status bench_buffers_rewrite(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration);
tutti_status bench_buffers_read(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration);

/* Clears the results and writes the data to send, at the buffers' start. */
tutti_status bench_buffers_prepare(bench_run *run, const bench_case *c, bench_call *call, bench_pattern *pattern_out);

#endif
