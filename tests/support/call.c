/*
 * Collective calls as data: buffers, start, comparison.
 *
 * describe() is the only place that defines which block goes where: destination block i of rank r is either the copy
 * of one source block or the reduction of one block over all ranks.
 */
#include "tests/support/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/ranks.h"
#include "tests/support/reference.h"

#define GUARD_BYTES 64
#define GUARD       0xa5

static const char *const names[CALL_KINDS] = {
    "all_reduce", "reduce",  "broadcast",    "all_gather",       "reduce_scatter", "all_to_all", "gather",
    "scatter",    "barrier", "all_gather_v", "reduce_scatter_v", "all_to_all_v",   "gather_v",   "scatter_v"};

const char *call_name(call_kind kind) {
    return names[kind];
}

bool call_reduces(call_kind kind) {
    return kind == CALL_ALL_REDUCE || kind == CALL_REDUCE || kind == CALL_REDUCE_SCATTER ||
           kind == CALL_REDUCE_SCATTER_V;
}

bool call_has_root(call_kind kind) {
    return kind == CALL_REDUCE || kind == CALL_BROADCAST || kind == CALL_GATHER || kind == CALL_GATHER_V ||
           kind == CALL_SCATTER || kind == CALL_SCATTER_V;
}

static bool is_v(call_kind kind) {
    return kind >= CALL_ALL_GATHER_V;
}

static bool holds(call_mode mode, int rank) {
    return mode == CALL_ALWAYS || (mode == CALL_MIXED && rank % 2 == 1);
}

/* Number of elements that go from rank `from` to rank `to`; one third of the v-counts are 0. */
static size_t block_count(const call *c, int from, int to) {
    if (!is_v(c->kind)) return c->count;
    uint64_t h = reference_hash(c->seed ^ 0x76, (uint64_t)from, (uint64_t)to);
    return h % 3 == 0 ? 0 : (h >> 8) % (c->count + 1);
}

/* How many source and destination blocks a rank has. */
static void count_blocks(const call *c, int rank, int nranks, int *nsrcs_out, int *ndsts_out) {
    bool root = rank == c->root;
    int nsrcs = 1, ndsts = 1;
    switch (c->kind) {
    case CALL_BARRIER: nsrcs = ndsts = 0; break;
    case CALL_REDUCE: ndsts = root ? 1 : 0; break;
    case CALL_BROADCAST: nsrcs = root ? 1 : 0; break;
    case CALL_ALL_GATHER:
    case CALL_ALL_GATHER_V: ndsts = nranks; break;
    case CALL_REDUCE_SCATTER:
    case CALL_REDUCE_SCATTER_V: nsrcs = nranks; break;
    case CALL_ALL_TO_ALL:
    case CALL_ALL_TO_ALL_V: nsrcs = ndsts = nranks; break;
    case CALL_GATHER:
    case CALL_GATHER_V: ndsts = root ? nranks : 0; break;
    case CALL_SCATTER:
    case CALL_SCATTER_V: nsrcs = root ? nranks : 0; break;
    default: break;
    }
    *nsrcs_out = nsrcs;
    *ndsts_out = ndsts;
}

/* Where destination block i of `rank` comes from: block `block_out` of rank `source_out` (-1: reduced over all). */
static void describe(const call *c, int rank, int i, int *source_out, int *block_out) {
    *source_out = call_reduces(c->kind) ? -1 : call_has_root(c->kind) ? c->root : i;
    *block_out = 0;
    if (c->kind == CALL_GATHER || c->kind == CALL_GATHER_V) *source_out = i;
    bool addressed = c->kind == CALL_ALL_TO_ALL || c->kind == CALL_ALL_TO_ALL_V || c->kind == CALL_SCATTER ||
                     c->kind == CALL_SCATTER_V || c->kind == CALL_REDUCE_SCATTER || c->kind == CALL_REDUCE_SCATTER_V;
    if (addressed) *block_out = rank;
}

static size_t src_count(const call *c, int rank, int i) {
    switch (c->kind) {
    case CALL_ALL_GATHER_V:
    case CALL_GATHER_V: return block_count(c, rank, 0);
    case CALL_REDUCE_SCATTER_V:
    case CALL_SCATTER_V: return block_count(c, 0, i);
    default: return block_count(c, rank, i);
    }
}

