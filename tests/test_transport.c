/*
 * What every transport must do, whatever it is made of: one body of tests for all that this machine has.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/transports/transport.h"
#include "tests/support/mesh.h"
#include "tests/support/ranks.h"

#define PATIENCE_MS 20000

TestSuite(transport, .timeout = 100);

typedef struct pair {
    const tutti_transport *transport;
    tutti_pipe *a, *b;
} pair;

/* ---------------------------------------------------------------------------------------------- both ends */

typedef struct opening {
    const tutti_transport *transport;
    int socket;
    tutti_pipe *pipe;
    tutti_status status;
} opening;

static void *open_end(void *argument) {
    opening *o = argument;
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    o->status = o->transport->open(o->socket, &deadline, &o->pipe);
    return NULL;
}

/* Both sides open at about the same time. */
static tutti_status open_pair(pair *p) {
    int sockets[2];
    pthread_t other;
    TUTTI_TRY(mesh_pair(MESH_TCP, sockets));
    opening a = {.transport = p->transport, .socket = sockets[0]};
    opening b = {.transport = p->transport, .socket = sockets[1]};
    if (pthread_create(&other, NULL, open_end, &b) != 0) return tutti_fail(TUTTI_ERR_SYSTEM, "no thread");
    open_end(&a);
    pthread_join(other, NULL);
    TUTTI_TRY(a.status);
    TUTTI_TRY(b.status);
    p->a = a.pipe;
    p->b = b.pipe;
    return TUTTI_OK;
}

static void close_pair(pair *p) {
    p->transport->close(p->a);
    p->transport->close(p->b);
}

typedef tutti_status (*test_body)(pair *p);

/* The body on a fresh pair of each transport that is to be had; the others say why not. */
static void with_each(test_body body) {
    for (int i = 0; tutti_transports[i] != NULL; i++) {
        pair p = {.transport = tutti_transports[i]};
        if (p.transport->check() != TUTTI_OK) {
            fprintf(stderr, "%s is left out: %s\n", p.transport->name, tutti_last_error());
            continue;
        }
        tutti_status status = open_pair(&p);
        if (status == TUTTI_OK) status = body(&p);
        cr_assert_eq(status, TUTTI_OK, "%s: %s", p.transport->name, tutti_last_error());
        close_pair(&p);
    }
}

/* ------------------------------------------------------------------------------------------------ driving */

static bool is_done(const tutti_pipe *pipe) {
    return tutti_pipe_has_sent(pipe) && tutti_pipe_has_received(pipe);
}

static tutti_status drive(pair *p) {
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    while (!is_done(p->a) || !is_done(p->b)) {
        TUTTI_TRY(p->transport->progress(p->a));
        TUTTI_TRY(p->transport->progress(p->b));
        RANKS_CHECK(!tutti_deadline_passed(&deadline), "stuck: a %zu/%zu %zu/%zu, b %zu/%zu %zu/%zu", p->a->sent,
                    p->a->to_send, p->a->received, p->a->to_receive, p->b->sent, p->b->to_send, p->b->received,
                    p->b->to_receive);
    }
    return TUTTI_OK;
}

/* Until nothing moves for a moment. */
static tutti_status settle(pair *p) {
    uint64_t last = UINT64_MAX;
    tutti_deadline quiet = tutti_deadline_after_ms(100);
    while (!tutti_deadline_passed(&quiet)) {
        TUTTI_TRY(p->transport->progress(p->a));
        TUTTI_TRY(p->transport->progress(p->b));
        uint64_t moved = p->a->bytes_in + p->a->bytes_out + p->b->bytes_in + p->b->bytes_out;
        if (moved != last) quiet = tutti_deadline_after_ms(100);
        last = moved;
    }
    return TUTTI_OK;
}

static tutti_status send_one(tutti_pipe *pipe, const void *data, size_t bytes) {
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    return pipe->transport->send(pipe, &part, 1);
}

static void fill(unsigned char *data, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)(seed + i * 13 + i / 253);
}

static tutti_status compare(const unsigned char *data, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++)
        RANKS_CHECK(data[i] == (unsigned char)(seed + i * 13 + i / 253), "byte %zu of %zu is wrong", i, bytes);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- moving */

