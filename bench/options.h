/*
 * The command line: nccl-tests' flags, short and long, from one table (options.c) that also makes the help text.
 */
#ifndef TUTTI_BENCH_OPTIONS_H
#define TUTTI_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <tutti/tutti.h>

#define BENCH_ALL       (-1) /* for type, reduction and root: each of them in turn */
#define BENCH_CTA_UNSET (-1) /* for cta_policy: the environment's setting stays */

typedef enum bench_blocking {
    BENCH_BLOCKING_OFF,
    BENCH_BLOCKING_BARRIER,      /* wait and barrier after each operation */
    BENCH_BLOCKING_WAIT,         /* wait after each operation: host calls always wait */
    BENCH_BLOCKING_OUTER_BARRIER /* wait for each iteration, with an untimed barrier between them */
} bench_blocking;

typedef enum bench_average {
    BENCH_AVERAGE_RANK0,
    BENCH_AVERAGE_MEAN,
    BENCH_AVERAGE_MIN,
    BENCH_AVERAGE_MAX
} bench_average;

typedef enum bench_memory { BENCH_MEMORY_MALLOC, BENCH_MEMORY_TUTTI } bench_memory;
typedef enum bench_where { BENCH_DEVICE_HOST, BENCH_DEVICE_CUDA } bench_where;
typedef enum bench_life { BENCH_LIFE_PROCESSES, BENCH_LIFE_THREADS } bench_life;

typedef struct bench_options {
    int64_t threads, devices; /* -t, -g: their product is the number of ranks to start */
    int64_t device, life;     /* --device, --ranks */
    int64_t min_bytes, max_bytes, step_bytes, step_factor;
    int64_t iterations, warmup, grouped, cycles;
    int64_t per_iteration, skip; /* -I, -K */
    int64_t checks, blocking, average, timeout_s;
    int64_t cpu_time, timestamps, unalign;
    int64_t type, reduction; /* rows of bench_types, bench_reductions, or BENCH_ALL */
    int64_t root;
    int64_t touch, memory, bind;            /* --touch, --mem, --bind */
    int64_t graphs, registers, stream_null; /* -G, -R, -y: 0 for host memory */
    int64_t cta_policy, memory_report;      /* -x, -M: unset for host memory */
    int64_t parallel_init;
    int64_t compute_us;
    int64_t help;
    int64_t percentiles;
    const char *output, *csv; /* -J, --csv; NULL: none; point into argv */
} bench_options;

/* Reads the command line. Notes about flags that have no effect here go to `notes` (NULL: nowhere). A wrong flag or
 * value fails with TUTTI_ERR_ARGUMENT; the text names the nearest known one. */
tutti_status bench_options_parse(int argc, char **argv, FILE *notes, bench_options *options_out);

/* Is each iteration's time recorded? */
bool bench_options_times_each(const bench_options *options);

/* The help text. */
void bench_options_help(const char *program, FILE *out);

/* The size after `bytes` in the loop over sizes; more than max_bytes after the last one. */
size_t bench_options_next_bytes(const bench_options *options, size_t bytes);

/* The colour of `rank` from NCCL_TESTS_SPLIT_MASK or NCCL_TESTS_SPLIT; 0 when neither is set. */
tutti_status bench_options_color(int rank, int *color_out);

#endif
