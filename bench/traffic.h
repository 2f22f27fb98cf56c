/*
 * The bytes that each rank sends to each other in alltoallv_perf, as in nccl-tests: computed from the distance
 * between ranks, or read from a file. Each part is a multiple of 16 bytes, so that it holds whole elements of every
 * type.
 */
#ifndef TUTTI_BENCH_TRAFFIC_H
#define TUTTI_BENCH_TRAFFIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <tutti/tutti.h>

typedef struct bench_traffic {
    double spread;  /* 0: equal parts; 1: in proportion to the distance around the ring of ranks */
    double scale;   /* factor for the file's numbers */
    size_t *matrix; /* bytes from rank i to rank j at [i * dimension + j]; NULL: no file */
    int dimension;
    bool summary; /* a comment line per rank and measurement */
} bench_traffic;

/* Reads NCCL_TESTS_ALLTOALLV_SPREAD, _MATRIX_FILE, _MATRIX_SCALE and _PRINT_SUMMARY. Free with bench_traffic_free. */
tutti_status bench_traffic_read(bench_traffic *traffic_out);
void bench_traffic_free(bench_traffic *traffic);

/* Bytes from one rank to another; `total` is what each rank sends to all, if there is no file. */
size_t bench_traffic_bytes(const bench_traffic *traffic, int from, int to, int nranks, size_t total);

/* The most that any rank sends or receives. */
size_t bench_traffic_most_bytes(const bench_traffic *traffic, int nranks, size_t total);

/* The summary's comment lines for one measurement; prints nothing if none was requested. */
void bench_traffic_print(const bench_traffic *traffic, FILE *out, int nranks, size_t total, double time_s);

#endif
