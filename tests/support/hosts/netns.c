/*
 * Network namespaces: see netns.h.
 *
 * A namespace is made by a child that leaves ours and waits until its parent holds the namespace by a file
 * descriptor. Interfaces are set up by ip, tc and nft (or iptables), run inside of it. Invariant: no call changes the
 * namespace of the calling thread, except netns_enter.
 */
#include "tests/support/hosts/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "tests/support/hosts/netns_relay.h"

#define COMMAND_BYTES 2048
#define OUTPUT_BYTES  1024
#define FLOW_CLASSES  256 /* more than the connections of a test, each of which takes the next one */

struct netns {
    int nhosts;
    pid_t relay;                  /* replaces the switch if there is a delay; else 0 */
    int fds[1 + NETNS_HOSTS_MAX]; /* the switch's, then the hosts' */
};

static int fd_of(const netns *net, int host) {
    return net->fds[1 + host];
}

const char *netns_address(int host, char text[16]) {
    snprintf(text, 16, "10.77.0.%u", (unsigned char)(host + 1));
    return text;
}

tutti_status netns_enter(const netns *net, int host) {
    if (setns(fd_of(net, host), CLONE_NEWNET) == 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_SYSTEM, "cannot enter the network namespace of host %d: %s", host, strerror(errno));
}

/* ------------------------------------------------------------------------------------------- commands */

static _Noreturn void be_shell(int namespace_fd, int output, const char *command) {
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (setns(namespace_fd, CLONE_NEWNET) != 0) _exit(126);
    dup2(null, 0);
    dup2(output, 1);
    dup2(output, 2);
    execl("/bin/sh", "sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; eval \"$0\"", command, (char *)NULL);
    _exit(127);
}

/* Reads the whole output; keeps the beginning, without the line's end. */
static void read_output(int fd, char *text) {
    size_t used = 0;
    for (;;) {
        char rest[256];
        size_t room = OUTPUT_BYTES - 1 - used;
        ssize_t got = room > 0 ? read(fd, text + used, room) : read(fd, rest, sizeof rest);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        if (room > 0) used += (size_t)got;
    }
    text[used] = '\0';
    for (; used > 0 && text[used - 1] == '\n'; used--) text[used - 1] = '\0';
}

static tutti_status run_shell(int namespace_fd, const char *command, char output[OUTPUT_BYTES]) {
    int ends[2], wait_status;
    if (pipe2(ends, O_CLOEXEC) != 0) return tutti_fail(TUTTI_ERR_SYSTEM, "pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) be_shell(namespace_fd, ends[1], command);
    close(ends[1]);
    if (child > 0) read_output(ends[0], output);
    close(ends[0]);
    if (child < 0) return tutti_fail(TUTTI_ERR_SYSTEM, "fork: %s", strerror(errno));
    while (waitpid(child, &wait_status, 0) < 0)
        if (errno != EINTR) return tutti_fail(TUTTI_ERR_SYSTEM, "waiting for a shell: %s", strerror(errno));
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_SYSTEM, "'%s' failed: %s", command, output);
}

