/*
 * Meets by TCP, and drives a pipe.
 */
#include "tests/support/links/rdma_pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_MS = 30000, LOOK_EVERY = 256, SPIN_NS = 200000, SHORTEST_NAP_NS = 50000, LONGEST_NAP_NS = 1000000 };

int rdma_pair_read(rdma_pair *pair, int argc, char **argv) {
    *pair = (rdma_pair){.listener = -1};
    if (argc > 2 && strcmp(argv[1], "serve") == 0) {
        pair->first = true;
        pair->port = atoi(argv[2]);
        return 3;
    }
    if (argc > 3 && strcmp(argv[1], "join") == 0) {
        pair->address = argv[2];
        pair->port = atoi(argv[3]);
        return 4;
    }
    return 0;
}

static tutti_status serve(rdma_pair *pair, int *socket_out) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)pair->port)};
    if (pair->listener < 0) {
        int yes = 1;
        pair->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(pair->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(pair->listener, (struct sockaddr *)&here, sizeof here) != 0 || listen(pair->listener, 8) != 0)
            return tutti_fail_errno(errno, "cannot listen on port %d", pair->port);
    }
    *socket_out = accept(pair->listener, NULL, NULL);
    return *socket_out >= 0 ? TUTTI_OK : tutti_fail_errno(errno, "cannot accept");
}

static tutti_status join(const rdma_pair *pair, int *socket_out) {
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons((uint16_t)pair->port)};
    tutti_deadline deadline = tutti_deadline_after_ms(LIMIT_MS);
    inet_pton(AF_INET, pair->address, &there.sin_addr);
    while (!tutti_deadline_passed(&deadline)) {
        int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(file, (struct sockaddr *)&there, sizeof there) == 0) return *socket_out = file, TUTTI_OK;
        close(file);
        usleep(20000); /* the other side is not there yet */
    }
    return tutti_fail(TUTTI_ERR_TIMEOUT, "no process listens at %s port %d", pair->address, pair->port);
}

tutti_status rdma_pair_meet(rdma_pair *pair, int *socket_out) {
    return pair->first ? serve(pair, socket_out) : join(pair, socket_out);
}

tutti_status rdma_pair_open(rdma_pair *pair) {
    int file = -1;
    tutti_deadline deadline = tutti_deadline_after_ms(LIMIT_MS);
    TUTTI_TRY(rdma_pair_meet(pair, &file));
    return tutti_verbs_transport.open(&(tutti_connection){.socket = file}, &deadline, &pair->pipe);
}

void rdma_pair_close(rdma_pair *pair) {
    tutti_verbs_transport.close(pair->pipe);
    pair->pipe = NULL;
}

/* Yields as links do; Soft-RoCE needs the core, too. */
static void nap(const rdma_pair *pair, int64_t *nap_ns) {
    struct pollfd waited = {.fd = -1};
    waited.fd = tutti_verbs_transport.sleep_on(pair->pipe, &waited.events);
    struct timespec most = {.tv_nsec = waited.fd >= 0 ? *nap_ns : SHORTEST_NAP_NS};
    ppoll(&waited, 1, &most, NULL);
    *nap_ns = tutti_min_i64(2 * *nap_ns, LONGEST_NAP_NS);
}

tutti_status rdma_pair_finish(rdma_pair *pair, int limit_ms) {
    tutti_pipe *pipe = pair->pipe;
    tutti_deadline deadline = tutti_deadline_after_ms(limit_ms);
    uint64_t moved = 0;
    int64_t quiet_since = 0, nap_ns = SHORTEST_NAP_NS;
    unsigned idle = 0;
    while (!tutti_pipe_has_sent(pipe) || !tutti_pipe_has_received(pipe)) {
        TUTTI_TRY(tutti_verbs_transport.progress(pipe));
        idle = moved == pipe->bytes_in + pipe->bytes_out ? idle + 1 : 0;
        moved = pipe->bytes_in + pipe->bytes_out;
        if (idle == 0) quiet_since = 0, nap_ns = SHORTEST_NAP_NS;
        if (quiet_since == 0 && idle % LOOK_EVERY != LOOK_EVERY - 1) continue;
        int64_t now = tutti_now_ns();
        if (quiet_since == 0) quiet_since = now;
        if (!pair->restless && now - quiet_since > SPIN_NS) nap(pair, &nap_ns);
        if (tutti_deadline_passed(&deadline))
            return tutti_fail(TUTTI_ERR_TIMEOUT, "sent %zu of %zu bytes, received %zu of %zu, then nothing", pipe->sent,
                              pipe->to_send, pipe->received, pipe->to_receive);
    }
    return TUTTI_OK;
}

tutti_status rdma_pair_send(rdma_pair *pair, const void *src, size_t bytes) {
    struct iovec part = {.iov_base = (void *)(uintptr_t)src, .iov_len = bytes};
    TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, &part, 1));
    return rdma_pair_finish(pair, LIMIT_MS);
}

tutti_status rdma_pair_recv(rdma_pair *pair, void *dst, size_t bytes) {
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, dst, bytes));
    return rdma_pair_finish(pair, LIMIT_MS);
}
