/*
 * Times a row: calls are enqueued one after the other, and the clock stops when the last is done, so that on a GPU
 * launches overlap with the kernels. The first calls load code and touch memory and do not count.
 */
#include <stdlib.h>
#include <time.h>

#include "bench/kernels/bench.h"

#define ROUND_US    5000.0
#define MOST_CALLS  1000
#define MOST_ROUNDS 101

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

typedef void (*work)(bench_lab *lab, const bench_shape *shape);

static tutti_status time_calls(bench_lab *lab, work run, const bench_shape *shape, int calls, double *each_out) {
    double start = now_us();
    for (int i = 0; i < calls; i++) run(lab, shape);
    TUTTI_TRY(lab->kernels->wait(lab->compute));
    TUTTI_TRY(lab->failed);
    *each_out = (now_us() - start) / calls;
    return TUTTI_OK;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tutti_status find_median(bench_lab *lab, work run, const bench_shape *shape, double *us_out) {
    double times[MOST_ROUNDS], each;
    int rounds = lab->rounds < MOST_ROUNDS ? lab->rounds : MOST_ROUNDS;
    for (int i = 0; i < 2; i++) TUTTI_TRY(time_calls(lab, run, shape, 1, &each));
    int calls = each * MOST_CALLS < ROUND_US ? MOST_CALLS : each > ROUND_US ? 1 : (int)(ROUND_US / each);
    for (int i = 0; i < rounds; i++) TUTTI_TRY(time_calls(lab, run, shape, calls, &times[i]));
    qsort(times, (size_t)rounds, sizeof times[0], compare);
    *us_out = rounds % 2 != 0 ? times[rounds / 2] : (times[rounds / 2 - 1] + times[rounds / 2]) / 2;
    return TUTTI_OK;
}

tutti_status bench_kernels_time(bench_lab *lab, bench_kernel *row) {
    double whole, part = 0;
    TUTTI_TRY(find_median(lab, row->run, &row->shape, &whole));
    if (row->without != NULL) TUTTI_TRY(find_median(lab, row->without, &row->shape, &part));
    row->us = whole > part ? whole - part : -1;
    return TUTTI_OK;
}
