/*
 * What is specific to a pipe over several sockets: which byte goes on which lane, lanes that are ahead of others,
 * lanes that fail alone, and sleeping on all of them. The other end is bare sockets. test_transport.c tests on these
 * pipes, too, what every pipe must do.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/net/transport/multi_socket.h"
#include "tests/support/links/mesh.h"
#include "tests/support/links/pipes.h"

#define LANES 3
#define BLOCK TUTTI_MULTI_SOCKET_BLOCK_BYTES

static tutti_pipe *pipe_;          /* the pipe over all lanes */
static int ends[TUTTI_LANES_MOST]; /* other ends of its lanes */
static unsigned char *src, *dst;

static void make_bundle(void) {
    tutti_connection connections[LANES];
    tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    for (int lane = 0; lane < LANES; lane++) {
        int sockets[2], room = 8 * BLOCK; /* room for some blocks, read or not */
        cr_assert_eq(mesh_pair(MESH_TCP, sockets), TUTTI_OK, "%s", tutti_last_error());
        setsockopt(sockets[0], SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
        connections[lane] = (tutti_connection){.socket = sockets[0]};
        ends[lane] = sockets[1];
    }
    cr_assert_eq(tutti_multi_socket_open(&tutti_tcp_transport, connections, LANES, &deadline, &pipe_), TUTTI_OK);
    cr_assert_neq(pipe_->transport, &tutti_tcp_transport);
    src = malloc(64 * BLOCK);
    dst = calloc(64, BLOCK);
    pipes_fill(src, 64 * BLOCK, 1);
}

static void drop_bundle(void) {
    if (pipe_ != NULL) pipe_->transport->close(pipe_);
    for (int lane = 0; lane < LANES; lane++) close(ends[lane]);
    free(src);
    free(dst);
}

TestSuite(multi_socket, .init = make_bundle, .fini = drop_bundle, .timeout = 60);

static void say(int lane, const void *data, size_t bytes) {
    cr_assert_eq(send(ends[lane], data, bytes, MSG_NOSIGNAL), (ssize_t)bytes, "%s", strerror(errno));
}

static void hear(int lane, void *data, size_t bytes) {
    cr_assert_eq(recv(ends[lane], data, bytes, MSG_WAITALL), (ssize_t)bytes, "%s", strerror(errno));
}

static bool is_silent(int lane) {
    char byte;
    return recv(ends[lane], &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

/* Drives the pipe until it fails, has moved all, or the time is over. */
static tutti_status drive(int64_t most_ms) {
    tutti_deadline deadline = tutti_deadline_after_ms(most_ms);
    tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) {
        status = pipe_->transport->progress(pipe_);
        if (tutti_pipe_has_sent(pipe_) && tutti_pipe_has_received(pipe_)) break;
        usleep(100);
    }
    return status;
}

static void post_receive(size_t bytes) {
    cr_assert_eq(pipe_->transport->recv(pipe_, dst, bytes), TUTTI_OK, "%s", tutti_last_error());
}

static void post_send(const unsigned char *data, size_t bytes) {
    cr_assert_eq(pipes_send(pipe_, data, bytes), TUTTI_OK, "%s", tutti_last_error());
}

/* ------------------------------------------------------------------------------------------------- places */

Test(multi_socket, sends_block_by_block_on_lane_by_lane) {
    post_send(src, 10);
    hear(0, dst, 10);
    cr_assert(tutti_pipe_has_sent(pipe_) && is_silent(1) && is_silent(2)); /* a short send goes at once, on one lane */
    post_send(src + 10, 4 * BLOCK - 10);
    cr_assert_eq(drive(5000), TUTTI_OK);
    hear(0, dst + 10, BLOCK - 10);
    hear(1, dst + BLOCK, BLOCK);
    hear(2, dst + 2 * BLOCK, BLOCK);
    hear(0, dst + 3 * BLOCK, BLOCK);
    cr_assert_eq(pipes_compare(dst, 4 * BLOCK, 1), TUTTI_OK, "%s", tutti_last_error());
    post_send(src, 7); /* the next send continues where the last one ended */
    hear(1, dst, 7);
    cr_assert(is_silent(0) && is_silent(2));
    cr_assert_eq(pipe_->bytes_out, 4 * BLOCK + 7);
}

Test(multi_socket, counts_what_is_complete_from_the_front_and_keeps_what_is_ahead) {
    unsigned char *other = calloc(3, BLOCK);
    post_receive(3 * BLOCK);
    say(1, src + BLOCK, BLOCK);
    say(2, src + 2 * BLOCK, 1000);
    drive(100);
    cr_assert(pipe_->received == 0 && pipe_->bytes_in == BLOCK + 1000);
    cr_assert(pipe_->movable && pipe_->transport->recv(pipe_, other, 3 * BLOCK) == TUTTI_OK);
    memset(dst, 0xee, 3 * BLOCK);
    say(0, src, 100);
    drive(100);
    cr_assert_eq(pipe_->received, 100);
    say(0, src + 100, BLOCK - 100);
    drive(100);
    cr_assert_eq(pipe_->received, 2 * BLOCK + 1000);
    say(2, src + 2 * BLOCK + 1000, BLOCK - 1000);
    cr_assert(drive(5000) == TUTTI_OK && tutti_pipe_has_received(pipe_));
    cr_assert_eq(pipes_compare(other, 3 * BLOCK, 1), TUTTI_OK, "%s", tutti_last_error());
    for (size_t i = 0; i < 3 * BLOCK; i++) cr_assert_eq(dst[i], 0xee, "byte %zu of the former buffer", i);
    free(other);
}

/* The peer reads nothing from one lane: that lane stops while the others go on, and then the send goes on from
 * another buffer. */
Test(multi_socket, goes_on_from_another_buffer_though_one_lane_is_behind) {
    size_t bytes = 390 * BLOCK, got[LANES] = {0}; /* more than the system buffers for three connections */
    unsigned char *large = malloc(bytes), *moved = malloc(bytes), *all = malloc(bytes);
    pipes_fill(large, bytes, 9);
    memcpy(moved, large, bytes);
    post_send(large, bytes);
    tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    for (size_t left = bytes; left > 0;) {
        cr_assert(!tutti_deadline_passed(&deadline), "stuck, %zu bytes left", left);
        for (int lane = 0; lane < LANES; lane++) {
            bool paused = lane == 1 && got[2] < 40 * BLOCK;
            size_t block = (got[lane] / BLOCK * LANES + (size_t)lane) * BLOCK + got[lane] % BLOCK;
            ssize_t more = paused ? 0 : recv(ends[lane], all + block, BLOCK - got[lane] % BLOCK, MSG_DONTWAIT);
            if (more <= 0) continue;
            got[lane] += (size_t)more;
            left -= (size_t)more;
        }
        cr_assert_eq(pipe_->transport->progress(pipe_), TUTTI_OK);
        if (got[2] < 40 * BLOCK || large == NULL) continue;
        cr_assert_not(tutti_pipe_has_sent(pipe_), "all data has gone, though the peer did not read lane 1");
        post_send(moved, bytes);
        memset(large, 0xaa, bytes);
        free(large);
        large = NULL;
    }
    cr_assert(tutti_pipe_has_sent(pipe_) && large == NULL);
    cr_assert_eq(pipes_compare(all, bytes, 9), TUTTI_OK, "%s", tutti_last_error());
    free(moved);
    free(all);
}

/* ----------------------------------------------------------------------------------------------- sleeping */

static bool wakes(int64_t within_ms) {
    short events;
    int fd = pipe_->transport->sleep_on(pipe_, &events);
    cr_assert_geq(fd, 0);
    return poll(&(struct pollfd){.fd = fd, .events = events}, 1, (int)within_ms) > 0;
}

/* Reads what arrives on lanes 0 and 2, until the send stops. */
static void stop_at_lane_1(char *sink, size_t capacity) {
    uint64_t last = 0;
    for (tutti_deadline quiet = tutti_deadline_after_ms(200); !tutti_deadline_passed(&quiet);) {
        cr_assert_eq(pipe_->transport->progress(pipe_), TUTTI_OK);
        for (int lane = 0; lane < LANES; lane += 2) (void)!recv(ends[lane], sink, capacity, MSG_DONTWAIT);
        if (pipe_->bytes_out != last) quiet = tutti_deadline_after_ms(200);
        last = pipe_->bytes_out;
    }
}

/* The receive waits for lane 0, the send for lane 1: either lane wakes the sleeper when it can go on. */
Test(multi_socket, sleeps_until_any_lane_can_go_on_and_not_for_others) {
    enum { BYTES = 96 << 20, SINK = 8 << 20 };
    char *sink = malloc(SINK);
    unsigned char *large = calloc(1, BYTES);
    post_receive(10);
    post_send(large, BYTES);
    stop_at_lane_1(sink, SINK);
    cr_assert_not(tutti_pipe_has_sent(pipe_));
    cr_assert_not(wakes(50), "nothing can go on");
    say(2, src, 10);
    cr_assert_not(wakes(50), "nothing is awaited on lane 2");
    say(0, src, 10);
    cr_assert(wakes(5000), "lane 0 has the awaited bytes");
    while (!tutti_pipe_has_received(pipe_)) cr_assert_eq(pipe_->transport->progress(pipe_), TUTTI_OK);
    cr_assert_not(wakes(50), "lane 1 is full as before");
    post_receive(10);
    while (recv(ends[1], sink, SINK, MSG_DONTWAIT) > 0) continue;
    cr_assert(wakes(5000), "lane 1 has room");
    pipe_->transport->cancel(pipe_);
    free(large);
    free(sink);
}

/* ----------------------------------------------------------------------------------------------- failures */

static bool fails_with(tutti_status status, const char *words) {
    return status == TUTTI_ERR_PEER_DIED && pipe_->status == status && strstr(pipe_->error, words) != NULL &&
           strstr(tutti_last_error(), words) != NULL;
}

/* The other side must see the end on every lane, since it may wait on any. */
static bool all_have_ended(void) {
    char byte;
    bool ended = true;
    struct timeval limit = {.tv_sec = 5};
    for (int lane = 0; lane < LANES; lane++) {
        setsockopt(ends[lane], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        ssize_t got;
        while ((got = recv(ends[lane], &byte, 1, 0)) > 0) continue;
        ended = ended && (got == 0 || errno == ECONNRESET);
    }
    return ended;
}

static void cut(int lane) {
    shutdown(ends[lane], SHUT_RDWR);
}

Test(multi_socket, fails_with_a_lane_whose_turn_it_is_and_names_it) {
    post_receive(2 * BLOCK);
    say(0, src, BLOCK);
    cut(1);
    int64_t start_ns = tutti_now_ns();
    tutti_status status = drive(5000);
    cr_assert(fails_with(status, "socket 2 of 3: tcp: "), "%s", pipe_->error);
    cr_assert_lt(tutti_now_ns() - start_ns, 500 * TUTTI_NS_PER_MS);
    cr_assert_eq(pipe_->received, BLOCK);
    cr_assert(all_have_ended());
    cr_assert_eq(pipes_send(pipe_, "x", 1), status);
    cr_assert_eq(pipe_->transport->recv(pipe_, dst, 1), status);
}

Test(multi_socket, fails_soon_with_a_lane_whose_turn_it_is_not) {
    post_receive(3 * BLOCK);
    cut(2);
    int64_t start_ns = tutti_now_ns();
    cr_assert(fails_with(drive(5000), "socket 3 of 3"), "%s", pipe_->error);
    cr_assert_lt(tutti_now_ns() - start_ns, 2000 * TUTTI_NS_PER_MS);
    cr_assert(all_have_ended());
}

Test(multi_socket, fails_with_a_lane_on_which_it_sends) {
    cut(1);
    shutdown(ends[1], SHUT_RDWR);
    close(ends[1]);
    ends[1] = dup(ends[0]);
    post_send(src, 64 * BLOCK);
    cr_assert(fails_with(drive(5000), "socket 2 of 3"), "%s", pipe_->error);
}

/* A peer that leaves closes its lanes in any order; its last bytes may be on the lane that is read next. */
Test(multi_socket, receives_the_last_bytes_on_one_lane_after_another_has_ended) {
    post_receive(BLOCK - 100);
    say(0, src, BLOCK - 100);
    cr_assert_eq(drive(5000), TUTTI_OK);
    post_receive(200);
    cut(1);
    cr_assert_eq(drive(300), TUTTI_OK, "%s", tutti_last_error());
    say(0, src + BLOCK - 100, 100);
    cr_assert(fails_with(drive(5000), "socket 2 of 3"), "%s", pipe_->error);
    cr_assert_eq(pipe_->received, 100);
    cr_assert_arr_eq(dst, src + BLOCK - 100, 100);
}

/* A failed send must not hide received data, neither on that lane nor on another. */
Test(multi_socket, receives_all_that_came_though_a_lane_cannot_send) {
    say(0, src, BLOCK);
    say(1, src + BLOCK, BLOCK);
    say(2, src + 2 * BLOCK, BLOCK);
    for (int lane = 0; lane < LANES; lane++) close(ends[lane]);
    usleep(100000);
    for (int i = 0; i < 2; i++) { /* the first block is answered with a reset */
        post_send(src, 10);
        usleep(50000);
    }
    for (size_t at = 0; at < 3 * BLOCK; at += BLOCK / 2) {
        cr_assert_eq(pipe_->transport->recv(pipe_, dst + at, BLOCK / 2), TUTTI_OK, "%s", tutti_last_error());
        for (int i = 0; i < 1000 && !tutti_pipe_has_received(pipe_); i++)
            cr_assert_eq(pipe_->transport->progress(pipe_), TUTTI_OK, "at %zu: %s", at, tutti_last_error());
        cr_assert(tutti_pipe_has_received(pipe_), "at %zu", at);
    }
    cr_assert_eq(pipes_compare(dst, 3 * BLOCK, 1), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(pipe_->transport->recv(pipe_, dst, 1), TUTTI_OK);
    cr_assert(fails_with(drive(5000), "closed the connection"), "%s", pipe_->error);
    for (int lane = 0; lane < LANES; lane++) ends[lane] = dup(0);
}

Test(multi_socket, cancels_only_what_has_not_begun_on_any_lane) {
    post_receive(3 * BLOCK);
    pipe_->transport->cancel(pipe_);
    cr_assert_eq(pipe_->status, TUTTI_OK);
    say(0, src, 4);
    post_receive(4);
    cr_assert(drive(5000) == TUTTI_OK && memcmp(dst, src, 4) == 0);
    post_receive(3 * BLOCK);
    say(2, src, 4); /* far from the front */
    drive(100);
    cr_assert_eq(pipe_->received, 0);
    pipe_->transport->cancel(pipe_);
    cr_assert_eq(pipe_->status, TUTTI_ERR_ABORTED);
}

/* Closing must not wait for a peer that reads nothing once per lane. */
Test(multi_socket, is_closed_within_seconds_though_the_peer_does_not_read) {
    post_send(src, 20);
    for (int i = 0; i < 200 && tutti_pipe_has_sent(pipe_); i++) post_send(src, 64 * BLOCK);
    pipe_->transport->cancel(pipe_);
    int64_t start_ns = tutti_now_ns();
    pipe_->transport->close(pipe_);
    cr_assert_lt(tutti_now_ns() - start_ns, 4500 * TUTTI_NS_PER_MS);
    pipe_ = NULL;
}

/* ------------------------------------------------------------------------------------------------ opening */

Test(multi_socket, over_one_socket_is_the_transports_own_pipe) {
    int sockets[2];
    tutti_pipe *own;
    tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    cr_assert_eq(mesh_pair(MESH_TCP, sockets), TUTTI_OK);
    tutti_connection connection = {.socket = sockets[0]};
    cr_assert_eq(tutti_multi_socket_open(&tutti_tcp_transport, &connection, 1, &deadline, &own), TUTTI_OK);
    cr_assert_eq(own->transport, &tutti_tcp_transport);
    own->transport->close(own);
    close(sockets[1]);
}

Test(multi_socket, failing_to_open_leaves_no_connection_behind) {
    int sockets[LANES][2];
    tutti_connection connections[LANES];
    tutti_pipe *none = NULL;
    tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    setenv("TUTTI_TCP_CONGESTION", "hope", 1);
    tutti_settings_reload();
    for (int lane = 0; lane < LANES; lane++) {
        cr_assert_eq(mesh_pair(lane == 1 ? MESH_TCP : MESH_UNIX, sockets[lane]), TUTTI_OK);
        connections[lane] = (tutti_connection){.socket = sockets[lane][0]};
    }
    tutti_status status = tutti_multi_socket_open(&tutti_tcp_transport, connections, LANES, &deadline, &none);
    cr_assert(status == TUTTI_ERR_CONFIG && strstr(tutti_last_error(), "hope"), "%s", tutti_last_error());
    for (int lane = 0; lane < LANES; lane++) {
        char byte;
        cr_assert_eq(recv(sockets[lane][1], &byte, 1, 0), 0, "lane %d", lane);
        close(sockets[lane][1]);
    }
}

Test(multi_socket, is_for_transports_made_of_sockets_and_has_the_width_that_was_set) {
    cr_assert_eq(tutti_multi_socket_lanes(&tutti_tcp_transport), 1);
    setenv("TUTTI_TCP_SOCKETS", "5", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_multi_socket_lanes(&tutti_tcp_transport), 5);
    cr_assert_eq(tutti_multi_socket_lanes(&tutti_tls_transport), 5);
    cr_assert_eq(tutti_multi_socket_lanes(&tutti_verbs_transport), 1);
    cr_assert_eq(tutti_multi_socket_lanes(&tutti_ucx_transport), 1);
    setenv("TUTTI_TCP_SOCKETS", "17", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_settings_check(), TUTTI_ERR_CONFIG);
}
