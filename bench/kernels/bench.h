/*
 * What the rows of kernels_perf (rows.c, boxes.c, operators.c) share with the program (main.c): a compute with memory, a list of rows, and how
 * a row is timed (timing.c).
 *
 * Regions are equal pieces of memory that rows read and write as they like: random numbers at first, the last one zeros. What
 * kernels take for labels is never written but by them.
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
    const tutti_device *device; /* of reductions; NULL: the host's */
    tutti_real *regions[BENCH_REGIONS];
    size_t bytes; /* of a region; a multiple of 4096 */
    int rounds;
    tutti_precision precision;
    tutti_status failed; /* of a reduction; what the compute's table starts, the compute keeps */
    /* Memory of the compute. */
    tutti_step_values *values;
    double *sums;    /* two */
    int32_t *labels; /* BENCH_LABELS zeros */
    int32_t *where;  /* of pooling: a quarter of a region */
} bench_lab;

/* Sizes and choices of a row; each function of rows.c takes those that it knows. */
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
    char text[48]; /* the shape, for people */
    bench_shape shape;
    double bytes; /* that must be read and written */
    double flops; /* of products; 0: none */
    void (*run)(bench_lab *lab, const bench_shape *shape);
    void (*without)(bench_lab *lab, const bench_shape *shape); /* whose time is taken off; NULL: nothing's */
    const char *bound; /* what should limit it: "memory", "access" (memory in pieces), "arithmetic", "latency" */
    double us;         /* median; below 0: not measured, or less than what was taken off */
} bench_kernel;

/* Fills the list; gives its length. The first row is the copy that the others are compared with, the last one the largest
 * product. */
int bench_kernels_list(const bench_lab *lab, bench_kernel rows[BENCH_ROWS_MOST]);

/* Those of boxes.c, of which bench_kernels_list makes a part of its list. */
int bench_kernels_list_boxes(const bench_lab *lab, bench_kernel *rows);

/* Those of operators.c; none with a GPU. */
int bench_kernels_list_operators(const bench_lab *lab, bench_kernel *rows);

/* The median over lab->rounds of the time of one call; each round makes enough calls to take some ms. */
tutti_status bench_kernels_time(bench_lab *lab, bench_kernel *row);

#endif
