/*
 * The server's memory: keys with a value, a queue and who waits for them.
 *
 * A chained hash table of entries. An entry exists as long as it has a value, a queue or a waiter. Values and
 * queues of one key are independent of each other; a plain wait is satisfied by either. Only the server's
 * thread touches the table, so there are no locks. What foreign connections have stored (tutti_store_is_own) is counted
 * apart and has a bound of its own, so that others can always store.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_TABLE_H
#define TUTTI_BOOTSTRAP_STORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_store_table tutti_store_table;
typedef struct tutti_store_entry tutti_store_entry;

/* Bytes that belong to somebody else. */
typedef struct tutti_store_bytes {
    const uint8_t *data;
    size_t bytes;
} tutti_store_bytes;

/* One connection's interest in one entry. */
typedef struct tutti_store_waiter {
    struct tutti_store_waiter *previous, *next; /* in the entry's list, oldest first */
    tutti_store_entry *entry;                   /* NULL: in no list */
    void *owner;                                /* the connection */
    int64_t barrier;                            /* waits for this many arrivals; 0: for the key */
} tutti_store_waiter;

struct tutti_store_entry {
    tutti_store_entry *chain;
    uint64_t hash;
    uint8_t *value;
    size_t value_bytes, foreign_bytes; /* of which foreign connections have written so many */
    bool has_value;
    bool foreign; /* a foreign connection has made the entry */
    struct queued *queue_first, *queue_last;
    int64_t queue_length;
    tutti_store_waiter *first_waiter, *last_waiter;
    size_t key_bytes;
    uint8_t key[];
};

tutti_status tutti_store_table_create(tutti_store_table **table_out);
void tutti_store_table_destroy(tutti_store_table *table);

/* Is what is stored from now on a foreign connection's? Own ones' at first. */
void tutti_store_table_write_as(tutti_store_table *table, bool foreign);

/* NULL when the key is in no use. */
tutti_store_entry *tutti_store_table_find(tutti_store_table *table, tutti_store_bytes key);
/* Finds or makes the entry; give it back with tutti_store_table_tidy if nothing was put into it. */
tutti_status tutti_store_table_need(tutti_store_table *table, tutti_store_bytes key, tutti_store_entry **entry_out);
/* Removes the entry when nothing is in it any longer. NULL is allowed. */
void tutti_store_table_tidy(tutti_store_table *table, tutti_store_entry *entry);

/* Copies the bytes into the entry's value; `append`: behind what is there. */
tutti_status tutti_store_table_put(tutti_store_table *table, tutti_store_entry *entry, tutti_store_bytes value,
                                   bool append);
/* Removes the value (not the entry). */
void tutti_store_table_drop(tutti_store_table *table, tutti_store_entry *entry);

tutti_status tutti_store_table_push(tutti_store_table *table, tutti_store_entry *entry, tutti_store_bytes value);
/* The oldest of the queue, which must not be empty; valid until tutti_store_table_pop. */
tutti_store_bytes tutti_store_table_peek(const tutti_store_entry *entry);
void tutti_store_table_pop(tutti_store_table *table, tutti_store_entry *entry);

void tutti_store_table_wait(tutti_store_entry *entry, tutti_store_waiter *waiter);
/* Takes the waiter out of its list, if it is in one; the entry stays. */
void tutti_store_table_unwait(tutti_store_waiter *waiter);

/* Keys that have a value. */
int64_t tutti_store_table_count(const tutti_store_table *table);
/* Bytes of a list of them, with a length of 8 bytes before each. */
size_t tutti_store_table_list_bytes(const tutti_store_table *table);
/* Calls `visit` for each key that has a value. */
void tutti_store_table_each(const tutti_store_table *table, void (*visit)(void *context, tutti_store_bytes key),
                            void *context);

#endif
