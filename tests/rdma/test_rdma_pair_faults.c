/*
 * Cases of test_rdma_pair in which a pipe ends or something fails: closing, killed processes, queue pairs and links
 * that break, memory that cannot be registered, adapters that do not reach each other.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/links/rdma_cases.h"

static bool says(const char *words) {
    return strstr(tutti_last_error(), words) != NULL;
}

/* Drives what is under way, to its end or an error. */
static tutti_status to_the_end(rdma_pair *pair, int limit_ms) {
    return rdma_pair_finish(pair, limit_ms);
}

static tutti_status sent_before_close(rdma_pair *pair) {
    for (unsigned i = 0; i < 100; i++) TUTTI_TRY(rdma_case_carry(pair, pair->first, 500, i));
    if (pair->first) return TUTTI_OK; /* closes at once */
    usleep(200000);
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, pair->in, 8));
    CHECK(to_the_end(pair, 5000) == TUTTI_ERR_PEER_DIED && says("has ended"), "no end was reported: %s",
          tutti_last_error());
    return TUTTI_OK;
}

/* The other side reads only after its lanes have failed: no peer receives what it sends last. */
static tutti_status read_after_close(rdma_pair *pair) {
    enum { MESSAGES = 10, BYTES = 3000 };
    char byte = 0;
    TUTTI_TRY(pair->first ? rdma_pair_recv(pair, &byte, 1)
                          : rdma_pair_send(pair, &byte, 1)); /* both are through opening */
    for (unsigned i = 0; pair->first && i < MESSAGES; i++) TUTTI_TRY(rdma_case_carry(pair, true, BYTES, i));
    if (pair->first) return TUTTI_OK; /* closes at once */
    usleep(500000);
    TUTTI_TRY(rdma_pair_send(pair, &byte, 1));
    usleep(1500000);
    for (int i = 0; i < 1000; i++) TUTTI_TRY(tutti_verbs_transport.progress(pair->pipe));
    for (unsigned i = 0; i < MESSAGES; i++) TUTTI_TRY(rdma_case_carry(pair, false, BYTES, i));
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, pair->in, 8));
    CHECK(to_the_end(pair, 5000) == TUTTI_ERR_PEER_DIED && says("has ended"), "no end was reported: %s",
          tutti_last_error());
    return TUTTI_OK;
}

/* The receiver has granted its buffer and takes that back: nothing may be written there afterwards. */
static tutti_status cut_off(rdma_pair *pair) {
    struct iovec part = {.iov_base = pair->out, .iov_len = RDMA_CASE_BYTES};
    if (!pair->first) {
        TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, pair->in, RDMA_CASE_BYTES));
        while (pair->pipe->received == 0) TUTTI_TRY(tutti_verbs_transport.progress(pair->pipe));
        tutti_verbs_transport.cancel(pair->pipe);
        memset(pair->in, 0x55, RDMA_CASE_BYTES);
        usleep(300000);
        for (size_t i = 0; i < RDMA_CASE_BYTES; i++)
            CHECK(pair->in[i] == 0x55, "byte %zu was written after the cancel", i);
        CHECK(tutti_verbs_transport.send(pair->pipe, &part, 1) == TUTTI_ERR_ABORTED, "the pipe was still of use");
        return TUTTI_OK;
    }
    TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, &part, 1));
    CHECK(to_the_end(pair, 5000) == TUTTI_ERR_PEER_DIED && says("cut off"), "no end was reported: %s",
          tutti_last_error());
    return TUTTI_OK;
}

/* The second process is killed in the middle of a transfer. */
static tutti_status killed(rdma_pair *pair) {
    struct iovec part = {.iov_base = pair->out, .iov_len = RDMA_CASE_BYTES};
    int64_t start = 0;
    tutti_status status = TUTTI_OK;
    for (int round = 0; status == TUTTI_OK && round < 100; round++) {
        start = tutti_now_ns();
        status = tutti_verbs_transport.recv(pair->pipe, pair->in, RDMA_CASE_BYTES);
        if (status == TUTTI_OK) status = tutti_verbs_transport.send(pair->pipe, &part, 1);
        if (status != TUTTI_OK) break;
        while (!pair->first && pair->pipe->received == 0) TUTTI_TRY(tutti_verbs_transport.progress(pair->pipe));
        if (!pair->first && round == 3) raise(SIGKILL);
        status = to_the_end(pair, 10000);
    }
    int64_t ms = (tutti_now_ns() - start) / TUTTI_NS_PER_MS;
    CHECK(status == TUTTI_ERR_PEER_DIED && says("pid") && ms < 2000, "status %d after %ld ms: %s", status, ms,
          tutti_last_error());
    printf("   known after %ld ms: %s\n", ms, tutti_last_error());
    return TUTTI_OK;
}

