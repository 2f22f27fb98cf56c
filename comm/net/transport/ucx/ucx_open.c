/*
 * Opens and closes a pipe over UCX; the module's table. See ucx_state.h.
 *
 *   socket:  version, token, address  ->      both ways, at once
 *   UCX:     hello                    ->      brings the connection up, and proves that it works
 *   socket:  one byte                 ->      the hello has arrived; now both sides may send
 *     ...
 *   socket:  bytes sent in all, end           closed in order; the end alone: the process has died
 *
 * The socket has been proved (comm/net/listener.c), so a side that knows the token sent on it is the same process.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/net/transport/ucx/ucx_state.h"

#define MOST_ADDRESS_BYTES ((size_t)64 << 10)
#define READY              0x75

typedef struct introduction {
    uint32_t version; /* version of UCX: other versions may not understand each other's addresses */
    uint32_t address_bytes;
    uint64_t token; /* token for messages to the sender */
} introduction;

/* ------------------------------------------------------------------------------------- over the socket */

static tutti_status closed(void) {
    return tutti_ucx_common_host->fail(TUTTI_ERR_PEER_DIED,
                                       "ucx: the other side closed the connection while it was set up; see its output "
                                       "for the reason");
}

static tutti_status await(tutti_ucx_pipe *u, short events, tutti_deadline *deadline) {
    struct pollfd waited = {.fd = u->socket, .events = events};
    poll(&waited, 1, 20);
    if (!tutti_ucx_common_host->deadline_passed(deadline)) return TUTTI_OK;
    return tutti_ucx_common_host->fail(TUTTI_ERR_TIMEOUT, "ucx: the other side did not answer in time");
}

static bool is_passing(int error) {
    return error == EAGAIN || error == EINTR || error == ENOBUFS;
}

static tutti_status write_all(tutti_ucx_pipe *u, const void *data, size_t bytes, tutti_deadline *deadline) {
    for (size_t done = 0; done < bytes;) {
        ssize_t sent = send(u->socket, (const char *)data + done, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) done += (size_t)sent;
        else if (sent == 0 || !is_passing(errno)) return closed();
        else TUTTI_TRY(await(u, POLLOUT, deadline));
    }
    return TUTTI_OK;
}

static tutti_status read_all(tutti_ucx_pipe *u, void *data, size_t bytes, tutti_deadline *deadline) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = recv(u->socket, (char *)data + done, bytes - done, MSG_DONTWAIT);
        if (got > 0) done += (size_t)got;
        else if (got == 0 || !is_passing(errno)) return closed();
        else TUTTI_TRY(await(u, POLLIN, deadline));
    }
    return TUTTI_OK;
}

static tutti_status introduce(tutti_ucx_pipe *u, ucp_address_t *address, size_t address_bytes, void **peer_address_out,
                              tutti_deadline *deadline) {
    introduction own = {.version = UCP_API_VERSION, .address_bytes = (uint32_t)address_bytes, .token = u->token}, peer;
    unsigned major, minor, release;
    void *peer_address;
    ucp_get_version(&major, &minor, &release);
    own.version = UCP_VERSION(major, minor);
    TUTTI_TRY(write_all(u, &own, sizeof own, deadline));
    TUTTI_TRY(write_all(u, address, address_bytes, deadline));
    TUTTI_TRY(read_all(u, &peer, sizeof peer, deadline));
    if (peer.version != own.version)
        return tutti_ucx_common_host->fail(
            TUTTI_ERR_UNSUPPORTED,
            "ucx: this side has UCX %u.%u, the other side UCX %u.%u; install the same on all "
            "hosts, or leave ucx out (TUTTI_TRANSPORT)",
            major, minor, peer.version >> UCP_VERSION_MAJOR_SHIFT, peer.version >> UCP_VERSION_MINOR_SHIFT & 255);
    if (peer.address_bytes == 0 || peer.address_bytes > MOST_ADDRESS_BYTES)
        return tutti_ucx_common_host->fail(TUTTI_ERR_SYSTEM,
                                           "ucx: the other side sent an address of %u bytes; expected 1 to 65536",
                                           peer.address_bytes);
    u->peer_token = peer.token;
    TUTTI_TRY(tutti_ucx_common_host->calloc(1, peer.address_bytes, &peer_address));
    *peer_address_out = peer_address;
    return read_all(u, peer_address, peer.address_bytes, deadline);
}

/* ---------------------------------------------------------------------------------------------- over UCX */

