/*
 * Rows of the operator table at shapes that hurt, for what judges them.
 */
#ifndef TUTTI_TESTS_OPS_ROWS_H
#define TUTTI_TESTS_OPS_ROWS_H

#include "ops/call.h"

/* What an input's elements are. */
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
    double tolerance; /* relative, of results that are not exact; 0: equal */
} row_case;

/* Ended by a row of NULL. */
extern const row_case row_cases[];
/* Rows that say something wrong: each must be caught. */
extern const row_case wrong_cases[];

/* On which ranks of the communicator, all of them as `axes`, and in which memory. CUDA's: on the thread's GPU, in the stream,
 * of which threads of one process need one each. */
typedef struct row_place {
    tutti_comm *comm;
    const int *axes;
    int naxes;
    tutti_memory memory;
    void *stream;
    int most_runs; /* of a case, in each round; 0: 400 */
} row_place;

/* Tries all signatures of a case there, with balanced and with odd cuts. Gives the number of runs, and of those whose result is not
 * that of one rank in host memory; `text` says the first. */
typedef struct row_verdict {
    int runs, wrong;
    char text[400];
} row_verdict;
tutti_status judge_row(const row_place *place, const row_case *c, row_verdict *verdict_out);

#endif
