/*
 * The memory that the store's connections may hold together, and the queue of connections that wait for memory.
 *
 * A connection holds its input, a request that is incomplete or not yet carried out, and its output, replies that
 * its client has not read. A request is carried out only when there is room for its reply, and a long request is
 * read further only when there is room for more of it; otherwise its connection waits in a queue and continues when
 * others have released memory. Honest clients therefore wait under load, and none of their connections is closed
 * because of load. Own connections and foreign ones (tutti_store_is_own) have separate pools: however much the
 * foreign ones hold, the own ones keep theirs. A pool has three parts:
 *
 *     small   for connections that hold little; they bypass the queue
 *     big     for connections that hold more, and for small ones that find no room in `small`
 *     turn    for one connection, which may hold as much as the longest request or reply needs; it goes to the first
 *             connection in the queue that fits nowhere else, and from there to one of another address, if there is one
 *
 * The turn guarantees that the queue makes progress. A connection that holds memory while others wait, and
 * transfers almost nothing for a long time, is closed. Memory of WAIT is not released until other clients act, so
 * it is counted separately; when its total exceeds the bound, the connection that holds most of it is closed.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_BUDGET_H
#define TUTTI_BOOTSTRAP_STORE_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tutti_store_connection tutti_store_connection;

/* Bound of a small connection: the bytes read at a time, and the same amount again. */
#define TUTTI_STORE_SMALL_BYTES ((size_t)128 << 10)
/* Sizes of each pool: 256 small connections; eight of the longest values; the longest request with the slack of its
 * buffer, or the longest reply with 32 MiB of keys in its request; 1800 ranks that all wait for a key of each. */
#define TUTTI_STORE_SMALL_POOL_BYTES   ((size_t)32 << 20)
#define TUTTI_STORE_BIG_POOL_BYTES     ((size_t)64 << 20)
#define TUTTI_STORE_TURN_BYTES         ((size_t)160 << 20)
#define TUTTI_STORE_WAITERS_POOL_BYTES ((size_t)128 << 20)
/* Bound for all foreign connections of one address, without the turn: a third of small and big. */
#define TUTTI_STORE_ADDRESS_BYTES ((size_t)32 << 20)
/* While others wait, a connection that holds memory must transfer this many bytes, or all of it, within this time. */
#define TUTTI_STORE_LEAST_MOVED_BYTES ((size_t)1 << 20)
#define TUTTI_STORE_STALLED_MS        30000

/* The part in which a connection's bytes are counted. */
typedef enum tutti_store_part {
    TUTTI_STORE_PART_NONE, /* it holds nothing */
    TUTTI_STORE_PART_SMALL,
    TUTTI_STORE_PART_BIG,
    TUTTI_STORE_PART_TURN
} tutti_store_part;

/* A connection's share; used only by store_budget.c. */
typedef struct tutti_store_share {
    tutti_store_part part;
    size_t counted, waiters; /* bytes, at the last tutti_store_budget_settle */
    size_t moved;            /* bytes read and sent since moved_ns */
    int64_t moved_ns;        /* when it last started to hold memory, waited, or had transferred enough */
    bool queued;
    size_t wanted, granted; /* bytes it would hold if it continued; `granted` is equal once it may */
    tutti_store_connection *previous, *next;
} tutti_store_share;

typedef struct tutti_store_pool {
    size_t small, big, waiters; /* bytes */
    tutti_store_connection *turn;
    uint64_t turn_address; /* number of the address that last had the turn */
    tutti_store_connection *first, *last;
    bool changed; /* since the last check that found that the queue must wait */
} tutti_store_pool;

/* Must be zeroed before use. */
typedef struct tutti_store_budget {
    tutti_store_pool own, foreign;
} tutti_store_budget;

/* True: the connection may hold `held` bytes, and must settle before the next connection asks. False: it has been put
 * into the queue. */
bool tutti_store_budget_ask(tutti_store_budget *budget, tutti_store_connection *connection, size_t held);
/* Updates the sums to the bytes that the connection holds now. */
void tutti_store_budget_settle(tutti_store_budget *budget, tutti_store_connection *connection);
/* Removes the connection from the sums and from the queue, because it is closed or changes its pool. */
void tutti_store_budget_leave(tutti_store_budget *budget, tutti_store_connection *connection);
/* Removes the next connection that may continue from its queue and returns it; NULL: all must wait. */
tutti_store_connection *tutti_store_budget_next(tutti_store_budget *budget);
/* Returns whether the connection may read and have requests carried out. It may not while it waits, nor while its
 * client has many replies unread; if others wait, any unread reply is enough. */
bool tutti_store_budget_may_go_on(const tutti_store_budget *budget, const tutti_store_connection *connection);
/* Records that `bytes` bytes were read from the connection or sent to it. */
void tutti_store_budget_move(tutti_store_connection *connection, size_t bytes);
/* Returns true when the connection keeps others waiting without making progress. */
bool tutti_store_budget_is_stalled(const tutti_store_budget *budget, const tutti_store_connection *connection,
                                   int64_t now_ns);
/* Returns true when a connection waits for memory. */
bool tutti_store_budget_is_short(const tutti_store_budget *budget);

#endif
