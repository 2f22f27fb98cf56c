/*
 * The benchmarks that need the trainer's kernels: graphs, work between operations, and kernels_perf. They run on the
 * stand-in that has kernels (TUTTI_CUDA_MODULE).
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/programs/perf_table.h"

TestSuite(bench_cuda_kernels, .timeout = 100);

Test(bench_cuda_kernels, iterations_go_into_a_graph_or_the_reason_is_reported) {
    perf_result alone = perf_run("all_reduce_perf --device cuda -G 3 -b 8 -e 8K -f 1024 -n 4");
    cr_expect_eq(alone.code, 0, "%s", alone.notes);
    cr_expect_eq(alone.rows - alone.bad_rows, 2, "%s", alone.bad);
    cr_expect(strstr(alone.notes, " graph: 3 "), "%s", alone.notes);
    cr_expect_null(strstr(alone.notes, "not supported"), "%s", alone.notes);
    perf_result shared = perf_run("env STANDIN_GPUS=1 all_reduce_perf --device cuda -t 2 -G 3 -b 8 -e 8K -f 1024 -n 4");
    cr_expect_eq(shared.code, 0, "%s", shared.notes);
    cr_expect_eq(shared.rows - shared.bad_rows, 2, "%s", shared.bad);
    cr_expect_null(strstr(shared.notes, "not supported"), "%s", shared.notes);
    perf_result staged =
        perf_run("env STANDIN_GPUS=1 TUTTI_ALGORITHM=staged all_reduce_perf --device cuda -t 2 -G 3 -b 8 -e 8K "
                 "-f 1024 -n 4");
    cr_expect_eq(staged.code, 0, "%s", staged.notes);
    cr_expect_eq(staged.rows - staged.bad_rows, 2, "%s", staged.bad);
    const char *line = strstr(staged.notes, "# Option -G (CUDA graph) not supported: ");
    cr_assert_not_null(line, "%s", staged.notes);
    cr_expect(strstr(line, "cannot be captured") && strstr(line, ". Ignoring\n"), "%s", line);
    cr_expect_null(strstr(line + 1, "# Option -G"), "reported more than once:\n%s", line);
}

static void expect_compute(const char *command) {
    perf_expect_good(command, 1);
    perf_result out = perf_run(command);
    const char *line = strstr(out.notes, "# compute of 8192 bytes: out-of-place ");
    double alone, both, alone_here, both_here;
    cr_assert_not_null(line, "%s", out.notes);
    cr_expect_eq(
        sscanf(line,
               "# compute of 8192 bytes: out-of-place %lf us alone, %lf us with the operation; in-place %lf us "
               "alone, %lf us with the operation\n",
               &alone, &both, &alone_here, &both_here),
        4, "%s", line);
    cr_expect(alone > 0 && both > 0 && alone_here > 0 && both_here > 0, "%s", line);
}

Test(bench_cuda_kernels, ranks_compute_between_operations) {
    expect_compute("env STANDIN_GPUS=1 all_reduce_perf --device cuda -t 2 --compute 1 -b 8K -e 8K -n 2");
    expect_compute("all_reduce_perf -t 2 --compute 20 -b 8K -e 8K -n 2");
}

/* Counts the rows of kernels_perf that have a time, and those without one. */
static void count_kernels(const char *command, int *timed_out, int *untimed_out) {
    char line[512], name[64];
    int timed = 0, untimed = 0;
    snprintf(line, sizeof line, "timeout 60 '%s/bin/kernels_perf' %s 2>&1", perf_build_folder(), command);
    FILE *pipe = popen(line, "r");
    cr_assert_not_null(pipe);
    while (fgets(line, sizeof line, pipe) != NULL) {
        if (line[0] != ' ') continue;
        cr_expect_eq(sscanf(line, " %63s", name), 1);
        if (strlen(line) > 60 && atof(line + 56) > 0) timed++;
        else untimed++;
    }
    cr_expect_eq(perf_exit_code(pclose(pipe)), 0, "kernels_perf %s", command);
    *timed_out = timed;
    *untimed_out = untimed;
}

Test(bench_cuda_kernels, kernels_are_measured_on_both_devices) {
    int timed, untimed;
    count_kernels("--bytes 1M --rounds 1", &timed, &untimed);
    cr_expect_geq(timed, 40, "%d rows", timed);
    cr_expect_eq(untimed, 0);
    count_kernels("--device cuda --bytes 1M --rounds 1", &timed, &untimed);
    cr_expect_geq(timed, 40, "%d rows", timed);
    cr_expect_leq(untimed, 4, "%d rows without a time", untimed); /* differences of times, which may be negative */
}

Test(bench_cuda_kernels, kernels_are_written_to_files_and_chosen_by_name) {
    char folder[] = "/tmp/tutti-kernels-XXXXXX", command[256], line[512];
    int timed, untimed, lines = 0;
    cr_assert_not_null(mkdtemp(folder));
    snprintf(command, sizeof command, "--bytes 64K --rounds 2 --only relu --csv %s/a.csv --json %s/a.json", folder,
             folder);
    count_kernels(command, &timed, &untimed);
    cr_expect_eq(timed, 4, "copy, two of the layer and one of the operator; got %d", timed);
    snprintf(command, sizeof command, "%s/a.csv", folder);
    FILE *file = fopen(command, "r");
    cr_assert_not_null(file);
    for (; fgets(line, sizeof line, file) != NULL; lines++)
        if (lines < 2) cr_expect_eq(strncmp(line, lines == 0 ? "kernel,shape,us,bytes," : "copy,\"", 6), 0, "%s", line);
    fclose(file);
    cr_expect_eq(lines, timed + 1);
    unlink(command);
    snprintf(command, sizeof command, "python3 -m json.tool %s/a.json > %s/b.json", folder, folder);
    cr_expect_eq(system(command), 0);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    cr_expect_eq(system(command), 0);
}
