/*
 * The benchmarks' command line: nccl-tests' flags and defaults, the errors for wrong ones, sizes and groups.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "bench/options.h"
#include "bench/values.h"

TestSuite(bench_options, .timeout = 60);

static tutti_status parse(bench_options *options_out, FILE *notes, const char *line) {
    static char copy[512]; /* text options point into it */
    char *words[64] = {"all_reduce_perf"};
    int count = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) words[count++] = word;
    return bench_options_parse(count, words, notes, options_out);
}

static bench_options options_of(const char *line) {
    bench_options options;
    cr_assert_eq(parse(&options, NULL, line), TUTTI_OK, "%s: %s", line, tutti_last_error());
    return options;
}

Test(bench_options, flags_are_read_short_and_long) {
    bench_options options =
        options_of("--minbytes 1.5K -e 2m --stepfactor=4 -n 7 -d bfloat16 -o all -r -1 --mem tutti");
    cr_expect_eq(options.min_bytes, 1536);
    cr_expect_eq(options.max_bytes, 2 << 20);
    cr_expect_eq(options.step_factor, 4);
    cr_expect_eq(options.iterations, 7);
    cr_expect_str_eq(bench_types[options.type].name, "bfloat16");
    cr_expect_eq(options.reduction, BENCH_ALL);
    cr_expect_eq(options.root, BENCH_ALL);
    cr_expect_eq(options.memory, BENCH_MEMORY_TUTTI);
}

Test(bench_options, defaults_are_those_of_nccl_tests) {
    bench_options options = options_of("");
    cr_expect_eq(options.min_bytes, 32 << 20);
    cr_expect_eq(options.max_bytes, 32 << 20);
    cr_expect_eq(options.iterations, 20);
    cr_expect_eq(options.warmup, 1);
    cr_expect_eq(options.checks, 1);
    cr_expect_eq(options.average, BENCH_AVERAGE_MEAN);
    cr_expect_str_eq(bench_types[options.type].name, "float");
}

static void expect_refused(const char *line, const char *hint) {
    bench_options options;
    cr_expect_eq(parse(&options, NULL, line), TUTTI_ERR_ARGUMENT, "%s was accepted", line);
    cr_expect(strstr(tutti_last_error(), hint), "%s: '%s' does not say '%s'", line, tutti_last_error(), hint);
}

Test(bench_options, percentiles_and_per_iteration_times_keep_what_is_skipped) {
    bench_options with = options_of("--percentiles -K 3"), without = options_of("-K 3"),
                  columns = options_of("-I 1 -K 3");
    cr_expect(bench_options_times_each(&with) && bench_options_times_each(&columns));
    cr_expect_not(bench_options_times_each(&without));
    cr_expect_eq(with.skip, 3);
    cr_expect_eq(columns.skip, 3);
    cr_expect_eq(without.skip, 0);
    cr_expect_str_eq(options_of("--csv out.csv").csv, "out.csv");
    cr_expect_null(with.csv);
}

Test(bench_options, wrong_flags_name_the_nearest) {
    expect_refused("--stepfctor 2", "--stepfactor");
    expect_refused("--minbyts=2", "--minbytes");
    expect_refused("-d flaot", "'float'");
    expect_refused("-o smu", "'sum'");
    expect_refused("-q", "-q");
    expect_refused("-b", "--minbytes needs a value");
    expect_refused("-b 3X", "'3X'");
    expect_refused("-n 0", "from 1");
    expect_refused("-b 8 -e 4", "8 > 4");
    expect_refused("-b 4 -e 8 -i 0", "step of 0");
    expect_refused("stray", "'stray'");
}

Test(bench_options, flags_without_effect_are_noted) {
    bench_options options;
    char text[1024] = "";
    FILE *notes = fmemopen(text, sizeof text, "w");
    cr_expect_eq(parse(&options, notes, "-g 1 -p 1 -y 0 -G 0 -R 1 -x 2 -D 0 -V 16 -M 1"), TUTTI_OK);
    fclose(notes);
    cr_expect(strstr(text, "note: -V 16 (--device_cta_count) is ignored: for compatibility only: "), "%s", text);
    cr_expect(strstr(text, "-R 1") && strstr(text, "-M 1") && strstr(text, "-x 2"), "%s", text);
    cr_expect(strstr(text, "-G") == NULL && strstr(text, "-y") == NULL && strstr(text, "-p") == NULL, "%s", text);
    cr_expect_eq(options.parallel_init, 1);
    cr_expect_eq(options.memory_report, 0);
    cr_expect_eq(options.cta_policy, BENCH_CTA_UNSET);
}