/* The advice for an error where UCX does not reach the other side: UCX does not support mapped ports. */
static const char *advice(void) {
    const char *ports = tutti_ucx_common_host->setting_text(TUTTI_SETTING_PORTS);
    const char *address = tutti_ucx_common_host->setting_text(TUTTI_SETTING_ADVERTISE);
    return *ports == '\0' && *address == '\0'
               ? "see UCX_TLS and UCX_NET_DEVICES"
               : "UCX's sockets do not use TUTTI_PORTS and TUTTI_ADVERTISE: where ports are mapped, use the transport "
                 "tcp, or UCX_TLS=^tcp with RDMA";
}

static void on_error(void *argument, ucp_ep_h endpoint, ucs_status_t status) {
    tutti_ucx_pipe *u = argument;
    (void)endpoint;
    if (u->lost == UCS_OK) u->lost = status;
}

static tutti_status make_worker(tutti_ucx_pipe *u) {
    ucp_context_h context;
    TUTTI_TRY(tutti_ucx_context(&context));
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED, /* one thread at a time, not always the same */
        .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK,
    };
    ucs_status_t status = ucp_worker_create(context, &params, &u->worker);
    if (status == UCS_OK) {
        ucp_am_handler_param_t handler = {
            .field_mask =
                UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = TUTTI_UCX_MESSAGE,
            .cb = tutti_ucx_arrive,
            .arg = u,
        };
        status = ucp_worker_set_am_recv_handler(u->worker, &handler);
    }
    if (status != UCS_OK)
        return tutti_ucx_common_host->fail(TUTTI_ERR_SYSTEM, "ucx: cannot create a worker: %s",
                                           ucs_status_string(status));
    return TUTTI_OK;
}

/* Creates one descriptor to sleep on, over the worker's and the socket. */
static tutti_status make_epoll(tutti_ucx_pipe *u) {
    struct epoll_event any = {.events = EPOLLIN};
    u->worker_event = -1;
    u->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (u->epoll < 0 || epoll_ctl(u->epoll, EPOLL_CTL_ADD, u->socket, &any) != 0)
        return tutti_ucx_common_host->fail(TUTTI_ERR_SYSTEM, "ucx: epoll: %s", strerror(errno));
    int event;
    if (ucp_worker_get_efd(u->worker, &event) == UCS_OK && epoll_ctl(u->epoll, EPOLL_CTL_ADD, event, &any) == 0)
        u->worker_event = event;
    return TUTTI_OK;
}

static tutti_status make_endpoint(tutti_ucx_pipe *u, tutti_deadline *deadline) {
    ucp_address_t *address;
    size_t address_bytes;
    void *peer_address = NULL;
    ucs_status_t status = ucp_worker_get_address(u->worker, &address, &address_bytes);
    if (status != UCS_OK)
        return tutti_ucx_common_host->fail(TUTTI_ERR_SYSTEM, "ucx: cannot get the worker's address: %s",
                                           ucs_status_string(status));
    tutti_status introduced = introduce(u, address, address_bytes, &peer_address, deadline);
    ucp_worker_release_address(u->worker, address);
    if (introduced == TUTTI_OK) {
        ucp_ep_params_t params = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
            .address = peer_address,
            .err_mode = UCP_ERR_HANDLING_MODE_PEER,
            .err_handler = {.cb = on_error, .arg = u},
        };
        status = ucp_ep_create(u->worker, &params, &u->endpoint);
        if (status != UCS_OK)
            introduced = tutti_ucx_common_host->fail(
                TUTTI_ERR_UNSUPPORTED, "ucx: no UCX transport that detects failures reaches the other side: %s; %s",
                ucs_status_string(status), advice());
    }
    free(peer_address);
    return introduced;
}

/* Returns whether the request is done, and then frees it. */
static bool is_over(ucs_status_ptr_t *request) {
    if (!UCS_PTR_IS_PTR(*request)) return true;
    if (ucp_request_check_status(*request) == UCS_INPROGRESS) return false;
    ucp_request_free(*request);
    *request = NULL;
    return true;
}

/* Drives the worker and the socket until each side has the other's greeting, and knows that the other has its own. */
static tutti_status converse(tutti_ucx_pipe *u, ucs_status_ptr_t *flush, tutti_deadline *deadline) {
    const char ready = READY;
    char answer = 0;
    for (bool reported = false; !reported || answer == 0;) {
        unsigned moved = ucp_worker_progress(u->worker);
        if (u->lost != UCS_OK)
            return tutti_ucx_common_host->fail(TUTTI_ERR_SYSTEM, "ucx: cannot reach the other side: %s; %s",
                                               ucs_status_string(u->lost), advice());
        if (!reported && u->greeted && u->sends_running == 0 && is_over(flush)) {
            TUTTI_TRY(write_all(u, &ready, sizeof ready, deadline));
            reported = true;
        }
        if (answer == 0) {
            ssize_t got = recv(u->socket, &answer, sizeof answer, MSG_DONTWAIT);
            if (got == 0 || (got < 0 && !is_passing(errno)) || (got > 0 && answer != READY)) return closed();
        }
        if (moved > 0) continue;
        poll(&(struct pollfd){.fd = u->epoll, .events = POLLIN}, 1, 1);
        if (tutti_ucx_common_host->deadline_passed(deadline))
            return tutti_ucx_common_host->fail(TUTTI_ERR_TIMEOUT, "ucx: the other side was not reached in time; %s",
                                               advice());
    }
    return TUTTI_OK;
}

