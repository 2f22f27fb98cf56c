/*
 * Collectives and messages between hosts: every kind, type and class of sizes equals the reference, on hosts with equal
 * and with different numbers of ranks, and each byte crosses the network once per host.
 */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/hosts/hosts.h"
#include "tests/support/reference.h"
#include "tests/support/sweep.h"

#define LAYOUT(...) ((const int[]){__VA_ARGS__, 0})
#define MIB         ((size_t)1 << 20)

static const int *const layouts[] = {LAYOUT(1, 1), LAYOUT(2, 2), LAYOUT(1, 3), LAYOUT(2, 2, 2), LAYOUT(1, 1, 1, 1)};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void run_one(const int *layout, const char *const *environment, void *argument, ranks_body body) {
    const char *failure = hosts_run(
        &(hosts_options){.ranks_per_host = layout, .timeout_s = 150, .environment = environment, .argument = argument},
        body);
    cr_assert(failure == NULL, "%s", failure);
}

static void run(void *argument, ranks_body body) {
    HOSTS_NEED(0);
    for (int i = 0; i < LAYOUTS; i++) run_one(layouts[i], NULL, argument, body);
}

/* ---------------------------------------------------------------------------------------------- sweeps */

static tutti_status sweep_kinds(ranks_context *context) {
    for (int i = 0; i < CALL_KINDS; i++) {
        call_kind kind = (call_kind)i;
        context->argument = &kind;
        TUTTI_TRY(sweep_rank(context));
    }
    return TUTTI_OK;
}

static void sweep(const int *layout) {
    HOSTS_NEED(0);
    run_one(layout, sweep_environment, NULL, sweep_kinds);
}

Test(hosts_collectives, all_kinds_equal_the_reference_on_two_hosts_of_one_rank) {
    sweep(LAYOUT(1, 1));
}

Test(hosts_collectives, all_kinds_equal_the_reference_on_two_hosts_of_two_ranks) {
    sweep(LAYOUT(2, 2));
}

Test(hosts_collectives, all_kinds_equal_the_reference_on_hosts_of_one_and_three_ranks) {
    sweep(LAYOUT(1, 3));
}

Test(hosts_collectives, all_kinds_equal_the_reference_on_three_hosts_of_two_ranks) {
    sweep(LAYOUT(2, 2, 2));
}

Test(hosts_collectives, all_kinds_equal_the_reference_on_four_hosts_of_one_rank) {
    sweep(LAYOUT(1, 1, 1, 1));
}

Test(hosts_collectives, all_kinds_equal_the_reference_on_two_hosts_of_four_ranks) {
    sweep(LAYOUT(4, 4));
}

Test(hosts_collectives, all_kinds_equal_the_reference_on_four_hosts_of_one_to_four_ranks) {
    sweep(LAYOUT(2, 4, 1, 3));
}

/* Covers what no sweep has: the default settings, and sizes of one and of many pieces of a link. */
static tutti_status move_megabytes(ranks_context *context) {
    static const size_t counts[] = {5003, 70001, 300007};
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            unsigned turn = (unsigned)kind + (unsigned)i;
            call c = {.kind = (call_kind)kind,
                      .type = turn % 4 == 0 ? TUTTI_BFLOAT16 : TUTTI_FLOAT32,
                      .count = counts[i] / (size_t)(call_reduces((call_kind)kind) ? 1 : context->nranks),
                      .root = (int)(turn % (unsigned)context->nranks),
                      .in_place = (call_mode)(turn % CALL_MODES),
                      .shared = (call_mode)(turn / 2 % CALL_MODES),
                      .seed = turn};
            TUTTI_TRY(call_run(&c, context->comm));
        }
    }
    return TUTTI_OK;
}

Test(hosts_collectives, large_buffers_pass_with_the_default_settings) {
    run(NULL, move_megabytes);
}

/* --------------------------------------------------------------------------------------------- meaning */

