/*
 * The results as JSON, in nccl-tests' layout (file version 3) with its peculiarities: flags are the strings "true"
 * and "false", the root is a padded string, not-a-number is "nan". Values of environment variables whose names
 * suggest a secret are left out.
 */
#ifndef TUTTI_BENCH_JSON_H
#define TUTTI_BENCH_JSON_H

#include "bench/report/report.h"

typedef struct bench_json bench_json;

/* Opens `path` as a new file; if it exists, path.0, path.1, ... Prints the name on standard output. Returns NULL, and
 * prints the reason, if nothing can be written or the name does not end in ".json". */
bench_json *bench_json_open(const char *path, int argc, char **argv);

/* Each accepts NULL and then does nothing. Order: config, header, rows, footer, close. */
void bench_json_config(bench_json *json, const bench_options *options, const bench_device *devices, int ndevices);
void bench_json_header(bench_json *json);
void bench_json_row(bench_json *json, const bench_options *options, const bench_row *row);
void bench_json_footer(bench_json *json, const bench_summary *summary);

/* Closes all open brackets, so that the file is valid JSON after a failure, too. Returns 0 if everything was
 * written. */
int bench_json_close(bench_json *json);

#endif
