/*
 * The memory that the store's connections may hold together, and the queue of those that wait for some.
 *
 * What a connection holds is its input, a request that is not whole yet or not carried out, and its output, replies that its
 * client has not taken. A request is carried out only when there is room for its reply, and a long one is read on only when
 * there is room for more of it; else its connection waits in a queue, and goes on when others have given room back. So honest
 * clients wait under load, and none is closed for it. Own connections and foreign ones (tutti_store_is_own) have a pool each:
 * whatever the foreign ones hold, the own ones have theirs. A pool has three parts:
 *
 *     small   for connections that hold little, which pass the queue
 *     big     for those that hold more, and for small ones that find no room there
 *     turn    for one connection, which may hold as much as the longest request or reply takes; goes to the first in the queue
 *             that fits nowhere else, and from it to one of another address, if there is one
 *
 * The turn makes sure that the queue goes on. A connection that holds something while others wait, and moves next to nothing
 * for a long time, has to go. Memory of WAIT is not given back until others do something, so it is counted apart, and where all
 * of it is too much, the connection that holds most of it has to go.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_BUDGET_H
#define TUTTI_BOOTSTRAP_STORE_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tutti_store_connection tutti_store_connection;

/* What is little: what is read at a time, and as much again. */
#define TUTTI_STORE_SMALL_BYTES ((size_t)128 << 10)
/* Of each pool. 256 times as much as is little; eight of the longest values; the longest request with what its buffer has too
 * much, or the longest reply with 32 MiB of keys in its request; 1800 ranks that all wait for a key of each. */
#define TUTTI_STORE_SMALL_POOL_BYTES   ((size_t)32 << 20)
#define TUTTI_STORE_BIG_POOL_BYTES     ((size_t)64 << 20)
#define TUTTI_STORE_TURN_BYTES         ((size_t)160 << 20)
#define TUTTI_STORE_WAITERS_POOL_BYTES ((size_t)128 << 20)
/* Of all foreign connections of one address, without the turn: a third of small and big. */
#define TUTTI_STORE_ADDRESS_BYTES ((size_t)32 << 20)
/* While others wait, a connection that holds something must move so much in so long a time, or all that it holds. */
#define TUTTI_STORE_LEAST_MOVED_BYTES ((size_t)1 << 20)
#define TUTTI_STORE_STALLED_MS        30000

/* Where a connection's bytes are counted. */
typedef enum tutti_store_part {
    TUTTI_STORE_PART_NONE, /* it holds nothing */
    TUTTI_STORE_PART_SMALL,
    TUTTI_STORE_PART_BIG,
    TUTTI_STORE_PART_TURN
} tutti_store_part;

/* A connection's share; all of it belongs to store_budget.c. */
typedef struct tutti_store_share {
    tutti_store_part part;
    size_t counted, waiters; /* bytes, as of tutti_store_budget_settle */
    size_t moved;            /* bytes read and sent since moved_ns */
    int64_t moved_ns;        /* when it last began to hold something, waited, or had moved enough */
    bool queued;
    size_t wanted, granted; /* what it would hold if it went on; the same when it may */
    tutti_store_connection *previous, *next;
} tutti_store_share;

typedef struct tutti_store_pool {
    size_t small, big, waiters; /* bytes */
    tutti_store_connection *turn;
    uint64_t turn_address; /* the number of the address that had the turn last */
    tutti_store_connection *first, *last;
    bool changed; /* since the queue was last found to have to wait */
} tutti_store_pool;

/* All zeros at first. */
typedef struct tutti_store_budget {
    tutti_store_pool own, foreign;
} tutti_store_budget;

/* May the connection come to hold `held` bytes? If not, it is in the queue from now on. It must do so, and settle, before the
 * next one asks. */
bool tutti_store_budget_ask(tutti_store_budget *budget, tutti_store_connection *connection, size_t held);
/* Counts what the connection holds now. */
void tutti_store_budget_settle(tutti_store_budget *budget, tutti_store_connection *connection);
/* Counts nothing of it any more, and takes it out of the queue: it is closed, or changes its pool. */
void tutti_store_budget_leave(tutti_store_budget *budget, tutti_store_connection *connection);
/* The next one of a queue that may go on, which is taken out of it; NULL: all must wait. */
tutti_store_connection *tutti_store_budget_next(tutti_store_budget *budget);
/* May it read, and have requests carried out? Not while it waits, nor with replies that its client has not taken: with much of
 * them, and where others wait, with any. */
bool tutti_store_budget_may_go_on(const tutti_store_budget *budget, const tutti_store_connection *connection);
/* Notes that so much was read from it or sent to it. */
void tutti_store_budget_move(tutti_store_connection *connection, size_t bytes);
/* Does it keep others waiting? */
bool tutti_store_budget_is_stalled(const tutti_store_budget *budget, const tutti_store_connection *connection,
                                   int64_t now_ns);
/* Does anybody wait? */
bool tutti_store_budget_is_short(const tutti_store_budget *budget);

#endif
