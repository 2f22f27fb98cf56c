/*
 * What the benchmarks report about the machine they run on.
 */
#ifndef TUTTI_BENCH_MACHINE_H
#define TUTTI_BENCH_MACHINE_H

#include <stddef.h>

#include "bench/report/report.h"

/* Host name, pid and processor, as a line under "# Using devices" shows them. */
void bench_machine_describe(int rank, int group, int local_rank, bench_device *device_out);

/* Memory of the machine, or of the container if that has less. */
size_t bench_machine_memory_bytes(void);

/* The largest buffer for each of `ranks` ranks that share `all` bytes of memory: that memory less a reserve as in
 * nccl-tests, in `buffers` parts. */
size_t bench_machine_buffer_bytes(size_t all, int ranks, int buffers);

/* The name of a variable by which a launcher that Tutti does not support shows that it started several processes;
 * NULL if there is none. */
const char *bench_machine_foreign_launcher(void);

#endif
