/*
 * The timed loop and the checked calls. See measure.h.
 *
 * Without -I, --percentiles, -z 3 and --touch the clock is read before the first and after the last iteration only; with one of
 * them each iteration is timed by itself and what lies between iterations does not count.
 */
#include "bench/measure.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------------------------------- buffers */

static tutti_status allocate(const bench_run *run, void **memory_out) {
    size_t bytes = run->buffer_bytes + 8 * (size_t)run->options->unalign;
    bytes = (bytes + 4095) / 4096 * 4096;
    if (run->options->memory == BENCH_MEMORY_TUTTI) TUTTI_TRY(tutti_mem_alloc(bytes, memory_out));
    else if ((*memory_out = aligned_alloc(4096, bytes)) == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a buffer of %zu bytes; lower -e", bytes);
    memset(*memory_out, 0, bytes); /* page faults belong to no measurement */
    return TUTTI_OK;
}

static void release(const bench_run *run, void *memory) {
    if (run->options->memory == BENCH_MEMORY_TUTTI) tutti_mem_free(memory);
    else free(memory);
}

static tutti_status allocate_lists(bench_run *run) {
    size_t ranks = (size_t)run->nranks;
    run->lists = (bench_lists){.srcs = calloc(ranks, sizeof *run->lists.srcs),
                               .dsts = calloc(ranks, sizeof *run->lists.dsts),
                               .src_counts = calloc(ranks, sizeof *run->lists.src_counts),
                               .dst_counts = calloc(ranks, sizeof *run->lists.dst_counts),
                               .origins = calloc(ranks, sizeof *run->lists.origins)};
    const bench_lists *lists = &run->lists;
    if (lists->srcs == NULL || lists->dsts == NULL || lists->src_counts == NULL || lists->dst_counts == NULL ||
        lists->origins == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for lists of %zu ranks", ranks);
    return TUTTI_OK;
}

static void free_lists(bench_lists *lists) {
    free(lists->srcs);
    free(lists->dsts);
    free(lists->src_counts);
    free(lists->dst_counts);
    free(lists->origins);
}

tutti_status bench_measure_open(bench_run *run) {
    size_t iterations = (size_t)run->options->iterations;
    size_t ranks = (size_t)run->self->size;
    if (bench_options_times_each(run->options)) {
        run->times_us = calloc(iterations, sizeof *run->times_us);
        run->all_times_us = calloc(2 * iterations * (ranks + 1), sizeof *run->all_times_us);
        if (run->times_us == NULL || run->all_times_us == NULL)
            return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the times of %zu iterations; lower -n", iterations);
    }
    if (run->row->uneven) TUTTI_TRY(allocate_lists(run));
    TUTTI_TRY(allocate(run, &run->send));
    return allocate(run, &run->receive);
}

void bench_measure_close(bench_run *run) {
    release(run, run->send);
    release(run, run->receive);
    free(run->times_us);
    free(run->all_times_us);
    free_lists(&run->lists);
}

/* What each rank sends to all, where no file of traffic says it. */
static size_t total_bytes(const bench_run *run, const bench_case *c) {
    return c->count * c->type->bytes * (size_t)run->nranks;
}

size_t bench_measure_bytes(const bench_run *run, const bench_case *c) {
    if (run->row->uneven) return bench_traffic_most_bytes(run->traffic, run->nranks, total_bytes(run, c));
    return bench_collective_bytes(run->row, c->count, c->type->bytes, run->nranks);
}

/* Points the call at the buffers, a step further for each iteration, round and round: results must not depend on
 * data that happens to be in a cache, or on one address. */
static void place(const bench_run *run, const bench_case *c, int64_t iteration, bench_call *call) {
    size_t steps = call->bytes > 0 ? run->buffer_bytes / call->bytes : 1;
    size_t shift = call->bytes * ((size_t)iteration % steps) + (size_t)run->options->unalign * c->type->bytes;
    size_t slice = c->count * c->type->bytes;
    char *receive = (char *)run->receive + shift;
    call->src = (char *)run->send + shift;
    call->dst = receive;
    if (!call->in_place || run->row->uneven) return;
    call->src = receive + bench_collective_send_slice(run->row, run->rank) * slice;
    call->dst = receive + bench_collective_receive_slice(run->row, run->rank) * slice;
}

/* --------------------------------------------------------------------------------------------- calls */

static tutti_options call_options(const bench_run *run) {
    return TUTTI_OPTIONS(.timeout_ms = run->options->timeout_s * 1000, .memory = TUTTI_MEMORY_HOST,
                         .factor = bench_values_factor(run->rank));
}

/* How many elements of this rank's go where, and where in the others' data its own part begins. */
static void list_parts(const bench_run *run, const bench_case *c, bench_call *call) {
    const bench_traffic *traffic = run->traffic;
    size_t total = total_bytes(run, c), type_bytes = c->type->bytes;
    call->lists = &run->lists;
    call->sent = call->received = 0;
    for (int peer = 0; peer < run->nranks; peer++) {
        size_t origin = 0;
        for (int before = 0; before < run->rank; before++)
            origin += bench_traffic_bytes(traffic, peer, before, run->nranks, total);
        run->lists.src_counts[peer] = bench_traffic_bytes(traffic, run->rank, peer, run->nranks, total) / type_bytes;
        run->lists.dst_counts[peer] = bench_traffic_bytes(traffic, peer, run->rank, run->nranks, total) / type_bytes;
        run->lists.origins[peer] = origin / type_bytes;
        call->sent += run->lists.src_counts[peer];
        call->received += run->lists.dst_counts[peer];
    }
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
    if (run->row->uneven) list_parts(run, c, &call);
    return call;
}

static tutti_status barrier(const bench_run *run) {
    return tutti_barrier(run->self->world, &TUTTI_OPTIONS(.timeout_ms = run->options->timeout_s * 1000));
}

static tutti_status call_once(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration) {
    place(run, c, iteration, call);
    return run->row->run(call);
}

/* The operations of one iteration: one call, or several in one group. */
static tutti_status iterate(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration) {
    const bench_options *options = run->options;
    bool barriers = options->blocking == BENCH_BLOCKING_BARRIER;
    call->grouped =
        options->grouped > 1 && !barriers && options->blocking != BENCH_BLOCKING_WAIT && !run->row->stepwise;
    if (call->grouped) TUTTI_TRY(tutti_group_begin(run->comm));
    for (int64_t i = 0; i < options->grouped; i++) {
        TUTTI_TRY(call_once(run, c, call, iteration * options->grouped + i));
        if (barriers) TUTTI_TRY(barrier(run));
    }
    return call->grouped ? tutti_group_end(run->comm, call->options) : TUTTI_OK;
}

/* What a program does around a collective: writes all that it sends; reads all that it received. */
static void rewrite(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration) {
    size_t bytes = call->sent * c->type->bytes;
    for (int64_t i = 0; i < run->options->grouped; i++) {
        place(run, c, iteration * run->options->grouped + i, call);
        memset((void *)call->src, iteration % 2 != 0 ? 0x3c : 0x3b, bytes); /* moderate numbers in every type */
    }
}

static void read_result(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration) {
    size_t bytes = call->received * c->type->bytes;
    uint64_t sum = 0;
    for (int64_t i = 0; i < run->options->grouped; i++) {
        place(run, c, iteration * run->options->grouped + i, call);
        for (size_t at = 0; at + sizeof sum <= bytes; at += sizeof sum) {
            uint64_t word;
            memcpy(&word, (const char *)call->dst + at, sizeof word);
            sum += word;
        }
    }
    __asm__ volatile("" : : "r"(sum)); /* the compiler must not drop the reads */
}

/* ------------------------------------------------------------------------------------------- timing */

typedef struct elapsed {
    double wall_s, cpu_s;
} elapsed;

static elapsed read_clocks(const bench_run *run) {
    return (elapsed){.wall_s = seconds(CLOCK_MONOTONIC),
                     .cpu_s = run->options->cpu_time ? seconds(CLOCK_PROCESS_CPUTIME_ID) : 0};
}

static void add_since(const bench_run *run, elapsed start, elapsed *total) {
    elapsed now = read_clocks(run);
    total->wall_s += now.wall_s - start.wall_s;
    total->cpu_s += now.cpu_s - start.cpu_s;
}

static tutti_status time_together(bench_run *run, const bench_case *c, bench_call *call, elapsed *total_out) {
    elapsed start = read_clocks(run);
    for (int64_t i = 0; i < run->options->iterations; i++) TUTTI_TRY(iterate(run, c, call, i));
    add_since(run, start, total_out);
    return TUTTI_OK;
}

static tutti_status time_one_by_one(bench_run *run, const bench_case *c, bench_call *call, elapsed *total_out) {
    const bench_options *options = run->options;
    for (int64_t i = 0; i < options->iterations; i++) {
        if (options->touch) rewrite(run, c, call, i);
        if (options->blocking == BENCH_BLOCKING_OUTER_BARRIER) TUTTI_TRY(barrier(run));
        double before = total_out->wall_s;
        elapsed start = read_clocks(run);
        TUTTI_TRY(iterate(run, c, call, i));
        add_since(run, start, total_out);
        if (run->times_us != NULL) run->times_us[i] = (total_out->wall_s - before) * 1e6 / (double)options->grouped;
        if (options->touch) read_result(run, c, call, i);
    }
    return TUTTI_OK;
}

/* Combines a value over all ranks as -a says. */
static tutti_status combine(const bench_run *run, double *value) {
    static const tutti_reduction reductions[] = {
        [BENCH_AVERAGE_MEAN] = TUTTI_AVG, [BENCH_AVERAGE_MIN] = TUTTI_MIN, [BENCH_AVERAGE_MAX] = TUTTI_MAX};
    tutti_comm *world = run->self->world;
    if (run->options->average == BENCH_AVERAGE_RANK0) return tutti_broadcast(world, value, 1, TUTTI_FLOAT64, 0, NULL);
    return tutti_all_reduce(world, value, value, 1, TUTTI_FLOAT64, reductions[run->options->average], NULL);
}

/* Brings the times of single iterations to rank 0: a line per rank, behind them the slowest rank's times. The two
 * halves of a row have a place each, since they are printed together. */
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

/* Clears where results go and writes what is sent, at the buffers' start. */
static bench_pattern prepare(bench_run *run, const bench_case *c, bench_call *call) {
    const bench_collective *row = run->row;
    bench_pattern pattern = {.type = c->type,
                             .reduces = row->redop == BENCH_REDOP_USED,
                             .reduction = c->reduction,
                             .nranks = run->nranks,
                             .round = run->round++};
    place(run, c, 0, call);
    memset((char *)run->receive + (size_t)run->options->unalign * c->type->bytes, 0, call->bytes);
    if (!row->only_root_sends || run->rank == c->root)
        bench_values_fill(&pattern, run->rank, 0, call->sent, (void *)call->src);
    return pattern;
}

/* One call after another until one is wrong. Adds up the wrong elements of all ranks. */
static tutti_status check(bench_run *run, const bench_case *c, bench_call *call, int64_t *wrong_out) {
    *wrong_out = 0;
    call->grouped = false;
    for (int64_t i = 0; i < run->options->checks && *wrong_out == 0; i++) {
        bench_pattern pattern = prepare(run, c, call);
        TUTTI_TRY(run->row->run(call));
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
    return TUTTI_OK;
}

tutti_status bench_measure_half(bench_run *run, const bench_case *c, bool in_place, bench_half *half_out) {
    const bench_options *options = run->options;
    tutti_options per_call = call_options(run);
    bench_call call = make_call(run, c, &per_call, in_place);
    bool one_by_one =
        bench_options_times_each(options) || options->touch || options->blocking == BENCH_BLOCKING_OUTER_BARRIER;
    double operations = (double)(options->iterations * options->grouped);
    elapsed total = {0};

    if (options->checks > 0) prepare(run, c, &call);
    TUTTI_TRY(call_once(run, c, &call, 0));
    TUTTI_TRY(barrier(run));
    if (one_by_one) TUTTI_TRY(time_one_by_one(run, c, &call, &total));
    else TUTTI_TRY(time_together(run, c, &call, &total));
    double wall_s = total.wall_s / operations;
    TUTTI_TRY(combine(run, &wall_s));
    TUTTI_TRY(barrier(run));

    bench_half half = {.checked = options->checks > 0 && !(in_place && run->row->unchecked_in_place)};
    half.time_us = (options->cpu_time ? total.cpu_s / operations : wall_s) * 1e6;
    half.elapsed_s = wall_s;
    half.alg_bw = (double)bench_collective_counted_bytes(run->row, call.bytes, run->nranks) * 1e-9 / wall_s;
    half.bus_bw = half.alg_bw * bench_collective_bus_factor(run->row, run->nranks);
    if (half.checked) TUTTI_TRY(check(run, c, &call, &half.wrong));
    if (bench_options_times_each(options)) TUTTI_TRY(collect_iterations(run, in_place, &half.iterations));
    *half_out = half;
    return TUTTI_OK;
}
