/*
 * Long calls between hosts, in pieces, that end early: a rank dies, aborts from another thread, is interrupted, or
 * stops until the others' deadline has passed, and goes on later. No rank hangs, all get the error, and no buffer is
 * written once its call has returned: each rank then fills it with a pattern, and checks it long after all have
 * returned.
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
#include "tests/support/hosts/hosts.h"

TestSuite(hosts_pieces_end, .timeout = 200);

#define LAYOUT(...) ((const int[]){__VA_ARGS__, 0})
#define SLOW        "400mbit"
#define PATTERN     0x5a
#define NS_PER_MS   INT64_C(1000000)

enum { NRANKS = 4, SOON_US = 250000, LONG_AGO_MS = 1000, DEADLINE_MS = 1500 };

static const char *const in_pieces[] = {"TUTTI_CHUNK_BYTES=64K", NULL};

/* How a call ends. */
typedef enum ending { DIES, ABORTS, IS_INTERRUPTED, STOPS } ending;

/* Shared by the ranks of a run. */
typedef struct scene {
    call_kind kind;
    size_t count;
    bool shared; /* buffers from tutti_mem_alloc */
    ending how;
    int victim;
    atomic_llong event_ns; /* 0: not yet */
    _Atomic int returned;  /* ranks whose call has failed, and which have filled the buffer */
    atomic_llong all_ns;   /* time when all had */
} scene;

static void run(const scene *given, ranks_body body) {
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(s, MAP_FAILED);
    *s = *given;
    const char *failure = hosts_run(
        &(hosts_options){
            .ranks_per_host = LAYOUT(2, 2), .network = {.rate = SLOW}, .environment = in_pieces, .argument = s},
        body);
    cr_assert(failure == NULL, "%s: %s", call_name(given->kind), failure);
    munmap(s, sizeof *s);
}

/* ------------------------------------------------------------------------------------------------ calls */

typedef struct buffers {
    size_t bytes;
    bool shared;
    void *src, *dst;
} buffers;

static tutti_status buffers_get(const scene *s, buffers *b) {
    *b = (buffers){.bytes = s->count * sizeof(float), .shared = s->shared};
    if (b->shared) {
        TUTTI_TRY(tutti_mem_alloc(b->bytes, &b->src));
        TUTTI_TRY(tutti_mem_alloc(b->bytes, &b->dst));
    } else {
        b->src = malloc(b->bytes);
        b->dst = malloc(b->bytes);
    }
    RANKS_CHECK(b->src != NULL && b->dst != NULL, "no memory");
    memset(b->src, 0, b->bytes);
    memset(b->dst, 0, b->bytes);
    return TUTTI_OK;
}

static void buffers_give_back(const buffers *b) {
    if (b->shared) {
        tutti_mem_free(b->src);
        tutti_mem_free(b->dst);
    } else {
        free(b->src);
        free(b->dst);
    }
}

static tutti_status call_once(const ranks_context *context, const buffers *b) {
    const scene *s = context->argument;
    tutti_comm *comm = context->comm;
    size_t block = s->count / (size_t)context->nranks;
    const tutti_options options = TUTTI_OPTIONS(.timeout_ms = s->how == STOPS ? DEADLINE_MS : 0);
    switch (s->kind) {
    case CALL_ALL_REDUCE: return tutti_all_reduce(comm, b->src, b->dst, s->count, TUTTI_FLOAT32, TUTTI_SUM, &options);
    case CALL_BROADCAST: return tutti_broadcast(comm, b->dst, s->count, TUTTI_FLOAT32, 0, &options);
    case CALL_ALL_GATHER: return tutti_all_gather(comm, b->src, b->dst, block, TUTTI_FLOAT32, &options);
    default: return tutti_reduce_scatter(comm, b->src, b->dst, block, TUTTI_FLOAT32, TUTTI_SUM, &options);
    }
}

/* ----------------------------------------------------------------------------------------------- endings */

static void *strike_soon(void *argument) {
    ranks_context *context = argument;
    scene *s = context->argument;
    usleep(SOON_US);
    atomic_store(&s->event_ns, tutti_now_ns());
    if (s->how == DIES) ranks_forgive(context, s->victim);
    if (s->how == ABORTS) tutti_comm_abort(context->comm, "enough");
    else kill(ranks_pid(context, s->victim), s->how == DIES ? SIGKILL : SIGSTOP);
    return NULL;
}

typedef struct patience {
    scene *scene;
    int64_t until_ns;
} patience;

static int asked(void *context) {
    const patience *p = context;
    long long none = 0;
    int64_t now_ns = tutti_now_ns();
    if (now_ns < p->until_ns) return 0;
    atomic_compare_exchange_strong(&p->scene->event_ns, &none, now_ns);
    return 1;
}

