/*
 * First contact of the ranks of a host: over an abstract UNIX socket (SOCK_SEQPACKET) to rank 0, which gathers and
 * hands out everyone's heap and page.
 *
 *   rank r -> 0   hello  { rank, nonce }
 *   0 -> rank r   proof  { nonce, MAC(key, "0", both nonces) }          who listens knows the key
 *   rank r -> 0   entry  { MAC(key, "r", both nonces), card, page }     with descriptors: heap, pidfd
 *   0 -> rank r   entry of each rank in order                           descriptors with each process's first one
 *
 * The key is the job's secret; without one it is the roll's random nonce, and the other side must have our uid.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "bootstrap/base/hmac.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/secret.h"
#include "comm/card.h"
#include "comm/heap.h"

#define NONCE_BYTES 16
#define STRANGER_MS 2000 /* who connects must prove himself within this */

typedef struct hello {
    int32_t rank, unused;
    uint8_t nonce[NONCE_BYTES];
} hello;

typedef struct proof {
    uint8_t nonce[NONCE_BYTES];
    uint8_t mac[TUTTI_SHA256_BYTES];
} proof;

typedef struct entry {
    uint8_t mac[TUTTI_SHA256_BYTES]; /* towards rank 0 only */
    int32_t rank, unused;
    tutti_peer_card card;
    uint64_t page; /* address in the owner's process */
} entry;

/* An entry as it lies here: descriptors are -1 once handed on. */
typedef struct gathered {
    entry entry;
    int heap_fd, pidfd;
    int connection; /* at rank 0: to that rank */
} gathered;

typedef struct contact {
    tutti_comm *comm;
    const tutti_roll *roll;
    tutti_deadline *deadline;
    uint8_t key[TUTTI_SECRET_BYTES];
    size_t key_bytes;
    bool secret; /* the key is the job's; else the uid must match, too */
    gathered *all;
} contact;

/* --------------------------------------------------------------------------------------------- messages */

static tutti_status wait_ready(int fd, short events, tutti_deadline *deadline, const char *what) {
    struct pollfd waited = {.fd = fd, .events = events};
    for (;;) {
        if (tutti_deadline_passed(deadline))
            return tutti_fail(TUTTI_ERR_TIMEOUT, "no %s before the deadline (TUTTI_CONNECT_TIMEOUT_MS)", what);
        int left_ms = tutti_deadline_left_ms(deadline);
        int ready = poll(&waited, 1, left_ms < 100 ? left_ms : 100);
        if (ready > 0) return TUTTI_OK;
        if (ready < 0 && errno != EINTR) return tutti_fail_errno(errno, "poll while waiting for %s", what);
    }
}

static tutti_status send_message(int fd, const void *data, size_t bytes, const int *fds, int nfds) {
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (nfds > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int))};
        memcpy(CMSG_DATA(header), fds, (size_t)nfds * sizeof(int));
    }
    ssize_t sent;
    do sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)bytes) return TUTTI_OK;
    return tutti_fail_errno(sent < 0 ? errno : EMSGSIZE, "cannot send to a rank of this host");
}

/* Takes at most two descriptors; fds_out entries that did not come are -1. */
static tutti_status receive_message(int fd, void *data, size_t bytes, int fds_out[2], tutti_deadline *deadline,
                                    const char *what) {
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    fds_out[0] = fds_out[1] = -1;
    TUTTI_TRY(wait_ready(fd, POLLIN, deadline, what));
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (got < 0) return tutti_fail_errno(errno, "cannot receive %s", what);
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header))
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
            memcpy(fds_out, CMSG_DATA(header), tutti_min_size(header->cmsg_len - CMSG_LEN(0), 2 * sizeof(int)));
    if (got == (ssize_t)bytes) return TUTTI_OK;
    for (int i = 0; i < 2; i++)
        if (fds_out[i] >= 0) close(fds_out[i]);
    return got == 0 ? tutti_fail(TUTTI_ERR_PEER_DIED, "the other side closed the connection before its %s", what)
                    : tutti_fail(TUTTI_ERR_REFUSED, "%s has %zd bytes, %zu expected", what, got, bytes);
}

