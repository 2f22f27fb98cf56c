/*
 * A pipe in the making, on a thread of its own: connecting and opening wait for the other side, and whoever wants the pipe may
 * have to serve that side meanwhile.
 *
 * Invariant: an connection attempt is freed by whoever comes second, its thread or its owner.
 */
#ifndef TUTTI_ASYNC_CONNECT_H
#define TUTTI_ASYNC_CONNECT_H

#include "comm/net/listener.h"
#include "comm/net/transport/transport.h"

typedef struct tutti_async_connect tutti_async_connect;

/* Connects to the listener within timeout_ms, as often as the ticket has lanes, and opens the ticket's transport on the connections;
 * or on `taken` (as many), if that is not NULL, which are taken over also by a failure. A transport that does not lead to the other
 * side is left for the next one that both have. */
tutti_status tutti_async_connect_start(const tutti_listener_info *listener, const tutti_conn_id *ticket, const tutti_connection *taken,
                                int64_t timeout_ms, tutti_async_connect **opener_out);
/* The pipe, or its failure: the connection attempt is gone then; TUTTI_NOT_YET: it still works. */
tutti_status tutti_async_connect_take(tutti_async_connect *attempt, tutti_pipe **pipe_out);
/* It is not wanted any more. NULL is allowed. */
void tutti_async_connect_abandon(tutti_async_connect *attempt);

#endif
