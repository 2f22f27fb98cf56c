/*
 * Measures the costs of a rail. See rail.h.
 *
 * All ranks exchange messages with neighbours at the same time, since in a collective all of them need the cores
 * and the network at once: first short messages, then long ones, whose length is derived from the time of the
 * shorter ones. The measurement takes some milliseconds. Rank 0 distributes the worst of all ranks' values.
 */
#include "comm/net/coll/rail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/reduce.h"

const tutti_cost tutti_cost_ordinary = {
    .latency_us = 25, .message_us = 3, .bandwidth_gbs = 1.2, .reduce_gbs = 12, .cores = 1};

/* ----------------------------------------------------------------------------------------------------- measuring */

#define SHORT_TIMES      16
#define LONG_TIMES       3
#define MOST_NEIGHBOURS  7
#define LONG_TAKES_US    10000.0 /* target time of the longest exchange */
#define LEAST_LONG_BYTES ((size_t)256 << 10)
#define MOST_LONG_BYTES  (TUTTI_COST_SCRATCH_BYTES / 2)
#define REDUCED_BYTES    ((size_t)128 << 10)
#define LEAST_US         0.01

/* libtutti does not use libm. */
static double larger(double a, double b) {
    return a > b ? a : b;
}

static double smaller(double a, double b) {
    return a < b ? a : b;
}

static int compare_times(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

static double median_us(int64_t *taken_ns, int times) {
    qsort(taken_ns, (size_t)times, sizeof *taken_ns, compare_times);
    return larger((double)taken_ns[times / 2] / 1e3, LEAST_US);
}

/* Sends to the rank `distance` after this one, and receives from the rank `distance` before it. */
static tutti_status pass_on(const tutti_rail *rail, int distance, char *scratch, size_t bytes) {
    int to = (rail->me + distance) % rail->n, from = (rail->me + rail->n - distance) % rail->n;
    return tutti_link_exchange(rail, to, scratch, bytes, from, scratch + MOST_LONG_BYTES, bytes);
}

/* The time of one of several steps, each of which needs the data of the step before, as in a barrier. */
static tutti_status time_step(const tutti_rail *rail, char *scratch, double *us_out) {
    int64_t taken_ns[SHORT_TIMES];
    int steps = 0;
    for (int i = 0; i < SHORT_TIMES; i++) {
        int64_t start_ns = tutti_now_ns();
        steps = 0;
        for (int64_t distance = 1; distance < rail->n; distance *= 2, steps++)
            TUTTI_TRY(pass_on(rail, (int)distance, scratch, 8));
        taken_ns[i] = tutti_now_ns() - start_ns;
    }
    *us_out = median_us(taken_ns, SHORT_TIMES) / steps;
    return TUTTI_OK;
}

/* The cost of one more message that is sent, and one that is received, at the same time as others; measured with
 * several neighbours, since each message wakes another rank. */
static tutti_status time_message(const tutti_rail *rail, char *scratch, double step_us, double *us_out) {
    tutti_link_part parts[2 * MOST_NEIGHBOURS];
    int64_t taken_ns[SHORT_TIMES];
    int neighbours = rail->n - 1 < MOST_NEIGHBOURS ? rail->n - 1 : MOST_NEIGHBOURS, nparts = 0;
    for (int i = 1; i <= neighbours; i++) {
        int to = (rail->me + i) % rail->n, from = (rail->me + rail->n - i) % rail->n;
        char *received = scratch + (ptrdiff_t)i * TUTTI_CACHE_LINE;
        parts[nparts++] = (tutti_link_part){.rank = to, .sends = true, .data = scratch, .bytes = 8};
        parts[nparts++] = (tutti_link_part){.rank = from, .data = received, .bytes = 8};
    }
    for (int i = 0; i < SHORT_TIMES; i++) {
        int64_t start_ns = tutti_now_ns();
        TUTTI_TRY(tutti_link_move(rail, parts, nparts));
        taken_ns[i] = tutti_now_ns() - start_ns;
    }
    double more_us = neighbours > 1 ? (median_us(taken_ns, SHORT_TIMES) - step_us) / (neighbours - 1) : 0;
    *us_out = smaller(larger(more_us, LEAST_US), step_us);
    return TUTTI_OK;
}

/* Uses all links between neighbours in both directions at once. */
static tutti_status time_long(const tutti_rail *rail, char *scratch, size_t bytes, tutti_cost *cost) {
    int64_t taken_ns[LONG_TIMES];
    for (int i = 0; i < LONG_TIMES; i++) {
        int64_t start_ns = tutti_now_ns();
        TUTTI_TRY(pass_on(rail, 1, scratch, bytes));
        taken_ns[i] = tutti_now_ns() - start_ns;
    }
    double us = median_us(taken_ns, LONG_TIMES);
    cost->bandwidth_gbs = (double)bytes / larger(us - cost->latency_us, us / 2) / 1e3;
    return TUTTI_OK;
}

static double time_reducing(char *scratch) {
    const void *srcs[2] = {scratch, scratch + REDUCED_BYTES};
    tutti_reduce_args args = {.dst = scratch + 2 * REDUCED_BYTES,
                              .srcs = srcs,
                              .nsrcs = 2,
                              .count = REDUCED_BYTES / sizeof(float),
                              .type = TUTTI_FLOAT32,
                              .reduction = TUTTI_SUM};
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < 4; i++) {
        int64_t start_ns = tutti_now_ns();
        tutti_reduce_host(&args);
        best_ns = tutti_min_i64(best_ns, tutti_now_ns() - start_ns);
    }
    return 2.0 * (double)REDUCED_BYTES / larger((double)best_ns, 1);
}

