/*
 * The benchmarks' text and JSON: the format that parsers of nccl-tests' output rely on, to the last space.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/options.h"
#include "bench/report/csv.h"
#include "bench/report/json.h"
#include "bench/report/report.h"

TestSuite(bench_format, .timeout = 60);

/* A stream into memory, and its text. */
typedef struct captured {
    FILE *file;
    char text[4096];
} captured;

static void capture(captured *out) {
    memset(out, 0, sizeof *out);
    out->file = fmemopen(out->text, sizeof out->text, "w");
    cr_assert_not_null(out->file);
}

static const char *text_of(captured *out) {
    fflush(out->file);
    return out->text;
}

static void release(captured *out) {
    fclose(out->file);
}

static bench_options options_of(const char *flag, const char *value) {
    char *words[] = {"all_reduce_perf", (char *)flag, (char *)value};
    bench_options options;
    cr_assert_eq(bench_options_parse(flag != NULL ? 3 : 1, words, NULL, &options), TUTTI_OK, "%s", tutti_last_error());
    return options;
}

static void expect_number(double value, int width, const char *expected) {
    char text[16];
    bench_report_number(value, width, text);
    cr_expect_str_eq(text, expected, "%g in %d characters is '%s', not '%s'", value, width, text, expected);
}

Test(bench_format, number_loses_digits_before_it_leaves_its_width) {
    expect_number(41.3, 7, "  41.30");
    expect_number(0, 6, "  0.00");
    expect_number(9999.99, 7, "9999.99");
    expect_number(99999.94, 7, "99999.9");
    expect_number(999999.4, 7, " 999999");
    expect_number(9999999.4, 7, "9999999");
    expect_number(99999999.0, 7, "1.0e+08");
    expect_number(999.994, 6, "999.99");
    expect_number(999.996, 6, "1000.0");
    expect_number(123456.7, 6, "123457");
    expect_number(12345678.0, 6, " 1e+07");
}

Test(bench_format, header_is_rendered_as_parsers_expect_it) {
    bench_options options = options_of(NULL, NULL);
    captured out;
    capture(&out);
    bench_report_header(out.file, &options);
    cr_expect_str_eq(text_of(&out), "#\n"
                                    "#                                                              out-of-place       "
                                    "                in-place          \n"
                                    "#       size         count      type   redop    root     time   algbw   busbw  "
                                    "#wrong     time   algbw   busbw  "
                                    "#wrong \n"
                                    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)     "
                                    "        (us)  (GB/s)  (GB/s)    "
                                    "     \n");
    release(&out);
}

Test(bench_format, header_has_columns_for_flags) {
    bench_options options = options_of("-C", "1");
    options.timestamps = options.per_iteration = 1;
    captured out;
    capture(&out);
    bench_report_header(out.file, &options);
    const char *text = text_of(&out);
    cr_expect(
        strstr(text, "out-of-place (+ per-iteration)                                in-place (+ per-iteration)\n"));
    cr_expect(strstr(text, "    root  cputime   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%  cputime"));
    cr_expect(strstr(text, "    i_cv%           timestamp\n"));
    cr_expect(strstr(text, "      (%)   %Y-%m-%d %H:%M:%S\n"));
    release(&out);
}

static const bench_half fast = {.time_us = 41.3, .alg_bw = 25.39, .bus_bw = 44.43, .checked = true};

Test(bench_format, row_is_rendered_as_parsers_expect_it) {
    bench_options options = options_of(NULL, NULL);
    bench_row row = {.bytes = 1048576,
                     .count = 262144,
                     .type = "float",
                     .reduction = "sum",
                     .root = -1,
                     .out_of_place = fast,
                     .in_place = fast};
    captured out;
    capture(&out);
    bench_report_row(out.file, &options, &row);
    row.in_place.checked = false;
    row.out_of_place.wrong = 12;
    bench_report_row(out.file, &options, &row);
    cr_expect_str_eq(text_of(&out), "     1048576        262144     float     sum      -1    41.30   25.39   44.43     "
                                    "  0    41.30   25.39   44.43       "
                                    "0\n"
                                    "     1048576        262144     float     sum      -1    41.30   25.39   44.43     "
                                    " 12    41.30   25.39   44.43    "
                                    "N/A\n");
    release(&out);
}

