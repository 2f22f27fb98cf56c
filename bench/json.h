/*
 * The results as JSON, in nccl-tests' layout (file version 3) with its peculiarities: flags are the strings "true"
 * and "false", the root is a padded string, not-a-number is "nan". Values of environment variables whose names
 * speak of a secret are left out.
 */
#ifndef TUTTI_BENCH_JSON_H
#define TUTTI_BENCH_JSON_H

#include "bench/report.h"

typedef struct bench_json bench_json;

/* Opens `path` as a new file; where that exists, path.0, path.1, ... Says on standard output which it is. Gives
 * NULL, with a line that says why, when nothing can be written or the name does not end in ".json". */
bench_json *bench_json_open(const char *path, int argc, char **argv);

/* Each accepts NULL and then does nothing. Order: config, header, rows, footer, close. */
void bench_json_config(bench_json *json, const bench_options *options, const bench_device *devices, int ndevices);
void bench_json_header(bench_json *json);
void bench_json_row(bench_json *json, const bench_options *options, const bench_row *row);
void bench_json_footer(bench_json *json, const bench_summary *summary);

/* Ends what is still open, so that the file is valid JSON after a failure too. 0 when all was written. */
int bench_json_close(bench_json *json);

#endif