static tutti_status arrive_and_look(ranks_context *context) {
    atomic_int *arrived = context->argument;
    int before = atomic_load(arrived);
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    for (int round = 0; round < 20; round++) {
        if (context->rank == round % context->nranks) usleep(2000);
        atomic_fetch_add(arrived, 1);
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
        int seen = atomic_load(arrived) - before, needed = (round + 1) * context->nranks;
        RANKS_CHECK(seen >= needed, "left barrier %d when %d of %d had arrived", round, seen, needed);
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
    }
    return TUTTI_OK;
}

Test(hosts_collectives, no_rank_leaves_a_barrier_before_all_hosts_have_entered_it) {
    atomic_int *arrived = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(arrived, MAP_FAILED);
    run(arrived, arrive_and_look);
    munmap(arrived, 4096);
}

/* The same bits on all ranks and in all repeats, whichever rank comes late. */
static tutti_status repeat_sum(ranks_context *context) {
    enum { COUNT = 3001 };
    static float first[COUNT], values[COUNT], others[16 * COUNT];
    RANKS_CHECK(context->nranks <= 16, "too many ranks");
    for (int round = 0; round < 12; round++) {
        reference_fill(values, COUNT, TUTTI_FLOAT32, TUTTI_SUM, 5, context->rank, 0);
        if ((context->rank + round) % 3 == 0) usleep(1000);
        TUTTI_TRY(tutti_all_reduce(context->comm, values, values, COUNT, TUTTI_FLOAT32, TUTTI_SUM, NULL));
        if (round == 0) memcpy(first, values, sizeof first);
        RANKS_CHECK(memcmp(first, values, sizeof first) == 0, "round %d has other bits than the first", round);
    }
    TUTTI_TRY(tutti_all_gather(context->comm, first, others, COUNT, TUTTI_FLOAT32, NULL));
    for (int rank = 0; rank < context->nranks; rank++)
        RANKS_CHECK(memcmp(first, others + (size_t)rank * COUNT, sizeof first) == 0, "rank %d has other bits", rank);
    return TUTTI_OK;
}

Test(hosts_collectives, a_sum_of_floats_has_the_same_bits_on_all_ranks_and_in_every_repeat) {
    run(NULL, repeat_sum);
}

static tutti_status call_differently(ranks_context *context) {
    static int values[100];
    size_t count = hosts_of(context->rank) == 1 ? 60 : 50;
    tutti_status status = tutti_all_reduce(context->comm, values, values, count, TUTTI_INT32, TUTTI_SUM, NULL);
    if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
    const char *text = status != TUTTI_OK ? tutti_last_error() : "";
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH, "'%s' (%s)", tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, "60") != NULL && strstr(text, "50") != NULL, "does not show both calls: %s", text);
    return TUTTI_OK;
}

Test(hosts_collectives, calls_that_differ_between_hosts_are_an_error_on_all_ranks) {
    run(NULL, call_differently);
}

/* ---------------------------------------------------------------------------------------------- groups */

/* Runs all kinds once on a communicator whose rank k is rank ranks[k] of the world. */
static tutti_status call_all(tutti_comm *comm, const int *ranks, uint64_t seed) {
    static int host_of[64];
    int names[NETNS_HOSTS_MAX], hosts = 0, n = tutti_comm_size(comm);
    for (int k = 0; k < n; k++) { /* hosts are numbered as they appear */
        int name = 0;
        while (name < hosts && names[name] != hosts_of(ranks[k])) name++;
        if (name == hosts) names[hosts++] = hosts_of(ranks[k]);
        host_of[k] = name;
    }
    reference_set_hosts(host_of);
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        call c = {.kind = (call_kind)kind, .type = TUTTI_FLOAT32, .count = 777, .root = n - 1, .seed = seed};
        TUTTI_TRY(call_run(&c, comm));
    }
    return TUTTI_OK;
}

