/*
 * The declarations shared by the rows of kernels_perf (rows.c, boxes.c, operators.c) and the program (main.c): a
 * compute with memory, a list of rows, and the timing of a row (timing.c).
 *
 * Regions are equal pieces of memory that rows may read and write: random numbers at first, the last one zeros. Only
 * kernels write the memory that they use for labels.
 */
#ifndef TUTTI_BENCH_KERNELS_BENCH_H
#define TUTTI_BENCH_KERNELS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/box.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#define BENCH_REGIONS   9 /* eight sources and a result */
#define BENCH_ROWS_MOST 160
#define BENCH_LABELS    10000

typedef struct bench_lab {
    const tutti_kernels *kernels;
    tutti_compute *compute;
    const tutti_device *device; /* computes reductions; NULL: the host */
    tutti_real *regions[BENCH_REGIONS];
    size_t bytes; /* size of a region; a multiple of 4096 */
    int rounds;
    tutti_precision precision;
    tutti_status failed; /* the first failure of a reduction; the compute records those of its table's kernels */
    /* In the compute's memory. */
    tutti_step_values *values;
    double *sums;    /* two elements */
    int32_t *labels; /* BENCH_LABELS zeros */
    int32_t *where;  /* for pooling: a quarter of a region */
} bench_lab;

/* Sizes and choices of a row; each function of rows.c uses those that it needs. */
typedef struct bench_shape {
    size_t count;
    int batch, sources, pieces;
    tutti_type type;
    tutti_reduction reduction;
    tutti_dense dense;
    tutti_conv conv;
    tutti_box_copy box;
} bench_shape;

typedef struct bench_kernel {
    const char *name;
    char text[48]; /* the shape as text */
    bench_shape shape;
    double bytes; /* that must be read and written */
    double flops; /* for products; 0: none */
    void (*run)(bench_lab *lab, const bench_shape *shape);
    void (*without)(bench_lab *lab, const bench_shape *shape); /* its time is subtracted; NULL: none */
    const char *bound; /* what should limit it: "memory", "access" (memory in pieces), "arithmetic", "latency" */
    double us;         /* median; below 0: not measured, or less than the subtracted time */
} bench_kernel;

/* Fills the list; returns its length. The first row is the copy that the others are compared with, the last one the
 * largest product. */
int bench_kernels_list(const bench_lab *lab, bench_kernel rows[BENCH_ROWS_MOST]);

/* Fills in the rows of boxes.c; bench_kernels_list calls it for a part of its list. */
int bench_kernels_list_boxes(const bench_lab *lab, bench_kernel *rows);

/* Fills in the rows of operators.c; none with a GPU. */
int bench_kernels_list_operators(const bench_lab *lab, bench_kernel *rows);

/* The median over lab->rounds of the time of one call; each round makes enough calls to take some ms. */
tutti_status bench_kernels_time(bench_lab *lab, bench_kernel *row);

#endif
