/*
 * Collectives on CUDA memory compute what those on host memory do: all kinds, types and sizes, in place and not, in
 * pieces. The GPUs are stand-ins (support/standins/standin_cuda.c), or real ones (support/gpu/cuda_call.h).
 */
#include <criterion/criterion.h>

#include <stdlib.h>

#include "bootstrap/base/settings.h"
#include "tests/support/gpu/cuda_call.h"
#include "tests/support/reference.h"

TestSuite(stream, .timeout = 240);

#define STAGE_BYTES 4096 /* so that even little data goes in pieces */

static const int worlds[] = {1, 2, 3, 4, 0};
static const int small_worlds[] = {1, 3, 0};

static const char *const environment[] = {"TUTTI_CUDA_STAGE_BYTES=4096", NULL};

static void run(const int *sizes, ranks_body body) {
    setenv("TUTTI_CUDA_STAGE_BYTES", "4096", 1); /* for ranks that are threads */
    tutti_settings_reload();
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 200, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status with_rank(ranks_context *context, tutti_status (*body)(ranks_context *, cuda_rank *)) {
    cuda_rank rank;
    tutti_status status = cuda_rank_open(context, (size_t)8 << 20, &rank);
    if (status == TUTTI_OK) status = body(context, &rank);
    if (status == TUTTI_OK) status = cuda_rank_close(&rank, context->comm);
    return status;
}

static tutti_status all_sizes(ranks_context *context, cuda_rank *rank) {
    return cuda_sweep_sizes(rank, context, STAGE_BYTES);
}

static tutti_status sizes_body(ranks_context *context) {
    return with_rank(context, all_sizes);
}

Test(stream, all_kinds_give_what_the_reference_gives_at_all_sizes) {
    run(worlds, sizes_body);
}

static tutti_status all_types(ranks_context *context, cuda_rank *rank) {
    return cuda_sweep_types(rank, context);
}

static tutti_status types_body(ranks_context *context) {
    return with_rank(context, all_types);
}

Test(stream, all_types_and_reductions_give_what_the_reference_gives) {
    run(small_worlds, types_body);
}

/* By default a piece has 4 MB: tests two pieces, and a v-kind whose memory is in one piece. */
static tutti_status large(ranks_context *context) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)64 << 20, &rank));
    static const call_kind kinds[] = {CALL_ALL_REDUCE, CALL_ALL_GATHER, CALL_ALL_TO_ALL_V, CALL_BROADCAST};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        call c = {.kind = kinds[i], .type = TUTTI_INT32, .count = 1500007, .in_place = CALL_ALWAYS, .seed = i};
        TUTTI_TRY(cuda_call_run(&rank, &c, context->comm, rank.streams[0], false));
    }
    return cuda_rank_close(&rank, context->comm);
}

Test(stream, large_buffers_pass_with_the_default_settings) {
    const char *failure = ranks_run_worlds((const int[]){2, 0}, NULL, large);
    cr_assert(failure == NULL, "%s", failure);
}

/* Hundreds of pieces, of which a stream holds a few: the first ones must be carried out while later ones are
 * enqueued. */
static tutti_status many_pieces(ranks_context *context, cuda_rank *rank) {
    call c = {.kind = CALL_ALL_REDUCE, .type = TUTTI_INT32, .count = 200000, .seed = 5};
    return cuda_call_run(rank, &c, context->comm, rank->streams[0], false);
}

static tutti_status many_pieces_body(ranks_context *context) {
    return with_rank(context, many_pieces);
}

Test(stream, a_call_may_have_more_pieces_than_its_stream_holds) {
    static const char *const narrow[] = {"TUTTI_CUDA_STAGE_BYTES=4096", "STANDIN_DEPTH=30", NULL};
    setenv("TUTTI_CUDA_STAGE_BYTES", "4096", 1);
    setenv("STANDIN_DEPTH", "30", 1);
    tutti_settings_reload();
    const char *failure = ranks_run_worlds((const int[]){2, 3, 0},
                                           &(ranks_options){.timeout_s = 60, .environment = narrow}, many_pieces_body);
    cr_assert(failure == NULL, "%s", failure);
}
