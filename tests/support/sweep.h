/*
 * Sweeps one kind of collective over types, reductions, counts, places and roots, in worlds of 1 to 16 ranks, and
 * compares each call with the reference. Chunks are small, so that the long path runs on little data.
 */
#ifndef TUTTI_TESTS_SWEEP_H
#define TUTTI_TESTS_SWEEP_H

#include "tests/support/call.h"
#include "tests/support/ranks.h"

/* NULL, or the first failure as text. */
const char *sweep_run(call_kind kind);

/* One rank's part, for other worlds: context->argument points to the kind. It needs the environment
 * sweep_environment. */
tutti_status sweep_rank(ranks_context *context);
extern const char *const sweep_environment[];

#endif
