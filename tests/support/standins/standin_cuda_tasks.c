/*
 * The tasks of the stand-in for CUDA's streams. A call copies its arguments into a task; addresses are looked up when
 * the task runs, as on a GPU, and an inaccessible one is a failure of all later calls. In a graph a task runs several
 * times, so it must not change its arguments.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "tests/support/standins/standin_cuda.h"

typedef struct move {
    void *dst;
    const void *src; /* NULL: bytes of `value` */
    size_t bytes;
    int value;
} move;

typedef struct moves {
    int count;
    bool by_kernel;
    move list[];
} moves;

typedef struct counted {
    void *dst;
    const void *src, *bytes_at;
    size_t most;
} counted;

typedef struct box_task {
    tutti_box_copy copy;
    void *dst;
    const void *src;
} box_task;

typedef struct reduction {
    tutti_reduce_args args;
    const void *srcs[TUTTI_DEVICE_MOST_BUFFERS];
    double factors[TUTTI_DEVICE_MOST_BUFFERS];
    void *dsts[TUTTI_DEVICE_MOST_BUFFERS];
    int ndsts;
} reduction;

typedef struct value_task {
    void *at;
    uint64_t value;
} value_task;

/* NULL after a failure: the task does nothing more. A copy reaches all memory, a kernel and a value only the GPU's
 * addresses. */
static void *reach(const void *address, size_t bytes, bool as_gpu) {
    if (standin_is_broken()) return NULL;
    void *reached = as_gpu ? standin_reach_as_gpu(address, bytes) : standin_reach(address, bytes);
    if (reached == NULL) standin_break("an illegal memory access was encountered");
    return reached;
}

/* -------------------------------------------------------------------------------------------------- moves */

static void run_moves(void *context) {
    const moves *all = context;
    for (int i = 0; i < all->count; i++) {
        const move *m = &all->list[i];
        if (m->bytes == 0) continue;
        void *dst = reach(m->dst, m->bytes, all->by_kernel);
        void *src = m->src != NULL ? reach(m->src, m->bytes, all->by_kernel) : NULL;
        if (dst == NULL || (m->src != NULL && src == NULL)) break;
        if (src != NULL) memmove(dst, src, m->bytes);
        else memset(dst, m->value, m->bytes);
    }
}

static tutti_status make_moves(int count, moves **moves_out) {
    moves *made = NULL;
    TUTTI_TRY(standin_host->calloc(1, sizeof *made + (size_t)count * sizeof *made->list, &made));
    made->count = count;
    *moves_out = made;
    return TUTTI_OK;
}

/* CUDA, too, waits when one side is pageable memory, and may block the process's other threads meanwhile; small data
 * for the GPU is copied to a buffer first. */
enum { COPIED_ASIDE = 64 << 10 };

tutti_status standin_copy(void *dst, const void *src, size_t bytes, tutti_stream stream) {
    moves *made = NULL;
    STANDIN_BEGIN("copy");
    if (bytes == 0) return TUTTI_OK;
    TUTTI_TRY(make_moves(1, &made));
    made->list[0] = (move){.dst = dst, .src = src, .bytes = bytes};
    standin_submit(stream, run_moves, free, made);
    if (standin_is_pageable(dst) || (standin_is_pageable(src) && bytes > COPIED_ASIDE)) standin_sync_alone(stream);
    else if (standin_is_pageable(src)) standin_sync(stream);
    return TUTTI_OK;
}

tutti_status standin_fill(void *dst, int value, size_t bytes, tutti_stream stream) {
    moves *made = NULL;
    STANDIN_BEGIN("fill");
    if (bytes == 0) return TUTTI_OK;
    TUTTI_TRY(make_moves(1, &made));
    made->list[0] = (move){.dst = dst, .bytes = bytes, .value = value};
    standin_submit(stream, run_moves, free, made);
    return TUTTI_OK;
}

