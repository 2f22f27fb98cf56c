/*
 * Connections between processes that may use only RDMA. See verbs_only.h.
 */
#include "comm/net/verbs_only.h"

uint32_t tutti_verbs_only_bit(void) {
    for (int i = 0; tutti_transports[i] != NULL; i++)
        if (tutti_transport_can(tutti_transports[i], TUTTI_TRANSPORT_VERBS)) return UINT32_C(1) << i;
    return 0;
}

static bool is_set(const tutti_peer *peer) {
    return peer != NULL && atomic_load_explicit(&peer->verbs_only, memory_order_acquire);
}

uint32_t tutti_verbs_only_mask(const tutti_peer *peer) {
    return is_set(peer) ? tutti_verbs_only_bit() : UINT32_MAX;
}

tutti_status tutti_verbs_only_admit(const tutti_peer *peer, tutti_pipe *pipe) {
    if (!is_set(peer) || tutti_transport_can(pipe->transport, TUTTI_TRANSPORT_VERBS)) return TUTTI_OK;
    tutti_status status =
        tutti_fail(TUTTI_ERR_UNSUPPORTED, "only %s reaches host %s, but tutti_comm_init_rdma allows only RDMA: %s",
                   pipe->transport->name, peer->host, pipe->error);
    pipe->transport->close(pipe);
    return status;
}
