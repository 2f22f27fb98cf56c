/*
 * Buffers of a measurement. See buffers.h.
 */
#include "bench/buffers.h"

#include <stdlib.h>
#include <string.h>

#include <tutti/device.h>

#include "bench/gpu.h"

/* ------------------------------------------------------------------------------------------- open, close */

static tutti_status allocate(const bench_run *run, void **memory_out) {
    size_t bytes = run->buffer_bytes + 8 * (size_t)run->options->unalign;
    bytes = (bytes + 4095) / 4096 * 4096;
    if (run->gpu != NULL) return bench_gpu_alloc(run->gpu, bytes, memory_out);
    if (run->options->memory == BENCH_MEMORY_TUTTI) TUTTI_TRY(tutti_mem_alloc(bytes, memory_out));
    else if ((*memory_out = aligned_alloc(4096, bytes)) == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a buffer of %zu bytes; lower -e", bytes);
    memset(*memory_out, 0, bytes); /* page faults belong to no measurement */
    return TUTTI_OK;
}

static void release(const bench_run *run, void *memory) {
    if (run->gpu != NULL) bench_gpu_free(run->gpu, memory);
    else if (run->options->memory == BENCH_MEMORY_TUTTI) tutti_mem_free(memory);
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

tutti_status bench_buffers_open(bench_run *run) {
    if (run->row->uneven) TUTTI_TRY(allocate_lists(run));
    TUTTI_TRY(allocate(run, &run->send));
    return allocate(run, &run->receive);
}

void bench_buffers_close(bench_run *run) {
    release(run, run->send);
    release(run, run->receive);
    free(run->lists.srcs);
    free(run->lists.dsts);
    free(run->lists.src_counts);
    free(run->lists.dst_counts);
    free(run->lists.origins);
}

/* ------------------------------------------------------------------------------------------------ places */

size_t bench_buffers_total_bytes(const bench_run *run, const bench_case *c) {
    return c->count * c->type->bytes * (size_t)run->nranks;
}

void bench_buffers_place(const bench_run *run, const bench_case *c, int64_t iteration, bench_call *call) {
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

void bench_buffers_list(const bench_run *run, const bench_case *c, bench_call *call) {
    const bench_traffic *traffic = run->traffic;
    size_t total = bench_buffers_total_bytes(run, c), type_bytes = c->type->bytes;
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

/* -------------------------------------------------------------------------------------- writing, reading */

static tutti_status fill(const bench_run *run, void *dst, int value, size_t bytes) {
    if (run->gpu != NULL) return tutti_device_fill(dst, value, bytes, bench_gpu_stream(run->gpu));
    memset(dst, value, bytes);
    return TUTTI_OK;
}

tutti_status bench_buffers_rewrite(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration) {
    size_t bytes = call->sent * c->type->bytes;
    for (int64_t i = 0; i < run->options->grouped; i++) {
        bench_buffers_place(run, c, iteration * run->options->grouped + i, call);
        /* bytes that give moderate numbers in every type */
        TUTTI_TRY(fill(run, (void *)call->src, iteration % 2 != 0 ? 0x3c : 0x3b, bytes));
    }
    return run->gpu != NULL ? bench_gpu_wait(run->gpu) : TUTTI_OK;
}

static void read_words(const char *src, size_t bytes) {
    uint64_t sum = 0;
    for (size_t at = 0; at + sizeof sum <= bytes; at += sizeof sum) {
        uint64_t word;
        memcpy(&word, src + at, sizeof word);
        sum += word;
    }
    __asm__ volatile("" : : "r"(sum)); /* the compiler must not drop the reads */
}

/* On a GPU, the result is copied into the send buffer, which is rewritten before the next iteration. */
tutti_status bench_buffers_read(const bench_run *run, const bench_case *c, bench_call *call, int64_t iteration) {
    size_t bytes = call->received * c->type->bytes;
    for (int64_t i = 0; i < run->options->grouped; i++) {
        bench_buffers_place(run, c, iteration * run->options->grouped + i, call);
        if (run->gpu == NULL) read_words(call->dst, bytes);
        else TUTTI_TRY(tutti_device_copy(run->send, call->dst, bytes, bench_gpu_stream(run->gpu)));
    }
    return TUTTI_OK;
}

tutti_status bench_buffers_prepare(bench_run *run, const bench_case *c, bench_call *call, bench_pattern *pattern_out) {
    const bench_collective *row = run->row;
    bench_pattern pattern = {.type = c->type,
                             .reduces = row->redop == BENCH_REDOP_USED,
                             .reduction = c->reduction,
                             .nranks = run->nranks,
                             .round = run->round++,
                             .on_gpu = run->gpu != NULL,
                             .stream = run->gpu != NULL ? bench_gpu_stream(run->gpu) : NULL};
    bench_buffers_place(run, c, 0, call);
    TUTTI_TRY(fill(run, (char *)run->receive + (size_t)run->options->unalign * c->type->bytes, 0, call->bytes));
    if (!row->only_root_sends || run->rank == c->root)
        TUTTI_TRY(bench_values_fill(&pattern, run->rank, 0, call->sent, (void *)call->src));
    if (pattern_out != NULL) *pattern_out = pattern;
    return TUTTI_OK;
}
