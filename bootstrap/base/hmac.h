/*
 * HMAC-SHA-256 (RFC 2104, FIPS 180-4). Two sides use it to prove to each other that they know the job's secret
 * without sending it. Tested with the vectors of RFC 4231.
 */
#ifndef TUTTI_BASE_HMAC_H
#define TUTTI_BASE_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TUTTI_SHA256_BYTES 32

typedef struct tutti_sha256 {
    uint32_t state[8];
    uint64_t message_bytes;
    uint8_t block[64];
} tutti_sha256;

typedef struct tutti_hmac {
    tutti_sha256 inner, outer;
} tutti_hmac;

void tutti_sha256_init(tutti_sha256 *hash);
void tutti_sha256_update(tutti_sha256 *hash, const void *data, size_t bytes);
void tutti_sha256_final(tutti_sha256 *hash, uint8_t digest[TUTTI_SHA256_BYTES]);

void tutti_hmac_init(tutti_hmac *mac, const void *key, size_t key_bytes);
void tutti_hmac_update(tutti_hmac *mac, const void *data, size_t bytes);
void tutti_hmac_final(tutti_hmac *mac, uint8_t digest[TUTTI_SHA256_BYTES]);

/* Computes the MAC of one buffer. */
void tutti_hmac_of(const void *key, size_t key_bytes, const void *data, size_t bytes,
                   uint8_t digest[TUTTI_SHA256_BYTES]);

/* Compares in constant time, so that timing does not reveal the position of a difference. */
bool tutti_hmac_equal(const uint8_t *a, const uint8_t *b, size_t bytes);

#endif
