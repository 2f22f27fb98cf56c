/*
 * Gradients in a GPU's memory of ranks that are threads of one process, and so share a context, on the stand-in for
 * CUDA.
 */
#include <criterion/criterion.h>

#include <stdlib.h>

#include <tutti/ddp.h>

#include "bootstrap/base/settings.h"
#include "tests/support/gpu/cuda_call.h"

enum { PARAMETERS = 60, COUNT = 100, STEPS = 3 };

/* Each parameter is a bucket of its own, and the first step frees them all: no rank may begin the next step while
 * another one frees, which waits for all streams. */
static tutti_status train(ranks_context *context) {
    cuda_rank rank;
    tutti_ddp *ddp = NULL;
    tutti_ddp_parameter parameters[PARAMETERS];
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    for (int i = 0; i < PARAMETERS; i++) {
        parameters[i] = (tutti_ddp_parameter){.name = "weight", .count = COUNT, .type = TUTTI_INT32};
        TUTTI_TRY(cuda_alloc(&rank, COUNT * sizeof(int32_t), &parameters[i].data));
    }
    tutti_ddp_options options = TUTTI_DDP_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = rank.streams[0],
                                                  .bucket_bytes = 64, .first_bucket_bytes = 64, .sums = 1);
    TUTTI_TRY(tutti_ddp_create(context->comm, parameters, PARAMETERS, &options, &ddp));
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < PARAMETERS; i++) {
            void *gradient = tutti_ddp_gradient(ddp, i);
            TUTTI_TRY(rank.device->fill(gradient, step + 1, COUNT * sizeof(int32_t), rank.streams[0]));
            TUTTI_TRY(tutti_ddp_ready(ddp, i));
        }
        TUTTI_TRY(tutti_ddp_finish(ddp));
    }
    void *there = parameters[0].data;
    int32_t value = 0, expected = 0x01010101 * STEPS * context->nranks;
    TUTTI_TRY(rank.device->copy(there, tutti_ddp_gradient(ddp, PARAMETERS - 1), sizeof value, rank.streams[0]));
    TUTTI_TRY(cuda_fetch(&rank, &value, there, sizeof value, rank.streams[0]));
    RANKS_CHECK(value == expected, "the gradient is %x, not %x", (unsigned)value, (unsigned)expected);
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST))); /* destroy frees, too */
    tutti_ddp_destroy(ddp);
    return cuda_rank_close(&rank, context->comm);
}

Test(ddp_cuda, ranks_of_one_process_free_buckets_while_no_rank_is_ahead, .timeout = 60) {
    setenv("STANDIN_GPUS", "1", 1);
    tutti_settings_reload();
    const char *failure = ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = 4, .timeout_s = 40}, train);
    cr_assert(failure == NULL, "%s", failure);
}
