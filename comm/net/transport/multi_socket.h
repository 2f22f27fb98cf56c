/*
 * Bundles: one pipe over several connections, its lanes, where one connection carries less than the way does: clouds limit each
 * flow, bonded links and routers give each flow one of their ways, adapters give it one queue. TUTTI_TCP_SOCKETS says how
 * many.
 *
 *   the stream   | block 0 | block 1 | block 2 | block 3 | block 4 | ...        blocks of TUTTI_MULTI_SOCKET_BLOCK_BYTES
 *   lanes        |    0    |    1    |    2    |    0    |    1    | ...        each a pipe of its own, in order
 *
 * Where a byte goes follows from its place in the stream alone, so nothing is added to it, and both sides agree without a
 * word. What fits into the block that the stream has come to takes one lane, and the system calls of one.
 *
 * Invariant: `sent` and `received` count from the front of a transfer, without gaps, whichever lane is ahead.
 */
#ifndef TUTTI_MULTI_SOCKET_H
#define TUTTI_MULTI_SOCKET_H

#include "comm/net/transport/transport.h"

/* Between two sockets of one machine, 1 MiB took 60 % longer than over one connection with blocks of 64 KiB, which the system
 * cuts into two packets each, 20 % with these, and no longer with 256 KiB. But where each flow was limited, sums of 4 MiB, which
 * go in transfers of some hundred KiB, took half as long with 4 lanes of these as with those of 256 KiB. */
#define TUTTI_MULTI_SOCKET_BLOCK_BYTES ((size_t)128 << 10)

/* How many connections a pipe of that transport is to have; 1 for those that are not made of sockets. */
uint32_t tutti_multi_socket_lanes(const tutti_transport *transport);

/* Makes a pipe of so many proved connections, in the order of their lanes, which is the same on both sides. Of one it is the
 * transport's own pipe. Else as `open` of a transport: takes all sockets over, also when it fails. */
tutti_status tutti_multi_socket_open(const tutti_transport *transport, const tutti_connection *connections, int nlanes,
                               tutti_deadline *deadline, tutti_pipe **pipe_out);

#endif
