/*
 * Ranks that wait for a rank that computes leave the cores free, and go on at once when it comes.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "tests/support/hosts/hosts.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURES = 0 }; /* a sanitizer distorts times */
#else
enum { MEASURES = 1 };
#endif

enum { LATE_MS = 500, TRIES = 2, WAKES = 5, LARGE = 1 << 20 };
#define EAGER_MS 10.0 /* start of a wait, in which it may use a whole core */
#define SHARE    0.01 /* share of a core, in the rest */

enum { BARRIER, ALL_REDUCE, LONG_ALL_REDUCE, RECV, RECV_ANY, SEND, RECV_STARTED, KINDS };
static const char *const names[KINDS] = {
    "barrier", "all_reduce of 4 bytes", "all_reduce of 4 MiB", "recv", "recv from any rank", "send of 4 MiB", "irecv"};

/* Shared by the test and its ranks. */
typedef struct report {
    double cpu_ms[KINDS]; /* of the rank that used most */
    double wake_us;       /* median */
} report;

static double cpu_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void compute(void) {
    int64_t end_ns = tutti_now_ns() + LATE_MS * TUTTI_NS_PER_MS;
    while (tutti_now_ns() < end_ns) {}
}

/* Rank 0 exchanges messages with all others. */
static tutti_status exchange(const ranks_context *context, int kind, float *data, size_t count) {
    tutti_comm *comm = context->comm;
    if (context->rank > 0) {
        tutti_work *work;
        if (kind == SEND) return tutti_send(comm, data, count, TUTTI_FLOAT32, 0, 1, NULL);
        if (kind != RECV_STARTED)
            return tutti_recv(comm, data, count, TUTTI_FLOAT32, kind == RECV_ANY ? TUTTI_ANY_SOURCE : 0, 1, NULL);
        TUTTI_TRY(tutti_recv(comm, data, count, TUTTI_FLOAT32, 0, 1, &TUTTI_OPTIONS(.work = &work)));
        tutti_status status = tutti_work_wait(work, -1);
        tutti_work_free(work);
        return status;
    }
    for (int rank = 1; rank < context->nranks; rank++)
        TUTTI_TRY(kind == SEND ? tutti_recv(comm, data, count, TUTTI_FLOAT32, rank, 1, NULL)
                               : tutti_send(comm, data, count, TUTTI_FLOAT32, rank, 1, NULL));
    return TUTTI_OK;
}

static tutti_status wait_for_rank_0(const ranks_context *context, int kind, float *data) {
    tutti_comm *comm = context->comm;
    switch (kind) {
    case BARRIER: return tutti_barrier(comm, NULL);
    case ALL_REDUCE: return tutti_all_reduce(comm, data, data, 1, TUTTI_FLOAT32, TUTTI_SUM, NULL);
    case LONG_ALL_REDUCE: return tutti_all_reduce(comm, data, data, LARGE, TUTTI_FLOAT32, TUTTI_SUM, NULL);
    default: return exchange(context, kind, data, kind == SEND ? LARGE : 1);
    }
}

static tutti_status burn_in(ranks_context *context, int kinds) {
    report *r = context->argument;
    float *data = calloc(LARGE, sizeof *data);
    RANKS_CHECK(data != NULL, "no memory");
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < kinds * TRIES && status == TUTTI_OK; i++) {
        int kind = i / TRIES;
        double burned_ms, most_ms = 0;
        status = wait_for_rank_0(context, kind, data); /* connections */
        if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
        burned_ms = cpu_ms();
        if (context->rank == 0) compute();
        if (status == TUTTI_OK) status = wait_for_rank_0(context, kind, data);
        burned_ms = context->rank == 0 ? 0 : cpu_ms() - burned_ms;
        if (status == TUTTI_OK)
            status = tutti_all_reduce(context->comm, &burned_ms, &most_ms, 1, TUTTI_FLOAT64, TUTTI_MAX, NULL);
        if (context->rank == 0 && (i % TRIES == 0 || most_ms < r->cpu_ms[kind])) r->cpu_ms[kind] = most_ms;
    }
    free(data);
    return status;
}

static tutti_status burn_body(ranks_context *context) {
    return burn_in(context, KINDS);
}

/* Messages between hosts are still polled for, by threads that wait for them. */
static tutti_status burn_between_hosts_body(ranks_context *context) {
    return burn_in(context, RECV);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Rank 0 sends the time to rank 1, which sleeps. */
static tutti_status wake_body(ranks_context *context) {
    report *r = context->argument;
    double late_us[WAKES];
    for (int i = 0; i < WAKES; i++) {
        int64_t sent_ns = 0;
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
        if (context->rank == 0) {
            usleep(150000);
            sent_ns = tutti_now_ns();
            TUTTI_TRY(tutti_send(context->comm, &sent_ns, 1, TUTTI_INT64, 1, 1, NULL));
        } else if (context->rank == 1) {
            TUTTI_TRY(tutti_recv(context->comm, &sent_ns, 1, TUTTI_INT64, 0, 1, NULL));
            late_us[i] = (double)(tutti_now_ns() - sent_ns) / 1e3;
        }
    }
    if (context->rank != 1) return TUTTI_OK;
    qsort(late_us, WAKES, sizeof *late_us, by_value);
    r->wake_us = late_us[WAKES / 2];
    return TUTTI_OK;
}

static report *share_report(void) {
    report *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(r, MAP_FAILED);
    return r;
}

static void expect_little(const report *r, int kinds) {
    double limit_ms = EAGER_MS + SHARE * (LATE_MS - EAGER_MS);
    for (int kind = 0; kind < kinds && MEASURES; kind++)
        cr_expect(r->cpu_ms[kind] < limit_ms, "a rank that waits %d ms in %s uses %.1f ms of CPU, not at most %.1f",
                  LATE_MS, names[kind], r->cpu_ms[kind], limit_ms);
}

Test(waiting, uses_little_cpu_on_one_host, .timeout = 120) {
    report *r = share_report();
    const char *failure = ranks_run(&(ranks_options){.nranks = 4, .timeout_s = 100, .argument = r}, burn_body);
    cr_assert(failure == NULL, "%s", failure);
    expect_little(r, KINDS);
    munmap(r, sizeof *r);
}

Test(waiting, uses_little_cpu_between_hosts, .timeout = 120) {
    HOSTS_NEED();
    report *r = share_report();
    const char *failure =
        hosts_run(&(hosts_options){.ranks_per_host = (const int[]){2, 1, 0}, .timeout_s = 100, .argument = r},
                  burn_between_hosts_body);
    cr_assert(failure == NULL, "%s", failure);
    expect_little(r, RECV);
    munmap(r, sizeof *r);
}

Test(waiting, ends_at_once_when_a_message_comes, .timeout = 120) {
    report *r = share_report();
    for (int threads = 0; threads < 2; threads++) {
        const ranks_options options = {
            .kind = threads ? RANKS_THREADS : RANKS_PROCESSES, .nranks = 2, .timeout_s = 60, .argument = r};
        const char *failure = ranks_run(&options, wake_body);
        cr_assert(failure == NULL, "%s", failure);
        if (MEASURES) cr_expect_lt(r->wake_us, 1000, "a message to a sleeping rank takes %.0f us", r->wake_us);
    }
    munmap(r, sizeof *r);
}