static tutti_status greet(tutti_ucx_pipe *u, tutti_deadline *deadline) {
    ucp_request_param_t plain = {0};
    tutti_ucx_greet(u);
    ucs_status_ptr_t flush = ucp_ep_flush_nbx(u->endpoint, &plain); /* done when the connection is up */
    tutti_status status = converse(u, &flush, deadline);
    if (UCS_PTR_IS_PTR(flush)) ucp_request_free(flush); /* UCX keeps it until it is done */
    return status;
}

/* --------------------------------------------------------------------------------------- coming and going */

static tutti_status build(tutti_ucx_pipe *u, tutti_deadline *deadline) {
    if (getrandom(&u->token, sizeof u->token, 0) != sizeof u->token)
        return tutti_ucx_common_host->fail(TUTTI_ERR_SYSTEM, "ucx: cannot get random bytes: %s", strerror(errno));
    TUTTI_TRY(make_worker(u));
    TUTTI_TRY(make_epoll(u));
    TUTTI_TRY(make_endpoint(u, deadline));
    return greet(u, deadline);
}

/* Reports the total of bytes sent to the other side, and flushes the bytes that UCX holds back, if there is room. Over
 * sockets UCX also waits for an answer, which may be late, since the other side need not poll; so the wait is short. */
static void say_farewell(tutti_ucx_pipe *u) {
    ucp_request_param_t plain = {0};
    send(u->socket, &u->offset_out, sizeof u->offset_out, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(u->socket, SHUT_WR);
    tutti_ucx_refuse_offers(u);
    tutti_ucx_finish(u, ucp_ep_close_nbx(u->endpoint, &plain), TUTTI_UCX_CLOSE_WAIT_MS);
    u->endpoint = NULL;
}

static void close_pipe(tutti_pipe *pipe) {
    tutti_ucx_pipe *u = (tutti_ucx_pipe *)pipe;
    if (u->process == getpid()) {
        char unread[64];
        tutti_ucx_cancel(pipe);
        if (pipe->status == TUTTI_OK) say_farewell(u);
        tutti_ucx_stop(u);
        tutti_ucx_free_arrivals(u);
        while (recv(u->socket, unread, sizeof unread, MSG_DONTWAIT) > 0) {
        } /* else a reset could overtake the farewell */
        tutti_ucx_own_host->fork_forget(u->socket);
        close(u->socket);
    } /* a forked child has closed its copy already */
    if (u->epoll >= 0) close(u->epoll);
    free(u);
}

static tutti_status open_pipe(const tutti_connection *connection, tutti_deadline *deadline, tutti_pipe **pipe_out) {
    tutti_ucx_pipe *u;
    tutti_status status = tutti_ucx_common_host->calloc(1, sizeof *u, &u);
    if (status != TUTTI_OK) {
        close(connection->socket);
        return status;
    }
    u->pipe.transport = tutti_ucx_own_host->row;
    u->process = getpid();
    u->socket = connection->socket;
    tutti_ucx_own_host->fork_closes(connection->socket);
    u->epoll = -1;
    status = build(u, deadline);
    if (status != TUTTI_OK) {
        u->pipe.status = status; /* skips the orderly farewell */
        close_pipe(&u->pipe);
        return status;
    }
    *pipe_out = &u->pipe;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- the module */

static void attach(const tutti_ucx_host *host) {
    tutti_ucx_own_host = host;
}

static const tutti_transport pipes = {
    .name = "ucx",
    .open = open_pipe,
    .send = tutti_ucx_send,
    .recv = tutti_ucx_recv,
    .progress = tutti_ucx_progress,
    .sleep_on = tutti_ucx_sleep_on,
    .cancel = tutti_ucx_cancel,
    .close = close_pipe,
};

tutti_status tutti_module_start(const tutti_module_host *caller, const tutti_module_calls **calls_out) {
    static const tutti_ucx_module module = {
        .head.version = TUTTI_MODULE_VERSION, .attach = attach, .survey = tutti_ucx_find, .pipes = &pipes};
    if (caller->version == TUTTI_MODULE_VERSION)
        tutti_ucx_common_host = caller; /* else the caller detects the difference, and makes no call */
    *calls_out = &module.head;
    return TUTTI_OK;
}
