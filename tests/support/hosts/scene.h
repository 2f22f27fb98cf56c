/*
 * A scenario for ranks of several hosts with a failure: all ranks sum until it happens, and then each must get an
 * error.
 *
 * A test makes the scene, which is memory that the ranks of its runs share, and runs a body; the body sums for a
 * while (scene_warm_up), one rank records the time and causes the failure, all continue to sum, and check the error
 * that ended them.
 */
#ifndef TUTTI_TESTS_SCENE_H
#define TUTTI_TESTS_SCENE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/support/hosts/hosts.h"

#define LAYOUT(...)        ((const int[]){__VA_ARGS__, 0})
#define SCENE_PEER_MS      3000
#define SCENE_PEER_SETTING "TUTTI_PEER_TIMEOUT_MS=3000"
#define SCENE_KNOWN_MS     (SCENE_PEER_MS + 1500) /* from the event to the error, on a machine whose cores are shared */

/* For hosts_options.environment: the timeout for silent peers is SCENE_PEER_MS. */
extern const char *const scene_attentive[];

typedef struct scene {
    atomic_llong event_ns; /* when it happened; 0: not yet */
    int victim;            /* host, or rank */
    size_t count;          /* elements of the operations during the scenario */
    _Atomic int flag;      /* free for the body */
    _Atomic int warm;      /* ranks that have finished scene_warm_up's sums */
} scene;

/* A new scene. Asserts. */
void scene_set(int victim, size_t count);
scene *scene_now(void);

/* Calls hosts_run; asserts that nothing failed. */
void scene_run(const hosts_options *options, ranks_body body);

/* Sums for a while, and returns when all ranks have: an event that then happens to one rank finds no other rank still
 * in it. */
tutti_status scene_warm_up(ranks_context *context, int *rounds_out);

/* Sums until an error or until the time is over; checks each result. */
tutti_status scene_keep_summing(ranks_context *context, int64_t limit_ms, int *rounds_out);

/* Checks the error that ended scene_keep_summing: it reports a death in time, contains that name (may be NULL) and at
 * most one reporting rank; and later calls return at once. */
tutti_status scene_check_told(ranks_context *context, tutti_status status, const char *name, int64_t within_ms);

#endif
