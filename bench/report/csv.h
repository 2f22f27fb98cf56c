/*
 * The results as CSV: a line of names, then a line per row of the table, with the numbers and percentiles of the
 * JSON file. Fields that were not measured or not checked are empty.
 */
#ifndef TUTTI_BENCH_CSV_H
#define TUTTI_BENCH_CSV_H

#include "bench/report/report.h"

typedef struct bench_csv bench_csv;

/* Opens `path` as a new file; if it exists, path.0, path.1, ... Prints the name on standard output. */
tutti_status bench_csv_open(const char *path, bench_csv **csv_out);

/* Each accepts NULL and then does nothing. */
void bench_csv_header(bench_csv *csv, const bench_options *options);
void bench_csv_row(bench_csv *csv, const char *program, int nranks, const bench_row *row);

/* Returns 0 if everything was written. */
int bench_csv_close(bench_csv *csv);

#endif
