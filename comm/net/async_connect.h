/*
 * Opening of a connection on a thread of its own. Connecting and opening wait for the other side, and the caller
 * may have to serve that side meanwhile.
 *
 * Invariant: of the thread and the owner of an attempt, the second one to finish frees it.
 */
#ifndef TUTTI_ASYNC_CONNECT_H
#define TUTTI_ASYNC_CONNECT_H

#include "comm/net/listener.h"
#include "comm/net/transport/transport.h"

typedef struct tutti_async_connect tutti_async_connect;

/* Connects to the listener within timeout_ms, once per lane, and opens the transport that conn_id names on these
 * connections; or on `taken` (one per lane), if that is not NULL. The attempt takes over `taken`, on failure, too. If
 * a transport cannot reach the other side, the next one that both sides support is tried. */
tutti_status tutti_async_connect_start(const tutti_listener_info *listener, const tutti_conn_id *conn_id,
                                       const tutti_connection *taken, int64_t timeout_ms,
                                       tutti_async_connect **attempt_out);
/* Returns the pipe, or the error of the attempt, and frees the attempt; TUTTI_NOT_YET: the attempt is still running. */
tutti_status tutti_async_connect_take(tutti_async_connect *attempt, tutti_pipe **pipe_out);
/* Cancels the attempt. NULL is allowed. */
void tutti_async_connect_abandon(tutti_async_connect *attempt);

#endif
