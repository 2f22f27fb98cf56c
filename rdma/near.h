/*
 * How near an adapter is to a CPU and to a GPU, as /sys tells it: by NUMA nodes and PCI switches. Plain code, without ibverbs.
 */
#ifndef TUTTI_RDMA_NEAR_H
#define TUTTI_RDMA_NEAR_H

#include <stdbool.h>

/* An adapter whose node is not known counts as one step away. */
enum { TUTTI_RDMA_NEAR_SAME_SWITCH = 5, TUTTI_RDMA_NEAR_SAME_NODE = 10, TUTTI_RDMA_NEAR_UNKNOWN = 20 };

/* The system's distance from the adapter's NUMA node to the node of `cpu`: 10 is the same one, more is farther. `root` is ""
 * or, for tests, a folder that holds a copy of /sys. */
int tutti_rdma_near_distance(const char *root, const char *adapter, int cpu);
/* Are adapter and GPU behind one PCI bridge, so that what goes from one to the other need not pass the CPU? That is nearer than
 * any node. `gpu`: PCI address. */
bool tutti_rdma_near_shares_switch(const char *root, const char *adapter, const char *gpu);

#endif
