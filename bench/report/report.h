/*
 * The text that nccl-tests prints, line by line: start, ranks, header, rows, footer. Lines that other programs parse
 * are identical to the last space. Each function writes to the given stream; only rank 0 calls them.
 */
#ifndef TUTTI_BENCH_REPORT_H
#define TUTTI_BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "bench/options.h"

/* One rank's description of itself. */
typedef struct bench_device {
    int rank, group, pid, index;
    char host[64];
    char address[16]; /* a GPU's PCI address: "0000:00:00" */
    char name[128];
} bench_device;

/* Times of single iterations, in microseconds; NULL times: none were taken. */
typedef struct bench_iterations {
    const double *times_us;      /* count: the slowest rank's time of each iteration */
    const double *rank_times_us; /* nranks times count, or NULL */
    int count, nranks, skipped;  /* the statistics leave out the first `skipped` */
    double min_us, max_us, mean_us, p50_us, p95_us, p99_us, deviation_us, variation_percent;
} bench_iterations;

/* One half of a row: out of place or in place. */
typedef struct bench_half {
    double time_us, alg_bw, bus_bw; /* GB/s */
    double elapsed_s;               /* per operation; time_us is processor time with -C */
    double compute_us;              /* of --compute's work alone, per iteration */
    bool checked;
    int64_t wrong; /* elements */
    bench_iterations iterations;
} bench_half;

typedef struct bench_row {
    size_t bytes, count;
    const char *type, *reduction;
    int root;
    bench_half out_of_place, in_place;
} bench_row;

/* -M: the decrease of the GPU's free memory during each phase; negative: an increase. */
typedef struct bench_memory_use {
    int64_t initialization_bytes; /* communicators */
    int64_t buffer_bytes;
    int64_t collective_bytes; /* everything after them */
} bench_memory_use;

typedef struct bench_summary {
    int failed_checks;              /* checks with wrong elements, counted once per rank */
    double bus_bw;                  /* mean over all halves of rows, GB/s */
    double least_bw;                /* NCCL_TESTS_MIN_BW, -1: not set */
    const char *error;              /* NULL or "": none */
    const bench_memory_use *memory; /* NULL: not requested */
} bench_summary;

/* Fills the statistics of `iterations` from its times. */
tutti_status bench_iterations_summarize(bench_iterations *iterations);

/* "%*.2f" in `width` characters, with fewer digits or an exponent if that does not fit; text_out takes
 * width + 1 bytes. */
void bench_report_number(double value, int width, char *text_out);

/* The local time in nccl-tests' format; text_out takes 32 bytes. */
void bench_report_time(char *text_out);

/* 0.1.0 is 100: NCCL's scheme since 2.9. */
int bench_report_version_code(const char *version);

void bench_report_start(FILE *out, const char *program, const bench_options *options);
void bench_report_device(FILE *out, const bench_device *device);
void bench_report_header(FILE *out, const bench_options *options);
void bench_report_row(FILE *out, const bench_options *options, const bench_row *row);
/* The comment line of --percentiles, printed below its row. */
void bench_report_percentiles(FILE *out, const bench_row *row);
/* The comment line of --compute, printed below its row. */
void bench_report_compute(FILE *out, const bench_options *options, const bench_row *row);
void bench_report_footer(FILE *out, const char *program, const bench_summary *summary);

/* Creates the first of path, path.0, path.1 ... that does not exist, and stores its name in name_out. NULL: see
 * errno. */
FILE *bench_report_open_new(const char *path, char *name_out, size_t capacity);

/* Is the mean bandwidth at least 0.9 of NCCL_TESTS_MIN_BW? */
bool bench_report_fast_enough(const bench_summary *summary);

#endif
