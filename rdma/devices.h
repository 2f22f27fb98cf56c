/*
 * The adapters of this machine, and the ports to use.
 *
 * By default these are the active ports of the adapter that is nearest to the CPU on which the first caller runs, and of those
 * as near and as fast; TUTTI_RDMA_DEVICE names others ("mlx5_0,mlx5_1:2"; a port named twice gets two lanes). They are
 * opened once, at first use, and stay open.
 */
#ifndef TUTTI_RDMA_DEVICES_H
#define TUTTI_RDMA_DEVICES_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>

#include <tutti/tutti.h>

#include "rdma/gid.h"

enum { TUTTI_RDMA_DEVICES_PORTS = 4 }; /* used at once, at most; also lanes of a pipe */

typedef struct tutti_rdma_adapter {
    char name[64];
    struct ibv_context *context;
    struct ibv_pd *domain;
    struct ibv_device_attr attributes;
    int index; /* 0..TUTTI_RDMA_DEVICES_PORTS-1 among those that are open */
} tutti_rdma_adapter;

typedef struct tutti_rdma_port {
    tutti_rdma_adapter *adapter;
    uint8_t number; /* from 1 on */
    bool ethernet;  /* else InfiniBand */
    uint16_t lid;
    enum ibv_mtu mtu;
    uint32_t max_message_bytes;
    int speed_mbit, distance;
    tutti_rdma_gid gid;
    char why[192]; /* this GID */
} tutti_rdma_port;

/* The ports to use, nearest first; valid until the process ends. TUTTI_ERR_UNSUPPORTED: there is none, and why. */
tutti_status tutti_rdma_devices_get(const tutti_rdma_port **ports_out, int *nports_out);
/* In a forked child: what the parent has opened is not for it, so the child opens its own. */
void tutti_devices_forked(void);
/* One line per port: in use or not, and why. */
void tutti_rdma_devices_describe(char *text, size_t capacity);

#endif
