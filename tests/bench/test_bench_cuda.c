/*
 * The benchmark programs on CUDA memory: tables, flags and error texts, on the stand-in for a GPU
 * (TUTTI_CUDA_MODULE), with ranks that share a GPU and with a GPU for each.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tutti/device.h>

#include "bench/values.h"
#include "tests/support/programs/perf_table.h"

TestSuite(bench_cuda, .timeout = 100);

#define ONE_GPU "env STANDIN_GPUS=1 "

Test(bench_cuda, every_program_is_right_where_ranks_share_a_gpu) {
    static const char *const programs[] = {
        "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "broadcast_perf", "reduce_perf",   "alltoall_perf",
        "sendrecv_perf",   "gather_perf",     "scatter_perf",        "alltoallv_perf", "hypercube_perf"};
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        char command[160];
        snprintf(command, sizeof command, ONE_GPU "%s --device cuda -t 2 -b 8 -e 32K -f 8 -n 2", programs[i]);
        perf_expect_good(command, 5);
        snprintf(command, sizeof command,
                 ONE_GPU "%s --device cuda -t 4 --ranks threads -b 600K -e 600K -n 2 -m 2 -u 1", programs[i]);
        perf_expect_good(command, 1);
    }
}

Test(bench_cuda, every_type_and_reduction_is_right) {
    perf_expect_good(
        ONE_GPU "all_reduce_perf --device cuda -t 3 --ranks threads -b 40000 -e 40000 -n 1 -w 0 -d all -o all", 72);
}

Test(bench_cuda, flags_for_gpus_work_together) {
    static const char *const flags[] = {"--mem tutti", "-R 1",         "-y 1",          "-z 1", "-z 2 -m 2", "-z 3",
                                        "-I 1",        "--touch -m 2", "--percentiles", "-C 1", "-a 3",      "-c 0"};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        char command[160];
        snprintf(command, sizeof command, ONE_GPU "all_reduce_perf --device cuda -t 2 -b 8 -e 8K -f 1024 -n 3 %s",
                 flags[i]);
        if (strcmp(flags[i], "-I 1") != 0) perf_expect_good(command, 2);
        else cr_expect_eq(perf_run(command).code, 0, "%s", command); /* it has more columns */
    }
}

/* The fake driver reports a MiB less free memory at each query. */
Test(bench_cuda, memory_that_was_used_is_reported_at_the_end) {
    char path[4096], command[8192];
    snprintf(path, sizeof path, "%s/tests/fake_driver", perf_build_folder());
    if (access(path, F_OK) != 0) cr_skip("the fake driver is built only with the CUDA module");
    snprintf(command, sizeof command, "env LD_LIBRARY_PATH='%s' all_reduce_perf --device cuda -t 2 -b 8 -e 8 -n 1 -M 1",
             path);
    perf_result out = perf_run(command);
    cr_expect_eq(out.code, 0, "%s", out.notes);
    cr_expect(strstr(out.notes,
                     "# Collective test concluded: all_reduce_perf\n# GPU memory usage     : Initialization 1.00 MB | "
                     "User-Allocated 1.00 MB | Collective 1.00 MB | Total  3.00 MB\n#\n"),
              "%s", out.notes);
}

Test(bench_cuda, a_rank_has_the_gpu_of_its_number) {
    perf_result out = perf_run("env STANDIN_GPUS=2 all_gather_perf --device cuda -g 3 -b 8K -e 8K -n 2");
    cr_expect_eq(out.code, 0, "%s", out.notes);
    cr_expect_eq(out.bad_rows + out.rows, 1, "%s", out.bad);
    cr_expect(strstr(out.notes, "# nThread 1 nGpus 3 "), "%s", out.notes);
    static const char *const lines[] = {"device  0 [0000:01:00] stand-in\n#  Rank  1 ",
                                        "device  1 [0000:02:00] stand-in\n#  Rank  2 ",
                                        "device  0 [0000:01:00] stand-in\n#"};
    for (size_t i = 0; i < 3; i++) cr_expect(strstr(out.notes, lines[i]), "%s is not in\n%s", lines[i], out.notes);
    out = perf_run("env NCCL_TESTS_DEVICE=1 all_reduce_perf --device cuda -b 8 -e 8 -n 1");
    cr_expect(strstr(out.notes, "device  1 [0000:02:00]"), "%s", out.notes);
    out = perf_run("env TUTTI_DEVICE=1 all_reduce_perf --device cuda -t 2 -b 8 -e 8 -n 1");
    cr_expect_null(strstr(out.notes, "device  0 "), "%s", out.notes);
    perf_expect_good("tuttirun --standalone --nproc_per_node 2 all_reduce_perf --device cuda -b 8 -e 8K -f 32 -n 3", 3);
}

static void expect_failure(const char *command, const char *words) {
    perf_result out = perf_run(command);
    cr_expect(out.code > 0 && out.code < 100, "%s: exit code %d\n%s", command, out.code, out.notes);
    cr_expect(strstr(out.notes, words), "%s does not say '%s':\n%s", command, words, out.notes);
}

