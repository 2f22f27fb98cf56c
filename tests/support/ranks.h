/*
 * Runs a body on n ranks, as processes or as threads of this process, and gathers the first failure.
 *
 * A body returns a status and never asserts (Criterion 2.4 hangs when a forked child asserts). Within a body,
 * RANKS_CHECK(condition, "format", ...) returns a failure with its text. The ranks find a communicator made for
 * them; the time limit kills them all. Nobody is left behind.
 */
#ifndef TUTTI_TESTS_RANKS_H
#define TUTTI_TESTS_RANKS_H

#include <stdbool.h>

#include <tutti/tutti.h>

typedef struct ranks_context {
    tutti_comm *comm; /* of all ranks; the body must not destroy it */
    int rank, nranks;
    void *argument;
} ranks_context;

typedef tutti_status (*ranks_body)(ranks_context *context);

typedef enum ranks_kind { RANKS_PROCESSES, RANKS_THREADS } ranks_kind;

typedef struct ranks_options {
    ranks_kind kind;
    int nranks;
    int timeout_s;   /* 0: 60 */
    void *argument;  /* handed to each body */
    bool no_comm;    /* no communicator is made; context.comm is NULL */
    const char *const *environment; /* "NAME=value", ended by NULL; set in ranks (processes only); may be NULL */
} ranks_options;

/* Runs the body on all ranks. NULL when all returned TUTTI_OK, else the first failure as text
 * ("rank 2: peer died: ..."), valid until the next call. */
const char *ranks_run(const ranks_options *options, ranks_body body);

/* An in-memory tutti_store for threads (HashStore), and its end. */
tutti_status ranks_store_create(tutti_store *store_out);
void ranks_store_destroy(tutti_store *store);

#define RANKS_CHECK(condition, ...)                                                                                    \
    do {                                                                                                               \
        if (!(condition)) return tutti_fail(TUTTI_ERR_DATA, __VA_ARGS__);                                              \
    } while (0)

#endif
