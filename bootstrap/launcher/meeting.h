/*
 * Where the ranks of a job meet: the address of the store, derived from the values of the launcher that started
 * them.
 */
#ifndef TUTTI_BOOTSTRAP_MEETING_H
#define TUTTI_BOOTSTRAP_MEETING_H

#include <stdbool.h>

#include <tutti/tutti.h>

#include "bootstrap/machine/interfaces.h"

typedef struct tutti_meeting {
    char host[512]; /* name or address; several addresses of one host are separated by commas */
    int port;       /* 0: rank 0 may choose any */
    bool agent;     /* the launcher hosts the store at this address */
    bool exchange;  /* host and port are not known yet: rank 0 publishes them through the launcher's server */
    char run[260];  /* name of the job */
} tutti_meeting;

/* Uses MASTER_ADDR and MASTER_PORT if they are set, otherwise the launcher's own variables. Fails with
 * TUTTI_ERR_CONFIG; the error names what is missing. */
tutti_status tutti_meeting_find(const tutti_world *world, tutti_meeting *meeting_out);

/* Collective: rank 0 passes the port of its store, the others pass 0. Fills in host and port on all ranks. */
tutti_status tutti_meeting_exchange(const tutti_world *world, int port, tutti_meeting *meeting);

/* The address on which rank 0's store listens and which tutti_meeting_exchange will publish, or NULL for all
 * interfaces if there is more than one address. The result is in `text` or constant. */
const char *tutti_meeting_own_address(const tutti_world *world, char text[TUTTI_ADDRESS_TEXT_BYTES]);

/* The address to listen on so that exactly the hosts that reach `host` reach the store; NULL for all interfaces. */
const char *tutti_meeting_listen_address(const char *host);

#endif
