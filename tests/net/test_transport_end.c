/*
 * How a pipe ends, on every transport: closed in order, left in the middle, cancelled, or by the death of the process
 * at the other end.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/net/transport/multi_socket.h"
#include "comm/net/transport/transport.h"
#include "tests/support/links/mesh.h"
#include "tests/support/links/pipes.h"
#include "tests/support/ranks.h"

TestSuite(transport_end, .timeout = 100);

/* ------------------------------------------------------------------------------------------------- ending */

/* Sends no more than fits without the receiver: large messages may wait for it at the sender. */
static tutti_status close_after_send(pipes_pair *p) {
    enum { BYTES = 4000 };
    unsigned char *src = malloc(BYTES), *dst = malloc(BYTES), more;
    pipes_fill(src, BYTES, 6);
    tutti_status status = pipes_send(p->a, src, BYTES);
    tutti_deadline deadline = tutti_deadline_after_ms(2000);
    while (status == TUTTI_OK && !tutti_pipe_has_sent(p->a) && !tutti_deadline_passed(&deadline))
        status = p->transport->progress(p->a);
    bool sent = tutti_pipe_has_sent(p->a);
    p->transport->close(p->a);
    p->a = NULL;
    free(src);
    if (sent && status == TUTTI_OK) status = p->transport->recv(p->b, dst, BYTES);
    deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    while (status == TUTTI_OK && !tutti_pipe_has_received(p->b) && !tutti_deadline_passed(&deadline))
        status = p->transport->progress(p->b);
    if (status == TUTTI_OK)
        status = sent ? pipes_compare(dst, BYTES, 6) : tutti_fail(TUTTI_ERR_TIMEOUT, "4000 bytes did not go");
    free(dst);
    TUTTI_TRY(status);
    /* After that the pipe reports that the peer has gone. */
    status = p->transport->recv(p->b, &more, 1);
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = p->transport->progress(p->b);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "the end is reported as '%s'", tutti_status_name(status));
    RANKS_CHECK(p->b->status == status && p->b->error[0] != '\0', "the pipe does not keep its status");
    RANKS_CHECK(p->transport->progress(p->b) == status, "the status does not stay");
    RANKS_CHECK(pipes_send(p->b, "x", 1) == status && p->transport->recv(p->b, &more, 1) == status,
                "a pipe that failed takes more");
    return TUTTI_OK;
}

Test(transport_end, delivers_what_was_sent_before_it_was_closed_and_then_reports_the_end) {
    pipes_each(close_after_send);
}

static tutti_status peer_leaves_in_the_middle(pipes_pair *p) {
    unsigned char dst[1000];
    memset(dst, 0xee, sizeof dst);
    TUTTI_TRY(p->transport->recv(p->b, dst, sizeof dst));
    TUTTI_TRY(pipes_send(p->a, "half", 4));
    TUTTI_TRY(pipes_settle(p));
    RANKS_CHECK(p->b->received == 4 && memcmp(dst, "half", 4) == 0, "half of it is not there");
    p->transport->close(p->a);
    p->a = NULL;
    tutti_status status = TUTTI_OK;
    tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = p->transport->progress(p->b);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED && p->b->received == 4 && dst[4] == 0xee, "reported as '%s'",
                tutti_status_name(status));
    return TUTTI_OK;
}

Test(transport_end, reports_that_the_other_side_left_in_the_middle) {
    pipes_each(peer_leaves_in_the_middle);
}

static tutti_status sender_learns_of_the_end(pipes_pair *p) {
    enum { BYTES = 32 << 20 };
    unsigned char *src = calloc(1, BYTES);
    tutti_status status = pipes_send(p->a, src, BYTES);
    p->transport->close(p->b);
    p->b = NULL;
    tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = p->transport->progress(p->a);
    free(src);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "reported as '%s'", tutti_status_name(status));
    return TUTTI_OK;
}

Test(transport_end, reports_to_the_sender_that_the_other_side_has_gone) {
    pipes_each(sender_learns_of_the_end);
}

