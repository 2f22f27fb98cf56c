/*
 * Names to addresses without getaddrinfo's waits: where the name servers do not answer it takes up to a minute, and nothing
 * ends it earlier.
 */
#ifndef TUTTI_BOOTSTRAP_LOOKUP_H
#define TUTTI_BOOTSTRAP_LOOKUP_H

#include <netdb.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_lookup tutti_lookup;

/* Begins to look the name up, for TCP on that port. Addresses and "localhost" are known at once, without a name server. */
tutti_status tutti_lookup_start(const char *host, int port, tutti_lookup **lookup_out);
/* Waits up to wait_ms for the answer. TUTTI_NOT_YET: there is none so far; look again later. TUTTI_ERR_CONFIG: the name is not
 * known. What is found is valid until the end of the lookup. */
tutti_status tutti_lookup_look(tutti_lookup *lookup, int64_t wait_ms, const struct addrinfo **found_out);
/* Returns at once; an answer that is still to come is dropped. NULL is allowed. */
void tutti_lookup_end(tutti_lookup *lookup);

#endif
