/*
 * Which users of its host the store serves, and how it identifies them: over every way to connect, and with what this
 * system reports.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/store/store_peer.h"
#include "tests/support/stores/store_clients.h"
#include "tests/support/stores/wire.h"

TestSuite(store_users, .timeout = 60);

enum { NOBODY = 65534 };

static bool become_nobody(void) {
    return setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0;
}

/* Root of a user namespace may be the only user there. */
static void need_another_user(void) {
    pid_t child = fork();
    if (child == 0) _exit(become_nobody() ? 0 : 1);
    if (clients_end(child) != 0) cr_skip_test("needs root, to become another user");
}

/* From here on the log goes to a file; returns its descriptor. */
static int catch_log(void) {
    int fd = memfd_create("log", MFD_CLOEXEC);
    cr_assert(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    return fd;
}

static const char *log_of(int fd, int *lines_out) {
    static char text[1 << 16];
    ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
    text[bytes > 0 ? bytes : 0] = '\0';
    *lines_out = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) (*lines_out)++;
    return text;
}

static int ncalls = 1;

/* Returns 0 if all calls were refused, 10 if one was served. */
static int call_as_nobody(void) {
    if (!become_nobody()) return 1;
    for (int i = 0; i < ncalls; i++) {
        int fd = clients_call("127.0.0.1", clients_port);
        if (fd < 0) return 2;
        wire_send(fd, BYTES(VALIDATE "\15"
                                     "ping"));
        char reply[4];
        bool served = wire_receive(fd, reply, sizeof reply);
        close(fd);
        if (served) {
            clients_say_ready();
            return 10;
        }
    }
    clients_say_ready();
    return 0;
}

Test(store_users, processes_of_other_users_are_refused_with_a_line_in_the_log) {
    need_another_user();
    int log = catch_log(), lines;
    char wanted[64];
    clients_serve();
    cr_assert_eq(clients_end(clients_begin(0, call_as_nobody)), 0, "another user is served");
    const char *text = log_of(log, &lines);
    snprintf(wanted, sizeof wanted, "to port %d ", clients_port);
    cr_assert_eq(lines, 1, "%s", text);
    cr_assert(strstr(text, wanted) != NULL && strstr(text, "user 65534, not 0") != NULL, "%s", text);
    ncalls = 1000;
    cr_assert_eq(clients_end(clients_begin(0, call_as_nobody)), 0, "another user is served");
    text = log_of(log, &lines);
    cr_assert_leq(lines, 10, "%s", text);
    wire_port = clients_port;
    cr_assert_eq(clients_mean_well(wire_join()), 0, "a process of this user is not served");
    tutti_store_server_stop(clients_server);
}

Test(store_users, with_a_secret_other_users_may_be_let_in) {
    need_another_user();
    setenv("TUTTI_OTHER_USERS", "1", 1);
    tutti_settings_reload();
    clients_serve();
    cr_assert_eq(clients_end(clients_begin(0, call_as_nobody)), 0, "another user is served without a secret");
    tutti_store_server_stop(clients_server);
    setenv("TUTTI_SECRET", "not for others", 1);
    tutti_settings_reload();
    clients_serve();
    cr_assert_eq(clients_end(clients_begin(0, call_as_nobody)), 10, "another user is not served");
    tutti_store_server_stop(clients_server);
}

/* ------------------------------------------------------------------------------------------ how that is known */

typedef struct way {
    const char *what, *from, *to; /* "": the system chooses */
    bool device;                  /* valid on eth0 only */
} way;

static const way ways[] = {{"IPv4", "", "127.0.0.1", false},
                           {"IPv4 from another address of its own", "127.0.0.2", "127.0.0.1", false},
                           {"IPv4 from an interface's address", "10.77.0.1", "127.0.0.1", false},
                           {"IPv4 to an interface's address", "", "10.77.0.1", false},
                           {"IPv4 in an IPv6 socket", "", "::ffff:127.0.0.1", false},
                           {"IPv6", "", "::1", false},
                           {"IPv6 to an interface's address", "", "fd77::1", false},
                           {"IPv6 on a link", "", "fe80::77", true}};

static socklen_t address_of(const char *text, int at_port, bool device, struct sockaddr_storage *address) {
    struct sockaddr_in *four = (struct sockaddr_in *)address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)at_port);
        return sizeof *four;
    }
    inet_pton(AF_INET6, text, &six->sin6_addr);
    six->sin6_family = AF_INET6;
    six->sin6_port = htons((uint16_t)at_port);
    if (device) six->sin6_scope_id = if_nametoindex("eth0");
    return sizeof *six;
}

static int take_a_way(const way *w, int to_port) {
    struct sockaddr_storage from, to;
    socklen_t bytes = address_of(w->to, to_port, w->device, &to);
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*w->from != '\0' && bind(fd, (struct sockaddr *)&from, address_of(w->from, 0, false, &from)) != 0) return -1;
    if (connect(fd, (struct sockaddr *)&to, bytes) == 0) return fd;
    close(fd);
    return -1;
}

