/*
 * The benchmark programs as others run them: start one, read its table by splitting lines at white space, and look at
 * the exit code.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

TestSuite(bench_programs, .timeout = 100);

/* What a run printed. */
typedef struct result {
    int columns;        /* that a row must have */
    int rows, bad_rows; /* bad: not as many columns, wrong elements, or no positive time */
    char bad[512];      /* the first bad row */
    char notes[8192];   /* lines that begin with '#', and messages */
    int code;           /* of the exit */
} result;

static const char *build_folder(void) {
    const char *folder = getenv("TUTTI_BUILD");
    return folder != NULL ? folder : ".";
}

/* "0" or, where nothing was checked, "N/A". */
static int is_right(const char *column) {
    return strcmp(column, "0") == 0 || strcmp(column, "N/A") == 0;
}

static void read_row(const char *line, result *out) {
    char copy[512], *columns[32];
    int count = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " \n"); word != NULL && count < 32; word = strtok(NULL, " \n"))
        columns[count++] = word;
    if (count == 0) return;
    out->rows++;
    if (count < 8) {
        out->bad_rows++;
        return;
    }
    char **in_place = &columns[count - 4], **out_of_place = &columns[count - 8]; /* time, algbw, busbw, wrong */
    if (count == out->columns && is_right(out_of_place[3]) && is_right(in_place[3]) && atof(out_of_place[0]) > 0 &&
        atof(in_place[0]) > 0)
        return;
    if (out->bad_rows++ == 0) snprintf(out->bad, sizeof out->bad, "%s", line);
}

static void read_line(const char *line, result *out) {
    if (line[0] == ' ' || line[0] == '\n') read_row(line, out);
    else strncat(out->notes, line, sizeof out->notes - strlen(out->notes) - 1);
}

static int exit_code(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs "<build>/bin/<command>"; messages count as notes. */
static result run(const char *command) {
    char line[1024];
    result out = {.columns = strstr(command, "hypercube_perf") != NULL ? 12 : 13};
    snprintf(line, sizeof line, "cd '%s/bin' && PATH=.:$PATH timeout 60 %s 2>&1", build_folder(), command);
    FILE *pipe = popen(line, "r");
    cr_assert_not_null(pipe);
    while (fgets(line, sizeof line, pipe) != NULL) read_line(line, &out);
    out.code = exit_code(pclose(pipe));
    return out;
}

static void expect_good(const char *command, int rows) {
    result out = run(command);
    cr_expect_eq(out.code, 0, "%s: exit code %d\n%s", command, out.code, out.notes);
    cr_expect_eq(out.rows, rows, "%s: %d rows, not %d\n%s", command, out.rows, rows, out.notes);
    cr_expect_eq(out.bad_rows, 0, "%s: %d bad rows, first: %s", command, out.bad_rows, out.bad);
    cr_expect(strstr(out.notes, "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "), "%s\n%s", command,
              out.notes);
}

Test(bench_programs, every_program_prints_a_table_that_parses_and_nothing_is_wrong) {
    static const char *const programs[] = {
        "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "broadcast_perf", "reduce_perf",
        "alltoall_perf",   "sendrecv_perf",   "gather_perf",         "scatter_perf",   "alltoallv_perf"};
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        char command[128];
        snprintf(command, sizeof command, "%s -t 2 -b 8 -e 64K -f 2 -n 5", programs[i]);
        expect_good(command, 14);
        snprintf(command, sizeof command, "%s -t 3 -b 300K -e 300K -n 2 -m 3 -r -1 -u 1 -c 2", programs[i]);
        expect_good(command, strstr("broadcast_perf reduce_perf gather_perf scatter_perf", programs[i]) ? 3 : 1);
    }
}

Test(bench_programs, hypercube_takes_powers_of_two_and_says_so) {
    expect_good("hypercube_perf -t 2 -b 8 -e 64K -f 2 -n 5", 14);
    expect_good("hypercube_perf -t 4 -b 300K -e 300K -n 2 -m 3 -u 1 -c 2 -d all", 12);
    expect_good("env NCCL_TESTS_SPLIT=MOD3 hypercube_perf -t 6 -b 8K -e 8K -n 2", 1);
    result three = run("hypercube_perf -t 3 -b 8 -e 8");
    cr_expect_neq(three.code, 0);
    cr_expect(strstr(three.notes, "(a power of two), not 3"), "%s", three.notes);
    result split = run("env NCCL_TESTS_SPLIT=MOD2 hypercube_perf -t 6 -b 8 -e 8");
    cr_expect_neq(split.code, 0);
    cr_expect(strstr(split.notes, "(a power of two), not 3"), "%s", split.notes);
}

