/*
 * The store as a notice board, and a binomial tree over it: index i hands what it has gathered to i without its lowest bit.
 *
 *        0                 what 4 hands on: of 4 to 7
 *      / | \               what 6 hands on: of 6 and 7
 *     1  2   4
 *        |   | \
 *        3   5  6
 *               |
 *               7
 *
 * So nobody waits for more than log2(count) others one after another, and no request asks the store for more than is needed.
 *
 * Where the job has a secret, each value ends with a MAC over its key and itself. What fails that is treated as if it were not
 * there, for a while, and named in the log: another process may have written it before its owner did. A counter cannot carry a
 * MAC; it is a hint then, and a value tells what is true (peer_table.c).
 */
#ifndef TUTTI_KV_TREE_H
#define TUTTI_KV_TREE_H

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/hmac.h"

typedef struct tutti_kv_tree {
    const tutti_store *store;
    const char *prefix;
    tutti_deadline *deadline;
    bool proves; /* the job has a secret */
    uint8_t key[TUTTI_SHA256_BYTES];
} tutti_kv_tree;

/* Reads the job's secret; tutti_kv_tree_close forgets what follows from it. */
tutti_status tutti_kv_tree_open(const tutti_store *store, const char *prefix, tutti_deadline *deadline,
                              tutti_kv_tree *board_out);
void tutti_kv_tree_close(tutti_kv_tree *tree);

#define TUTTI_KV_TREE_KEY_BYTES 512

/* "<prefix>/<what>", or "<prefix>/<what>/<index>" for an index of at least 0; in `text`. */
const char *tutti_kv_tree_key(const tutti_kv_tree *tree, const char *what, int index, char text[TUTTI_KV_TREE_KEY_BYTES]);
/* What the store answers that is no tutti_status is TUTTI_ERR_SYSTEM, here and below. */
tutti_status tutti_kv_tree_set(const tutti_kv_tree *tree, const char *key, const void *value, size_t bytes);
tutti_status tutti_kv_tree_add(const tutti_kv_tree *tree, const char *key, int64_t amount, int64_t *value_out);
tutti_status tutti_kv_tree_check(const tutti_kv_tree *tree, const char *key, int *exists_out);
/* Waits until the deadline, but no longer than most_ms; TUTTI_ERR_TIMEOUT then. A value without the right MAC is waited out
 * for a second; TUTTI_ERR_REFUSED then. */
tutti_status tutti_kv_tree_get(const tutti_kv_tree *tree, const char *key, void *value, size_t capacity, int64_t most_ms,
                             size_t *bytes_out);

/* How many of `count` indices, from `index` on, hand on through it. */
static inline int tutti_kv_tree_span(int index, int count) {
    int lowest = index == 0 ? count : index & -index;
    return lowest < count - index ? lowest : count - index;
}

/* The children of `index` are index + step for step = 1, 2, 4, ... below its span. */
#define TUTTI_KV_TREE_EACH_CHILD(step, index, count) for (int step = 1; step < tutti_kv_tree_span(index, count); step *= 2)

#endif