static tutti_status move_sizes(pair *p) {
    static const size_t sizes[] = {0, 1, 2, 63, 64, 65, 1000, 4096, 65535, 65536, 65537, 1000003, 16 << 20};
    unsigned char *data[4];
    tutti_status status = TUTTI_OK;
    uint64_t total = 0;
    for (int i = 0; i < 4; i++) data[i] = malloc(16 << 20);
    for (size_t i = 0; i < TUTTI_COUNT_OF(sizes) && status == TUTTI_OK; i++) {
        size_t there = sizes[i], back = sizes[TUTTI_COUNT_OF(sizes) - 1 - i];
        fill(data[0], there, 1);
        fill(data[1], back, 2);
        TUTTI_TRY(p->transport->recv(p->b, data[2], there));
        TUTTI_TRY(send_one(p->a, data[0], there));
        TUTTI_TRY(send_one(p->b, data[1], back));
        TUTTI_TRY(p->transport->recv(p->a, data[3], back));
        TUTTI_TRY(drive(p));
        status = compare(data[2], there, 1);
        if (status == TUTTI_OK) status = compare(data[3], back, 2);
        total += there + back;
    }
    for (int i = 0; i < 4; i++) free(data[i]);
    RANKS_CHECK(p->a->bytes_in + p->a->bytes_out == total && p->b->bytes_in + p->b->bytes_out == total,
                "the counts of bytes are wrong");
    return status;
}

Test(transport, moves_all_sizes_both_ways_at_once) {
    with_each(move_sizes);
}

/* It is a stream: what is sent in three parts may be received in pieces of any size. */
static tutti_status move_parts(pair *p) {
    unsigned char src[5000], dst[5000];
    fill(src, sizeof src, 3);
    struct iovec parts[4] = {{src, 1}, {src + 1, 0}, {src + 1, 2999}, {src + 3000, 2000}};
    TUTTI_TRY(p->transport->send(p->a, parts, 4));
    static const size_t pieces[] = {7, 0, 993, 4000};
    size_t at = 0;
    for (size_t i = 0; i < TUTTI_COUNT_OF(pieces); at += pieces[i++]) {
        TUTTI_TRY(p->transport->recv(p->b, dst + at, pieces[i]));
        TUTTI_TRY(drive(p));
    }
    TUTTI_TRY(compare(dst, sizeof dst, 3));
    /* And the other way round: many sends, one receive. */
    memset(dst, 0, sizeof dst);
    TUTTI_TRY(p->transport->recv(p->a, dst, sizeof dst));
    for (at = 0; at < sizeof src; at += 500) {
        TUTTI_TRY(send_one(p->b, src + at, 500));
        tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
        while (!tutti_pipe_has_sent(p->b) && !tutti_deadline_passed(&deadline)) TUTTI_TRY(p->transport->progress(p->b));
        size_t before = p->a->received;
        TUTTI_TRY(p->transport->progress(p->a));
        RANKS_CHECK(p->a->received >= before && p->a->received <= at + 500, "more was received than sent");
    }
    TUTTI_TRY(drive(p));
    return compare(dst, sizeof dst, 3);
}

Test(transport, is_a_stream_without_messages) {
    with_each(move_parts);
}

static tutti_status sleep_for_it(pair *p) {
    unsigned char src[100], dst[100];
    short events = 0;
    fill(src, sizeof src, 4);
    TUTTI_TRY(p->transport->recv(p->b, dst, sizeof dst));
    TUTTI_TRY(p->transport->progress(p->b));
    RANKS_CHECK(p->b->received == 0, "something came from nowhere");
    int fd = p->transport->sleep_on(p->b, &events);
    if (fd >= 0)
        RANKS_CHECK(poll(&(struct pollfd){.fd = fd, .events = events}, 1, 20) == 0, "wakes though nothing has come");
    TUTTI_TRY(send_one(p->a, src, sizeof src));
    fd = p->transport->sleep_on(p->b, &events);
    if (fd >= 0)
        RANKS_CHECK(poll(&(struct pollfd){.fd = fd, .events = events}, 1, 5000) == 1, "sleeps though bytes have come");
    TUTTI_TRY(drive(p));
    return compare(dst, sizeof dst, 4);
}

Test(transport, can_be_slept_on) {
    with_each(sleep_for_it);
}

/* Who does not read must not make the sender wait inside a call, nor take memory without bound. */
static tutti_status slow_reader(pair *p) {
    enum { BYTES = 64 << 20, PIECE = 1 << 20 };
    unsigned char *src = malloc(BYTES), *dst = malloc(BYTES);
    fill(src, BYTES, 5);
    tutti_status status = send_one(p->a, src, BYTES);
    if (status == TUTTI_OK) status = settle(p);
    bool bounded = !tutti_pipe_has_sent(p->a);
    for (size_t at = 0; at < BYTES && status == TUTTI_OK; at += PIECE) {
        status = p->transport->recv(p->b, dst + at, PIECE);
        tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
        while (status == TUTTI_OK && !tutti_pipe_has_received(p->b)) {
            status = p->transport->progress(p->a);
            if (status == TUTTI_OK) status = p->transport->progress(p->b);
            if (tutti_deadline_passed(&deadline)) status = tutti_fail(TUTTI_ERR_TIMEOUT, "stuck at %zu", at);
        }
    }
    if (status == TUTTI_OK) status = drive(p);
    if (status == TUTTI_OK) status = compare(dst, BYTES, 5);
    free(src);
    free(dst);
    RANKS_CHECK(status != TUTTI_OK || bounded, "64 MiB went to who does not read");
    return status;
}

