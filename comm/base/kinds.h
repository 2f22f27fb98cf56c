/*
 * The kinds of collectives, one row each, with name and traits. Code that serves several kinds tests a trait, not a
 * kind.
 */
#ifndef TUTTI_KINDS_H
#define TUTTI_KINDS_H

#include <stdbool.h>

enum {
    TUTTI_KIND_REDUCES = 1,     /* combines the inputs of all ranks */
    TUTTI_KIND_SPLITS = 2,      /* an input has a segment for each rank; otherwise all ranks take the whole input */
    TUTTI_KIND_COLLECTS = 4,    /* an output has a segment from each rank */
    TUTTI_KIND_FROM_ROOT = 8,   /* only the root has an input */
    TUTTI_KIND_TO_ROOT = 16,    /* only the root gets an output */
    TUTTI_KIND_MOVES_NONE = 32, /* has neither input nor output */
    TUTTI_KIND_COUNTS = 64,     /* counts differ by rank: pointers and counts are in arrays */
};

/* X(kind, name, traits) */
#define TUTTI_KINDS(X)                                                                                                 \
    X(BARRIER, "barrier", TUTTI_KIND_MOVES_NONE)                                                                       \
    X(ALL_REDUCE, "all_reduce", TUTTI_KIND_REDUCES)                                                                    \
    X(REDUCE, "reduce", TUTTI_KIND_REDUCES | TUTTI_KIND_TO_ROOT)                                                       \
    X(BROADCAST, "broadcast", TUTTI_KIND_FROM_ROOT)                                                                    \
    X(ALL_GATHER, "all_gather", TUTTI_KIND_COLLECTS)                                                                   \
    X(REDUCE_SCATTER, "reduce_scatter", TUTTI_KIND_REDUCES | TUTTI_KIND_SPLITS)                                        \
    X(ALL_TO_ALL, "all_to_all", TUTTI_KIND_SPLITS | TUTTI_KIND_COLLECTS)                                               \
    X(GATHER, "gather", TUTTI_KIND_COLLECTS | TUTTI_KIND_TO_ROOT)                                                      \
    X(SCATTER, "scatter", TUTTI_KIND_SPLITS | TUTTI_KIND_FROM_ROOT)                                                    \
    X(ALL_GATHER_V, "all_gather_v", TUTTI_KIND_COLLECTS | TUTTI_KIND_COUNTS)                                           \
    X(REDUCE_SCATTER_V, "reduce_scatter_v", TUTTI_KIND_REDUCES | TUTTI_KIND_SPLITS | TUTTI_KIND_COUNTS)                \
    X(ALL_TO_ALL_V, "all_to_all_v", TUTTI_KIND_SPLITS | TUTTI_KIND_COLLECTS | TUTTI_KIND_COUNTS)                       \
    X(GATHER_V, "gather_v", TUTTI_KIND_COLLECTS | TUTTI_KIND_TO_ROOT | TUTTI_KIND_COUNTS)                              \
    X(SCATTER_V, "scatter_v", TUTTI_KIND_SPLITS | TUTTI_KIND_FROM_ROOT | TUTTI_KIND_COUNTS)

#define TUTTI_KIND_ENTRY(kind, name, traits) TUTTI_KIND_##kind,
typedef enum tutti_kind { TUTTI_KINDS(TUTTI_KIND_ENTRY) TUTTI_KIND_COUNT } tutti_kind;
#undef TUTTI_KIND_ENTRY

/* True if the kind has one of these traits. The mask is a constant if `wanted` is one. */
static inline bool tutti_kind_has(tutti_kind kind, unsigned wanted) {
#define TUTTI_KIND_BIT(kind, name, traits) | (((unsigned)(traits) & wanted) != 0 ? 1U << TUTTI_KIND_##kind : 0U)
    const unsigned kinds = 0U TUTTI_KINDS(TUTTI_KIND_BIT);
#undef TUTTI_KIND_BIT
    return (kinds >> (unsigned)kind & 1U) != 0;
}

static inline bool tutti_kind_has_root(tutti_kind kind) {
    return tutti_kind_has(kind, TUTTI_KIND_FROM_ROOT | TUTTI_KIND_TO_ROOT);
}

const char *tutti_kind_name(tutti_kind kind); /* "?" if the kind is unknown */

#endif
