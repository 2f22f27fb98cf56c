/*
 * Which of a port's addresses (GIDs) to use. Plain code, without ibverbs, so that tests can call it with any table.
 *
 * An Ethernet port has one GID per network address and protocol. Routers carry RoCE v2 with IPv4 most widely, so
 * that comes first; RoCE v1 does not leave the switch. InfiniBand needs no GID within a subnet: it uses the LID.
 */
#ifndef TUTTI_RDMA_GID_H
#define TUTTI_RDMA_GID_H

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

#endif