tutti_status standin_copy_many(void *const *dsts, const void *const *srcs, const size_t *bytes, int count,
                               tutti_stream stream) {
    moves *made = NULL;
    STANDIN_BEGIN("copy_many");
    if (count <= 0) return TUTTI_OK;
    TUTTI_TRY(standin_check_launch(stream));
    TUTTI_TRY(make_moves(count, &made));
    made->by_kernel = true;
    for (int i = 0; i < count; i++) made->list[i] = (move){.dst = dsts[i], .src = srcs[i], .bytes = bytes[i]};
    standin_submit(stream, run_moves, free, made);
    return TUTTI_OK;
}

/* A kernel: all of its addresses must be the GPU's. */
static void run_counted(void *context) {
    const counted *c = context;
    const uint64_t *bytes_at = reach(c->bytes_at, sizeof *bytes_at, true);
    size_t bytes = bytes_at != NULL ? __atomic_load_n(bytes_at, __ATOMIC_RELAXED) : 0;
    if (bytes > c->most) bytes = c->most;
    const void *src = bytes > 0 ? reach(c->src, bytes, true) : NULL;
    void *dst = src != NULL ? reach(c->dst, bytes, true) : NULL;
    if (dst != NULL) memcpy(dst, src, bytes);
}

tutti_status standin_copy_counted(void *dst, const void *src, const void *bytes_at, size_t most, tutti_stream stream) {
    counted *made = NULL;
    STANDIN_BEGIN("copy_counted");
    if (most == 0) return TUTTI_OK;
    TUTTI_TRY(standin_host->calloc(1, sizeof *made, &made));
    *made = (counted){.dst = dst, .src = src, .bytes_at = bytes_at, .most = most};
    standin_submit(stream, run_counted, free, made);
    return TUTTI_OK;
}

/* Where a box begins and ends in one of its arrays, in bytes from its first unit. */
static size_t span(const tutti_box_copy *copy, bool of_dst, ptrdiff_t *lowest_out) {
    ptrdiff_t lowest = 0, highest = (ptrdiff_t)copy->unit_bytes;
    for (int i = 0; i < copy->ndims; i++) {
        ptrdiff_t length = (copy->dims[i].count - 1) * (of_dst ? copy->dims[i].dst_step : copy->dims[i].src_step);
        if (length < 0) lowest += length;
        else highest += length;
    }
    *lowest_out = lowest;
    return (size_t)(highest - lowest);
}

static void run_box(void *context) {
    const box_task *t = context;
    ptrdiff_t dst_lowest, src_lowest, dst_first = t->copy.dst_first, src_first = t->copy.src_first;
    const size_t dst_bytes = span(&t->copy, true, &dst_lowest), src_bytes = span(&t->copy, false, &src_lowest);
    char *dst = reach((char *)t->dst + dst_first + dst_lowest, dst_bytes, true);
    const char *src = reach((const char *)t->src + src_first + src_lowest, src_bytes, true);
    if (dst != NULL && src != NULL) tutti_box_run(&t->copy, dst - dst_lowest - dst_first, src - src_lowest - src_first);
}

