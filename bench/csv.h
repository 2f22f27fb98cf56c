/*
 * The results as CSV: a line of names, then a line per row of the table, with the numbers and percentiles of the
 * JSON file. What was not measured or not checked is an empty field.
 */
#ifndef TUTTI_BENCH_CSV_H
#define TUTTI_BENCH_CSV_H

#include "bench/report.h"

typedef struct bench_csv bench_csv;

/* Opens `path` as a new file; where that exists, path.0, path.1, ... Says on standard output which it is. */
tutti_status bench_csv_open(const char *path, bench_csv **csv_out);

/* Each accepts NULL and then does nothing. */
void bench_csv_header(bench_csv *csv, const bench_options *options);
void bench_csv_row(bench_csv *csv, const char *program, int nranks, const bench_row *row);

/* 0 when all was written. */
int bench_csv_close(bench_csv *csv);

#endif
