/*
 * One client as seen by the store's server, and the interface between the two halves of the server: store_server.c
 * moves bytes between sockets and buffers, store_requests.c turns complete requests into changes of the table and
 * replies. A reply may go to a connection other than the requesting one (when a key that it waited for was set);
 * connections that received a reply are collected in the hub's list and flushed by the server.
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

/* How far the first request in the input has been scanned. */
typedef struct tutti_store_scan {
    size_t at;        /* bytes of complete fields; 0: not begun */
    size_t field;     /* next field of the repeated group */
    uint64_t repeats; /* repeats of the group that are still to come */
    bool counted;     /* the number of repeats is known */
} tutti_store_scan;

struct tutti_store_connection {
    int fd;
    uint32_t events; /* events that epoll watches for */
    bool validated;  /* the magic number was received */
    bool failed;     /* to be closed */
    bool challenged; /* `expected` holds the MAC that proves the secret */
    bool proved;     /* it has proved that it knows the job's secret */
    bool dirty;      /* in the hub's list */
    bool local_user; /* a process of this host and of this user or root, by the kernel (store_peer.h) */
    bool foreign;    /* counted as foreign: the negation of tutti_store_is_own when last checked */
    bool unverified; /* foreign and without the magic number */
    bool reads_next; /* it waits for memory to read into, not for memory for a reply */
    int64_t opened_ns, active_ns;
    tutti_store_buffer in, out;
    tutti_store_scan scan;
    uint8_t expected[TUTTI_SHA256_BYTES];
    tutti_store_waiter *waiters; /* of the wait in progress; NULL: none */
    size_t nwaiters, awaited;
    tutti_store_share share;
    struct tutti_store_address *address;     /* its address; NULL unless it is foreign */
    tutti_store_connection *previous, *next; /* in the list of all connections, or of those closed in this turn */
    tutti_store_connection *previous_unverified, *next_unverified;
    tutti_store_connection *next_dirty;
};

typedef struct tutti_store_hub {
    tutti_store_table *table;
    tutti_store_connection *dirty;
    tutti_store_budget budget;
    tutti_store_secret secret;
    uint64_t nrefused; /* refused requests of connections that had not proved the secret */
} tutti_store_hub;

/* Returns true when the client is known to belong to this job's user or to this job. All others are foreign: they
 * may be ranks of other hosts, and are served within lower limits. */
static inline bool tutti_store_is_own(const tutti_store_connection *connection) {
    return connection->local_user || connection->proved;
}

static inline size_t tutti_store_buffer_used(const tutti_store_buffer *buffer) {
    return buffer->end - buffer->start;
}

/* Makes room for `bytes` more bytes behind the end. */
tutti_status tutti_store_buffer_reserve(tutti_store_buffer *buffer, size_t bytes);
/* Returns the capacity after tutti_store_buffer_reserve. */
size_t tutti_store_buffer_grown(const tutti_store_buffer *buffer, size_t bytes);
/* Removes bytes at the front; an empty buffer releases its memory. */
void tutti_store_buffer_consume(tutti_store_buffer *buffer, size_t bytes);
/* Shrinks a buffer that is mostly unused. */
void tutti_store_buffer_trim(tutti_store_buffer *buffer);
void tutti_store_buffer_free(tutti_store_buffer *buffer);

/* While this much output is unsent, the connection's requests wait, too. */
#define TUTTI_STORE_OUTPUT_LIMIT ((size_t)1 << 20)

/* Scans the received part of the input's first request; returns true when the request is complete, and scan->at is
 * then its length. An error means that the request violates the protocol or a bound. */
tutti_status tutti_store_scan_request(const tutti_store_connection *from, tutti_store_scan *scan, bool *whole_out);
/* Lower bound of the bytes that are missing from the first request. */
size_t tutti_store_scan_missing(const tutti_store_connection *from);

/* Carries out the complete requests of the input while there is room for the replies; otherwise the connection waits in
 * the budget's queue. An error means that the client violated the protocol or exceeded a bound: the caller
 * must close the connection. */
tutti_status tutti_store_requests_run(tutti_store_hub *hub, tutti_store_connection *connection);
/* Ends the wait in progress, if there is one, without a reply. */
void tutti_store_requests_unwait(tutti_store_hub *hub, tutti_store_connection *connection);

#endif
