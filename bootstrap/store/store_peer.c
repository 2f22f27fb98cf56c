/*
 * See store_peer.h. Both ends are first converted to one form: the listening socket accepts IPv4 and IPv6, so an
 * IPv4 client appears as ::ffff:a.b.c.d, but its own socket may be of either family; the kernel finds both by the
 * IPv4 addresses.
 *
 * The routing table determines whether an address belongs to this host: it knows all of them at any time.
 * Invariant: a client of this host whose user is not reported is never classified as remote.
 */
#include "bootstrap/store/store_peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/common.h"

enum { ESTABLISHED = TCP_ESTABLISHED, LISTENS = TCP_LISTEN }; /* the kernel's numbers, used in all its answers */

/* One end of a connection. */
typedef struct end {
    uint8_t family; /* AF_INET also for IPv4-mapped IPv6 addresses */
    uint16_t port;  /* network order, like the address */
    uint32_t scope; /* the interface if the address is valid on one link only; else 0 */
    uint8_t address[16];
} end;

typedef struct socket_facts {
    int state;
    uid_t user;
    uint64_t inode;
} socket_facts;

typedef enum answer { FOUND, ABSENT, NO_ANSWER } answer;

struct tutti_store_peers {
    int diag_fd, route_fd; /* -1: does not answer */
    bool proc;             /* /proc/net/tcp reports users */
    uint32_t device;       /* interface to which the listening socket, and so all its connections, are bound; 0: none */
    uint32_t sequence;
};

static void end_of(const struct sockaddr_storage *address, end *end_out) {
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    *end_out = (end){.family = AF_INET};
    if (address->ss_family == AF_INET) {
        end_out->port = four->sin_port;
        memcpy(end_out->address, &four->sin_addr, sizeof four->sin_addr);
        return;
    }
    end_out->port = six->sin6_port;
    if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        memcpy(end_out->address, &six->sin6_addr.s6_addr[12], 4);
        return;
    }
    end_out->family = AF_INET6;
    memcpy(end_out->address, &six->sin6_addr, sizeof six->sin6_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) end_out->scope = six->sin6_scope_id;
}

static size_t address_bytes(const end *e) {
    return e->family == AF_INET ? 4 : 16;
}

/* -------------------------------------------------------------------------------------------- netlink */

static int open_netlink(int protocol) {
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    if (fd < 0 || connect(fd, (struct sockaddr *)&kernel, sizeof kernel) == 0) return fd;
    close(fd);
    return -1;
}

/* Sends a question and receives the answer, which is available at once. An error's number is negative. */
static answer ask_kernel(tutti_store_peers *peers, int fd, struct nlmsghdr *question, int wanted, void *reply,
                         size_t capacity, int *error_out) {
    *error_out = 0;
    question->nlmsg_flags = NLM_F_REQUEST;
    question->nlmsg_seq = ++peers->sequence;
    if (fd < 0 || send(fd, question, question->nlmsg_len, 0) != (ssize_t)question->nlmsg_len) return NO_ANSWER;
    for (;;) {
        ssize_t got = recv(fd, reply, capacity, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        const struct nlmsghdr *head = reply;
        if (got < (ssize_t)sizeof *head) return NO_ANSWER;
        if (head->nlmsg_seq != peers->sequence) continue; /* left over from a question that failed */
        if (head->nlmsg_type == wanted) return FOUND;
        if (head->nlmsg_type != NLMSG_ERROR || got < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr))) return NO_ANSWER;
        memcpy(error_out, NLMSG_DATA(head), sizeof *error_out); /* the first field of struct nlmsgerr */
        return ABSENT;
    }
}

