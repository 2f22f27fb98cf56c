/*
 * SHA-256 as specified in FIPS 180-4, and HMAC on top of it. Messages are short, so the code favours clarity over
 * speed.
 */
#include "bootstrap/base/hmac.h"

#include <string.h>

#include "bootstrap/base/common.h"

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static const uint32_t first_state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t rotate(uint32_t x, int by) {
    return x >> by | x << (32 - by);
}

static uint32_t load_big(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void store_big(uint8_t *bytes, uint32_t x) {
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(x >> (24 - 8 * i));
}

static void take_block(uint32_t state[8], const uint8_t block[64]) {
    uint32_t w[64], s[8];
    for (int t = 0; t < 16; t++) w[t] = load_big(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t low = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t high = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + low + w[t - 7] + high;
    }
    memcpy(s, state, sizeof s); /* a b c d e f g h */
    for (int t = 0; t < 64; t++) {
        uint32_t big1 = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t t1 = s[7] + big1 + choice + round_constants[t] + w[t];
        uint32_t big0 = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += t1;
        s[0] = t1 + big0 + majority;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

void tutti_sha256_init(tutti_sha256 *hash) {
    memcpy(hash->state, first_state, sizeof first_state);
    hash->message_bytes = 0;
}

void tutti_sha256_update(tutti_sha256 *hash, const void *data, size_t bytes) {
    const uint8_t *next = data;
    while (bytes > 0) {
        size_t used = hash->message_bytes % sizeof hash->block;
        size_t some = tutti_min_size(bytes, sizeof hash->block - used);
        memcpy(hash->block + used, next, some);
        hash->message_bytes += some;
        next += some;
        bytes -= some;
        if (used + some == sizeof hash->block) take_block(hash->state, hash->block);
    }
}

void tutti_sha256_final(tutti_sha256 *hash, uint8_t digest[TUTTI_SHA256_BYTES]) {
    static const uint8_t padding[64] = {0x80};
    uint64_t message_bits = hash->message_bytes * 8;
    size_t used = hash->message_bytes % 64;
    uint8_t length[8];
    store_big(length, (uint32_t)(message_bits >> 32));
    store_big(length + 4, (uint32_t)message_bits);
    tutti_sha256_update(hash, padding, used < 56 ? 56 - used : 120 - used);
    tutti_sha256_update(hash, length, sizeof length);
    for (int i = 0; i < 8; i++) store_big(digest + 4 * i, hash->state[i]);
}

void tutti_hmac_init(tutti_hmac *mac, const void *key, size_t key_bytes) {
    uint8_t block[64] = {0}, pad[64];
    tutti_sha256_init(&mac->inner);
    tutti_sha256_init(&mac->outer);
    if (key_bytes > sizeof block) {
        tutti_sha256 shortened;
        tutti_sha256_init(&shortened);
        tutti_sha256_update(&shortened, key, key_bytes);
        tutti_sha256_final(&shortened, block);
    } else if (key_bytes > 0) {
        memcpy(block, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof pad; i++) pad[i] = block[i] ^ 0x36;
    tutti_sha256_update(&mac->inner, pad, sizeof pad);
    for (size_t i = 0; i < sizeof pad; i++) pad[i] = block[i] ^ 0x5c;
    tutti_sha256_update(&mac->outer, pad, sizeof pad);
}

void tutti_hmac_update(tutti_hmac *mac, const void *data, size_t bytes) {
    tutti_sha256_update(&mac->inner, data, bytes);
}

void tutti_hmac_final(tutti_hmac *mac, uint8_t digest[TUTTI_SHA256_BYTES]) {
    tutti_sha256_final(&mac->inner, digest);
    tutti_sha256_update(&mac->outer, digest, TUTTI_SHA256_BYTES);
    tutti_sha256_final(&mac->outer, digest);
}

void tutti_hmac_of(const void *key, size_t key_bytes, const void *data, size_t bytes,
                   uint8_t digest[TUTTI_SHA256_BYTES]) {
    tutti_hmac mac;
    tutti_hmac_init(&mac, key, key_bytes);
    tutti_hmac_update(&mac, data, bytes);
    tutti_hmac_final(&mac, digest);
}

bool tutti_hmac_equal(const uint8_t *a, const uint8_t *b, size_t bytes) {
    volatile uint8_t difference = 0;
    for (size_t i = 0; i < bytes; i++) difference = difference | (uint8_t)(a[i] ^ b[i]);
    return difference == 0;
}
