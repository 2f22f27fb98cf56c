/*
 * Messages between hosts: once a blocking send has returned, its message arrives, whatever the sender does next.
 */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/hosts/hosts.h"

#define MIB ((size_t)1 << 20)

static void run(const netns_options *network, ranks_body body) {
    const char *failure =
        hosts_run(&(hosts_options){.ranks_per_host = (const int[]){1, 1, 0}, .network = *network}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static unsigned char byte_at(size_t at, int salt) {
    return (unsigned char)(at * 31 + at / 251 + (size_t)salt);
}

static char *filled(size_t bytes, int salt) {
    char *data = malloc(bytes + 1);
    for (size_t i = 0; data != NULL && i < bytes; i++) data[i] = (char)byte_at(i, salt);
    return data;
}

static tutti_status check(const char *data, size_t bytes, int salt) {
    for (size_t i = 0; i < bytes; i++)
        RANKS_CHECK((unsigned char)data[i] == byte_at(i, salt), "byte %zu of %zu is wrong", i, bytes);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- and then nothing */

#define AWAY_S 3

/* Rank 1 sends `count` messages over a slow link, whose buffers they fill, and then does not call the library for
 * long; rank 0 must receive them before that. */
static tutti_status send_and_compute(ranks_context *context, size_t bytes, int count) {
    char *data = filled(bytes, 1);
    tutti_status status = TUTTI_OK;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    int64_t start_ns = tutti_now_ns();
    for (int i = 0; i < count && status == TUTTI_OK; i++) {
        if (context->rank == 1) {
            status = tutti_send(context->comm, data, bytes, TUTTI_UINT8, 0, 5, NULL);
        } else {
            memset(data, 0, bytes);
            status = tutti_recv(context->comm, data, bytes, TUTTI_UINT8, 1, 5, NULL);
            if (status == TUTTI_OK) status = check(data, bytes, 1);
        }
    }
    double seconds = (double)(tutti_now_ns() - start_ns) * 1e-9;
    free(data);
    TUTTI_TRY(status);
    if (context->rank == 1) sleep(AWAY_S);
    else RANKS_CHECK(seconds < AWAY_S - 0.5, "the messages were there after %.1f s only", seconds);
    return TUTTI_OK;
}

static tutti_status send_one_large(ranks_context *context) {
    return send_and_compute(context, 16 * MIB, 1);
}

static tutti_status send_many_small(ranks_context *context) {
    return send_and_compute(context, 4096, 4000);
}

Test(hosts_messages, a_large_message_arrives_while_its_sender_computes) {
    HOSTS_NEED(.rate = "200mbit");
    run(&(netns_options){.rate = "200mbit"}, send_one_large);
}

Test(hosts_messages, small_messages_arrive_while_their_sender_computes) {
    HOSTS_NEED(.rate = "200mbit");
    run(&(netns_options){.rate = "200mbit"}, send_many_small);
}

/* -------------------------------------------------------------------------------------------------- ping-pong */

/* All sizes around the limits of lines, frames and rings, back and forth; several times, since what remains in a pipe
 * depends on timing. */
static tutti_status play(ranks_context *context) {
    static const size_t sizes[] = {0,     1,     23,         24,     25,      64,    65,
                                   88,    4095,  4096,       16383,  16384,   32768, 65535,
                                   65536, 65537, 131072 + 1, 262144, MIB - 1, MIB,   2 * MIB + 1};
    char *in = malloc(3 * MIB);
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == TUTTI_OK; i++) {
        size_t bytes = sizes[i];
        char *out = filled(bytes, context->rank);
        for (int round = 0; round < 20 && status == TUTTI_OK; round++) {
            if (context->rank == 0) status = tutti_send(context->comm, out, bytes, TUTTI_UINT8, 1, 0, NULL);
            if (status == TUTTI_OK)
                status = tutti_recv(context->comm, in, bytes, TUTTI_UINT8, 1 - context->rank, 0, NULL);
            if (status == TUTTI_OK) status = check(in, bytes, 1 - context->rank);
            if (status == TUTTI_OK && context->rank == 1)
                status = tutti_send(context->comm, out, bytes, TUTTI_UINT8, 0, 0, NULL);
        }
        free(out);
    }
    free(in);
    return status;
}

Test(hosts_messages, ping_pong_of_all_sizes) {
    HOSTS_NEED(0);
    run(&(netns_options){0}, play);
}

/* A message takes longer than a blocking receive polls: it is given to another receive while its bytes come. */
static tutti_status play_slowly(ranks_context *context) {
    enum { BYTES = 60001, ROUNDS = 12 };
    char *in = malloc(2 * BYTES), *out = filled(BYTES, context->rank);
    tutti_status status = TUTTI_OK;
    for (int round = 0; round < ROUNDS && status == TUTTI_OK; round++) {
        if (context->rank == round % 2) {
            status = tutti_send(context->comm, out, BYTES, TUTTI_UINT8, 1 - context->rank, 0, NULL);
            continue;
        }
        memset(in, 0x5a, 2 * BYTES);
        status = tutti_recv(context->comm, in, 2 * BYTES, TUTTI_UINT8, 1 - context->rank, 0, NULL);
        if (status == TUTTI_OK) status = check(in, BYTES, 1 - context->rank);
        for (size_t i = BYTES; i < 2 * BYTES && status == TUTTI_OK; i++)
            RANKS_CHECK(in[i] == 0x5a, "byte %zu was written, behind the message", i);
    }
    free(out);
    free(in);
    return status;
}

Test(hosts_messages, ping_pong_over_a_slow_link) {
    HOSTS_NEED(.rate = "20mbit");
    run(&(netns_options){.rate = "20mbit"}, play_slowly);
}

/* Both directions at once, of sizes that differ, with small messages in between. */
static tutti_status cross(ranks_context *context) {
    int other = 1 - context->rank;
    char *out = filled(5 * MIB, context->rank), *in = malloc(5 * MIB), *small = filled(100, context->rank + 7),
         got[100];
    tutti_status status = TUTTI_OK;
    for (int round = 0; round < 10 && status == TUTTI_OK; round++) {
        size_t mine = (context->rank == 0 ? 5 * MIB - 3 : 3 * MIB + 1),
               others = (other == 0 ? 5 * MIB - 3 : 3 * MIB + 1);
        tutti_work *sent = NULL, *sent_small = NULL;
        status = tutti_send(context->comm, out, mine, TUTTI_UINT8, other, 1, &TUTTI_OPTIONS(.work = &sent));
        if (status == TUTTI_OK)
            status = tutti_send(context->comm, small, 100, TUTTI_UINT8, other, 2, &TUTTI_OPTIONS(.work = &sent_small));
        if (status == TUTTI_OK) status = tutti_recv(context->comm, got, 100, TUTTI_UINT8, other, 2, NULL);
        if (status == TUTTI_OK) status = check(got, 100, other + 7);
        if (status == TUTTI_OK) status = tutti_recv(context->comm, in, 5 * MIB, TUTTI_UINT8, other, 1, NULL);
        if (status == TUTTI_OK) status = check(in, others, other);
        if (sent != NULL && status == TUTTI_OK) status = tutti_work_wait(sent, -1);
        if (sent_small != NULL && status == TUTTI_OK) status = tutti_work_wait(sent_small, -1);
        tutti_work_free(sent);
        tutti_work_free(sent_small);
    }
    free(out);
    free(in);
    free(small);
    return status;
}

Test(hosts_messages, both_directions_at_once) {
    HOSTS_NEED(0);
    run(&(netns_options){0}, cross);
}

/* -------------------------------------------------------------------------------------------------- giving up */

#define GIVEN_UP_BYTES (64 * MIB)

/* A transfer that is given up in the middle leaves both buffers alone, and the connection, which other communicators
 * use, goes on. */
static tutti_status give_up(ranks_context *context) {
    tutti_comm *doomed;
    int other = 1 - context->rank;
    char *data = filled(GIVEN_UP_BYTES, 3), *small = filled(1000, 4), got[1000];
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &doomed));
    tutti_status status;
    int64_t start_ns = tutti_now_ns();
    if (context->rank == 1)
        status = tutti_send(doomed, data, GIVEN_UP_BYTES, TUTTI_UINT8, 0, 1, &TUTTI_OPTIONS(.timeout_ms = 30000));
    else status = tutti_recv(doomed, data, GIVEN_UP_BYTES, TUTTI_UINT8, 1, 1, &TUTTI_OPTIONS(.timeout_ms = 500));
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT && strstr(tutti_last_error(), "deadline of 500 ms") != NULL,
                "status %d: %s", status, tutti_last_error()); /* the sender gets the error too */
    RANKS_CHECK(tutti_now_ns() - start_ns < 3000000000, "it took too long");
    memset(data, 0x5a, GIVEN_UP_BYTES);
    for (int round = 0; round < 5; round++) {
        if (context->rank == 1) {
            TUTTI_TRY(tutti_send(context->comm, small, 1000, TUTTI_UINT8, other, 2, NULL));
            TUTTI_TRY(tutti_send(context->comm, data, 2 * MIB, TUTTI_UINT8, other, 3, NULL));
        } else {
            char *large = malloc(2 * MIB);
            TUTTI_TRY(tutti_recv(context->comm, got, 1000, TUTTI_UINT8, other, 2, NULL));
            TUTTI_TRY(check(got, 1000, 4));
            TUTTI_TRY(tutti_recv(context->comm, large, 2 * MIB, TUTTI_UINT8, other, 3, NULL));
            for (size_t i = 0; i < 2 * MIB; i++)
                RANKS_CHECK(large[i] == 0x5a, "byte %zu of a later message is wrong", i);
            free(large);
        }
    }
    for (size_t i = 0; i < GIVEN_UP_BYTES; i++) RANKS_CHECK(data[i] == 0x5a, "byte %zu was written afterwards", i);
    free(data);
    free(small);
    tutti_comm_destroy(doomed);
    return TUTTI_OK;
}