static tutti_status receive_plain(int fd, void *data, size_t bytes, tutti_deadline *deadline, const char *what) {
    int fds[2];
    TUTTI_TRY(receive_message(fd, data, bytes, fds, deadline, what));
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0) close(fds[i]);
    return TUTTI_OK;
}

static void compute_mac(const contact *c, char side, const hello *h, const uint8_t nonce[NONCE_BYTES],
                        uint8_t mac[TUTTI_SHA256_BYTES]) {
    uint8_t text[1 + sizeof *h + NONCE_BYTES];
    text[0] = (uint8_t)side;
    memcpy(text + 1, h, sizeof *h);
    memcpy(text + 1 + sizeof *h, nonce, NONCE_BYTES);
    tutti_hmac_of(c->key, c->key_bytes, text, sizeof text, mac);
}

static bool same_user(int fd) {
    struct ucred credentials;
    socklen_t bytes = sizeof credentials;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 && credentials.uid == geteuid();
}

/* ---------------------------------------------------------------------------------------------- sockets */

static socklen_t address_of(const char *name, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    size_t bytes = strlen(name);
    memcpy(address->sun_path + 1, name, bytes); /* the first byte 0: abstract, no file */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
}

tutti_status tutti_contact_listen(char name_out[TUTTI_SOCKET_NAME_BYTES], int *fd_out) {
    uint8_t random[16];
    struct sockaddr_un address;
    TUTTI_TRY(tutti_random_bytes(random, sizeof random));
    int used = snprintf(name_out, TUTTI_SOCKET_NAME_BYTES, "tutti-");
    for (size_t i = 0; i < sizeof random; i++)
        used += snprintf(name_out + used, TUTTI_SOCKET_NAME_BYTES - (size_t)used, "%02x", random[i]);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return tutti_fail_errno(errno, "cannot make a UNIX socket");
    socklen_t bytes = address_of(name_out, &address);
    if (bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, 4096) != 0) {
        int error = errno;
        close(fd);
        return tutti_fail_errno(error, "cannot listen on an abstract UNIX socket");
    }
    *fd_out = fd;
    return TUTTI_OK;
}

static tutti_status connect_to_root(const contact *c, int *fd_out) {
    const tutti_card *root = &c->roll->cards[0];
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return tutti_fail_errno(errno, "cannot make a UNIX socket");
    socklen_t bytes = address_of(root->socket_name, &address);
    while (connect(fd, (struct sockaddr *)&address, bytes) != 0) {
        int error = errno;
        if (error == EINTR || (error == EAGAIN && !tutti_deadline_passed(c->deadline))) continue;
        close(fd);
        if (error == ECONNREFUSED || error == ENOENT)
            return tutti_fail(
                TUTTI_ERR_PEER_DIED,
                "rank %d (host %s, pid %lld) has ended, or TUTTI_HOST_ID joins two network namespaces, which share "
                "no memory",
                root->rank, root->host, (long long)root->pid);
        return tutti_fail_errno(error, "cannot connect to rank 0 (host %s, pid %lld)", root->host,
                                (long long)root->pid);
    }
    if (!c->secret && !same_user(fd)) {
        close(fd);
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "rank 0 runs as another user: set TUTTI_SECRET on all ranks to allow that");
    }
    *fd_out = fd;
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- rank r */

static tutti_status enter(contact *c, int fd) {
    hello h = {.rank = c->comm->rank};
    proof p;
    uint8_t expected[TUTTI_SHA256_BYTES];
    TUTTI_TRY(tutti_random_bytes(h.nonce, sizeof h.nonce));
    TUTTI_TRY(send_message(fd, &h, sizeof h, NULL, 0));
    TUTTI_TRY(receive_plain(fd, &p, sizeof p, c->deadline, "rank 0's proof"));
    compute_mac(c, '0', &h, p.nonce, expected);
    if (!tutti_hmac_equal(expected, p.mac, sizeof expected))
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "rank 0 does not know this job's secret: TUTTI_SECRET (or its file) must be "
                          "equal on all ranks");
    gathered *own = &c->all[c->comm->rank];
    compute_mac(c, 'r', &h, p.nonce, own->entry.mac);
    int fds[2] = {own->heap_fd, own->pidfd};
    TUTTI_TRY(send_message(fd, &own->entry, sizeof own->entry, fds, own->pidfd >= 0 ? 2 : 1));
    for (int rank = 0; rank < c->comm->nranks; rank++) {
        entry e;
        TUTTI_TRY(receive_message(fd, &e, sizeof e, fds, c->deadline, "list of ranks from rank 0"));
        if (rank == c->comm->rank) {
            for (int i = 0; i < 2; i++)
                if (fds[i] >= 0) close(fds[i]);
            continue;
        }
        c->all[rank] =
            (gathered){.entry = e, .heap_fd = fds[0], .pidfd = fds[1], .connection = c->all[rank].connection};
    }
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- rank 0 */

