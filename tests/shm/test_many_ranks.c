/*
 * Many more ranks than cores. 16 ranks: every collective is right at every size, and a small one costs only its
 * yields, without a scheduler tick in the median: a waiter yields its core instead of keeping it for a time slice. 64
 * ranks: a sweep up to 16 MiB ends and is right.
 *
 * Times on a machine with other work are too long, never too short. So the medians are the best of up to three tries,
 * and the limit is many times what is usual.
 */
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURES = 0 }; /* a sanitizer distorts times */
#else
enum { MEASURES = 1 };
#endif

enum { RANKS = 16, RING = CALL_KINDS, KINDS, SIZES = 4, SMALL_SIZES = 2, TRIES = 3, MOST_BLOCKS = 41, BLOCK = 8 };

static const size_t sizes[SIZES] = {8, 4096, 65536, 1 << 20};
static const int blocks[SIZES] = {MOST_BLOCKS, MOST_BLOCKS, 11, 3};

/* Shared by the test and its ranks; written by rank 0. */
typedef struct report {
    int nsizes;
    double median_us[KINDS][SIZES]; /* of the slowest rank */
} report;

static const char *name_of(int kind) {
    return kind == RING ? "send/recv ring" : call_name((call_kind)kind);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ------------------------------------------------------------------------------------------------ 16 ranks */

/* Sends to the next rank, and receives from the one before. */
static tutti_status pass_on(tutti_comm *comm, const int *src, int *dst, size_t count) {
    int rank = tutti_comm_rank(comm), n = tutti_comm_size(comm);
    TUTTI_TRY(tutti_group_begin(comm));
    TUTTI_TRY(tutti_send(comm, src, count, TUTTI_INT32, (rank + 1) % n, 0, NULL));
    TUTTI_TRY(tutti_recv(comm, dst, count, TUTTI_INT32, (rank + n - 1) % n, 0, NULL));
    return tutti_group_end(comm, NULL);
}

static tutti_status start(tutti_comm *comm, const call_state *state, int kind) {
    if (kind != RING) return call_start(state, comm, NULL);
    return pass_on(comm, state->srcs[0], state->dsts[0], state->call.count);
}

/* Prepares buffers of `bytes`, which is the size of the larger one for kinds that gather or scatter. A ring uses
 * those of an all_reduce. */
static tutti_status prepare(const ranks_context *context, int kind, size_t bytes, call_state *state_out) {
    call c = {.kind = kind == RING ? CALL_ALL_REDUCE : (call_kind)kind,
              .type = TUTTI_INT32,
              .reduction = TUTTI_SUM,
              .root = context->nranks / 2,
              .seed = bytes + (size_t)kind};
    size_t count = bytes / sizeof(int);
    bool whole = kind == RING || kind == CALL_ALL_REDUCE || kind == CALL_REDUCE || kind == CALL_BROADCAST;
    c.count = whole || count < (size_t)context->nranks ? count : count / (size_t)context->nranks;
    return call_prepare(&c, context->rank, context->nranks, state_out);
}

static tutti_status check(const ranks_context *context, const call_state *state, int kind) {
    if (kind != RING) return call_check(state);
    call_state before;
    int from = (context->rank + context->nranks - 1) % context->nranks;
    TUTTI_TRY(call_prepare(&state->call, from, context->nranks, &before));
    bool equal = memcmp(state->dsts[0], before.srcs[0], state->call.count * sizeof(int)) == 0;
    call_release(&before);
    RANKS_CHECK(equal, "what rank %d sent did not arrive", from);
    return TUTTI_OK;
}

/* The largest over all ranks of their median time per call. Calls are timed in blocks: a rank that only sends may be
 * some calls ahead of the others, and then waits for them in one call. */
static tutti_status measure(const ranks_context *context, const call_state *state, int kind, int count,
                            double *median_us_out) {
    double times[MOST_BLOCKS];
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    for (int i = 0; i < count; i++) {
        int64_t start_ns = tutti_now_ns();
        for (int repeat = 0; repeat < BLOCK; repeat++) TUTTI_TRY(start(context->comm, state, kind));
        times[i] = (double)(tutti_now_ns() - start_ns) / 1e3 / BLOCK;
    }
    qsort(times, (size_t)count, sizeof *times, by_value);
    return tutti_all_reduce(context->comm, &times[count / 2], median_us_out, 1, TUTTI_FLOAT64, TUTTI_MAX, NULL);
}

static tutti_status check_and_measure(ranks_context *context) {
    report *r = context->argument;
    for (int kind = 0; kind < KINDS; kind++)
        for (int size = 0; size < r->nsizes; size++) {
            call_state state;
            double median_us = 0;
            tutti_status status = prepare(context, kind, sizes[size], &state);
            if (status == TUTTI_OK) status = start(context->comm, &state, kind);
            if (status == TUTTI_OK) status = check(context, &state, kind);
            if (status == TUTTI_OK && MEASURES) status = measure(context, &state, kind, blocks[size], &median_us);
            call_release(&state);
            if (status != TUTTI_OK) {
                char text[1024];
                snprintf(text, sizeof text, "%s", tutti_last_error());
                return tutti_fail(status, "%s of %zu bytes: %s", name_of(kind), sizes[size], text);
            }
            if (context->rank == 0) r->median_us[kind][size] = median_us;
        }
    return TUTTI_OK;
}

/* The cost of yielding a core: two processes on one core, each yielding to the other. */
static double yield_switch_us(void) {
    enum { YIELDS = 20000 };
    cpu_set_t before, one;
    sched_getaffinity(0, sizeof before, &before);
    int core = sched_getcpu();
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent) sched_yield();
        _exit(0);
    }
    sched_yield();
    int64_t start_ns = tutti_now_ns();
    for (int i = 0; i < YIELDS; i++) sched_yield();
    double us = (double)(tutti_now_ns() - start_ns) / 1e3 / (2.0 * YIELDS);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    sched_setaffinity(0, sizeof before, &before);
    return us;
}

