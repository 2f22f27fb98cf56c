/*
 * Handling of a failed call in which peers may write into this rank's buffers (push.c): they must have stopped
 * before the call returns its error, since the buffers then belong to the caller again. Each rank sets `quiet` in
 * its page when it writes no more, and waits until each peer has set it, has ended, or never entered the call. A
 * stopped peer sets nothing and may write when it continues. In that case no block of this process is reused once
 * it is freed, so that such a write damages only the buffer of the failed call.
 */
#ifndef TUTTI_QUIESCE_H
#define TUTTI_QUIESCE_H

#include "comm/base/comm.h"

/* The communicator must be broken, and this thread must have left the algorithm. */
void tutti_quiesce(tutti_comm *comm, const tutti_op *op);

#endif
