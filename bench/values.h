/*
 * The data of the benchmarks: element types and reductions with nccl-tests' names, values to send, and the check of
 * every element that arrives.
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
    const char *name; /* as in -d */
    tutti_type type;
    size_t bytes;
    int64_t exact; /* whole numbers from 0 to this are exact; for signed types from its negative */
    bool is_signed;
    int mantissa, bias; /* floats; mantissa 0: an integer */
} bench_type;

typedef struct bench_reduction {
    const char *name; /* as in -o */
    tutti_reduction reduction;
} bench_reduction;

#define BENCH_TYPES      12
#define BENCH_TYPE_FLOAT 7 /* the row of float, the default */
#define BENCH_REDUCTIONS 6
extern const bench_type bench_types[BENCH_TYPES];                /* in the order of -d all */
extern const bench_reduction bench_reductions[BENCH_REDUCTIONS]; /* in the order of -o all */

/* The data that the ranks send in one checked call. */
typedef struct bench_pattern {
    const bench_type *type;
    bool reduces; /* else the data is only moved */
    tutti_reduction reduction;
    int nranks;
    uint32_t round; /* differs from call to call, so that stale data is detected */
    bool on_gpu;    /* the buffers to fill and check are on a GPU: they are copied, piece by piece */
    void *stream;   /* for these copies */
} bench_pattern;

/* Writes `count` elements of the data that `rank` sends, from element `first` on. */
tutti_status bench_values_fill(const bench_pattern *pattern, int rank, size_t first, size_t count, void *dst);

/* The number of `count` elements that differ from the data of `source`, from its element `first` on. Elements that
 * cannot be copied from a GPU count as wrong, here and below. */
int64_t bench_values_check_moved(const bench_pattern *pattern, int source, size_t first, size_t count, const void *got);

/* The number of `count` elements that differ from the reduction over all ranks, from element `first` on. */
int64_t bench_values_check_reduced(const bench_pattern *pattern, size_t first, size_t count, const void *got);

/* The number of `count` elements with nonzero bytes: for a buffer that must not be written. */
int64_t bench_values_check_untouched(const bench_pattern *pattern, size_t count, const void *got);

/* The factor of `rank` in the pre-multiplied sum. */
double bench_values_factor(int rank);

#endif