static double cores_per_rank(const tutti_comm *comm) {
    return comm->host_cores >= comm->host_ranks ? 1 : (double)comm->host_cores / comm->host_ranks;
}

/* Measures with short messages; the bandwidth with longer ones, from which the longest ones' length is derived. */
static tutti_status measure_short(const tutti_rail *rail, char *scratch, tutti_cost *cost) {
    memset(scratch, 0, TUTTI_COST_SCRATCH_BYTES);
    TUTTI_TRY(time_step(rail, scratch, &cost->latency_us));
    TUTTI_TRY(time_message(rail, scratch, cost->latency_us, &cost->message_us));
    TUTTI_TRY(time_long(rail, scratch, LEAST_LONG_BYTES, cost));
    cost->reduce_gbs = time_reducing(scratch);
    cost->cores = cores_per_rank(rail->comm);
    return TUTTI_OK;
}

/* The bandwidth so far is equal on all ranks. */
static tutti_status measure_long(const tutti_rail *rail, char *scratch, tutti_cost *cost) {
    double bytes = LONG_TAKES_US * 1e3 * cost->bandwidth_gbs;
    if (bytes <= (double)LEAST_LONG_BYTES) return TUTTI_OK;
    return time_long(rail, scratch, bytes < (double)MOST_LONG_BYTES ? (size_t)bytes : MOST_LONG_BYTES, cost);
}

/* The worse value of each number: all ranks wait for the slowest host. */
static tutti_cost worse(const tutti_cost *one, const tutti_cost *other) {
    return (tutti_cost){.latency_us = larger(one->latency_us, other->latency_us),
                        .message_us = larger(one->message_us, other->message_us),
                        .bandwidth_gbs = smaller(one->bandwidth_gbs, other->bandwidth_gbs),
                        .reduce_gbs = smaller(one->reduce_gbs, other->reduce_gbs),
                        .cores = smaller(one->cores, other->cores)};
}

/* ------------------------------------------------------------------------------------------------------ agreeing */

/* A binomial tree, up and down: there is no table of algorithms yet. A parent lacks its child's lowest set bit. */
static int lowest_bit(const tutti_rail *rail) {
    int bit = 1;
    while (bit < rail->n && (rail->me & bit) == 0) bit *= 2;
    return bit;
}

static tutti_status gather_worst(const tutti_rail *rail, tutti_cost *cost) {
    int top = lowest_bit(rail);
    for (int bit = 1; bit < top && rail->me + bit < rail->n; bit *= 2) {
        tutti_cost theirs;
        TUTTI_TRY(tutti_link_recv(rail, rail->me + bit, &theirs, sizeof theirs));
        *cost = worse(cost, &theirs);
    }
    return rail->me > 0 ? tutti_link_send(rail, rail->me - top, cost, sizeof *cost) : TUTTI_OK;
}

static tutti_status spread(const tutti_rail *rail, tutti_cost *cost) {
    int top = lowest_bit(rail);
    if (rail->me > 0) TUTTI_TRY(tutti_link_recv(rail, rail->me - top, cost, sizeof *cost));
    for (int bit = top / 2; bit > 0; bit /= 2)
        if (rail->me + bit < rail->n) TUTTI_TRY(tutti_link_send(rail, rail->me + bit, cost, sizeof *cost));
    return TUTTI_OK;
}

static tutti_status agree_on_worst(const tutti_rail *rail, tutti_cost *cost) {
    TUTTI_TRY(gather_worst(rail, cost));
    return spread(rail, cost);
}

static bool is_sane(const tutti_cost *cost) {
    return isfinite(cost->latency_us) && isfinite(cost->message_us) && isfinite(cost->bandwidth_gbs) &&
           isfinite(cost->reduce_gbs) && isfinite(cost->cores) && cost->latency_us >= 0 && cost->message_us >= 0 &&
           cost->bandwidth_gbs > 0 && cost->reduce_gbs > 0 && cost->cores >= 0;
}

tutti_status tutti_cost_agree(const tutti_rail *rail, char *scratch, tutti_cost *cost_out) {
    tutti_cost cost = tutti_cost_ordinary;
    if (rail->n > 1) {
        TUTTI_TRY(measure_short(rail, scratch, &cost));
        TUTTI_TRY(agree_on_worst(rail, &cost));
        TUTTI_TRY(measure_long(rail, scratch, &cost));
        TUTTI_TRY(agree_on_worst(rail, &cost));
    }
    if (!is_sane(&cost))
        return tutti_fail(TUTTI_ERR_DATA, "rank 0 of a rail sent invalid network costs: negative, zero or not finite");
    *cost_out = cost;
    return TUTTI_OK;
}
