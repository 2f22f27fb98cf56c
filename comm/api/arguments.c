/*
 * Checks of buffers and options. See api.h.
 */
#include "comm/api/api.h"

#include <stdlib.h>

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

tutti_status tutti_arguments_check(const tutti_op *op, const void *src, size_t src_count, const void *dst,
                                   size_t dst_count, size_t own_slice) {
    const char *name = tutti_kind_name(op->kind);
    size_t item_bytes = tutti_type_bytes(op->type);
    if ((src_count > 0 && src == NULL) || (dst_count > 0 && dst == NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: %s is NULL, but the count is not 0", name,
                          src == NULL ? "src" : "dst");
    const char *from = src, *to = dst;
    if (!overlap(from, src_count * item_bytes, to, dst_count * item_bytes)) return TUTTI_OK;
    const char *in_place = src_count < dst_count ? to + own_slice * item_bytes : from + own_slice * item_bytes;
    if ((src_count < dst_count ? from : to) == in_place) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_ARGUMENT,
                      "%s: src and dst overlap in part; they must be either separate or the same (in place: the "
                      "rank's own slice of the larger one)",
                      name);
}

typedef struct interval {
    const char *start, *end;
    bool output;
    int index;
} interval;

static int by_start(const void *a, const void *b) {
    const interval *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static tutti_status add_interval(const tutti_op *op, interval *intervals, size_t *count, const void *start,
                                 size_t elements, bool output, int index) {
    size_t item_bytes = tutti_type_bytes(op->type);
    if (elements == 0) return TUTTI_OK;
    if (elements > SIZE_MAX / 2 / item_bytes)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: a count of %zu for rank %d is more than memory can hold",
                          tutti_kind_name(op->kind), elements, index);
    if (start == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: the %s for rank %d is NULL, but its count is %zu",
                          tutti_kind_name(op->kind), output ? "output" : "input", index, elements);
    intervals[(*count)++] = (interval){
        .start = start, .end = (const char *)start + elements * item_bytes, .output = output, .index = index};
    return TUTTI_OK;
}

static tutti_status list_intervals(const tutti_op *op, int nranks, int rank, interval *intervals, size_t *count) {
    if (op->src != NULL || (op->srcs == NULL && op->kind != TUTTI_KIND_SCATTER_V && op->count > 0))
        TUTTI_TRY(add_interval(op, intervals, count, op->src, op->count, /* output */ false, rank));
    for (int i = 0; i < nranks && op->srcs != NULL; i++)
        TUTTI_TRY(add_interval(op, intervals, count, op->srcs[i], op->src_counts[i], /* output */ false, i));
    if (op->kind == TUTTI_KIND_SCATTER_V || op->kind == TUTTI_KIND_REDUCE_SCATTER_V)
        TUTTI_TRY(add_interval(op, intervals, count, op->dst, op->count, /* output */ true, rank));
    for (int i = 0; i < nranks && op->dsts != NULL; i++)
        TUTTI_TRY(add_interval(op, intervals, count, op->dsts[i], op->dst_counts[i], /* output */ true, i));
    return TUTTI_OK;
}

/* Sorted by start: compares each interval with all that begin before it ends. */
static tutti_status compare_intervals(const tutti_op *op, const interval *sorted, size_t count, int rank) {
    for (size_t i = 0; i < count; i++)
        for (size_t k = i + 1; k < count && sorted[k].start < sorted[i].end; k++) {
            const interval *a = &sorted[i], *b = &sorted[k];
            bool own = a->index == rank && b->index == rank && a->start == b->start && a->output != b->output;
            if ((a->output || b->output) && !own)
                return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: the %s for rank %d overlaps the %s for rank %d",
                                  tutti_kind_name(op->kind), a->output ? "output" : "input", a->index,
                                  b->output ? "output" : "input", b->index);
        }
    return TUTTI_OK;
}

/* For few entries that are mostly in order already: takes less time than a call of qsort. */
static void sort_few(interval *intervals, size_t count) {
    for (size_t i = 1; i < count; i++) {
        interval moved = intervals[i];
        size_t at = i;
        for (; at > 0 && moved.start < intervals[at - 1].start; at--) intervals[at] = intervals[at - 1];
        intervals[at] = moved;
    }
}

tutti_status tutti_arguments_check_lists(const tutti_op *op, int nranks, int rank) {
    enum { FEW_RANKS = 15 };
    interval few[2 * FEW_RANKS + 2], *intervals = few;
    size_t count = 0;
    if (nranks > FEW_RANKS) TUTTI_TRY(tutti_calloc(2 * (size_t)nranks + 2, sizeof *intervals, &intervals));
    tutti_status status = list_intervals(op, nranks, rank, intervals, &count);
    if (status == TUTTI_OK) {
        if (intervals == few) sort_few(intervals, count);
        else qsort(intervals, count, sizeof *intervals, by_start);
        status = compare_intervals(op, intervals, count, rank);
    }
    if (intervals != few) free(intervals);
    return status;
}

tutti_status tutti_options_check(const tutti_options *options, const char *name) {
    if (options == NULL) return TUTTI_OK;
    if ((unsigned)options->memory > TUTTI_MEMORY_CUDA || options->timeout_ms < 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: options.memory %d or options.timeout_ms %lld is invalid", name,
                          (int)options->memory, (long long)options->timeout_ms);
    return TUTTI_OK;
}
