/*
 * The server's table: keys with a value, a queue and waiters.
 *
 * A chained hash table of entries. An entry exists as long as it has a value, a queue or a waiter. The value and
 * the queue of one key are independent of each other; a plain wait is satisfied by either. Only the server's thread
 * accesses the table, so there are no locks. Data stored by foreign connections (tutti_store_is_own) is counted
 * separately and has its own bound, so that others can always store.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_TABLE_H
#define TUTTI_BOOTSTRAP_STORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_store_table tutti_store_table;
typedef struct tutti_store_entry tutti_store_entry;

/* Bytes owned elsewhere. */
typedef struct tutti_store_bytes {
    const uint8_t *data;
    size_t bytes;
} tutti_store_bytes;

/* One connection's interest in one entry. */
typedef struct tutti_store_waiter {
    struct tutti_store_waiter *previous, *next; /* in the entry's list, oldest first */
    tutti_store_entry *entry;                   /* NULL: in no list */
    void *owner;                                /* the connection */
    int64_t barrier;                            /* waits for this many arrivals; 0: waits for the key */
} tutti_store_waiter;

struct tutti_store_entry {
    tutti_store_entry *chain;
    uint64_t hash;
    uint8_t *value;
    size_t value_bytes, foreign_bytes; /* foreign_bytes: the part written by foreign connections */
    bool has_value;
    bool foreign; /* created by a foreign connection */
    struct queued *queue_first, *queue_last;
    int64_t queue_length;
    tutti_store_waiter *first_waiter, *last_waiter;
    size_t key_bytes;
    uint8_t key[];
};

tutti_status tutti_store_table_create(tutti_store_table **table_out);
void tutti_store_table_destroy(tutti_store_table *table);

/* Sets whether data stored from now on is counted as foreign. Initially it is own. */
void tutti_store_table_write_as(tutti_store_table *table, bool foreign);

/* Returns NULL when the key has no entry. */
tutti_store_entry *tutti_store_table_find(tutti_store_table *table, tutti_store_bytes key);
/* Finds or creates the entry; if nothing is put into it, release it with tutti_store_table_tidy. */
tutti_status tutti_store_table_need(tutti_store_table *table, tutti_store_bytes key, tutti_store_entry **entry_out);
/* Removes the entry when it is empty. NULL is allowed. */
void tutti_store_table_tidy(tutti_store_table *table, tutti_store_entry *entry);

/* Copies the bytes into the entry's value; `append`: behind the present value. */
tutti_status tutti_store_table_put(tutti_store_table *table, tutti_store_entry *entry, tutti_store_bytes value,
                                   bool append);
/* Removes the value (not the entry). */
void tutti_store_table_drop(tutti_store_table *table, tutti_store_entry *entry);

tutti_status tutti_store_table_push(tutti_store_table *table, tutti_store_entry *entry, tutti_store_bytes value);
/* Returns the oldest value of the queue, which must not be empty; valid until tutti_store_table_pop. */
tutti_store_bytes tutti_store_table_peek(const tutti_store_entry *entry);
void tutti_store_table_pop(tutti_store_table *table, tutti_store_entry *entry);

void tutti_store_table_wait(tutti_store_entry *entry, tutti_store_waiter *waiter);
/* Removes the waiter from its list, if it is in one; the entry stays. */
void tutti_store_table_unwait(tutti_store_waiter *waiter);

/* Number of keys that have a value. */
int64_t tutti_store_table_count(const tutti_store_table *table);
/* Bytes of a list of these keys, each preceded by a length of 8 bytes. */
size_t tutti_store_table_list_bytes(const tutti_store_table *table);
/* Calls `visit` for each key that has a value. */
void tutti_store_table_each(const tutti_store_table *table, void (*visit)(void *context, tutti_store_bytes key),
                            void *context);

#endif