/* Ranks of the world with this colour, ordered by key, as tutti_comm_split orders them. */
static tutti_status split_and_call(ranks_context *context, int (*color_of)(int rank), int (*key_of)(int rank)) {
    tutti_comm *comm;
    int ranks[64], n = 0, color = color_of(context->rank);
    for (int key = 0; key < context->nranks; key++)
        for (int rank = 0; rank < context->nranks; rank++)
            if (color_of(rank) == color && key_of(rank) == key) ranks[n++] = rank;
    TUTTI_TRY(tutti_comm_split(context->comm, color, key_of(context->rank), NULL, &comm));
    tutti_status status = TUTTI_OK;
    if (tutti_comm_size(comm) != n) status = tutti_fail(TUTTI_ERR_DATA, "%d ranks, not %d", tutti_comm_size(comm), n);
    if (status == TUTTI_OK) status = call_all(comm, ranks, (uint64_t)color + 1);
    tutti_status destroyed = tutti_comm_destroy(comm);
    return status != TUTTI_OK ? status : destroyed;
}

static int none(int rank) {
    (void)rank;
    return 0;
}

static int local(int rank) {
    return rank - hosts_first(hosts_of(rank));
}

static int backwards(int rank) {
    return hosts_first(hosts_count()) - 1 - rank;
}

static int odd(int rank) {
    return rank % 2;
}

static tutti_status split_in_all_ways(ranks_context *context) {
    TUTTI_TRY(split_and_call(context, hosts_of, none));  /* one per host */
    TUTTI_TRY(split_and_call(context, local, none));     /* one rank of each host */
    TUTTI_TRY(split_and_call(context, none, local));     /* all, hosts in turn */
    TUTTI_TRY(split_and_call(context, none, backwards)); /* all, the last host first */
    TUTTI_TRY(split_and_call(context, odd, backwards));
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_collectives, communicators_can_be_split_within_hosts_across_and_in_any_order) {
    run(NULL, split_in_all_ways);
}

static tutti_status group_of_some(ranks_context *context) {
    int ranks[2] = {context->nranks - 1, 0};
    tutti_comm *comm;
    if (context->rank == 0 || context->rank == context->nranks - 1) {
        TUTTI_TRY(tutti_comm_create_group(context->comm, ranks, 2, 7, NULL, &comm));
        tutti_status status = call_all(comm, ranks, 3);
        tutti_status destroyed = tutti_comm_destroy(comm);
        TUTTI_TRY(status != TUTTI_OK ? status : destroyed);
    }
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_collectives, a_group_of_ranks_on_different_hosts_is_made_by_them_alone) {
    run(NULL, group_of_some);
}

/* ------------------------------------------------------------------------------------ several at a time */

static tutti_status keep_many_in_flight(ranks_context *context) {
    enum { WORKS = 12 };
    static int64_t values[WORKS][2000];
    tutti_work *works[WORKS];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < WORKS; i++) {
            for (int k = 0; k < 2000; k++) values[i][k] = context->rank + i + k;
            TUTTI_TRY(tutti_all_reduce(context->comm, values[i], values[i], 2000, TUTTI_INT64, TUTTI_SUM,
                                       &TUTTI_OPTIONS(.work = &works[i])));
        }
        for (int i = WORKS - 1; i >= 0; i--) {
            TUTTI_TRY(tutti_work_wait(works[i], -1));
            tutti_work_free(works[i]);
        }
        int64_t n = context->nranks;
        for (int i = 0; i < WORKS; i++)
            for (int k = 0; k < 2000; k++)
                RANKS_CHECK(values[i][k] == n * (n - 1) / 2 + n * (i + k), "work %d, element %d: %lld", i, k,
                            (long long)values[i][k]);
    }
    return TUTTI_OK;
}

Test(hosts_collectives, many_works_may_be_under_way) {
    run(NULL, keep_many_in_flight);
}

/* -------------------------------------------------------------------------------------------- messages */