/* Writes a file of traffic for 3 ranks, and gives the words that name it to a program. */
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
    expect_good("env NCCL_TESTS_ALLTOALLV_SPREAD=0.3 alltoallv_perf -t 4 -b 60K -e 60K -n 2 -d all -c 2 --touch", 12);
    snprintf(command, sizeof command, "%s alltoallv_perf -t 3 -b 128K -e 128K -n 2 -m 2 -d all -u 1", variable);
    expect_good(command, 12);
    snprintf(command, sizeof command, "%s NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY=1 alltoallv_perf -t 3 -b 1M -e 1M -n 2",
             variable);
    result summary = run(command);
    cr_expect(strstr(summary.notes,
                     "# NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: mode=matrix nranks=3 matrix_dim=3 scale=1.000 "
                     "time_usec="),
              "%s", summary.notes);
    cr_expect(strstr(summary.notes, "#   rank=1 send_bytes=5024 recv_bytes=4096 alg_bw="), "%s", summary.notes);
    snprintf(command, sizeof command, "%s alltoallv_perf -t 3 -b 64K -e 64K", variable);
    result small = run(command);
    cr_expect_neq(small.code, 0);
    cr_expect(strstr(small.notes, "70128 bytes"), "%s", small.notes);
    snprintf(command, sizeof command, "%s alltoallv_perf -t 4 -b 1M -e 1M", variable);
    cr_expect(strstr(run(command).notes, "is for 3 ranks, and there are 4"));
    snprintf(command, sizeof command, "%s alltoallv_perf -t 3 -b 1M -e 2M", variable);
    cr_expect(strstr(run(command).notes, "-b and -e"));
    unlink(path);
}

Test(bench_programs, percentiles_and_csv_leave_the_table_as_it_is) {
    char folder[] = "/tmp/tutti-bench-XXXXXX", command[256], line[2048];
    int lines = 0;
    cr_assert_not_null(mkdtemp(folder));
    snprintf(command, sizeof command, "all_reduce_perf -t 2 -b 8 -e 64 -f 2 -n 9 --percentiles --csv %s/a.csv", folder);
    expect_good(command, 4);
    snprintf(command, sizeof command, "%s/a.csv", folder);
    FILE *file = fopen(command, "r");
    cr_assert_not_null(file);
    for (; fgets(line, sizeof line, file) != NULL; lines++)
        cr_expect_eq(strncmp(line, lines == 0 ? "program," : "all_reduce_perf,2,", lines == 0 ? 8 : 18), 0, "%s", line);
    fclose(file);
    cr_expect_eq(lines, 5);
    unlink(command);
    rmdir(folder);
    result out = run("all_reduce_perf -t 2 -b 8 -e 8 -n 9 --percentiles");
    cr_expect(strstr(out.notes, "# percentiles (us) of 8 bytes: out-of-place p50 "), "%s", out.notes);
}

Test(bench_programs, every_type_and_reduction_is_right) {
    expect_good("all_reduce_perf -t 3 -b 40000 -e 40000 -n 1 -w 0 -d all -o all", 72);
    expect_good("reduce_scatter_perf -t 2 -b 40000 -e 40000 -n 1 -w 0 -d all -o all --mem=tutti", 72);
    expect_good("alltoall_perf -t 4 -b 40000 -e 40000 -n 1 -w 0 -d all --touch --bind", 12);
}

Test(bench_programs, one_rank_says_that_it_is_alone) {
    expect_good("all_reduce_perf -b 8 -e 1K -f 2 -n 2", 8);
    result out = run("env OMPI_COMM_WORLD_SIZE=4 all_reduce_perf -b 8 -e 8 -n 1");
    cr_expect(strstr(out.notes, "# One rank: OMPI_COMM_WORLD_SIZE=4 is set"), "%s", out.notes);
}

Test(bench_programs, a_launcher_s_processes_are_the_ranks) {
    expect_good("tuttirun --standalone --nproc_per_node 2 all_reduce_perf -b 8 -e 8K -f 2 -n 3", 11);
    expect_good("env NCCL_TESTS_SPLIT=MOD2 tuttirun --standalone --nproc_per_node 4 all_gather_perf -b 8K -e 8K -n 3",
                1);
    result out = run("tuttirun --standalone --nproc_per_node 2 all_reduce_perf -t 2");
    cr_expect_neq(out.code, 0);
    cr_expect(strstr(out.notes, "leave them out"), "%s", out.notes);
}

Test(bench_programs, exit_code_tells_of_missing_bandwidth_and_wrong_flags) {
    result slow = run("env NCCL_TESTS_MIN_BW=1000000 all_reduce_perf -t 2 -b 8 -e 8 -n 1");
    cr_expect_neq(slow.code, 0);
    cr_expect(strstr(slow.notes, " FAILED\n"), "%s", slow.notes);
    result wrong = run("all_reduce_perf --minbyts 8");
    cr_expect_neq(wrong.code, 0);
    cr_expect(strstr(wrong.notes, "--minbytes"), "%s", wrong.notes);
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
    result out = {.columns = 13};
    snprintf(line, sizeof line, "exec timeout 60 '%s/bin/all_reduce_perf' -t 3 -b 8 -e 8 -n 10 -N 0 2>&1",
             build_folder());
    FILE *pipe = popen(line, "r");
    cr_assert_not_null(pipe);
    while (out.rows < 10 && fgets(line, sizeof line, pipe) != NULL) {
        if (victim == 0) victim = pid_of_rank_1(line);
        read_line(line, &out);
    }
    cr_assert_gt(victim, 0, "%s", out.notes);
    clock_gettime(CLOCK_MONOTONIC, &start);
    kill(victim, SIGKILL);
    while (fgets(line, sizeof line, pipe) != NULL) read_line(line, &out);
    out.code = exit_code(pclose(pipe));
    clock_gettime(CLOCK_MONOTONIC, &end);
    cr_expect_eq(out.code, 128 + SIGKILL);
    cr_expect(strstr(out.notes, "rank 1 (pid "), "%s", out.notes);
    cr_expect_lt(end.tv_sec - start.tv_sec, 6, "it took %ld s", (long)(end.tv_sec - start.tv_sec));
}
