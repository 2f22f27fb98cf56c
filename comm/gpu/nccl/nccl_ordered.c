/*
 * Reductions in rank order, for any type: NCCL moves data, our kernel reduces. A vector is split into one slice per
 * rank (all_reduce, reduce) or is already split (reduce_scatter):
 *
 *   1. each rank sends every other rank that rank's slice of its input, and receives its own slice of theirs into
 *      scratch
 *   2. it reduces these slices: rank 0's, then rank 1's, ...
 *   3. all_reduce: it sends the result to all others; reduce: to the root
 *
 * So each byte is sent as often as in NCCL's own ring. Long vectors are processed in rounds that fill the scratch.
 * Pre-multiplied inputs are multiplied before they are sent, so float16, bfloat16 and float8 are rounded once more
 * than on host memory; with more than 64 ranks, so are their sums.
 */
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/fault.h"
#include "comm/base/op.h"
#include "comm/base/slice.h"
#include "comm/gpu/nccl/nccl_state.h"
#include "kernels/reduce.h"

/* The rounds of a call. Sizes are in elements unless named bytes. */
typedef struct ordered {
    tutti_nccl_state *state;
    const tutti_stream_call *call;
    const tutti_op *op;
    size_t item_bytes;
    size_t most;    /* elements of a slice in one round, at most */
    char *incoming; /* nranks slices: the other ranks' inputs for our slice */
    char *products; /* nranks slices: our input, multiplied */
    size_t at;      /* start of this round in the vector, or in each block */
} ordered;

/* One slice in one round. */
typedef struct part {
    size_t start; /* in the vector, or in the block */
    size_t count;
} part;

static bool is_split(const ordered *o) {
    return tutti_op_is_split(o->op);
}

/* The part of this round that `rank` reduces. */
static part part_of(const ordered *o, int rank) {
    const tutti_op *op = o->op;
    if (is_split(o)) {
        size_t count = op->kind == TUTTI_KIND_REDUCE_SCATTER_V ? op->src_counts[rank] : op->count;
        return (part){.start = o->at, .count = count > o->at ? tutti_min_size(o->most, count - o->at) : 0};
    }
    int nranks = o->state->comm->nranks;
    size_t count = tutti_min_size(o->most * (size_t)nranks, op->count - o->at);
    tutti_slice slice = tutti_slice_of(count, o->item_bytes, nranks, rank);
    return (part){.start = o->at + slice.start, .count = slice.count};
}

/* This rank's input for the part that `rank` reduces; NULL: the part is empty. */
static const char *input(const ordered *o, int rank) {
    if (part_of(o, rank).count == 0) return NULL;
    if (o->op->reduction == TUTTI_PREMUL_SUM) return o->products + (size_t)rank * o->most * o->item_bytes;
    return tutti_op_input(o->state->comm, o->op, rank).data + part_of(o, rank).start * o->item_bytes;
}

/* Where the result of this rank's part is stored. */
static char *result(const ordered *o) {
    const tutti_comm *comm = o->state->comm;
    if (!tutti_op_has_output(o->op, comm->rank)) return o->incoming + (size_t)comm->rank * o->most * o->item_bytes;
    return (char *)tutti_op_output(comm, o->op, comm->rank).data + part_of(o, comm->rank).start * o->item_bytes;
}

static tutti_status multiply(const ordered *o) {
    tutti_comm *comm = o->state->comm;
    for (int rank = 0; rank < comm->nranks; rank++) {
        part p = part_of(o, rank);
        if (p.count == 0) continue;
        const void *src = tutti_op_input(comm, o->op, rank).data + p.start * o->item_bytes;
        void *dst = (void *)input(o, rank);
        tutti_reduce_args args = {.srcs = &src,
                                  .factors = &o->op->factor,
                                  .nsrcs = 1,
                                  .count = p.count,
                                  .type = o->op->type,
                                  .reduction = TUTTI_PREMUL_SUM};
        TUTTI_TRY(comm->cuda.streams->device->reduce(&args, &dst, 1, o->call->stream));
    }
    return TUTTI_OK;
}

/* Step 1. */
static tutti_status collect(const ordered *o) {
    const tutti_comm *comm = o->state->comm;
    size_t own_bytes = part_of(o, comm->rank).count * o->item_bytes;
    tutti_nccl_batch batch;
    TUTTI_TRY(tutti_nccl_begin(o->state, o->call, &batch));
    for (int peer = 0; peer < comm->nranks; peer++) {
        if (peer == comm->rank) continue;
        tutti_nccl_send(&batch, input(o, peer), part_of(o, peer).count * o->item_bytes, peer);
        tutti_nccl_recv(&batch, o->incoming + (size_t)peer * o->most * o->item_bytes, own_bytes, peer);
    }
    return tutti_nccl_finish(&batch);
}

