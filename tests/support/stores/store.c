/*
 * A key-value store in anonymous shared memory: a log of (key, value) records behind one robust mutex.
 *
 * Threads share it directly, processes because they are forked after its creation. A set of a known key appends a new
 * record; lookups return the last one. Waiting is polling, which suffices for tests.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/support/ranks.h"

#define STORE_BYTES ((size_t)64 << 20) /* address space; pages are used as records come */

typedef struct record {
    size_t key_bytes, value_bytes; /* then the key, then the value, then padding to 16 */
} record;

typedef struct shared_store {
    pthread_mutex_t lock;
    size_t used; /* bytes of records */
    _Alignas(16) unsigned char records[];
} shared_store;

static void lock_store(shared_store *store) {
    /* A record is complete before `used` grows, so a dead owner of the mutex leaves a consistent state. */
    if (pthread_mutex_lock(&store->lock) == EOWNERDEAD) pthread_mutex_consistent(&store->lock);
}

static void unlock_store(shared_store *store) {
    pthread_mutex_unlock(&store->lock);
}

static size_t record_bytes(size_t key_bytes, size_t value_bytes) {
    return (sizeof(record) + key_bytes + value_bytes + 15) & ~(size_t)15;
}

/* The newest record of `key`, or NULL; the lock is held. */
static const record *find(const shared_store *store, const char *key) {
    const record *found = NULL;
    size_t key_bytes = strlen(key);
    for (size_t at = 0; at < store->used;) {
        const record *next = (const record *)(store->records + at);
        if (next->key_bytes == key_bytes && memcmp(next + 1, key, key_bytes) == 0) found = next;
        at += record_bytes(next->key_bytes, next->value_bytes);
    }
    return found;
}

static tutti_status append(shared_store *store, const char *key, const void *value, size_t bytes) {
    size_t key_bytes = strlen(key);
    size_t total = record_bytes(key_bytes, bytes);
    if (total > STORE_BYTES - sizeof *store - store->used)
        return tutti_fail(TUTTI_ERR_MEMORY, "the tests' store is full");
    record *next = (record *)(store->records + store->used);
    next->key_bytes = key_bytes;
    next->value_bytes = bytes;
    memcpy(next + 1, key, key_bytes);
    if (bytes > 0) memcpy((unsigned char *)(next + 1) + key_bytes, value, bytes);
    store->used += total;
    return TUTTI_OK;
}

static tutti_status store_set(void *context, const char *key, const void *value, size_t bytes) {
    shared_store *store = context;
    lock_store(store);
    tutti_status status = append(store, key, value, bytes);
    unlock_store(store);
    return status;
}

static tutti_status store_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                              int64_t timeout_ms) {
    shared_store *store = context;
    for (int64_t waited_us = 0;; waited_us += 300) {
        lock_store(store);
        const record *found = find(store, key);
        size_t bytes = found != NULL ? found->value_bytes : 0;
        if (found != NULL && bytes <= capacity) {
            memcpy(value, (const unsigned char *)(found + 1) + found->key_bytes, bytes);
            *bytes_out = bytes;
        }
        unlock_store(store);
        if (found != NULL)
            return bytes <= capacity ? TUTTI_OK : tutti_fail(TUTTI_ERR_DATA, "the value of %s is too long", key);
        if (timeout_ms >= 0 && waited_us / 1000 >= timeout_ms)
            return tutti_fail(TUTTI_ERR_TIMEOUT, "the key %s did not come within %lld ms", key, (long long)timeout_ms);
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    }
}

static tutti_status store_add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    shared_store *store = context;
    int64_t value = 0;
    lock_store(store);
    const record *found = find(store, key);
    if (found != NULL && found->value_bytes == sizeof value)
        memcpy(&value, (const unsigned char *)(found + 1) + found->key_bytes, sizeof value);
    value += amount;
    tutti_status status = append(store, key, &value, sizeof value);
    unlock_store(store);
    if (status == TUTTI_OK) *value_out = value;
    return status;
}

static tutti_status store_check(void *context, const char *key, int *exists_out) {
    shared_store *store = context;
    lock_store(store);
    *exists_out = find(store, key) != NULL;
    unlock_store(store);
    return TUTTI_OK;
}

tutti_status ranks_store_create(tutti_store *store_out) {
    shared_store *store =
        mmap(NULL, STORE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (store == MAP_FAILED) return tutti_fail(TUTTI_ERR_MEMORY, "cannot map shared memory for the tests' store");
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&store->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    *store_out = (tutti_store){.struct_bytes = sizeof *store_out,
                               .context = store,
                               .set = store_set,
                               .get = store_get,
                               .add = store_add,
                               .check = store_check};
    return TUTTI_OK;
}

void ranks_store_destroy(tutti_store *store) {
    if (store->context == NULL) return;
    munmap(store->context, STORE_BYTES);
    store->context = NULL;
}
