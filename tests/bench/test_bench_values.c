/*
 * The benchmarks' arithmetic and data: counts and bus factors per collective, and the check, which finds every wrong
 * element and reports no right one.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/collectives.h"
#include "bench/traffic.h"
#include "bench/values.h"

TestSuite(bench_values, .timeout = 60);
TestSuite(bench_traffic, .timeout = 60);

static void expect_arithmetic(const char *name, size_t count, double bytes, double factor) {
    const bench_collective *row = bench_collective_find(name);
    cr_assert_not_null(row, "%s", name);
    cr_expect_eq(bench_collective_count(row, 1000, 4, 3), count, "%s", name);
    cr_expect_eq(bench_collective_bytes(row, count, 4, 3), bytes, "%s", name);
    cr_expect_float_eq(bench_collective_bus_factor(row, 3), factor, 1e-12, "%s", name);
}

Test(bench_values, counts_and_bus_factors_follow_nccl_tests) {
    expect_arithmetic("all_reduce_perf", 250, 1000, 4.0 / 3);
    expect_arithmetic("broadcast_perf", 250, 1000, 1);
    expect_arithmetic("reduce_perf", 250, 1000, 1);
    expect_arithmetic("sendrecv_perf", 250, 1000, 1);
    expect_arithmetic("all_gather_perf", 80, 960, 2.0 / 3);
    expect_arithmetic("reduce_scatter_perf", 80, 960, 2.0 / 3);
    expect_arithmetic("alltoall_perf", 80, 960, 2.0 / 3);
    expect_arithmetic("gather_perf", 80, 960, 2.0 / 3);
    expect_arithmetic("scatter_perf", 80, 960, 2.0 / 3);
    expect_arithmetic("hypercube_perf", 80, 960, 1);
    cr_expect_eq(bench_collective_counted_bytes(bench_collective_find("hypercube_perf"), 960, 3), 640);
    cr_expect_eq(bench_collective_counted_bytes(bench_collective_find("all_gather_perf"), 960, 3), 960);
    cr_expect_eq(bench_collective_count(bench_collective_find("all_gather_perf"), 8, 4, 2), 0);
    cr_expect_eq(bench_collective_count(bench_collective_find("all_gather_perf"), 100, 1, 2), 48);
}

Test(bench_values, a_single_wrong_element_is_counted) {
    size_t count = 150001; /* more than two periods */
    for (int t = 0; t < BENCH_TYPES; t++) {
        const bench_type *type = &bench_types[t];
        bench_pattern pattern = {.type = type, .nranks = 4, .round = 5};
        char *data = malloc(count * type->bytes);
        bench_values_fill(&pattern, 2, 17, count, data);
        cr_expect_eq(bench_values_check_moved(&pattern, 2, 17, count, data), 0, "%s", type->name);
        data[(count - 1) * type->bytes] ^= 1;
        data[70000 * type->bytes] ^= 1;
        cr_expect_eq(bench_values_check_moved(&pattern, 2, 17, count, data), 2, "%s", type->name);
        cr_expect_gt(bench_values_check_moved(&pattern, 3, 17, count, data), (int64_t)count / 2, "%s", type->name);
        cr_expect_gt(bench_values_check_moved(&pattern, 2, 18, count, data), (int64_t)count / 2, "%s", type->name);
        free(data);
    }
}

Test(bench_values, float_sums_are_the_sums_of_what_ranks_send) {
    enum { COUNT = 1000, RANKS = 7 };
    bench_pattern pattern = {
        .type = &bench_types[BENCH_TYPE_FLOAT], .reduces = true, .reduction = TUTTI_SUM, .nranks = RANKS};
    static float sent[COUNT], sum[COUNT];
    for (int rank = 0; rank < RANKS; rank++) {
        bench_values_fill(&pattern, rank, 0, COUNT, sent);
        for (int i = 0; i < COUNT; i++) sum[i] += sent[i];
    }
    cr_expect_eq(bench_values_check_reduced(&pattern, 0, COUNT, sum), 0);
    sum[COUNT / 2] += 1;
    cr_expect_eq(bench_values_check_reduced(&pattern, 0, COUNT, sum), 1);
    for (int i = 0; i < COUNT; i++) sum[i] /= RANKS;
    pattern.reduction = TUTTI_AVG;
    cr_expect_eq(bench_values_check_reduced(&pattern, 0, COUNT, sum), 1);
    for (int i = 0; i < COUNT; i++) sum[i] = NAN;
    cr_expect_eq(bench_values_check_reduced(&pattern, 0, COUNT, sum), COUNT);
}

Test(bench_values, data_written_outside_of_the_result_is_counted) {
    bench_pattern pattern = {.type = &bench_types[BENCH_TYPE_FLOAT]};
    float data[100] = {0};
    cr_expect_eq(bench_values_check_untouched(&pattern, 100, data), 0);
    data[99] = 1;
    cr_expect_eq(bench_values_check_untouched(&pattern, 100, data), 1);
}

