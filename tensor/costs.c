/*
 * Measures the costs of plans. See costs.h.
 */
#include "tensor/costs.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "kernels/box.h"
#include "tensor/gpu.h"
#include "tensor/placement.h"

static const size_t point_bytes[TUTTI_COST_POINTS] = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

/* Measured on two cores of an EPYC (Zen 4). */
const tutti_costs tutti_costs_ordinary = {
    .crowd = 1,
    .base_us = {[TUTTI_COST_GATHER] = 0.5,
                [TUTTI_COST_REDUCE] = 0.5,
                [TUTTI_COST_SCATTER] = 0.5,
                [TUTTI_COST_MESSAGE] = 1,
                [TUTTI_COST_COPY] = 0.05,
                [TUTTI_COST_STRIDED] = 0.05,
                [TUTTI_COST_PULL] = 0.5,
                [TUTTI_COST_FRESH] = 0.5},
    .byte_ns = {[TUTTI_COST_GATHER] = {0.03, 0.03, 0.03, 0.05, 0.10, 0.10},
                [TUTTI_COST_REDUCE] = {0.04, 0.04, 0.04, 0.06, 0.12, 0.12},
                [TUTTI_COST_SCATTER] = {0.03, 0.03, 0.03, 0.06, 0.12, 0.12},
                [TUTTI_COST_MESSAGE] = {0.06, 0.06, 0.06, 0.10, 0.20, 0.20},
                [TUTTI_COST_COPY] = {0.02, 0.02, 0.025, 0.05, 0.10, 0.10},
                [TUTTI_COST_STRIDED] = {0.025, 0.025, 0.03, 0.06, 0.15, 0.15},
                [TUTTI_COST_PULL] = {0.03, 0.03, 0.03, 0.05, 0.10, 0.10},
                [TUTTI_COST_FRESH] = {0.15, 0.15, 0.12, 0.10, 0.12, 0.12}},
    .touched = {[TUTTI_COST_GATHER] = {96 << 10, 384 << 10, 1536 << 10, 6 << 20, 24 << 20, 96 << 20},
                [TUTTI_COST_REDUCE] = {128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20},
                [TUTTI_COST_SCATTER] = {96 << 10, 384 << 10, 1536 << 10, 6 << 20, 24 << 20, 96 << 20},
                [TUTTI_COST_MESSAGE] = {128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20},
                [TUTTI_COST_COPY] = {128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20},
                [TUTTI_COST_STRIDED] = {128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20},
                [TUTTI_COST_PULL] = {96 << 10, 384 << 10, 1536 << 10, 6 << 20, 24 << 20, 96 << 20},
                [TUTTI_COST_FRESH] = {128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20}},
    .row_ns = 2,
    .far_us = 30,
    .far_byte_ns = 1,
    .nhosts = 1,
};

/* ----------------------------------------------------------------------------------------------- questions */

/* Linear between two points over the number of doublings, because libtutti does not use libm. */
static double doublings(double ratio) {
    double whole = 0;
    for (; ratio >= 2; ratio /= 2) whole++;
    return whole + ratio - 1;
}

double tutti_costs_byte_ns(const tutti_costs *costs, tutti_cost_kind kind, double touched) {
    const double *at = costs->touched[kind], *ns = costs->byte_ns[kind];
    if (touched <= at[0]) return ns[0];
    for (int i = 1; i < TUTTI_COST_POINTS; i++)
        if (touched < at[i])
            return ns[i - 1] + (ns[i] - ns[i - 1]) * doublings(touched / at[i - 1]) / doublings(at[i] / at[i - 1]);
    return ns[TUTTI_COST_POINTS - 1];
}

/* ----------------------------------------------------------------------------------------------- measuring */

/* The call of one kind that is timed. */
typedef struct trial {
    tutti_comm *comm;
    int nranks, me;
    char *from, *to;
    tutti_cost_kind kind;
    size_t bytes;
    tutti_box_copy copy;
    const tutti_device *device; /* NULL: in host memory; else all calls are enqueued */
    tutti_stream stream;
} trial;

static tutti_options options_of(const trial *t) {
    return TUTTI_OPTIONS(.memory = t->device != NULL ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_HOST, .stream = t->stream);
}

static tutti_status pass_on(const trial *t) {
    const tutti_options options = options_of(t);
    const int64_t tag = t->device != NULL ? TUTTI_TAG_CUDA : TUTTI_TAG_HOST;
    int next = (t->me + 1) % t->nranks, before = (t->me + t->nranks - 1) % t->nranks;
    TUTTI_TRY(tutti_group_begin(t->comm));
    tutti_status status = tutti_recv(t->comm, t->to, t->bytes, TUTTI_UINT8, before, tag, &options);
    if (status == TUTTI_OK) status = tutti_send(t->comm, t->from, t->bytes, TUTTI_UINT8, next, tag, &options);
    if (status == TUTTI_OK) return tutti_group_end(t->comm, &options);
    (void)tutti_group_cancel(t->comm);
    return status;
}

