/*
 * What every transport must do with bytes: one set of tests for all transports of this machine. How pipes end is in
 * test_transport_end.c.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/net/transport/transport.h"
#include "tests/support/links/mesh.h"
#include "tests/support/links/pipes.h"
#include "tests/support/ranks.h"

TestSuite(transport, .timeout = 200);

/* ------------------------------------------------------------------------------------------------- moving */

static tutti_status move_sizes(pipes_pair *p) {
    static const size_t sizes[] = {0, 1, 2, 63, 64, 65, 1000, 4096, 65535, 65536, 65537, 1000003, 16 << 20};
    unsigned char *data[4];
    tutti_status status = TUTTI_OK;
    uint64_t total = 0;
    for (int i = 0; i < 4; i++) data[i] = malloc(16 << 20);
    for (size_t i = 0; i < TUTTI_COUNT_OF(sizes) && status == TUTTI_OK; i++) {
        size_t there = sizes[i], back = sizes[TUTTI_COUNT_OF(sizes) - 1 - i];
        pipes_fill(data[0], there, 1);
        pipes_fill(data[1], back, 2);
        TUTTI_TRY(p->transport->recv(p->b, data[2], there));
        TUTTI_TRY(pipes_send(p->a, data[0], there));
        TUTTI_TRY(pipes_send(p->b, data[1], back));
        TUTTI_TRY(p->transport->recv(p->a, data[3], back));
        TUTTI_TRY(pipes_drive(p));
        status = pipes_compare(data[2], there, 1);
        if (status == TUTTI_OK) status = pipes_compare(data[3], back, 2);
        total += there + back;
    }
    for (int i = 0; i < 4; i++) free(data[i]);
    RANKS_CHECK(p->a->bytes_in + p->a->bytes_out == total && p->b->bytes_in + p->b->bytes_out == total,
                "the counts of bytes are wrong");
    return status;
}

Test(transport, moves_all_sizes_both_ways_at_once) {
    pipes_each(move_sizes);
}

/* It is a stream: bytes sent in three parts may be received in pieces of any size. */
static tutti_status move_parts(pipes_pair *p) {
    unsigned char src[5000], dst[5000];
    pipes_fill(src, sizeof src, 3);
    struct iovec parts[4] = {{src, 1}, {src + 1, 0}, {src + 1, 2999}, {src + 3000, 2000}};
    TUTTI_TRY(p->transport->send(p->a, parts, 4));
    static const size_t pieces[] = {7, 0, 993, 4000};
    size_t at = 0;
    for (size_t i = 0; i < TUTTI_COUNT_OF(pieces); at += pieces[i++]) {
        TUTTI_TRY(p->transport->recv(p->b, dst + at, pieces[i]));
        TUTTI_TRY(pipes_drive(p));
    }
    TUTTI_TRY(pipes_compare(dst, sizeof dst, 3));
    /* And the other way round: many sends, one receive. */
    memset(dst, 0, sizeof dst);
    TUTTI_TRY(p->transport->recv(p->a, dst, sizeof dst));
    for (at = 0; at < sizeof src; at += 500) {
        TUTTI_TRY(pipes_send(p->b, src + at, 500));
        tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
        while (!tutti_pipe_has_sent(p->b) && !tutti_deadline_passed(&deadline)) TUTTI_TRY(p->transport->progress(p->b));
        size_t before = p->a->received;
        TUTTI_TRY(p->transport->progress(p->a));
        RANKS_CHECK(p->a->received >= before && p->a->received <= at + 500, "more was received than sent");
    }
    TUTTI_TRY(pipes_drive(p));
    return pipes_compare(dst, sizeof dst, 3);
}

Test(transport, is_a_stream_without_messages) {
    pipes_each(move_parts);
}

static tutti_status sleep_for_it(pipes_pair *p) {
    unsigned char src[100], dst[100];
    short events = 0;
    pipes_fill(src, sizeof src, 4);
    TUTTI_TRY(p->transport->recv(p->b, dst, sizeof dst));
    TUTTI_TRY(p->transport->progress(p->b));
    RANKS_CHECK(p->b->received == 0, "something came from nowhere");
    int fd = p->transport->sleep_on(p->b, &events);
    if (fd >= 0)
        RANKS_CHECK(poll(&(struct pollfd){.fd = fd, .events = events}, 1, 20) == 0, "wakes though nothing has come");
    TUTTI_TRY(pipes_send(p->a, src, sizeof src));
    fd = p->transport->sleep_on(p->b, &events);
    if (fd >= 0)
        RANKS_CHECK(poll(&(struct pollfd){.fd = fd, .events = events}, 1, 5000) == 1, "sleeps though bytes have come");
    TUTTI_TRY(pipes_drive(p));
    return pipes_compare(dst, sizeof dst, 4);
}

Test(transport, can_be_slept_on) {
    pipes_each(sleep_for_it);
}

