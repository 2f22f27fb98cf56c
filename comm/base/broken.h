/*
 * The reason for which a page is broken: reading it, and breaking the own communicator for it.
 */
#ifndef TUTTI_BROKEN_H
#define TUTTI_BROKEN_H

#include "comm/base/comm.h"

/* The reason for which a rank's page is broken. */
typedef struct tutti_broken {
    int32_t status; /* as stored by its owner; tutti_broken_peer_status() converts it for another rank */
    char text[TUTTI_BROKEN_TEXT_BYTES];
} tutti_broken;
/* Reads it. False: the page of `rank` is not broken, or its owner has reclaimed it meanwhile. */
bool tutti_broken_read(const tutti_comm *comm, int rank, tutti_broken *broken_out);

/* The reason that `rank` gives, with the rank that found it. Ranks that only pass it on are not added. Returns
 * `text`. */
const char *tutti_broken_quote(const char *reason, int rank, char *text, size_t capacity);
/* Breaks the communicator for the reason that `rank` gives. */
tutti_status tutti_broken_adopt(tutti_comm *comm, int rank, int32_t broken_status, const char *reason);
/* Converts the status of another rank's broken page to this rank's own status. */
tutti_status tutti_broken_peer_status(int32_t broken_status);

/* In the barrier that ends a creation, a page may not have its id yet: members set it one after the other. */
static inline bool tutti_page_is_unborn(const tutti_comm *comm, uint64_t page_id) {
    return page_id == 0 && comm->sequence <= 1;
}

#endif