/* The same, and a child of it lives on, with copies of all that it had open. */
static tutti_status killed_with_child(rdma_pair *pair) {
    if (!pair->first && fork() == 0) {
        sleep(4);
        _exit(0);
    }
    return killed(pair);
}

/* With TUTTI_FAULT=rdma_bad_key on the first: its adapter writes with a key that the other does not know. */
static tutti_status bad_key(rdma_pair *pair) {
    tutti_status status = rdma_case_exchange(pair, 100000, 100000, 1);
    CHECK(status == (pair->first ? TUTTI_ERR_SYSTEM : TUTTI_ERR_PEER_DIED), "status %d: %s", status,
          tutti_last_error());
    CHECK(says("refused the address or key") && says("pid"), "it says only: %s", tutti_last_error());
    printf("   %s\n", tutti_last_error());
    return TUTTI_OK;
}

/* With TUTTI_FAULT=rdma_break:...: queue pairs fail again and again, and the callers do not notice. */
static tutti_status broken_pairs(rdma_pair *pair) {
    TUTTI_TRY(rdma_case_mixed(pair));
    CHECK(rdma_case_counters(pair)->repairs > 0, "nothing broke");
    printf("   made anew %lu times\n", rdma_case_counters(pair)->repairs);
    return TUTTI_OK;
}

/* The script that waits for the file RDMA_PAIR_STARTED takes the link down for two seconds: the case goes on until a
 * side has noticed that, and for a moment more. */
static tutti_status link_down(rdma_pair *pair) {
    const char *started = getenv("RDMA_PAIR_STARTED");
    FILE *file = started != NULL ? fopen(started, "w") : NULL;
    if (file != NULL) fclose(file);
    int64_t end = tutti_now_ns() + 20 * TUTTI_NS_PER_S;
    bool broken = false;
    for (unsigned round = 0;; round++) {
        int64_t now = tutti_now_ns();
        if (!broken && rdma_case_counters(pair)->repairs > 0) broken = true, end = now + TUTTI_NS_PER_S;
        char more = now < end;
        TUTTI_TRY(pair->first ? rdma_pair_send(pair, &more, 1) : rdma_pair_recv(pair, &more, 1));
        if (!more) break;
        TUTTI_TRY(rdma_case_exchange(pair, 1000 + round, 1000 + round, round));
        TUTTI_TRY(rdma_case_exchange(pair, 200000 + round, 200000 + round, round));
    }
    CHECK(rdma_case_counters(pair)->repairs > 0, "nothing broke");
    printf("   made anew %lu times\n", rdma_case_counters(pair)->repairs);
    return TUTTI_OK;
}

/* With TUTTI_FAULT=rdma_register:...: large messages go by the ring. */
static tutti_status no_registration(rdma_pair *pair) {
    for (unsigned i = 0; i < 5; i++) TUTTI_TRY(rdma_case_exchange(pair, 300000 + i, 300000 + i, i));
    CHECK(rdma_case_counters(pair)->pieces == 0, "%lu pieces", rdma_case_counters(pair)->pieces);
    return TUTTI_OK;
}

static tutti_status striped(rdma_pair *pair) {
    for (unsigned i = 0; i < 4; i++) TUTTI_TRY(rdma_case_exchange(pair, RDMA_CASE_BYTES - i, RDMA_CASE_BYTES - i, i));
    const tutti_rdma_counters *now = rdma_case_counters(pair);
    uint64_t writes = now->work_requests - now->records - now->states;
    CHECK(writes >= 2 * now->pieces - 4, "%lu writes for %lu pieces: not striped", writes, now->pieces);
    return TUTTI_OK;
}

/* One side has no adapter, or a wrong address: both sides get an error with the reason. */
static tutti_status no_way(rdma_pair *pair) {
    tutti_status status = rdma_pair_open(pair);
    CHECK(status != TUTTI_OK && tutti_last_error()[0] != '\0', "it was opened");
    printf("   %s\n", tutti_last_error());
    return TUTTI_OK;
}

/* Opened and closed at once: the slower side finds that its peer has gone, and its pipe opens all the same. */
static tutti_status closed_at_once(rdma_pair *pair) {
    for (int i = 0; i < 10; i++) {
        TUTTI_TRY(rdma_pair_open(pair));
        rdma_pair_close(pair);
    }
    return TUTTI_OK;
}

const rdma_case rdma_fault_cases[] = {
    {"sent_before_close", sent_before_close, false},
    {"read_after_close", read_after_close, false},
    {"cut_off", cut_off, false},
    {"killed", killed, false},
    {"killed_with_child", killed_with_child, false},
    {"bad_key", bad_key, false},
    {"broken_pairs", broken_pairs, false},
    {"link_down", link_down, false},
    {"no_registration", no_registration, false},
    {"striped", striped, false},
    {"no_way", no_way, true},
    {"closed_at_once", closed_at_once, true},
    {NULL, NULL, false},
};