/* ------------------------------------------------------------------------------------------------- traffic */

static void clear_traffic(void) {
    unsetenv("NCCL_TESTS_ALLTOALLV_SPREAD");
    unsetenv("NCCL_TESTS_ALLTOALLV_MATRIX_FILE");
    unsetenv("NCCL_TESTS_ALLTOALLV_MATRIX_SCALE");
    unsetenv("NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY");
}

static bench_traffic read_traffic(void) {
    bench_traffic traffic;
    cr_assert_eq(bench_traffic_read(&traffic), TUTTI_OK, "%s", tutti_last_error());
    return traffic;
}

Test(bench_traffic, parts_grow_with_the_distance_round_the_ring) {
    clear_traffic();
    bench_traffic traffic = read_traffic();
    static const size_t parts[] = {0, 1600, 3200, 4800}; /* of 9600, in 6 shares */
    for (int from = 0; from < 4; from++)
        for (int distance = 0; distance < 4; distance++)
            cr_expect_eq(bench_traffic_bytes(&traffic, from, (from + distance) % 4, 4, 9600), parts[distance]);
    cr_expect_eq(bench_traffic_most_bytes(&traffic, 4, 9600), 9600);
    cr_expect_eq(bench_traffic_bytes(&traffic, 0, 0, 1, 9607), 9600);
    setenv("NCCL_TESTS_ALLTOALLV_SPREAD", "0", 1);
    traffic = read_traffic();
    cr_expect_eq(bench_traffic_bytes(&traffic, 2, 2, 4, 9600), 2400);
    setenv("NCCL_TESTS_ALLTOALLV_SPREAD", "0.5", 1);
    traffic = read_traffic();
    cr_expect_eq(bench_traffic_bytes(&traffic, 3, 2, 4, 9600), 3600);
    cr_expect_eq(bench_traffic_bytes(&traffic, 0, 1, 4, 9631), 2000, "2006 must be rounded down");
}

/* Reads `text` as a traffic file. */
static tutti_status read_matrix(const char *text, bench_traffic *traffic_out) {
    char path[] = "/tmp/tutti-traffic-XXXXXX";
    int descriptor = mkstemp(path);
    cr_assert_geq(descriptor, 0);
    cr_assert_eq(write(descriptor, text, strlen(text)), (ssize_t)strlen(text));
    close(descriptor);
    setenv("NCCL_TESTS_ALLTOALLV_MATRIX_FILE", path, 1);
    tutti_status status = bench_traffic_read(traffic_out);
    unlink(path);
    return status;
}

Test(bench_traffic, a_file_gives_all_parts) {
    bench_traffic traffic;
    clear_traffic();
    setenv("NCCL_TESTS_ALLTOALLV_MATRIX_SCALE", "2", 1);
    cr_assert_eq(read_matrix("\n 8 16\t100\n\n0 1e3 0\r\n7 7 7", &traffic), TUTTI_OK, "%s", tutti_last_error());
    cr_expect_eq(traffic.dimension, 3);
    cr_expect_eq(bench_traffic_bytes(&traffic, 0, 0, 3, 0), 16);
    cr_expect_eq(bench_traffic_bytes(&traffic, 0, 2, 3, 0), 192, "200 must be rounded down");
    cr_expect_eq(bench_traffic_bytes(&traffic, 1, 1, 3, 0), 2000);
    cr_expect_eq(bench_traffic_bytes(&traffic, 2, 0, 3, 0), 0);
    cr_expect_eq(bench_traffic_most_bytes(&traffic, 3, 0), 2032, "what rank 1 receives");
    cr_expect_eq(bench_traffic_most_bytes(&traffic, 1, 0), 16);
    bench_traffic_free(&traffic);
}

Test(bench_traffic, errors_name_what_cannot_be_read) {
    static const char *const wrong[] = {"", "1 2\n", "1 2\n3\n", "1\n2\n", "1 x\n2 3\n", "1 2\n3 -4\n", "1,2\n3,4\n"};
    bench_traffic traffic;
    clear_traffic();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_expect_eq(read_matrix(wrong[i], &traffic), TUTTI_ERR_DATA, "'%s' was taken", wrong[i]);
        cr_expect(strstr(tutti_last_error(), "/tmp/tutti-traffic-"), "%s", tutti_last_error());
    }
    clear_traffic();
    setenv("NCCL_TESTS_ALLTOALLV_SPREAD", "1.5", 1);
    cr_expect_eq(bench_traffic_read(&traffic), TUTTI_ERR_ARGUMENT);
    cr_expect(strstr(tutti_last_error(), "SPREAD=1.5"), "%s", tutti_last_error());
}