static tutti_store_peer accept_one(tutti_store_peers *peers, int listen_fd, int *fd_out, uid_t *user_out) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    *fd_out = accept4(listen_fd, (struct sockaddr *)&address, &bytes, SOCK_CLOEXEC);
    cr_assert(*fd_out >= 0);
    return tutti_store_peers_look(peers, *fd_out, &address, user_out);
}

static int listen_fd, listen_port;

static int take_all_ways_as_nobody(void) {
    if (!become_nobody()) return 1;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (take_a_way(&ways[i], listen_port) < 0) return 2;
    clients_say_ready();
    pause();
    return 0;
}

static int come_from_elsewhere(void) {
    int fd = clients_call("10.77.0.1", listen_port);
    clients_say_ready();
    pause();
    return fd;
}

static void check_all_ways(void) {
    tutti_store_peers *peers;
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    uid_t user = 0;
    int fd;
    cr_assert_eq(tutti_store_listen(NULL, 0, &listen_fd), TUTTI_OK, "%s", tutti_last_error());
    fcntl(listen_fd, F_SETFL, 0); /* accept waits */
    getsockname(listen_fd, (struct sockaddr *)&address, &bytes);
    listen_port = ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    cr_assert_eq(tutti_store_peers_open(listen_fd, &peers), TUTTI_OK, "%s", tutti_last_error());
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int client = take_a_way(&ways[i], listen_port);
        cr_assert(client >= 0, "%s: %s", ways[i].what, strerror(errno));
        cr_assert_eq(accept_one(peers, listen_fd, &fd, &user), TUTTI_STORE_PEER_OWN, "%s", ways[i].what);
        close(client);
        close(fd);
        client = take_a_way(&ways[i], listen_port);
        close(client);
        usleep(1000);
        cr_assert_eq(accept_one(peers, listen_fd, &fd, &user), TUTTI_STORE_PEER_GONE, "%s, closed", ways[i].what);
        close(fd);
    }
    pid_t nobody = clients_begin(0, take_all_ways_as_nobody);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        user = 0;
        cr_assert_eq(accept_one(peers, listen_fd, &fd, &user), TUTTI_STORE_PEER_OTHER, "%s", ways[i].what);
        cr_assert_eq(user, NOBODY, "%s: %u", ways[i].what, user);
    }
    clients_stop(nobody);
    pid_t stranger = clients_begin(1, come_from_elsewhere);
    cr_assert_eq(accept_one(peers, listen_fd, &fd, &user), TUTTI_STORE_PEER_REMOTE);
    clients_stop(stranger);
    tutti_store_peers_close(peers);
}

static void enter_a_host_with_ipv6(void) {
    need_another_user();
    if (netns_create(&(netns_options){.nhosts = 2}, &clients_network) != TUTTI_OK)
        cr_skip_test("%s", tutti_last_error());
    cr_assert_eq(netns_enter(clients_network, 0), TUTTI_OK, "%s", tutti_last_error());
    if (netns_shell(clients_network, 0,
                    "ip address add fd77::1/64 dev eth0 nodad && ip address add fe80::77/64 dev eth0 nodad") !=
        TUTTI_OK)
        cr_skip_test("%s", tutti_last_error());
}

Test(store_users, the_kernel_reports_the_user_however_a_process_connects) {
    enter_a_host_with_ipv6();
    check_all_ways();
}

/* As in sandboxes that have no netlink: socket() of that family fails. */
static void refuse_netlink(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof steps / sizeof *steps, .filter = steps};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0, "%s", strerror(errno));
}

Test(store_users, without_netlink_the_user_is_read_from_proc) {
    enter_a_host_with_ipv6();
    refuse_netlink();
    int log = catch_log(), lines;
    setenv("TUTTI_LOG", "info", 1);
    tutti_settings_reload();
    check_all_ways();
    const char *text = log_of(log, &lines);
    cr_assert(strstr(text, "only in /proc/net/tcp") != NULL, "%s", text);
}

Test(store_users, where_the_user_is_unknown_all_are_let_in_and_the_log_says_so) {
    need_another_user();
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/proc", "tmpfs", 0, NULL) != 0)
        cr_skip_test("no mounts of its own: %s", strerror(errno));
    refuse_netlink();
    int log = catch_log(), lines;
    setenv("TUTTI_LOG", "info", 1);
    tutti_settings_reload();
    clients_serve();
    cr_assert_eq(clients_end(clients_begin(0, call_as_nobody)), 10, "another user is refused");
    const char *text = log_of(log, &lines);
    cr_assert(strstr(text, "does not report the users") != NULL, "%s", text);
    tutti_store_server_stop(clients_server);
}
