/*
 * The store's connections as a crowd: which are foreign, from which address they come, and which has to go where descriptors
 * get scarce.
 *
 * Own connections (tutti_store_is_own) are never closed for that. Of the foreign ones a few may be there for long without the
 * magic number (many may come at once, when a job starts), and all of them together leave descriptors to the process that
 * serves the store: with 256 of them a fourth, with more at least 64. Beyond that the oldest one without the magic number
 * goes, then, of the address with the most connections, the one that has been idle for the longest.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_CROWD_H
#define TUTTI_BOOTSTRAP_STORE_CROWD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <tutti/tutti.h>

#include "bootstrap/store/store_budget.h"

/* What foreign connections from one address have in common. */
typedef struct tutti_store_address {
    struct tutti_store_address *chain;
    uint8_t key[16];
    uint64_t number; /* from 1, never used again */
    int nconnections;
    size_t held; /* bytes, counted by store_budget.c */
} tutti_store_address;

#define TUTTI_STORE_MOST_STRANGERS   128   /* foreign, without the magic number; fewer with few descriptors */
#define TUTTI_STORE_GREETING_MS      1000  /* younger ones are not among these */
#define TUTTI_STORE_MOST_FOREIGN     65536 /* so that looking through them takes less than a millisecond */
#define TUTTI_STORE_FREE_DESCRIPTORS 64    /* what foreign connections leave to the process */
#define TUTTI_STORE_LEARNED_MS       60000 /* how long it is believed that descriptors are scarce */
#define TUTTI_STORE_ADDRESS_BUCKETS  1024

typedef struct tutti_store_crowd {
    int limit; /* descriptors that this process may have */
    int nforeign, nstrangers;
    int most_now;       /* foreign connections that leave enough descriptors, as was learned then */
    int64_t learned_ns; /* 0: they are not known to be scarce */
    tutti_store_connection *first_stranger, *last_stranger; /* foreign, without the magic number; oldest first */
    tutti_store_address *addresses[TUTTI_STORE_ADDRESS_BUCKETS];
    uint64_t seed, naddresses;
} tutti_store_crowd;

tutti_status tutti_store_crowd_open(tutti_store_crowd *crowd);

/* A new connection, of which it is known whether it is own. */
tutti_status tutti_store_crowd_join(tutti_store_crowd *crowd, tutti_store_connection *connection,
                                    const struct sockaddr_storage *address);
void tutti_store_crowd_leave(tutti_store_crowd *crowd, tutti_store_connection *connection);
/* Takes note that the connection has shown the magic number, or has become own; true: the latter, and it then is in no queue. */
bool tutti_store_crowd_update(tutti_store_crowd *crowd, tutti_store_budget *budget, tutti_store_connection *connection);

/* Learns from the newcomer's descriptor how many the process has left. */
void tutti_store_crowd_learn(tutti_store_crowd *crowd, const tutti_store_connection *newcomer);
/* One that has to go because `newcomer` has come, or, where that is NULL, because no descriptor is free; it may be the
 * newcomer. NULL: none. `connections` is the list of all. */
tutti_store_connection *tutti_store_crowd_victim(const tutti_store_crowd *crowd, tutti_store_connection *connections,
                                                 const tutti_store_connection *newcomer);

#endif
