/*
 * Attempts to connect, both sides in one process, at its own listener: which transport a pipe uses where the best one
 * cannot reach the peer. The best one is verbs, which reaches no peer on a machine without an adapter, whatever
 * listeners announce.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/net/async_connect.h"
#include "tests/support/links/at_listener.h"

enum { CALLER, CALLEE, SIDES, PATIENCE_MS = 20000 };

static void open_listener(void) {
    setenv("TUTTI_LOG", "error", 1); /* the tests check failed attempts; the log need not show them */
    setenv("TUTTI_RDMA_DEVICE", "none", 1);
    cr_assert_eq(tutti_listener_add_key("the job's key", 13), TUTTI_OK);
    cr_assert_eq(tutti_listener_open(&own_listener), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_neq(own_listener.port, 0, "%s", own_listener.why);
}

TestSuite(async_connect, .init = open_listener, .timeout = 60);

static int index_of(const tutti_transport *transport) {
    int i = 0;
    while (tutti_transports[i] != transport) i++;
    return i;
}

/* Runs both sides of an attempt, with a connection id for verbs between two sides that also have these transports. */
static void open_both(uint64_t comm_id, uint32_t others, tutti_pipe *pipes[SIDES], tutti_status statuses[SIDES],
                      char errors[SIDES][256]) {
    tutti_async_connect *attempts[SIDES] = {NULL, NULL};
    tutti_conn_id conn_id = conn_id_of(comm_id);
    tutti_listener_info listener = own_listener;
    conn_id.transport = (uint32_t)index_of(&tutti_verbs_transport);
    listener.transports = others | UINT32_C(1) << conn_id.transport;
    cr_assert_eq(tutti_async_connect_start(&listener, &conn_id, NULL, PATIENCE_MS, &attempts[CALLER]), TUTTI_OK);
    tutti_connection taken = take_connection(&conn_id, PATIENCE_MS);
    cr_assert_geq(taken.socket, 0, "no call has come");
    cr_assert_eq(tutti_async_connect_start(&listener, &conn_id, &taken, PATIENCE_MS, &attempts[CALLEE]), TUTTI_OK);
    for (int i = 0; i < SIDES; i++) {
        pipes[i] = NULL;
        while ((statuses[i] = tutti_async_connect_take(attempts[i], &pipes[i])) == TUTTI_NOT_YET) poll(NULL, 0, 1);
        snprintf(errors[i], sizeof errors[i], "%s", statuses[i] == TUTTI_OK ? "" : tutti_last_error());
    }
}

Test(async_connect, uses_the_next_transport_where_one_cannot_reach_the_peer) {
    tutti_pipe *pipes[SIDES];
    tutti_status statuses[SIDES];
    char errors[SIDES][256], there[] = "bytes", here[sizeof there] = "";
    open_both(1, UINT32_C(1) << index_of(&tutti_tcp_transport), pipes, statuses, errors);
    for (int i = 0; i < SIDES; i++) {
        cr_assert_eq(statuses[i], TUTTI_OK, "side %d: %s", i, errors[i]);
        cr_assert_eq(pipes[i]->transport, &tutti_tcp_transport, "side %d goes by %s", i, pipes[i]->transport->name);
    }
    struct iovec part = {.iov_base = there, .iov_len = sizeof there};
    cr_assert_eq(pipes[CALLER]->transport->send(pipes[CALLER], &part, 1), TUTTI_OK);
    cr_assert_eq(pipes[CALLEE]->transport->recv(pipes[CALLEE], here, sizeof here), TUTTI_OK);
    while (!tutti_pipe_has_received(pipes[CALLEE]))
        cr_assert_eq(pipes[CALLEE]->transport->progress(pipes[CALLEE]), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_str_eq(here, there);
    for (int i = 0; i < SIDES; i++) pipes[i]->transport->close(pipes[i]);
}

Test(async_connect, gives_the_reason_where_there_is_no_other_transport) {
    tutti_pipe *pipes[SIDES];
    tutti_status statuses[SIDES];
    char errors[SIDES][256];
    open_both(2, 0, pipes, statuses, errors);
    for (int i = 0; i < SIDES; i++) {
        cr_assert_eq(statuses[i], TUTTI_ERR_UNSUPPORTED, "side %d: %s", i, tutti_status_name(statuses[i]));
        cr_assert(strstr(errors[i], "RDMA") != NULL || strstr(errors[i], "verbs") != NULL ||
                      strstr(errors[i], "not part of this build") != NULL,
                  "side %d: %s", i, errors[i]);
    }
}
