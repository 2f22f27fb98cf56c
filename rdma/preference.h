/*
 * Which adapter, and which of a port's addresses (GIDs), to prefer. Plain code, without ibverbs, so that tests can call
 * it with any table and any folder.
 *
 * An Ethernet port has one GID per network address and protocol. Routers carry RoCE v2 with IPv4 most widely, so
 * that comes first; RoCE v1 does not leave the switch. InfiniBand needs no GID within a subnet: it uses the LID.
 */
#ifndef TUTTI_RDMA_PREFERENCE_H
#define TUTTI_RDMA_PREFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tutti_rdma_gid_type {
    TUTTI_RDMA_GID_IB,
    TUTTI_RDMA_GID_ROCE_V1,
    TUTTI_RDMA_GID_ROCE_V2
} tutti_rdma_gid_type;

typedef struct tutti_rdma_gid {
    int index; /* in the port's table */
    tutti_rdma_gid_type type;
    uint8_t raw[16];
} tutti_rdma_gid;

bool tutti_rdma_gid_is_ipv4(const tutti_rdma_gid *gid);
/* "RoCE v2, IPv4 10.0.0.1" */
void tutti_rdma_gid_text(const tutti_rdma_gid *gid, char *text, size_t capacity);
/* Position in gids of the GID to use, with the reason; -1: none fits, with the reason. wanted_index < 0: choose. */
int tutti_rdma_gid_choose(const tutti_rdma_gid *gids, int ngids, int wanted_index, char *why, size_t capacity);

/* ------------------------------------------------------------------------------------------------ distances
 * How near an adapter is to a CPU and to a GPU, read from /sys: NUMA nodes and PCI switches.
 */

/* An adapter whose node is not known counts as one step away. */
enum { TUTTI_RDMA_NEAR_SAME_SWITCH = 5, TUTTI_RDMA_NEAR_SAME_NODE = 10, TUTTI_RDMA_NEAR_UNKNOWN = 20 };

/* The kernel's distance from the adapter's NUMA node to the node of `cpu`: 10 is the same node, larger is farther.
 * `root` is "" or, for tests, a folder that holds a copy of /sys. */
int tutti_rdma_near_distance(const char *root, const char *adapter, int cpu);
/* Returns whether adapter and GPU are behind one PCI bridge, so that data between them need not pass the CPU. That
 * counts as nearer than any node. `gpu`: PCI address. */
bool tutti_rdma_near_shares_switch(const char *root, const char *adapter, const char *gpu);

#endif
