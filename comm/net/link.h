/*
 * Links: what the algorithms between hosts are written in. A link leads to one rank of another host, and belongs to one
 * communicator, so that what comes on it is what the operation at hand is to get: no tags, nothing to sort out.
 *
 * A link is made when it is first used, over the best transport that both sides have. Each transfer is preceded by a
 * record (what the operation is, how many bytes come), which the other side compares with its own: calls
 * that differ are found there, as in the arena. Each call returns when its bytes have moved (sent: the buffer may be used
 * again), the operation's deadline has passed, the communicator broke, or the link failed; then it has broken the communicator
 * and says why. Whoever waits here drives point to point, answers interrupts and tells of stalls.
 *
 * Algorithms see ranks of a rail: 0..n-1, this one is `me`.
 */
#ifndef TUTTI_LINK_H
#define TUTTI_LINK_H

#include "comm/base/comm.h"

struct tutti_pipe;

/* The ranks between which an algorithm runs. */
typedef struct tutti_rail {
    tutti_comm *comm;
    const tutti_op *op; /* the one that is running */
    int n, me;
    const int *ranks; /* n ranks of the communicator */
} tutti_rail;

/* How received elements go into what is there: acc = acc (reduction) received. avg and premul_sum are not for links. */
typedef struct tutti_fold {
    tutti_type type;
    tutti_reduction reduction;
} tutti_fold;

/* 0 bytes are a transfer, too: the other side waits for it. */
tutti_status tutti_link_send(const tutti_rail *rail, int to, const void *src, size_t bytes);
tutti_status tutti_link_recv(const tutti_rail *rail, int from, void *dst, size_t bytes);
/* Both at once; `to` and `from` may be the same rank or two. No overlap of src and dst. */
tutti_status tutti_link_exchange(const tutti_rail *rail, int to, const void *src, size_t send_bytes, int from,
                                 void *dst, size_t receive_bytes);
/* Receives `count` elements and folds them into acc; in pieces, while the next one comes. */
tutti_status tutti_link_recv_reduce(const tutti_rail *rail, int from, void *acc, size_t count, tutti_fold fold);
/* Sends meanwhile. The part of src that equals acc's range may not overlap it. */
tutti_status tutti_link_exchange_reduce(const tutti_rail *rail, int to, const void *src, size_t send_bytes, int from,
                                        void *acc, size_t count, tutti_fold fold);

/* One transfer of many that run at once, with different ranks or in different directions. */
typedef struct tutti_link_part {
    int rank; /* of the rail */
    bool sends;
    void *data; /* sends: only read */
    size_t bytes;
} tutti_link_part;
/* All of them at once; at most one send and one receive for each rank. */
tutti_status tutti_link_move(const tutti_rail *rail, const tutti_link_part *parts, int nparts);

/* What one does while bytes move: `some` does a few microseconds' worth and says whether there is more. */
typedef struct tutti_link_work {
    bool (*some)(void *context);
    void *context;
} tutti_link_work;
/* tutti_link_move, and the work between looks at the links; both are done when it returns well. */
tutti_status tutti_link_move_meanwhile(const tutti_rail *rail, const tutti_link_part *parts, int nparts,
                                       const tutti_link_work *work);

/* Says on all links why this communicator is broken, as far as that is possible at once, and makes them useless. By the
 * thread that runs its operations, or while none runs. */
void tutti_link_break_all(tutti_comm *comm);
/* When the communicator goes. */
void tutti_link_close_all(tutti_comm *comm);

/* What the link to that rank of another host goes by; NULL: there is none so far. By the thread that runs an operation. */
const struct tutti_pipe *tutti_link_pipe(const tutti_comm *comm, int rank);

/* Puts a ready pipe under the link to that rank of the communicator, and takes it over; for tests, and for who has a
 * connection already. */
tutti_status tutti_link_adopt(tutti_comm *comm, int rank, struct tutti_pipe *pipe);

#endif
