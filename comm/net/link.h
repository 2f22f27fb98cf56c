/*
 * Links carry the data of algorithms between hosts. A link connects to one rank of another host and belongs to one
 * communicator, so whatever arrives on it is for the current operation: there are no tags and no matching.
 *
 * A link is created at first use, over the best transport that both sides support. A record (operation, number of
 * bytes) precedes each transfer; the receiver compares it with its own, so that calls that differ are found there,
 * as they are among the ranks of one host. Each call returns when its bytes have moved (sent: the buffer may be
 * reused), the operation's deadline has passed, the communicator broke, or the link failed; in the last case it has
 * broken the communicator with the reason. While a call waits, it drives point to point, checks for interrupts and
 * reports stalls.
 *
 * Algorithms address ranks of a rail: 0..n-1; this rank is `me`.
 */
#ifndef TUTTI_LINK_H
#define TUTTI_LINK_H

#include "comm/base/comm.h"

struct tutti_pipe;

/* The ranks that take part in an algorithm. */
typedef struct tutti_rail {
    tutti_comm *comm;
    const tutti_op *op; /* the running operation */
    int n, me;
    const int *ranks; /* n ranks of the communicator */
} tutti_rail;

/* How received elements are reduced into an accumulator: acc = acc (reduction) received. Not avg, not premul_sum. */
typedef struct tutti_fold {
    tutti_type type;
    tutti_reduction reduction;
} tutti_fold;

/* A transfer of 0 bytes is a transfer, too: the other side waits for it. */
tutti_status tutti_link_send(const tutti_rail *rail, int to, const void *src, size_t bytes);
tutti_status tutti_link_recv(const tutti_rail *rail, int from, void *dst, size_t bytes);
/* Both at once; `to` and `from` may be the same rank or different ones. src and dst must not overlap. */
tutti_status tutti_link_exchange(const tutti_rail *rail, int to, const void *src, size_t send_bytes, int from,
                                 void *dst, size_t receive_bytes);
/* Receives `count` elements and reduces them into acc, in pieces: one is reduced while the next one arrives. */
tutti_status tutti_link_recv_reduce(const tutti_rail *rail, int from, void *acc, size_t count, tutti_fold fold);
/* The same, and sends at the same time. The part of src that is sent must not overlap acc. */
tutti_status tutti_link_exchange_reduce(const tutti_rail *rail, int to, const void *src, size_t send_bytes, int from,
                                        void *acc, size_t count, tutti_fold fold);

/* One of several transfers that run at once, with different ranks or in different directions. */
typedef struct tutti_link_part {
    int rank; /* in the rail */
    bool sends;
    void *data; /* sends: only read */
    size_t bytes;
} tutti_link_part;
/* Runs all of them at once; at most one send and one receive per rank. */
tutti_status tutti_link_move(const tutti_rail *rail, const tutti_link_part *parts, int nparts);

/* Work that is done while bytes move: `some` does a few microseconds' worth and returns whether there is more. */
typedef struct tutti_link_work {
    bool (*some)(void *context);
    void *context;
} tutti_link_work;
/* tutti_link_move, which calls the work between polls of the links; on success both are complete. */
tutti_status tutti_link_move_meanwhile(const tutti_rail *rail, const tutti_link_part *parts, int nparts,
                                       const tutti_link_work *work);

/* Reports on all links why this communicator is broken, as far as this is possible without waiting, and makes the
 * links unusable. Called by the thread that runs the communicator's operations, or while none runs. */
void tutti_link_break_all(tutti_comm *comm);
/* Called when the communicator is destroyed. */
void tutti_link_close_all(tutti_comm *comm);

/* The pipe of the link to that rank of another host; NULL: none yet. Called by the thread that runs an operation. */
const struct tutti_pipe *tutti_link_pipe(const tutti_comm *comm, int rank);

/* Sets an open pipe as the link to that rank, and takes it over; for tests, and callers that have a connection. */
tutti_status tutti_link_adopt(tutti_comm *comm, int rank, struct tutti_pipe *pipe);

#endif
