/*
 * FNV-1a, one step: for values that ranks compare, and for hash tables. `unit` is a byte or a longer word.
 *
 * bootstrap/base/hash.h has the same for the library; the trainer uses only the public API.
 */
#ifndef TUTTI_TRAINER_HASH_H
#define TUTTI_TRAINER_HASH_H

#include <stdint.h>

#define TUTTI_TRAINER_HASH_BASIS UINT64_C(0xcbf29ce484222325)

static inline uint64_t tutti_trainer_hash_add(uint64_t hash, uint64_t unit) {
    return (hash ^ unit) * UINT64_C(0x100000001b3);
}

#endif
