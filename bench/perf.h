/*
 * The whole of a benchmark program, for the collective whose row has this name.
 */
#ifndef TUTTI_BENCH_PERF_H
#define TUTTI_BENCH_PERF_H

/* Gives the process's exit code: 0 when all went well, nothing was wrong and the bandwidth was as demanded. */
int bench_perf_main(const char *row_name, int argc, char **argv);

#endif
