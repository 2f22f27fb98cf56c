/*
 * Hosts for tests: network namespaces, each with one interface eth0 at 10.77.0.<host + 1>/24, joined by a bridge in a
 * namespace of its own (the switch). The machine's own network is not touched.
 *
 * Namespaces have no names: they live as long as the file descriptors here and the processes in them, so a test that
 * is killed leaves nothing behind. Needs Linux, the right to make namespaces (root, or what with_hosts arranges),
 * iproute2, and for lost packets nftables or iptables.
 */
#ifndef TUTTI_TESTS_NETNS_H
#define TUTTI_TESTS_NETNS_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/tutti.h>

#define NETNS_HOSTS_MAX 16
#define NETNS_SWITCH    (-1) /* in place of a host: the namespace of the bridge */

typedef struct netns netns;

typedef struct netns_options {
    int nhosts;
    const char *rate;       /* of each host's link, each way, as tc writes it ("1gbit"); NULL: unlimited */
    const char *flow_rate;  /* of each TCP connection, each way, as clouds limit it; NULL: no limit; needs nftables */
    const char *congestion; /* congestion control of TCP on all hosts; NULL: the machine's */
    int delay_ms;           /* of each packet, one way; below 1000; replaces the switch: no rate, no set_link */
    double loss;            /* share of the packets that get lost on their way into a host; 0 to 1 */
    bool decoys;            /* more interfaces, equal on all hosts, that connect no hosts: bridge docker0 and tap0 */
} netns_options;

/* NULL, or one line with the reason why this system does not permit such a network, for a skip. */
const char *netns_refused(const netns_options *options);

tutti_status netns_create(const netns_options *options, netns **net_out);
void netns_destroy(netns *net); /* NULL is allowed; processes in the namespaces keep them alive */

/* "10.77.0.1" for host 0 and so on. */
const char *netns_address(int host, char text[16]);

/* Moves the calling thread (and what it starts from now on) to that host. */
tutti_status netns_enter(const netns *net, int host);

/* Runs a shell command there; fails with its output unless it exits with 0. */
tutti_status netns_shell(const netns *net, int host, const char *format, ...) TUTTI_PRINTF(3, 4);

/* Unplugs a host's cable from the switch, or plugs it in again. */
tutti_status netns_set_link(const netns *net, int host, bool up);

/* Bytes, headers included, that the host has sent over eth0 since it was made. */
tutti_status netns_bytes_sent(const netns *net, int host, uint64_t *bytes_out);

#endif