static tutti_status cancel_all(pipes_pair *p) {
    unsigned char dst[1000], *src = calloc(1, 32 << 20);
    memset(dst, 0xee, sizeof dst);
    /* A transfer that has not begun can be cancelled. */
    TUTTI_TRY(p->transport->recv(p->b, dst, sizeof dst));
    p->transport->cancel(p->b);
    TUTTI_TRY(p->transport->recv(p->b, dst, 4));
    TUTTI_TRY(pipes_send(p->a, "okay", 4));
    TUTTI_TRY(pipes_drive(p));
    RANKS_CHECK(memcmp(dst, "okay", 4) == 0 && dst[4] == 0xee, "wrong bytes after a cancelled receive");
    /* A transfer that has begun is cut off, and the buffers are not touched afterwards. */
    TUTTI_TRY(p->transport->recv(p->b, dst, sizeof dst));
    TUTTI_TRY(pipes_send(p->a, "more", 4));
    TUTTI_TRY(pipes_settle(p));
    p->transport->cancel(p->b);
    memset(dst, 0xdd, sizeof dst);
    tutti_status status = pipes_send(p->a, src, 32 << 20);
    p->transport->cancel(p->a);
    free(src);
    RANKS_CHECK(status == TUTTI_OK && p->b->status != TUTTI_OK && p->a->status != TUTTI_OK,
                "a cut pipe is still whole");
    for (int i = 0; i < 100; i++) p->transport->progress(p->b);
    for (size_t i = 0; i < sizeof dst; i++) RANKS_CHECK(dst[i] == 0xdd, "a cancelled receive wrote into its buffer");
    p->transport->cancel(NULL);
    p->transport->close(NULL);
    return TUTTI_OK;
}

Test(transport_end, gives_buffers_back_when_it_is_cancelled) {
    pipes_each(cancel_all);
}

/* A killed process sends no message. */
static tutti_status killed(const pipes_pair *kind) {
    tutti_connection connections[TUTTI_LANES_MOST];
    int sockets[TUTTI_LANES_MOST][2];
    unsigned char byte;
    for (int lane = 0; lane < kind->nlanes; lane++) TUTTI_TRY(mesh_pair(MESH_TCP, sockets[lane]));
    tutti_pipe *pipe = NULL;
    tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    pid_t child = fork();
    for (int lane = 0; lane < kind->nlanes; lane++) {
        close(sockets[lane][child == 0 ? 0 : 1]);
        connections[lane] =
            (tutti_connection){.socket = sockets[lane][child == 0 ? 1 : 0], .called = child == 0, .key = "a key"};
    }
    tutti_status status = tutti_multi_socket_open(kind->of, connections, kind->nlanes, &deadline, &pipe);
    if (child == 0) {
        if (status == TUTTI_OK) pipes_send(pipe, "x", 1);
        for (;;) pause();
    }
    const tutti_transport *transport = status == TUTTI_OK ? pipe->transport : NULL;
    if (status == TUTTI_OK) status = transport->recv(pipe, &byte, 1);
    while (status == TUTTI_OK && !tutti_pipe_has_received(pipe) && !tutti_deadline_passed(&deadline))
        status = transport->progress(pipe);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    TUTTI_TRY(status);
    status = transport->recv(pipe, &byte, 1);
    int64_t start_ns = tutti_now_ns();
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = transport->progress(pipe);
    int64_t took_ms = (tutti_now_ns() - start_ns) / TUTTI_NS_PER_MS;
    transport->close(pipe);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED && took_ms < 2000, "reported as '%s' after %lld ms",
                tutti_status_name(status), (long long)took_ms);
    return TUTTI_OK;
}

static void check_killed(const pipes_pair *kind, void *context) {
    (void)context;
    tutti_status status = killed(kind);
    cr_assert_eq(status, TUTTI_OK, "%s, %d of them: %s", kind->of->name, kind->nlanes, tutti_last_error());
}

Test(transport_end, reports_within_two_seconds_that_the_other_process_was_killed) {
    if (!ranks_have_processes()) cr_skip("needs processes");
    pipes_each_kind(check_killed, NULL);
}
