/*
 * libtutti_verbs.so: the table that the host receives (rdma.h).
 */
#include <pthread.h>

#include "rdma/host.h"
#include "rdma/stream.h"

static tutti_status check(void) {
    const tutti_rdma_port *ports;
    int nports;
    return tutti_rdma_devices_get(&ports, &nports);
}

static void forked(void) {
    tutti_devices_forked();
    tutti_rdma_memory_forked();
}

__attribute__((visibility("default"))) tutti_status tutti_module_start(const tutti_module_host *caller,
                                                                       const tutti_module_calls **calls_out);

tutti_status tutti_module_start(const tutti_module_host *caller, const tutti_module_calls **calls_out) {
    static tutti_rdma_module calls = {.head.version = TUTTI_MODULE_VERSION,
                                      .check = check,
                                      .ask = tutti_rdma_memory_ask,
                                      .forget_memory = tutti_rdma_memory_forget,
                                      .describe = tutti_rdma_devices_describe};
    tutti_rdma_pipe_calls(&calls);
    if (caller->version == TUTTI_MODULE_VERSION && tutti_rdma_host == NULL) pthread_atfork(NULL, NULL, forked);
    if (caller->version == TUTTI_MODULE_VERSION)
        tutti_rdma_host = caller; /* else the caller detects the difference, and makes no call */
    *calls_out = &calls.head;
    return TUTTI_OK;
}
