/*
 * What the two halves of redistribute_perf share: redistribute.c measures pairs of layouts, redistribute_many.c tensors in one
 * round.
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
    FILE *csv, *json; /* NULL: none; of rank 0 */
} bench_redistribute_job;

typedef struct bench_redistribute {
    const bench_redistribute_job *job;
    const bench_rank *self;
    tutti_placement *placement; /* of all ranks, as the mesh */
    const bench_type *type;
    bench_gpu *gpu; /* NULL: tensors are in host memory */
    FILE *out;      /* NULL on all ranks but the first */
    tutti_options call;
    int64_t wrong; /* of all rows */
    int rows;
    /* Of rows from 64 KiB on: all, those within 30 % of what was predicted, and the sum of the ratios' logarithms. */
    int predicted, predicted_well;
    double log_ratios;
} bench_redistribute;

/* What is timed. */
typedef tutti_status (*bench_redistribute_call)(const bench_redistribute *s, void *measured);

/* Several calls in turn: of each the median of its rounds, where a round is the mean over iterations and ranks. NULL: there is
 * none, and its time is 0. At most 4. */
tutti_status bench_redistribute_time(const bench_redistribute *s, void *measured, const bench_redistribute_call *calls,
                                     int count, double *us_out);

/* Rows and columns, as near to a square as powers of two allow. Gives the bytes. */
size_t bench_redistribute_shape(size_t bytes, size_t element_bytes, int64_t shape[2]);

/* Writes this rank's shard, as the values' rank `term` has it; counts wrong elements. */
tutti_status bench_redistribute_fill(const bench_pattern *pattern, int term, const tutti_tensor *tensor);
tutti_status bench_redistribute_check(const bench_pattern *pattern, const tutti_tensor *tensor, int64_t *wrong_out);
/* Data that is not reduced, in memory of the tensors' kind. */
bench_pattern bench_redistribute_pattern(const bench_redistribute *s, uint32_t round);
/* Bytes that no value has, so that what is not written is seen. */
tutti_status bench_redistribute_spoil(const bench_redistribute *s, const tutti_tensor *tensor);
/* Memory of the tensors' kind, of zeros. */
tutti_status bench_redistribute_alloc(const bench_redistribute *s, size_t bytes, void **memory_out);
void bench_redistribute_free(const bench_redistribute *s, void *memory);
/* Until all ranks' streams are done: before and behind what frees memory of a GPU, which waits for all streams of the process. */
tutti_status bench_redistribute_settle(const bench_redistribute *s);

tutti_memory bench_redistribute_memory(const bench_redistribute *s);

tutti_status bench_redistribute_pairs(bench_redistribute *s);
tutti_status bench_redistribute_many(bench_redistribute *s);

#endif