/* Waits until all living ranks have returned, and long after; a stopped rank is continued first. */
static void wait_for_all(const ranks_context *context) {
    scene *s = context->argument;
    int living = s->how == DIES ? NRANKS - 1 : NRANKS, mine = atomic_fetch_add(&s->returned, 1) + 1;
    if (mine == NRANKS - 1 && s->how == STOPS) kill(ranks_pid(context, s->victim), SIGCONT);
    if (mine == living) atomic_store(&s->all_ns, tutti_now_ns());
    while (atomic_load(&s->all_ns) == 0) usleep(1000); /* a rank that fails ends all ranks */
    while (tutti_now_ns() < atomic_load(&s->all_ns) + LONG_AGO_MS * NS_PER_MS) usleep(10000);
}

static tutti_status expect(const ranks_context *context, tutti_status status, const char *text, int64_t after_ms) {
    const scene *s = context->argument;
    bool victim = context->rank == s->victim;
    tutti_status expected = s->how == DIES                       ? TUTTI_ERR_PEER_DIED
                            : s->how == STOPS                    ? TUTTI_ERR_TIMEOUT
                            : s->how == IS_INTERRUPTED && victim ? TUTTI_ERR_INTERRUPTED
                                                                 : TUTTI_ERR_ABORTED;
    RANKS_CHECK(status != TUTTI_OK, "nothing has happened");
    if (s->how == STOPS && victim) return TUTTI_OK; /* it finds that all have left, with one error or another */
    /* A link that was cut in the middle of a transfer could not carry the reason. */
    if (s->how != DIES && status == TUTTI_ERR_PEER_DIED && strstr(text, "has given up") != NULL) return TUTTI_OK;
    RANKS_CHECK(status == expected, "'%s': %s", tutti_status_name(status), text);
    RANKS_CHECK(s->how != ABORTS || strstr(text, "enough") != NULL, "the reason is missing: %s", text);
    RANKS_CHECK(s->how != DIES || after_ms < 4500, "the error came after %lld ms", (long long)after_ms);
    RANKS_CHECK(s->how != IS_INTERRUPTED || !victim || after_ms < 1000, "it went on for %lld ms", (long long)after_ms);
    return TUTTI_OK;
}

static tutti_status end_in_the_middle(ranks_context *context) {
    scene *s = context->argument;
    bool strikes = s->how != IS_INTERRUPTED && context->rank == (s->how == ABORTS ? s->victim : 0);
    patience p = {.scene = s, .until_ns = tutti_now_ns() + SOON_US * INT64_C(1000)};
    pthread_t thread;
    buffers b;
    char text[1024] = "";
    TUTTI_TRY(buffers_get(s, &b));
    RANKS_CHECK(!strikes || pthread_create(&thread, NULL, strike_soon, context) == 0, "no thread");
    if (s->how == IS_INTERRUPTED && context->rank == s->victim) tutti_interrupt_set(asked, &p);
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < 100 && status == TUTTI_OK; i++) status = call_once(context, &b);
    int64_t after_ms = (tutti_now_ns() - atomic_load(&s->event_ns)) / NS_PER_MS;
    memset(b.dst, PATTERN, b.bytes);
    if (status != TUTTI_OK) snprintf(text, sizeof text, "%s", tutti_last_error());
    tutti_interrupt_set(NULL, NULL);
    if (strikes) pthread_join(thread, NULL);
    wait_for_all(context);
    size_t at = 0;
    while (at < b.bytes && ((const unsigned char *)b.dst)[at] == PATTERN) at++;
    bool same = at == b.bytes;
    buffers_give_back(&b);
    RANKS_CHECK(same, "byte %zu was written after the call: %s", at, text);
    return expect(context, status, text, after_ms);
}

static void end_all_kinds(ending how, bool shared) {
    static const call_kind kinds[] = {CALL_ALL_REDUCE, CALL_ALL_GATHER, CALL_REDUCE_SCATTER, CALL_BROADCAST};
    for (int i = 0; i < 4; i++) /* every rank on both hosts except rank 0, which triggers the failure */
        run(&(scene){.kind = kinds[i], .count = (size_t)2 << 20, .how = how, .shared = shared, .victim = 1 + i % 3},
            end_in_the_middle);
}

Test(hosts_pieces_end, a_rank_that_dies_is_an_error_on_all) {
    HOSTS_NEED(.rate = SLOW);
    end_all_kinds(DIES, /* shared */ false);
}

Test(hosts_pieces_end, an_abort_from_another_thread_ends_the_call_on_all_ranks) {
    HOSTS_NEED(.rate = SLOW);
    end_all_kinds(ABORTS, /* shared */ false);
    end_all_kinds(ABORTS, /* shared */ true);
}

Test(hosts_pieces_end, an_interrupt_ends_the_call_within_a_second_and_on_all_ranks) {
    HOSTS_NEED(.rate = SLOW);
    end_all_kinds(IS_INTERRUPTED, /* shared */ true);
}

Test(hosts_pieces_end, a_rank_that_stops_and_goes_on_after_the_deadline_finds_the_call_over) {
    HOSTS_NEED(.rate = SLOW);
    end_all_kinds(STOPS, /* shared */ false);
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

Test(hosts_pieces_end, a_deadline_that_passes_between_pieces_names_the_call) {
    HOSTS_NEED(.rate = SLOW);
    run(&(scene){.kind = CALL_ALL_REDUCE, .count = (size_t)16 << 20}, be_too_slow);
}
