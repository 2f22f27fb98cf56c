/*
 * Where the ranks of a job meet: the address of the store, in the terms of whichever launcher has started them.
 */
#ifndef TUTTI_BOOTSTRAP_MEETING_H
#define TUTTI_BOOTSTRAP_MEETING_H

#include <stdbool.h>

#include <tutti/tutti.h>

#include "bootstrap/machine/interfaces.h"

typedef struct tutti_meeting {
    char host[512]; /* name or address; several addresses of one host are split by commas */
    int port;       /* 0: rank 0 may take any */
    bool agent;     /* the launcher hosts the store there */
    bool exchange;  /* host and port are not known beforehand: rank 0 tells them through the launcher's server */
    char run[260];  /* name of the job */
} tutti_meeting;

/* MASTER_ADDR and MASTER_PORT, where they are set; else what the launcher's own variables tell. TUTTI_ERR_CONFIG says what is
 * missing. */
tutti_status tutti_meeting_find(const tutti_world *world, tutti_meeting *meeting_out);

/* Collective: rank 0 gives the port on which its store listens, the others 0; fills in host and port on all. */
tutti_status tutti_meeting_exchange(const tutti_world *world, int port, tutti_meeting *meeting);

/* Where rank 0's store listens, of which it will tell by tutti_meeting_exchange: the address that it will tell, or NULL for all
 * interfaces, where that is more than one. In `text`, or constant. */
const char *tutti_meeting_own_address(const tutti_world *world, char text[TUTTI_ADDRESS_TEXT_BYTES]);

/* 127.0.0.1, ::1, localhost. */
bool tutti_meeting_is_loopback(const char *host);
/* Where to listen, so that exactly those reach the store who can reach `host`: an address, or NULL for all interfaces. */
const char *tutti_meeting_listen_address(const char *host);

#endif
