/*
 * A first contact under way: between contact.c (both sides) and contact_leader.c (letting the others in). What is said is in
 * contact.h.
 */
#ifndef TUTTI_CONTACT_STATE_H
#define TUTTI_CONTACT_STATE_H

#include "bootstrap/base/hmac.h"
#include "comm/contact.h"

#define TUTTI_CONTACT_NONCE_BYTES 16
#define TUTTI_CONTACT_TEXT_BYTES  1024

typedef struct tutti_contact_hello {
    int32_t rank, unused;
    uint8_t nonce[TUTTI_CONTACT_NONCE_BYTES];
} tutti_contact_hello;

typedef struct tutti_contact_proof {
    uint8_t nonce[TUTTI_CONTACT_NONCE_BYTES];
    uint8_t mac[TUTTI_SHA256_BYTES];
} tutti_contact_proof;

typedef struct tutti_contact_entry {
    uint8_t mac[TUTTI_SHA256_BYTES];
    int32_t rank, unused;
} tutti_contact_entry;

/* From the leader, and as `ready` to it. */
typedef struct tutti_contact_word {
    int32_t status, unused;
    char text[TUTTI_CONTACT_TEXT_BYTES]; /* where status is not TUTTI_OK */
} tutti_contact_word;

static inline bool tutti_contact_leads(const tutti_contact *c) {
    return c->rank == c->place->leader;
}

static inline int tutti_contact_nseats(const tutti_contact *c) {
    return c->place->neighbours;
}

/* Who sits where: the host's ranks in their order. */
tutti_status tutti_contact_list_ranks(tutti_contact *c, const tutti_roll *roll);
void tutti_contact_mac(const tutti_contact *c, char side, const tutti_contact_hello *h,
                       const uint8_t nonce[TUTTI_CONTACT_NONCE_BYTES], uint8_t mac[TUTTI_SHA256_BYTES]);
tutti_status tutti_contact_fail_secret(int rank);
/* Waits for a message on the connection for as long as nothing is to be said of the wait; then gives true where this rank is
 * the one to say it, and time has come. */
bool tutti_contact_is_late(tutti_contact *c, int fd);
/* A word with that status, and this thread's error if it is one. */
void tutti_contact_fill_word(tutti_contact_word *w, tutti_status status);
/* Ends the word's text; fails with what it says. */
tutti_status tutti_contact_heed(tutti_contact_word *w, int from);

/* ---- contact_leader.c */

/* Makes the hall, and lets all others of this host in. */
tutti_status tutti_contact_open_leader(tutti_contact *c, const tutti_roll *roll);
/* Says it to all who are here; who is not is beyond help. */
void tutti_contact_say_to_all(const tutti_contact *c, tutti_status status);
tutti_status tutti_contact_fail_death(const tutti_contact *c, const tutti_roll *roll, int seat);

#endif
