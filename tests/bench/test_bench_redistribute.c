/*
 * redistribute_perf as users run it: its tables, its files, and the arguments it refuses.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/programs/perf_table.h"

TestSuite(bench_redistribute, .timeout = 60);

static char output[32768];

/* Runs the program and returns its exit code; standard output and standard error are in `output`. */
static int run(const char *arguments) {
    char command[1024];
    snprintf(command, sizeof command, "timeout 50 '%s/bin/redistribute_perf' %s 2>&1", perf_build_folder(), arguments);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t bytes = fread(output, 1, sizeof output - 1, pipe);
    output[bytes] = '\0';
    return perf_exit_code(pclose(pipe));
}

/* Counts the rows that begin with a number and whose `column`-th word is 0, which means no wrong elements. */
static int count_good_rows(int column) {
    static char copy[sizeof output];
    char *line_end, *word_end;
    int good = 0;
    memcpy(copy, output, sizeof copy);
    for (char *line = strtok_r(copy, "\n", &line_end); line != NULL; line = strtok_r(NULL, "\n", &line_end)) {
        char *word = strtok_r(line, " ", &word_end);
        if (word == NULL || strspn(word, "0123456789") != strlen(word)) continue;
        for (int i = 1; i < column && word != NULL; i++) word = strtok_r(NULL, " ", &word_end);
        good += word != NULL && strcmp(word, "0") == 0;
    }
    return good;
}

Test(bench_redistribute, pairs_of_layouts_have_a_row_for_each_size) {
    cr_expect_eq(run("-t 2 -b 8 -e 32K -f 64 -n 3"), 0, "%s", output);
    cr_expect_eq(count_good_rows(10), 7 * 3, "%s", output);
    cr_expect(strstr(output, "# Wrong elements: 0") != NULL, "%s", output);
    cr_expect_eq(run("-t 4 --mesh 2x2 -b 10000 -e 10000 -n 3 -d bfloat16"), 0, "%s", output);
    cr_expect_eq(count_good_rows(10), 6, "%s", output);
    cr_expect_eq(run("-t 3 -b 1000 -e 1000 -n 3 --from 'P(max)' --to S1 --bare -d int8"), 0, "%s", output);
    cr_expect_eq(count_good_rows(10), 1, "%s", output);
    cr_expect(strstr(output, "copy(us)") != NULL, "%s", output);
    cr_expect(strstr(output, "predicted us") != NULL && strstr(output, "# Predicted within") == NULL, "%s", output);
    cr_expect_eq(run("-t 2 -b 64K -e 64K -n 3"), 0, "%s", output);
    cr_expect(strstr(output, " of 7 rows; predicted / measured, geometric mean: ") != NULL, "%s", output);
}

Test(bench_redistribute, many_tensors_are_moved_in_one_round) {
    cr_expect_eq(run("-t 4 --many 7 -b 4K -e 16K -f 2 -n 3"), 0, "%s", output);
    cr_expect_eq(count_good_rows(9), 3, "%s", output);
}

Test(bench_redistribute, tensors_may_be_in_cuda_memory) {
    setenv("STANDIN_GPUS", "1", 1);
    cr_expect_eq(run("--device cuda -t 3 -b 8 -e 32K -f 64 -n 3"), 0, "%s", output);
    cr_expect_eq(count_good_rows(10), 7 * 3, "%s", output);
    cr_expect(strstr(output, "   N/A ") != NULL, "%s", output); /* printed in place of predictions */
    cr_expect(strstr(output, "stand-in") != NULL, "%s", output);
    cr_expect_eq(run("--device cuda --ranks threads -t 2 -b 4K -e 4K -n 3 --bare -d int8"), 0, "%s", output);
    cr_expect_eq(count_good_rows(10), 7, "%s", output);
    cr_expect_eq(run("--device cuda -t 4 --many 7 -b 4K -e 16K -f 2 -n 3"), 0, "%s", output);
    cr_expect_eq(count_good_rows(9), 3, "%s", output);
    setenv("STANDIN_GPUS", "0", 1);
    cr_expect_eq(run("--device cuda -t 2 -b 8 -e 8"), 1, "%s", output);
    cr_expect(strstr(output, "no CUDA-capable device is detected; leave out --device cuda") != NULL, "%s", output);
    setenv("STANDIN_GPUS", "1", 1);
    cr_expect_eq(run("--device cuda -t 2 -b 8 -e 8 -G 3"), 1, "%s", output);
    cr_expect(strstr(output, "-G and --compute have no meaning here") != NULL, "%s", output);
}

static void read_file(const char *path, char *text, size_t capacity) {
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    text[fread(text, 1, capacity - 1, file)] = '\0';
    fclose(file);
    unlink(path);
}

Test(bench_redistribute, files_have_all_rows) {
    char folder[] = "/tmp/tutti-redistribute-XXXXXX", arguments[256], path[64], text[8192];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(arguments, sizeof arguments, "-t 2 -b 1K -e 1K -n 2 --csv %s/a.csv -J %s/a.json", folder, folder);
    cr_expect_eq(run(arguments), 0, "%s", output);
    snprintf(path, sizeof path, "%s/a.csv", folder);
    read_file(path, text, sizeof text);
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) lines++;
    cr_expect(lines == 1 + 7 && strstr(text, "1024,16x16,\"S0\",\"S1\",2,512,512,") != NULL, "%s", text);
    snprintf(path, sizeof path, "%s/a.json", folder);
    read_file(path, text, sizeof text);
    cr_expect(text[0] == '[' && strcmp(text + strlen(text) - 2, "]\n") == 0 &&
                  strstr(text, "\"from\": \"P(sum)\", \"to\": \"S1\"") != NULL,
              "%s", text);
    rmdir(folder);
}

Test(bench_redistribute, wrong_arguments_are_refused_in_one_line) {
    static const char *const bad[][2] = {
        {"-t 2 --from S0", "--from and --to belong together"},
        {"-t 2 --mesh 2x2", "--mesh is for 4 ranks, and there are 2"},
        {"-t 2 --mesh 2by1", "--mesh takes sizes of axes such as 4 or 2x2, not '2by1'"},
        {"-t 3 --many 4", "--many takes an even number of ranks, not 3"},
        {"-t 2 --many none", "--many takes a whole number from 1 to 100000, not 'none'"},
        {"-t 2 --from S0,B --to B", "must have a part for each of the mesh's 1 axes"},
        {"-t 2 --from Q --to B", "sbp \"Q\""},
        {"-t 8 --mesh 2x2x2", "no default pairs"},
        {"-t 2 -d all", "-d takes one type here"},
        {"-t 2 --frum S0", "unknown option --frum"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_neq(run(bad[i][0]), 0, "%s went well", bad[i][0]);
        cr_expect(strstr(output, bad[i][1]) != NULL, "%s: no '%s' in: %s", bad[i][0], bad[i][1], output);
    }
    cr_expect_eq(run("-h"), 0);
    cr_expect(strstr(output, "--mesh 2x2") != NULL, "%s", output);
}
