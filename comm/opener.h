/*
 * A pipe in the making, on a thread of its own: connecting and opening wait for the other side, and whoever wants the pipe may
 * have to serve that side meanwhile.
 *
 * Invariant: an opener is freed by whoever comes second, its thread or its owner.
 */
#ifndef TUTTI_OPENER_H
#define TUTTI_OPENER_H

#include "comm/door.h"
#include "comm/transports/transport.h"

typedef struct tutti_opener tutti_opener;

/* Connects to the door within timeout_ms, as often as the ticket has lanes, and opens the ticket's transport on the connections;
 * or on `taken` (as many), if that is not NULL, which are taken over also by a failure. A transport that does not lead to the other
 * side is left for the next one that both have. */
tutti_status tutti_opener_start(const tutti_door_card *door, const tutti_ticket *ticket, const tutti_connection *taken,
                                int64_t timeout_ms, tutti_opener **opener_out);
/* The pipe, or its failure: the opener is gone then; TUTTI_NOT_YET: it still works. */
tutti_status tutti_opener_take(tutti_opener *opener, tutti_pipe **pipe_out);
/* It is not wanted any more. NULL is allowed. */
void tutti_opener_abandon(tutti_opener *opener);

#endif
