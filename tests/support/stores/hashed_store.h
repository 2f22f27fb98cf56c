/*
 * A store in this process's memory for thousands of threads: a hash table protected by one lock, whose waiters are
 * woken per bucket.
 */
#ifndef TUTTI_TESTS_HASHED_STORE_H
#define TUTTI_TESTS_HASHED_STORE_H

#include <tutti/tutti.h>

typedef struct hashed_store hashed_store;

/* NULL: out of memory. */
hashed_store *hashed_store_create(tutti_store *store_out);
void hashed_store_destroy(hashed_store *store);

#endif