Test(hosts_messages, a_transfer_that_is_given_up_leaves_buffers_and_connection_alone) {
    HOSTS_NEED(.rate = "100mbit");
    run(&(netns_options){.rate = "100mbit"}, give_up);
}

/* --------------------------------------------------------------------------------------------------- notification */

static bool says(const char *words) {
    return strstr(tutti_last_error(), words) != NULL;
}

/* Rank 1 waits for a message on a communicator without other traffic, and rank 0 aborts or destroys it. */
static tutti_status wait_in_vain(ranks_context *context, bool aborts) {
    tutti_comm *doomed;
    int value = 0;
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &doomed));
    if (context->rank == 0) {
        if (!aborts) TUTTI_TRY(tutti_send(doomed, &value, 1, TUTTI_INT32, 1, 0, NULL));
        usleep(500000);
        if (aborts) TUTTI_TRY(tutti_comm_abort(doomed, "for a test"));
        else TUTTI_TRY(tutti_comm_destroy(doomed));
        sleep(3); /* does not call the library */
    } else {
        if (!aborts) TUTTI_TRY(tutti_recv(doomed, &value, 1, TUTTI_INT32, 0, 0, NULL));
        int64_t start_ns = tutti_now_ns();
        tutti_status status = tutti_recv(doomed, &value, 1, TUTTI_INT32, 0, 0, NULL);
        double seconds = (double)(tutti_now_ns() - start_ns) * 1e-9;
        RANKS_CHECK(status == (aborts ? TUTTI_ERR_ABORTED : TUTTI_ERR_BROKEN), "status %d: %s", status,
                    tutti_last_error());
        RANKS_CHECK(says(aborts ? "for a test" : "rank 0 has destroyed"), "it says only: %s", tutti_last_error());
        RANKS_CHECK(seconds < 2.5, "it took %.1f s", seconds);
    }
    if (aborts || context->rank == 1) tutti_comm_destroy(doomed);
    return tutti_barrier(context->comm, NULL);
}