static double worst_small(const report *r, int *kind_out, int *size_out) {
    double worst = -1;
    for (int kind = 0; kind < KINDS; kind++)
        for (int size = 0; size < SMALL_SIZES; size++)
            if (r->median_us[kind][size] > worst) {
                worst = r->median_us[kind][size];
                *kind_out = kind;
                *size_out = size;
            }
    return worst;
}

static void keep_best(report *best, const report *r) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int size = 0; size < r->nsizes; size++)
            if (r->median_us[kind][size] < best->median_us[kind][size])
                best->median_us[kind][size] = r->median_us[kind][size];
}

/* Shown with --verbose. */
static void show(const report *r, double switch_us, double limit_us) {
    cr_log_info("16 ranks, %d cores; a switch takes %.2f us, the limit is %.0f us; medians in us:",
                (int)sysconf(_SC_NPROCESSORS_ONLN), switch_us, limit_us);
    for (int kind = 0; kind < KINDS; kind++)
        cr_log_info("%-16s 8 B %7.1f   4 KiB %7.1f   64 KiB %8.1f   1 MiB %9.1f", name_of(kind), r->median_us[kind][0],
                    r->median_us[kind][1], r->median_us[kind][2], r->median_us[kind][3]);
}

Test(many_ranks, sixteen_ranks_do_every_collective_right_and_without_a_scheduler_tick, .timeout = 280) {
    const double tick_us = 4000;
    report best, *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(r, MAP_FAILED);
    double switch_us = yield_switch_us(), limit_us = RANKS * 20 * switch_us;
    if (limit_us > tick_us) limit_us = tick_us;
    int kind = 0, size = 0;
    for (int try = 0; try < TRIES; try++) {
        r->nsizes = try == 0 ? SIZES : SMALL_SIZES;
        const char *failure =
            ranks_run(&(ranks_options){.nranks = RANKS, .timeout_s = 90, .argument = r}, check_and_measure);
        cr_assert(failure == NULL, "%s", failure);
        if (try == 0) best = *r;
        else keep_best(&best, r);
        if (worst_small(&best, &kind, &size) < limit_us) break;
    }
    munmap(r, sizeof *r);
    if (!MEASURES) return;
    show(&best, switch_us, limit_us);
    cr_assert_lt(worst_small(&best, &kind, &size), limit_us, "%s of %zu bytes takes %.0f us; a switch takes %.2f us",
                 name_of(kind), sizes[size], best.median_us[kind][size], switch_us);
}

/* ------------------------------------------------------------------------------------------------ 64 ranks */

enum { LARGEST = 16 << 20, LARGEST_COUNT = LARGEST / sizeof(int) };

static const call_kind swept[] = {CALL_ALL_REDUCE, CALL_ALL_GATHER,     CALL_BROADCAST,
                                  CALL_ALL_TO_ALL, CALL_REDUCE_SCATTER, CALL_BARRIER};
#define SWEPT (sizeof swept / sizeof *swept)

/* Element i of a rank's input; sums over ranks have a closed form. */
static int input(int rank, size_t i) {
    return rank + (int)(i % 1021);
}

/* Element i of the rank's result, where the whole (larger) buffer has `whole` elements. */
static int result(const ranks_context *context, call_kind kind, size_t segment, size_t i) {
    int n = context->nranks;
    switch (kind) {
    case CALL_ALL_REDUCE: return n * (n - 1) / 2 + n * input(0, i);
    case CALL_BROADCAST: return input(1, i);
    case CALL_REDUCE_SCATTER: return n * (n - 1) / 2 + n * input(0, (size_t)context->rank * segment + i);
    case CALL_ALL_GATHER: return input((int)(i / segment), i % segment);
    default: return input((int)(i / segment), (size_t)context->rank * segment + i % segment); /* all_to_all */
    }
}

