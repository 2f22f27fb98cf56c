/*
 * The main function of each benchmark program; the build sets which collective it measures.
 */
#include "bench/perf.h"

int main(int argc, char **argv) {
    return bench_perf_main(BENCH_PROGRAM, argc, argv);
}
