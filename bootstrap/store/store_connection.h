/*
 * One client as the store's server sees it, and the door between the two halves of the server: store_server.c
 * moves bytes between sockets and buffers, store_requests.c turns whole requests into changes of the table and
 * replies. A reply may go to another connection than the one that asked (a key that it waited for has come);
 * connections that got one are gathered in the hub's list and flushed by the server.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_CONNECTION_H
#define TUTTI_BOOTSTRAP_STORE_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/store/store_budget.h"
#include "bootstrap/store/store_proof.h"
#include "bootstrap/store/store_table.h"

/* Bytes [start, end) of data are in use. */
typedef struct tutti_store_buffer {
    uint8_t *data;
    size_t start, end, capacity;
} tutti_store_buffer;

/* How far the first request in the input has been looked over. */
typedef struct tutti_store_scan {
    size_t at;        /* bytes of it that are whole; 0: not begun */
    size_t field;     /* next field of the repeated group */
    uint64_t repeats; /* of the group, still to come */
    bool counted;     /* the number of repeats is known */
} tutti_store_scan;

struct tutti_store_connection {
    int fd;
    uint32_t events; /* what epoll watches for */
    bool validated;  /* the magic number has come */
    bool failed;     /* to be closed */
    bool challenged; /* `expected` proves it */
    bool proved;     /* it has proved to know the job's secret */
    bool dirty;      /* in the hub's list */
    bool local_user; /* a process of this host and of this user, or of root's: the kernel says so (store_peer.h) */
    bool foreign;    /* counted as such: what tutti_store_is_own said when that was last looked at */
    bool stranger;   /* foreign, without the magic number */
    bool reads_next; /* it has waited for memory to read into, not for that of a reply */
    int64_t opened_ns, active_ns;
    tutti_store_buffer in, out;
    tutti_store_scan scan;
    uint8_t expected[TUTTI_SHA256_BYTES];
    tutti_store_waiter *waiters; /* of the wait under way, NULL: none */
    size_t nwaiters, awaited;
    tutti_store_share share;
    struct tutti_store_address *address;     /* where it comes from; NULL unless it is foreign */
    tutti_store_connection *previous, *next; /* all connections, or the dead of this turn */
    tutti_store_connection *previous_stranger, *next_stranger;
    tutti_store_connection *next_dirty;
};

typedef struct tutti_store_hub {
    tutti_store_table *table;
    tutti_store_connection *dirty;
    tutti_store_budget budget;
    tutti_store_secret secret;
    uint64_t nrefused; /* requests of connections that had to prove the secret and have not */
} tutti_store_hub;

/* Is the client known to be of this job's user, or of this job? All others are foreign: they may be ranks of other hosts, and are served, but
 * can take less. */
static inline bool tutti_store_is_own(const tutti_store_connection *connection) {
    return connection->local_user || connection->proved;
}

static inline size_t tutti_store_buffer_used(const tutti_store_buffer *buffer) {
    return buffer->end - buffer->start;
}

/* Makes room for `bytes` more behind the end. */
tutti_status tutti_store_buffer_reserve(tutti_store_buffer *buffer, size_t bytes);
/* The capacity after that. */
size_t tutti_store_buffer_grown(const tutti_store_buffer *buffer, size_t bytes);
/* Takes bytes away at the front; an empty buffer gives its memory back. */
void tutti_store_buffer_consume(tutti_store_buffer *buffer, size_t bytes);
/* Gives back what is mostly unused. */
void tutti_store_buffer_trim(tutti_store_buffer *buffer);
void tutti_store_buffer_free(tutti_store_buffer *buffer);

/* While this much output waits for its client, its requests wait too. */
#define TUTTI_STORE_OUTPUT_LIMIT ((size_t)1 << 20)

/* Looks over what has come of the input's first request; true when all of it is there, scan->at then is its length.
 * An error means that it breaks the protocol or a bound. */
tutti_status tutti_store_scan_request(const tutti_store_connection *from, tutti_store_scan *scan, bool *whole_out);
/* Bytes that the first request certainly lacks; it may lack more. */
size_t tutti_store_scan_missing(const tutti_store_connection *from);

/* At most how many bytes the reply to this request, which is whole, has. */
size_t tutti_store_reply_bytes(tutti_store_hub *hub, const uint8_t *request);

/* Carries out the whole requests of the input, as long as there is room for the replies; else the connection waits in the
 * budget's queue. An error means that the client broke the protocol or asked for more than there is: close it. */
tutti_status tutti_store_requests_run(tutti_store_hub *hub, tutti_store_connection *connection);
/* Ends the wait under way, if there is one, without a reply. */
void tutti_store_requests_unwait(tutti_store_hub *hub, tutti_store_connection *connection);

#endif