/* A receiver that does not read must not make the sender wait inside a call, nor take memory without bound. */
static tutti_status slow_reader(pipes_pair *p) {
    enum { BYTES = 64 << 20, PIECE = 1 << 20 };
    unsigned char *src = malloc(BYTES), *dst = malloc(BYTES);
    pipes_fill(src, BYTES, 5);
    tutti_status status = pipes_send(p->a, src, BYTES);
    if (status == TUTTI_OK) status = pipes_settle(p);
    bool bounded = !tutti_pipe_has_sent(p->a);
    for (size_t at = 0; at < BYTES && status == TUTTI_OK; at += PIECE) {
        status = p->transport->recv(p->b, dst + at, PIECE);
        tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
        while (status == TUTTI_OK && !tutti_pipe_has_received(p->b)) {
            status = p->transport->progress(p->a);
            if (status == TUTTI_OK) status = p->transport->progress(p->b);
            if (tutti_deadline_passed(&deadline)) status = tutti_fail(TUTTI_ERR_TIMEOUT, "stuck at %zu", at);
        }
    }
    if (status == TUTTI_OK) status = pipes_drive(p);
    if (status == TUTTI_OK) status = pipes_compare(dst, BYTES, 5);
    free(src);
    free(dst);
    RANKS_CHECK(status != TUTTI_OK || bounded, "64 MiB went to a receiver that does not read");
    return status;
}

Test(transport, waits_for_a_slow_reader_without_blocking) {
    pipes_each(slow_reader);
}

/* Both buffers are replaced in the middle, and the transfer goes on with the new ones; parts may have other lengths. */
static tutti_status move_buffers(pipes_pair *p) {
    enum { BYTES = 24 << 20, HALF = 12 << 20 };
    if (!p->a->movable || !p->b->movable) return TUTTI_OK;
    unsigned char *src = malloc(BYTES), *other_src = malloc(BYTES), *dst = malloc(BYTES), *other_dst = malloc(BYTES);
    pipes_fill(src, BYTES, 7);
    struct iovec parts[2] = {{src, 100}, {src + 100, BYTES - 100}};
    tutti_status status = p->transport->send(p->a, parts, 2);
    if (status == TUTTI_OK) status = pipes_settle(p); /* all that can be sent without a reader is under way */
    if (status == TUTTI_OK) status = p->transport->recv(p->b, dst, BYTES);
    for (size_t i = 0; status == TUTTI_OK && p->b->received < HALF; i++) {
        status = p->transport->progress(p->b);
        if (status == TUTTI_OK) status = p->transport->progress(p->a);
        if (i % 16 != 0 || status != TUTTI_OK || tutti_pipe_has_sent(p->a)) continue;
        memcpy(other_src, src, BYTES);
        memset(src, 0xee, BYTES);
        unsigned char *former = src;
        src = other_src;
        other_src = former;
        parts[0] = (struct iovec){src, HALF + i};
        parts[1] = (struct iovec){src + HALF + i, BYTES - HALF - i};
        status = p->transport->send(p->a, parts, 2);
    }
    memcpy(other_dst, dst, p->b->received);
    if (status == TUTTI_OK) status = p->transport->recv(p->b, other_dst, BYTES);
    memset(dst, 0xdd, BYTES);
    if (status == TUTTI_OK) status = pipes_drive(p);
    if (status == TUTTI_OK) status = pipes_compare(other_dst, BYTES, 7);
    for (size_t i = 0; status == TUTTI_OK && i < BYTES; i++)
        if (dst[i] != 0xdd) status = tutti_fail(TUTTI_ERR_DATA, "byte %zu of the former buffer was written", i);
    free(src), free(other_src), free(dst), free(other_dst);
    return status;
}

Test(transport, goes_on_with_other_buffers_if_it_is_movable) {
    pipes_each(move_buffers);
}

/* -------------------------------------------------------------------------------------------------- other */

static tutti_status describe(pipes_pair *p) {
    char text[200] = "";
    p->of->describe(text, sizeof text);
    RANKS_CHECK(text[0] != '\0', "%s does not describe itself", p->of->name);
    return TUTTI_OK;
}

Test(transport, describes_itself) {
    pipes_each(describe);
}

Test(transport, is_chosen_by_name) {
    uint32_t all = 0, mask = 0;
    cr_assert_eq(tutti_transports_available(&all), TUTTI_OK);
    setenv("TUTTI_TRANSPORT", "tcp", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_transports_available(&mask), TUTTI_OK);
    cr_assert(mask != 0 && (mask & (mask - 1)) == 0 && (mask & ~all) == 0);
    setenv("TUTTI_TRANSPORT", "shm,tcp", 1); /* shm serves the ranks of one host in any case */
    tutti_settings_reload();
    uint32_t tcp = mask;
    cr_assert(tutti_transports_available(&mask) == TUTTI_OK && mask == tcp);
    setenv("TUTTI_TRANSPORT", "shm", 1);
    tutti_settings_reload();
    cr_assert(tutti_transports_available(&mask) == TUTTI_OK && mask == 0);
    setenv("TUTTI_TRANSPORT", "tcp, pigeon", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_transports_available(&mask), TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "pigeon"), "%s", tutti_last_error());
}

Test(transport, tcp_takes_a_congestion_control_and_lists_the_available_ones) {
    int sockets[2];
    tutti_pipe *pipe;
    tutti_deadline deadline = tutti_deadline_after_ms(1000);
    cr_assert_eq(mesh_pair(MESH_TCP, sockets), TUTTI_OK, "%s", tutti_last_error());
    setenv("TUTTI_TCP_CONGESTION", "reno", 1); /* every Linux has it */
    tutti_settings_reload();
    cr_assert_eq(tutti_tcp_transport.open(&(tutti_connection){.socket = sockets[0]}, &deadline, &pipe), TUTTI_OK, "%s",
                 tutti_last_error());
    tutti_tcp_transport.close(pipe);
    setenv("TUTTI_TCP_CONGESTION", "hope", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_tcp_transport.open(&(tutti_connection){.socket = sockets[1]}, &deadline, &pipe),
                 TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "hope") && strstr(tutti_last_error(), "reno"), "%s", tutti_last_error());
}
