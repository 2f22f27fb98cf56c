/*
 * How near an adapter is to a CPU and to a GPU, read from /sys: NUMA nodes and PCI switches. Plain code, without
 * ibverbs.
 */
#ifndef TUTTI_RDMA_NEAR_H
#define TUTTI_RDMA_NEAR_H

#include <stdbool.h>

/* An adapter whose node is not known counts as one step away. */
enum { TUTTI_RDMA_NEAR_SAME_SWITCH = 5, TUTTI_RDMA_NEAR_SAME_NODE = 10, TUTTI_RDMA_NEAR_UNKNOWN = 20 };

/* The kernel's distance from the adapter's NUMA node to the node of `cpu`: 10 is the same node, larger is farther.
 * `root` is "" or, for tests, a folder that holds a copy of /sys. */
int tutti_rdma_near_distance(const char *root, const char *adapter, int cpu);
/* Returns whether adapter and GPU are behind one PCI bridge, so that data between them need not pass the CPU. That
 * counts as nearer than any node. `gpu`: PCI address. */
bool tutti_rdma_near_shares_switch(const char *root, const char *adapter, const char *gpu);

#endif
