/*
 * See counting_store.h.
 */
#include "tests/support/stores/counting_store.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"

static void count(counting_store *c, int requests, size_t bytes, int round_trips) {
    c->depth += round_trips;
    atomic_fetch_add(&c->counts->requests, requests);
    atomic_fetch_add(&c->counts->bytes, (int_fast64_t)bytes);
    int_fast64_t deepest = atomic_load(&c->counts->depth);
    while (deepest < c->depth && !atomic_compare_exchange_weak(&c->counts->depth, &deepest, c->depth)) {}
}

static tutti_status counting_set(void *context, const char *key, const void *value, size_t bytes) {
    counting_store *c = context;
    char *marked;
    TUTTI_TRY(tutti_calloc(bytes + sizeof c->depth, 1, &marked));
    memcpy(marked, &c->depth, sizeof c->depth);
    memcpy(marked + sizeof c->depth, value, bytes);
    count(c, 1, strlen(key) + bytes, 0);
    tutti_status status = c->inner.set(c->inner.context, key, marked, bytes + sizeof c->depth);
    free(marked);
    return status;
}

static tutti_status counting_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                                 int64_t timeout_ms) {
    counting_store *c = context;
    int64_t depth;
    size_t bytes = 0;
    char *marked;
    TUTTI_TRY(tutti_calloc(capacity + sizeof depth, 1, &marked));
    tutti_status status = c->inner.get(c->inner.context, key, marked, capacity + sizeof depth, &bytes, timeout_ms);
    if (status == TUTTI_OK && bytes < sizeof depth) status = tutti_fail(TUTTI_ERR_DATA, "\"%s\" has no mark", key);
    if (status == TUTTI_OK) {
        memcpy(&depth, marked, sizeof depth);
        memcpy(value, marked + sizeof depth, bytes - sizeof depth);
        *bytes_out = bytes - sizeof depth;
        if (c->depth < depth) c->depth = depth;
        count(c, 2, 2 * strlen(key) + *bytes_out, 2);
    }
    free(marked);
    return status;
}

static tutti_status counting_add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    counting_store *c = context;
    count(c, 1, strlen(key) + 2 * sizeof amount, 1);
    return c->inner.add(c->inner.context, key, amount, value_out);
}

static tutti_status counting_check(void *context, const char *key, int *exists_out) {
    counting_store *c = context;
    count(c, 1, strlen(key) + 1, 1);
    return c->inner.check(c->inner.context, key, exists_out);
}

tutti_store counting_store_over(const tutti_store *inner, store_counts *counts, counting_store *counting) {
    *counting = (counting_store){.inner = *inner, .counts = counts};
    return (tutti_store){.struct_bytes = sizeof(tutti_store),
                         .context = counting,
                         .set = counting_set,
                         .get = counting_get,
                         .add = counting_add,
                         .check = counting_check};
}