static size_t dst_count(const call *c, int rank, int i) {
    switch (c->kind) {
    case CALL_ALL_GATHER_V:
    case CALL_GATHER_V: return block_count(c, i, 0);
    case CALL_REDUCE_SCATTER_V:
    case CALL_SCATTER_V: return block_count(c, 0, rank);
    default: return block_count(c, i, rank);
    }
}

/* ------------------------------------------------------------------------------------------------ buffers */

/* count elements, one to three elements behind the start of an allocation, guards before and behind. */
static tutti_status allocate(call_state *s, size_t count, void **block_out) {
    size_t item = tutti_type_bytes(s->call.type);
    size_t bytes = count * item, offset = GUARD_BYTES + (s->call.seed % 3) * item;
    void *memory = NULL;
    bool shared = holds(s->call.shared, s->rank + s->nallocations);
    if (shared) TUTTI_TRY(tutti_mem_alloc(offset + bytes + GUARD_BYTES, &memory));
    else memory = malloc(offset + bytes + GUARD_BYTES);
    if (memory == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "out of memory for a test's buffer");
    memset(memory, GUARD, offset + bytes + GUARD_BYTES);
    s->allocations[s->nallocations] = memory;
    s->allocation_bytes[s->nallocations] = bytes;
    s->allocation_shared[s->nallocations++] = shared;
    *block_out = (char *)memory + offset;
    return TUTTI_OK;
}

/* n blocks: one allocation cut in equal parts, or, for v-variants, one each and NULL where the count is 0. */
static tutti_status allocate_blocks(call_state *s, int n, const size_t *counts, void **blocks) {
    size_t item = tutti_type_bytes(s->call.type);
    if (!is_v(s->call.kind)) {
        if (n == 0) return TUTTI_OK;
        TUTTI_TRY(allocate(s, (size_t)n * s->call.count, &blocks[0]));
        for (int i = 1; i < n; i++) blocks[i] = (char *)blocks[0] + (size_t)i * s->call.count * item;
        return TUTTI_OK;
    }
    for (int i = 0; i < n; i++)
        if (counts[i] > 0) TUTTI_TRY(allocate(s, counts[i], &blocks[i]));
    return TUTTI_OK;
}

size_t call_allocation_bytes(const call_state *s, int i) {
    return 2 * GUARD_BYTES + (s->call.seed % 3) * tutti_type_bytes(s->call.type) + s->allocation_bytes[i];
}

/* Makes the source part of the destination, or the destination part of the source, as "in place" means for this kind.
 * */
static void share_blocks(call_state *s) {
    call_kind kind = s->call.kind;
    if (s->nsrcs == 0 || s->ndsts == 0) return;
    if (kind == CALL_ALL_TO_ALL) {
        memcpy(s->srcs, s->dsts, (size_t)s->nranks * sizeof(void *));
        return;
    }
    int src = s->nsrcs > 1 ? s->rank : 0, dst = s->ndsts > 1 ? s->rank : 0;
    if (s->nsrcs > 1 && s->ndsts == 1) s->dsts[dst] = s->srcs[src]; /* scatter, reduce_scatter */
    else s->srcs[src] = s->dsts[dst];
}

static bool in_place(const call_state *s) {
    return s->call.kind == CALL_BROADCAST || holds(s->call.in_place, s->rank);
}

static void fill_sources(call_state *s) {
    for (int i = 0; i < s->nsrcs; i++)
        if (s->src_counts[i] > 0)
            reference_fill(s->srcs[i], s->src_counts[i], s->call.type, s->call.reduction, s->call.seed, s->rank, i);
}