static tutti_status write_freshly(const trial *t, size_t bytes) {
    if (t->device != NULL) return t->device->copy(t->from, t->from + bytes, bytes, t->stream);
    memcpy(t->from, t->from + bytes, bytes);
    return TUTTI_OK;
}

static tutti_status copy_box(const trial *t) {
    if (t->device != NULL) return t->device->copy_box(&t->copy, t->to, t->from, t->stream);
    tutti_box_run(&t->copy, t->to, t->from);
    return TUTTI_OK;
}

static tutti_status run(const trial *t) {
    const size_t share = t->bytes / (size_t)t->nranks / 4;
    const tutti_options options = options_of(t);
    if (t->kind == TUTTI_COST_FRESH && t->nranks > 1) TUTTI_TRY(write_freshly(t, 4 * share));
    switch (t->kind) {
    case TUTTI_COST_FRESH:
    case TUTTI_COST_PULL:
    case TUTTI_COST_GATHER: return tutti_all_gather(t->comm, t->from, t->to, share, TUTTI_FLOAT32, &options);
    case TUTTI_COST_REDUCE:
        return tutti_all_reduce(t->comm, t->from, t->to, t->bytes / 4, TUTTI_FLOAT32, TUTTI_SUM, &options);
    case TUTTI_COST_SCATTER:
        return tutti_reduce_scatter(t->comm, t->from, t->to, share, TUTTI_FLOAT32, TUTTI_SUM, &options);
    case TUTTI_COST_MESSAGE: return pass_on(t);
    default: return copy_box(t);
    }
}

/* Rows that are apart in `from`, at twice their length, and contiguous in `to`. */
static void plan_copy(trial *t, size_t row_bytes) {
    if (row_bytes >= t->bytes) row_bytes = t->bytes;
    int64_t row = (int64_t)row_bytes / 4, rows = (int64_t)(t->bytes / row_bytes);
    tutti_box_plan(&(tutti_box){.ndims = 2,
                                .element_bytes = 4,
                                .shape = {rows, row},
                                .dst_strides = {row, 1},
                                .src_strides = {rows > 1 ? 2 * row : row, 1}},
                   &t->copy);
}

/* Larger amounts are in no cache, and the kinds that come first have touched their pages. */
#define MOST_WARM_BYTES ((size_t)1 << 20)

/* The median of some rounds, each the mean of some calls: other work on the machine slows plans down, too. */
static tutti_status time_calls(const trial *t, int rounds, int calls, double *us_out) {
    enum { MOST_ROUNDS = 5 };
    double sorted[MOST_ROUNDS];
    bool talks = t->kind != TUTTI_COST_COPY && t->kind != TUTTI_COST_STRIDED, is_long = t->bytes > MOST_WARM_BYTES;
    for (int round = !talks && is_long ? 0 : -1; round < rounds; round++) { /* round -1 warms up */
        TUTTI_TRY(tutti_barrier(t->comm, NULL)); /* waits for works of plans, whose messages would match these */
        int64_t start_ns = tutti_now_ns();
        for (int i = 0; i < (round < 0 ? 1 : calls); i++) TUTTI_TRY(run(t));
        if (t->device != NULL) TUTTI_TRY(t->device->stream_sync(t->stream));
        double us = (double)(tutti_now_ns() - start_ns) / 1e3 / calls;
        int at = round;
        if (round < 0) continue;
        for (; at > 0 && sorted[at - 1] > us; at--) sorted[at] = sorted[at - 1];
        sorted[at] = us;
    }
    *us_out = sorted[(rounds - 1) / 2];
    return TUTTI_OK;
}

static double touched_by(const trial *t) {
    double bytes = (double)t->bytes, share = bytes / t->nranks;
    bool small = t->kind == TUTTI_COST_GATHER || t->kind == TUTTI_COST_SCATTER || t->kind == TUTTI_COST_PULL;
    if (t->kind == TUTTI_COST_FRESH) return bytes + 2 * share;
    return small ? bytes + share : 2 * bytes;
}

/* The cost of the part of an all_gather that is not the rank's own; the rank copies its own part and, for FRESH,
 * has written it before. */
