/*
 * What the algorithms on rails have in common. See rail_call.h.
 */
#include "comm/algorithms/rail_call.h"

#include <assert.h>
#include <string.h>

#include "comm/slice.h"
#include "kernels/reduce.h"

void *tutti_rail_take(tutti_rail_call *call, size_t bytes) {
    char *memory = call->scratch;
    size_t room = tutti_rail_room(bytes);
    assert(room <= call->scratch_bytes && "an algorithm takes more scratch than it has asked for");
    call->scratch += room;
    call->scratch_bytes -= room;
    return memory;
}

tutti_status tutti_rail_tell(const tutti_rail_call *call, int rank) {
    if (call->watch == NULL) return TUTTI_OK;
    return call->watch->arrived(call->watch->context, rank);
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

/* Of the result: so little that the caller is back at the links within some microseconds. */
#define ADDED_BYTES ((size_t)32 << 10)

bool tutti_rail_add_some(void *adding) {
    tutti_rail_adding *a = adding;
    size_t bytes = tutti_min_size(ADDED_BYTES, a->left);
    if (bytes > 0) tutti_rail_reduce_now(a->vector, a->dst, a->views, a->nviews, bytes);
    for (int i = 0; i < a->nviews; i++) a->views[i] = (const char *)a->views[i] + bytes;
    a->dst += bytes;
    a->left -= bytes;
    return a->left > 0;
}
