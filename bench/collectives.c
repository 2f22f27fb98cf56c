/*
 * The collectives under test, a row each: shape of the buffers, bus factor, call, and expected result.
 *
 * The factors are those of nccl-tests' doc/PERFORMANCE.md: busbw is what a link carries per second if the collective
 * uses the least possible traffic, so it compares between collectives and numbers of ranks.
 */
#include "bench/collectives.h"

#include <string.h>

#include <tutti/device.h>

static tutti_status run_all_reduce(const bench_call *c) {
    return tutti_all_reduce(c->comm, c->src, c->dst, c->count, c->type->type, c->reduction, c->options);
}

static tutti_status run_reduce(const bench_call *c) {
    return tutti_reduce(c->comm, c->src, c->dst, c->count, c->type->type, c->reduction, c->root, c->options);
}

static tutti_status run_reduce_scatter(const bench_call *c) {
    return tutti_reduce_scatter(c->comm, c->src, c->dst, c->count, c->type->type, c->reduction, c->options);
}

/* A broadcast has one buffer: out of place that is the send buffer on root and the receive buffer elsewhere. */
static void *broadcast_buffer(const bench_call *c) {
    return c->rank == c->root ? (void *)c->src : c->dst;
}

static tutti_status run_broadcast(const bench_call *c) {
    return tutti_broadcast(c->comm, broadcast_buffer(c), c->count, c->type->type, c->root, c->options);
}

static tutti_status run_all_gather(const bench_call *c) {
    return tutti_all_gather(c->comm, c->src, c->dst, c->count, c->type->type, c->options);
}

static tutti_status run_all_to_all(const bench_call *c) {
    return tutti_all_to_all(c->comm, c->src, c->dst, c->count, c->type->type, c->options);
}

static tutti_status run_gather(const bench_call *c) {
    return tutti_gather(c->comm, c->src, c->dst, c->count, c->type->type, c->root, c->options);
}

static tutti_status run_scatter(const bench_call *c) {
    return tutti_scatter(c->comm, c->src, c->dst, c->count, c->type->type, c->root, c->options);
}

static int previous_rank(const bench_call *c) {
    return (c->rank + c->nranks - 1) % c->nranks;
}

/* A ring: to the next rank, from the previous one. In place, what arrives overwrites what is being sent, so the
 * call is only timed. */
static tutti_status run_sendrecv(const bench_call *c) {
    int next = (c->rank + 1) % c->nranks;
    if (!c->grouped) TUTTI_TRY(tutti_group_begin(c->comm));
    TUTTI_TRY(tutti_send(c->comm, c->src, c->count, c->type->type, next, 0, c->options));
    TUTTI_TRY(tutti_recv(c->comm, c->dst, c->count, c->type->type, previous_rank(c), 0, c->options));
    return c->grouped ? TUTTI_OK : tutti_group_end(c->comm, c->options);
}

/* In place, only the rank's own part keeps its position: parts of different sizes do not fit into each other's
 * place. */
static tutti_status run_all_to_all_v(const bench_call *c) {
    const bench_lists *lists = c->lists;
    const char *src = c->src;
    char *dst = c->dst;
    for (int peer = 0; peer < c->nranks; peer++) {
        lists->srcs[peer] = src;
        lists->dsts[peer] = dst;
        src += lists->src_counts[peer] * c->type->bytes;
        dst += lists->dst_counts[peer] * c->type->bytes;
    }
    if (c->in_place) lists->srcs[c->rank] = lists->dsts[c->rank];
    return tutti_all_to_all_v(c->comm, lists->srcs, lists->src_counts, lists->dsts, lists->dst_counts, c->type->type,
                              c->options);
}

static tutti_status copy(const bench_call *c, void *dst, const void *src, size_t bytes) {
    if (c->options->memory == TUTTI_MEMORY_CUDA) return tutti_device_copy(dst, src, bytes, c->options->stream);
    memcpy(dst, src, bytes);
    return TUTTI_OK;
}

/* An all_gather in log2(nranks) steps: each step exchanges with the neighbour in one more dimension all slices so
 * far. */
