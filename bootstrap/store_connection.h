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

#include "bootstrap/store_proof.h"
#include "bootstrap/store_table.h"

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

typedef struct tutti_store_connection {
    int fd;
    uint32_t events; /* what epoll watches for */
    bool validated;  /* the magic number has come */
    bool failed;     /* to be closed */
    bool challenged; /* `expected` proves it */
    bool proved;     /* it has proved to know the job's secret */
    bool dirty;      /* in the hub's list */
    int64_t opened_ns;
    tutti_store_buffer in, out;
    tutti_store_scan scan;
    uint8_t expected[TUTTI_SHA256_BYTES];
    tutti_store_waiter *waiters; /* of the wait under way, NULL: none */
    size_t nwaiters, awaited;
    struct tutti_store_connection *previous, *next; /* all connections, or the dead of this turn */
    struct tutti_store_connection *next_dirty;
} tutti_store_connection;

typedef struct tutti_store_hub {
    tutti_store_table *table;
    tutti_store_connection *dirty;
    tutti_store_secret secret;
    uint64_t nrefused; /* requests of connections that had to prove the secret and have not */
} tutti_store_hub;

static inline size_t tutti_store_buffer_used(const tutti_store_buffer *buffer) {
    return buffer->end - buffer->start;
}

/* Makes room for `bytes` more behind the end. */
tutti_status tutti_store_buffer_reserve(tutti_store_buffer *buffer, size_t bytes);
/* Takes bytes away at the front; an empty big buffer gives its memory back. */
void tutti_store_buffer_consume(tutti_store_buffer *buffer, size_t bytes);

/* While this much output waits for its client, its requests wait too. */
#define TUTTI_STORE_OUTPUT_LIMIT ((size_t)1 << 20)

/* Looks over what has come of the input's first request; true when all of it is there, scan->at then is its length.
 * An error means that it breaks the protocol or a bound. */
tutti_status tutti_store_scan_request(const tutti_store_connection *from, tutti_store_scan *scan, bool *whole_out);

/* Carries out the whole requests of the input. An error means that the client broke the protocol or asked for
 * more than there is: close it. */
tutti_status tutti_store_requests_run(tutti_store_hub *hub, tutti_store_connection *connection);
/* Ends the wait under way, if there is one, without a reply. */
void tutti_store_requests_unwait(tutti_store_hub *hub, tutti_store_connection *connection);

#endif