Test(bench_cuda, impossible_runs_end_with_an_error_that_gives_the_reason) {
    expect_failure("env STANDIN_GPUS=0 all_reduce_perf --device cuda -t 2 -b 8 -e 8", "no CUDA-capable device");
    expect_failure("env STANDIN_FAIL=fill:3 all_reduce_perf --device cuda -b 8 -e 8", "# error: ");
    expect_failure("env TUTTI_CUDA_MODULE=/nowhere.so all_reduce_perf --device cuda -b 8 -e 8", "/nowhere.so");
    expect_failure("all_reduce_perf --device cuda -G 2 -b 8 -e 8", "no kernels");
    expect_failure("all_reduce_perf --device cuda --compute 5 -b 8 -e 8", "no kernels");
    expect_failure("all_reduce_perf --device cuda -M 1 -b 8 -e 8", "-M: ");
    expect_failure(ONE_GPU "STANDIN_FAIL=fill:3 all_reduce_perf --device cuda -t 2 --ranks threads -b 8 -e 8",
                   "made to fail");
}

Test(bench_cuda, a_missing_gpu_is_reported_once_with_what_to_do) {
    static const char *const ways[] = {"all_reduce_perf -t 3", "all_reduce_perf -t 3 --ranks threads",
                                       "tuttirun --standalone --nproc-per-node 3 all_reduce_perf"};
    char command[256];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(command, sizeof command, "env STANDIN_GPUS=0 %s --device cuda -b 8 -e 8", ways[i]);
        perf_result out = perf_run(command);
        const char *reason = strstr(out.notes, "no CUDA-capable device");
        cr_expect(out.code > 0 && out.code < 100, "%s: exit code %d\n%s", command, out.code, out.notes);
        cr_assert_not_null(reason, "%s: %s", command, out.notes);
        cr_expect_null(strstr(reason + 1, "no CUDA-capable device"), "%s: %s", command, out.notes);
        cr_expect_not_null(strstr(reason, "; leave out --device cuda to measure host memory"), "%s: %s", command,
                           out.notes);
    }
}

/* A user with a GPU for each rank does not expect calls to go through host memory. */
Test(bench_cuda, calls_through_host_memory_are_reported_once_with_the_reason) {
    perf_result out =
        perf_run("env STANDIN_GPUS=2 TUTTI_NCCL_LIBRARY=/no/such/libnccl.so all_reduce_perf --device cuda -t 2 "
                 "-b 8 -e 8K -f 32 -n 3");
    cr_expect_eq(out.code, 0, "%s", out.notes);
    const char *told = strstr(out.notes, "go through host memory");
    cr_assert_not_null(told, "%s", out.notes);
    cr_expect_null(strstr(told + 1, "go through host memory"), "%s", out.notes);
    cr_expect_not_null(strstr(told, "/no/such/libnccl.so: cannot open shared object file"), "%s", out.notes);
    out = perf_run("env STANDIN_GPUS=2 TUTTI_ALGORITHM=staged all_reduce_perf --device cuda -t 2 -b 8 -e 8 -n 3");
    cr_expect_null(strstr(out.notes, "go through host memory"), "%s", out.notes); /* the user chose this */
}

Test(bench_cuda, each_wrong_element_in_a_gpu_is_counted) {
    enum { COUNT = 150000 }; /* two periods and more */
    bench_pattern pattern = {.type = &bench_types[BENCH_TYPE_FLOAT], .nranks = 3, .round = 7, .on_gpu = true};
    void *memory;
    cr_assert_eq(tutti_device_use(0), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(tutti_mem_alloc_cuda(COUNT * sizeof(float), &memory), TUTTI_OK);
    float *elements = memory;
    cr_assert_eq(bench_values_fill(&pattern, 2, 17, COUNT, memory), TUTTI_OK);
    cr_expect_eq(bench_values_check_moved(&pattern, 2, 17, COUNT, memory), 0);
    cr_expect_gt(bench_values_check_moved(&pattern, 1, 17, COUNT, memory), COUNT / 2);
    cr_assert_eq(tutti_device_fill(elements + 70000, 0x11, 2 * sizeof(float), NULL), TUTTI_OK);
    cr_assert_eq(tutti_device_fill(elements + COUNT - 1, 0x11, sizeof(float), NULL), TUTTI_OK);
    cr_expect_eq(bench_values_check_moved(&pattern, 2, 17, COUNT, memory), 3);
    cr_assert_eq(tutti_device_fill(memory, 0, COUNT * sizeof(float), NULL), TUTTI_OK);
    cr_expect_eq(bench_values_check_untouched(&pattern, COUNT, memory), 0);
    pattern.reduction = TUTTI_AVG;
    cr_expect_gt(bench_values_check_reduced(&pattern, 0, COUNT, memory), COUNT / 2);
    tutti_mem_free(memory);
}
