/*
 * Helpers that the algorithms on rails share. See rail_call.h.
 */
#include "comm/net/coll/rail_call.h"

#include <assert.h>
#include <string.h>

#include "comm/base/slice.h"
#include "kernels/reduce.h"

void *tutti_rail_take(tutti_rail_call *call, size_t bytes) {
    char *memory = call->scratch;
    size_t room = tutti_rail_room(bytes);
    assert(room <= call->scratch_bytes && "an algorithm takes more scratch than it has asked for");
    call->scratch += room;
    call->scratch_bytes -= room;
    return memory;
}

tutti_rail_piece tutti_rail_slice(const tutti_rail_call *call, int rank) {
    size_t item_bytes = tutti_type_bytes(call->vector.type);
    tutti_slice slice = tutti_slice_of(call->vector.count, item_bytes, call->rail->n, rank);
    return (tutti_rail_piece){.start = slice.start * item_bytes, .bytes = slice.count * item_bytes};
}

void tutti_rail_reduce_now(const tutti_rail_vector *vector, void *dst, const void *const *srcs, int nsrcs,
                           size_t bytes) {
    tutti_reduce_args args = {
        .dst = dst,
        .srcs = srcs,
        .nsrcs = nsrcs,
        .count = bytes / tutti_type_bytes(vector->type),
        .type = vector->type,
        .reduction = vector->reduction,
        .divisor = vector->divisor,
    };
    tutti_reduce_host(&args);
}

/* ------------------------------------------------------------------------------------------------- pairwise sums */

/* Small enough for the sums of all levels to stay in the first-level cache. */
#define SUMMED_BYTES ((size_t)2 << 10)
#define LEVELS       32 /* of the tree of sums: more than any number of ranks needs */

typedef struct summing {
    tutti_rail_vector vector;
    const void *const *srcs;
    tutti_rail_pairs pairs;
    size_t start, bytes; /* the part of the vectors that is being summed */
    char (*sums)[SUMMED_BYTES];
} summing;

static const void *input_of(const summing *s, int rank) {
    return (const char *)s->srcs[rank] + s->start;
}

static const void *add_two(const summing *s, const void *left, const void *right, void *dst) {
    const void *both[2] = {left, right};
    tutti_rail_reduce_now(&s->vector, dst, both, 2, s->bytes);
    return dst;
}

/* The sum of `count` members, in sums[level], or of one in place. Overwrites the levels from `level` on. */
static const void *sum_members(const summing *s, int first, int count, int level) {
    if (count > 1) {
        const void *left = sum_members(s, first, count / 2, level);
        const void *right = sum_members(s, first + count / 2, count / 2, level + 1);
        return add_two(s, left, right, s->sums[level]);
    }
    int rank = tutti_rail_rank_of(s->pairs, first);
    if (first >= s->pairs.extra) return input_of(s, rank);
    return add_two(s, input_of(s, rank), input_of(s, rank + 1), s->sums[level]);
}

static bool is_pairwise(const tutti_rail_vector *vector, int nsrcs) {
    bool sums = vector->reduction == TUTTI_SUM || vector->reduction == TUTTI_AVG || vector->reduction == TUTTI_PROD;
    bool is_exact_type = vector->type == TUTTI_FLOAT32 || vector->type == TUTTI_FLOAT64;
    return nsrcs > 3 && sums && is_exact_type; /* with up to three inputs the two orders are the same */
}

/* tutti_rail_reduce_now in the order of sums on rails: srcs are the inputs of all n ranks. */
static void sum(const tutti_rail_vector *vector, void *dst, const void *const *srcs, int nsrcs, size_t bytes) {
    if (!is_pairwise(vector, nsrcs)) {
        tutti_rail_reduce_now(vector, dst, srcs, nsrcs, bytes);
        return;
    }
    _Alignas(TUTTI_CACHE_LINE) char sums[LEVELS][SUMMED_BYTES];
    summing s = {.vector = *vector, .srcs = srcs, .pairs = tutti_rail_pair_up(nsrcs), .sums = sums};
    int half = s.pairs.members / 2;
    if (s.vector.reduction == TUTTI_AVG) s.vector.reduction = TUTTI_SUM;
    for (; s.start < bytes; s.start += s.bytes) {
        s.bytes = tutti_min_size(SUMMED_BYTES, bytes - s.start);
        const void *halves[2] = {sum_members(&s, 0, half, 0), sum_members(&s, half, half, 1)};
        tutti_rail_reduce_now(vector, (char *)dst + s.start, halves, 2, s.bytes);
    }
}

tutti_fold tutti_rail_fold_of(const tutti_rail_vector *vector) {
    tutti_reduction reduction = vector->reduction == TUTTI_AVG ? TUTTI_SUM : vector->reduction;
    return (tutti_fold){.type = vector->type, .reduction = reduction};
}

void tutti_rail_divide(const tutti_rail_vector *vector, void *data, size_t bytes) {
    const void *src = data;
    if (vector->reduction == TUTTI_AVG) tutti_rail_reduce_now(vector, data, &src, 1, bytes);
}

void tutti_rail_copy(void *dst, const void *src, size_t bytes) {
    if (dst != src && bytes > 0) memcpy(dst, src, bytes);
}

/* ---------------------------------------------------------------------------------------------- moving, adding */

tutti_status tutti_rail_move(const tutti_rail_call *call, tutti_link_part *parts, int nparts,
                             const tutti_link_work *work) {
    int kept = 0;
    for (int i = 0; i < nparts; i++)
        if (parts[i].bytes > 0) parts[kept++] = parts[i];
    return work != NULL ? tutti_link_move_meanwhile(call->rail, parts, kept, work)
                        : tutti_link_move(call->rail, parts, kept);
}

/* Bytes of the result per call: small enough for the caller to poll the links again within some microseconds. */
#define ADDED_BYTES ((size_t)32 << 10)

bool tutti_rail_add_some(void *adding) {
    tutti_rail_adding *a = adding;
    size_t bytes = tutti_min_size(ADDED_BYTES, a->left);
    if (bytes > 0) sum(a->vector, a->dst, a->views, a->nviews, bytes);
    for (int i = 0; i < a->nviews; i++) a->views[i] = (const char *)a->views[i] + bytes;
    a->dst += bytes;
    a->left -= bytes;
    return a->left > 0;
}
