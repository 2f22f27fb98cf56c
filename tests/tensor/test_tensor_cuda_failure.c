/*
 * Global tensors in CUDA memory when a rank dies or stops: in each kind of step, and for each engine of collectives,
 * the others' streams continue, a call reports the rank, all objects can be destroyed without leaking GPU memory, and
 * tensors of the remaining ranks work again.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tutti/device.h>

#include "bootstrap/base/deadline.h"
#include "tests/tensor/both.h"

enum { VICTIM = 1, RANKS = 3, TIMEOUT_MS = 700, ROWS = 37, COLUMNS = 90, AFTER = 3 };

TestSuite(tensor_cuda_failure, .timeout = 120);

static const struct way {
    const char *name, *plan, *src, *dst; /* the step, TUTTI_PLAN, sbp */
} ways[] = {
    {"all_reduce", "all_reduce", "P(sum)", "B"},
    {"reduce_scatter", "reduce_scatter", "P(sum)", "S0"},
    {"all_gather", "", "S0", "B"},
    {"all_to_all", "all_to_all", "S0", "S1"},
    {"messages", "messages", "S0", "S1"},
};
enum { WAYS = sizeof ways / sizeof *ways };

static struct scene {
    const struct way *way;
    bool stops;
    atomic_llong since_ns; /* when the victim was lost */
    atomic_int done;       /* ranks that have destroyed all objects */
} * scene;                  /* shared memory */

typedef struct kit {
    cuda_rank rank;
    tutti_placement *line;
    tutti_tensor *src, *dst;
} kit;

static tutti_status make_kit(const ranks_context *context, kit *k, const int *ranks, int nranks) {
    static const int64_t shape[] = {ROWS, COLUMNS};
    tutti_sbp sbp[2];
    int naxes;
    TUTTI_TRY(tutti_sbp_parse(scene->way->src, &sbp[0], 1, &naxes));
    TUTTI_TRY(tutti_sbp_parse(scene->way->dst, &sbp[1], 1, &naxes));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, ranks, &nranks, 1, &k->line));
    tutti_layout layout = TUTTI_LAYOUT(.placement = k->line, .sbp = &sbp[0], .type = TUTTI_INT32, .ndims = 2,
                                       .shape = shape, .name = "weight");
    TUTTI_TRY(tutti_tensor_create(&layout, &k->src));
    layout.sbp = &sbp[1];
    return tutti_tensor_create(&layout, &k->dst);
}

static void destroy_kit(kit *k) {
    tutti_tensor_destroy(k->src);
    tutti_tensor_destroy(k->dst);
    tutti_placement_destroy(k->line);
    k->src = k->dst = NULL;
    k->line = NULL;
}

static tutti_status redistribute(kit *k) {
    return tutti_tensor_redistribute(k->src, k->dst,
                                     &TUTTI_OPTIONS(.stream = k->rank.streams[0], .timeout_ms = TIMEOUT_MS));
}

/* Fills the source with equal bytes, which are the same in the ranks' shards of any layout. */
static tutti_status run_and_check(kit *k, int nranks) {
    bool sums = scene->way->src[0] == 'P';
    int32_t got[ROWS * COLUMNS], one[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) one[i] = 1;
    TUTTI_TRY(both_put(&k->rank, k->src, one, k->rank.streams[0]));
    TUTTI_TRY(redistribute(k));
    TUTTI_TRY(both_get(&k->rank, k->dst, got, k->rank.streams[0]));
    for (size_t i = 0; i < both_bytes(k->dst) / sizeof *got; i++)
        RANKS_CHECK(got[i] == (sums ? nranks : 1), "element %zu is %d", i, (int)got[i]);
    return TUTTI_OK;
}

static int allocated(void) {
    int (*ask)(void) = NULL;
    void *module = cuda_real_gpus() == 0 ? dlopen(getenv("TUTTI_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *symbol = module != NULL ? dlsym(module, "standin_allocated") : NULL;
    memcpy(&ask, &symbol, sizeof ask);
    return ask != NULL ? ask() : 0;
}

/* Calls return at once, so a later call has the error. */
static tutti_status expect_error(const ranks_context *context, kit *k) {
    char text[2048];
    tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK && (tutti_now_ns() - atomic_load(&scene->since_ns)) / 1000000000 < 10) {
        status = redistribute(k);
        usleep(2000);
    }
    snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "no call has failed");
    double after_s = (double)(tutti_now_ns() - atomic_load(&scene->since_ns)) / 1e9;
    RANKS_CHECK(status == (scene->stops ? TUTTI_ERR_TIMEOUT : TUTTI_ERR_PEER_DIED), "%s: rank %d got '%s' (%s)",
                scene->way->name, context->rank, tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, "rank 1") != NULL, "%s: rank 1 is not named: %s", scene->way->name, text);
    RANKS_CHECK(strstr(text, "'weight'") != NULL, "%s: the tensor is not named: %s", scene->way->name, text);
    RANKS_CHECK(after_s < AFTER, "%s: an error after %.2f s", scene->way->name, after_s);
    TUTTI_TRY(k->rank.device->stream_sync(k->rank.streams[0]));
    after_s = (double)(tutti_now_ns() - atomic_load(&scene->since_ns)) / 1e9;
    RANKS_CHECK(after_s < AFTER + 1, "%s: the stream goes on after %.2f s", scene->way->name, after_s);
    return TUTTI_OK;
}

