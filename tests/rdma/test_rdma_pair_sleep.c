/*
 * Cases of test_rdma_pair in which one side sleeps until the other one wakes it: no thread polls meanwhile, so a lost
 * wake-up shows when a case times out.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/links/rdma_cases.h"

enum { PATIENCE_MS = 10000, LATE_US = 200000, ROUNDS = 5, LARGE = 300000 };

/* Finishes the transfers under way, and progresses only after a wake-up. */
static tutti_status finish_asleep(rdma_pair *pair) {
    tutti_pipe *pipe = pair->pipe;
    for (;;) {
        short events = 0;
        TUTTI_TRY(tutti_verbs_transport.progress(pipe));
        if (tutti_pipe_has_sent(pipe) && tutti_pipe_has_received(pipe)) return TUTTI_OK;
        int fd = tutti_verbs_transport.sleep_on(pipe, &events);
        if (fd < 0) usleep(1000);
        else CHECK(poll(&(struct pollfd){.fd = fd, .events = events}, 1, PATIENCE_MS) == 1, "it was not woken");
    }
}

/* Waits until both sides are here and all notifications have arrived. */
static tutti_status meet(rdma_pair *pair) {
    TUTTI_TRY(rdma_case_exchange(pair, 8, 8, 1));
    return pair->first ? TUTTI_OK : (usleep(LATE_US), TUTTI_OK);
}

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* The first side sleeps; a message comes. */
static tutti_status receive_asleep(rdma_pair *pair, size_t bytes, unsigned seed) {
    TUTTI_TRY(meet(pair));
    if (!pair->first) return rdma_case_carry(pair, true, bytes, seed);
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, pair->in, bytes));
    TUTTI_TRY(finish_asleep(pair));
    return rdma_case_compare(pair->in, bytes, 0, seed);
}

/* The first side sends and sleeps until all is sent, which takes the other side's report of room or a buffer. */
static tutti_status send_asleep(rdma_pair *pair, size_t bytes, unsigned seed) {
    struct iovec part = {.iov_base = pair->out, .iov_len = bytes};
    TUTTI_TRY(meet(pair));
    if (!pair->first) return rdma_case_carry(pair, false, bytes, seed);
    rdma_case_fill(pair->out, bytes, seed);
    TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, &part, 1));
    return finish_asleep(pair);
}

static tutti_status woken_by_small(rdma_pair *pair) {
    const tutti_rdma_counters *now = rdma_case_counters(pair);
    for (unsigned i = 0; i < ROUNDS; i++) TUTTI_TRY(receive_asleep(pair, 8 + 1000 * (i % 2), i));
    TUTTI_TRY(meet(pair));
    TUTTI_TRY(rdma_case_exchange(pair, 8, 8, 1)); /* now the last wake-up has been counted, too */
    CHECK(now->work_requests == now->records + now->states && now->records <= 2 * ROUNDS + 2,
          "%lu work requests, %lu records, %lu states", now->work_requests, now->records, now->states);
    CHECK(now->states == now->sleeps && now->receives == now->wakes, "%lu states, %lu sleeps, %lu receives, %lu wakes",
          now->states, now->sleeps, now->receives, now->wakes);
    CHECK(!pair->first || (now->sleeps >= ROUNDS && now->wakes >= ROUNDS - 1), "%lu sleeps, %lu wakes", now->sleeps,
          now->wakes);
    printf("   slept %lu times, woken %lu times\n", now->sleeps, now->wakes);
    return TUTTI_OK;
}

static tutti_status woken_by_large(rdma_pair *pair) {
    for (unsigned i = 0; i < ROUNDS; i++) TUTTI_TRY(receive_asleep(pair, LARGE, i));
    for (unsigned i = 0; i < ROUNDS; i++) TUTTI_TRY(send_asleep(pair, LARGE, i));
    return TUTTI_OK;
}

/* More than the ring holds, in small messages: the sender sleeps until the receiver has read them. */
static tutti_status woken_by_room(rdma_pair *pair) {
    enum { BYTES = 4000, MESSAGES = 60 };
    TUTTI_TRY(meet(pair));
    for (unsigned i = 0; i < MESSAGES; i++) {
        struct iovec part = {.iov_base = pair->out, .iov_len = BYTES};
        if (!pair->first) {
            TUTTI_TRY(rdma_case_carry(pair, false, BYTES, i));
            continue;
        }
        rdma_case_fill(pair->out, BYTES, i);
        TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, &part, 1));
        TUTTI_TRY(finish_asleep(pair));
    }
    return TUTTI_OK;
}

/* Waiting costs next to nothing, and the end of the other process wakes the sleeper. */
static tutti_status killed_asleep(rdma_pair *pair) {
    TUTTI_TRY(meet(pair));
    if (!pair->first) return sleep(2), kill(getpid(), SIGKILL), TUTTI_OK;
    double used = cpu_seconds();
    int64_t start = tutti_now_ns();
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, pair->in, 8));
    tutti_status status = finish_asleep(pair);
    int64_t ms = (tutti_now_ns() - start) / TUTTI_NS_PER_MS;
    used = cpu_seconds() - used;
    CHECK(status == TUTTI_ERR_PEER_DIED && ms < 4500, "status %d after %ld ms: %s", status, (long)ms,
          tutti_last_error());
    CHECK(used < 0.4, "%.3f s of CPU time", used); /* under emulation, too: it is mostly the check for the peer's end */
    printf("   known after %ld ms, with %.0f ms of CPU time\n", (long)ms, used * 1e3);
    return TUTTI_OK;
}

const rdma_case rdma_sleep_cases[] = {
    {"woken_by_small", woken_by_small, false},
    {"woken_by_large", woken_by_large, false},
    {"woken_by_room", woken_by_room, false},
    {"killed_asleep", killed_asleep, false},
    {NULL, NULL, false},
};
