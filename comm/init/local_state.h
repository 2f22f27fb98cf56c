/*
 * A first contact under way: between local_bootstrap.c (both sides) and local_leader.c (letting the others in). What is said is in
 * local_bootstrap.h.
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

/* From the leader, and as `ready` to it. */
typedef struct tutti_local_message {
    int32_t status, unused;
    char text[TUTTI_LOCAL_TEXT_BYTES]; /* where status is not TUTTI_OK */
} tutti_local_message;

static inline bool tutti_local_leads(const tutti_local_bootstrap *c) {
    return c->rank == c->place->leader;
}

static inline int tutti_local_nmembers(const tutti_local_bootstrap *c) {
    return c->place->neighbours;
}

/* Who sits where: the host's ranks in their order. */
tutti_status tutti_local_list_ranks(tutti_local_bootstrap *c, const tutti_peer_table *table);
void tutti_local_mac(const tutti_local_bootstrap *c, char side, const tutti_local_hello *h,
                     const uint8_t nonce[TUTTI_LOCAL_NONCE_BYTES], uint8_t mac[TUTTI_SHA256_BYTES]);
tutti_status tutti_local_fail_secret(int rank);
/* Waits for a message on the connection for as long as nothing is to be said of the wait; then gives true where this rank is
 * the one to say it, and time has come. */
bool tutti_local_is_late(tutti_local_bootstrap *c, int fd);
/* A word with that status, and this thread's error if it is one. */
void tutti_local_fill_message(tutti_local_message *w, tutti_status status);
/* Ends the word's text; fails with what it says. */
tutti_status tutti_local_admit(tutti_local_message *w, int from);

/* ---- local_leader.c */

/* Makes the segment, and lets all others of this host in. */
tutti_status tutti_local_open_leader(tutti_local_bootstrap *c, const tutti_peer_table *table);
/* Says it to all who are here; who is not is beyond help. */
void tutti_local_send_all(const tutti_local_bootstrap *c, tutti_status status);
tutti_status tutti_local_fail_death(const tutti_local_bootstrap *c, const tutti_peer_table *table, int seat);

#endif
