/*
 * The benchmark programs as users run them: each test starts one, reads its table by splitting lines at white space,
 * and checks the exit code.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/programs/perf_table.h"

TestSuite(bench_programs, .timeout = 100);

Test(bench_programs, every_program_prints_a_table_that_parses_and_nothing_is_wrong) {
    static const char *const programs[] = {
        "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "broadcast_perf", "reduce_perf",
        "alltoall_perf",   "sendrecv_perf",   "gather_perf",         "scatter_perf",   "alltoallv_perf"};
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        char command[128];
        snprintf(command, sizeof command, "%s -t 2 -b 8 -e 64K -f 2 -n 5", programs[i]);
        perf_expect_good(command, 14);
        snprintf(command, sizeof command, "%s -t 3 -b 300K -e 300K -n 2 -m 3 -r -1 -u 1 -c 2", programs[i]);
        perf_expect_good(command, strstr("broadcast_perf reduce_perf gather_perf scatter_perf", programs[i]) ? 3 : 1);
    }
}

Test(bench_programs, hypercube_takes_powers_of_two_and_says_so) {
    perf_expect_good("hypercube_perf -t 2 -b 8 -e 64K -f 2 -n 5", 14);
    perf_expect_good("hypercube_perf -t 4 -b 300K -e 300K -n 2 -m 3 -u 1 -c 2 -d all", 12);
    perf_expect_good("env NCCL_TESTS_SPLIT=MOD3 hypercube_perf -t 6 -b 8K -e 8K -n 2", 1);
    perf_result three = perf_run("hypercube_perf -t 3 -b 8 -e 8");
    cr_expect_neq(three.code, 0);
    cr_expect(strstr(three.notes, "(a power of two), not 3"), "%s", three.notes);
    perf_result split = perf_run("env NCCL_TESTS_SPLIT=MOD2 hypercube_perf -t 6 -b 8 -e 8");
    cr_expect_neq(split.code, 0);
    cr_expect(strstr(split.notes, "(a power of two), not 3"), "%s", split.notes);
}

/* Writes a file of traffic for 3 ranks, and returns the variable that names it to a program. */
static const char *traffic_file(char *path) {
    static char words[128];
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fprintf(file, "0 4096 100\n5000 0 33\n0 0 70000\n");
    fclose(file);
    snprintf(words, sizeof words, "env NCCL_TESTS_ALLTOALLV_MATRIX_FILE='%s'", path);
    return words;
}

Test(bench_programs, uneven_parts_come_from_the_environment) {
    char path[] = "/tmp/tutti-traffic-XXXXXX", command[256];
    close(mkstemp(path));
    const char *variable = traffic_file(path);
    perf_expect_good("env NCCL_TESTS_ALLTOALLV_SPREAD=0.3 alltoallv_perf -t 4 -b 60K -e 60K -n 2 -d all -c 2 --touch",
                     12);
    snprintf(command, sizeof command, "%s alltoallv_perf -t 3 -b 128K -e 128K -n 2 -m 2 -d all -u 1", variable);
    perf_expect_good(command, 12);
    snprintf(command, sizeof command, "%s NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY=1 alltoallv_perf -t 3 -b 1M -e 1M -n 2",
             variable);
    perf_result summary = perf_run(command);
    cr_expect(strstr(summary.notes,
                     "# NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: mode=matrix nranks=3 matrix_dim=3 scale=1.000 "
                     "time_usec="),
              "%s", summary.notes);
    cr_expect(strstr(summary.notes, "#   rank=1 send_bytes=5024 recv_bytes=4096 alg_bw="), "%s", summary.notes);
    snprintf(command, sizeof command, "%s alltoallv_perf -t 3 -b 64K -e 64K", variable);
    perf_result small = perf_run(command);
    cr_expect_neq(small.code, 0);
    cr_expect(strstr(small.notes, "70128 bytes"), "%s", small.notes);
    snprintf(command, sizeof command, "%s alltoallv_perf -t 4 -b 1M -e 1M", variable);
    cr_expect(strstr(perf_run(command).notes, "is for 3 ranks, and there are 4"));
    snprintf(command, sizeof command, "%s alltoallv_perf -t 3 -b 1M -e 2M", variable);
    cr_expect(strstr(perf_run(command).notes, "-b and -e"));
    unlink(path);
}

Test(bench_programs, percentiles_and_csv_leave_the_table_as_it_is) {
    char folder[] = "/tmp/tutti-bench-XXXXXX", command[256], line[2048];
    int lines = 0;
    cr_assert_not_null(mkdtemp(folder));
    snprintf(command, sizeof command, "all_reduce_perf -t 2 -b 8 -e 64 -f 2 -n 9 --percentiles --csv %s/a.csv", folder);
    perf_expect_good(command, 4);
    snprintf(command, sizeof command, "%s/a.csv", folder);
    FILE *file = fopen(command, "r");
    cr_assert_not_null(file);
    for (; fgets(line, sizeof line, file) != NULL; lines++)
        cr_expect_eq(strncmp(line, lines == 0 ? "program," : "all_reduce_perf,2,", lines == 0 ? 8 : 18), 0, "%s", line);
    fclose(file);
    cr_expect_eq(lines, 5);
    unlink(command);
    rmdir(folder);
    perf_result out = perf_run("all_reduce_perf -t 2 -b 8 -e 8 -n 9 --percentiles");
    cr_expect(strstr(out.notes, "# percentiles (us) of 8 bytes: out-of-place p50 "), "%s", out.notes);
}

