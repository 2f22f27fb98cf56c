/*
 * All of the store's connections together: which are foreign, from which address they come, and which must be
 * closed when descriptors become scarce.
 *
 * Own connections (tutti_store_is_own) are never closed for that reason. A limited number of foreign connections
 * may stay open for long without the magic number (many may arrive at once when a job starts), and all foreign ones
 * together leave descriptors to the process that serves the store: a fourth of a limit of up to 256 descriptors, at
 * least 64 of a larger one. When that is exceeded, the oldest connection without the magic number is closed; if
 * there is none, the one that has been idle longest of the address with the most connections.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_CROWD_H
#define TUTTI_BOOTSTRAP_STORE_CROWD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <tutti/tutti.h>

#include "bootstrap/store/store_budget.h"

/* State shared by the foreign connections from one address. */
typedef struct tutti_store_address {
    struct tutti_store_address *chain;
    uint8_t key[16];
    uint64_t number; /* from 1, never reused */
    int nconnections;
    size_t held; /* bytes, counted by store_budget.c */
} tutti_store_address;

#define TUTTI_STORE_MOST_UNVERIFIED  128   /* foreign, without the magic number; fewer if there are few descriptors */
#define TUTTI_STORE_GREETING_MS      1000  /* younger connections are not counted in these */
#define TUTTI_STORE_MOST_FOREIGN     65536 /* so that a scan of all takes less than a millisecond */
#define TUTTI_STORE_FREE_DESCRIPTORS 64    /* descriptors that foreign connections leave to the process */
#define TUTTI_STORE_LEARNED_MS       60000 /* how long descriptors are assumed to be scarce */
#define TUTTI_STORE_ADDRESS_BUCKETS  1024

typedef struct tutti_store_crowd {
    int limit; /* limit of this process's descriptors */
    int nforeign, nunverified;
    int most_now;       /* foreign connections that leave enough descriptors, as last learned */
    int64_t learned_ns; /* when most_now was learned; 0: descriptors are not known to be scarce */
    tutti_store_connection *first_unverified, *last_unverified; /* foreign, without the magic number; oldest first */
    tutti_store_address *addresses[TUTTI_STORE_ADDRESS_BUCKETS];
    uint64_t seed, naddresses;
} tutti_store_crowd;

tutti_status tutti_store_crowd_open(tutti_store_crowd *crowd);

/* Adds a new connection, for which it is known whether it is own. */
tutti_status tutti_store_crowd_join(tutti_store_crowd *crowd, tutti_store_connection *connection,
                                    const struct sockaddr_storage *address);
void tutti_store_crowd_leave(tutti_store_crowd *crowd, tutti_store_connection *connection);
/* Records that the connection has shown the magic number or has become own. Returns true if it has become own: it is
 * then in no queue. */
bool tutti_store_crowd_update(tutti_store_crowd *crowd, tutti_store_budget *budget, tutti_store_connection *connection);

/* Learns from the newcomer's descriptor how many descriptors the process has left. */
void tutti_store_crowd_learn(tutti_store_crowd *crowd, const tutti_store_connection *newcomer);
/* Returns the connection to close because `newcomer` has arrived or, if that is NULL, because no descriptor is
 * free; it may be the newcomer. NULL: none. `connections` is the list of all. */
tutti_store_connection *tutti_store_crowd_victim(const tutti_store_crowd *crowd, tutti_store_connection *connections,
                                                 const tutti_store_connection *newcomer);

#endif
