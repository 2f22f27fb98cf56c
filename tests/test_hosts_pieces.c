/*
 * Long calls between hosts, which go in pieces: while one is on the network, others are under way in shared memory. What
 * crosses the network, and what happens when the call ends in the middle: an error on all ranks, nobody hangs, and no
 * buffer is written after the call.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/call.h"
#include "tests/support/hosts.h"
#include "tests/support/reference.h"

#define LAYOUT(...) ((const int[]){__VA_ARGS__, 0})
#define SLOW        "400mbit"
#define PIECES      "TUTTI_CHUNK_BYTES=64K"

static const char *const in_pieces[] = {PIECES, NULL};

/* Shared by the ranks of a run. */
typedef struct scene {
    call_kind kind;
    size_t count;
    int victim;
    _Atomic uint64_t bytes; /* that host 0 sent for one operation */
    atomic_llong event_ns;
} scene;

static scene *stage(call_kind kind, size_t count) {
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(s, MAP_FAILED);
    s->kind = kind;
    s->count = count;
    return s;
}

static void run(const int *layout, const char *rate, const char *const *environment, scene *s, ranks_body body) {
    const char *failure = hosts_run(&(hosts_options){.ranks_per_host = layout,
                                                     .network = {.rate = rate},
                                                     .environment = environment,
                                                     .timeout_s = 60,
                                                     .argument = s},
                                    body);
    cr_assert(failure == NULL, "%s", failure);
}

/* Kinds that go in pieces. */
static const call_kind kinds[] = {CALL_ALL_REDUCE,   CALL_REDUCE,         CALL_BROADCAST,       CALL_ALL_GATHER,
                                  CALL_ALL_GATHER_V, CALL_REDUCE_SCATTER, CALL_REDUCE_SCATTER_V};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ------------------------------------------------------------------------------------------------ results */

/* Several calls of different kinds at a time, many pieces each. */
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
    run(LAYOUT(2, 2), NULL, in_pieces, NULL, mix);
    run(LAYOUT(1, 3), NULL, in_pieces, NULL, mix);
    run(LAYOUT(2, 2, 2), NULL, in_pieces, NULL, mix);
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
    run(LAYOUT(2, 2), NULL, in_pieces, NULL, keep_in_flight);
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
        double share; /* of the vector, that host 0 of two sends */
    } expected[] = {{CALL_ALL_REDUCE, 1}, {CALL_BROADCAST, 1}, {CALL_ALL_GATHER, 0.5}, {CALL_REDUCE_SCATTER, 0.5}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        scene *s = stage(expected[i].kind, (size_t)4 << 20);
        run(LAYOUT(4, 4), NULL, in_pieces, s, count_bytes);
        double least = expected[i].share * (double)s->count * sizeof(float);
        cr_assert((double)s->bytes > least && (double)s->bytes < 1.12 * least, "%s: %.0f bytes instead of %.0f",
                  call_name(s->kind), (double)s->bytes, least);
        munmap(s, sizeof *s);
    }
}

/* -------------------------------------------------------------------------------------- ends in the middle */

typedef struct big_call {
    ranks_context *context;
    char *src, *dst;
    size_t src_bytes, dst_bytes;
} big_call;

static tutti_status call_once(const big_call *b) {
    const scene *s = b->context->argument;
    tutti_comm *comm = b->context->comm;
    size_t block = s->count / (size_t)b->context->nranks;
    switch (s->kind) {
    case CALL_ALL_REDUCE: return tutti_all_reduce(comm, b->src, b->dst, s->count, TUTTI_FLOAT32, TUTTI_SUM, NULL);
    case CALL_REDUCE: return tutti_reduce(comm, b->src, b->dst, s->count, TUTTI_FLOAT32, TUTTI_SUM, 0, NULL);
    case CALL_BROADCAST: return tutti_broadcast(comm, b->dst, s->count, TUTTI_FLOAT32, 0, NULL);
    case CALL_ALL_GATHER: return tutti_all_gather(comm, b->src, b->dst, block, TUTTI_FLOAT32, NULL);
    default: return tutti_reduce_scatter(comm, b->src, b->dst, block, TUTTI_FLOAT32, TUTTI_SUM, NULL);
    }
}

