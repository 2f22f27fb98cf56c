/*
 * A slow network between namespaces, for kernels without netem: a process that reads each host's frames from a tap,
 * delays them and writes them to the destination host.
 */
#ifndef TUTTI_TESTS_NETNS_RELAY_H
#define TUTTI_TESTS_NETNS_RELAY_H

#include <sys/types.h>

#include <tutti/tutti.h>

/* Makes an interface eth0 (a tap) in each namespace, and relays until it is killed or its parent thread ends. */
tutti_status netns_relay_start(const int *namespace_fds, int nhosts, int delay_ms, pid_t *pid_out);

#endif
