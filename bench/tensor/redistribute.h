/*
 * The declarations shared by both halves of redistribute_perf: redistribute.c measures pairs of layouts,
 * redistribute_many.c tensors in one round.
 */
#ifndef BENCH_REDISTRIBUTE_H
#define BENCH_REDISTRIBUTE_H

#include <stdbool.h>
#include <stdio.h>

#include <tutti/tensor.h>

#include "bench/gpu.h"
#include "bench/options.h"
#include "bench/ranks.h"
#include "bench/values.h"

typedef struct bench_redistribute_job {
    bench_options options;
    const char *program;
    const char *from, *to; /* NULL: the default pairs */
    int mesh[TUTTI_MOST_AXES], naxes;
    int64_t many; /* 0: no */
    bool bare;
    FILE *csv, *json; /* NULL: none; written by rank 0 */
} bench_redistribute_job;

typedef struct bench_redistribute {
    const bench_redistribute_job *job;
    const bench_rank *self;
    tutti_placement *placement; /* all ranks, as the mesh */
    const bench_type *type;
    bench_gpu *gpu; /* NULL: tensors are in host memory */
    FILE *out;      /* NULL on all ranks but the first */
    tutti_options call;
    int64_t wrong; /* wrong elements of all rows */
    int rows;
    /* Counts of rows from 64 KiB on: all, and those within 30 % of the prediction; and the sum of the ratios'
     * logarithms. */
    int predicted, predicted_well;
    double log_ratios;
} bench_redistribute;

/* A call to be timed. */
typedef tutti_status (*bench_redistribute_call)(const bench_redistribute *s, void *measured);

/* Times several calls in turn: for each, the median of its rounds, where a round is the mean over iterations and
 * ranks. A call may be NULL: its time is 0. At most 4. */
tutti_status bench_redistribute_time(const bench_redistribute *s, void *measured, const bench_redistribute_call *calls,
                                     int count, double *us_out);

/* Chooses rows and columns, as near to a square as powers of two allow. Returns the bytes. */
size_t bench_redistribute_shape(size_t bytes, size_t element_bytes, int64_t shape[2]);

/* Writes this rank's shard with the values of rank `term`; the check counts wrong elements. */
tutti_status bench_redistribute_fill(const bench_pattern *pattern, int term, const tutti_tensor *tensor);
tutti_status bench_redistribute_check(const bench_pattern *pattern, const tutti_tensor *tensor, int64_t *wrong_out);
/* The pattern of data that is not reduced, in memory of the tensors' kind. */
bench_pattern bench_redistribute_pattern(const bench_redistribute *s, uint32_t round);
/* Fills the tensor with bytes that no value has, so that unwritten elements are detected. */
tutti_status bench_redistribute_spoil(const bench_redistribute *s, const tutti_tensor *tensor);
/* Allocates zeroed memory of the tensors' kind. */
tutti_status bench_redistribute_alloc(const bench_redistribute *s, size_t bytes, void **memory_out);
void bench_redistribute_free(const bench_redistribute *s, void *memory);
/* Waits until all ranks' streams are done: needed before and after a call that frees GPU memory, which waits for all
 * streams of the process. */
tutti_status bench_redistribute_settle(const bench_redistribute *s);

tutti_memory bench_redistribute_memory(const bench_redistribute *s);

tutti_status bench_redistribute_pairs(bench_redistribute *s);
tutti_status bench_redistribute_many(bench_redistribute *s);

#endif