static tutti_status run_hypercube(const bench_call *c) {
    char *all = c->dst;
    size_t slice = c->count * c->type->bytes;
    char *own = all + (size_t)c->rank * slice;
    if (own != c->src) TUTTI_TRY(copy(c, own, c->src, slice));
    for (int width = 1; width < c->nranks; width *= 2) {
        int neighbour = c->rank ^ width;
        int mine = c->rank & ~(width - 1); /* first of the ranks whose slices this rank has */
        size_t count = c->count * (size_t)width;
        TUTTI_TRY(tutti_group_begin(c->comm));
        TUTTI_TRY(tutti_send(c->comm, all + (size_t)mine * slice, count, c->type->type, neighbour, 0, c->options));
        TUTTI_TRY(
            tutti_recv(c->comm, all + (size_t)(mine ^ width) * slice, count, c->type->type, neighbour, 0, c->options));
        TUTTI_TRY(tutti_group_end(c->comm, c->options));
    }
    return TUTTI_OK;
}

static int64_t check_reduced(const bench_call *c, const bench_pattern *p) {
    return bench_values_check_reduced(p, 0, c->count, c->dst);
}

/* Out of place the other ranks' receive buffers were cleared before and must stay clear. */
static int64_t check_untouched(const bench_call *c, const bench_pattern *p, size_t count) {
    return c->in_place ? 0 : bench_values_check_untouched(p, count, c->dst);
}

static int64_t check_reduced_on_root(const bench_call *c, const bench_pattern *p) {
    return c->rank == c->root ? check_reduced(c, p) : check_untouched(c, p, c->count);
}

static int64_t check_reduced_slice(const bench_call *c, const bench_pattern *p) {
    return bench_values_check_reduced(p, (size_t)c->rank * c->count, c->count, c->dst);
}

static int64_t check_broadcast(const bench_call *c, const bench_pattern *p) {
    return bench_values_check_moved(p, c->root, 0, c->count, broadcast_buffer(c));
}

/* Checks a slice from each rank, each starting at element `first` of that rank's data. */
static int64_t check_slices(const bench_call *c, const bench_pattern *p, size_t first) {
    int64_t wrong = 0;
    for (int source = 0; source < c->nranks; source++) {
        const char *slice = (const char *)c->dst + (size_t)source * c->count * c->type->bytes;
        wrong += bench_values_check_moved(p, source, first, c->count, slice);
    }
    return wrong;
}

static int64_t check_gathered(const bench_call *c, const bench_pattern *p) {
    return check_slices(c, p, 0);
}

static int64_t check_gathered_on_root(const bench_call *c, const bench_pattern *p) {
    return c->rank == c->root ? check_gathered(c, p) : check_untouched(c, p, c->count * (size_t)c->nranks);
}

static int64_t check_exchanged(const bench_call *c, const bench_pattern *p) {
    return check_slices(c, p, (size_t)c->rank * c->count);
}

/* Checks a part from each rank, and that nothing follows them. */
static int64_t check_exchanged_unevenly(const bench_call *c, const bench_pattern *p) {
    int64_t wrong = 0;
    const char *part = c->dst;
    for (int source = 0; source < c->nranks; source++) {
        size_t count = c->lists->dst_counts[source];
        wrong += bench_values_check_moved(p, source, c->lists->origins[source], count, part);
        part += count * c->type->bytes;
    }
    return wrong + bench_values_check_untouched(p, c->bytes / c->type->bytes - c->received, part);
}

static int64_t check_scattered(const bench_call *c, const bench_pattern *p) {
    return bench_values_check_moved(p, c->root, (size_t)c->rank * c->count, c->count, c->dst);
}

static int64_t check_sendrecv(const bench_call *c, const bench_pattern *p) {
    return bench_values_check_moved(p, previous_rank(c), 0, c->count, c->dst);
}