Test(bench_format, row_without_reduction_has_an_empty_column) {
    bench_options options = options_of(NULL, NULL);
    bench_row row = {.bytes = 64, .count = 8, .type = "float", .reduction = "", .root = -1, .out_of_place = fast};
    captured out;
    capture(&out);
    bench_report_row(out.file, &options, &row);
    cr_expect_eq(strncmp(text_of(&out), "          64             8     float              -1    41.30", 59), 0, "%s",
                 text_of(&out));
    release(&out);
}

Test(bench_format, percentiles_are_a_comment_and_add_no_column) {
    bench_options options = options_of(NULL, NULL);
    const double times[] = {3, 1, 2};
    options.percentiles = 1;
    bench_row row = {
        .bytes = 64, .count = 8, .type = "float", .reduction = "sum", .out_of_place = fast, .in_place = fast};
    row.out_of_place.iterations = row.in_place.iterations =
        (bench_iterations){.times_us = times, .count = 3, .p50_us = 2, .p95_us = 3, .p99_us = 3.5};
    captured out;
    capture(&out);
    bench_report_row(out.file, &options, &row);
    cr_expect_eq(strlen(text_of(&out)), 119, "%s", text_of(&out));
    bench_report_percentiles(out.file, &row);
    cr_expect_str_eq(strchr(text_of(&out), '\n') + 1,
                     "# percentiles (us) of 64 bytes: out-of-place p50 2.00 p95 3.00 p99 3.50; in-place p50 2.00 p95 "
                     "3.00 p99 3.50\n");
    release(&out);
}

Test(bench_format, work_alone_is_a_comment_per_iteration) {
    bench_options options = options_of(NULL, NULL);
    options.grouped = 2;
    bench_row row = {.bytes = 64, .out_of_place = fast, .in_place = fast};
    row.out_of_place.compute_us = 100;
    row.out_of_place.elapsed_s = 55e-6;
    row.in_place.compute_us = 101.5;
    row.in_place.elapsed_s = 60e-6;
    captured out;
    capture(&out);
    bench_report_compute(out.file, &options, &row);
    cr_expect_str_eq(text_of(&out),
                     "# compute of 64 bytes: out-of-place 100.00 us alone, 110.00 us with the operation; "
                     "in-place 101.50 us alone, 120.00 us with the operation\n");
    release(&out);
}

static void expect_footer(bench_summary summary, const char *expected) {
    captured out;
    capture(&out);
    bench_report_footer(out.file, "all_reduce_perf", &summary);
    cr_expect_str_eq(text_of(&out), expected, "got\n%s", text_of(&out));
    release(&out);
}

Test(bench_format, footer_reports_the_verdicts) {
    expect_footer((bench_summary){.bus_bw = 44.4312, .least_bw = -1},
                  "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 44.4312 \n#\n"
                  "# Collective test concluded: all_reduce_perf\n#\n\n");
    expect_footer((bench_summary){.bus_bw = 8.99, .least_bw = 10, .failed_checks = 3},
                  "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 8.99 FAILED\n#\n"
                  "# Collective test concluded: all_reduce_perf\n#\n\n");
    expect_footer((bench_summary){.bus_bw = 9, .least_bw = 10, .error = "broken"},
                  "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 9 OK\n#\n"
                  "# Collective test concluded: all_reduce_perf\n#\n# error: broken\n");
}

Test(bench_format, footer_reports_the_memory_that_was_used) {
    const bench_memory_use use = {.initialization_bytes = 1288490189, .buffer_bytes = 64 << 20, .collective_bytes = -1};
    expect_footer((bench_summary){.bus_bw = 9, .least_bw = -1, .memory = &use},
                  "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 9 \n#\n"
                  "# Collective test concluded: all_reduce_perf\n"
                  "# GPU memory usage     : Initialization 1.20 GB | User-Allocated 64.0 MB | Collective -1.00 B | "
                  "Total  1.26 GB\n#\n\n");
}

