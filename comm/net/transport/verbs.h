/*
 * Calls of the transport "verbs" beyond its table, for tests and measurements.
 */
#ifndef TUTTI_VERBS_H
#define TUTTI_VERBS_H

#include "comm/net/transport/transport.h"
#include "rdma/rdma.h"

/* `pipe` must be of this transport. */
const tutti_rdma_counters *tutti_verbs_counters(const tutti_pipe *pipe);

#endif
