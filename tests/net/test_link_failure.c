/*
 * How links fail and end: calls that differ, a rank that gives up, leaves, keeps silent or dies, an interruption,
 * garbage. Links without failures are in test_link.c.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/net/link.h"
#include "comm/net/transport/transport.h"
#include "tests/support/links/links.h"

static tutti_status differ(ranks_context *context) {
    links_stage s;
    char byte;
    TUTTI_TRY(links_set_up(context, &s));
    if (context->rank == 1) {
        s.op.count = 5;
        s.op.signature = 78;
    }
    int peer = 1 - context->rank;
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_link_exchange(&s.rail, peer, "x", 1, peer, &byte, 1));
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "rank 0 all_reduce(float32, 1, sum) #1, rank 1 all_reduce(float32, 5, sum) #1"), "%s",
                text);
    /* The link stays broken. */
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_link_send(&s.rail, peer, "x", 1));
    tutti_link_close_all(context->comm);
    return TUTTI_OK;
}

Test(link_failure, shows_both_calls_where_they_differ) {
    const char *failure = links_run(2, RANKS_THREADS, &(links_setting){0}, differ);
    cr_assert_null(failure, "%s", failure);
}

static tutti_status counts_differ(ranks_context *context) {
    links_stage s;
    char bytes[20000] = "";
    TUTTI_TRY(links_set_up(context, &s));
    int peer = 1 - context->rank;
    size_t mine = context->rank == 0 ? 10 : sizeof bytes;
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_link_exchange(&s.rail, peer, bytes, mine, peer, bytes, mine));
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "rank 1 sends 20000 bytes to rank 0, which expects 10") ||
                    strstr(text, "rank 0 sends 10 bytes to rank 1, which expects 20000"),
                "%s", text);
    tutti_link_close_all(context->comm);
    return TUTTI_OK;
}

Test(link_failure, reports_that_counts_differ) {
    const char *failure = links_run(2, RANKS_THREADS, &(links_setting){0}, counts_differ);
    cr_assert_null(failure, "%s", failure);
}

/* Rank 0 gives up; 1 waits for its data, 2 sends it more than fits into buffers, 3 waits for another rank. */
static tutti_status give_up(ranks_context *context) {
    enum { MUCH = 64 << 20 };
    links_stage s;
    char byte;
    TUTTI_TRY(links_set_up(context, &s));
    if (context->rank == 0) {
        struct timespec moment = {.tv_nsec = 300 * TUTTI_NS_PER_MS};
        nanosleep(&moment, NULL);
        tutti_fail(TUTTI_ERR_DATA, "the cat sat on the keyboard");
        tutti_comm_break(context->comm, TUTTI_ERR_DATA);
        tutti_link_break_all(context->comm);
        return TUTTI_OK; /* its links stay open until the others have read the reason */
    }
    if (context->rank == 1) {
        RANKS_EXPECT(TUTTI_ERR_DATA, tutti_link_recv(&s.rail, 0, &byte, 1));
    } else if (context->rank == 2) {
        char *much = calloc(1, MUCH);
        tutti_status status = tutti_link_send(&s.rail, 0, much, MUCH);
        free(much);
        RANKS_EXPECT(TUTTI_ERR_DATA, status);
    } else {
        RANKS_EXPECT(TUTTI_ERR_DATA, tutti_link_recv(&s.rail, 2, &byte, 1));
    }
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "the cat sat on the keyboard (reported by rank "), "%s", text);
    return TUTTI_OK;
}

Test(link_failure, tells_all_ranks_why_one_gave_up) {
    const char *failure = links_run(4, RANKS_THREADS, &(links_setting){0}, give_up);
    cr_assert_null(failure, "%s", failure);
}

/* A rank that has finished may leave while others go on. */
static tutti_status leave_early(ranks_context *context) {
    links_stage s;
    char byte = 'a';
    TUTTI_TRY(links_set_up(context, &s));
    int me = context->rank;
    if (me == 0) {
        TUTTI_TRY(tutti_link_send(&s.rail, 1, &byte, 1));
        tutti_link_close_all(context->comm);
        return TUTTI_OK;
    }
    struct timespec moment = {.tv_nsec = 300 * TUTTI_NS_PER_MS};
    nanosleep(&moment, NULL);
    if (me == 1) TUTTI_TRY(tutti_link_recv(&s.rail, 0, &byte, 1));
    if (me == 1) nanosleep(&moment, NULL); /* rank 2 progresses meanwhile */
    TUTTI_TRY(me == 1 ? tutti_link_send(&s.rail, 2, &byte, 1) : tutti_link_recv(&s.rail, 1, &byte, 1));
    RANKS_CHECK(byte == 'a', "a wrong byte came");
    links_next_op(&s);
    RANKS_EXPECT(TUTTI_ERR_BROKEN, tutti_link_recv(&s.rail, 0, &byte, 1));
    RANKS_CHECK(strstr(tutti_last_error(), "rank 0 has destroyed communicator"), "%s", tutti_last_error());
    return TUTTI_OK;
}

