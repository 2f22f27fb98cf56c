/*
 * First contact of the ranks of a host: over an abstract UNIX socket (SOCK_SEQPACKET) to their leader.
 *
 *   rank r -> leader   hello  { rank, nonce }
 *   leader -> rank r   proof  { nonce, MAC(key, "0", both nonces) }        who listens knows the key
 *   rank r -> leader   entry  { MAC(key, "r", both nonces), rank }         with its heap's descriptor
 *   leader -> rank r   word                                                with the segment's descriptor
 *   rank r -> leader   ready                                               its seat and page are there
 *   leader -> rank r   words                                               with all heaps' descriptors, some in each
 *
 * The key is the job's secret; without one it is the random nonce of the place. The MACs cover the name of the leader's socket,
 * too, so nobody can pass them on between a rank and the leader; and the communicator's prefix, so that a rank that was sent to
 * the leader of another communicator is refused. The other side must have this process's uid, unless
 * TUTTI_OTHER_USERS and a secret allow others. A word or a `ready` may carry an error instead; the leader passes it on to all.
 */
#ifndef TUTTI_LOCAL_H
#define TUTTI_LOCAL_H

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/notice.h"
#include "bootstrap/store/secret.h"
#include "comm/shm/segment.h"
#include "comm/init/peer_table.h"

/* What the leader has of a rank of its host until all is handed out. */
typedef struct tutti_local_peer {
    int connection, heap_fd;
    int pidfd; /* while it is awaited for long */
} tutti_local_peer;

typedef struct tutti_local_bootstrap {
    const tutti_place *place;
    const char *prefix; /* of the communicator's keys */
    int rank, nranks;
    tutti_deadline *deadline;
    tutti_shm_segment *segment; /* one reference, which whoever opened the contact takes over */
    int seat;         /* of this rank */
    /* For local_bootstrap.c. */
    int listen_fd, connection; /* of the leader; of the others */
    uint8_t key[TUTTI_SECRET_BYTES];
    size_t key_bytes;
    bool others;         /* ranks of other users are let in */
    int *ranks;          /* by seat */
    tutti_local_peer *peers; /* leader: by seat */
    int64_t begin_ns;    /* what the deadline had charged when it began */
    tutti_notice notice; /* of the rank that this one waits for */
} tutti_local_bootstrap;

/* Listens on a fresh abstract socket. */
tutti_status tutti_local_bootstrap_listen(char name_out[TUTTI_SOCKET_NAME_BYTES], int *fd_out);

/* Everybody gets the segment and a seat. place, prefix, rank, nranks and deadline are filled in; peer table and listen_fd on the leader, else
 * NULL and -1. */
tutti_status tutti_local_bootstrap_open(tutti_local_bootstrap *local, const tutti_peer_table *table);
/* The others tell the leader that their seats are filled in, or why not; the leader waits for all of them. */
tutti_status tutti_local_bootstrap_ready(tutti_local_bootstrap *local, tutti_status status);
/* All map all heaps: members[nseats]. `status`: the leader's, which everybody then gets. On failure, members that were not
 * reached stay NULL. */
tutti_status tutti_local_bootstrap_share(tutti_local_bootstrap *local, tutti_status status, tutti_member *members);
/* In any case, however far it went. */
void tutti_local_bootstrap_close(tutti_local_bootstrap *local);

#endif
