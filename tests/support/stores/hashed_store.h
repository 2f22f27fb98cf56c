/*
 * A store in this process's memory that thousands of threads may share: a hash table behind one lock, whose waiters are
 * woken by their bucket.
 */
#ifndef TUTTI_TESTS_HASHED_STORE_H
#define TUTTI_TESTS_HASHED_STORE_H

#include <tutti/tutti.h>

typedef struct hashed_store hashed_store;

/* NULL: no memory. */
hashed_store *hashed_store_create(tutti_store *store_out);
void hashed_store_destroy(hashed_store *store);

#endif
