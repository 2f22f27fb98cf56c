/*
 * Rows of the operator table with difficult shapes, and their tests.
 */
#ifndef TUTTI_TESTS_OPS_ROWS_H
#define TUTTI_TESTS_OPS_ROWS_H

#include "ops/call.h"

/* Values of an input's elements. */
typedef enum row_values {
    VALUES_WHOLE = 0, /* -3 to 3: sums and products of them are exact */
    VALUES_POSITIVE,  /* 1 to 7 */
    VALUES_QUARTERS,  /* -1.5 to 1.5 in quarters */
    VALUES_INDEX,     /* 0 to `limit` - 1 */
    VALUES_MOMENTS    /* [2, c]: -3 to 3, then 500 to 506 */
} row_values;

typedef struct row_input {
    tutti_type type;
    int ndims;
    int64_t shape[TUTTI_MOST_DIMS];
    row_values values;
    int64_t limit;
} row_input;

/* One row with arguments. */
typedef struct row_case {
    const tutti_ops_row *row;
    const void *params;
    int ninputs;
    row_input inputs[5];
    double tolerance; /* relative tolerance for inexact results; 0: equal */
} row_case;

/* Ended by a row with NULL. */
extern const row_case row_cases[];
/* Wrong rows: each must be detected. */
extern const row_case wrong_cases[];

/* The ranks of the communicator, all of them as `axes`, and the memory. CUDA memory: on the thread's GPU, in the
 * stream; threads of one process need one stream each. */
typedef struct row_place {
    tutti_comm *comm;
    const int *axes;
    int naxes;
    tutti_memory memory;
    void *stream;
    int most_runs; /* runs of a case, in each round; 0: 400 */
} row_place;

/* Runs all signatures of a case there, with balanced and with odd cuts. Returns the number of runs, and of those
 * whose result differs from one rank's in host memory; `text` describes the first. */
typedef struct row_verdict {
    int runs, wrong;
    char text[400];
} row_verdict;
tutti_status judge_row(const row_place *place, const row_case *c, row_verdict *verdict_out);

#endif