/* Calls until an error, and sees to it that nothing is written after that. */
static tutti_status call_until_it_fails(ranks_context *context, tutti_status *status_out) {
    const scene *s = context->argument;
    size_t bytes = s->count * sizeof(float);
    big_call b = {.context = context, .src = calloc(1, bytes), .dst = calloc(1, bytes)};
    char *copy = malloc(bytes);
    RANKS_CHECK(b.src != NULL && b.dst != NULL && copy != NULL, "no memory");
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < 100 && status == TUTTI_OK; i++) status = call_once(&b);
    memset(b.dst, 0x5a, bytes);
    memcpy(copy, b.dst, bytes);
    char text[1024];
    snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
    usleep(300000);
    bool same = memcmp(copy, b.dst, bytes) == 0;
    free(b.src), free(b.dst), free(copy);
    RANKS_CHECK(same, "the buffer was written after the call: %s", text);
    *status_out = status;
    return status == TUTTI_OK ? TUTTI_OK : (tutti_fail(status, "%s", text), TUTTI_OK);
}

static void *strike_soon(void *argument) {
    ranks_context *context = argument;
    scene *s = context->argument;
    usleep(250000);
    atomic_store(&s->event_ns, tutti_now_ns());
    ranks_forgive(context, s->victim);
    kill(ranks_pid(context, s->victim), SIGKILL);
    return NULL;
}

static tutti_status lose_rank(ranks_context *context) {
    scene *s = context->argument;
    pthread_t thread;
    tutti_status status;
    if (context->rank == 0 && pthread_create(&thread, NULL, strike_soon, context) != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "no thread");
    TUTTI_TRY(call_until_it_fails(context, &status));
    int64_t after_ms = (tutti_now_ns() - atomic_load(&s->event_ns)) / 1000000;
    if (context->rank == 0) pthread_join(thread, NULL);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "'%s'", tutti_status_name(status));
    RANKS_CHECK(after_ms < 4500, "told after %lld ms", (long long)after_ms);
    return TUTTI_OK;
}

static void lose(call_kind kind, int victim) {
    scene *s = stage(kind, (size_t)2 << 20);
    s->victim = victim;
    run(LAYOUT(2, 2), SLOW, in_pieces, s, lose_rank);
    munmap(s, sizeof *s);
}

Test(hosts_pieces, a_rank_that_dies_while_pieces_are_under_way_is_an_error_on_all) {
    HOSTS_NEED(.rate = SLOW);
    lose(CALL_ALL_REDUCE, 3);
    lose(CALL_ALL_REDUCE, 2);
    lose(CALL_ALL_REDUCE, 1);
    lose(CALL_ALL_GATHER, 3);
    lose(CALL_REDUCE_SCATTER, 2);
}

static void *abort_soon(void *argument) {
    usleep(250000);
    tutti_comm_abort(((ranks_context *)argument)->comm, "enough");
    return NULL;
}

static tutti_status abort_meanwhile(ranks_context *context) {
    pthread_t thread;
    tutti_status status;
    const scene *s = context->argument;
    bool aborts = context->rank == s->victim;
    if (aborts && pthread_create(&thread, NULL, abort_soon, context) != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "no thread");
    TUTTI_TRY(call_until_it_fails(context, &status));
    char text[1024];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (aborts) pthread_join(thread, NULL);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED && strstr(text, "enough") != NULL, "'%s': %s", tutti_status_name(status),
                text);
    return TUTTI_OK;
}

Test(hosts_pieces, an_abort_while_pieces_are_under_way_ends_the_call_on_all_ranks) {
    HOSTS_NEED(.rate = SLOW);
    for (int i = 0; i < 2; i++) {
        scene *s = stage(i == 0 ? CALL_ALL_REDUCE : CALL_BROADCAST, (size_t)2 << 20);
        s->victim = 2 + i;
        run(LAYOUT(2, 2), SLOW, in_pieces, s, abort_meanwhile);
        munmap(s, sizeof *s);
    }
}

/* The deadline passes in the middle: the network would need a second. */
static tutti_status be_too_slow(ranks_context *context) {
    const scene *s = context->argument;
    float *values = calloc(s->count, sizeof *values);
    RANKS_CHECK(values != NULL, "no memory");
    tutti_status status = tutti_all_reduce(context->comm, values, values, s->count, TUTTI_FLOAT32, TUTTI_SUM,
                                           &TUTTI_OPTIONS(.timeout_ms = 300));
    char text[1024];
    snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
    free(values);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT && strstr(text, "all_reduce") != NULL, "'%s': %s",
                tutti_status_name(status), text);
    return TUTTI_OK;
}

Test(hosts_pieces, a_deadline_that_passes_between_pieces_names_the_call) {
    HOSTS_NEED(.rate = SLOW);
    scene *s = stage(CALL_ALL_REDUCE, (size_t)16 << 20);
    run(LAYOUT(2, 2), SLOW, in_pieces, s, be_too_slow);
    munmap(s, sizeof *s);
}
