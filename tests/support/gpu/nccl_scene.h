/*
 * Shared by tests of NCCL on stand-ins: worlds as processes and threads, a rank's place on its GPU, and how often the
 * stand-in for NCCL was called.
 */
#ifndef TUTTI_TESTS_NCCL_SCENE_H
#define TUTTI_TESTS_NCCL_SCENE_H

#include <stdatomic.h>

#include "tests/support/gpu/cuda_call.h"

/* As processes and as threads, which have this process's environment. Asserts. */
void nccl_run(const int *sizes, const char *const *environment, ranks_body body);
/* The same only as processes, each of which has its own counts; skipped where processes are not possible. */
void nccl_run_processes(int nranks, const char *const *environment, ranks_body body);
/* A body with a place on a GPU. */
tutti_status nccl_with_rank(ranks_context *context, tutti_status (*body)(ranks_context *, cuda_rank *));
/* Calls of that name in this process; -1: the library is not loaded, or not the stand-in. */
int nccl_count(const char *name);
/* The stand-in for CUDA has no graphs; it reports that a stream is being captured, and runs what is enqueued. */
tutti_status nccl_capture(tutti_stream stream, bool captures);

/* Shared by the ranks of a run that ends with a failure. */
extern struct nccl_stage {
    atomic_llong event_ns;
    atomic_llong told_ns; /* after the event, at the latest */
    atomic_long arrived;  /* in nccl_meet */
    bool ordered;         /* calls use Tutti's kernel, so several steps */
    const char *words;    /* what the error must contain */
} * nccl_stage;

void nccl_set_stage(void);
/* Does nothing where ranks cannot be processes. Processes come first in a test. Asserts. */
void nccl_run_as(int nranks, ranks_kind kind, const char *const *environment, ranks_body body);
/* Waits until all ranks are here, outside of the library. */
tutti_status nccl_meet(const ranks_context *context);
/* A buffer that no call releases: a rank's arena on its GPU. */
tutti_status nccl_open_rank(const ranks_context *context, cuda_rank *rank, void **memory_out);
/* The all_reduce with which all ranks are busy. */
tutti_status nccl_sum_within(tutti_comm *comm, cuda_rank *rank, void *memory, int64_t timeout_ms,
                             tutti_work **work_out);
tutti_status nccl_sum(tutti_comm *comm, cuda_rank *rank, void *memory, tutti_work **work_out);
tutti_status nccl_wait_within(tutti_comm *comm, cuda_rank *rank, void *memory, int64_t timeout_ms);
tutti_status nccl_sum_and_wait(tutti_comm *comm, cuda_rank *rank, void *memory);
/* Checks that streams no longer wait, whatever became of the communicator. */
tutti_status nccl_check_streams(cuda_rank *rank);

#endif