Test(transport, waits_for_a_slow_reader_without_blocking) {
    with_each(slow_reader);
}

/* ------------------------------------------------------------------------------------------------- ending */

/* Not more than goes without the receiver's help: large messages may wait for him at the sender. */
static tutti_status close_after_send(pair *p) {
    enum { BYTES = 4000 };
    unsigned char *src = malloc(BYTES), *dst = malloc(BYTES), more;
    fill(src, BYTES, 6);
    tutti_status status = send_one(p->a, src, BYTES);
    tutti_deadline deadline = tutti_deadline_after_ms(2000);
    while (status == TUTTI_OK && !tutti_pipe_has_sent(p->a) && !tutti_deadline_passed(&deadline))
        status = p->transport->progress(p->a);
    bool sent = tutti_pipe_has_sent(p->a);
    p->transport->close(p->a);
    p->a = NULL;
    free(src);
    if (sent && status == TUTTI_OK) status = p->transport->recv(p->b, dst, BYTES);
    deadline = tutti_deadline_after_ms(PATIENCE_MS);
    while (status == TUTTI_OK && !tutti_pipe_has_received(p->b) && !tutti_deadline_passed(&deadline))
        status = p->transport->progress(p->b);
    if (status == TUTTI_OK)
        status = sent ? compare(dst, BYTES, 6) : tutti_fail(TUTTI_ERR_TIMEOUT, "4000 bytes did not go");
    free(dst);
    TUTTI_TRY(status);
    /* And then it is seen to have gone. */
    status = p->transport->recv(p->b, &more, 1);
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = p->transport->progress(p->b);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "the end is told as '%s'", tutti_status_name(status));
    RANKS_CHECK(p->b->status == status && p->b->error[0] != '\0', "the pipe does not keep its status");
    RANKS_CHECK(p->transport->progress(p->b) == status, "the status does not stay");
    RANKS_CHECK(send_one(p->b, "x", 1) == status && p->transport->recv(p->b, &more, 1) == status,
                "a pipe that failed takes more");
    return TUTTI_OK;
}

Test(transport, delivers_what_was_sent_before_it_was_closed_and_then_tells_the_end) {
    with_each(close_after_send);
}

static tutti_status peer_leaves_in_the_middle(pair *p) {
    unsigned char dst[1000];
    memset(dst, 0xee, sizeof dst);
    TUTTI_TRY(p->transport->recv(p->b, dst, sizeof dst));
    TUTTI_TRY(send_one(p->a, "half", 4));
    TUTTI_TRY(settle(p));
    RANKS_CHECK(p->b->received == 4 && memcmp(dst, "half", 4) == 0, "half of it is not there");
    p->transport->close(p->a);
    p->a = NULL;
    tutti_status status = TUTTI_OK;
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = p->transport->progress(p->b);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED && p->b->received == 4 && dst[4] == 0xee, "told as '%s'",
                tutti_status_name(status));
    return TUTTI_OK;
}

Test(transport, tells_that_the_other_side_left_in_the_middle) {
    with_each(peer_leaves_in_the_middle);
}

static tutti_status sender_learns_of_the_end(pair *p) {
    enum { BYTES = 32 << 20 };
    unsigned char *src = calloc(1, BYTES);
    tutti_status status = send_one(p->a, src, BYTES);
    p->transport->close(p->b);
    p->b = NULL;
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = p->transport->progress(p->a);
    free(src);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "told as '%s'", tutti_status_name(status));
    return TUTTI_OK;
}

Test(transport, tells_the_sender_that_the_other_side_has_gone) {
    with_each(sender_learns_of_the_end);
}

