/*
 * A store that forwards to another store and counts: requests, bytes, and the length of the longest chain of round
 * trips in which each had to wait for the previous one.
 *
 * For this, each value carries the length of the chain that led to it; its reader continues that chain. A get counts
 * as two round trips (wait, then fetch), a set as zero, since it has no reply.
 */
#ifndef TUTTI_TESTS_COUNTING_STORE_H
#define TUTTI_TESTS_COUNTING_STORE_H

#include <stdatomic.h>
#include <stdint.h>

#include <tutti/tutti.h>

/* Shared by all users of a store; may lie in memory that processes share. */
typedef struct store_counts {
    atomic_int_fast64_t requests;
    atomic_int_fast64_t bytes; /* keys and values, both ways */
    atomic_int_fast64_t depth; /* the longest chain */
} store_counts;

/* The view of one user, which is a rank. */
typedef struct counting_store {
    tutti_store inner;
    store_counts *counts;
    int64_t depth; /* of this user so far */
} counting_store;

/* The callbacks are valid as long as `counting` is. */
tutti_store counting_store_over(const tutti_store *inner, store_counts *counts, counting_store *counting);

#endif
