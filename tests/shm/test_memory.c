/*
 * What communicators cost: little until first used, a bounded amount in use however many there are, and nothing once
 * they are gone. Measured in two ways: what the library's heap has allocated, and what the system counts as resident
 * in this process, pages of peers' heaps included.
 *
 * The library decides how much staging memory a communicator has; the test asks for the size (comm/shm/slots.h), and
 * never assumes it.
 */
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/shm/heap.h"
#include "comm/shm/slots.h"
#include "tests/support/ranks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RESIDENT_COUNTS = 0 }; /* most of it belongs to the sanitizer */
#else
enum { RESIDENT_COUNTS = 1 };
#endif

enum { MANY = 500, LARGE_COUNT = (1 << 20) / sizeof(float), MOST_RANKS = 4 };
static const size_t MIB = (size_t)1 << 20, KIB = 1024;

/* Bytes; signed, since differences are taken. */
typedef struct usage {
    int64_t used, committed, resident;
} usage;

/* The findings of one rank; written by that rank. */
typedef struct findings {
    usage first;       /* of a process's first communicator, unused */
    usage each_unused; /* average of many further communicators */
    int64_t staging;   /* of one in use, as the library reports */
    usage in_use[4];   /* 1, 10, 100 and MANY communicators, besides what they cost unused */
    usage left;        /* when all are destroyed */
    usage again;       /* the same after a second round */
} findings;

static const int in_use_counts[4] = {1, 10, 100, MANY};

/* Excludes clean pages: those are code, of which the system maps a varying amount around the code that is used. */
static int64_t resident_bytes(void) {
    char line[256], what[64];
    long kib, all = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%63[A-Za-z_]: %ld kB", what, &kib) != 2) continue;
        if (strcmp(what, "Rss") == 0) all += kib;
        if (strcmp(what, "Private_Clean") == 0 || strcmp(what, "Shared_Clean") == 0) all -= kib;
    }
    if (file != NULL) fclose(file);
    return RESIDENT_COUNTS ? all * 1024 : 0;
}

static usage usage_now(void) {
    size_t used, committed;
    tutti_heap_usage(&used, &committed);
    return (usage){.used = (int64_t)used, .committed = (int64_t)committed, .resident = resident_bytes()};
}

static usage usage_since(const usage *before) {
    usage now = usage_now();
    return (usage){now.used - before->used, now.committed - before->committed, now.resident - before->resident};
}

static bool exceeds(const usage *u, int64_t bytes) {
    return u->used > bytes || u->committed > bytes || u->resident > bytes;
}

#define CHECK_AT_MOST(u, bytes, what)                                                                                  \
    RANKS_CHECK(!exceeds(u, bytes), "%s: heap %lld KiB, committed %lld KiB, resident %lld KiB; allowed are %lld KiB",  \
                what, (long long)(u)->used >> 10, (long long)(u)->committed >> 10, (long long)(u)->resident >> 10,     \
                (long long)(bytes) >> 10)

/* ---------------------------------------------------------------------------------------------- unused */

static tutti_status split_many(tutti_comm *parent, tutti_comm **comms, int count) {
    for (int i = 0; i < count; i++) TUTTI_TRY(tutti_comm_split(parent, 0, tutti_comm_rank(parent), NULL, &comms[i]));
    return TUTTI_OK;
}

static tutti_status cost_unused(ranks_context *context) {
    static tutti_comm *comms[MANY];
    findings *f = (findings *)context->argument + context->rank;
    tutti_comm *comm;
    usage before = usage_now();
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, "first", NULL, &comm));
    f->first = usage_since(&before);
    CHECK_AT_MOST(&f->first, (int64_t)MIB, "the first communicator");
    before = usage_now();
    TUTTI_TRY(split_many(comm, comms, MANY));
    usage all = usage_since(&before);
    f->each_unused = (usage){all.used / MANY, all.committed / MANY, all.resident / MANY};
    CHECK_AT_MOST(&f->each_unused, (int64_t)MIB, "one of many communicators");
    for (int i = 0; i < MANY; i++) TUTTI_TRY(tutti_comm_destroy(comms[i]));
    return tutti_comm_destroy(comm);
}

