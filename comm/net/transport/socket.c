/*
 * Transports over sockets. See socket.h.
 */
#include "comm/net/transport/socket.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/base/fork.h"

#define MOST_LINGER_NS INT64_C(2000000000)

/* ------------------------------------------------------------------------------------------------- parts */

size_t tutti_socket_parts_set(tutti_socket_parts *parts, const struct iovec *given, int ngiven) {
    size_t bytes = 0;
    parts->first = parts->count = 0;
    for (int i = 0; i < ngiven; i++) {
        if (given[i].iov_len == 0) continue;
        parts->all[parts->count++] = given[i];
        bytes += given[i].iov_len;
    }
    return bytes;
}

void tutti_socket_parts_drop(tutti_socket_parts *parts, size_t bytes) {
    while (parts->first < parts->count && bytes >= parts->all[parts->first].iov_len)
        bytes -= parts->all[parts->first++].iov_len;
    if (bytes == 0) return;
    parts->all[parts->first].iov_base = (char *)parts->all[parts->first].iov_base + bytes;
    parts->all[parts->first].iov_len -= bytes;
}

/* ----------------------------------------------------------------------------------------------- opening */

static tutti_status choose_congestion(int socket) {
    const char *name = tutti_setting_text(TUTTI_SETTING_TCP_CONGESTION);
    char offered[128] = "";
    if (*name == '\0' || setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0)
        return TUTTI_OK;
    int error = errno;
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "re");
    if (file != NULL && fgets(offered, sizeof offered, file) != NULL) offered[strcspn(offered, "\n")] = '\0';
    if (file != NULL) fclose(file);
    return tutti_fail(TUTTI_ERR_CONFIG, "TUTTI_TCP_CONGESTION=%s: %s; this system allows: %s", name, strerror(error),
                      offered[0] != '\0' ? offered : "unknown");
}

static void set_option(int socket, int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value); /* a system that lacks the option works without it */
}

tutti_status tutti_socket_tune(int socket) {
    int domain = AF_UNSPEC;
    socklen_t bytes = sizeof domain;
    if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0) return tutti_fail_errno(errno, "not a socket");
    if (domain != AF_INET && domain != AF_INET6) return TUTTI_OK;
    int timeout_ms = (int)tutti_min_i64(tutti_setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS), INT32_MAX);
    int probe_s = timeout_ms < 4000 ? 1 : timeout_ms / 4000;
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms);
    set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, probe_s);
    set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, probe_s);
    set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
    return choose_congestion(socket);
}

size_t tutti_socket_call_bytes(int socket) {
    char name[16] = ""; /* TCP_CA_NAME_MAX */
    socklen_t bytes = sizeof name - 1;
    if (getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0) return TUTTI_SOCKET_CALL_BYTES;
    return strncmp(name, "bbr", 3) == 0 ? TUTTI_SOCKET_PACED_CALL_BYTES : TUTTI_SOCKET_CALL_BYTES;
}

/* ------------------------------------------------------------------------------------------------ errors */

bool tutti_socket_is_passing(int error) {
    return error == EAGAIN || error == EINTR || error == ENOBUFS || error == ENOMEM;
}

tutti_status tutti_socket_fail(tutti_pipe *pipe, int error) {
    const char *name = pipe->transport->name;
    switch (error) {
    case ECONNRESET:
    case EPIPE:
        return tutti_pipe_fail(pipe, TUTTI_ERR_PEER_DIED, "%s: the other side has closed the connection (%s)", name,
                               strerror(error));
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return tutti_pipe_fail(pipe, TUTTI_ERR_PEER_DIED,
                               "%s: the other side has not answered for %lld ms (TUTTI_PEER_TIMEOUT_MS): %s", name,
                               (long long)tutti_setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS), strerror(error));
    default: return tutti_pipe_fail(pipe, TUTTI_ERR_SYSTEM, "%s: %s", name, strerror(error));
    }
}

tutti_status tutti_socket_fail_send(tutti_pipe *pipe, int error, bool receives) {
    pipe->send_error = error;
    return pipe->lane || receives ? TUTTI_OK : tutti_socket_fail(pipe, error);
}

/* ------------------------------------------------------------------------------------------------ ending */

/* The other side's kernel has reset the connection: not reported by recv and SIOCOUTQ after its end was read. */
static bool is_reset(int socket) {
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && info.tcpi_state == TCP_CLOSE;
}

/* A socket that is closed with unread bytes, or that receives some later, drops the bytes that the other side's
 * kernel does not have yet. The end, which counts as a byte, need not arrive. */
static void wait_until_sent(int socket) {
    char unread[4096];
    int64_t until_ns = tutti_now_ns() + MOST_LINGER_NS;
    for (;;) {
        int unsent = 0;
        ssize_t got = recv(socket, unread, sizeof unread, MSG_DONTWAIT);
        if (got > 0) continue;
        bool over = got < 0 ? !tutti_socket_is_passing(errno) : is_reset(socket);
        if (over || ioctl(socket, SIOCOUTQ, &unsent) != 0 || unsent <= 1 || tutti_now_ns() >= until_ns) return;
        tutti_nap(200 * TUTTI_NS_PER_US);
    }
}

void tutti_socket_close(int socket, bool see_off) {
    shutdown(socket, SHUT_WR);
    if (see_off) wait_until_sent(socket);
    tutti_fork_forget(socket);
    close(socket);
}

/* ------------------------------------------------------------------------------------------------- other */

void tutti_socket_manner(char *text, size_t capacity) {
    const char *chosen = tutti_setting_text(TUTTI_SETTING_TCP_CONGESTION);
    int nsockets = (int)tutti_setting_int(TUTTI_SETTING_TCP_SOCKETS);
    char usual[64] = "?", several[48] = "";
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "re");
    if (file != NULL && fgets(usual, sizeof usual, file) != NULL) usual[strcspn(usual, "\n")] = '\0';
    if (file != NULL) fclose(file);
    if (nsockets > 1) snprintf(several, sizeof several, "; %d sockets per peer", nsockets);
    snprintf(text, capacity, "congestion control %s%s", *chosen != '\0' ? chosen : usual, several);
}
