/*
 * One collective call as data: make its buffers, start it, compare what it did with the reference.
 *
 * Every collective maps source blocks to destination blocks. A block's content is the stream of (seed, rank,
 * block), so any rank can compute the input of every other rank, and the expected results. Buffers end in guard bytes,
 * start at odd multiples of the element, and are malloc'd or tutti_mem_alloc'd as the call's memory mode says.
 */
#ifndef TUTTI_TESTS_CALL_H
#define TUTTI_TESTS_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef enum call_kind {
    CALL_ALL_REDUCE,
    CALL_REDUCE,
    CALL_BROADCAST,
    CALL_ALL_GATHER,
    CALL_REDUCE_SCATTER,
    CALL_ALL_TO_ALL,
    CALL_GATHER,
    CALL_SCATTER,
    CALL_BARRIER,
    CALL_ALL_GATHER_V,
    CALL_REDUCE_SCATTER_V,
    CALL_ALL_TO_ALL_V,
    CALL_GATHER_V,
    CALL_SCATTER_V,
    CALL_KINDS
} call_kind;

typedef enum call_mode { CALL_NEVER, CALL_ALWAYS, CALL_MIXED, CALL_MODES } call_mode; /* mixed: on odd ranks */

typedef struct call {
    call_kind kind;
    tutti_type type;
    tutti_reduction reduction; /* for kinds that reduce */
    size_t count;              /* v-variants: the largest count of a block */
    int root;                  /* for kinds that have one */
    call_mode in_place;
    call_mode shared; /* buffers come from tutti_mem_alloc */
    uint64_t seed;
} call;

/* A call with its buffers on one rank. */
typedef struct call_state {
    call call;
    int rank, nranks;
    int nsrcs, ndsts; /* blocks on this rank: 0, 1 or nranks */
    void **srcs, **dsts;
    size_t *src_counts, *dst_counts;
    void **allocations;
    bool *allocation_shared;
    size_t *allocation_bytes;
    int nallocations;
} call_state;

const char *call_name(call_kind kind);
bool call_reduces(call_kind kind);
bool call_has_root(call_kind kind);

/* Makes and fills the buffers. Release them with call_release in any case. */
tutti_status call_prepare(const call *c, int rank, int nranks, call_state *state_out);
/* Bytes of allocation i, guards included. */
size_t call_allocation_bytes(const call_state *state, int i);
/* The public call. options may be NULL; the factor is added where it is needed. */
tutti_status call_start(const call_state *state, tutti_comm *comm, const tutti_options *options);
/* After the call has completed: checks that results equal the reference, and that sources and guards are unchanged. */
tutti_status call_check(const call_state *state);
void call_release(call_state *state);

/* All of the above, blocking; the text of a failure describes the whole call. */
tutti_status call_run(const call *c, tutti_comm *comm);

#endif