tutti_status call_prepare(const call *c, int rank, int nranks, call_state *state_out) {
    call_state *s = state_out;
    *s = (call_state){.call = *c, .rank = rank, .nranks = nranks};
    count_blocks(c, rank, nranks, &s->nsrcs, &s->ndsts);
    size_t n = (size_t)nranks;
    s->srcs = calloc(n, sizeof *s->srcs);
    s->dsts = calloc(n, sizeof *s->dsts);
    s->src_counts = calloc(n, sizeof *s->src_counts);
    s->dst_counts = calloc(n, sizeof *s->dst_counts);
    s->allocations = calloc(2 * n, sizeof *s->allocations);
    s->allocation_shared = calloc(2 * n, sizeof *s->allocation_shared);
    s->allocation_bytes = calloc(2 * n, sizeof *s->allocation_bytes);
    for (int i = 0; i < s->nsrcs; i++) s->src_counts[i] = src_count(c, rank, i);
    for (int i = 0; i < s->ndsts; i++) s->dst_counts[i] = dst_count(c, rank, i);
    TUTTI_TRY(allocate_blocks(s, s->nsrcs, s->src_counts, s->srcs));
    TUTTI_TRY(allocate_blocks(s, s->ndsts, s->dst_counts, s->dsts));
    if (in_place(s)) share_blocks(s);
    fill_sources(s);
    return TUTTI_OK;
}

void call_release(call_state *s) {
    for (int i = 0; i < s->nallocations; i++) {
        if (s->allocation_shared[i]) tutti_mem_free(s->allocations[i]);
        else free(s->allocations[i]);
    }
    free(s->srcs);
    free(s->dsts);
    free(s->src_counts);
    free(s->dst_counts);
    free(s->allocations);
    free(s->allocation_shared);
    free(s->allocation_bytes);
}

/* -------------------------------------------------------------------------------------------------- start */

tutti_status call_start(const call_state *s, tutti_comm *comm, const tutti_options *options) {
    const call *c = &s->call;
    void *src = s->srcs[0], *dst = s->dsts[0];
    const void *const *srcs = (const void *const *)s->srcs;
    size_t sent = s->src_counts[0], taken = s->dst_counts[0];
    tutti_options with_factor = options != NULL ? *options : TUTTI_OPTIONS();
    if (call_reduces(c->kind) && c->reduction == TUTTI_PREMUL_SUM) {
        with_factor.factor = reference_factor(c->type, s->rank);
        options = &with_factor;
    }
    switch (c->kind) {
    case CALL_ALL_REDUCE: return tutti_all_reduce(comm, src, dst, c->count, c->type, c->reduction, options);
    case CALL_REDUCE: return tutti_reduce(comm, src, dst, c->count, c->type, c->reduction, c->root, options);
    case CALL_BROADCAST: return tutti_broadcast(comm, dst, c->count, c->type, c->root, options);
    case CALL_ALL_GATHER: return tutti_all_gather(comm, src, dst, c->count, c->type, options);
    case CALL_REDUCE_SCATTER: return tutti_reduce_scatter(comm, src, dst, c->count, c->type, c->reduction, options);
    case CALL_ALL_TO_ALL: return tutti_all_to_all(comm, src, dst, c->count, c->type, options);
    case CALL_GATHER: return tutti_gather(comm, src, dst, c->count, c->type, c->root, options);
    case CALL_SCATTER: return tutti_scatter(comm, src, dst, c->count, c->type, c->root, options);
    case CALL_BARRIER: return tutti_barrier(comm, options);
    case CALL_ALL_GATHER_V: return tutti_all_gather_v(comm, src, sent, s->dsts, s->dst_counts, c->type, options);
    case CALL_REDUCE_SCATTER_V:
        return tutti_reduce_scatter_v(comm, srcs, dst, s->src_counts, c->type, c->reduction, options);
    case CALL_ALL_TO_ALL_V:
        return tutti_all_to_all_v(comm, srcs, s->src_counts, s->dsts, s->dst_counts, c->type, options);
    case CALL_GATHER_V: return tutti_gather_v(comm, src, sent, s->dsts, s->dst_counts, c->type, c->root, options);
    case CALL_SCATTER_V: return tutti_scatter_v(comm, srcs, s->src_counts, dst, taken, c->type, c->root, options);
    default: return tutti_fail(TUTTI_ERR_ARGUMENT, "unknown kind of call");
    }
}

/* -------------------------------------------------------------------------------------------------- check */

