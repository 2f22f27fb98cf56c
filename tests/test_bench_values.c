/*
 * The benchmarks' arithmetic and data: counts and bus factors per collective, and a check that finds each wrong
 * element and no right one.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "bench/collectives.h"
#include "bench/values.h"

TestSuite(bench_values, .timeout = 60);

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

Test(bench_values, data_written_where_none_belongs_is_counted) {
    bench_pattern pattern = {.type = &bench_types[BENCH_TYPE_FLOAT]};
    float data[100] = {0};
    cr_expect_eq(bench_values_check_untouched(&pattern, 100, data), 0);
    data[99] = 1;
    cr_expect_eq(bench_values_check_untouched(&pattern, 100, data), 1);
}
