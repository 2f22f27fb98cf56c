/*
 * The timed loop and the checked calls. See measure.h.
 *
 * On a GPU the clock stops when the stream has done all enqueued work, as in nccl-tests.
 *
 * Without -I, --percentiles, -z 3 and --touch the clock is read only before the first and after the last iteration;
 * with any of them each iteration is timed by itself, and the time between iterations does not count.
 */
#include "bench/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/buffers.h"
#include "bench/gpu.h"

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------------------------------ open, close */

tutti_status bench_measure_open(bench_run *run) {
    size_t iterations = (size_t)run->options->iterations;
    size_t ranks = (size_t)run->self->size;
    if (bench_options_times_each(run->options)) {
        run->times_us = calloc(iterations, sizeof *run->times_us);
        run->all_times_us = calloc(2 * iterations * (ranks + 1), sizeof *run->all_times_us);
        if (run->times_us == NULL || run->all_times_us == NULL)
            return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the times of %zu iterations; lower -n", iterations);
    }
    return bench_buffers_open(run);
}

void bench_measure_close(bench_run *run) {
    bench_buffers_close(run);
    free(run->times_us);
    free(run->all_times_us);
}

size_t bench_measure_bytes(const bench_run *run, const bench_case *c) {
    if (run->row->uneven) return bench_traffic_most_bytes(run->traffic, run->nranks, bench_buffers_total_bytes(run, c));
    return bench_collective_bytes(run->row, c->count, c->type->bytes, run->nranks);
}

/* --------------------------------------------------------------------------------------------- calls */

static tutti_options call_options(const bench_run *run) {
    bool on_gpu = run->gpu != NULL;
    return TUTTI_OPTIONS(.timeout_ms = run->options->timeout_s * 1000,
                         .memory = on_gpu ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_HOST,
                         .stream = on_gpu ? bench_gpu_stream(run->gpu) : NULL,
                         .factor = bench_values_factor(run->rank));
}

static bench_call make_call(const bench_run *run, const bench_case *c, const tutti_options *options, bool in_place) {
    bench_call call = {.comm = run->comm,
                       .rank = run->rank,
                       .nranks = run->nranks,
                       .root = c->root,
                       .count = c->count,
                       .sent = c->count * bench_collective_send_parts(run->row, run->nranks),
                       .received = c->count * bench_collective_receive_parts(run->row, run->nranks),
                       .bytes = bench_measure_bytes(run, c),
                       .type = c->type,
                       .reduction = c->reduction,
                       .in_place = in_place,
                       .options = options};
    if (run->row->uneven) bench_buffers_list(run, c, &call);
    return call;
}

static tutti_status barrier(const bench_run *run) {
    return tutti_barrier(run->self->world, &TUTTI_OPTIONS(.timeout_ms = run->options->timeout_s * 1000));
}

/* On a GPU a call returns once it is enqueued. */
static tutti_status wait(const bench_run *run) {
    return run->gpu != NULL ? bench_gpu_wait(run->gpu) : TUTTI_OK;
}

static tutti_status call_once(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration) {
    bench_buffers_place(run, c, iteration, call);
    return run->row->run(call);
}

/* Does the work of --compute. */
static tutti_status compute(const bench_run *run) {
    int64_t duration_us = run->options->compute_us;
    if (run->gpu != NULL) return bench_gpu_multiply(run->gpu, run->products);
    for (double start = seconds(CLOCK_MONOTONIC); (seconds(CLOCK_MONOTONIC) - start) * 1e6 < (double)duration_us;) {}
    return TUTTI_OK;
}