tutti_status standin_copy_box(const tutti_box_copy *copy, void *dst, const void *src, tutti_stream stream) {
    box_task *made = NULL;
    STANDIN_BEGIN("copy_box");
    if (tutti_box_bytes(copy) == 0) return TUTTI_OK;
    TUTTI_TRY(standin_check_launch(stream));
    TUTTI_TRY(standin_host->calloc(1, sizeof *made, &made));
    *made = (box_task){.copy = *copy, .dst = dst, .src = src};
    standin_submit(stream, run_box, free, made);
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- reductions */

static void run_reduction(void *context) {
    const reduction *r = context;
    const void *srcs[TUTTI_DEVICE_MOST_BUFFERS];
    void *dsts[TUTTI_DEVICE_MOST_BUFFERS];
    size_t bytes = r->args.count * tutti_type_bytes(r->args.type);
    bool good = bytes > 0;
    for (int i = 0; good && i < r->args.nsrcs; i++) good = (srcs[i] = reach(r->srcs[i], bytes, true)) != NULL;
    for (int i = 0; good && i < r->ndsts; i++) good = (dsts[i] = reach(r->dsts[i], bytes, true)) != NULL;
    if (!good) return;
    tutti_reduce_args args = r->args;
    args.srcs = srcs;
    args.factors = r->args.factors != NULL ? r->factors : NULL;
    args.dst = dsts[0];
    tutti_reduce_host(&args);
    for (int i = 1; i < r->ndsts; i++) memcpy(dsts[i], dsts[0], bytes);
}

tutti_status standin_reduce(const tutti_reduce_args *args, void *const *dsts, int ndsts, tutti_stream stream) {
    reduction *made = NULL;
    STANDIN_BEGIN("reduce");
    if (args->nsrcs < 1 || args->nsrcs > TUTTI_DEVICE_MOST_BUFFERS || ndsts < 1 || ndsts > TUTTI_DEVICE_MOST_BUFFERS ||
        !tutti_reduce_supports(args->type, args->reduction))
        return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: reduce: %d sources, %d results, %s of %s", args->nsrcs,
                                  ndsts, tutti_reduction_name(args->reduction), tutti_type_name(args->type));
    TUTTI_TRY(standin_check_launch(stream));
    TUTTI_TRY(standin_host->calloc(1, sizeof *made, &made));
    made->args = *args;
    made->ndsts = ndsts;
    memcpy(made->srcs, args->srcs, (size_t)args->nsrcs * sizeof *made->srcs);
    memcpy(made->dsts, dsts, (size_t)ndsts * sizeof *made->dsts);
    if (args->factors != NULL) memcpy(made->factors, args->factors, (size_t)args->nsrcs * sizeof *made->factors);
    standin_submit(stream, run_reduction, free, made);
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------- values and the host */

/* Acquire: pairs with the release of the value's writer, which is this file or an atomic of the host. */
static void await_value(void *context) {
    const value_task *t = context;
    const uint64_t *at = reach(t->at, sizeof *at, true);
    while (at != NULL && (int64_t)(__atomic_load_n(at, __ATOMIC_ACQUIRE) - t->value) < 0 && !standin_is_broken())
        usleep(20);
}

static void store_value(void *context) {
    const value_task *t = context;
    uint64_t *at = reach(t->at, sizeof *at, true);
    if (at != NULL) __atomic_store_n(at, t->value, __ATOMIC_RELEASE);
}

static tutti_status enqueue_value(void (*function)(void *), tutti_stream stream, void *at, uint64_t value) {
    value_task *made = NULL;
    if ((uintptr_t)at % sizeof value != 0 || standin_reach_as_gpu(at, sizeof value) == NULL)
        return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: %p is not a GPU address that can hold a value", at);
    TUTTI_TRY(standin_host->calloc(1, sizeof *made, &made));
    *made = (value_task){at, value};
    standin_submit(stream, function, free, made);
    return TUTTI_OK;
}

tutti_status standin_wait_value(tutti_stream stream, void *at, uint64_t value) {
    STANDIN_BEGIN("wait_value");
    return enqueue_value(await_value, stream, at, value);
}

tutti_status standin_write_value(tutti_stream stream, void *at, uint64_t value) {
    STANDIN_BEGIN("write_value");
    return enqueue_value(store_value, stream, at, value);
}

tutti_status standin_use_values(tutti_stream stream, const tutti_device_value *values, int count) {
    STANDIN_BEGIN("use_values");
    for (int i = 0; i < count; i++)
        TUTTI_TRY(enqueue_value(values[i].waits ? await_value : store_value, stream, values[i].at, values[i].value));
    return TUTTI_OK;
}
