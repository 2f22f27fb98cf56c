/*
 * Name resolution without the waits of getaddrinfo, which takes up to a minute when the name servers do not answer
 * and cannot be interrupted.
 */
#ifndef TUTTI_BOOTSTRAP_LOOKUP_H
#define TUTTI_BOOTSTRAP_LOOKUP_H

#include <netdb.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_lookup tutti_lookup;

/* Starts to resolve the name, for TCP on that port. Addresses and "localhost" are resolved at once, without a name
 * server. */
tutti_status tutti_lookup_start(const char *host, int port, tutti_lookup **lookup_out);
/* Waits up to wait_ms for the answer. Returns TUTTI_NOT_YET when there is no answer yet; call it again later. Fails
 * with TUTTI_ERR_CONFIG when the name is unknown. The result is valid until tutti_lookup_end. */
tutti_status tutti_lookup_look(tutti_lookup *lookup, int64_t wait_ms, const struct addrinfo **found_out);
/* Ends the lookup and returns at once; a later answer is discarded. NULL is allowed. */
void tutti_lookup_end(tutti_lookup *lookup);

#endif
