/*
 * How a store's client and server prove to each other that they know the job's secret.
 *
 *     client                                              server
 *     CHECK of TUTTI_STORE_PROOF_KEY            ->        READY: this store has a secret
 *     CHALLENGE, with a random number C         ->
 *                                               <-        a random number S, and MAC("server", C, S)
 *     PROVE, with MAC("client", C, S)           ->
 *
 * A store with a secret lets only connections that have proved it change Tutti's own keys: those that begin with
 * "/tutti/" and "/tuttirun/". PyTorch's clients, which cannot prove anything, share the store for their own keys.
 * PyTorch's server answers the check with NOT_READY; the client then sends no challenge.
 *
 * The scheme is the challenge and response of RFC 2195 with HMAC-SHA-256, in both directions. It authenticates the
 * two ends, not the bytes between them: a host on the path can still change those.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_PROOF_H
#define TUTTI_BOOTSTRAP_STORE_PROOF_H

#include <stdbool.h>
#include <stdint.h>

#include "bootstrap/base/hmac.h"
#include "bootstrap/store/store_table.h"

#define TUTTI_STORE_NONCE_BYTES 32

/* The key for the proofs of a store's connections. */
typedef struct tutti_store_secret {
    bool is_set;
    uint8_t key[TUTTI_SHA256_BYTES];
} tutti_store_secret;

/* NULL and "" mean no secret. */
tutti_store_secret tutti_store_secret_of(const char *text);

typedef enum tutti_store_side { TUTTI_STORE_SERVER, TUTTI_STORE_CLIENT } tutti_store_side;

/* Computes the MAC with which `side` proves the secret, for the two random numbers. */
void tutti_store_prove(const tutti_store_secret *secret, tutti_store_side side,
                       const uint8_t client_nonce[TUTTI_STORE_NONCE_BYTES],
                       const uint8_t server_nonce[TUTTI_STORE_NONCE_BYTES], uint8_t mac[TUTTI_SHA256_BYTES]);

/* Returns true when only proved connections may change the key. */
bool tutti_store_key_is_guarded(tutti_store_bytes key);

#endif
