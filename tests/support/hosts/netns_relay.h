/*
 * A slow network between namespaces, for kernels without netem: a process that takes each host's frames from a tap, keeps
 * them for a while and gives them to the host that they are for.
 */
#ifndef TUTTI_TESTS_NETNS_RELAY_H
#define TUTTI_TESTS_NETNS_RELAY_H

#include <sys/types.h>

#include <tutti/tutti.h>

/* Makes an interface eth0 (a tap) in each of the namespaces, and relays until it is killed or its parent thread ends. */
tutti_status netns_relay_start(const int *namespace_fds, int nhosts, int delay_ms, pid_t *pid_out);

#endif
