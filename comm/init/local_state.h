/*
 * A local bootstrap in progress, shared by local_bootstrap.c (both sides), local_leader.c (accepting the other ranks)
 * and local_wire.c (messages with descriptors attached). local_bootstrap.h describes the messages.
 */
#ifndef TUTTI_LOCAL_STATE_H
#define TUTTI_LOCAL_STATE_H

#include "bootstrap/base/hmac.h"
#include "comm/init/local_bootstrap.h"

#define TUTTI_LOCAL_NONCE_BYTES 16
#define TUTTI_LOCAL_TEXT_BYTES  1024

typedef struct tutti_local_hello {
    int32_t rank, unused;
    uint8_t nonce[TUTTI_LOCAL_NONCE_BYTES];
} tutti_local_hello;

typedef struct tutti_local_proof {
    uint8_t nonce[TUTTI_LOCAL_NONCE_BYTES];
    uint8_t mac[TUTTI_SHA256_BYTES];
} tutti_local_proof;

typedef struct tutti_local_entry {
    uint8_t mac[TUTTI_SHA256_BYTES];
    int32_t rank, unused;
} tutti_local_entry;

/* Sent by the leader, and to it as `ready`. */
typedef struct tutti_local_message {
    int32_t status, unused;
    char text[TUTTI_LOCAL_TEXT_BYTES]; /* error text if status is not TUTTI_OK */
} tutti_local_message;

static inline bool tutti_local_leads(const tutti_local_bootstrap *c) {
    return c->rank == c->place->leader;
}

static inline int tutti_local_nmembers(const tutti_local_bootstrap *c) {
    return c->place->neighbours;
}

/* ------------------------------------------------------------------------------------------- local_wire.c */

/* Most descriptors attached to one message; the kernel allows 253. */
#define TUTTI_LOCAL_WIRE_FDS 64

/* Waits while too many descriptors are in flight. TUTTI_ERR_PEER_DIED: the other side has closed the connection. */
tutti_status tutti_local_wire_send(int fd, const void *data, size_t bytes, const int *fds, int nfds,
                                   tutti_deadline *deadline);
/* Stores at most `capacity` descriptors and their number, and closes any others. */
tutti_status tutti_local_wire_receive(int fd, void *data, size_t bytes, int *fds_out, int capacity, int *nfds_out,
                                      tutti_deadline *deadline, const char *what);

/* Connects to the abstract socket `name`. Fails with TUTTI_ERR_PEER_DIED if no process listens on it. */
tutti_status tutti_local_wire_connect(const char *name, tutti_deadline *deadline, int *fd_out);
/* Creates an abstract socket and listens on it. */
tutti_status tutti_local_wire_listen(const char *name, int *fd_out);
/* Whether the other side is a process of this user. `pid_out`: its pid in this pid namespace; 0 if unknown. */
bool tutti_local_wire_is_same_user(int fd, int64_t *pid_out);

void tutti_local_mac(const tutti_local_bootstrap *c, char side, const tutti_local_hello *h,
                     const uint8_t nonce[TUTTI_LOCAL_NONCE_BYTES], uint8_t mac[TUTTI_SHA256_BYTES]);
tutti_status tutti_local_fail_secret(int rank);
/* Fills in a message with `status`; if it is an error, with the error text of this thread. */
void tutti_local_fill_message(tutti_local_message *w, tutti_status status);

/* ----------------------------------------------------------------------------------------- local_leader.c */

/* Fills in c->ranks: the ranks of this host, in ascending order. Both sides. */
tutti_status tutti_local_list_ranks(tutti_local_bootstrap *c, const tutti_peer_table *table);
/* Creates the segment and accepts all other ranks of this host. */
tutti_status tutti_local_open_leader(tutti_local_bootstrap *c, const tutti_peer_table *table);
tutti_status tutti_local_fail_death(const tutti_local_bootstrap *c, const tutti_peer_table *table, int local_rank);

#endif