/* Lets one connection prove itself; a stranger is sent away with a log line. */
static tutti_status admit(contact *c, int fd) {
    tutti_deadline patience = tutti_deadline_after_ms(STRANGER_MS);
    hello h;
    proof p;
    uint8_t expected[TUTTI_SHA256_BYTES];
    if (!c->secret && !same_user(fd)) return tutti_fail(TUTTI_ERR_REFUSED, "another user connected");
    TUTTI_TRY(receive_plain(fd, &h, sizeof h, &patience, "hello"));
    if (h.rank <= 0 || h.rank >= c->comm->nranks || c->all[h.rank].connection >= 0)
        return tutti_fail(TUTTI_ERR_REFUSED, "hello of rank %d, which cannot be", h.rank);
    TUTTI_TRY(tutti_random_bytes(p.nonce, sizeof p.nonce));
    compute_mac(c, '0', &h, p.nonce, p.mac);
    TUTTI_TRY(send_message(fd, &p, sizeof p, NULL, 0));
    int fds[2];
    gathered one = {.connection = fd};
    TUTTI_TRY(receive_message(fd, &one.entry, sizeof one.entry, fds, &patience, "entry"));
    one.heap_fd = fds[0];
    one.pidfd = fds[1];
    compute_mac(c, 'r', &h, p.nonce, expected);
    if (tutti_hmac_equal(expected, one.entry.mac, sizeof expected) && one.entry.rank == h.rank) {
        c->all[h.rank] = one;
        return TUTTI_OK;
    }
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0) close(fds[i]);
    return tutti_fail(TUTTI_ERR_REFUSED,
                      "rank %d does not know this job's secret: TUTTI_SECRET (or its file) must be equal "
                      "on all ranks",
                      h.rank);
}

static void list_missing(const contact *c, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 1; rank < c->comm->nranks && used < capacity; rank++)
        if (c->all[rank].connection < 0)
            used +=
                (size_t)snprintf(text + used, capacity - used, "%srank %d (host %s, pid %lld)", used > 0 ? ", " : "",
                                 rank, c->roll->cards[rank].host, (long long)c->roll->cards[rank].pid);
}

static tutti_status gather(contact *c, int listen_fd) {
    char missing[600];
    for (int present = 1; present < c->comm->nranks;) {
        tutti_status status = wait_ready(listen_fd, POLLIN, c->deadline, "connection");
        if (status != TUTTI_OK) {
            list_missing(c, missing, sizeof missing);
            return tutti_fail(status,
                              "not all ranks of this host have connected before the deadline "
                              "(TUTTI_CONNECT_TIMEOUT_MS); missing: %s",
                              missing);
        }
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        if (admit(c, fd) == TUTTI_OK) {
            present++;
        } else {
            tutti_log(TUTTI_LOG_WARN, "a connection was refused: %s", tutti_last_error());
            close(fd);
        }
    }
    return TUTTI_OK;
}

static bool is_first_of_process(const contact *c, int rank) {
    for (int before = 0; before < rank; before++)
        if (memcmp(c->all[before].entry.card.id, c->all[rank].entry.card.id, TUTTI_PROCESS_ID_BYTES) == 0) return false;
    return true;
}

