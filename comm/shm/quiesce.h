/*
 * After a failed call in which peers may write into this rank's buffers (push.c): they must have stopped before
 * the call returns its error, since the buffers are the caller's again. Each rank says in its page that it writes no more
 * (`quiet`), and waits until each peer has said so, has ended, or never came to the call. A peer that is stopped says
 * nothing and may write when it goes on: then no block of this process is used again once it is freed, so that what it
 * writes harms nobody but the failed call's own buffer.
 */
#ifndef TUTTI_QUIESCE_H
#define TUTTI_QUIESCE_H

#include "comm/base/comm.h"

/* The communicator is broken, and this thread has left the algorithm. */
void tutti_quiesce(tutti_comm *comm, const tutti_op *op);

#endif