static double pulled_ns(const trial *t, double us, double copy_ns, double least_ns) {
    double share = (double)t->bytes / t->nranks, others = (double)t->bytes - share;
    if (t->nranks == 1) return least_ns;
    double ns = (us * 1e3 - share * copy_ns * (t->kind == TUTTI_COST_FRESH ? 2 : 1)) / others;
    return ns > least_ns ? ns : least_ns;
}

static tutti_status measure_bases(trial *t, tutti_costs *costs) {
    enum { ROUNDS = 5, CALLS = 6, SHORT_ROWS = 2048, SHORT_ROW_BYTES = 8 };
    for (int kind = 0; kind < TUTTI_COST_PULL; kind++) {
        t->kind = (tutti_cost_kind)kind;
        t->bytes = 4 * (size_t)t->nranks;
        plan_copy(t, t->bytes);
        TUTTI_TRY(time_calls(t, ROUNDS, CALLS, &costs->base_us[kind]));
    }
    costs->base_us[TUTTI_COST_PULL] = costs->base_us[TUTTI_COST_FRESH] = costs->base_us[TUTTI_COST_GATHER];
    t->bytes = SHORT_ROWS * SHORT_ROW_BYTES;
    plan_copy(t, SHORT_ROW_BYTES);
    TUTTI_TRY(time_calls(t, ROUNDS, 1, &costs->row_ns));
    costs->row_ns = costs->row_ns * 1e3 / SHORT_ROWS;
    return TUTTI_OK;
}

/* Large messages and large amounts that were just written are not measured, because that takes milliseconds: their
 * cost grows in proportion to that of all_gather. */
static bool is_measured(int kind, int point) {
    if (kind == TUTTI_COST_PULL) return false; /* follows from all_gather */
    return point < 3 || (kind != TUTTI_COST_MESSAGE && kind != TUTTI_COST_FRESH);
}

/* The most that memory is slower than a cache; a larger ratio means that other work disturbed the measurement. */
#define MOST_DEARER 8

static tutti_status measure_kind(trial *t, int point, tutti_costs *costs) {
    static const int rounds[TUTTI_COST_POINTS] = {5, 5, 5, 5, 3, 2}, calls[TUTTI_COST_POINTS] = {8, 4, 2, 1, 1, 1};
    int kind = (int)t->kind;
    double us = 0, *ns = &costs->byte_ns[kind][point], copy_ns = costs->byte_ns[TUTTI_COST_COPY][point] * costs->crowd;
    costs->touched[kind][point] = touched_by(t);
    if (is_measured(kind, point)) {
        plan_copy(t, kind == TUTTI_COST_STRIDED ? TUTTI_COST_ROW_BYTES : t->bytes);
        TUTTI_TRY(time_calls(t, rounds[point], calls[point], &us));
        us -= costs->base_us[kind];
        *ns = us > 0 ? us * 1e3 / (double)t->bytes : 0;
        if (kind == TUTTI_COST_FRESH) *ns = pulled_ns(t, us, copy_ns, costs->byte_ns[TUTTI_COST_PULL][point]);
    } else if (kind == TUTTI_COST_PULL) {
        us = costs->byte_ns[TUTTI_COST_GATHER][point] * 1e-3 * (double)t->bytes;
        *ns = pulled_ns(t, us, copy_ns, copy_ns);
    } else {
        const double *gather = costs->byte_ns[TUTTI_COST_GATHER];
        double dearer = gather[point - 1] > 0 ? gather[point] / gather[point - 1] : 1;
        *ns = costs->byte_ns[kind][point - 1] * (dearer < 1 ? 1 : dearer > MOST_DEARER ? MOST_DEARER : dearer);
        if (kind == TUTTI_COST_FRESH && *ns > costs->byte_ns[kind][point - 1])
            *ns = costs->byte_ns[TUTTI_COST_PULL][point]; /* written long before, it is in memory as other data */
    }
    return TUTTI_OK;
}

static tutti_status measure_point(trial *t, int point, tutti_costs *costs) {
    static const tutti_cost_kind order[TUTTI_COST_KINDS] = {TUTTI_COST_GATHER,  TUTTI_COST_COPY,   TUTTI_COST_STRIDED,
                                                            TUTTI_COST_REDUCE,  TUTTI_COST_PULL,   TUTTI_COST_FRESH,
                                                            TUTTI_COST_SCATTER, TUTTI_COST_MESSAGE};
    for (int i = 0; i < TUTTI_COST_KINDS; i++) {
        t->kind = order[i];
        t->bytes = point_bytes[point] / (t->kind == TUTTI_COST_STRIDED ? 2 : 1); /* its rows are apart */
        TUTTI_TRY(measure_kind(t, point, costs));
    }
    return TUTTI_OK;
}

