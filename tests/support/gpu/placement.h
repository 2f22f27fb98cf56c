/*
 * Ranks on stand-ins of GPUs, several on some of them: a letter for each rank's GPU, "aba" or "aab". MIG instances of
 * a GPU are a letter and a digit: "a1a2".
 */
#ifndef TUTTI_TESTS_PLACEMENT_H
#define TUTTI_TESTS_PLACEMENT_H

#include "tests/support/gpu/cuda_call.h"

/* Runs the body on ranks of that kind, with additional settings ("NAME=value", ended by NULL; may be NULL). The
 * reference knows the GPUs as it knows hosts. For threads the settings and GPUs become the process's for good: use
 * one placement in each test, and processes before threads. Returns NULL, or the failure. */
const char *placement_run(const char *gpus, ranks_kind kind, const char *const *settings, ranks_body body);

/* The GPUs of the run, numbered by their lowest rank; for the reference, if ranks_run is not called by placement_run.
 * */
const int *placement_gpus(const char *gpus);

/* Opens a rank on its GPU, and checks at the end which engine was used. */
tutti_status placement_with_rank(ranks_context *context, const char *engine,
                                 tutti_status (*body)(ranks_context *context, cuda_rank *rank));

/* Begins or ends a pretended capture of a graph from the stream. */
tutti_status placement_capture(tutti_stream stream, bool captures);

#endif
