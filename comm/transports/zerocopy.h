/*
 * Sends that the kernel reads from the caller's memory (MSG_ZEROCOPY), by count: each such call gets a number, and the kernel
 * tells when it needs the memory of which calls no more. Where it copies all the same (the loopback interface, pairs of
 * virtual ones, adapters that cannot gather) it says so, and then it is turned off: telling is dearer than copying.
 *
 * Invariant: memory of a call is in use while `done` has not reached its number.
 */
#ifndef TUTTI_ZEROCOPY_H
#define TUTTI_ZEROCOPY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tutti_zerocopy {
    bool on;
    uint32_t issued, done; /* calls; both wrap around */
} tutti_zerocopy;

/* Asks the kernel for it; off where it does not offer it. */
void tutti_zerocopy_open(tutti_zerocopy *z, int socket);
/* Takes what the kernel tells. */
void tutti_zerocopy_reap(tutti_zerocopy *z, int socket);
/* Ends the connection at once, so that the kernel reads nothing more. */
void tutti_zerocopy_abort(tutti_zerocopy *z, int socket);

static inline bool tutti_zerocopy_busy(const tutti_zerocopy *z) {
    return z->issued != z->done;
}

#endif
