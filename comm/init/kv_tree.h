/*
 * Values in the store, passed up a binomial tree: index i passes what it has gathered to the index that is i
 * without its lowest set bit.
 *
 *        0                 4 passes on the values of 4 to 7
 *      / | \               6 passes on the values of 6 and 7
 *     1  2   4
 *        |   | \
 *        3   5  6
 *               |
 *               7
 *
 * No index waits for more than log2(count) others one after another, and no request reads more from the store than
 * it needs.
 *
 * If the job has a secret, each value ends with a MAC over its key and its content. A value with a wrong MAC is
 * treated as missing for a while and logged: another process may have written it before its owner. A counter
 * cannot carry a MAC, so it is only a hint, and an authenticated value decides (peer_table.c).
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
    bool proves; /* the job has a secret, so values carry a MAC */
    uint8_t key[TUTTI_SHA256_BYTES];
} tutti_kv_tree;

/* Reads the job's secret. tutti_kv_tree_close erases the key derived from it. */
tutti_status tutti_kv_tree_open(const tutti_store *store, const char *prefix, tutti_deadline *deadline,
                                tutti_kv_tree *board_out);
void tutti_kv_tree_close(tutti_kv_tree *tree);

#define TUTTI_KV_TREE_KEY_BYTES 512

/* Writes "<prefix>/<what>", or "<prefix>/<what>/<index>" if index >= 0, to `text` and returns it. */
const char *tutti_kv_tree_key(const tutti_kv_tree *tree, const char *what, int index,
                              char text[TUTTI_KV_TREE_KEY_BYTES]);
/* Here and below, a store callback that returns a value that is not a tutti_status fails with TUTTI_ERR_SYSTEM. */
tutti_status tutti_kv_tree_set(const tutti_kv_tree *tree, const char *key, const void *value, size_t bytes);
tutti_status tutti_kv_tree_add(const tutti_kv_tree *tree, const char *key, int64_t amount, int64_t *value_out);
tutti_status tutti_kv_tree_check(const tutti_kv_tree *tree, const char *key, int *exists_out);
/* Waits for the value until the deadline, but at most most_ms; then fails with TUTTI_ERR_TIMEOUT. If the value has
 * a wrong MAC, waits one second for a right one; then fails with TUTTI_ERR_REFUSED. */
tutti_status tutti_kv_tree_get(const tutti_kv_tree *tree, const char *key, void *value, size_t capacity,
                               int64_t most_ms, size_t *bytes_out);

/* Number of indices in the subtree of `index`, itself included, in a tree of `count` indices. */
static inline int tutti_kv_tree_span(int index, int count) {
    int lowest = index == 0 ? count : index & -index;
    return lowest < count - index ? lowest : count - index;
}

/* The children of `index` are index + step for step = 1, 2, 4, ... below its span. */
#define TUTTI_KV_TREE_EACH_CHILD(step, index, count)                                                                   \
    for (int step = 1; step < tutti_kv_tree_span(index, count); step *= 2)

#endif