/* Every rank sends to every other one, all at once, and receives from the others, last rank first. */
static tutti_status send_to_all(ranks_context *context, size_t count) {
    int n = context->nranks;
    tutti_work *works[2 * 16];
    int nworks = 0;
    RANKS_CHECK(n <= 16, "too many ranks");
    int *out = malloc((size_t)n * count * sizeof *out + 1), *in = calloc((size_t)n * count + 1, sizeof *in);
    tutti_status status = out != NULL && in != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_MEMORY, "no memory");
    for (int step = 1; step < n && status == TUTTI_OK; step++) {
        int to = (context->rank + step) % n, from = (context->rank + step) % n;
        for (size_t i = 0; i < count; i++) out[(size_t)to * count + i] = context->rank * 1000 + to + (int)i;
        TUTTI_TRY_GOTO(status,
                       tutti_send(context->comm, out + (size_t)to * count, count, TUTTI_INT32, to, (int64_t)count,
                                  &TUTTI_OPTIONS(.work = &works[nworks])),
                       done);
        nworks++;
        TUTTI_TRY_GOTO(status,
                       tutti_recv(context->comm, in + (size_t)from * count, count, TUTTI_INT32, from, (int64_t)count,
                                  &TUTTI_OPTIONS(.work = &works[nworks])),
                       done);
        nworks++;
    }
    for (int i = nworks - 1; i >= 0 && status == TUTTI_OK; i--) status = tutti_work_wait(works[i], -1);
    for (int from = 0; from < n && status == TUTTI_OK; from++)
        for (size_t i = 0; i < count && from != context->rank && status == TUTTI_OK; i++)
            if (in[(size_t)from * count + i] != from * 1000 + context->rank + (int)i)
                status = tutti_fail(TUTTI_ERR_DATA, "element %zu of %zu from rank %d is %d", i, count, from,
                                    in[(size_t)from * count + i]);
done:
    for (int i = 0; i < nworks; i++) tutti_work_free(works[i]);
    if (status == TUTTI_OK) free(out), free(in); /* otherwise works may still use them */
    return status;
}

static tutti_status exchange_messages(ranks_context *context) {
    static const size_t counts[] = {0, 1, 31, 1000, 17000, 300007};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) TUTTI_TRY(send_to_all(context, counts[i]));
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_collectives, every_rank_can_send_to_every_other_one) {
    run(NULL, exchange_messages);
}

/* ------------------------------------------------------------------------------------ bytes on the wire */

typedef struct wire {
    size_t count;
    _Atomic uint64_t bytes; /* bytes that host 0 sent for one operation */
} wire;

static tutti_status count_bytes(ranks_context *context) {
    wire *w = context->argument;
    uint64_t before = 0, after = 0;
    float *values = calloc(w->count, sizeof *values);
    RANKS_CHECK(values != NULL, "no memory");
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_all_reduce(context->comm, values, values, 1000, TUTTI_FLOAT32, TUTTI_SUM, NULL), done);
    TUTTI_TRY_GOTO(status, netns_bytes_sent(hosts_network(), 0, &before), done);
    TUTTI_TRY_GOTO(status, tutti_barrier(context->comm, NULL), done);
    TUTTI_TRY_GOTO(status, tutti_all_reduce(context->comm, values, values, w->count, TUTTI_FLOAT32, TUTTI_SUM, NULL),
                   done);
    TUTTI_TRY_GOTO(status, tutti_barrier(context->comm, NULL), done);
    TUTTI_TRY_GOTO(status, netns_bytes_sent(hosts_network(), 0, &after), done);
    if (context->rank == 0) atomic_store(&w->bytes, after - before);
    status = tutti_barrier(context->comm, NULL);
done:
    free(values);
    return status;
}

Test(hosts_collectives, each_byte_crosses_the_network_once_per_host_not_once_per_rank) {
    HOSTS_NEED(0);
    wire *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(w, MAP_FAILED);
    w->count = 64 * MIB / sizeof(float);
    run_one(LAYOUT(1, 1), NULL, w, count_bytes);
    double one = (double)w->bytes;
    run_one(LAYOUT(4, 4), NULL, w, count_bytes);
    double four = (double)w->bytes;
    cr_assert(one > 64 * (double)MIB && one < 1.10 * 64 * (double)MIB, "%.0f bytes with one rank per host", one);
    cr_assert(four <= 1.05 * one, "%.0f bytes with four ranks per host, %.0f with one", four, one);
    munmap(w, sizeof *w);
}