tutti_status netns_shell(const netns *net, int host, const char *format, ...) {
    char command[COMMAND_BYTES], output[OUTPUT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    return run_shell(fd_of(net, host), command, output);
}

tutti_status netns_set_link(const netns *net, int host, bool up) {
    return netns_shell(net, NETNS_SWITCH, "ip link set port%d %s", host, up ? "up" : "down");
}

tutti_status netns_bytes_sent(const netns *net, int host, uint64_t *bytes_out) {
    char output[OUTPUT_BYTES];
    unsigned long long bytes;
    TUTTI_TRY(run_shell(fd_of(net, host), "sed -n 's/^ *eth0: *//p' /proc/self/net/dev", output));
    if (sscanf(output, "%*u %*u %*u %*u %*u %*u %*u %*u %llu", &bytes) != 1)
        return tutti_fail(TUTTI_ERR_DATA, "'%s' contains no count of bytes", output);
    *bytes_out = bytes;
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- making */

/* A new namespace that lives as long as the descriptor. */
static tutti_status make_namespace(int *fd_out) {
    int made[2], leave[2];
    char path[64], failed = 0;
    if (pipe2(made, O_CLOEXEC) != 0) return tutti_fail(TUTTI_ERR_SYSTEM, "pipe: %s", strerror(errno));
    if (pipe2(leave, O_CLOEXEC) != 0) {
        close(made[0]), close(made[1]);
        return tutti_fail(TUTTI_ERR_SYSTEM, "pipe: %s", strerror(errno));
    }
    pid_t child = fork();
    if (child == 0) {
        failed = unshare(CLONE_NEWNET) == 0 ? 0 : (char)errno;
        close(leave[1]);
        bool told = write(made[1], &failed, 1) == 1;
        while (told && read(leave[0], &failed, 1) < 0 && errno == EINTR) continue;
        _exit(0);
    }
    close(made[1]), close(leave[0]);
    tutti_status status = TUTTI_OK;
    if (child < 0 || read(made[0], &failed, 1) != 1)
        status = tutti_fail(TUTTI_ERR_SYSTEM, "cannot fork a process for a namespace: %s", strerror(errno));
    else if (failed != 0)
        status = tutti_fail(TUTTI_ERR_UNSUPPORTED, "network namespaces are not permitted here: %s", strerror(failed));
    snprintf(path, sizeof path, "/proc/%d/ns/net", child);
    if (status == TUTTI_OK && (*fd_out = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        status = tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    close(made[0]), close(leave[1]); /* the child ends */
    if (child > 0) waitpid(child, NULL, 0);
    return status;
}

/* Makes a cable at the switch and moves its other end to the host, whose namespace our descriptor names. */
static tutti_status plug_in(const netns *net, int host) {
    return netns_shell(net, NETNS_SWITCH,
                       "ip link add port%d type veth peer name eth0 netns /proc/%d/fd/%d && "
                       "ip link set port%d master switch up",
                       host, getpid(), fd_of(net, host), host);
}

static tutti_status set_up_host(const netns *net, const netns_options *options, int host) {
    char address[16];
    TUTTI_TRY(netns_shell(net, host, "ip link set lo up && ip address add %s/24 dev eth0 && ip link set eth0 up",
                          netns_address(host, address)));
    if (options->congestion != NULL)
        TUTTI_TRY(netns_shell(net, host, "echo '%s' >/proc/sys/net/ipv4/tcp_congestion_control", options->congestion));
    return TUTTI_OK;
}

/* Both directions: what the host sends, and what the switch sends to it. */
static tutti_status limit_rate(const netns *net, const char *rate, int host) {
    const char *limit = "root tbf burst 256k latency 50ms rate";
    TUTTI_TRY(netns_shell(net, host, "tc qdisc add dev eth0 %s %s", limit, rate));
    return netns_shell(net, NETNS_SWITCH, "tc qdisc add dev port%d %s %s", host, limit, rate);
}

/* The direction from the host. Connections take classes in turn: by a hash, two of them sometimes shared one. */
static tutti_status limit_flows(const netns *net, const char *rate, int host) {
    return netns_shell(
        net, host,
        "tc qdisc add dev eth0 root handle 1: htb || exit\n"
        "for i in $(seq %d); do printf 'class add dev eth0 parent 1: classid 1:%%x htb rate %s burst 64k cburst 64k "
        "quantum 60000\\n' $i; done | tc -batch - || exit\n"
        "classes=$(for i in $(seq %d); do printf '%%d : 1:%%x, ' $i $i; done)\n"
        "nft \"table inet flows { chain out { type filter hook output priority 0; meta l4proto != tcp accept; "
        "ct mark 0 ct mark set numgen inc mod %d offset 1; meta priority set ct mark map { $classes }; }; }\"",
        FLOW_CLASSES, rate, FLOW_CLASSES, FLOW_CLASSES);
}

/* Packets are cut to the link's size before they are sent, else one loss would lose 64 KiB at once. */
static tutti_status lose_packets(const netns *net, double share, int host) {
    TUTTI_TRY(netns_shell(net, NETNS_SWITCH, "ip link set port%d gso_max_segs 1", host));
    return netns_shell(net, host,
                       "ip link set eth0 gso_max_segs 1\n"
                       "if command -v nft; then nft 'table inet loss { chain in { type filter hook input priority 0; "
                       "iifname eth0 meta random < %lu drop; }; }'\n"
                       "else iptables -A INPUT -i eth0 -m statistic --mode random --probability %.9f -j DROP; fi",
                       (unsigned long)(share * 4294967295.0), share);
}

/* A bridge as container software makes it and a tap as virtual machines use it, with addresses that look usable. */
static tutti_status add_decoys(const netns *net, int host) {
    return netns_shell(net, host,
                       "ip link add docker0 type bridge && ip address add 172.17.0.1/16 dev docker0 && "
                       "ip link set docker0 up && ip tuntap add tap0 mode tap && "
                       "ip address add 192.168.122.%d/24 dev tap0 && ip link set tap0 up",
                       host + 1);
}

static tutti_status set_up(netns *net, const netns_options *options) {
    for (int host = NETNS_SWITCH; host < net->nhosts; host++) TUTTI_TRY(make_namespace(&net->fds[1 + host]));
    if (options->delay_ms > 0) TUTTI_TRY(netns_relay_start(&net->fds[1], net->nhosts, options->delay_ms, &net->relay));
    else TUTTI_TRY(netns_shell(net, NETNS_SWITCH, "ip link add switch type bridge && ip link set switch up"));
    for (int host = 0; host < net->nhosts; host++) {
        if (net->relay == 0) TUTTI_TRY(plug_in(net, host));
        TUTTI_TRY(set_up_host(net, options, host));
        if (options->rate != NULL) TUTTI_TRY(limit_rate(net, options->rate, host));
        if (options->flow_rate != NULL) TUTTI_TRY(limit_flows(net, options->flow_rate, host));
        if (options->loss > 0) TUTTI_TRY(lose_packets(net, options->loss, host));
        if (options->decoys) TUTTI_TRY(add_decoys(net, host));
    }
    return TUTTI_OK;
}

tutti_status netns_create(const netns_options *options, netns **net_out) {
    if (options->nhosts < 1 || options->nhosts > NETNS_HOSTS_MAX)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%d hosts are not 1 to %d", options->nhosts, NETNS_HOSTS_MAX);
    netns *net = malloc(sizeof *net);
    if (net == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory");
    net->nhosts = options->nhosts;
    net->relay = 0;
    for (int i = 0; i <= net->nhosts; i++) net->fds[i] = -1;
    tutti_status status = set_up(net, options);
    if (status != TUTTI_OK) netns_destroy(net);
    else *net_out = net;
    return status;
}

void netns_destroy(netns *net) {
    if (net == NULL) return;
    if (net->relay > 0) {
        kill(net->relay, SIGKILL);
        waitpid(net->relay, NULL, 0);
    }
    for (int i = 0; i <= net->nhosts; i++)
        if (net->fds[i] >= 0) close(net->fds[i]);
    free(net);
}

const char *netns_refused(const netns_options *options) {
    netns *net = NULL;
    if (netns_create(options, &net) != TUTTI_OK) return tutti_last_error();
    netns_destroy(net);
    return NULL;
}