Test(link_failure, lets_a_finished_rank_leave) {
    const char *failure = links_run(3, RANKS_THREADS, &(links_setting){0}, leave_early);
    cr_assert_null(failure, "%s", failure);
}

static tutti_status wait_in_vain(ranks_context *context) {
    links_stage s;
    char byte;
    TUTTI_TRY(links_set_up(context, &s));
    struct timespec longer = {.tv_sec = 1};
    if (context->rank == 0) return nanosleep(&longer, NULL) == 0 ? TUTTI_OK : TUTTI_ERR_SYSTEM;
    s.op.timeout_ms = 300;
    int64_t start_ns = tutti_now_ns();
    RANKS_EXPECT(TUTTI_ERR_TIMEOUT, tutti_link_recv(&s.rail, 0, &byte, 1));
    int64_t took_ms = (tutti_now_ns() - start_ns) / TUTTI_NS_PER_MS;
    RANKS_CHECK(took_ms >= 290 && took_ms < 3000, "the deadline of 300 ms passed after %lld", (long long)took_ms);
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "deadline of 300 ms") && strstr(text, "rank 0") && strstr(text, "0 of 1 bytes"), "%s",
                text);
    return TUTTI_OK;
}

Test(link_failure, keeps_the_deadline) {
    const char *failure = links_run(2, RANKS_THREADS, &(links_setting){0}, wait_in_vain);
    cr_assert_null(failure, "%s", failure);
}

static int ask_to_end(void *context) {
    (void)context;
    return 1;
}

static tutti_status interrupted(ranks_context *context) {
    links_stage s;
    char byte;
    TUTTI_TRY(links_set_up(context, &s));
    struct timespec longer = {.tv_sec = 1};
    if (context->rank == 0) return nanosleep(&longer, NULL) == 0 ? TUTTI_OK : TUTTI_ERR_SYSTEM;
    tutti_interrupt_set(ask_to_end, NULL);
    RANKS_EXPECT(TUTTI_ERR_INTERRUPTED, tutti_link_recv(&s.rail, 0, &byte, 1));
    tutti_interrupt_set(NULL, NULL);
    return TUTTI_OK;
}

Test(link_failure, ends_when_it_is_interrupted) {
    const char *failure = links_run(2, RANKS_THREADS, &(links_setting){0}, interrupted);
    cr_assert_null(failure, "%s", failure);
}

static tutti_status die(ranks_context *context) {
    links_doors d;
    links_stage s;
    char mine[9000], theirs[9000];
    TUTTI_TRY(links_open_doors(context, &d));
    TUTTI_TRY(links_set_up(context, &s));
    int peer = 1 - context->rank;
    for (int i = 0; i < 20; i++, links_next_op(&s))
        TUTTI_TRY(links_exchange_by_doors(&s, &d, peer, mine, peer, theirs, sizeof mine));
    if (context->rank == 0) ranks_strike(context, SIGKILL);
    RANKS_EXPECT(TUTTI_ERR_PEER_DIED, links_exchange_by_doors(&s, &d, peer, mine, peer, theirs, sizeof mine));
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "lost its connection") && strstr(text, "to rank 0 (host "), "%s", text);
    return TUTTI_OK;
}

Test(link_failure, reports_that_the_other_process_died) {
    if (!ranks_have_processes()) cr_skip("needs processes");
    const char *failure = links_run(2, RANKS_PROCESSES, &(links_setting){.by_doors = true}, die);
    cr_assert_null(failure, "%s", failure);
}

/* The bytes that arrive are not a valid record. */
static tutti_status hear_garbage(ranks_context *context) {
    links_stage s;
    char data[70000];
    TUTTI_TRY(links_set_up(context, &s));
    tutti_pipe *pipe;
    int pair[2];
    tutti_deadline deadline = tutti_deadline_after_ms(1000);
    if (context->rank != 0) return TUTTI_OK;
    TUTTI_TRY(mesh_pair(MESH_UNIX, pair));
    TUTTI_TRY(tutti_tcp_transport.open(&(tutti_connection){.socket = pair[0]}, &deadline, &pipe));
    TUTTI_TRY(tutti_link_adopt(context->comm, 1, pipe));
    memset(data, 'G', 200);
    RANKS_CHECK(send(pair[1], data, 200, 0) == 200, "cannot send");
    RANKS_EXPECT(TUTTI_ERR_DATA, tutti_link_recv(&s.rail, 1, data, sizeof data));
    RANKS_CHECK(strstr(tutti_last_error(), "invalid link record"), "%s", tutti_last_error());
    close(pair[1]);
    return TUTTI_OK;
}

Test(link_failure, refuses_garbage) {
    const char *failure = links_run(2, RANKS_THREADS, &(links_setting){.by_doors = true}, hear_garbage);
    cr_assert_null(failure, "%s", failure);
}
