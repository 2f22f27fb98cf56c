/*
 * The MACs of a store's connections. See store_proof.h.
 */
#include "bootstrap/store/store_proof.h"

#include <string.h>

#include "bootstrap/base/common.h"

tutti_store_secret tutti_store_secret_of(const char *text) {
    static const char purpose[] = "tutti: connections to the store";
    tutti_store_secret secret = {.is_set = text != NULL && *text != '\0'};
    if (secret.is_set) tutti_hmac_of(text, strlen(text), purpose, sizeof purpose, secret.key);
    return secret;
}

void tutti_store_prove(const tutti_store_secret *secret, tutti_store_side side,
                       const uint8_t client_nonce[TUTTI_STORE_NONCE_BYTES],
                       const uint8_t server_nonce[TUTTI_STORE_NONCE_BYTES], uint8_t mac[TUTTI_SHA256_BYTES]) {
    static const char names[][8] = {[TUTTI_STORE_SERVER] = "server", [TUTTI_STORE_CLIENT] = "client"};
    tutti_hmac hash;
    tutti_hmac_init(&hash, secret->key, sizeof secret->key);
    tutti_hmac_update(&hash, names[side], sizeof names[side]);
    tutti_hmac_update(&hash, client_nonce, TUTTI_STORE_NONCE_BYTES);
    tutti_hmac_update(&hash, server_nonce, TUTTI_STORE_NONCE_BYTES);
    tutti_hmac_final(&hash, mac);
}

bool tutti_store_key_is_guarded(tutti_store_bytes key) {
    static const char *const guarded[] = {"/tutti/", "/tuttirun/"};
    for (size_t i = 0; i < TUTTI_COUNT_OF(guarded); i++) {
        size_t bytes = strlen(guarded[i]);
        if (key.bytes >= bytes && memcmp(key.data, guarded[i], bytes) == 0) return true;
    }
    return false;
}