/* Finds the socket whose own end is `own` and whose other end is `other`. */
static answer ask_diag(tutti_store_peers *peers, const end *own, const end *other, socket_facts *found_out) {
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } question = {.head = {.nlmsg_len = sizeof question, .nlmsg_type = SOCK_DIAG_BY_FAMILY},
                  .body = {.sdiag_family = own->family,
                           .sdiag_protocol = IPPROTO_TCP,
                           .idiag_states = ~0U,
                           .id = {.idiag_sport = own->port,
                                  .idiag_dport = other->port,
                                  .idiag_if = own->scope != 0 ? own->scope : peers->device,
                                  .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
    _Alignas(struct nlmsghdr) uint8_t reply[1024];
    int error;
    memcpy(question.body.id.idiag_src, own->address, sizeof own->address);
    memcpy(question.body.id.idiag_dst, other->address, sizeof other->address);
    answer given = ask_kernel(peers, peers->diag_fd, &question.head, SOCK_DIAG_BY_FAMILY, reply, sizeof reply, &error);
    if (given == ABSENT && error != -ENOENT) return NO_ANSWER;
    if (given != FOUND) return given;
    const struct inet_diag_msg *message = NLMSG_DATA((struct nlmsghdr *)reply);
    *found_out = (socket_facts){message->idiag_state, message->idiag_uid, message->idiag_inode};
    return FOUND;
}

/* Returns FOUND when the routing table has the address as one of this host. */
static answer ask_route(tutti_store_peers *peers, const end *e) {
    struct {
        struct nlmsghdr head;
        struct rtmsg body;
        uint8_t attributes[RTA_SPACE(16) + RTA_SPACE(4)];
    } question = {.head = {.nlmsg_type = RTM_GETROUTE},
                  .body = {.rtm_family = e->family, .rtm_dst_len = (uint8_t)(8 * address_bytes(e))}};
    _Alignas(struct nlmsghdr) uint8_t reply[4096];
    struct rtattr *attribute = (struct rtattr *)question.attributes;
    int error;
    attribute->rta_type = RTA_DST;
    attribute->rta_len = (uint16_t)RTA_LENGTH(address_bytes(e));
    memcpy(RTA_DATA(attribute), e->address, address_bytes(e));
    question.head.nlmsg_len = (uint32_t)(NLMSG_LENGTH(sizeof question.body) + RTA_SPACE(address_bytes(e)));
    uint32_t device = e->scope != 0 ? e->scope : peers->device;
    if (device != 0) {
        attribute = (struct rtattr *)(question.attributes + RTA_SPACE(address_bytes(e)));
        attribute->rta_type = RTA_OIF;
        attribute->rta_len = RTA_LENGTH(sizeof device);
        memcpy(RTA_DATA(attribute), &device, sizeof device);
        question.head.nlmsg_len += (uint32_t)RTA_SPACE(sizeof device);
    }
    answer given = ask_kernel(peers, peers->route_fd, &question.head, RTM_NEWROUTE, reply, sizeof reply, &error);
    if (given == ABSENT) return error == -ENETUNREACH || error == -EHOSTUNREACH ? ABSENT : NO_ANSWER;
    if (given != FOUND) return given;
    const struct rtmsg *route = NLMSG_DATA((struct nlmsghdr *)reply);
    return route->rtm_type == RTN_LOCAL ? FOUND : ABSENT;
}

/* ----------------------------------------------------------------------------------------------- /proc */

/* Writes an end as in /proc/net/tcp: the address as words in this machine's byte order. */
static void write_end(const end *e, uint8_t family, char text[48]) {
    uint32_t words[4] = {0, 0, htonl(0xFFFF), 0};
    int nwords = family == AF_INET ? 1 : 4, used = 0;
    if (e->family == AF_INET) memcpy(&words[nwords - 1], e->address, 4);
    else memcpy(words, e->address, sizeof words);
    for (int i = 0; i < nwords; i++) used += snprintf(text + used, 48 - (size_t)used, "%08X", words[i]);
    snprintf(text + used, 48 - (size_t)used, ":%04X", ntohs(e->port));
}

static answer search_table(const char *path, uint8_t family, const end *own, const end *other,
                           socket_facts *found_out) {
    char wanted[2][48], line[512], ends[2][48];
    FILE *table = fopen(path, "re");
    if (table == NULL) return NO_ANSWER;
    write_end(own, family, wanted[0]);
    write_end(other, family, wanted[1]);
    answer given = ABSENT;
    while (given == ABSENT && fgets(line, sizeof line, table) != NULL) {
        unsigned state, user;
        unsigned long inode;
        if (sscanf(line, " %*d: %47s %47s %x %*s %*s %*s %u %*u %lu", ends[0], ends[1], &state, &user, &inode) != 5 ||
            strcmp(ends[0], wanted[0]) != 0 || strcmp(ends[1], wanted[1]) != 0)
            continue;
        *found_out = (socket_facts){(int)state, (uid_t)user, inode};
        given = FOUND;
    }
    fclose(table);
    return given;
}

static answer search_proc(const end *own, const end *other, socket_facts *found_out) {
    answer four = ABSENT;
    if (own->family == AF_INET) four = search_table("/proc/net/tcp", AF_INET, own, other, found_out);
    if (four == FOUND) return FOUND;
    answer six = search_table("/proc/net/tcp6", AF_INET6, own, other, found_out);
    return six == NO_ANSWER ? four : six; /* a machine without IPv6 has no such file */
}

/* ----------------------------------------------------------------------------------------------- asking */

/* Used if the routing table does not answer: a socket can be bound only to an address of this host (unless the
 * system is configured to allow all, net.ipv4.ip_nonlocal_bind). */
static bool can_be_taken(const end *e) {
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_scope_id = e->scope};
    int fd = socket(e->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memcpy(&four.sin_addr, e->address, sizeof four.sin_addr);
    memcpy(&six.sin6_addr, e->address, sizeof six.sin6_addr);
    bool taken = e->family == AF_INET ? bind(fd, (struct sockaddr *)&four, sizeof four) == 0
                                      : bind(fd, (struct sockaddr *)&six, sizeof six) == 0;
    if (fd >= 0) close(fd);
    return taken;
}

static bool is_connected(int fd) {
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && info.tcpi_state == ESTABLISHED;
}

tutti_store_peer tutti_store_peers_look(tutti_store_peers *peers, int fd, const struct sockaddr_storage *address,
                                        uid_t *user_out) {
    struct sockaddr_storage here;
    socklen_t bytes = sizeof here;
    end peer, own;
    socket_facts found = {0};
    if (getsockname(fd, (struct sockaddr *)&here, &bytes) != 0) return TUTTI_STORE_PEER_GONE;
    end_of(address, &peer);
    end_of(&here, &own);
    bool tells = peers->diag_fd >= 0 || peers->proc;
    answer given = ask_diag(peers, &peer, &own, &found);
    if (given == NO_ANSWER && tells) given = search_proc(&peer, &own, &found);
    if (given == FOUND && found.state == ESTABLISHED) {
        *user_out = found.user;
        return found.user == geteuid() || found.user == 0 ? TUTTI_STORE_PEER_OWN : TUTTI_STORE_PEER_OTHER;
    }
    answer local = ask_route(peers, &peer);
    if (local == NO_ANSWER) local = can_be_taken(&peer) ? FOUND : ABSENT;
    if (local == ABSENT) return TUTTI_STORE_PEER_REMOTE;
    if (!tells) return TUTTI_STORE_PEER_UNKNOWN;
    return given == ABSENT && is_connected(fd) ? TUTTI_STORE_PEER_HIDDEN : TUTTI_STORE_PEER_GONE;
}

/* A source that reports other sockets must also report the listening one. */
static bool is_listener(answer given, const socket_facts *found, uint64_t inode) {
    return given == FOUND && found->state == LISTENS && found->inode == inode;
}

static tutti_status try_sources(tutti_store_peers *peers, int listen_fd) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    struct stat status;
    end own;
    socket_facts found = {0};
    if (getsockname(listen_fd, (struct sockaddr *)&address, &bytes) != 0 || fstat(listen_fd, &status) != 0)
        return tutti_fail_errno(errno, "cannot inspect the store's socket");
#ifdef SO_BINDTOIFINDEX /* Linux 5.0 */
    bytes = sizeof peers->device;
    if (getsockopt(listen_fd, SOL_SOCKET, SO_BINDTOIFINDEX, &peers->device, &bytes) != 0) peers->device = 0;
#endif
    end_of(&address, &own);
    const end none = {.family = own.family};
    if (is_listener(ask_diag(peers, &own, &none, &found), &found, status.st_ino)) return TUTTI_OK;
    if (peers->diag_fd >= 0) close(peers->diag_fd);
    peers->diag_fd = -1;
    peers->proc = is_listener(search_proc(&own, &none, &found), &found, status.st_ino);
    tutti_log(TUTTI_LOG_INFO, "store: %s",
              peers->proc ? "the system reports the users of connections only in /proc/net/tcp, which takes longer"
                          : "the system does not report the users of connections: all users of this host may connect");
    return TUTTI_OK;
}

tutti_status tutti_store_peers_open(int listen_fd, tutti_store_peers **peers_out) {
    tutti_store_peers *peers;
    TUTTI_TRY(tutti_calloc(1, sizeof *peers, &peers));
    peers->diag_fd = open_netlink(NETLINK_SOCK_DIAG);
    peers->route_fd = open_netlink(NETLINK_ROUTE);
    tutti_status status = try_sources(peers, listen_fd);
    if (status != TUTTI_OK) tutti_store_peers_close(peers);
    else *peers_out = peers;
    return status;
}

void tutti_store_peers_close(tutti_store_peers *peers) {
    if (peers == NULL) return;
    if (peers->diag_fd >= 0) close(peers->diag_fd);
    if (peers->route_fd >= 0) close(peers->route_fd);
    free(peers);
}
