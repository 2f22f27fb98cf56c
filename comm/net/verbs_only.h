/*
 * Enforces RDMA or an error: the effect of tutti_comm_init_rdma (comm/api/rdma.c) on connections that are made later.
 *
 * The setting belongs to pairs of processes (tutti_peer.verbs_only), not to communicators: messages of all
 * communicators of two processes share one connection, and communicators that are split off or created later must
 * be as safe as this one. Both processes of a pair know the setting, since the call is collective.
 *
 * Invariant: once it is set, only connections over verbs are taken into use between the two processes.
 */
#ifndef TUTTI_VERBS_ONLY_H
#define TUTTI_VERBS_ONLY_H

#include "comm/net/transport/transport.h"
#include "comm/shm/peer.h"

/* The bit of the transport over verbs, as in tutti_transports; 0: there is none. */
uint32_t tutti_verbs_only_bit(void);
/* Transports that may be used to that process: bits as in tutti_transports. NULL: any process. */
uint32_t tutti_verbs_only_mask(const tutti_peer *peer);
/* Checks whether this new pipe to the process may be used; it may be of another transport if it was started before
 * the setting. Closes the pipe if not. */
tutti_status tutti_verbs_only_admit(const tutti_peer *peer, tutti_pipe *pipe);

#endif