static tutti_status wait_for_who_aborts(ranks_context *context) {
    return wait_in_vain(context, true);
}

static tutti_status wait_for_who_leaves(ranks_context *context) {
    return wait_in_vain(context, false);
}

Test(hosts_messages, a_receive_ends_when_the_sender_aborts) {
    HOSTS_NEED(0);
    run(&(netns_options){0}, wait_for_who_aborts);
}

Test(hosts_messages, a_receive_ends_when_its_sender_has_left) {
    HOSTS_NEED(0);
    run(&(netns_options){0}, wait_for_who_leaves);
}

typedef struct idle {
    atomic_bool entered, may_leave;
} idle;

static tutti_status wait_idle(void *context) {
    idle *i = context;
    atomic_store(&i->entered, true);
    while (!atomic_load(&i->may_leave)) usleep(1000);
    return TUTTI_OK;
}

/* Rank 0 aborts while a function of tutti_submit has the communicator's queue, and calls nothing. Rank 1 waits in a
 * collective. */
static tutti_status abort_beside_a_function(ranks_context *context) {
    tutti_comm *doomed;
    int32_t one = 1;
    idle i = {false};
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &doomed));
    TUTTI_TRY(tutti_barrier(doomed, NULL));
    if (context->rank == 0) {
        tutti_work *work;
        TUTTI_TRY(tutti_submit(doomed, wait_idle, NULL, &i, &TUTTI_OPTIONS(.work = &work)));
        while (!atomic_load(&i.entered)) usleep(1000);
        usleep(300000);
        TUTTI_TRY(tutti_comm_abort(doomed, "for a test"));
        atomic_store(&i.may_leave, true);
        TUTTI_TRY(tutti_work_wait(work, -1));
        tutti_work_free(work);
        sleep(3); /* does not call the library */
    } else {
        int64_t start_ns = tutti_now_ns();
        RANKS_EXPECT(TUTTI_ERR_ABORTED, tutti_all_reduce(doomed, &one, &one, 1, TUTTI_INT32, TUTTI_SUM, NULL));
        double seconds = (double)(tutti_now_ns() - start_ns) * 1e-9;
        RANKS_CHECK(says("for a test"), "it says only: %s", tutti_last_error());
        RANKS_CHECK(seconds < 2.5, "it took %.1f s", seconds);
    }
    tutti_comm_destroy(doomed);
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_messages, a_collective_ends_when_a_rank_aborts_beside_a_function) {
    HOSTS_NEED(0);
    run(&(netns_options){0}, abort_beside_a_function);
}
