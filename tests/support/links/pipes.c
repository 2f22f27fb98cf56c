/*
 * Pairs of pipes for the tests that every transport must pass: see pipes.h. Both ends are in this process; two
 * threads open them, since opening waits for the other side, and then one thread drives them, since no other call may
 * wait.
 */
#include "tests/support/links/pipes.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>

#include "comm/net/transport/multi_socket.h"
#include "tests/support/links/mesh.h"
#include "tests/support/ranks.h"

/* ---------------------------------------------------------------------------------------------- both ends */

typedef struct opening {
    const pipes_pair *pair;
    tutti_connection connections[TUTTI_LANES_MOST];
    tutti_pipe *pipe;
    tutti_status status;
} opening;

static void *open_end(void *argument) {
    opening *o = argument;
    tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    o->status = tutti_multi_socket_open(o->pair->of, o->connections, o->pair->nlanes, &deadline, &o->pipe);
    return NULL;
}

tutti_status pipes_open(pipes_pair *p) {
    opening a = {.pair = p}, b = {.pair = p};
    pthread_t other;
    for (int lane = 0; lane < p->nlanes; lane++) {
        int sockets[2];
        TUTTI_TRY(mesh_pair(MESH_TCP, sockets));
        a.connections[lane] = (tutti_connection){.socket = sockets[0], .called = true, .key = "a key"};
        b.connections[lane] = (tutti_connection){.socket = sockets[1], .key = "a key"};
    }
    if (pthread_create(&other, NULL, open_end, &b) != 0) return tutti_fail(TUTTI_ERR_SYSTEM, "no thread");
    open_end(&a);
    pthread_join(other, NULL);
    TUTTI_TRY(a.status);
    TUTTI_TRY(b.status);
    p->a = a.pipe;
    p->b = b.pipe;
    p->transport = a.pipe->transport;
    return TUTTI_OK;
}

static void close_pair(pipes_pair *p) {
    p->transport->close(p->a);
    p->transport->close(p->b);
}

/* The leak checker may report memory that UCX keeps until the process ends, depending on which libraries have been
 * unloaded by then. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:ucs_malloc";
}

void pipes_each_kind(void (*each)(const pipes_pair *kind, void *context), void *context) {
    static const int lanes[] = {1, 2, 5};
    for (int i = 0; tutti_transports[i] != NULL; i++) {
        const tutti_transport *of = tutti_transports[i];
        bool bundles = tutti_transport_can(of, TUTTI_TRANSPORT_SOCKETS);
        if (of->check() != TUTTI_OK) {
            fprintf(stderr, "%s is left out: %s\n", of->name, tutti_last_error());
            continue;
        }
        for (size_t n = 0; n < (bundles ? TUTTI_COUNT_OF(lanes) : 1); n++)
            each(&(pipes_pair){.of = of, .nlanes = lanes[n]}, context);
    }
}

static void run_body(const pipes_pair *kind, void *context) {
    const pipes_body *body = context;
    pipes_pair p = *kind;
    tutti_status status = pipes_open(&p);
    if (status == TUTTI_OK) status = (*body)(&p);
    cr_assert_eq(status, TUTTI_OK, "%s, %d of them: %s", p.of->name, p.nlanes, tutti_last_error());
    close_pair(&p);
}

void pipes_each(pipes_body body) {
    pipes_each_kind(run_body, &body);
}

/* ------------------------------------------------------------------------------------------------ driving */

static bool is_done(const tutti_pipe *pipe) {
    return tutti_pipe_has_sent(pipe) && tutti_pipe_has_received(pipe);
}

tutti_status pipes_drive(pipes_pair *p) {
    tutti_deadline deadline = tutti_deadline_after_ms(PIPES_PATIENCE_MS);
    while (!is_done(p->a) || !is_done(p->b)) {
        TUTTI_TRY(p->transport->progress(p->a));
        TUTTI_TRY(p->transport->progress(p->b));
        RANKS_CHECK(!tutti_deadline_passed(&deadline), "stuck: a %zu/%zu %zu/%zu, b %zu/%zu %zu/%zu", p->a->sent,
                    p->a->to_send, p->a->received, p->a->to_receive, p->b->sent, p->b->to_send, p->b->received,
                    p->b->to_receive);
    }
    return TUTTI_OK;
}

tutti_status pipes_settle(pipes_pair *p) {
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

tutti_status pipes_send(tutti_pipe *pipe, const void *data, size_t bytes) {
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    return pipe->transport->send(pipe, &part, 1);
}

void pipes_fill(unsigned char *data, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)(seed + i * 13 + i / 253);
}

tutti_status pipes_compare(const unsigned char *data, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++)
        RANKS_CHECK(data[i] == (unsigned char)(seed + i * 13 + i / 253), "byte %zu of %zu is wrong", i, bytes);
    return TUTTI_OK;
}
