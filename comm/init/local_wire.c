/*
 * Messages with file descriptors attached, and what ranks prove and report in them. See local_state.h.
 */
#include "comm/init/local_state.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef union control {
    char bytes[CMSG_SPACE(TUTTI_LOCAL_WIRE_FDS * sizeof(int))];
    struct cmsghdr align;
} control;

/* Waits for data; errors name `what` as the thing waited for. */
static tutti_status wait_for(int fd, tutti_deadline *deadline, const char *what) {
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    for (;;) {
        if (tutti_deadline_passed(deadline))
            return tutti_fail(TUTTI_ERR_TIMEOUT, "no %s before the deadline (TUTTI_CONNECT_TIMEOUT_MS)", what);
        int left_ms = tutti_deadline_left_ms(deadline);
        int ready = poll(&waited, 1, left_ms < 100 ? left_ms : 100);
        if (ready > 0) return TUTTI_OK;
        if (ready < 0 && errno != EINTR) return tutti_fail_errno(errno, "poll while waiting for %s", what);
    }
}

/* Whether to retry: a user may only have so many descriptors in flight; the receivers will take theirs. */
static bool may_try_again(int error, tutti_deadline *deadline) {
    if (error == EINTR) return true;
    if (error != ETOOMANYREFS || tutti_deadline_passed(deadline)) return false;
    tutti_nap(200 * TUTTI_NS_PER_US);
    return true;
}

tutti_status tutti_local_wire_send(int fd, const void *data, size_t bytes, const int *fds, int nfds,
                                   tutti_deadline *deadline) {
    control beside = {.bytes = {0}};
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (nfds > 0) {
        message.msg_control = beside.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int))};
        memcpy(CMSG_DATA(header), fds, (size_t)nfds * sizeof(int));
    }
    ssize_t sent;
    do sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && may_try_again(errno, deadline));
    if (sent == (ssize_t)bytes) return TUTTI_OK;
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
        return tutti_fail(TUTTI_ERR_PEER_DIED, "the other side closed the connection");
    return tutti_fail_errno(sent < 0 ? errno : EMSGSIZE, "cannot send to a rank of this host");
}

/* Takes the descriptors out of the message, and closes those that exceed the capacity. */
static int take_fds(struct msghdr *message, int *fds_out, int capacity) {
    int count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL; header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t nfds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < nfds; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (count < capacity) fds_out[count++] = fd;
            else close(fd);
        }
    }
    return count;
}

tutti_status tutti_local_wire_receive(int fd, void *data, size_t bytes, int *fds_out, int capacity, int *nfds_out,
                                      tutti_deadline *deadline, const char *what) {
    control beside;
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = beside.bytes, .msg_controllen = sizeof beside.bytes};
    TUTTI_TRY(wait_for(fd, deadline, what));
    ssize_t got;
    do got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 &&
           (errno == EINTR || errno == ECONNRESET)); /* ECONNRESET is returned once; data sent before it follows */
    if (got < 0) return tutti_fail_errno(errno, "cannot receive %s", what);
    int nfds = take_fds(&message, fds_out, capacity);
    bool longer = (message.msg_flags & MSG_TRUNC) != 0;
    if (got == (ssize_t)bytes && (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) == 0) {
        if (nfds_out != NULL) *nfds_out = nfds;
        return TUTTI_OK;
    }
    for (int i = 0; i < nfds; i++) close(fds_out[i]);
    if (longer) return tutti_fail(TUTTI_ERR_REFUSED, "%s is longer than the expected %zu bytes", what, bytes);
    if (got == (ssize_t)bytes)
        return tutti_fail(TUTTI_ERR_SYSTEM, "no descriptor is free for %s: raise 'ulimit -n'", what);
    return got == 0 ? tutti_fail(TUTTI_ERR_PEER_DIED, "the other side closed the connection before its %s", what)
                    : tutti_fail(TUTTI_ERR_REFUSED, "%s has %zd bytes, %zu expected", what, got, bytes);
}

/* ---------------------------------------------------------------------------------------------- sockets */

