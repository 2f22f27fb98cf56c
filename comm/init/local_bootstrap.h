/*
 * Bootstrap of the ranks of a host: each connects to the leader over an abstract UNIX socket (SOCK_SEQPACKET).
 *
 *   rank r -> leader   hello    { rank, nonce }
 *   leader -> rank r   proof    { nonce, MAC(key, "0", both nonces) }   the listening process knows the key
 *   rank r -> leader   entry    { MAC(key, "r", both nonces), rank }    with the descriptor of its heap
 *   leader -> rank r   message                                          with the descriptor of the segment
 *   rank r -> leader   ready                                            its member and page are filled in
 *   leader -> rank r   messages                                         with the descriptors of all heaps, some in each
 *
 * The key is the job's secret; without a secret it is the random nonce of the place. The MACs also cover the name
 * of the leader's socket, so a third process cannot relay them between a rank and the leader, and the
 * communicator's prefix, so a rank that was directed to the leader of another communicator is refused. The other
 * side must have the uid of this process, unless TUTTI_OTHER_USERS and a secret allow other users. A message or a
 * `ready` may carry an error instead; the leader passes it on to all ranks of the host.
 */
#ifndef TUTTI_LOCAL_H
#define TUTTI_LOCAL_H

#include "bootstrap/base/deadline.h"
#include "bootstrap/store/secret.h"
#include "comm/init/peer_table.h"
#include "comm/shm/segment.h"

/* State of a rank of the host at the leader, until all descriptors are handed out. */
typedef struct tutti_local_peer {
    int connection, heap_fd;
    int pidfd; /* opened only if the wait for the rank takes long */
} tutti_local_peer;

typedef struct tutti_local_bootstrap {
    const tutti_place *place;
    const char *prefix; /* prefix of the communicator's keys in the store */
    int rank, nranks;
    tutti_deadline *deadline;
    tutti_shm_segment *segment; /* one reference, which the caller of tutti_local_bootstrap_open takes over */
    int local_rank;             /* index of this rank among those of its host */
    /* Private to local_bootstrap.c and local_leader.c. */
    int listen_fd, connection; /* listen_fd: leader only; connection: other ranks only */
    uint8_t key[TUTTI_SECRET_BYTES];
    size_t key_bytes;
    bool others;             /* ranks of other users are accepted */
    int *ranks;              /* by local rank */
    tutti_local_peer *peers; /* leader only, by local rank */
    int64_t begin_ns;        /* time charged to the deadline when the bootstrap began */
    tutti_notice notice;     /* when to log the next notice about the rank that this one waits for */
} tutti_local_bootstrap;

/* Listens on a new abstract socket. */
tutti_status tutti_local_bootstrap_listen(char name_out[TUTTI_SOCKET_NAME_BYTES], int *fd_out);

/* Every rank gets the segment and its local rank. The caller has filled in place, prefix, rank, nranks and deadline; on
 * the leader also the peer table and listen_fd, which are NULL and -1 on the others. */
tutti_status tutti_local_bootstrap_open(tutti_local_bootstrap *local, const tutti_peer_table *table);
/* Each other rank reports to the leader that its member is filled in, or its error; the leader waits for all. */
tutti_status tutti_local_bootstrap_ready(tutti_local_bootstrap *local, tutti_status status);
/* Every rank maps the heaps of all: `members`, by local rank. `status` is that of the leader; if it is an error,
 * every rank gets it. On failure, members that were not reached stay NULL. */
tutti_status tutti_local_bootstrap_share(tutti_local_bootstrap *local, tutti_status status, tutti_member *members);
/* Must be called in any case, even after a failure. */
void tutti_local_bootstrap_close(tutti_local_bootstrap *local);

#endif