Test(bench_options, flags_of_nccl_s_count_on_gpus) {
    bench_options options = options_of("--device cuda -x 0 -M 1");
    cr_expect_eq(options.cta_policy, 0);
    cr_expect_eq(options.memory_report, 1);
    cr_expect_eq(options_of("--device cuda").cta_policy, BENCH_CTA_UNSET);
    expect_refused("--device cuda -x 3", "from 0 to 2");
}

Test(bench_options, flags_for_gpus_count_on_gpus_only) {
    char text[1024] = "";
    bench_options host = options_of("-t 8"),
                  gpu = options_of("--device cuda -t 4 -g 2 -G 5 -R 2 --ranks threads --compute 30");
    cr_expect_eq(host.device, BENCH_DEVICE_HOST);
    cr_expect_eq(host.life, BENCH_LIFE_PROCESSES);
    cr_expect_eq(gpu.device, BENCH_DEVICE_CUDA);
    cr_expect_eq(gpu.life, BENCH_LIFE_THREADS);
    cr_expect_eq(gpu.threads * gpu.devices, 8);
    cr_expect_eq(gpu.graphs, 5);
    cr_expect_eq(gpu.memory, BENCH_MEMORY_TUTTI);
    cr_expect_eq(gpu.compute_us, 30);
    FILE *notes = fmemopen(text, sizeof text, "w");
    cr_expect_eq(parse(&host, notes, "-G 5 -R 1 -y 1 --ranks threads"), TUTTI_OK);
    fclose(notes);
    cr_expect_eq(host.graphs + host.stream_null + host.registers, 0);
    cr_expect_eq(host.memory, BENCH_MEMORY_MALLOC);
    cr_expect(strstr(text, "-G 5") && strstr(text, "-R 1") && strstr(text, "-y 1"), "%s", text);
    expect_refused("--device cuda -G 1 -z 1", "-G does not go with");
    expect_refused("--device cuda -G 1 -I 1", "-G does not go with");
    expect_refused("--device cuda -y 1 --compute 1", "--compute does not go with -y");
    expect_refused("--device cuda -y 1 --ranks threads", "-y does not go with --ranks");
    expect_refused("--device gpu", "--device has no 'gpu'");
    expect_refused("--ranks thread", "'threads'");
}

Test(bench_options, sizes_step_and_end) {
    bench_options by_factor = options_of("-b 8 -e 32 -f 2"), by_bytes = options_of("-b 8 -e 32 -i 12");
    bench_options single = options_of("-b 8 -e 8 -i 0");
    cr_expect_eq(bench_options_next_bytes(&by_factor, 8), 16);
    cr_expect_eq(bench_options_next_bytes(&by_factor, 0), 1);
    cr_expect_eq(bench_options_next_bytes(&by_factor, SIZE_MAX / 2 + 1), SIZE_MAX);
    cr_expect_eq(bench_options_next_bytes(&by_bytes, 8), 20);
    cr_expect_gt(bench_options_next_bytes(&single, 8), 8);
}

static void expect_color(const char *variable, const char *value, int rank, int expected) {
    int color = -1;
    setenv(variable, value, 1);
    cr_expect_eq(bench_options_color(rank, &color), TUTTI_OK, "%s=%s: %s", variable, value, tutti_last_error());
    cr_expect_eq(color, expected, "%s=%s: rank %d has colour %d", variable, value, rank, color);
    unsetenv(variable);
}

Test(bench_options, split_variables_give_colors) {
    expect_color("NCCL_TESTS_SPLIT", "AND0x3", 6, 2);
    expect_color("NCCL_TESTS_SPLIT", "&0b1", 7, 1);
    expect_color("NCCL_TESTS_SPLIT", "OR 1", 4, 5);
    expect_color("NCCL_TESTS_SPLIT", "%3", 7, 1);
    expect_color("NCCL_TESTS_SPLIT", "div4", 7, 1);
    expect_color("NCCL_TESTS_SPLIT_MASK", "4", 7, 4);
    int color;
    setenv("NCCL_TESTS_SPLIT", "MOD0", 1);
    cr_expect_eq(bench_options_color(1, &color), TUTTI_ERR_ARGUMENT);
}