static tutti_status start_swept(const ranks_context *context, call_kind kind, int *src, int *dst, size_t count,
                                size_t segment) {
    tutti_comm *comm = context->comm;
    switch (kind) {
    case CALL_ALL_REDUCE: return tutti_all_reduce(comm, src, dst, count, TUTTI_INT32, TUTTI_SUM, NULL);
    case CALL_ALL_GATHER: return tutti_all_gather(comm, src, dst, segment, TUTTI_INT32, NULL);
    case CALL_BROADCAST: return tutti_broadcast(comm, dst, count, TUTTI_INT32, 1, NULL);
    case CALL_ALL_TO_ALL: return tutti_all_to_all(comm, src, dst, segment, TUTTI_INT32, NULL);
    case CALL_REDUCE_SCATTER: return tutti_reduce_scatter(comm, src, dst, segment, TUTTI_INT32, TUTTI_SUM, NULL);
    default: return tutti_barrier(comm, NULL);
    }
}

/* Runs one kind with a larger buffer of about `bytes` on each rank; its time on rank 0 goes into *us_out. */
static tutti_status sweep_one(const ranks_context *context, call_kind kind, size_t bytes, int *src, int *dst,
                              double *us_out) {
    size_t n = (size_t)context->nranks, count = bytes / sizeof(int);
    size_t segment = count > n ? count / n : 1;
    bool split = kind == CALL_ALL_TO_ALL || kind == CALL_REDUCE_SCATTER;
    bool gathers = kind == CALL_ALL_TO_ALL || kind == CALL_ALL_GATHER;
    size_t given = split ? n * segment : kind == CALL_ALL_GATHER ? segment : count;
    size_t taken = kind == CALL_BARRIER ? 0 : gathers ? n * segment : kind == CALL_REDUCE_SCATTER ? segment : count;
    for (size_t i = 0; i < given; i++) src[i] = input(context->rank, i);
    for (size_t i = 0; i < taken; i++) dst[i] = kind == CALL_BROADCAST && context->rank == 1 ? input(1, i) : -1;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    int64_t start_ns = tutti_now_ns();
    TUTTI_TRY(start_swept(context, kind, src, dst, count, segment));
    *us_out = (double)(tutti_now_ns() - start_ns) / 1e3;
    for (size_t i = 0; i < taken; i++) {
        int expected = result(context, kind, segment, i);
        RANKS_CHECK(dst[i] == expected, "%s of %zu bytes: element %zu is %d, not %d", call_name(kind), bytes, i, dst[i],
                    expected);
    }
    return TUTTI_OK;
}

static tutti_status sweep(ranks_context *context) {
    int *src = malloc(LARGEST), *dst = malloc(LARGEST);
    tutti_status status = TUTTI_OK;
    if (src == NULL || dst == NULL) status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for a test's buffer");
    double (*us)[8] = context->argument;
    for (size_t k = 0; k < SWEPT && status == TUTTI_OK; k++)
        for (int power = 0; power < 8 && status == TUTTI_OK; power++) {
            double time_us = 0;
            status = sweep_one(context, swept[k], (size_t)8 << 3 * power, src, dst, &time_us);
            if (context->rank == 0) us[k][power] = time_us;
        }
    free(src);
    free(dst);
    return status;
}

Test(many_ranks, sixty_four_ranks_finish_a_sweep_up_to_16_mib, .timeout = 280) {
    enum { WORLD = 64 };
    size_t needed = (size_t)WORLD * LARGEST * 3;
    if ((size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) < needed)
        cr_skip_test("needs %zu MiB of free memory", needed >> 20);
    double (*us)[8] = mmap(NULL, SWEPT * sizeof *us, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(us, MAP_FAILED);
    int64_t start_ns = tutti_now_ns();
    const char *failure = ranks_run(&(ranks_options){.nranks = WORLD, .timeout_s = 240, .argument = us}, sweep);
    cr_assert(failure == NULL, "%s", failure);
    cr_log_info("64 ranks, %d cores: %.1f s; once each, in us, 8 B to 16 MiB by factors of 8:",
                (int)sysconf(_SC_NPROCESSORS_ONLN), (double)(tutti_now_ns() - start_ns) / 1e9);
    for (size_t k = 0; k < SWEPT; k++)
        cr_log_info("%-16s %9.0f %9.0f %9.0f %9.0f %9.0f %9.0f %9.0f %9.0f", call_name(swept[k]), us[k][0], us[k][1],
                    us[k][2], us[k][3], us[k][4], us[k][5], us[k][6], us[k][7]);
    munmap(us, SWEPT * sizeof *us);
}
