/*
 * A whole benchmark program, for the collective whose row has the given name.
 */
#ifndef TUTTI_BENCH_PERF_H
#define TUTTI_BENCH_PERF_H

/* Returns the process's exit code: 0 if no call failed, no element was wrong, and the bandwidth was as demanded. */
int bench_perf_main(const char *row_name, int argc, char **argv);

#endif