static tutti_status cancel_all(pair *p) {
    unsigned char dst[1000], *src = calloc(1, 32 << 20);
    memset(dst, 0xee, sizeof dst);
    /* What has not begun can be taken back. */
    TUTTI_TRY(p->transport->recv(p->b, dst, sizeof dst));
    p->transport->cancel(p->b);
    TUTTI_TRY(p->transport->recv(p->b, dst, 4));
    TUTTI_TRY(send_one(p->a, "okay", 4));
    TUTTI_TRY(drive(p));
    RANKS_CHECK(memcmp(dst, "okay", 4) == 0 && dst[4] == 0xee, "wrong bytes after a cancelled receive");
    /* What has begun is cut off, and nothing touches the buffers any more. */
    TUTTI_TRY(p->transport->recv(p->b, dst, sizeof dst));
    TUTTI_TRY(send_one(p->a, "more", 4));
    TUTTI_TRY(settle(p));
    p->transport->cancel(p->b);
    memset(dst, 0xdd, sizeof dst);
    tutti_status status = send_one(p->a, src, 32 << 20);
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

Test(transport, gives_buffers_back_when_it_is_cancelled) {
    with_each(cancel_all);
}

/* A process that is killed says nothing. */
static tutti_status killed(const tutti_transport *transport) {
    int sockets[2];
    unsigned char byte;
    TUTTI_TRY(mesh_pair(MESH_TCP, sockets));
    pid_t child = fork();
    opening own = {.transport = transport, .socket = sockets[child == 0 ? 1 : 0]};
    close(sockets[child == 0 ? 0 : 1]);
    open_end(&own);
    if (child == 0) {
        if (own.status == TUTTI_OK) send_one(own.pipe, "x", 1);
        for (;;) pause();
    }
    tutti_status status = own.status;
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    if (status == TUTTI_OK) status = transport->recv(own.pipe, &byte, 1);
    while (status == TUTTI_OK && !tutti_pipe_has_received(own.pipe) && !tutti_deadline_passed(&deadline))
        status = transport->progress(own.pipe);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    TUTTI_TRY(status);
    status = transport->recv(own.pipe, &byte, 1);
    int64_t start_ns = tutti_now_ns();
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = transport->progress(own.pipe);
    int64_t took_ms = (tutti_now_ns() - start_ns) / TUTTI_NS_PER_MS;
    transport->close(own.pipe);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED && took_ms < 2000, "told as '%s' after %lld ms",
                tutti_status_name(status), (long long)took_ms);
    return TUTTI_OK;
}

Test(transport, tells_within_two_seconds_that_the_other_process_was_killed) {
    if (!ranks_have_processes()) cr_skip("needs processes");
    for (int i = 0; tutti_transports[i] != NULL; i++) {
        if (tutti_transports[i]->check() != TUTTI_OK) continue;
        tutti_status status = killed(tutti_transports[i]);
        cr_assert_eq(status, TUTTI_OK, "%s: %s", tutti_transports[i]->name, tutti_last_error());
    }
}

/* -------------------------------------------------------------------------------------------------- other */

static tutti_status register_some(pair *p) {
    void *memory = malloc(100000), *registration;
    tutti_status status = p->transport->register_memory(memory, 100000, &registration);
    if (status == TUTTI_OK) p->transport->deregister_memory(registration);
    free(memory);
    char text[200] = "";
    p->transport->describe(text, sizeof text);
    RANKS_CHECK(text[0] != '\0', "it says nothing of itself");
    return status;
}

Test(transport, registers_memory_and_describes_itself) {
    with_each(register_some);
}

Test(transport, is_chosen_by_name) {
    uint32_t all = 0, mask = 0;
    cr_assert_eq(tutti_transport_named("tcp"), &tutti_tcp_transport);
    cr_assert_null(tutti_transport_named("carrier pigeon"));
    cr_assert_eq(tutti_transports_available(&all), TUTTI_OK);
    setenv("TUTTI_TRANSPORT", "tcp", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_transports_available(&mask), TUTTI_OK);
    cr_assert(mask != 0 && (mask & (mask - 1)) == 0 && (mask & ~all) == 0);
    setenv("TUTTI_TRANSPORT", "tcp, pigeon", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_transports_available(&mask), TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "pigeon"), "%s", tutti_last_error());
}

Test(transport, tcp_takes_a_congestion_control_and_says_which_there_are) {
    int sockets[2];
    tutti_pipe *pipe;
    tutti_deadline deadline = tutti_deadline_after_ms(1000);
    cr_assert_eq(mesh_pair(MESH_TCP, sockets), TUTTI_OK, "%s", tutti_last_error());
    setenv("TUTTI_TCP_CONGESTION", "reno", 1); /* every Linux has it */
    tutti_settings_reload();
    cr_assert_eq(tutti_tcp_transport.open(sockets[0], &deadline, &pipe), TUTTI_OK, "%s", tutti_last_error());
    tutti_tcp_transport.close(pipe);
    setenv("TUTTI_TCP_CONGESTION", "hope", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_tcp_transport.open(sockets[1], &deadline, &pipe), TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "hope") && strstr(tutti_last_error(), "reno"), "%s", tutti_last_error());
}

/* The loopback interface copies in any case, and says so: the notes are taken, and it is turned off. */
Test(transport, tcp_lends_large_sends_if_told_to) {
    setenv("TUTTI_TCP_ZEROCOPY", "1", 1);
    tutti_settings_reload();
    with_each(move_sizes);
    with_each(slow_reader);
    with_each(cancel_all);
    with_each(sender_learns_of_the_end);
}