/* Points that were not measured get the slope of an ordinary machine. */
static void fill_rest(tutti_costs *costs, int measured) {
    for (int kind = 0; kind < TUTTI_COST_KINDS; kind++)
        for (int point = measured; point < TUTTI_COST_POINTS; point++) {
            const double *ordinary = tutti_costs_ordinary.byte_ns[kind];
            costs->touched[kind][point] = tutti_costs_ordinary.touched[kind][point];
            costs->byte_ns[kind][point] =
                point > 0 ? costs->byte_ns[kind][point - 1] * ordinary[point] / ordinary[point - 1] : ordinary[point];
        }
}

/* ------------------------------------------------------------------------------------------------- hosts */

/* The ranks of the plan that are on this host, and their communicator. */
static tutti_status find_near(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm *comm,
                              tutti_costs *costs, tutti_comm **near_out) {
    tutti_comm_details details;
    int *near, nnear = 0, own;
    TUTTI_TRY(tutti_comm_get(comm, &details));
    costs->nhosts = details.hosts;
    costs->crowd = (double)details.local_size / details.host_cores;
    if (costs->crowd < 1 || costs->on_gpu) costs->crowd = 1;
    *near_out = comm;
    if (details.hosts == 1) return TUTTI_OK;
    own = details.host;
    TUTTI_TRY(tutti_all_gather(comm, &own, costs->host_of, 1, TUTTI_INT32, NULL));
    TUTTI_TRY(tutti_calloc((size_t)nranks, sizeof *near, &near));
    for (int i = 0; i < nranks; i++)
        if (costs->host_of[i] == own) near[nnear++] = ranks[i];
    tutti_status status = tutti_rank_groups_get(groups, near, nnear, near_out);
    free(near);
    return status;
}

/* The share of the ranks on the host that has the fewest. */
static double least_share(const tutti_costs *costs, int nranks) {
    int least = nranks;
    for (int host = 0; host < costs->nhosts; host++) {
        int count = 0;
        for (int i = 0; i < nranks; i++) count += costs->host_of[i] == host;
        if (count < least) least = count;
    }
    return (double)least / nranks;
}

enum { FAR_BYTES = 256 << 10 };

