/*
 * Hashes of words, for tables and for values that must be equal on all ranks, and of byte strings of any length.
 * None of them resists an attacker.
 */
#ifndef TUTTI_HASH_H
#define TUTTI_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Adds one word. The multiplier is 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4). */
static inline uint64_t tutti_hash_add(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* Spreads a word's bits over the whole word. */
static inline uint64_t tutti_hash_mix(uint64_t x) {
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* FNV-1a; starts from TUTTI_FNV_BASIS. `unit` is a byte or a longer word. */
#define TUTTI_FNV_BASIS UINT64_C(0xcbf29ce484222325)
static inline uint64_t tutti_fnv_add(uint64_t hash, uint64_t unit) {
    return (hash ^ unit) * UINT64_C(0x100000001b3);
}

static inline uint64_t tutti_fnv_bytes(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) hash = tutti_fnv_add(hash, ((const uint8_t *)data)[i]);
    return hash;
}

#endif