static tutti_status hand_out(contact *c) {
    for (int rank = 0; rank < c->comm->nranks; rank++) {
        gathered *one = &c->all[rank];
        memset(one->entry.mac, 0, sizeof one->entry.mac);
        int fds[2] = {one->heap_fd, one->pidfd};
        int nfds = is_first_of_process(c, rank) ? one->pidfd >= 0 ? 2 : 1 : 0;
        for (int to = 1; to < c->comm->nranks; to++)
            TUTTI_TRY(send_message(c->all[to].connection, &one->entry, sizeof one->entry, fds, nfds));
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- both */

static tutti_status choose_key(contact *c) {
    TUTTI_TRY(tutti_secret_get((char *)c->key, sizeof c->key, &c->secret));
    if (!c->secret && tutti_setting_int(TUTTI_SETTING_SECRET_REQUIRED) != 0)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "TUTTI_SECRET_REQUIRED is set, but neither TUTTI_SECRET nor TUTTI_SECRET_FILE");
    c->key_bytes = c->secret ? strlen((char *)c->key) : sizeof c->roll->nonce;
    if (!c->secret) memcpy(c->key, c->roll->nonce, sizeof c->roll->nonce);
    return TUTTI_OK;
}

static tutti_status describe_self(contact *c) {
    tutti_peer *self;
    TUTTI_TRY(tutti_peer_self(&self));
    for (int rank = 0; rank < c->comm->nranks; rank++)
        c->all[rank] = (gathered){.heap_fd = -1, .pidfd = -1, .connection = -1};
    gathered *own = &c->all[c->comm->rank];
    own->entry.rank = c->comm->rank;
    own->entry.page = (uint64_t)(uintptr_t)c->comm->page;
    own->entry.card = (tutti_peer_card){.heap_base = self->remote_base, .heap_bytes = self->bytes, .pid = self->pid};
    memcpy(own->entry.card.id, self->id, sizeof self->id);
    memcpy(own->entry.card.host, self->host, sizeof self->host);
    own->heap_fd = fcntl(tutti_heap_fd(), F_DUPFD_CLOEXEC, 0);
    own->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0); /* -1 where forbidden: then peers ask by pid */
    return own->heap_fd >= 0 ? TUTTI_OK : tutti_fail_errno(errno, "cannot duplicate the shared heap's descriptor");
}

/* Maps what was gathered; takes the descriptors. */
static tutti_status map_members(contact *c) {
    for (int rank = 0; rank < c->comm->nranks; rank++) {
        gathered *one = &c->all[rank];
        tutti_member *member = &c->comm->members[rank];
        one->entry.card.host[sizeof one->entry.card.host - 1] = '\0';
        tutti_status status = tutti_peer_admit(&one->entry.card, one->heap_fd, one->pidfd, &member->process);
        one->heap_fd = one->pidfd = -1;
        TUTTI_TRY(status);
        member->page = tutti_peer_translate(member->process, one->entry.page, sizeof *member->page);
        if (member->page == NULL || one->entry.page % TUTTI_CACHE_LINE != 0)
            return tutti_fail(TUTTI_ERR_REFUSED, "rank %d shows a page outside of its heap", rank);
    }
    return TUTTI_OK;
}

static tutti_status run(contact *c, int listen_fd) {
    TUTTI_TRY(choose_key(c));
    TUTTI_TRY(describe_self(c));
    if (c->comm->rank == 0) {
        TUTTI_TRY(gather(c, listen_fd));
        TUTTI_TRY(hand_out(c));
    } else {
        int fd = -1;
        TUTTI_TRY(connect_to_root(c, &fd));
        c->all[0].connection = fd;
        TUTTI_TRY(enter(c, fd));
    }
    return map_members(c);
}

tutti_status tutti_contact_exchange(tutti_comm *comm, const tutti_roll *roll, int listen_fd, tutti_deadline *deadline) {
    contact c = {.comm = comm, .roll = roll, .deadline = deadline};
    TUTTI_TRY(tutti_calloc((size_t)comm->nranks, sizeof *c.all, &c.all));
    tutti_status status = run(&c, listen_fd);
    for (int rank = 0; rank < comm->nranks; rank++) {
        gathered *one = &c.all[rank];
        if (one->connection >= 0) close(one->connection);
        if (one->heap_fd >= 0) close(one->heap_fd);
        if (one->pidfd >= 0) close(one->pidfd);
    }
    memset(c.key, 0, sizeof c.key);
    free(c.all);
    return status;
}
