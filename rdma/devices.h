/*
 * The adapters of this machine, and the ports to use.
 *
 * By default the ports in use are the active ports of the adapter nearest to the CPU on which the first caller
 * runs, and of adapters equally near and fast; TUTTI_RDMA_DEVICE names others ("mlx5_0,mlx5_1:2"; a port named
 * twice gets two lanes). Adapters are opened once, at first use, and stay open.
 */
#ifndef TUTTI_RDMA_DEVICES_H
#define TUTTI_RDMA_DEVICES_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "bootstrap/base/common.h"
#include "bootstrap/machine/module.h"
#include "rdma/preference.h"

/* The functions that the host provides to the module (bootstrap/machine/module.h), set when the module is started. */
extern const tutti_module_host *tutti_rdma_host;

/* The module's clock. */
static inline int64_t tutti_rdma_host_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * TUTTI_NS_PER_S + now.tv_nsec;
}

enum { TUTTI_RDMA_DEVICES_PORTS = 4 }; /* ports used at once, at most; also lanes of a pipe */

typedef struct tutti_rdma_adapter {
    char name[64];
    struct ibv_context *context;
    struct ibv_pd *domain;
    struct ibv_device_attr attributes;
    int index; /* 0..TUTTI_RDMA_DEVICES_PORTS-1 among the open adapters */
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
    char why[192]; /* why this GID was chosen */
} tutti_rdma_port;

/* The ports to use, nearest first; valid until the process ends. TUTTI_ERR_UNSUPPORTED: there is none, and why. */
tutti_status tutti_rdma_devices_get(const tutti_rdma_port **ports_out, int *nports_out);
/* Called in a forked child: it cannot use the adapters that the parent opened, and opens its own. */
void tutti_devices_forked(void);
/* One line per port: in use or not, and why. */
void tutti_rdma_devices_describe(char *text, size_t capacity);

#endif
