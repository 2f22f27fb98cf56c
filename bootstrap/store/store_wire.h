/*
 * The protocol between a store's client and its server: that of PyTorch's TCPStore.
 *
 * A connection starts with VALIDATE and the magic number. Requests follow one another: an op byte, then its fields
 * in native byte order (little-endian on all supported machines). A blob or a key is a uint64 length and the bytes.
 * There is no framing. Access is controlled by the address on which the server listens and, for processes of its
 * own host, by their user (store_peer.h); a connection's right to change keys depends on its proof (store_proof.h).
 */
#ifndef TUTTI_BOOTSTRAP_STORE_WIRE_H
#define TUTTI_BOOTSTRAP_STORE_WIRE_H

#include <stdint.h>

#define TUTTI_STORE_MAGIC UINT32_C(0x3C85F7CE)

/* Bounds of PyTorch's server. */
#define TUTTI_STORE_MOST_KEY_BYTES   UINT64_C(8192)
#define TUTTI_STORE_MOST_VALUE_BYTES (UINT64_C(8) << 20)
#define TUTTI_STORE_MOST_KEYS        (UINT64_C(128) << 10)
/* Tutti's own bounds: one complete request, one complete reply, and all keys and values together. */
#define TUTTI_STORE_MOST_REQUEST_BYTES (UINT64_C(128) << 20)
#define TUTTI_STORE_MOST_REPLY_BYTES   (UINT64_C(128) << 20)
#define TUTTI_STORE_MOST_STORED_BYTES  (UINT64_C(1) << 30)
/* The part of these bytes that foreign connections may store (tutti_store_is_own). */
#define TUTTI_STORE_MOST_FOREIGN_BYTES (TUTTI_STORE_MOST_STORED_BYTES / 4)

/* READY if the store asks for such proofs. No client's key can have this name: those begin with the prefix below. */
#define TUTTI_STORE_PROOF_KEY "tutti.store/proof/1"

/* The prefix that a client adds to each of its users' keys. */
#define TUTTI_STORE_KEY_PREFIX "/"

typedef enum tutti_store_op {
    TUTTI_STORE_VALIDATE = 0,
    TUTTI_STORE_SET,
    TUTTI_STORE_COMPARE_SET,
    TUTTI_STORE_GET,
    TUTTI_STORE_ADD,
    TUTTI_STORE_CHECK,
    TUTTI_STORE_WAIT,
    TUTTI_STORE_GETNUMKEYS,
    TUTTI_STORE_DELETE_KEY,
    TUTTI_STORE_APPEND,
    TUTTI_STORE_MULTI_GET,
    TUTTI_STORE_MULTI_SET,
    TUTTI_STORE_CANCEL_WAIT,
    TUTTI_STORE_PING,
    TUTTI_STORE_QUEUE_PUSH,
    TUTTI_STORE_QUEUE_POP,
    TUTTI_STORE_QUEUE_LEN,
    TUTTI_STORE_LIST_KEYS,
    TUTTI_STORE_BARRIER,
    /* Tutti's own ops: see store_proof.h. Far from PyTorch's numbers, to which more may be added. */
    TUTTI_STORE_CHALLENGE = 64,
    TUTTI_STORE_PROVE,
    TUTTI_STORE_OP_COUNT
} tutti_store_op;

/* Replies to WAIT (and BARRIER) and CANCEL_WAIT, and to CHECK. */
#define TUTTI_STORE_STOP_WAITING  0
#define TUTTI_STORE_WAIT_CANCELED 1
#define TUTTI_STORE_READY         0
#define TUTTI_STORE_NOT_READY     1

#endif