/* The operations of one iteration: one call, or several in one group. */
static tutti_status iterate(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration) {
    const bench_options *options = run->options;
    bool barriers = options->blocking == BENCH_BLOCKING_BARRIER;
    bool waits = barriers || options->blocking == BENCH_BLOCKING_WAIT;
    if (options->compute_us > 0) TUTTI_TRY(compute(run));
    call->grouped = options->grouped > 1 && !waits && !run->row->stepwise;
    if (call->grouped) TUTTI_TRY(tutti_group_begin(run->comm));
    for (int64_t i = 0; i < options->grouped; i++) {
        TUTTI_TRY(call_once(run, c, call, iteration * options->grouped + i));
        if (waits) TUTTI_TRY(wait(run));
        if (barriers) TUTTI_TRY(barrier(run));
    }
    return call->grouped ? tutti_group_end(run->comm, call->options) : TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- timing */

typedef struct elapsed {
    double wall_s, cpu_s;
} elapsed;

/* Ranks that are threads have a clock each; the clock of a process also counts its workers. */
static double cpu_seconds(const bench_run *run) {
    if (!run->options->cpu_time) return 0;
    return seconds(run->options->life == BENCH_LIFE_THREADS ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID);
}

static elapsed start_clocks(const bench_run *run) {
    return (elapsed){.cpu_s = cpu_seconds(run), .wall_s = seconds(CLOCK_MONOTONIC)};
}

/* Waits, and adds the elapsed time; waiting for a GPU does not count as processor time. */
static tutti_status stop_clocks(const bench_run *run, elapsed start, elapsed *total) {
    double cpu_s = cpu_seconds(run);
    TUTTI_TRY(wait(run));
    total->wall_s += seconds(CLOCK_MONOTONIC) - start.wall_s;
    total->cpu_s += cpu_s - start.cpu_s;
    return TUTTI_OK;
}

static tutti_status iterate_all(const bench_run *run, const bench_case *c, bench_call *call) {
    for (int64_t i = 0; i < run->options->iterations; i++) TUTTI_TRY(iterate(run, c, call, i));
    return TUTTI_OK;
}

static tutti_status time_together(bench_run *run, const bench_case *c, bench_call *call, elapsed *total_out) {
    elapsed start = start_clocks(run);
    TUTTI_TRY(iterate_all(run, c, call));
    return stop_clocks(run, start, total_out);
}

static tutti_status time_one_by_one(bench_run *run, const bench_case *c, bench_call *call, elapsed *total_out) {
    const bench_options *options = run->options;
    for (int64_t i = 0; i < options->iterations; i++) {
        if (options->touch) TUTTI_TRY(bench_buffers_rewrite(run, c, call, i));
        if (options->blocking == BENCH_BLOCKING_OUTER_BARRIER) TUTTI_TRY(barrier(run));
        double before = total_out->wall_s;
        elapsed start = start_clocks(run);
        TUTTI_TRY(iterate(run, c, call, i));
        TUTTI_TRY(stop_clocks(run, start, total_out));
        if (run->times_us != NULL) run->times_us[i] = (total_out->wall_s - before) * 1e6 / (double)options->grouped;
        if (options->touch) TUTTI_TRY(bench_buffers_read(run, c, call, i));
    }
    return TUTTI_OK;
}

/* Times the work of --compute without the operations, for the same number of iterations. */
static tutti_status time_compute(bench_run *run, double *each_us_out) {
    elapsed total = {0}, start = start_clocks(run);
    for (int64_t i = 0; i < run->options->iterations; i++) TUTTI_TRY(compute(run));
    TUTTI_TRY(stop_clocks(run, start, &total));
    *each_us_out = total.wall_s * 1e6 / (double)run->options->iterations;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- CUDA graphs */

/* The outcome of a capture; all ranks use the worst one, so that all continue in the same way. */
typedef enum outcome { CAPTURED, REFUSED, FAILED } outcome;

static tutti_status agree(bench_run *run, tutti_status own, outcome *worst_out) {
    int32_t mine = own == TUTTI_OK ? CAPTURED : own == TUTTI_ERR_UNSUPPORTED ? REFUSED : FAILED, worst;
    char reason[sizeof run->refusal];
    snprintf(reason, sizeof reason, "%s", own == TUTTI_OK ? "other ranks cannot" : tutti_last_error());
    TUTTI_TRY(tutti_all_reduce(run->self->world, &mine, &worst, 1, TUTTI_INT32, TUTTI_MAX, NULL));
    if (worst == FAILED)
        return own < TUTTI_OK ? tutti_fail(own, "%s", reason)
                              : tutti_fail(TUTTI_ERR_SYSTEM, "a graph could not be captured on another rank");
    if (worst == REFUSED) memcpy(run->refusal, reason, sizeof reason);
    *worst_out = (outcome)worst;
    return TUTTI_OK;
}

/* Captures all iterations as a graph. */
static tutti_status capture(bench_run *run, const bench_case *c, bench_call *call, outcome *outcome_out) {
    char reason[sizeof run->refusal];
    TUTTI_TRY(bench_gpu_record_begin(run->gpu));
    tutti_status status = iterate_all(run, c, call);
    snprintf(reason, sizeof reason, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    tutti_status end = bench_gpu_record_end(run->gpu); /* always, or the stream would stay captured */
    if (status == TUTTI_OK) status = end;
    else tutti_fail(status, "%s", reason);
    return agree(run, status, outcome_out);
}

/* If an engine's calls cannot be captured, this and all later rows are measured without graphs. */
static tutti_status time_graphs(bench_run *run, const bench_case *c, bench_call *call, elapsed *total_out) {
    outcome end = FAILED;
    TUTTI_TRY(capture(run, c, call, &end));
    if (end == REFUSED) {
        run->graphs = 0;
        bench_gpu_forget(run->gpu);
        return time_together(run, c, call, total_out);
    }
    TUTTI_TRY(bench_gpu_replay(run->gpu, 1)); /* the first launch brings the graph to the GPU */
    TUTTI_TRY(wait(run));
    TUTTI_TRY(barrier(run));
    elapsed start = start_clocks(run);
    TUTTI_TRY(bench_gpu_replay(run->gpu, run->graphs));
    TUTTI_TRY(stop_clocks(run, start, total_out));
    bench_gpu_forget(run->gpu);
    total_out->wall_s /= (double)run->graphs;
    total_out->cpu_s /= (double)run->graphs;
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- results */

/* Combines a value over all ranks according to -a. */
static tutti_status combine(const bench_run *run, double *value) {
    static const tutti_reduction reductions[] = {
        [BENCH_AVERAGE_MEAN] = TUTTI_AVG, [BENCH_AVERAGE_MIN] = TUTTI_MIN, [BENCH_AVERAGE_MAX] = TUTTI_MAX};
    tutti_comm *world = run->self->world;
    if (run->options->average == BENCH_AVERAGE_RANK0) return tutti_broadcast(world, value, 1, TUTTI_FLOAT64, 0, NULL);
    return tutti_all_reduce(world, value, value, 1, TUTTI_FLOAT64, reductions[run->options->average], NULL);
}

/* Gathers the times of single iterations on rank 0: a line per rank, then the slowest rank's times. Each half of a
 * row has its own place, since they are printed together. */
static tutti_status collect_iterations(bench_run *run, bool in_place, bench_iterations *iterations_out) {
    size_t count = (size_t)run->options->iterations;
    size_t ranks = (size_t)run->self->size;
    double *all = run->all_times_us + (in_place ? count * (ranks + 1) : 0);
    TUTTI_TRY(tutti_gather(run->self->world, run->times_us, all, count, TUTTI_FLOAT64, 0, NULL));
    if (run->self->rank != 0) return TUTTI_OK;
    double *slowest = all + ranks * count;
    memcpy(slowest, all, count * sizeof *slowest);
    for (size_t i = count; i < ranks * count; i++)
        if (all[i] > slowest[i % count]) slowest[i % count] = all[i];
    *iterations_out = (bench_iterations){.times_us = slowest,
                                         .rank_times_us = all,
                                         .count = (int)count,
                                         .nranks = (int)ranks,
                                         .skipped = (int)run->options->skip};
    return bench_iterations_summarize(iterations_out);
}

/* -------------------------------------------------------------------------------------------- checks */

/* Checks one call after another until one is wrong. Adds up the wrong elements of all ranks. */
static tutti_status check(bench_run *run, const bench_case *c, bench_call *call, int64_t *wrong_out) {
    *wrong_out = 0;
    call->grouped = false;
    for (int64_t i = 0; i < run->options->checks && *wrong_out == 0; i++) {
        bench_pattern pattern;
        TUTTI_TRY(bench_buffers_prepare(run, c, call, &pattern));
        TUTTI_TRY(run->row->run(call));
        TUTTI_TRY(wait(run));
        int64_t wrong = run->row->check(call, &pattern);
        if (wrong > 0) run->failed_checks++;
        TUTTI_TRY(tutti_all_reduce(run->self->world, &wrong, wrong_out, 1, TUTTI_INT64, TUTTI_SUM, NULL));
    }
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- public */

tutti_status bench_measure_warm_up(bench_run *run, const bench_case *c) {
    tutti_options options = call_options(run);
    bench_call call = make_call(run, c, &options, false);
    for (int64_t i = 0; i < run->options->warmup; i++) TUTTI_TRY(call_once(run, c, &call, i));
    return wait(run);
}

/* Rank 0 measures how much work --compute needs, while the other ranks wait. */
static tutti_status measure_work(bench_run *run) {
    if (run->options->compute_us == 0 || run->gpu == NULL || run->products > 0) return TUTTI_OK;
    TUTTI_TRY(barrier(run));
    if (run->self->rank == 0) TUTTI_TRY(bench_gpu_products(run->gpu, run->options->compute_us, &run->products));
    TUTTI_TRY(tutti_broadcast(run->self->world, &run->products, 1, TUTTI_INT64, 0, NULL));
    TUTTI_TRY(bench_gpu_multiply(run->gpu, 1)); /* loads its code, outside of measurements and graphs */
    return wait(run);
}

/* The timed part: all iterations; all ranks begin together. */
static tutti_status time_half(bench_run *run, const bench_case *c, bench_call *call, elapsed *total_out) {
    const bench_options *options = run->options;
    TUTTI_TRY(call_once(run, c, call, 0));
    TUTTI_TRY(wait(run));
    TUTTI_TRY(barrier(run));
    if (run->graphs > 0) return time_graphs(run, c, call, total_out);
    if (bench_options_times_each(options) || options->touch || options->blocking == BENCH_BLOCKING_OUTER_BARRIER)
        return time_one_by_one(run, c, call, total_out);
    return time_together(run, c, call, total_out);
}

tutti_status bench_measure_half(bench_run *run, const bench_case *c, bool in_place, bench_half *half_out) {
    const bench_options *options = run->options;
    tutti_options per_call = call_options(run);
    bench_call call = make_call(run, c, &per_call, in_place);
    bench_half half = {.checked = options->checks > 0 && !(in_place && run->row->unchecked_in_place)};
    double operations = (double)(options->iterations * options->grouped);
    elapsed total = {0};

    TUTTI_TRY(measure_work(run));
    if (options->checks > 0) TUTTI_TRY(bench_buffers_prepare(run, c, &call, NULL));
    TUTTI_TRY(time_half(run, c, &call, &total));
    double wall_s = total.wall_s / operations;
    TUTTI_TRY(combine(run, &wall_s));
    TUTTI_TRY(barrier(run));
    if (options->compute_us > 0) {
        TUTTI_TRY(time_compute(run, &half.compute_us));
        TUTTI_TRY(combine(run, &half.compute_us));
    }
    half.time_us = (options->cpu_time ? total.cpu_s / operations : wall_s) * 1e6;
    half.elapsed_s = wall_s;
    half.alg_bw = (double)bench_collective_counted_bytes(run->row, call.bytes, run->nranks) * 1e-9 / wall_s;
    half.bus_bw = half.alg_bw * bench_collective_bus_factor(run->row, run->nranks);
    if (half.checked) TUTTI_TRY(check(run, c, &call, &half.wrong));
    if (bench_options_times_each(options)) TUTTI_TRY(collect_iterations(run, in_place, &half.iterations));
    *half_out = half;
    return TUTTI_OK;
}
