/*
 * What the files of the listener share: its messages, the keys, and the connections that have proved themselves.
 *
 * Every message has a fixed size, and a side never reads more than the one that is due: what follows belongs to whoever gets
 * the connection. A hello hints at the keys that its sender knows, so that the listener answers with the right one and tells
 * strangers nothing but that they are. Both MACs cover the whole hello and both nonces: nothing of an earlier connection, and
 * nothing that the other side has sent, proves anything. The hello names the address that its sender has called, so a
 * connection that somebody else took and passes on is refused.
 */
#ifndef TUTTI_LISTENER_STATE_H
#define TUTTI_LISTENER_STATE_H

#include "bootstrap/base/hmac.h"
#include "bootstrap/store/secret.h"
#include "comm/net/listener.h"

#define TUTTI_LISTENER_NONCE_BYTES 32
#define TUTTI_LISTENER_HINT_BYTES  8
#define TUTTI_LISTENER_HINTS       8  /* of the newest keys */
#define TUTTI_LISTENER_KEYS        64 /* the oldest are forgotten */

typedef enum tutti_listener_verdict {
    TUTTI_LISTENER_ACCEPTED,
    TUTTI_LISTENER_GARBAGE,    /* no hello of this version, or a lane that cannot be */
    TUTTI_LISTENER_ELSEWHERE,  /* for another process */
    TUTTI_LISTENER_UNKNOWN,    /* no key in common */
    TUTTI_LISTENER_UNPROVED,   /* a wrong MAC */
    TUTTI_LISTENER_REDIRECTED, /* it has called another address than the one at which it has arrived */
    TUTTI_LISTENER_VERDICTS
} tutti_listener_verdict;

/* Where a connection has arrived, as both of its sides see it. */
typedef struct tutti_listener_endpoint {
    uint8_t address[16]; /* as in tutti_listener_address */
    uint16_t port;       /* this and the rest in the host's order */
    uint16_t unused[3];
} tutti_listener_endpoint;

typedef struct tutti_listener_hello {
    uint64_t magic;
    tutti_conn_id ticket;
    tutti_listener_endpoint called;
    uint8_t nonce[TUTTI_LISTENER_NONCE_BYTES];
    uint8_t hints[TUTTI_LISTENER_HINTS][TUTTI_LISTENER_HINT_BYTES]; /* unused ones: zeros */
} tutti_listener_hello;

typedef struct tutti_listener_reply {
    uint64_t magic;
    uint32_t verdict; /* not WELCOME: the rest is zeros */
    uint32_t hint;    /* the one whose key is used */
    uint8_t nonce[TUTTI_LISTENER_NONCE_BYTES];
    uint8_t mac[TUTTI_SHA256_BYTES];
} tutti_listener_reply;

typedef struct tutti_listener_proof {
    uint8_t mac[TUTTI_SHA256_BYTES];
} tutti_listener_proof;

typedef struct tutti_listener_accepted {
    uint64_t magic;
    uint32_t verdict, unused;
} tutti_listener_accepted;

#define TUTTI_LISTENER_MAGIC UINT64_C(0x33726f6f64747474) /* "tttdoor3" */

typedef struct tutti_listener_key {
    size_t bytes;
    uint8_t key[TUTTI_SECRET_BYTES];
} tutti_listener_key;

/* handshake.c */
/* Copies of all keys, newest first; gives their number. */
int tutti_listener_keys(tutti_listener_key keys_out[TUTTI_LISTENER_KEYS]);
void tutti_listener_forget(tutti_listener_key *keys, int nkeys);
/* `called` in it is the sender's to fill in. */
tutti_status tutti_listener_make_hello(const tutti_conn_id *ticket, const tutti_listener_key *keys, int nkeys,
                                       tutti_listener_hello *hello_out);
/* The answer of the process `self` to a hello that has arrived `here`, the MAC that is to come next, and the key of the
 * connection. */
tutti_status tutti_listener_answer(const tutti_listener_hello *hello, const uint8_t self[16],
                                   const tutti_listener_endpoint *here, tutti_listener_reply *reply_out,
                                   tutti_listener_proof *expected_out, uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]);
/* Checks the answer: has the listener proved itself? Then `proof_out` is what to send. WELCOME or the reason. */
tutti_listener_verdict tutti_listener_check_reply(const tutti_listener_hello *hello, const tutti_listener_reply *reply,
                                                  const tutti_listener_key *keys, int nkeys,
                                                  tutti_listener_proof *proof_out,
                                                  uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]);
/* "it knows another secret" and so on, of the other side. */
const char *tutti_listener_verdict_text(tutti_listener_verdict verdict);

/* accept.c: starts the thread that answers, on these listening sockets (taken over); it puts what has proved itself
 * into `arrived`. */
tutti_status tutti_listener_serve(const int *listeners, int nlisteners, const uint8_t self[16]);
/* Ends it, and waits for it. */
void tutti_listener_serve_end(void);

/* listener.c: takes the connection over. */
void tutti_listener_arrived(const tutti_conn_id *ticket, const tutti_connection *connection);
/* Drops connections whose other side has gone, and those that nobody has taken for very long. */
void tutti_listener_prune(void);

/* listener.c: the address that the connection was made to: getpeername's where this side has called, else getsockname's. */
tutti_listener_endpoint tutti_listener_called(int fd, bool by_this_side);

struct sockaddr_storage;
/* The address for bind and connect; gives its length. */
unsigned tutti_listener_sockaddr(const tutti_listener_address *address, uint16_t port,
                                 struct sockaddr_storage *address_out);

#endif