static socklen_t address_of(const char *name, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    size_t bytes = strlen(name);
    memcpy(address->sun_path + 1, name, bytes); /* first byte 0: abstract, without a file */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
}

/* Nonblocking: a full queue of the other side, or an empty one of ours, must not block the caller past its deadline. */
static tutti_status make_socket(int *fd_out) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return tutti_fail_errno(errno, "cannot make a UNIX socket");
    *fd_out = fd;
    return TUTTI_OK;
}

tutti_status tutti_local_wire_listen(const char *name, int *fd_out) {
    struct sockaddr_un address;
    int fd = -1;
    TUTTI_TRY(make_socket(&fd));
    socklen_t bytes = address_of(name, &address);
    if (bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, 4096) != 0) {
        int error = errno;
        close(fd);
        return tutti_fail_errno(error, "cannot listen on an abstract UNIX socket");
    }
    *fd_out = fd;
    return TUTTI_OK;
}

tutti_status tutti_local_wire_connect(const char *name, tutti_deadline *deadline, int *fd_out) {
    struct sockaddr_un address;
    int fd = -1;
    TUTTI_TRY(make_socket(&fd));
    socklen_t bytes = address_of(name, &address);
    while (connect(fd, (struct sockaddr *)&address, bytes) != 0) {
        int error = errno;
        bool full = error == EAGAIN;
        if (full) tutti_nap(TUTTI_NS_PER_MS);
        if (error == EINTR || (full && !tutti_deadline_passed(deadline))) continue;
        close(fd);
        if (full)
            return tutti_fail(TUTTI_ERR_TIMEOUT, "the queue of a rank's socket has been full until the deadline "
                                                 "(TUTTI_CONNECT_TIMEOUT_MS)");
        if (error == ECONNREFUSED || error == ENOENT)
            return tutti_fail(TUTTI_ERR_PEER_DIED, "no process listens on the socket");
        return tutti_fail_errno(error, "cannot connect to a rank of this host");
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    *fd_out = fd;
    return TUTTI_OK;
}

bool tutti_local_wire_is_same_user(int fd, int64_t *pid_out) {
    struct ucred credentials;
    socklen_t bytes = sizeof credentials;
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0;
    *pid_out = known ? credentials.pid : 0;
    return known && credentials.uid == geteuid();
}

/* ------------------------------------------------------------------------------------------- the contents */

void tutti_local_mac(const tutti_local_bootstrap *c, char side, const tutti_local_hello *h,
                     const uint8_t nonce[TUTTI_LOCAL_NONCE_BYTES], uint8_t mac[TUTTI_SHA256_BYTES]) {
    struct {
        uint8_t side[8];
        tutti_local_hello hello;
        uint8_t nonce[TUTTI_LOCAL_NONCE_BYTES];
        char socket_name[TUTTI_SOCKET_NAME_BYTES];
    } text;
    memset(&text, 0, sizeof text);
    text.side[0] = (uint8_t)side;
    text.hello = *h;
    memcpy(text.nonce, nonce, sizeof text.nonce);
    snprintf(text.socket_name, sizeof text.socket_name, "%s", c->place->socket_name);
    tutti_hmac hash;
    tutti_hmac_init(&hash, c->key, c->key_bytes);
    tutti_hmac_update(&hash, &text, sizeof text);
    tutti_hmac_update(&hash, c->prefix, strlen(c->prefix));
    tutti_hmac_final(&hash, mac);
}

tutti_status tutti_local_fail_secret(int rank) {
    return tutti_fail(
        TUTTI_ERR_REFUSED,
        "rank %d does not know this job's secret: TUTTI_SECRET (or its file) must be equal on all ranks; or it "
        "is creating another communicator, and a false value in the store has directed it here",
        rank);
}

void tutti_local_fill_message(tutti_local_message *w, tutti_status status) {
    memset(w, 0, sizeof *w);
    w->status = status;
    if (status != TUTTI_OK) snprintf(w->text, sizeof w->text, "%s", tutti_last_error());
}
