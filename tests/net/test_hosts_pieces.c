/*
 * Long calls between hosts, which go in pieces: while one is on the network, others are under way in shared memory.
 * Tests their results, and the bytes that cross the network. Calls that end early are in test_hosts_pieces_end.c.
 */
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "tests/support/call.h"
#include "tests/support/hosts/hosts.h"

#define LAYOUT(...) ((const int[]){__VA_ARGS__, 0})

static const char *const in_pieces[] = {"TUTTI_CHUNK_BYTES=64K", NULL};

/* Shared by the ranks of a run. */
typedef struct scene {
    call_kind kind;
    size_t count;
    _Atomic uint64_t bytes; /* bytes that host 0 sent for one operation */
} scene;

static scene *stage(call_kind kind, size_t count) {
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(s, MAP_FAILED);
    s->kind = kind;
    s->count = count;
    return s;
}

static void run(const int *layout, scene *s, ranks_body body) {
    const char *failure =
        hosts_run(&(hosts_options){.ranks_per_host = layout, .environment = in_pieces, .argument = s}, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* Kinds that go in pieces. */
static const call_kind kinds[] = {CALL_ALL_REDUCE,   CALL_REDUCE,         CALL_BROADCAST,       CALL_ALL_GATHER,
                                  CALL_ALL_GATHER_V, CALL_REDUCE_SCATTER, CALL_REDUCE_SCATTER_V};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ------------------------------------------------------------------------------------------------ results */

/* Makes several calls of different kinds at a time, many pieces each. */
static tutti_status mix(ranks_context *context) {
    for (unsigned turn = 0; turn < 3 * KINDS; turn++) {
        call c = {.kind = kinds[turn % KINDS],
                  .type = turn % 2 == 0 ? TUTTI_FLOAT32 : TUTTI_BFLOAT16,
                  .reduction = turn % 3 == 0 ? TUTTI_AVG : TUTTI_SUM,
                  .count = 200003 + turn,
                  .root = (int)(turn % (unsigned)context->nranks),
                  .in_place = (call_mode)(turn % CALL_MODES),
                  .shared = (call_mode)(turn / 2 % CALL_MODES),
                  .seed = turn};
        TUTTI_TRY(call_run(&c, context->comm));
    }
    return TUTTI_OK;
}

Test(hosts_pieces, all_kinds_equal_the_reference_in_many_pieces) {
    HOSTS_NEED(0);
    run(LAYOUT(2, 2), NULL, mix);
    run(LAYOUT(1, 3), NULL, mix);
    run(LAYOUT(2, 2, 2), NULL, mix);
}

static tutti_status keep_in_flight(ranks_context *context) {
    enum { WORKS = 4, COUNT = 300000 };
    static int64_t values[WORKS][COUNT];
    tutti_work *works[WORKS];
    int64_t n = context->nranks;
    for (int i = 0; i < WORKS; i++) {
        for (int k = 0; k < COUNT; k++) values[i][k] = context->rank + i + k;
        TUTTI_TRY(tutti_all_reduce(context->comm, values[i], values[i], COUNT, TUTTI_INT64, TUTTI_SUM,
                                   &TUTTI_OPTIONS(.work = &works[i])));
    }
    for (int i = 0; i < WORKS; i++) {
        TUTTI_TRY(tutti_work_wait(works[i], -1));
        tutti_work_free(works[i]);
        for (int k = 0; k < COUNT; k++)
            RANKS_CHECK(values[i][k] == n * (n - 1) / 2 + n * (i + k), "work %d, element %d: %lld", i, k,
                        (long long)values[i][k]);
    }
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_pieces, asynchronous_calls_may_go_in_pieces_too) {
    HOSTS_NEED(0);
    run(LAYOUT(2, 2), NULL, keep_in_flight);
}

/* ----------------------------------------------------------------------------------------- bytes on the wire */

static tutti_status run_once(ranks_context *context, size_t count) {
    const scene *s = context->argument;
    call c = {.kind = s->kind, .type = TUTTI_FLOAT32, .count = count, .seed = 7};
    return call_run(&c, context->comm);
}

static tutti_status count_bytes(ranks_context *context) {
    scene *s = context->argument;
    uint64_t before = 0, after = 0;
    size_t blocks = s->kind == CALL_ALL_GATHER || s->kind == CALL_REDUCE_SCATTER ? (size_t)context->nranks : 1;
    TUTTI_TRY(run_once(context, 40)); /* makes the links */
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    TUTTI_TRY(netns_bytes_sent(hosts_network(), 0, &before));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    TUTTI_TRY(run_once(context, s->count / blocks));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    TUTTI_TRY(netns_bytes_sent(hosts_network(), 0, &after));
    if (context->rank == 0) atomic_store(&s->bytes, after - before);
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_pieces, pieces_do_not_make_bytes_cross_the_network_again) {
    HOSTS_NEED(0);
    static const struct {
        call_kind kind;
        double share; /* share of the vector that host 0 of two sends */
    } expected[] = {{CALL_ALL_REDUCE, 1}, {CALL_BROADCAST, 1}, {CALL_ALL_GATHER, 0.5}, {CALL_REDUCE_SCATTER, 0.5}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        scene *s = stage(expected[i].kind, (size_t)4 << 20);
        run(LAYOUT(4, 4), s, count_bytes);
        double least = expected[i].share * (double)s->count * sizeof(float);
        cr_assert((double)s->bytes > least && (double)s->bytes < 1.12 * least, "%s: %.0f bytes instead of %.0f",
                  call_name(s->kind), (double)s->bytes, least);
        munmap(s, sizeof *s);
    }
}

/* ------------------------------------------------------------------------------------------------ time */

#define LINK      "2gbit"
#define LINK_GBS  0.25
#define LONG_SUM  ((size_t)16 << 20) /* floats */
#define MOST_MORE 1.25
enum { TRIES = 5, SUMS = 3 };

typedef struct timing {
    _Atomic int64_t ns; /* time of the fastest sum, on rank 0 */
} timing;

static tutti_status time_sums(ranks_context *context) {
    timing *t = context->argument;
    int64_t best_ns = INT64_MAX;
    void *values;
    TUTTI_TRY(tutti_mem_alloc(LONG_SUM * sizeof(float), &values));
    memset(values, 0, LONG_SUM * sizeof(float));
    tutti_status status = tutti_all_reduce(context->comm, values, values, LONG_SUM, TUTTI_FLOAT32, TUTTI_SUM, NULL);
    for (int i = 0; i < SUMS && status == TUTTI_OK; i++) {
        status = tutti_barrier(context->comm, NULL);
        int64_t start_ns = tutti_now_ns();
        if (status == TUTTI_OK)
            status = tutti_all_reduce(context->comm, values, values, LONG_SUM, TUTTI_FLOAT32, TUTTI_SUM, NULL);
        if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
        best_ns = tutti_min_i64(best_ns, tutti_now_ns() - start_ns);
    }
    if (context->rank == 0) atomic_store(&t->ns, best_ns);
    tutti_mem_free(values);
    return status;
}

static double seconds_of_sum(const int *layout, timing *t) {
    const char *failure =
        hosts_run(&(hosts_options){.ranks_per_host = layout, .network = {.rate = LINK}, .argument = t}, time_sums);
    cr_assert(failure == NULL, "%s", failure);
    return (double)atomic_load(&t->ns) / 1e9;
}

/* On a busy machine the cores may be the bottleneck; then it tries again. */
Test(hosts_pieces, four_ranks_of_a_host_take_hardly_longer_than_one_where_the_link_is_the_bottleneck) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    cr_skip_test("a sanitizer distorts times");
#endif
    HOSTS_NEED(.rate = LINK);
    timing *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double one = 0, four = 0, least = (double)LONG_SUM * sizeof(float) / (LINK_GBS * 1e9);
    cr_assert_neq(t, MAP_FAILED);
    for (int i = 0; i < TRIES && (i == 0 || four > MOST_MORE * one); i++) {
        one = seconds_of_sum(LAYOUT(1, 1), t);
        four = seconds_of_sum(LAYOUT(4, 4), t);
        cr_log_info("64 MiB over " LINK ": %.3f s with one rank per host, %.3f s with four: %.2f times", one, four,
                    four / one);
    }
    cr_assert(one > least, "64 MiB took %.3f s, faster than the link", one);
    cr_assert_leq(four, MOST_MORE * one, "%.3f s with four ranks per host, %.3f s with one", four, one);
    munmap(t, sizeof *t);
}
