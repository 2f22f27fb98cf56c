/*
 * See hashed_store.h.
 */
#include "tests/support/stores/hashed_store.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bootstrap/base/common.h"

enum { BUCKETS = 4096 };

typedef struct item {
    char *key;
    void *value;
    size_t bytes;
    struct item *next;
} item;

typedef struct bucket {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    item *items;
} bucket;

struct hashed_store {
    bucket buckets[BUCKETS];
};

static bucket *bucket_of(void *context, const char *key) {
    hashed_store *store = context;
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *key != '\0'; key++) hash = (hash ^ (uint8_t)*key) * UINT64_C(1099511628211);
    return &store->buckets[(hash ^ hash >> 32) % BUCKETS];
}

static item *find(const bucket *b, const char *key) {
    item *found = b->items;
    while (found != NULL && strcmp(found->key, key) != 0) found = found->next;
    return found;
}

/* The bucket's lock is held. */
static tutti_status put(bucket *b, const char *key, const void *value, size_t bytes) {
    item *one = find(b, key);
    if (one == NULL) {
        TUTTI_TRY(tutti_calloc(1, sizeof *one, &one));
        TUTTI_TRY(tutti_strdup(key, &one->key));
        one->next = b->items;
        b->items = one;
    }
    free(one->value);
    TUTTI_TRY(tutti_calloc(bytes + 1, 1, &one->value));
    if (bytes > 0) memcpy(one->value, value, bytes);
    one->bytes = bytes;
    pthread_cond_broadcast(&b->changed);
    return TUTTI_OK;
}

static tutti_status hashed_set(void *context, const char *key, const void *value, size_t bytes) {
    bucket *b = bucket_of(context, key);
    pthread_mutex_lock(&b->lock);
    tutti_status status = put(b, key, value, bytes);
    pthread_mutex_unlock(&b->lock);
    return status;
}

static tutti_status hashed_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                               int64_t timeout_ms) {
    bucket *b = bucket_of(context, key);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(timeout_ms / 1000);
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&b->lock);
    const item *found;
    while ((found = find(b, key)) == NULL && pthread_cond_timedwait(&b->changed, &b->lock, &until) != ETIMEDOUT) {}
    tutti_status status = TUTTI_OK;
    if (found == NULL) status = tutti_fail(TUTTI_ERR_TIMEOUT, "\"%s\" did not come in time", key);
    else if (found->bytes > capacity) status = tutti_fail(TUTTI_ERR_DATA, "\"%s\" is too long", key);
    else memcpy(value, found->value, *bytes_out = found->bytes);
    pthread_mutex_unlock(&b->lock);
    return status;
}

static tutti_status hashed_add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    bucket *b = bucket_of(context, key);
    pthread_mutex_lock(&b->lock);
    const item *found = find(b, key);
    int64_t value = 0;
    if (found != NULL && found->bytes == sizeof value) memcpy(&value, found->value, sizeof value);
    value += amount;
    tutti_status status = put(b, key, &value, sizeof value);
    pthread_mutex_unlock(&b->lock);
    *value_out = value;
    return status;
}

static tutti_status hashed_check(void *context, const char *key, int *exists_out) {
    bucket *b = bucket_of(context, key);
    pthread_mutex_lock(&b->lock);
    *exists_out = find(b, key) != NULL;
    pthread_mutex_unlock(&b->lock);
    return TUTTI_OK;
}

hashed_store *hashed_store_create(tutti_store *store_out) {
    hashed_store *store = calloc(1, sizeof *store);
    for (int i = 0; store != NULL && i < BUCKETS; i++) {
        pthread_mutex_init(&store->buckets[i].lock, NULL);
        pthread_cond_init(&store->buckets[i].changed, NULL);
    }
    *store_out = (tutti_store){.struct_bytes = sizeof *store_out,
                               .context = store,
                               .set = hashed_set,
                               .get = hashed_get,
                               .add = hashed_add,
                               .check = hashed_check};
    return store;
}

void hashed_store_destroy(hashed_store *store) {
    for (int i = 0; i < BUCKETS; i++)
        while (store->buckets[i].items != NULL) {
            item *one = store->buckets[i].items;
            store->buckets[i].items = one->next;
            free(one->key);
            free(one->value);
            free(one);
        }
    free(store);
}
