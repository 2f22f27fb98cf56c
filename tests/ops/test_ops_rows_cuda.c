/*
 * The table of operators on CUDA memory: each row, with signatures on one and two axes, against one rank in host
 * memory; with one GPU for all ranks, and a stream for each. Stand-ins for GPUs, or the real ones of this machine.
 */
#include <criterion/criterion.h>
#include <stdlib.h>

#include <tutti/device.h>

#include "tests/ops/rows.h"
#include "tests/support/gpu/cuda_call.h"
#include "tests/support/ranks.h"

TestSuite(ops_rows_cuda, .timeout = 300);

static void run(const char *gpus, ranks_kind kind, int nranks, ranks_body body) {
    if (cuda_real_gpus() > 0 && cuda_real_gpus() < atoi(gpus)) cr_skip("fewer GPUs than it is for");
    setenv("STANDIN_GPUS", gpus, 1); /* for processes and threads */
    const char *failure = ranks_run(&(ranks_options){.kind = kind, .nranks = nranks, .timeout_s = 280}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status judge_all(ranks_context *context, const int *axes, int naxes) {
    enum { MOST_RUNS = 8 };
    cuda_rank rank;
    tutti_placement *keeper; /* timeout of communicators, for all rows */
    int n = context->nranks;
    TUTTI_TRY(cuda_rank_open(context, 1, &rank));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &keeper));
    const row_place place = {.comm = context->comm,
                             .axes = axes,
                             .naxes = naxes,
                             .memory = TUTTI_MEMORY_CUDA,
                             .stream = rank.streams[0],
                             .most_runs = MOST_RUNS};
    for (const row_case *c = row_cases; c->row != NULL; c++) {
        row_verdict verdict;
        TUTTI_TRY(judge_row(&place, c, &verdict));
        RANKS_CHECK(verdict.runs > 0, "%s: no runs", c->row->name);
        RANKS_CHECK(verdict.wrong == 0, "%s: %d of %d wrong; %s", c->row->name, verdict.wrong, verdict.runs,
                    verdict.text);
    }
    TUTTI_TRY(rank.device->stream_sync(rank.streams[0]));
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    tutti_placement_destroy(keeper);
    return cuda_rank_close(&rank, context->comm);
}

static tutti_status judge_on_line(ranks_context *context) {
    return judge_all(context, &context->nranks, 1);
}

static tutti_status judge_on_square(ranks_context *context) {
    return judge_all(context, (int[]){2, 2}, 2);
}

Test(ops_rows_cuda, on_one_axis_of_processes) {
    run("1", RANKS_PROCESSES, 2, judge_on_line);
}

Test(ops_rows_cuda, on_one_axis_of_threads) {
    run("1", RANKS_THREADS, 3, judge_on_line);
}

Test(ops_rows_cuda, on_two_axes) {
    run("1", RANKS_PROCESSES, 4, judge_on_square);
}

Test(ops_rows_cuda, on_a_gpu_for_each_rank) {
    run("2", RANKS_PROCESSES, 2, judge_on_line);
}