/* Measures all_gathers over all hosts, in which each host receives what the others have. */
static tutti_status measure_far(trial *t, tutti_costs *costs) {
    enum { ROUNDS = 5, CALLS = 3, FIRST = 3 };
    double us;
    t->kind = TUTTI_COST_GATHER;
    t->bytes = FAR_BYTES;
    for (int i = 0; i < FIRST; i++) TUTTI_TRY(run(t)); /* connections are made and reach their speed */
    TUTTI_TRY(time_calls(t, ROUNDS, 1, &us));
    t->bytes = 4 * (size_t)t->nranks;
    TUTTI_TRY(time_calls(t, ROUNDS, CALLS, &costs->far_us));
    us -= costs->far_us;
    costs->far_byte_ns = us > 0 ? us * 1e3 / (FAR_BYTES * (1 - least_share(costs, t->nranks))) : 0;
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- agreeing */

enum { LEAST_ON_GPU = 4 };

static int level_for(size_t bytes) {
    static const size_t above[] = {4 << 10, 8 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20};
    int level = 0;
    while (level < (int)TUTTI_COUNT_OF(above) && bytes > above[level]) level++;
    return level;
}

static tutti_status measure_all(trial *t, tutti_comm *all, int nranks, tutti_costs *costs) {
    t->nranks = tutti_comm_size(t->comm);
    t->me = tutti_comm_rank(t->comm);
    int points = costs->level - 1, before = costs->older_level - 1;
    if (before < 0) TUTTI_TRY(measure_bases(t, costs));
    for (int point = before > 0 ? before : 0; point < points; point++) TUTTI_TRY(measure_point(t, point, costs));
    fill_rest(costs, points);
    if (costs->nhosts == 1 || before >= 0) return TUTTI_OK;
    trial far = *t;
    far.comm = all;
    far.nranks = nranks;
    return measure_far(&far, costs);
}

/* Averages over ranks, with the same bits on all of them. */
static tutti_status agree(tutti_comm *comm, tutti_costs *costs) {
    size_t count = (offsetof(tutti_costs, far_byte_ns) - offsetof(tutti_costs, crowd)) / sizeof(double) + 1;
    TUTTI_TRY(tutti_all_reduce(comm, &costs->crowd, &costs->crowd, count, TUTTI_FLOAT64, TUTTI_AVG, NULL));
    return costs->nhosts > 1 ? tutti_broadcast(comm, &costs->crowd, count, TUTTI_FLOAT64, 0, NULL) : TUTTI_OK;
}

/* Allocates `from` and `to`, of `bytes` bytes each. */
static tutti_status take_memory(trial *t, size_t bytes) {
    void *memory = NULL;
    TUTTI_TRY(t->device != NULL ? t->device->alloc(2 * bytes, &memory) : tutti_mem_alloc(2 * bytes, &memory));
    t->to = memory;
    t->from = t->to + bytes;
    if (t->device != NULL) return t->device->fill(t->from, 0, bytes, t->stream);
    memset(t->from, 0, bytes);
    return TUTTI_OK;
}

static void free_memory(const trial *t) {
    if (t->device == NULL) (void)tutti_mem_free(t->to);
    else if (t->to != NULL) (void)t->device->free(t->to);
}

/* A rank without memory stops the measurement on all ranks. */
static tutti_status measure_with(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm *comm, trial *t,
                                 tutti_costs *costs, bool *done_out) {
    size_t points = (size_t)costs->level - 1, room = point_bytes[points > 0 ? points - 1 : 0];
    TUTTI_TRY(find_near(groups, ranks, nranks, comm, costs, &t->comm));
    room = tutti_max_size(room, costs->nhosts > 1 ? FAR_BYTES : 0) + (size_t)nranks * 4;
    int32_t good = take_memory(t, room) == TUTTI_OK;
    tutti_status status = tutti_all_reduce(comm, &good, &good, 1, TUTTI_INT32, TUTTI_MIN, NULL);
    *done_out = good != 0;
    if (status == TUTTI_OK && good != 0) status = measure_all(t, comm, nranks, costs);
    if (status == TUTTI_OK && good != 0) status = agree(comm, costs);
    free_memory(t);
    return status;
}

/* Measures in a stream of its own. Freeing memory waits for the GPU, and therefore for the calls of other ranks
 * that are threads: they wait until this rank has freed its memory. */
static tutti_status measure_on_gpu(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm *comm, int gpu,
                                   tutti_costs *costs, bool *done_out) {
    tutti_gpu_visit visit;
    trial t = {0};
    TUTTI_TRY(tutti_gpu_enter(gpu, &visit));
    t.device = visit.device;
    tutti_status status = t.device->stream_create(&t.stream);
    if (status == TUTTI_OK) {
        status = measure_with(groups, ranks, nranks, comm, &t, costs, done_out);
        (void)t.device->stream_destroy(t.stream);
    }
    tutti_gpu_leave(&visit);
    return status == TUTTI_OK ? tutti_barrier(comm, NULL) : status;
}

static tutti_status measure(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm *comm, int gpu,
                            tutti_costs *costs, bool *done_out) {
    trial t = {0};
    if (gpu >= 0) return measure_on_gpu(groups, ranks, nranks, comm, gpu, costs, done_out);
    return measure_with(groups, ranks, nranks, comm, &t, costs, done_out);
}

tutti_status tutti_costs_measure(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm *comm, int gpu,
                                 size_t bytes) {
    bool done;
    int level = level_for(bytes);
    if (nranks == 1 && level > 3) level = 3;                    /* one rank has no choice */
    if (gpu >= 0 && level < LEAST_ON_GPU) level = LEAST_ON_GPU; /* GPUs have no ordinary costs of a byte */
    const tutti_costs *older = tutti_rank_groups_costs(groups, ranks, nranks, gpu >= 0);
    if (older == NULL) older = &tutti_costs_ordinary;
    if (older->level >= level) return TUTTI_OK;
    tutti_costs *costs = calloc(1, sizeof *costs + (size_t)nranks * sizeof *costs->host_of);
    if (costs == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the costs of %d ranks", nranks);
    *costs = *older;
    costs->older_level = older->level;
    costs->level = level;
    costs->on_gpu = gpu >= 0;
    tutti_status status = measure(groups, ranks, nranks, comm, gpu, costs, &done);
    if (status == TUTTI_OK && done) tutti_rank_groups_set_costs(groups, comm, costs);
    else free(costs);
    if (status == TUTTI_OK && !done && gpu >= 0)
        return tutti_fail(TUTTI_ERR_MEMORY,
                          "a rank's GPU has too little memory to measure the cost of moving tensors of %zu bytes",
                          bytes);
    return status;
}

const tutti_costs *tutti_costs_of(tutti_rank_groups *groups, const int *ranks, int nranks) {
    const tutti_costs *costs = tutti_rank_groups_costs(groups, ranks, nranks, /* on_gpu */ false);
    return costs != NULL ? costs : &tutti_costs_ordinary;
}
