/*
 * UCX, on the host's side of its module: libtutti_ucx.so is opened at first use, and its pipes call it directly
 * from then on.
 *
 * UCX is after tcp in the list: it is used only on request, for fabrics that the transport verbs does not support.
 * Its own connections exist beside the proved one, and UCX authenticates nothing by itself.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/launcher/launcher.h"
#include "comm/base/fork.h"
#include "comm/net/transport/socket.h"
#include "comm/net/transport/ucx/ucx.h"

static struct {
    bool asked;                     /* the fields below are valid */
    const tutti_ucx_module *module; /* NULL: UCX cannot be used */
    tutti_ucx_survey survey;
    tutti_error reason; /* why UCX cannot be used */
} ucx;

static tutti_status open_module(void) {
    static const tutti_ucx_host host = {.row = &tutti_ucx_transport,
                                        .pipe_fail = tutti_pipe_fail,
                                        .fork_closes = tutti_fork_closes,
                                        .fork_forget = tutti_fork_forget};
    const tutti_module_calls *calls;
    TUTTI_TRY(tutti_module_open("ucx", TUTTI_UCX_LEFT_OUT, &calls));
    const tutti_ucx_module *module = (const tutti_ucx_module *)calls;
    module->attach(&host);
    TUTTI_TRY(module->survey(&ucx.survey));
    ucx.module = module;
    return TUTTI_OK;
}

/* UCX installs signal handlers when it is loaded. That decision is the program's, so its handlers are restored. */
static tutti_status open_quietly(void) {
    static const int caught[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    struct sigaction actions[TUTTI_COUNT_OF(caught)];
    bool wanted = getenv("UCX_HANDLE_ERRORS") != NULL;
    for (size_t i = 0; i < TUTTI_COUNT_OF(caught); i++) sigaction(caught[i], NULL, &actions[i]);
    tutti_status status = open_module();
    for (size_t i = 0; i < TUTTI_COUNT_OF(caught) && !wanted; i++) sigaction(caught[i], &actions[i], NULL);
    return status;
}

static tutti_status need_module(void) {
    tutti_lock(TUTTI_LOCK_UCX);
    if (!ucx.asked && open_quietly() != TUTTI_OK) ucx.reason = tutti_fail_save();
    ucx.asked = true;
    tutti_unlock(TUTTI_LOCK_UCX);
    return ucx.module != NULL ? TUTTI_OK : tutti_fail_again(TUTTI_ERR_UNSUPPORTED, &ucx.reason);
}

/* Logged by rank 0 for all, when UCX is first used: its sockets end a process that gets malformed data on them. */
static void warn_open_ports(void) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *rank = tutti_launcher_variable("RANK");
    bool speaks = rank == NULL || strcmp(rank, "0") == 0;
    if (strstr(ucx.survey.ways, "tcp/") == NULL || atomic_flag_test_and_set(&said) || !speaks) return;
    tutti_log(
        TUTTI_LOG_WARN,
        "UCX listens on TCP ports of its own, without authentication: a process that can reach them can end a rank. "
        "Set UCX_TLS=^tcp where the network has RDMA, or let only the job's hosts reach the ranks (UCX_NET_DEVICES)");
}

static tutti_status ucx_open(const tutti_connection *connection, tutti_deadline *deadline, tutti_pipe **pipe_out) {
    tutti_status status = need_module();
    if (status != TUTTI_OK) {
        close(connection->socket);
        return status;
    }
    warn_open_ports();
    (void)tutti_socket_tune(connection->socket); /* for its probes: nothing is ever sent on this socket */
    return ucx.module->pipes->open(connection, deadline, pipe_out);
}

static tutti_status ucx_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    return ucx.module->pipes->send(pipe, parts, nparts);
}

static tutti_status ucx_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    return ucx.module->pipes->recv(pipe, dst, bytes);
}

static tutti_status progress(tutti_pipe *pipe) {
    return ucx.module->pipes->progress(pipe);
}

static int sleep_on(tutti_pipe *pipe, short *events_out) {
    return ucx.module->pipes->sleep_on(pipe, events_out);
}

static void cancel(tutti_pipe *pipe) {
    if (pipe != NULL) ucx.module->pipes->cancel(pipe);
}

static void ucx_close(tutti_pipe *pipe) {
    if (pipe != NULL) ucx.module->pipes->close(pipe);
}

static void describe(char *text, size_t capacity) {
    if (need_module() == TUTTI_OK) snprintf(text, capacity, "UCX %s: %s", ucx.survey.version, ucx.survey.ways);
    else snprintf(text, capacity, "%s", ucx.reason.text);
}

const tutti_transport tutti_ucx_transport = {
    .name = "ucx",
    .capabilities = TUTTI_TRANSPORT_ADAPTER,
    .check = need_module,
    .open = ucx_open,
    .send = ucx_send,
    .recv = ucx_recv,
    .progress = progress,
    .sleep_on = sleep_on,
    .cancel = cancel,
    .close = ucx_close,
    .describe = describe,
};
