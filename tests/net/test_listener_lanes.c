/*
 * The connections of one pipe: they arrive at the listener one by one, and are taken when all are there; strangers,
 * and lanes with invalid numbers, do not prevent that.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/net/async_connect.h"
#include "comm/net/listener_state.h"
#include "comm/net/transport/multi_socket.h"

#define KEY   "the job's key"
#define LANES 3

static tutti_listener_info own_listener;

static void open_listener(void) {
    setenv("TUTTI_LOG", "error", 1); /* refusals are what is tested */
    cr_assert_eq(tutti_listener_add_key(KEY, sizeof KEY), TUTTI_OK);
    cr_assert_eq(tutti_listener_open(&own_listener), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_neq(own_listener.port, 0, "%s", own_listener.why);
}

TestSuite(listener_lanes, .init = open_listener, .timeout = 60);

static tutti_conn_id conn_id_of(uint64_t comm_id, uint32_t lane) {
    tutti_conn_id conn_id;
    memset(&conn_id, 0, sizeof conn_id);
    memset(conn_id.from, 7, sizeof conn_id.from);
    memcpy(conn_id.to, own_listener.process, sizeof conn_id.to);
    conn_id.comm_id = comm_id;
    conn_id.use = TUTTI_CONN_LINK;
    while (tutti_transports[conn_id.transport] != &tutti_tcp_transport) conn_id.transport++;
    conn_id.lane = lane;
    conn_id.lanes = LANES;
    return conn_id;
}

static tutti_status knock(tutti_conn_id conn_id, tutti_connection *connection_out) {
    tutti_deadline deadline = tutti_deadline_after_ms(10000);
    return tutti_listener_connect(&own_listener, &conn_id, &deadline, connection_out);
}

static tutti_status take(uint64_t comm_id, tutti_connection *taken, int64_t within_ms) {
    tutti_conn_id conn_id = conn_id_of(comm_id, 0);
    tutti_deadline deadline = tutti_deadline_after_ms(within_ms);
    tutti_status status;
    while ((status = tutti_listener_take(&conn_id, taken)) == TUTTI_NOT_YET && !tutti_deadline_passed(&deadline))
        poll(&(struct pollfd){.fd = tutti_listener_notify_fd(), .events = POLLIN}, 1, 1);
    return status;
}

static void check_pair(int one, int other) {
    char there = 'x', here = 0;
    cr_assert(send(one, &there, 1, 0) == 1 && recv(other, &here, 1, MSG_WAITALL) == 1 && here == 'x');
}

Test(listener_lanes, are_taken_together_and_in_order_whichever_came_first) {
    static const uint32_t order[LANES] = {2, 0, 1};
    tutti_connection called[LANES], taken[LANES];
    for (int i = 0; i < LANES; i++) {
        cr_assert_eq(take(1, taken, 50), TUTTI_NOT_YET, "after %d of %d", i, LANES);
        cr_assert_eq(knock(conn_id_of(1, order[i]), &called[order[i]]), TUTTI_OK, "%s", tutti_last_error());
    }
    cr_assert_eq(take(1, taken, 5000), TUTTI_OK);
    for (int lane = 0; lane < LANES; lane++) {
        check_pair(called[lane].socket, taken[lane].socket);
        cr_assert_arr_eq(called[lane].key, taken[lane].key, sizeof taken[lane].key);
        for (int other = 0; other < lane; other++)
            cr_assert_arr_neq(taken[lane].key, taken[other].key, sizeof taken[lane].key);
    }
    cr_assert_eq(take(1, taken, 0), TUTTI_NOT_YET);
}

Test(listener_lanes, with_invalid_numbers_are_refused) {
    static const uint32_t wrong[][2] = {{LANES, LANES}, {UINT32_MAX, LANES}, {0, 0}, {0, TUTTI_LANES_MOST + 1}};
    tutti_connection none;
    for (size_t i = 0; i < TUTTI_COUNT_OF(wrong); i++) {
        tutti_conn_id conn_id = conn_id_of(2, wrong[i][0]);
        conn_id.lanes = wrong[i][1];
        cr_assert_neq(knock(conn_id, &none), TUTTI_OK, "lane %u of %u", conn_id.lane, conn_id.lanes);
    }
}