/* This rank's input for its own part, if `dst` may be written before it is read: in place, it is copied to this
 * rank's place in `incoming`. */
static tutti_status keep_input(const ordered *o, const void *dst, const char **own_out) {
    const tutti_comm *comm = o->state->comm;
    const char *own = input(o, comm->rank);
    size_t bytes = part_of(o, comm->rank).count * o->item_bytes;
    *own_out = own;
    if (own != dst) return TUTTI_OK;
    char *aside = o->incoming + (size_t)comm->rank * o->most * o->item_bytes;
    *own_out = aside;
    return comm->cuda.streams->device->copy(aside, own, bytes, o->call->stream);
}

/* Step 2, with as many sources at a time as the kernel takes. */
static tutti_status reduce(const ordered *o) {
    tutti_comm *comm = o->state->comm;
    size_t count = part_of(o, comm->rank).count;
    if (count == 0) return TUTTI_OK;
    void *dst = result(o);
    const void *srcs[TUTTI_DEVICE_MOST_BUFFERS];
    const int most =
        tutti_fault("nccl_few_sources") ? 2 : TUTTI_DEVICE_MOST_BUFFERS; /* the long path with few ranks, for tests */
    bool multiplied = o->op->reduction == TUTTI_PREMUL_SUM, divides = o->op->reduction == TUTTI_AVG;
    int done = 0, used = 0;
    const char *own = input(o, comm->rank);
    if (comm->nranks > most) TUTTI_TRY(keep_input(o, dst, &own));
    while (done < comm->nranks) {
        if (done > 0) srcs[used++] = dst;
        for (; done < comm->nranks && used < most; done++)
            srcs[used++] = done == comm->rank ? own : o->incoming + (size_t)done * o->most * o->item_bytes;
        bool last = done == comm->nranks;
        tutti_reduce_args args = {.srcs = srcs,
                                  .nsrcs = used,
                                  .count = count,
                                  .type = o->op->type,
                                  .reduction = multiplied || (divides && !last) ? TUTTI_SUM : o->op->reduction,
                                  .divisor = comm->nranks};
        TUTTI_TRY(comm->cuda.streams->device->reduce(&args, &dst, 1, o->call->stream));
        used = 0;
    }
    return TUTTI_OK;
}

/* Step 3. */
static tutti_status distribute(const ordered *o) {
    const tutti_comm *comm = o->state->comm;
    size_t own_bytes = part_of(o, comm->rank).count * o->item_bytes;
    bool to_all = o->op->kind == TUTTI_KIND_ALL_REDUCE;
    const char *own = own_bytes > 0 ? result(o) : NULL;
    tutti_nccl_batch batch;
    TUTTI_TRY(tutti_nccl_begin(o->state, o->call, &batch));
    for (int peer = 0; peer < comm->nranks; peer++) {
        part p = part_of(o, peer);
        if (peer == comm->rank) continue;
        if (to_all || peer == o->op->root) tutti_nccl_send(&batch, own, own_bytes, peer);
        if (to_all || comm->rank == o->op->root)
            tutti_nccl_recv(&batch, (char *)o->op->dst + p.start * o->item_bytes, p.count * o->item_bytes, peer);
    }
    return tutti_nccl_finish(&batch);
}

/* Length of the vector, or of the longest block: the same on all ranks. */
static size_t longest(const ordered *o) {
    size_t most = o->op->count;
    if (o->op->kind != TUTTI_KIND_REDUCE_SCATTER_V) return most;
    for (int rank = 0; rank < o->state->comm->nranks; rank++) most = tutti_max_size(most, o->op->src_counts[rank]);
    return most;
}

tutti_status tutti_nccl_ordered(tutti_nccl_state *state, const tutti_stream_call *call) {
    size_t nranks = (size_t)state->comm->nranks;
    ordered o = {.state = state, .call = call, .op = call->op, .item_bytes = tutti_type_bytes(call->op->type)};
    TUTTI_TRY(tutti_nccl_scratch_take(state, call));
    size_t slice_bytes = state->scratch_bytes / 2 / nranks / TUTTI_CACHE_LINE * TUTTI_CACHE_LINE;
    o.most = slice_bytes / o.item_bytes;
    o.incoming = state->scratch;
    o.products = o.incoming + nranks * slice_bytes;
    size_t count = longest(&o), step = is_split(&o) ? o.most : o.most * nranks;
    for (o.at = 0; o.at < count; o.at += step) {
        if (call->op->reduction == TUTTI_PREMUL_SUM) TUTTI_TRY(multiply(&o));
        TUTTI_TRY(collect(&o));
        TUTTI_TRY(reduce(&o));
        if (!is_split(&o)) TUTTI_TRY(distribute(&o));
    }
    return tutti_nccl_scratch_give(state, call);
}