Test(bench_format, start_lines_can_be_read_back) {
    bench_options options = options_of("-b", "8");
    options.threads = 2;
    options.max_bytes = 65536;
    options.step_factor = 2;
    options.blocking = BENCH_BLOCKING_OUTER_BARRIER;
    options.graphs = 7;
    options.parallel_init = 1;
    bench_device device = {
        .rank = 1, .pid = 4711, .host = "node", .index = 1, .address = "0000:00:00", .name = "A CPU"};
    captured out;
    capture(&out);
    bench_report_start(out.file, "all_reduce_perf", &options);
    bench_report_device(out.file, &device);
    char version[32], host[64], address[32], name[64];
    int headers, library, rank, group, pid, index;
    const char *text = text_of(&out);
    cr_assert_eq(
        sscanf(text, "# nccl-tests version %31s nccl-headers=%d nccl-library=%d\n", version, &headers, &library), 3);
    cr_expect_eq(library, bench_report_version_code(version));
    cr_expect(strstr(text,
                     "# Collective test starting: all_reduce_perf\n"
                     "# nThread 2 nGpus 1 minBytes 8 maxBytes 65536 step: 2(factor) warmup iters: 1 iters: 20 agg "
                     "iters: 1 validation: 1 graph: 7 unalign: 0\n"
                     "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier \n"
                     "# Parallel Init Enabled: threads call into NcclInitRank concurrently \n"
                     "#\n# Using devices\n"));
    const char *line = strstr(text, "#  Rank");
    cr_assert_not_null(line);
    cr_expect_str_eq(line, "#  Rank  1 Group  0 Pid   4711 on       node device  1 [0000:00:00] A CPU\n");
    cr_expect_eq(sscanf(line, "#  Rank %d Group %d Pid %d on %63s device %d [%31[^]]] %63[^\n]\n", &rank, &group, &pid,
                        host, &index, address, name),
                 7);
    release(&out);
}

Test(bench_format, version_counts_as_nccl_does) {
    cr_expect_eq(bench_report_version_code("0.1.0"), 100);
    cr_expect_eq(bench_report_version_code("2.19.6"), 21906);
}

Test(bench_format, iterations_are_summarized_by_nearest_rank) {
    double times[101];
    times[0] = 1e6; /* skipped */
    for (int i = 1; i <= 100; i++) times[i] = 101 - i;
    bench_iterations iterations = {.times_us = times, .count = 101, .skipped = 1};
    cr_assert_eq(bench_iterations_summarize(&iterations), TUTTI_OK);
    cr_expect_eq(iterations.min_us, 1);
    cr_expect_eq(iterations.max_us, 100);
    cr_expect_eq(iterations.mean_us, 50.5);
    cr_expect_eq(iterations.p50_us, 51);
    cr_expect_eq(iterations.p95_us, 95);
    cr_expect_eq(iterations.p99_us, 99);
    cr_expect_float_eq(iterations.deviation_us, 28.86607, 1e-4);
}

/* ----------------------------------------------------------------------------------------------------- JSON */

static char *read_file(const char *path) {
    char *text = calloc(1, 1 << 20);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s was not written", path);
    cr_assert_gt(fread(text, 1, (1 << 20) - 1, file), 0);
    fclose(file);
    return text;
}

