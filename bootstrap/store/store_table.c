/*
 * The store's hash table. Keys come from outside, so the hash is keyed with random bits: a client cannot choose
 * keys that all fall into one chain. All stored data is counted against one bound.
 */
#include "bootstrap/store/store_table.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/store/store_wire.h"

struct queued {
    struct queued *next;
    size_t bytes;
    bool foreign; /* pushed by a foreign connection */
    uint8_t data[];
};

struct tutti_store_table {
    tutti_store_entry **buckets;
    size_t nbuckets; /* a power of two */
    size_t nentries;
    int64_t nvalues;
    uint64_t stored_bytes;  /* of keys, values and queues */
    uint64_t foreign_bytes; /* the part of it stored by foreign connections */
    size_t list_bytes;      /* of the keys that have a value, including their lengths */
    bool foreign;           /* data stored now is counted as foreign */
    uint64_t hash_key[2];
};

enum { FIRST_BUCKETS = 256 };

/* Multiply and fold, eight bytes at a time, from a random start. */
static uint64_t hash_of(const tutti_store_table *table, tutti_store_bytes key) {
    uint64_t hash = table->hash_key[0] ^ key.bytes;
    for (size_t at = 0; at < key.bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, key.data + at, tutti_min_size(sizeof word, key.bytes - at));
        unsigned __int128 product = (unsigned __int128)(hash ^ word) * (table->hash_key[1] | 1);
        hash = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return hash;
}

tutti_status tutti_store_table_create(tutti_store_table **table_out) {
    tutti_store_table *table = NULL;
    tutti_status status;
    TUTTI_TRY(tutti_calloc(1, sizeof *table, &table));
    TUTTI_TRY_GOTO(status, tutti_getrandom(table->hash_key, sizeof table->hash_key), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc(FIRST_BUCKETS, sizeof(tutti_store_entry *), &table->buckets), fail);
    table->nbuckets = FIRST_BUCKETS;
    *table_out = table;
    return TUTTI_OK;
fail:
    tutti_store_table_destroy(table);
    return status;
}

static void free_queue(struct queued *item) {
    while (item != NULL) {
        struct queued *next = item->next;
        free(item);
        item = next;
    }
}

void tutti_store_table_destroy(tutti_store_table *table) {
    if (table == NULL) return;
    for (size_t i = 0; i < table->nbuckets; i++) {
        for (tutti_store_entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->chain;
            free_queue(entry->queue_first);
            free(entry->value);
            free(entry);
        }
    }
    free(table->buckets);
    free(table);
}

static tutti_status reserve(tutti_store_table *table, size_t bytes) {
    if (bytes > TUTTI_STORE_MOST_STORED_BYTES - table->stored_bytes)
        return tutti_fail(TUTTI_ERR_MEMORY, "the store is full: %zu more bytes would pass its bound of %llu", bytes,
                          (unsigned long long)TUTTI_STORE_MOST_STORED_BYTES);
    if (table->foreign && bytes > TUTTI_STORE_MOST_FOREIGN_BYTES - table->foreign_bytes)
        return tutti_fail(
            TUTTI_ERR_MEMORY,
            "%zu more bytes would pass the bound of %llu for clients that are not known to be of this user", bytes,
            (unsigned long long)TUTTI_STORE_MOST_FOREIGN_BYTES);
    table->stored_bytes += bytes;
    if (table->foreign) table->foreign_bytes += bytes;
    return TUTTI_OK;
}

static void release(tutti_store_table *table, size_t bytes, size_t foreign_bytes) {
    table->stored_bytes -= bytes;
    table->foreign_bytes -= foreign_bytes;
}

/* Releases bytes that were just reserved. */
static void give_back(tutti_store_table *table, size_t bytes) {
    release(table, bytes, table->foreign ? bytes : 0);
}

void tutti_store_table_write_as(tutti_store_table *table, bool foreign) {
    table->foreign = foreign;
}

tutti_store_entry *tutti_store_table_find(tutti_store_table *table, tutti_store_bytes key) {
    uint64_t hash = hash_of(table, key);
    tutti_store_entry *entry = table->buckets[hash & (table->nbuckets - 1)];
    for (; entry != NULL; entry = entry->chain) {
        if (entry->hash == hash && entry->key_bytes == key.bytes && memcmp(entry->key, key.data, key.bytes) == 0)
            return entry;
    }
    return NULL;
}

/* Doubles the number of buckets. Without memory for them the chains just become longer. */
static void grow(tutti_store_table *table) {
    size_t nbuckets = 2 * table->nbuckets;
    tutti_store_entry **buckets = calloc(nbuckets, sizeof *buckets);
    if (buckets == NULL) return;
    for (size_t i = 0; i < table->nbuckets; i++) {
        for (tutti_store_entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->chain;
            tutti_store_entry **bucket = &buckets[entry->hash & (nbuckets - 1)];
            entry->chain = *bucket;
            *bucket = entry;
        }
    }
    free(table->buckets);
    table->buckets = buckets;
    table->nbuckets = nbuckets;
}