/* What destination block i must hold, into `expected`; scratch has room for nranks blocks. */
static void expect_block(const call_state *s, int i, void *expected, char *scratch) {
    const call *c = &s->call;
    int source, block;
    size_t count = s->dst_counts[i], bytes = count * tutti_type_bytes(c->type);
    describe(c, s->rank, i, &source, &block);
    if (source >= 0) {
        reference_fill(expected, count, c->type, c->reduction, c->seed, source, block);
        return;
    }
    const void *srcs[s->nranks];
    for (int k = 0; k < s->nranks; k++) {
        srcs[k] = scratch + (size_t)k * bytes;
        reference_fill(scratch + (size_t)k * bytes, count, c->type, c->reduction, c->seed, k, block);
    }
    reference_reduce(expected, srcs, s->nranks, count, c->type, c->reduction);
}

static tutti_status compare(const call_state *s, const char *what, int i, const void *got, const void *expected,
                            size_t count) {
    char got_text[64], expected_text[64];
    size_t at = reference_compare(got, expected, count, s->call.type);
    RANKS_CHECK(at == count, "%s block %d, element %zu of %zu is %s instead of %s", what, i, at, count,
                reference_show(got, at, s->call.type, got_text),
                reference_show(expected, at, s->call.type, expected_text));
    return TUTTI_OK;
}

static tutti_status check_guards(const call_state *s) {
    size_t item = tutti_type_bytes(s->call.type), offset = GUARD_BYTES + (s->call.seed % 3) * item;
    for (int i = 0; i < s->nallocations; i++) {
        const unsigned char *memory = s->allocations[i], *behind = memory + offset + s->allocation_bytes[i];
        for (size_t k = 0; k < offset; k++)
            RANKS_CHECK(memory[k] == GUARD, "a byte %zu before a buffer was overwritten", offset - k);
        for (size_t k = 0; k < GUARD_BYTES; k++)
            RANKS_CHECK(behind[k] == GUARD, "a byte %zu behind a buffer was overwritten", k);
    }
    return TUTTI_OK;
}

static tutti_status check_blocks(const call_state *s, char *expected, char *scratch) {
    for (int i = 0; i < s->ndsts; i++) {
        if (s->dst_counts[i] == 0) continue;
        expect_block(s, i, expected, scratch);
        TUTTI_TRY(compare(s, "result", i, s->dsts[i], expected, s->dst_counts[i]));
    }
    for (int i = 0; i < s->nsrcs && !in_place(s); i++) {
        if (s->src_counts[i] == 0) continue;
        reference_fill(expected, s->src_counts[i], s->call.type, s->call.reduction, s->call.seed, s->rank, i);
        TUTTI_TRY(compare(s, "source", i, s->srcs[i], expected, s->src_counts[i]));
    }
    return check_guards(s);
}

tutti_status call_check(const call_state *s) {
    size_t block_bytes = s->call.count * tutti_type_bytes(s->call.type) + 1;
    char *expected = malloc(block_bytes), *scratch = malloc(block_bytes * (size_t)s->nranks);
    tutti_status status = TUTTI_ERR_MEMORY;
    if (expected != NULL && scratch != NULL) status = check_blocks(s, expected, scratch);
    free(expected);
    free(scratch);
    return status;
}

tutti_status call_run(const call *c, tutti_comm *comm) {
    call_state s;
    tutti_status status;
    TUTTI_TRY_GOTO(status, call_prepare(c, tutti_comm_rank(comm), tutti_comm_size(comm), &s), done);
    TUTTI_TRY_GOTO(status, call_start(&s, comm, NULL), done);
    TUTTI_TRY_GOTO(status, call_check(&s), done);
done:
    call_release(&s);
    if (status == TUTTI_OK) return TUTTI_OK;
    char text[1024];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    return tutti_fail(status, "%s of %zu %s, %s, root %d, in place %d, shared memory %d, seed %llu: %s",
                      call_name(c->kind), c->count, tutti_type_name(c->type), tutti_reduction_name(c->reduction),
                      c->root, c->in_place, c->shared, (unsigned long long)c->seed, text);
}
