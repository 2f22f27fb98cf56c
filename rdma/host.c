/*
 * The functions that the host provides. See host.h.
 */
#include "rdma/host.h"

const tutti_module_host *tutti_rdma_host;