Test(bench_programs, every_type_and_reduction_is_right) {
    perf_expect_good("all_reduce_perf -t 3 -b 40000 -e 40000 -n 1 -w 0 -d all -o all", 72);
    perf_expect_good("reduce_scatter_perf -t 2 -b 40000 -e 40000 -n 1 -w 0 -d all -o all --mem=tutti", 72);
    perf_expect_good("alltoall_perf -t 4 -b 40000 -e 40000 -n 1 -w 0 -d all --touch --bind", 12);
}

Test(bench_programs, ranks_may_be_threads_of_one_process) {
    perf_expect_good("all_reduce_perf -t 3 --ranks threads -b 8 -e 64K -f 8 -n 5 -C 1", 5);
    perf_expect_good("alltoall_perf -t 2 -g 2 --ranks threads -b 40000 -e 40000 -n 2 -d all --bind --mem tutti", 12);
    perf_result out = perf_run("all_gather_perf -t 3 --ranks threads -b 8K -e 8K -n 1");
    int pids[3] = {0};
    const char *line = strstr(out.notes, "#  Rank  0 ");
    for (int i = 0; i < 3 && line != NULL; i++, line = strchr(line, '\n') + 1)
        cr_expect_eq(sscanf(line, "#  Rank %*d Group %*d Pid %d", &pids[i]), 1, "%s", out.notes);
    cr_expect(pids[0] > 0 && pids[0] == pids[1] && pids[1] == pids[2], "%s", out.notes);
}

Test(bench_programs, one_rank_says_that_it_is_alone) {
    perf_expect_good("all_reduce_perf -b 8 -e 1K -f 2 -n 2", 8);
    perf_result out = perf_run("env OMPI_COMM_WORLD_SIZE=4 all_reduce_perf -b 8 -e 8 -n 1");
    cr_expect(strstr(out.notes, "# One rank: OMPI_COMM_WORLD_SIZE=4 is set"), "%s", out.notes);
}

Test(bench_programs, a_launcher_s_processes_are_the_ranks) {
    perf_expect_good("tuttirun --standalone --nproc_per_node 2 all_reduce_perf -b 8 -e 8K -f 2 -n 3", 11);
    perf_expect_good(
        "env NCCL_TESTS_SPLIT=MOD2 tuttirun --standalone --nproc_per_node 4 all_gather_perf -b 8K -e 8K -n 3", 1);
    perf_result out = perf_run("tuttirun --standalone --nproc_per_node 2 all_reduce_perf -t 2");
    cr_expect_neq(out.code, 0);
    cr_expect(strstr(out.notes, "leave them out"), "%s", out.notes);
}

Test(bench_programs, exit_code_reports_missing_bandwidth_and_wrong_flags) {
    perf_result slow = perf_run("env NCCL_TESTS_MIN_BW=1000000 all_reduce_perf -t 2 -b 8 -e 8 -n 1");
    cr_expect_neq(slow.code, 0);
    cr_expect(strstr(slow.notes, " FAILED\n"), "%s", slow.notes);
    perf_result wrong = perf_run("all_reduce_perf --minbyts 8");
    cr_expect_neq(wrong.code, 0);
    cr_expect(strstr(wrong.notes, "--minbytes"), "%s", wrong.notes);
}

Test(bench_programs, kernels_are_chosen_by_an_existing_name) {
    if (access("bin/kernels_perf", X_OK) != 0) cr_skip_test("there is no kernels_perf");
    perf_result wrong = perf_run("kernels_perf --bytes 64K --rounds 1 --only nothinglikethis");
    cr_expect_neq(wrong.code, 0);
    cr_expect(strstr(wrong.notes, "--only nothinglikethis: no kernel's name contains it; there are copy, "), "%s",
              wrong.notes);
    cr_expect(strstr(wrong.notes, "relu"), "%s", wrong.notes);
    cr_expect_eq(perf_run("kernels_perf --bytes 64K --rounds 1 --only copy").code, 0);
}

/* The pid in rank 1's line. */
static int pid_of_rank_1(const char *line) {
    int pid = 0;
    return sscanf(line, "#  Rank  1 Group %*d Pid %d", &pid) == 1 ? pid : 0;
}

Test(bench_programs, a_killed_rank_ends_the_program) {
    char line[1024];
    int victim = 0;
    struct timespec start, end;
    perf_result out = {.columns = 13};
    snprintf(line, sizeof line, "exec timeout 60 '%s/bin/all_reduce_perf' -t 3 -b 8 -e 8 -n 10 -N 0 2>&1",
             perf_build_folder());
    FILE *pipe = popen(line, "r");
    cr_assert_not_null(pipe);
    while (out.rows < 10 && fgets(line, sizeof line, pipe) != NULL) {
        if (victim == 0) victim = pid_of_rank_1(line);
        perf_read_line(line, &out);
    }
    cr_assert_gt(victim, 0, "%s", out.notes);
    clock_gettime(CLOCK_MONOTONIC, &start);
    kill(victim, SIGKILL);
    while (fgets(line, sizeof line, pipe) != NULL) perf_read_line(line, &out);
    out.code = perf_exit_code(pclose(pipe));
    clock_gettime(CLOCK_MONOTONIC, &end);
    cr_expect_eq(out.code, 128 + SIGKILL);
    cr_expect(strstr(out.notes, "rank 1 (pid "), "%s", out.notes);
    cr_expect_lt(end.tv_sec - start.tv_sec, 6, "it took %ld s", (long)(end.tv_sec - start.tv_sec));
}
