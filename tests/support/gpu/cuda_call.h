/*
 * The calls of call.h on CUDA memory: their buffers, guards included, are copied to a GPU and back.
 *
 * GPUs are stand-ins if TUTTI_CUDA_MODULE names one, as ctest sets it; else they are real, and the same tests run on
 * the first TUTTI_TEST_GPUS of them (1). Checks that only a stand-in allows are skipped there.
 *
 * A rank has one arena there, from which buffers are allocated: freeing GPU memory waits for all streams of the
 * process, so also for other ranks if they are threads of it. Data goes to and from the arena through pinned memory
 * and only after the stream has drained: a copy between a GPU and pageable memory that has to wait for its stream may
 * block the other threads of the process in CUDA, and these are the ranks for which the stream waits.
 */
#ifndef TUTTI_TESTS_CUDA_CALL_H
#define TUTTI_TESTS_CUDA_CALL_H

#include <stdatomic.h>

#include "kernels/device.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"

#define CUDA_STREAMS 3

/* A rank's place on its GPU. */
typedef struct cuda_rank {
    const tutti_device *device;
    int index;
    tutti_stream streams[CUDA_STREAMS];
    char *arena, *pinned; /* pinned host memory of the arena's size; data is staged at the same offset */
    size_t arena_bytes, used;
    bool shared; /* the arena comes from tutti_mem_alloc_cuda */
} cuda_rank;

/* From now on arenas come from tutti_mem_alloc_cuda on each rank r whose bit r % 64 is set; peers cannot map other
 * arenas. */
extern uint64_t cuda_shared_arenas;

/* Returns how many real GPUs tests may use; 0: GPUs are stand-ins, and STANDIN_GPUS is their number. */
int cuda_real_gpus(void);

/* Rank r uses GPU r modulo their number. Close it in any case; closing is collective unless comm is NULL. */
tutti_status cuda_rank_open(const ranks_context *context, size_t arena_bytes, cuda_rank *rank_out);
tutti_status cuda_rank_close(cuda_rank *rank, tutti_comm *comm);
/* Memory that is valid until the rank is closed or `used` is set back. */
tutti_status cuda_alloc(cuda_rank *rank, size_t bytes, void **memory_out);
/* From the host's memory to the arena, in the stream's order; `src` may be changed at once. No earlier cuda_put to
 * the same place may be in progress. */
tutti_status cuda_put(cuda_rank *rank, void *there, const void *src, size_t bytes, tutti_stream stream);
/* From the arena to the host's memory, after everything in the stream; waits for that. */
tutti_status cuda_fetch(cuda_rank *rank, void *dst, const void *there, size_t bytes, tutti_stream stream);

/* A call whose buffers are on the GPU. */
typedef struct cuda_call {
    call_state host, there;
    char **copies; /* one for each allocation of host */
} cuda_call;

/* Makes the buffers and copies them to the GPU, in that stream's order. Release them with cuda_call_release in any
 * case. */
tutti_status cuda_call_prepare(cuda_rank *rank, const call *c, int self, int nranks, tutti_stream stream,
                               cuda_call *call_out);
/* Fetches the buffers after everything in the stream, and compares. */
tutti_status cuda_call_check(cuda_rank *rank, cuda_call *c, tutti_stream stream);
void cuda_call_release(cuda_call *c);
/* All of the above, in the stream; optionally with a work. */
tutti_status cuda_call_run(cuda_rank *rank, const call *c, tutti_comm *comm, tutti_stream stream, bool with_work);

/* All kinds: n-1, n, n+1 for n ranks, a prime, and a size of several pieces of piece_bytes bytes, the last one
 * shorter; in alternating streams, with works and without. */
tutti_status cuda_sweep_sizes(cuda_rank *rank, const ranks_context *context, size_t piece_bytes);
/* All types and reductions. */
tutti_status cuda_sweep_types(cuda_rank *rank, const ranks_context *context);

/* A value that streams wait for until the host opens it. */
typedef struct cuda_gate {
    _Atomic uint64_t *host;
    void *on_device;
} cuda_gate;
tutti_status cuda_gate_create(cuda_rank *rank, cuda_gate *gate_out);
tutti_status cuda_gate_close(cuda_rank *rank, cuda_gate *gate, tutti_stream stream);
void cuda_gate_open(cuda_gate *gate);
void cuda_gate_destroy(cuda_rank *rank, cuda_gate *gate);

#endif
