/*
 * Shared by the files of the listener: its messages and the keys.
 *
 * Every message has a fixed size, and a side never reads beyond the message that is due: later bytes belong to the
 * user of the connection. A hello contains hints at the keys that its sender knows, so that the listener can pick
 * the right one, and reveals nothing to other processes but that they are refused. Both MACs cover the whole hello and
 * both nonces, so neither data of an earlier connection nor data that the other side has sent can serve as a proof.
 * The hello names the address that its sender connected to, so a connection that a third party intercepts and
 * forwards is refused.
 */
#ifndef TUTTI_LISTENER_STATE_H
#define TUTTI_LISTENER_STATE_H

#include "bootstrap/base/hmac.h"
#include "bootstrap/store/secret.h"
#include "comm/net/listener.h"

#define TUTTI_LISTENER_NONCE_BYTES 32
#define TUTTI_LISTENER_HINT_BYTES  8
#define TUTTI_LISTENER_HINTS       8  /* of the newest keys */
#define TUTTI_LISTENER_KEYS        64 /* the oldest are dropped */

typedef enum tutti_listener_verdict {
    TUTTI_LISTENER_ACCEPTED,
    TUTTI_LISTENER_GARBAGE,   /* not a hello of this version, or an invalid lane number */
    TUTTI_LISTENER_ELSEWHERE, /* the connection id names another process */
    TUTTI_LISTENER_UNKNOWN,   /* no common key */
    TUTTI_LISTENER_UNPROVED,  /* a wrong MAC */
    /* the sender connected to another address than the one at which the connection arrived */
    TUTTI_LISTENER_REDIRECTED,
    TUTTI_LISTENER_VERDICTS
} tutti_listener_verdict;

/* The address at which a connection arrived, as seen by both sides. */
typedef struct tutti_listener_endpoint {
    uint8_t address[16]; /* as in tutti_listener_address */
    uint16_t port;       /* this and the rest in host byte order */
    uint16_t unused[3];
} tutti_listener_endpoint;

typedef struct tutti_listener_hello {
    uint64_t magic;
    tutti_conn_id conn_id;
    tutti_listener_endpoint called;
    uint8_t nonce[TUTTI_LISTENER_NONCE_BYTES];
    uint8_t hints[TUTTI_LISTENER_HINTS][TUTTI_LISTENER_HINT_BYTES]; /* unused ones: zeros */
} tutti_listener_hello;

typedef struct tutti_listener_reply {
    uint64_t magic;
    uint32_t verdict; /* if not ACCEPTED, the rest is zeros */
    uint32_t hint;    /* index of the hint whose key is used */
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

/* connect.c: makes and checks the messages. */
/* The caller fills in `called`. */
tutti_status tutti_listener_make_hello(const tutti_conn_id *conn_id, const tutti_listener_key *keys, int nkeys,
                                       tutti_listener_hello *hello_out);
/* Makes the answer of process `self` to a hello that arrived at `here`, the MAC expected next, and the key. */
tutti_status tutti_listener_answer(const tutti_listener_hello *hello, const uint8_t self[16],
                                   const tutti_listener_endpoint *here, tutti_listener_reply *reply_out,
                                   tutti_listener_proof *expected_out, uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]);
/* Checks whether the listener has authenticated itself; `proof_out` is then to be sent. ACCEPTED or the reason. */
tutti_listener_verdict tutti_listener_check_reply(const tutti_listener_hello *hello, const tutti_listener_reply *reply,
                                                  const tutti_listener_key *keys, int nkeys,
                                                  tutti_listener_proof *proof_out,
                                                  uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]);
/* Text for the other side's verdict, such as "it does not know this job's secret". */
const char *tutti_listener_verdict_text(tutti_listener_verdict verdict);

/* The address that the connection was made to: that of getpeername if this side connected, else that of getsockname. */
tutti_listener_endpoint tutti_listener_called(int fd, bool by_this_side);
struct sockaddr_storage;
/* The address for bind and connect; returns its length. */
unsigned tutti_listener_sockaddr(const tutti_listener_address *address, uint16_t port,
                                 struct sockaddr_storage *address_out);

#endif
