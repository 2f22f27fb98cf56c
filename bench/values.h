/*
 * The data of the benchmarks: element types and reductions as nccl-tests names them, values to send, and the
 * check of every element that arrives.
 *
 * A value follows from (rank, index, round) alone, so each rank knows what every other rank sent. Data that is
 * only moved is random bits. Data that is reduced is small whole numbers, chosen so that every partial result is
 * exact in its type (even float8): the expected value is then one integer, whatever the order of the sum. Only
 * avg on floats rounds; it may be off by one unit in the last place. Values repeat after a prime number of
 * elements, so that filling and checking gigabytes costs a copy and a compare.
 */
#ifndef TUTTI_BENCH_VALUES_H
#define TUTTI_BENCH_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct bench_type {
    const char *name; /* as -d takes it */
    tutti_type type;
    size_t bytes;
    int64_t exact; /* whole numbers from 0 to here are exact; signed ones down to its negative */
    bool is_signed;
    int mantissa, bias; /* floats; mantissa 0: an integer */
} bench_type;

typedef struct bench_reduction {
    const char *name; /* as -o takes it */
    tutti_reduction reduction;
} bench_reduction;

#define BENCH_TYPES      12
#define BENCH_TYPE_FLOAT 7 /* the row of float, the default */
#define BENCH_REDUCTIONS 6
extern const bench_type bench_types[BENCH_TYPES];                /* in the order of -d all */
extern const bench_reduction bench_reductions[BENCH_REDUCTIONS]; /* in the order of -o all */

/* What the ranks send in one checked call. */
typedef struct bench_pattern {
    const bench_type *type;
    bool reduces; /* else the data is only moved */
    tutti_reduction reduction;
    int nranks;
    uint32_t round; /* differs from call to call, so that stale data is seen */
    bool on_gpu;    /* the buffers that are filled and checked are a GPU's: they are copied, piece by piece */
    void *stream;   /* in this stream */
} bench_pattern;

/* Writes `count` elements of what `rank` sends, from element `first` of its data. */
tutti_status bench_values_fill(const bench_pattern *pattern, int rank, size_t first, size_t count, void *dst);

/* How many of `count` elements differ from what `source` sent, from its element `first`. What cannot be copied from a GPU
 * counts as wrong, here and below. */
int64_t bench_values_check_moved(const bench_pattern *pattern, int source, size_t first, size_t count, const void *got);

/* How many of `count` elements differ from the reduction over all ranks, from element `first`. */
int64_t bench_values_check_reduced(const bench_pattern *pattern, size_t first, size_t count, const void *got);

/* How many of `count` elements are not zero bytes: a buffer that should not have been written. */
int64_t bench_values_check_untouched(const bench_pattern *pattern, size_t count, const void *got);

/* The factor of `rank` in the pre-multiplied sum. */
double bench_values_factor(int rank);

#endif