/* Sends a hello for a lane with a key that is not the job's, or garbage. */
static void intrude(uint32_t lane, bool garbage) {
    struct sockaddr_storage name;
    unsigned bytes = tutti_listener_sockaddr(&own_listener.addresses[0], own_listener.port, &name);
    tutti_conn_id conn_id = conn_id_of(3, lane);
    tutti_listener_key wrong = {.bytes = 5, .key = "wrong"};
    tutti_listener_hello hello;
    tutti_listener_reply reply;
    int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&name, bytes), 0);
    cr_assert_eq(tutti_listener_make_hello(&conn_id, &wrong, 1, &hello), TUTTI_OK);
    hello.called = tutti_listener_called(fd, /* by_this_side */ true);
    if (garbage) memset(&hello, 'G', sizeof hello);
    cr_assert_eq(send(fd, &hello, sizeof hello, MSG_NOSIGNAL), (ssize_t)sizeof hello);
    ssize_t got = recv(fd, &reply, sizeof reply, MSG_WAITALL);
    cr_assert(got <= 0 || reply.verdict != TUTTI_LISTENER_ACCEPTED);
    close(fd);
}

static tutti_status await(tutti_async_connect *attempt, tutti_pipe **pipe_out) {
    tutti_status status;
    while ((status = tutti_async_connect_take(attempt, pipe_out)) == TUTTI_NOT_YET) usleep(1000);
    return status;
}

/* A process of the job connects twice for a lane: the newest connection is taken, and the pipe is complete. */
Test(listener_lanes, become_one_pipe_despite_strangers) {
    tutti_connection taken[LANES], early;
    tutti_async_connect *calls = NULL, *takes = NULL;
    tutti_pipe *one = NULL, *other = NULL;
    tutti_conn_id conn_id = conn_id_of(3, 0);
    static unsigned char src[5 * TUTTI_MULTI_SOCKET_BLOCK_BYTES], dst[sizeof src];
    cr_assert_eq(knock(conn_id_of(3, 1), &early), TUTTI_OK);
    for (uint32_t lane = 0; lane < LANES; lane++) intrude(lane, /* garbage */ lane == 1);
    cr_assert_eq(tutti_async_connect_start(&own_listener, &conn_id, NULL, 10000, &calls), TUTTI_OK);
    cr_assert_eq(await(calls, &one), TUTTI_OK, "%s", tutti_last_error());
    for (uint32_t lane = 0; lane < LANES; lane++) intrude(lane, /* garbage */ lane == 2);
    cr_assert_eq(take(3, taken, 5000), TUTTI_OK);
    cr_assert_eq(tutti_async_connect_start(&own_listener, &conn_id, taken, 10000, &takes), TUTTI_OK);
    cr_assert_eq(await(takes, &other), TUTTI_OK, "%s", tutti_last_error());
    for (size_t i = 0; i < sizeof src; i++) src[i] = (unsigned char)(i * 7 + i / 251);
    struct iovec part = {src, sizeof src};
    cr_assert_eq(one->transport->send(one, &part, 1), TUTTI_OK);
    cr_assert_eq(other->transport->recv(other, dst, sizeof dst), TUTTI_OK);
    while (!tutti_pipe_has_received(other)) {
        cr_assert_eq(one->transport->progress(one), TUTTI_OK);
        cr_assert_eq(other->transport->progress(other), TUTTI_OK);
    }
    cr_assert_arr_eq(dst, src, sizeof src);
    one->transport->close(one);
    other->transport->close(other);
    close(early.socket);
}

/* The other side's listener lacks our key: no lane that was made before remains. */
Test(listener_lanes, are_given_up_together) {
    tutti_async_connect *attempt = NULL;
    tutti_pipe *none = NULL;
    tutti_conn_id conn_id = conn_id_of(4, 0);
    tutti_connection taken[LANES];
    conn_id.to[0] ^= 1; /* a process other than the one that listens */
    cr_assert_eq(tutti_async_connect_start(&own_listener, &conn_id, NULL, 1000, &attempt), TUTTI_OK);
    cr_assert_neq(await(attempt, &none), TUTTI_OK);
    cr_assert_null(none);
    cr_assert_eq(take(4, taken, 0), TUTTI_NOT_YET);
    tutti_async_connect_abandon(NULL);
}