static tutti_status lose_one(ranks_context *context) {
    static kit k;
    int left[] = {0, 2}, all[] = {0, 1, 2}, before = 0;
    memset(&k, 0, sizeof k);
    TUTTI_TRY(cuda_rank_open(context, 4096, &k.rank));
    for (int round = 0; round < 3; round++) { /* memory that the first rounds keep permanently is not a leak */
        before = allocated();
        TUTTI_TRY(make_kit(context, &k, all, RANKS));
        TUTTI_TRY(run_and_check(&k, RANKS));
        TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
        if (round < 2) destroy_kit(&k);
    }
    if (context->rank == VICTIM) {
        atomic_store(&scene->since_ns, tutti_now_ns());
        ranks_strike(context, scene->stops ? SIGSTOP : SIGKILL);
        return TUTTI_OK;
    }
    while (atomic_load(&scene->since_ns) == 0) usleep(100);
    TUTTI_TRY(expect_error(context, &k));
    RANKS_CHECK(redistribute(&k) != TUTTI_OK, "%s: a later call went well", scene->way->name);
    destroy_kit(&k);
    RANKS_CHECK(allocated() <= before, "%s: %d pieces of the GPU's memory before, %d after", scene->way->name, before,
                allocated());
    atomic_fetch_add(&scene->done, 1);
    while (atomic_load(&scene->done) < RANKS - 1) usleep(100);
    RANKS_CHECK(tutti_comm_error(context->comm) == TUTTI_OK, "the caller's communicator is broken");
    TUTTI_TRY(make_kit(context, &k, left, 2));
    TUTTI_TRY(run_and_check(&k, 2));
    destroy_kit(&k);
    if (context->rank == 0 && scene->stops) kill(ranks_pid(context, VICTIM), SIGCONT);
    return cuda_rank_close(&k.rank, NULL);
}

static void lose_in_each(bool stops, const char *gpus, const char *algorithm) {
    if (!ranks_have_processes()) cr_skip("needs ranks that are processes");
    if (cuda_real_gpus() > 0 && cuda_real_gpus() < atoi(gpus)) cr_skip("fewer GPUs than it is for");
    for (int i = 0; i < WAYS; i++) {
        char words[3][64];
        const char *environment[] = {
            "TUTTI_STALL_MS=60000", "TUTTI_TIMEOUT_MS=700", "TUTTI_LOG=error", words[0], words[1], words[2], NULL};
        if (scene == NULL) scene = mmap(NULL, sizeof *scene, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(scene, MAP_FAILED);
        *scene = (struct scene){.way = &ways[i], .stops = stops};
        snprintf(words[0], sizeof words[0], "TUTTI_PLAN=%s", ways[i].plan);
        snprintf(words[1], sizeof words[1], "STANDIN_GPUS=%s", gpus);
        snprintf(words[2], sizeof words[2], "TUTTI_ALGORITHM=%s", algorithm);
        const char *failure =
            ranks_run(&(ranks_options){.nranks = RANKS, .timeout_s = 30, .environment = environment}, lose_one);
        cr_assert(failure == NULL, "%s: %s", ways[i].name, failure);
    }
}

Test(tensor_cuda_failure, a_rank_that_dies_is_named_by_those_that_share_its_gpu) {
    lose_in_each(false, "1", "");
}

Test(tensor_cuda_failure, a_rank_that_dies_is_named_by_those_on_other_gpus) {
    lose_in_each(false, "3", "");
}

Test(tensor_cuda_failure, a_rank_that_dies_is_named_by_those_that_communicate_through_the_host) {
    lose_in_each(false, "2", "staged");
}

Test(tensor_cuda_failure, a_rank_that_stops_is_named) {
    lose_in_each(true, "1", "");
}

Test(tensor_cuda_failure, a_rank_that_stops_is_named_by_those_that_communicate_through_the_host) {
    lose_in_each(true, "2", "staged");
}