/* clang-format off */
static const bench_collective rows[] = {
    {.name = "all_reduce_perf", .parts = BENCH_WHOLE, .bus = BENCH_BUS_TWO_WAYS, .redop = BENCH_REDOP_USED,
     .run = run_all_reduce, .check = check_reduced},
    {.name = "all_gather_perf", .parts = BENCH_GATHERS, .bus = BENCH_BUS_ONE_WAY,
     .run = run_all_gather, .check = check_gathered},
    {.name = "reduce_scatter_perf", .parts = BENCH_SCATTERS, .bus = BENCH_BUS_ONE_WAY, .redop = BENCH_REDOP_USED,
     .run = run_reduce_scatter, .check = check_reduced_slice},
    {.name = "broadcast_perf", .parts = BENCH_WHOLE, .bus = BENCH_BUS_SAME, .has_root = true, .only_root_sends = true,
     .run = run_broadcast, .check = check_broadcast},
    {.name = "reduce_perf", .parts = BENCH_WHOLE, .bus = BENCH_BUS_SAME, .redop = BENCH_REDOP_USED, .has_root = true,
     .run = run_reduce, .check = check_reduced_on_root},
    {.name = "alltoall_perf", .parts = BENCH_EXCHANGES, .bus = BENCH_BUS_ONE_WAY, .unchecked_in_place = true,
     .run = run_all_to_all, .check = check_exchanged},
    {.name = "alltoallv_perf", .parts = BENCH_EXCHANGES, .bus = BENCH_BUS_ONE_WAY, .unchecked_in_place = true,
     .uneven = true, .run = run_all_to_all_v, .check = check_exchanged_unevenly},
    {.name = "sendrecv_perf", .parts = BENCH_WHOLE, .bus = BENCH_BUS_SAME, .redop = BENCH_REDOP_SHOWN,
     .unchecked_in_place = true, .run = run_sendrecv, .check = check_sendrecv},
    {.name = "gather_perf", .parts = BENCH_GATHERS, .bus = BENCH_BUS_ONE_WAY, .has_root = true,
     .run = run_gather, .check = check_gathered_on_root},
    {.name = "scatter_perf", .parts = BENCH_SCATTERS, .bus = BENCH_BUS_ONE_WAY, .has_root = true,
     .only_root_sends = true, .run = run_scatter, .check = check_scattered},
    {.name = "hypercube_perf", .parts = BENCH_GATHERS, .bus = BENCH_BUS_SAME, .redop = BENCH_REDOP_BLANK,
     .stepwise = true, .own_not_counted = true, .ranks_power_of_two = true, .run = run_hypercube,
     .check = check_gathered},
};
/* clang-format on */

const bench_collective *bench_collective_find(const char *name) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

size_t bench_collective_count(const bench_collective *row, size_t bytes, size_t type_bytes, int nranks) {
    size_t count = bytes / type_bytes;
    return row->parts == BENCH_WHOLE ? count : count / (size_t)nranks & ~(16 / type_bytes - 1);
}

size_t bench_collective_send_parts(const bench_collective *row, int nranks) {
    return row->parts == BENCH_SCATTERS || row->parts == BENCH_EXCHANGES ? (size_t)nranks : 1;
}

size_t bench_collective_receive_parts(const bench_collective *row, int nranks) {
    return row->parts == BENCH_GATHERS || row->parts == BENCH_EXCHANGES ? (size_t)nranks : 1;
}

size_t bench_collective_send_slice(const bench_collective *row, int rank) {
    return row->parts == BENCH_GATHERS ? (size_t)rank : 0;
}

size_t bench_collective_receive_slice(const bench_collective *row, int rank) {
    return row->parts == BENCH_SCATTERS ? (size_t)rank : 0;
}

size_t bench_collective_bytes(const bench_collective *row, size_t count, size_t type_bytes, int nranks) {
    return count * type_bytes * (row->parts == BENCH_WHOLE ? 1 : (size_t)nranks);
}

size_t bench_collective_counted_bytes(const bench_collective *row, size_t bytes, int nranks) {
    return row->own_not_counted ? bytes / (size_t)nranks * (size_t)(nranks - 1) : bytes;
}

double bench_collective_bus_factor(const bench_collective *row, int nranks) {
    switch (row->bus) {
    case BENCH_BUS_ONE_WAY: return (double)(nranks - 1) / nranks;
    case BENCH_BUS_TWO_WAYS: return 2.0 * (nranks - 1) / nranks;
    default: return 1;
    }
}
