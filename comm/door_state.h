/*
 * What the files of the door share: its messages, the keys, and the connections that have proved themselves.
 *
 * Every message has a fixed size, and a side never reads more than the one that is due: what follows belongs to whoever gets
 * the connection. A hello hints at the keys that its sender knows, so that the door answers with the right one and tells
 * strangers nothing but that they are. Both MACs cover the whole hello and both nonces: nothing of an earlier connection, and
 * nothing that the other side has sent, proves anything. The hello names the address that its sender has called, so a
 * connection that somebody else took and passes on is refused.
 */
#ifndef TUTTI_DOOR_STATE_H
#define TUTTI_DOOR_STATE_H

#include "bootstrap/base/hmac.h"
#include "bootstrap/secret.h"
#include "comm/door.h"

#define TUTTI_DOOR_NONCE_BYTES 32
#define TUTTI_DOOR_HINT_BYTES  8
#define TUTTI_DOOR_HINTS       8  /* of the newest keys */
#define TUTTI_DOOR_KEYS        64 /* the oldest are forgotten */

typedef enum tutti_door_verdict {
    TUTTI_DOOR_WELCOME,
    TUTTI_DOOR_GARBAGE,    /* no hello of this version, or a lane that cannot be */
    TUTTI_DOOR_ELSEWHERE,  /* for another process */
    TUTTI_DOOR_UNKNOWN,    /* no key in common */
    TUTTI_DOOR_UNPROVED,   /* a wrong MAC */
    TUTTI_DOOR_REDIRECTED, /* it has called another address than the one at which it has arrived */
    TUTTI_DOOR_VERDICTS
} tutti_door_verdict;

/* Where a connection has arrived, as both of its sides see it. */
typedef struct tutti_door_endpoint {
    uint8_t address[16]; /* as in tutti_door_address */
    uint16_t port;       /* this and the rest in the host's order */
    uint16_t unused[3];
} tutti_door_endpoint;

typedef struct tutti_door_hello {
    uint64_t magic;
    tutti_ticket ticket;
    tutti_door_endpoint called;
    uint8_t nonce[TUTTI_DOOR_NONCE_BYTES];
    uint8_t hints[TUTTI_DOOR_HINTS][TUTTI_DOOR_HINT_BYTES]; /* unused ones: zeros */
} tutti_door_hello;

typedef struct tutti_door_reply {
    uint64_t magic;
    uint32_t verdict; /* not WELCOME: the rest is zeros */
    uint32_t hint;    /* the one whose key is used */
    uint8_t nonce[TUTTI_DOOR_NONCE_BYTES];
    uint8_t mac[TUTTI_SHA256_BYTES];
} tutti_door_reply;

typedef struct tutti_door_proof {
    uint8_t mac[TUTTI_SHA256_BYTES];
} tutti_door_proof;

typedef struct tutti_door_welcome {
    uint64_t magic;
    uint32_t verdict, unused;
} tutti_door_welcome;

#define TUTTI_DOOR_MAGIC UINT64_C(0x33726f6f64747474) /* "tttdoor3" */

typedef struct tutti_door_key {
    size_t bytes;
    uint8_t key[TUTTI_SECRET_BYTES];
} tutti_door_key;

/* door_prove.c */
/* Copies of all keys, newest first; gives their number. */
int tutti_door_keys(tutti_door_key keys_out[TUTTI_DOOR_KEYS]);
void tutti_door_forget(tutti_door_key *keys, int nkeys);
/* `called` in it is the sender's to fill in. */
tutti_status tutti_door_make_hello(const tutti_ticket *ticket, const tutti_door_key *keys, int nkeys,
                                   tutti_door_hello *hello_out);
/* The answer of the process `self` to a hello that has arrived `here`, the MAC that is to come next, and the key of the
 * connection. */
tutti_status tutti_door_answer(const tutti_door_hello *hello, const uint8_t self[16], const tutti_door_endpoint *here,
                               tutti_door_reply *reply_out, tutti_door_proof *expected_out,
                               uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]);
/* Checks the answer: has the door proved itself? Then `proof_out` is what to send. WELCOME or the reason. */
tutti_door_verdict tutti_door_check_reply(const tutti_door_hello *hello, const tutti_door_reply *reply,
                                          const tutti_door_key *keys, int nkeys, tutti_door_proof *proof_out,
                                          uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]);
/* "it knows another secret" and so on, of the other side. */
const char *tutti_door_verdict_text(tutti_door_verdict verdict);

/* door_serve.c: starts the thread that answers, on these listening sockets (taken over); it puts what has proved itself
 * into `arrived`. */
tutti_status tutti_door_serve(const int *listeners, int nlisteners, const uint8_t self[16]);
/* Ends it, and waits for it. */
void tutti_door_serve_end(void);

/* door.c: takes the connection over. */
void tutti_door_arrived(const tutti_ticket *ticket, const tutti_connection *connection);
/* Drops connections whose other side has gone, and those that nobody has taken for very long. */
void tutti_door_prune(void);

/* door.c: the address that the connection was made to: getpeername's where this side has called, else getsockname's. */
tutti_door_endpoint tutti_door_called(int fd, bool by_this_side);

struct sockaddr_storage;
/* The address for bind and connect; gives its length. */
unsigned tutti_door_sockaddr(const tutti_door_address *address, uint16_t port, struct sockaddr_storage *address_out);

#endif