/* Runs the body; the findings of its ranks are valid until `release`. */
static findings *run(int nranks, bool no_comm, ranks_body body) {
    findings *f = mmap(NULL, MOST_RANKS * sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(f, MAP_FAILED);
    const ranks_options options = {.nranks = nranks, .timeout_s = 100, .no_comm = no_comm, .argument = f};
    const char *failure = ranks_run(&options, body);
    cr_assert(failure == NULL, "%d ranks: %s", nranks, failure);
    return f;
}

static void release(findings *f) {
    munmap(f, MOST_RANKS * sizeof *f);
}

/* Shown with --verbose: the largest among the ranks. */
static void show(const char *what, const findings *f, int nranks, size_t offset) {
    usage most = {0};
    for (int rank = 0; rank < nranks; rank++) {
        const usage *u = (const usage *)(const void *)((const char *)&f[rank] + offset);
        if (u->used > most.used) most.used = u->used;
        if (u->committed > most.committed) most.committed = u->committed;
        if (u->resident > most.resident) most.resident = u->resident;
    }
    cr_log_info("%d ranks, KiB a rank, %-22s heap %7lld  committed %7lld  resident %7lld", nranks, what,
                (long long)most.used >> 10, (long long)most.committed >> 10, (long long)most.resident >> 10);
}

Test(memory, a_communicator_costs_less_than_a_mib_until_it_is_used, .timeout = 120) {
    for (int nranks = 1; nranks <= MOST_RANKS; nranks++) {
        findings *f = run(nranks, true, cost_unused);
        show("the first, unused", f, nranks, offsetof(findings, first));
        show("each other, unused", f, nranks, offsetof(findings, each_unused));
        release(f);
    }
}

/* ---------------------------------------------------------------------------------------------- in use */

/* Makes one small and one large call. */
static tutti_status use(tutti_comm *comm, float *values, int index) {
    int n = tutti_comm_size(comm);
    int64_t one = index;
    TUTTI_TRY(tutti_all_reduce(comm, &one, &one, 1, TUTTI_INT64, TUTTI_SUM, NULL));
    RANKS_CHECK(one == (int64_t)n * index, "communicator %d: the sum is %lld", index, (long long)one);
    for (int i = 0; i < LARGE_COUNT; i++) values[i] = (float)(index + i % 1000);
    TUTTI_TRY(tutti_all_reduce(comm, values, values, LARGE_COUNT, TUTTI_FLOAT32, TUTTI_SUM, NULL));
    for (int i = 0; i < LARGE_COUNT; i++)
        RANKS_CHECK(values[i] == (float)(n * (index + i % 1000)), "communicator %d: element %d is %g", index, i,
                    (double)values[i]);
    return TUTTI_OK;
}

/* The memory that a rank leaves in a destroyed communicator is freed when all ranks have left it and the next one is
 * destroyed. */
static tutti_status settle(tutti_comm *parent) {
    for (int i = 0; i < 3; i++) {
        tutti_comm *comm;
        TUTTI_TRY(tutti_comm_split(parent, 0, 0, NULL, &comm));
        TUTTI_TRY(tutti_comm_destroy(comm));
        TUTTI_TRY(tutti_barrier(parent, NULL));
    }
    return TUTTI_OK;
}

static tutti_status use_many(tutti_comm *parent, tutti_comm **comms, float *values, findings *f) {
    TUTTI_TRY(split_many(parent, comms, MANY));
    usage unused = usage_now();
    for (int i = 0, step = 0; i < MANY; i++) {
        TUTTI_TRY(use(comms[i], values, i));
        if (i + 1 != in_use_counts[step]) continue;
        if (i == 0) f->staging = comms[0]->shm.slots != NULL ? (int64_t)comms[0]->shm.slots->bytes : 0;
        f->in_use[step++] = usage_since(&unused);
    }
    for (int i = MANY - 1; i >= 0; i -= 7) TUTTI_TRY(use(comms[i], values, i)); /* those that lost their staging, too */
    for (int i = 0; i < MANY; i++) TUTTI_TRY(tutti_comm_destroy(comms[i]));
    return settle(parent);
}

/* Resident pages of the peers' staging memory count as well; in addition, a little slack for what is not staging. */
static tutti_status check_in_use(const findings *f, int nranks) {
    int64_t staging =
        f->staging + f->staging / 4 + (int64_t)(16 * KIB); /* the heap's piece sizes grow in steps of a quarter */
    for (int step = 0; step < 3; step++) {
        usage heap = f->in_use[step];
        heap.resident = 0;
        CHECK_AT_MOST(&heap, in_use_counts[step] * staging, "in use");
        RANKS_CHECK(f->in_use[step].resident <= in_use_counts[step] * nranks * staging + (int64_t)(2 * MIB),
                    "%d in use: resident %lld KiB", in_use_counts[step], (long long)f->in_use[step].resident >> 10);
    }
    /* From some number on, memory in use stops growing: communicators take over the staging memory of idle ones. */
    usage more = {f->in_use[3].used - f->in_use[2].used, f->in_use[3].committed - f->in_use[2].committed,
                  f->in_use[3].resident - f->in_use[2].resident};
    CHECK_AT_MOST(&more, nranks * staging + (int64_t)(2 * MIB), "400 more in use");
    usage all = f->in_use[3];
    all.resident = all.used = 0; /* address space does not matter */
    CHECK_AT_MOST(&all, (int64_t)TUTTI_SLOTS_BUDGET_BYTES + staging, "500 in use");
    return TUTTI_OK;
}

static tutti_status use_many_twice(ranks_context *context) {
    static tutti_comm *comms[MANY];
    static float values[LARGE_COUNT];
    findings *f = (findings *)context->argument + context->rank;
    memset(values, 1, sizeof values);
    TUTTI_TRY(settle(context->comm));
    usage before = usage_now();
    TUTTI_TRY(use_many(context->comm, comms, values, f));
    TUTTI_TRY(check_in_use(f, context->nranks));
    f->left = usage_since(&before);
    RANKS_CHECK(f->left.used <= 4 * (int64_t)sizeof(tutti_page), "%lld KiB of the heap are still in use",
                (long long)f->left.used >> 10);
    usage after_first = usage_now();
    findings second;
    TUTTI_TRY(use_many(context->comm, comms, values, &second));
    f->again = usage_since(&after_first);
    usage heap = f->again;
    heap.resident = 0; /* it may touch pages that the first round did not */
    CHECK_AT_MOST(&heap, (int64_t)(64 * KIB), "a second round takes more");
    int64_t resident = f->left.resident + f->again.resident, all_heaps = context->nranks * f->left.committed;
    RANKS_CHECK(resident <= all_heaps + (int64_t)(2 * MIB), "%lld KiB are resident, of heaps of %lld KiB",
                (long long)resident >> 10, (long long)all_heaps >> 10);
    return TUTTI_OK;
}

Test(memory, five_hundred_communicators_work_in_bounded_memory_and_give_it_back, .timeout = 250) {
    for (int nranks = 2; nranks <= 3; nranks++) {
        findings *f = run(nranks, false, use_many_twice);
        cr_log_info("%d ranks: staging of a communicator in use: %lld KiB", nranks, (long long)f->staging >> 10);
        show("1 in use", f, nranks, offsetof(findings, in_use[0]));
        show("10 in use", f, nranks, offsetof(findings, in_use[1]));
        show("100 in use", f, nranks, offsetof(findings, in_use[2]));
        show("500 in use", f, nranks, offsetof(findings, in_use[3]));
        show("all destroyed", f, nranks, offsetof(findings, left));
        show("a second round adds", f, nranks, offsetof(findings, again));
        release(f);
    }
}