tutti_status tutti_store_table_need(tutti_store_table *table, tutti_store_bytes key, tutti_store_entry **entry_out) {
    tutti_store_entry *entry = tutti_store_table_find(table, key);
    if (entry == NULL) {
        size_t bytes = sizeof *entry + key.bytes;
        TUTTI_TRY(reserve(table, bytes));
        entry = calloc(1, bytes);
        if (entry == NULL) {
            give_back(table, bytes);
            return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a key of %zu bytes", key.bytes);
        }
        entry->hash = hash_of(table, key);
        entry->key_bytes = key.bytes;
        entry->foreign = table->foreign;
        memcpy(entry->key, key.data, key.bytes);
        if (table->nentries >= table->nbuckets) grow(table);
        tutti_store_entry **bucket = &table->buckets[entry->hash & (table->nbuckets - 1)];
        entry->chain = *bucket;
        *bucket = entry;
        table->nentries++;
    }
    *entry_out = entry;
    return TUTTI_OK;
}

void tutti_store_table_tidy(tutti_store_table *table, tutti_store_entry *entry) {
    if (entry == NULL || entry->has_value || entry->queue_first != NULL || entry->first_waiter != NULL) return;
    tutti_store_entry **link = &table->buckets[entry->hash & (table->nbuckets - 1)];
    while (*link != entry) link = &(*link)->chain;
    *link = entry->chain;
    table->nentries--;
    size_t bytes = sizeof *entry + entry->key_bytes;
    release(table, bytes, entry->foreign ? bytes : 0);
    free(entry);
}

tutti_status tutti_store_table_put(tutti_store_table *table, tutti_store_entry *entry, tutti_store_bytes value,
                                   bool append) {
    size_t kept = append ? entry->value_bytes : 0;
    TUTTI_TRY(reserve(table, value.bytes));
    uint8_t *memory = append ? realloc(entry->value, kept + value.bytes + 1) : malloc(value.bytes + 1);
    if (memory == NULL) {
        give_back(table, value.bytes);
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a value of %zu bytes", kept + value.bytes);
    }
    memcpy(memory + kept, value.data, value.bytes);
    if (!append) {
        release(table, entry->value_bytes, entry->foreign_bytes);
        entry->foreign_bytes = 0;
        free(entry->value);
    }
    if (!entry->has_value) {
        table->nvalues++;
        table->list_bytes += sizeof(uint64_t) + entry->key_bytes;
    }
    entry->has_value = true;
    if (table->foreign) entry->foreign_bytes += value.bytes;
    entry->value = memory;
    entry->value_bytes = kept + value.bytes;
    return TUTTI_OK;
}

void tutti_store_table_drop(tutti_store_table *table, tutti_store_entry *entry) {
    release(table, entry->value_bytes, entry->foreign_bytes);
    if (entry->has_value) {
        table->nvalues--;
        table->list_bytes -= sizeof(uint64_t) + entry->key_bytes;
    }
    free(entry->value);
    entry->value = NULL;
    entry->value_bytes = entry->foreign_bytes = 0;
    entry->has_value = false;
}

tutti_status tutti_store_table_push(tutti_store_table *table, tutti_store_entry *entry, tutti_store_bytes value) {
    size_t bytes = sizeof(struct queued) + value.bytes;
    TUTTI_TRY(reserve(table, bytes));
    struct queued *item = malloc(bytes);
    if (item == NULL) {
        give_back(table, bytes);
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a queued value of %zu bytes", value.bytes);
    }
    item->next = NULL;
    item->bytes = value.bytes;
    item->foreign = table->foreign;
    memcpy(item->data, value.data, value.bytes);
    if (entry->queue_last != NULL) entry->queue_last->next = item;
    else entry->queue_first = item;
    entry->queue_last = item;
    entry->queue_length++;
    return TUTTI_OK;
}

tutti_store_bytes tutti_store_table_peek(const tutti_store_entry *entry) {
    return (tutti_store_bytes){entry->queue_first->data, entry->queue_first->bytes};
}

void tutti_store_table_pop(tutti_store_table *table, tutti_store_entry *entry) {
    struct queued *item = entry->queue_first;
    entry->queue_first = item->next;
    if (item->next == NULL) entry->queue_last = NULL;
    entry->queue_length--;
    size_t bytes = sizeof *item + item->bytes;
    release(table, bytes, item->foreign ? bytes : 0);
    free(item);
}

void tutti_store_table_wait(tutti_store_entry *entry, tutti_store_waiter *waiter) {
    waiter->entry = entry;
    waiter->next = NULL;
    waiter->previous = entry->last_waiter;
    if (entry->last_waiter != NULL) entry->last_waiter->next = waiter;
    else entry->first_waiter = waiter;
    entry->last_waiter = waiter;
}

void tutti_store_table_unwait(tutti_store_waiter *waiter) {
    tutti_store_entry *entry = waiter->entry;
    if (entry == NULL) return;
    if (waiter->previous != NULL) waiter->previous->next = waiter->next;
    else entry->first_waiter = waiter->next;
    if (waiter->next != NULL) waiter->next->previous = waiter->previous;
    else entry->last_waiter = waiter->previous;
    waiter->entry = NULL;
}

int64_t tutti_store_table_count(const tutti_store_table *table) {
    return table->nvalues;
}

size_t tutti_store_table_list_bytes(const tutti_store_table *table) {
    return table->list_bytes;
}

void tutti_store_table_each(const tutti_store_table *table, void (*visit)(void *context, tutti_store_bytes key),
                            void *context) {
    for (size_t i = 0; i < table->nbuckets; i++) {
        for (const tutti_store_entry *entry = table->buckets[i]; entry != NULL; entry = entry->chain) {
            if (entry->has_value) visit(context, (tutti_store_bytes){entry->key, entry->key_bytes});
        }
    }
}