Test(bench_format, json_keeps_the_layout_and_hides_secrets) {
    char folder[] = "/tmp/tutti-bench-XXXXXX", path[64], again[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/out.json", folder);
    snprintf(again, sizeof again, "%s/out.json.0", folder);
    setenv("TUTTI_SECRET", "opensesame", 1);
    bench_options options = options_of("-b", "8");
    bench_device device = {.host = "a\"b", .address = "0000:00:00", .name = "A/CPU"};
    bench_row row = {.bytes = 8, .count = 2, .type = "float", .reduction = "sum", .root = -1, .out_of_place = fast};
    char *arguments[] = {"all_reduce_perf", "-b\t8"};
    for (int i = 0; i < 2; i++) {
        bench_json *json = bench_json_open(path, 2, arguments);
        cr_assert_not_null(json);
        bench_json_config(json, &options, &device, 1);
        bench_json_header(json);
        bench_json_row(json, &options, &row);
        bench_json_footer(json, &(bench_summary){.bus_bw = 2, .least_bw = -1});
        cr_expect_eq(bench_json_close(json), 0);
    }
    char *text = read_file(path);
    cr_expect(strstr(text, "\"args\":[\"all_reduce_perf\",\"-b\\t8\"]"), "%s", text);
    cr_expect(strstr(text, "\"devices\":[{\"rank\":0,\"group\":0,\"pid\":0,\"hostname\":\"a\\\"b\",\"device\":0,"
                           "\"device_hex\":\"0000:00:00\",\"device_info\":\"A\\/CPU\"}]}"));
    cr_expect(strstr(text,
                     "\"results\":[{\"size\":8,\"count\":2,\"type\":\"float\",\"redop\":\"sum\",\"root\":\"    -1\","
                     "\"out_of_place\":{\"time\":41.300000,\"alg_bw\":25.390000,\"bus_bw\":44.430000,\"nwrong\":"
                     "0.000000},\"in_place\":{\"time\":0.000000,\"alg_bw\":0.000000,\"bus_bw\":0.000000,\"nwrong\":"
                     "null},\"actual_iterations\":20,\"experiment_name\":\"\"}],"
                     "\"out_of_bounds\":{\"count\":0,\"okay\":\"true\"},"
                     "\"average_bus_bandwidth\":{\"bandwidth\":2.000000,\"okay\":\"unchecked\"},\"errors\":[],"));
    cr_expect_null(strstr(text, "opensesame"));
    cr_expect_eq(access(again, F_OK), 0, "the second run overwrote the first one's file");
    free(text);
    unlink(path);
    unlink(again);
    rmdir(folder);
}

/* ----------------------------------------------------------------------------------------------------- CSV */

Test(bench_format, csv_has_a_field_per_name_and_leaves_out_what_was_not_measured) {
    char folder[] = "/tmp/tutti-bench-XXXXXX", path[64];
    const double times[] = {3, 1, 2};
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/out.csv", folder);
    bench_options options = options_of(NULL, NULL);
    bench_row row = {.bytes = 8, .count = 2, .type = "float", .reduction = "", .root = -1, .out_of_place = fast};
    row.in_place = fast;
    row.in_place.checked = false;
    row.out_of_place.iterations = (bench_iterations){.times_us = times, .count = 3};
    cr_assert_eq(bench_iterations_summarize(&row.out_of_place.iterations), TUTTI_OK);
    bench_csv *csv;
    cr_assert_eq(bench_csv_open(path, &csv), TUTTI_OK, "%s", tutti_last_error());
    bench_csv_header(csv, &options);
    bench_csv_row(csv, "hypercube_perf", 2, &row);
    cr_expect_eq(bench_csv_close(csv), 0);
    char *text = read_file(path);
    char *line = strchr(text, '\n') + 1;
    cr_expect_str_eq(line, "hypercube_perf,2,8,2,float,,-1,"
                           "41.300000,25.390000,44.430000,0,1.000000,3.000000,2.000000,2.000000,3.000000,3.000000,"
                           "0.816497,40.824829,41.300000,25.390000,44.430000,,,,,,,,,\n");
    int names = 1, fields = 1;
    for (const char *c = text; c < line; c++) names += *c == ',';
    for (const char *c = line; *c != '\0'; c++) fields += *c == ',';
    cr_expect_eq(names, fields, "%d names, %d fields", names, fields);
    cr_expect_eq(strncmp(text, "program,ranks,size,count,type,redop,root,out_of_place_time_us,", 62), 0, "%s", text);
    cr_expect_eq(bench_csv_open("/nowhere/out.csv", &csv), TUTTI_ERR_SYSTEM);
    cr_expect(strstr(tutti_last_error(), "/nowhere/out.csv"), "%s", tutti_last_error());
    free(text);
    unlink(path);
    rmdir(folder);
}
