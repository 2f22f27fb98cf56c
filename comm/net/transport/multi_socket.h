/*
 * Multi-socket pipes: one pipe over several connections, its lanes, for networks where one connection carries less
 * than the network does: clouds limit each flow, bonded links and routers use one of their paths per flow, adapters
 * use one queue per flow. TUTTI_TCP_SOCKETS sets the number of lanes.
 *
 *   the stream   | block 0 | block 1 | block 2 | block 3 | block 4 | ...  blocks of TUTTI_MULTI_SOCKET_BLOCK_BYTES
 *   lanes        |    0    |    1    |    2    |    0    |    1    | ...  each a pipe of its own, in order
 *
 * The lane of a byte follows from its position in the stream alone, so no header is needed, and both sides agree
 * without negotiation. A transfer that fits into the current block of the stream uses one lane, and the system
 * calls of one.
 *
 * Invariant: `sent` and `received` count from the front of a transfer, without gaps, whichever lane is ahead.
 */
#ifndef TUTTI_MULTI_SOCKET_H
#define TUTTI_MULTI_SOCKET_H

#include "comm/net/transport/transport.h"

/* Compared with one connection, between two sockets of one machine, 1 MiB took 60 % longer with blocks of 64 KiB,
 * which the system cuts into two packets each, 20 % longer with these, and no longer with 256 KiB. But where each
 * flow was limited, sums of 4 MiB, which are sent in transfers of some hundred KiB, took half as long with 4 lanes
 * of these blocks as with those of 256 KiB. */
#define TUTTI_MULTI_SOCKET_BLOCK_BYTES ((size_t)128 << 10)

/* Number of connections for a pipe of that transport; 1 for transports that do not use sockets. */
uint32_t tutti_multi_socket_lanes(const tutti_transport *transport);

/* Turns nlanes proved connections into a pipe, in the order of their lanes, the same on both sides. With one connection
 * this is the transport's own pipe. Otherwise as `open` of a transport: takes over all sockets in any case. */
tutti_status tutti_multi_socket_open(const tutti_transport *transport, const tutti_connection *connections, int nlanes,
                                     tutti_deadline *deadline, tutti_pipe **pipe_out);

#endif
