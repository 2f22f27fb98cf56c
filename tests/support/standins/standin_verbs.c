/*
 * A stand-in for libtutti_verbs.so: variables of the process define whether adapters exist and reach each other. Its
 * pipes are Tutti's own over TCP; the library only sees that their transport is "verbs".
 *
 *   STANDIN_VERBS=none         no adapter
 *   STANDIN_NETWORK=a          the network of this process's adapter, read whenever a pipe is opened: adapters
 *                              reach each other if their networks are equal
 *   STANDIN_BROKEN=1           pipes fail in use
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/net/transport/transport.h"
#include "rdma/rdma.h"

enum { NAME_BYTES = 16 };

static const tutti_module_host *host;

typedef struct standin_pipe {
    tutti_rdma_pipe rdma; /* first */
    tutti_pipe *tcp;
} standin_pipe;

static bool is_set(const char *name, const char *value) {
    const char *text = getenv(name);
    return text != NULL && strcmp(text, value) == 0;
}

static tutti_status check(void) {
    if (is_set("STANDIN_VERBS", "none")) return host->fail(TUTTI_ERR_UNSUPPORTED, "the stand-in has no RDMA adapter");
    return TUTTI_OK;
}

/* Both sides exchange the names of their networks. */
static tutti_status meet(int socket, tutti_deadline *deadline) {
    const char *network = getenv("STANDIN_NETWORK");
    char ours[NAME_BYTES] = "", theirs[NAME_BYTES];
    snprintf(ours, sizeof ours, "%s", network != NULL ? network : "");
    bool good = send(socket, ours, sizeof ours, MSG_NOSIGNAL) == (ssize_t)sizeof ours &&
                poll(&(struct pollfd){.fd = socket, .events = POLLIN}, 1, host->deadline_left_ms(deadline)) == 1 &&
                recv(socket, theirs, sizeof theirs, 0) == (ssize_t)sizeof theirs;
    if (!good) return host->fail(TUTTI_ERR_SYSTEM, "the other side of the stand-in has closed the connection");
    if (memcmp(ours, theirs, sizeof ours) == 0) return TUTTI_OK;
    return host->fail(TUTTI_ERR_UNSUPPORTED, "network '%.15s' does not reach network '%.15s'", ours, theirs);
}

static tutti_status copy_state(standin_pipe *pipe) {
    const tutti_pipe *tcp = pipe->tcp;
    pipe->rdma.to_send = tcp->to_send;
    pipe->rdma.sent = tcp->sent;
    pipe->rdma.to_receive = tcp->to_receive;
    pipe->rdma.received = tcp->received;
    pipe->rdma.bytes_out = tcp->bytes_out;
    pipe->rdma.bytes_in = tcp->bytes_in;
    if (pipe->rdma.status == TUTTI_OK && tcp->status != TUTTI_OK) {
        pipe->rdma.status = tcp->status;
        snprintf(pipe->rdma.error, sizeof pipe->rdma.error, "%s", tcp->error);
    }
    return pipe->rdma.status == TUTTI_OK ? TUTTI_OK : host->fail(pipe->rdma.status, "%s", pipe->rdma.error);
}

static tutti_status open_pipe(int socket, tutti_deadline *deadline, tutti_rdma_pipe **pipe_out) {
    standin_pipe *pipe = NULL;
    tutti_connection connection = {.socket = socket};
    tutti_status status = check();
    if (status == TUTTI_OK) status = meet(socket, deadline);
    if (status == TUTTI_OK) status = host->calloc(1, sizeof *pipe, &pipe);
    if (status != TUTTI_OK) {
        close(socket);
        return status;
    }
    status = tutti_tcp_transport.open(&connection, deadline, &pipe->tcp);
    if (status == TUTTI_OK) *pipe_out = &pipe->rdma;
    else free(pipe);
    return status == TUTTI_OK ? TUTTI_OK : host->fail(status, "the stand-in has no connection");
}

static tutti_status send_parts(tutti_rdma_pipe *rdma, const struct iovec *parts, int nparts) {
    standin_pipe *pipe = (standin_pipe *)rdma;
    tutti_tcp_transport.send(pipe->tcp, parts, nparts);
    return copy_state(pipe);
}

static tutti_status receive(tutti_rdma_pipe *rdma, void *dst, size_t bytes) {
    standin_pipe *pipe = (standin_pipe *)rdma;
    tutti_tcp_transport.recv(pipe->tcp, dst, bytes);
    return copy_state(pipe);
}

static tutti_status progress(tutti_rdma_pipe *rdma) {
    standin_pipe *pipe = (standin_pipe *)rdma;
    if (rdma->status == TUTTI_OK && is_set("STANDIN_BROKEN", "1")) {
        rdma->status = TUTTI_ERR_SYSTEM;
        snprintf(rdma->error, sizeof rdma->error, "the stand-in's adapter has failed");
    }
    if (rdma->status == TUTTI_OK) tutti_tcp_transport.progress(pipe->tcp);
    return copy_state(pipe);
}

static int sleep_on(tutti_rdma_pipe *rdma) {
    short events = 0;
    int socket = tutti_tcp_transport.sleep_on(((standin_pipe *)rdma)->tcp, &events);
    return events == POLLIN ? socket : -1;
}

static void cancel(tutti_rdma_pipe *rdma) {
    tutti_tcp_transport.cancel(((standin_pipe *)rdma)->tcp);
    copy_state((standin_pipe *)rdma);
}

static void close_pipe(tutti_rdma_pipe *rdma) {
    tutti_tcp_transport.close(((standin_pipe *)rdma)->tcp);
    free(rdma);
}

static void ask(bool (*find)(const void *memory, void **start_out, size_t *bytes_out)) {
    (void)find; /* any memory is suitable */
}

static void forget_memory(void *start) {
    (void)start;
}

static void describe(char *text, size_t capacity) {
    snprintf(text, capacity, "the stand-in");
}

__attribute__((visibility("default"))) tutti_status tutti_module_start(const tutti_module_host *caller,
                                                                       const tutti_module_calls **calls_out);

tutti_status tutti_module_start(const tutti_module_host *caller, const tutti_module_calls **calls_out) {
    static const tutti_rdma_module calls = {.head.version = TUTTI_MODULE_VERSION,
                                            .check = check,
                                            .open = open_pipe,
                                            .send = send_parts,
                                            .recv = receive,
                                            .progress = progress,
                                            .sleep_on = sleep_on,
                                            .cancel = cancel,
                                            .close = close_pipe,
                                            .ask = ask,
                                            .forget_memory = forget_memory,
                                            .describe = describe};
    host = caller;
    *calls_out = &calls.head;
    return TUTTI_OK;
}
