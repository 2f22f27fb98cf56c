/*
 * The listener of a process: where processes of other hosts connect, and how they prove who they are.
 *
 * A process listens on one TCP port, on the interfaces that the job may use (bootstrap/machine/interfaces.h). Who connects says
 * what the connection is for (a ticket) and both sides prove that they know the key of the job:
 *
 *   connector -> listener   hello  { magic, ticket, the address that it has called, nonce }
 *   listener -> connector   proof  { nonce, MAC(key, "d", hello, nonce) }
 *   connector -> listener   proof  { MAC(key, "c", hello, nonce) }
 *   listener -> connector   welcome
 *
 * Of the same, MAC(key, "s", hello, nonce), becomes the connection's own key: what follows on it can be tied to this proof,
 * with its ticket, by whoever needs that. It does not follow by itself: what is sent on the socket is plain.
 *
 * A thread of its own answers, so that a rank that computes keeps nobody waiting; it takes any number of strangers at a
 * time, but only a bounded one, and none for longer than a few seconds. Connections that are proved wait by their ticket
 * until somebody asks for them; those of one pipe are made one after the other, and taken together.
 *
 * Invariant: nothing that has not proved itself is kept for longer, or costs more memory, than a fixed bound.
 */
#ifndef TUTTI_LISTENER_H
#define TUTTI_LISTENER_H

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "comm/net/transport/transport.h"

#define TUTTI_LISTENER_ADDRESSES     8
#define TUTTI_LISTENER_PURPOSE_BYTES 16

/* Where a process can be reached: goes on its card. Fixed size, checked by the reader. */
typedef struct tutti_listener_address {
    uint8_t bytes[16]; /* IPv6, or IPv4 as ::ffff:a.b.c.d; network order */
    uint32_t scope;    /* of a link-local one on the owner's side; 0 */
    char interface[16];
    uint32_t speed_mbit; /* as the system says; 0: not known */
} tutti_listener_address;

typedef struct tutti_listener_info {
    uint8_t process[16]; /* tutti_peer.id */
    uint16_t port;       /* 0: the process listens nowhere; `why` says the reason */
    uint16_t naddresses;
    uint32_t transports; /* bit i: tutti_transports[i] is to be had */
    tutti_listener_address addresses[TUTTI_LISTENER_ADDRESSES];
    char why[96];
} tutti_listener_info;

/* What a connection is for; both sides name the same. */
typedef struct tutti_conn_id {
    uint8_t from[16], to[16]; /* processes: who connects, and to whom */
    uint64_t comm_id;         /* 0: of the processes, not of a communicator */
    int32_t from_rank, to_rank;
    uint32_t use;       /* tutti_conn_use */
    uint32_t transport; /* what the connection is to become: index into tutti_transports */
    uint32_t lane,
        lanes; /* it is one of so many that make one pipe (transport/multi_socket.h): 0 of 1, where there is but one */
} tutti_conn_id;

typedef enum tutti_conn_use {
    TUTTI_CONN_LINK = 1,  /* of a communicator's collectives */
    TUTTI_CONN_MESSAGES,  /* point to point of two processes */
    TUTTI_CONN_HEARTBEAT, /* of two processes */
    TUTTI_CONN_LINK_TWIN, /* of a communicator's collectives: the second one, for exchanges */
} tutti_conn_use;

/* Opens the listener at first use, and starts its thread; fills the card. Who connects must know one of the keys that
 * tutti_listener_add_key was given. */
tutti_status tutti_listener_open(tutti_listener_info *card_out);
/* The key of the job: the secret, or the random one that rank 0 left in the store. Once per key; several jobs of one process
 * (their keys) are all tried. */
tutti_status tutti_listener_add_key(const void *key, size_t key_bytes);

/* The side that connects (by convention the one whose process id is lower, byte by byte): tries all addresses of the card at
 * once, nearest first, and proves itself. The error lists every candidate with its reason. */
tutti_status tutti_listener_connect(const tutti_listener_info *card, const tutti_conn_id *ticket, tutti_deadline *deadline,
                                tutti_connection *connection_out);
/* The other side: the connections of all lanes of that ticket, if they have come: TUTTI_OK; TUTTI_NOT_YET: not so far. */
tutti_status tutti_listener_take(const tutti_conn_id *ticket, tutti_connection *connections_out);
/* How many have come so far: a look that costs nothing, before tutti_listener_take. */
uint64_t tutti_listener_count(void);
/* A descriptor that is readable when something may have come to the listener (an eventfd; any number of waiters). */
int tutti_listener_notify_fd(void);

#endif
