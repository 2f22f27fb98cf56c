/*
 * Keys, values and waits. See kv_tree.h.
 */
#include "comm/init/kv_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/store/secret.h"

#define GRACE_MS 1000 /* wait for the owner of a value that another process has written before */
#define LOOK_MS  20

const char *tutti_kv_tree_key(const tutti_kv_tree *tree, const char *what, int index,
                              char text[TUTTI_KV_TREE_KEY_BYTES]) {
    if (index < 0) snprintf(text, TUTTI_KV_TREE_KEY_BYTES, "%s/%s", tree->prefix, what);
    else snprintf(text, TUTTI_KV_TREE_KEY_BYTES, "%s/%s/%d", tree->prefix, what, index);
    return text;
}

/* The store belongs to the caller, and may be a framework's: callbacks may return what is not a tutti_status. */
static tutti_status checked(tutti_status status, const char *call) {
    if (status <= TUTTI_OK && status >= TUTTI_ERR_INTERRUPTED) return status;
    return tutti_fail(TUTTI_ERR_SYSTEM,
                      "the store's %s returned %d, which is not a tutti_status (TUTTI_OK is 0, errors are negative)",
                      call, (int)status);
}

tutti_status tutti_kv_tree_open(const tutti_store *store, const char *prefix, tutti_deadline *deadline,
                                tutti_kv_tree *board_out) {
    static const char purpose[] = "tutti: values in the store";
    char secret[TUTTI_SECRET_BYTES];
    *board_out = (tutti_kv_tree){.store = store, .prefix = prefix, .deadline = deadline};
    TUTTI_TRY(tutti_secret_get(secret, sizeof secret, &board_out->proves));
    if (board_out->proves) tutti_hmac_of(secret, strlen(secret), purpose, sizeof purpose, board_out->key);
    explicit_bzero(secret, sizeof secret);
    return TUTTI_OK;
}

void tutti_kv_tree_close(tutti_kv_tree *tree) {
    explicit_bzero(tree->key, sizeof tree->key);
}

/* MAC of a value and its key; the NUL between them separates the two. */
static void prove(const tutti_kv_tree *tree, const char *key, const void *value, size_t bytes,
                  uint8_t mac[TUTTI_SHA256_BYTES]) {
    tutti_hmac hash;
    tutti_hmac_init(&hash, tree->key, sizeof tree->key);
    tutti_hmac_update(&hash, key, strlen(key) + 1);
    tutti_hmac_update(&hash, value, bytes);
    tutti_hmac_final(&hash, mac);
}

tutti_status tutti_kv_tree_set(const tutti_kv_tree *tree, const char *key, const void *value, size_t bytes) {
    const tutti_store *store = tree->store;
    if (!tree->proves) return checked(store->set(store->context, key, value, bytes), "set");
    char *proved = malloc(bytes + TUTTI_SHA256_BYTES);
    if (proved == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a value of %zu bytes", bytes);
    memcpy(proved, value, bytes);
    prove(tree, key, value, bytes, (uint8_t *)proved + bytes);
    tutti_status status = checked(store->set(store->context, key, proved, bytes + TUTTI_SHA256_BYTES), "set");
    free(proved);
    return status;
}

tutti_status tutti_kv_tree_add(const tutti_kv_tree *tree, const char *key, int64_t amount, int64_t *value_out) {
    return checked(tree->store->add(tree->store->context, key, amount, value_out), "add");
}

tutti_status tutti_kv_tree_check(const tutti_kv_tree *tree, const char *key, int *exists_out) {
    return checked(tree->store->check(tree->store->context, key, exists_out), "check");
}

/* Reads the value of the key without checking its MAC. */
static tutti_status get_any(const tutti_kv_tree *tree, const char *key, void *value, size_t capacity, int64_t most_ms,
                            size_t *bytes_out) {
    tutti_deadline_passed(tree->deadline);
    int64_t timeout_ms = tutti_min_i64(tutti_deadline_left_ms(tree->deadline), most_ms);
    tutti_status status = tree->store->get(tree->store->context, key, value, capacity, bytes_out, timeout_ms);
    tutti_deadline_passed(tree->deadline);
    TUTTI_TRY(checked(status, "get"));
    return *bytes_out <= capacity
               ? TUTTI_OK
               : tutti_fail(TUTTI_ERR_DATA,
                            "the store's get returned %zu bytes of \"%s\", but at most %zu were asked for", *bytes_out,
                            key, capacity);
}

static bool is_proved(const tutti_kv_tree *tree, const char *key, const uint8_t *value, size_t bytes) {
    uint8_t expected[TUTTI_SHA256_BYTES];
    if (bytes < sizeof expected) return false;
    prove(tree, key, value, bytes - sizeof expected, expected);
    return tutti_hmac_equal(expected, value + bytes - sizeof expected, sizeof expected);
}

/* Reads a value with a right MAC; `value` has room for the MAC. */
static tutti_status get_proved(const tutti_kv_tree *tree, const char *key, uint8_t *value, size_t capacity,
                               int64_t most_ms, size_t *bytes_out) {
    int64_t first_ns = 0;
    for (;;) {
        tutti_status status = get_any(tree, key, value, capacity, most_ms, bytes_out);
        bool too_long = status == TUTTI_ERR_DATA; /* longer than any value of its owner */
        if (status != TUTTI_OK && !too_long) return status;
        if (status == TUTTI_OK && is_proved(tree, key, value, *bytes_out)) return TUTTI_OK;
        if (first_ns == 0)
            tutti_log(
                TUTTI_LOG_WARN,
                "the store's value of \"%s\" is ignored: it is not proved by this job's secret; another process has "
                "written it, or the rank that did has another TUTTI_SECRET",
                key);
        if (first_ns == 0) first_ns = tutti_now_ns();
        if (tutti_now_ns() - first_ns > GRACE_MS * TUTTI_NS_PER_MS || tutti_deadline_passed(tree->deadline))
            return tutti_fail(
                TUTTI_ERR_REFUSED,
                "the rank that wrote the store's \"%s\" does not know this job's secret (TUTTI_SECRET or its "
                "file must be equal on all ranks), or another process has written it",
                key);
        tutti_nap(LOOK_MS * TUTTI_NS_PER_MS);
    }
}

tutti_status tutti_kv_tree_get(const tutti_kv_tree *tree, const char *key, void *value, size_t capacity,
                               int64_t most_ms, size_t *bytes_out) {
    if (!tree->proves) return get_any(tree, key, value, capacity, most_ms, bytes_out);
    uint8_t *proved = malloc(capacity + TUTTI_SHA256_BYTES);
    if (proved == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a value of %zu bytes", capacity);
    size_t bytes = 0;
    tutti_status status = get_proved(tree, key, proved, capacity + TUTTI_SHA256_BYTES, most_ms, &bytes);
    if (status == TUTTI_OK) {
        *bytes_out = bytes - TUTTI_SHA256_BYTES;
        memcpy(value, proved, *bytes_out);
    }
    free(proved);
    return status;
}
