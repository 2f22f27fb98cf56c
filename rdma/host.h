/*
 * The functions that the host provides to the module (bootstrap/machine/module.h), set when the module is started;
 * and the module's clock.
 */
#ifndef TUTTI_RDMA_HOST_H
#define TUTTI_RDMA_HOST_H

#include <time.h>

#include "bootstrap/base/common.h"
#include "bootstrap/machine/module.h"

extern const tutti_module_host *tutti_rdma_host;

static inline int64_t tutti_rdma_host_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * TUTTI_NS_PER_S + now.tv_nsec;
}

#endif
