/*
 * RDMA or an error: what tutti_comm_init_rdma asks for, and what that means for connections that are made later.
 *
 * It is kept for pairs of processes (tutti_peer.verbs_only), not for communicators: messages of all communicators of two
 * processes share one connection, and communicators that are split off or made later are to be as safe as this one. Both
 * processes of a pair know it, since the call is collective.
 *
 * Invariant: once it is set, no connection that is not one of verbs is taken into use between the two processes.
 */
#ifndef TUTTI_VERBS_ONLY_H
#define TUTTI_VERBS_ONLY_H

#include "comm/shm/peer.h"
#include "comm/net/transport/transport.h"

/* Which transports may lead to that process: bits as in tutti_transports. NULL: any process. */
uint32_t tutti_verbs_only_mask(const tutti_peer *peer);
/* May this new pipe to it be used? It may be of another transport, if it was begun before. Closes it if not. */
tutti_status tutti_verbs_only_admit(const tutti_peer *peer, tutti_pipe *pipe);

#endif
