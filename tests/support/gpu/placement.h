/*
 * Ranks on stand-ins of GPUs, several on some of them: a letter for each rank's GPU, "aba" or "aab". MIG instances of a GPU
 * are written in two: "a1a2".
 */
#ifndef TUTTI_TESTS_PLACEMENT_H
#define TUTTI_TESTS_PLACEMENT_H

#include "tests/support/gpu/cuda_call.h"

/* Runs the body on ranks of that kind, with those settings besides ("NAME=value", ended by NULL; may be NULL). The reference
 * knows the GPUs as it knows hosts. Threads have the settings of the process from then on, and its GPUs: one placement for
 * each test, and processes before threads. NULL, or the failure. */
const char *placement_run(const char *gpus, ranks_kind kind, const char *const *settings, ranks_body body);

/* The GPUs of the run, numbered by their lowest rank; for the reference, where ranks_run is not called by placement_run. */
const int *placement_gpus(const char *gpus);

/* Opens a rank on its GPU, and checks in the end which engine it was. */
tutti_status placement_with_rank(ranks_context *context, const char *engine,
                                 tutti_status (*body)(ranks_context *context, cuda_rank *rank));

/* As if a graph were captured from the stream, or no longer. */
tutti_status placement_capture(tutti_stream stream, bool captures);

#endif
