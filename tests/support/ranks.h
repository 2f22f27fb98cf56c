/*
 * Runs a body on n ranks, as processes or as threads of this process, and gathers the first failure.
 *
 * A body returns a status and never asserts (Criterion 2.4 hangs when a forked child asserts). Within a body,
 * RANKS_CHECK(condition, "format", ...) returns a failure with its text. The ranks get a ready communicator; a
 * failure or the time limit ends all ranks. No rank keeps running.
 */
#ifndef TUTTI_TESTS_RANKS_H
#define TUTTI_TESTS_RANKS_H

#include <stdbool.h>

#include <tutti/tutti.h>

typedef struct ranks_context {
    tutti_comm *comm; /* with all ranks; the body must not destroy it */
    int rank, nranks;
    void *argument;
    const tutti_store *store; /* shared by all ranks, for communicators that the body makes itself */
} ranks_context;

typedef tutti_status (*ranks_body)(ranks_context *context);

typedef enum ranks_kind { RANKS_PROCESSES, RANKS_THREADS } ranks_kind;

typedef struct ranks_options {
    ranks_kind kind;
    int nranks;
    int timeout_s;                  /* 0: 60 */
    void *argument;                 /* handed to each body */
    bool no_comm;                   /* makes no communicator; context.comm is NULL */
    const char *const *environment; /* "NAME=value", ended by NULL; set in ranks (processes only); may be NULL */
    bool world;                     /* the communicator is tutti_comm_create_world's; `enter` prepares it */
    /* Called first in each rank (processes only), to put it into its place in the world; may be NULL. */
    tutti_status (*enter)(const ranks_context *context);
} ranks_options;

/* Runs the body on all ranks. Returns NULL if all returned TUTTI_OK, else the first failure as text ("rank 2: peer
 * died: ..."), valid until the next call. TUTTI_TEST_WORLDS="2/0" (see below) excludes threads, "0/2" processes: then
 * it returns NULL at once. */
const char *ranks_run(const ranks_options *options, ranks_body body);

/* The same in worlds of several sizes (ended by 0), as processes and then as threads; kind and nranks of `options`
 * are ignored, options may be NULL. The text also names the world. TUTTI_TEST_WORLDS="2,8/2,4" restricts them to
 * those with 2 and 8 processes, and with 2 and 4 threads; if none remains, the first one runs. */
const char *ranks_run_worlds(const int *sizes, const ranks_options *options, ranks_body body);

/* Sets the variables of options.environment in this process, too, for ranks that are its threads. Processes come
 * first in a test: children of a process that has used Tutti, as the parent of threads does, cannot use it. */
void ranks_adopt(const char *const *environment);

/* Whether this build can test ranks as processes. The thread sanitizer sees nothing across processes, so it runs
 * threads. */
bool ranks_have_processes(void);

/* The calling rank, a process, sends itself SIGKILL or SIGSTOP: the run goes on without it, and its missing
 * report does not count as a failure. Returns when a stopped rank is continued. */
void ranks_strike(const ranks_context *context, int signal_number);
/* The address of a rank's process id, 0 before it has started. Processes only. */
int ranks_pid(const ranks_context *context, int rank);
/* Declares that `rank` may end without a report, as ranks_strike does for the caller. */
void ranks_forgive(const ranks_context *context, int rank);

/* Makes and destroys an in-memory tutti_store (HashStore) that threads, and processes forked after this call, share. */
tutti_status ranks_store_create(tutti_store *store_out);
void ranks_store_destroy(tutti_store *store);

#define RANKS_CHECK(condition, ...)                                                                                    \
    do {                                                                                                               \
        if (!(condition)) return tutti_fail(TUTTI_ERR_DATA, __VA_ARGS__);                                              \
    } while (0)

/* RANKS_EXPECT(status, expression): the expression must return that status. */
#define RANKS_EXPECT(expected, expr)                                                                                   \
    do {                                                                                                               \
        tutti_status ranks_got_ = (expr);                                                                              \
        if (ranks_got_ != (expected))                                                                                  \
            return tutti_fail(TUTTI_ERR_DATA, "line %d: %s gave '%s' (%s), not '%s'", __LINE__, #expr,                 \
                              tutti_status_name(ranks_got_), ranks_got_ == TUTTI_OK ? "" : tutti_last_error(),         \
                              tutti_status_name(expected));                                                            \
    } while (0)

#endif
