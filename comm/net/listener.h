/*
 * The listener of a process: processes of other hosts connect to it and authenticate themselves.
 *
 * A process listens on one TCP port, on the interfaces that the job may use (bootstrap/machine/interfaces.h). The
 * connecting side sends the connection id, which says what the connection is for, and both sides prove that they know
 * the key of the job:
 *
 *   connector -> listener   hello  { magic, connection id, the address it connected to, nonce }
 *   listener -> connector   proof  { nonce, MAC(key, "d", hello, nonce) }
 *   connector -> listener   proof  { MAC(key, "c", hello, nonce) }
 *   listener -> connector   welcome
 *
 * MAC(key, "s", hello, nonce) becomes the connection's own key. A user of the connection can use it to tie later
 * data to this handshake and its connection id. This does not happen by itself: data on the socket is plain.
 *
 * A thread of its own answers, so that a rank that computes does not delay its peers. It handles many
 * unauthenticated connections at a time, up to a fixed number, and none for longer than a few seconds.
 * Authenticated connections are kept by their ids until a caller takes them; those of one pipe are made one after the
 * other, and taken together.
 *
 * Invariant: no unauthenticated connection is kept for longer, or costs more memory, than a fixed bound.
 */
#ifndef TUTTI_LISTENER_H
#define TUTTI_LISTENER_H

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "comm/net/transport/transport.h"

#define TUTTI_LISTENER_ADDRESSES     8
#define TUTTI_LISTENER_PURPOSE_BYTES 16

/* How to reach a process; part of its listener info. Fixed size, checked by the reader. */
typedef struct tutti_listener_address {
    uint8_t bytes[16]; /* IPv6, or IPv4 as ::ffff:a.b.c.d; network order */
    uint32_t scope;    /* scope id of a link-local address on the owner's side; else 0 */
    char interface[16];
    uint32_t speed_mbit; /* as reported by the system; 0: unknown */
} tutti_listener_address;

typedef struct tutti_listener_info {
    uint8_t process[16]; /* tutti_peer.id */
    uint16_t port;       /* 0: the process does not listen; `why` has the reason */
    uint16_t naddresses;
    uint32_t transports; /* bit i: tutti_transports[i] is available */
    tutti_listener_address addresses[TUTTI_LISTENER_ADDRESSES];
    char why[96];
} tutti_listener_info;

/* The connection id: what a connection is for. Both sides name the same one. */
typedef struct tutti_conn_id {
    uint8_t from[16], to[16]; /* process ids: connecting side, listening side */
    uint64_t comm_id;         /* 0: belongs to the two processes, not to a communicator */
    int32_t from_rank, to_rank;
    uint32_t use;         /* tutti_conn_use */
    uint32_t transport;   /* transport to be opened on the connection: index into tutti_transports */
    uint32_t lane, lanes; /* connection `lane` of the `lanes` that form one pipe (transport/multi_socket.h) */
} tutti_conn_id;

typedef enum tutti_conn_use {
    TUTTI_CONN_LINK = 1,  /* collectives of a communicator */
    TUTTI_CONN_MESSAGES,  /* point to point between two processes */
    TUTTI_CONN_HEARTBEAT, /* between two processes */
    TUTTI_CONN_LINK_TWIN, /* collectives of a communicator: the second connection, for exchanges */
} tutti_conn_use;

/* Opens the listener at first use, starts its thread, and fills the listener info. A connecting process must know
 * one of the keys passed to tutti_listener_add_key. */
tutti_status tutti_listener_open(tutti_listener_info *info_out);
/* Adds the key of a job: the secret, or the random key that rank 0 left in the store. Called once per key; if one
 * process runs several jobs, all of their keys are tried. */
tutti_status tutti_listener_add_key(const void *key, size_t key_bytes);

/* The connecting side (by convention the process with the lower id, compared byte by byte): tries all addresses of
 * `listener` at once, nearest first, and authenticates. The error lists every candidate with its reason. */
tutti_status tutti_listener_connect(const tutti_listener_info *listener, const tutti_conn_id *conn_id,
                                    tutti_deadline *deadline, tutti_connection *connection_out);
/* The listening side: returns the connections of all lanes of that connection id, or TUTTI_NOT_YET. */
tutti_status tutti_listener_take(const tutti_conn_id *conn_id, tutti_connection *connections_out);
/* Number of connections that have arrived so far: a cheap check before tutti_listener_take. */
uint64_t tutti_listener_count(void);
/* A descriptor that is readable when a connection may have arrived (an eventfd; any number of waiters). */
int tutti_listener_notify_fd(void);

#endif
