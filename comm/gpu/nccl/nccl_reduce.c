/*
 * Kinds that reduce. By NCCL, where it gives the results that tutti.h promises, except for the order of a sum of
 * floats:
 *
 *   integers of 8, 32 and 64 bits    sum, prod, min, max, pre-multiplied sum: exact in any order; avg is the sum,
 *                                    divided once by our kernel (NCCL's own has divided negative numbers as unsigned)
 *   float16, bfloat16, float32, 64   sum, prod, avg, pre-multiplied sum: in NCCL's order, and 16-bit types rounded at
 *                                    each step; avg multiplies by 1/n before it sums
 *
 * All others in rank order, by our kernel: bool, 16-bit integers and bitwise operations, which NCCL does not have; min
 * and max of floats, where NCCL drops NaN; float8, where NCCL rounds and overflows differently; and with
 * TUTTI_DETERMINISTIC=1 all floats. NCCL then moves data only. A vector is split into one slice per rank (all_reduce,
 * reduce) or is already split (reduce_scatter):
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
#include "comm/base/op.h"
#include "comm/base/slice.h"
#include "comm/gpu/nccl/nccl_state.h"
#include "kernels/reduce.h"

/* ------------------------------------------------------------------------------------------ in rank order */

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
static char *result_of(const ordered *o) {
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

/* This rank's input for its own part; a copy in `incoming` where, in place, `dst` may be written before it is read. */
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
static tutti_status reduce_slices(const ordered *o) {
    tutti_comm *comm = o->state->comm;
    size_t count = part_of(o, comm->rank).count;
    if (count == 0) return TUTTI_OK;
    void *dst = result_of(o);
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
    const char *own = own_bytes > 0 ? result_of(o) : NULL;
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

static tutti_status reduce_ordered(tutti_nccl_state *state, const tutti_stream_call *call) {
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
        TUTTI_TRY(reduce_slices(&o));
        if (!is_split(&o)) TUTTI_TRY(distribute(&o));
    }
    return tutti_nccl_scratch_give(state, call);
}

/* ------------------------------------------------------------------------------------------------ by NCCL */

/* The value one of a type, as bits; the scalar of a pre-multiplied sum is made from it. */
typedef struct numbers {
    tutti_type ours;
    tutti_nccl_type theirs;
    bool is_float;
    uint64_t one;
} numbers;

static const numbers known[] = {
    {TUTTI_INT8, TUTTI_NCCL_INT8, false, 1},
    {TUTTI_UINT8, TUTTI_NCCL_UINT8, false, 1},
    {TUTTI_INT32, TUTTI_NCCL_INT32, false, 1},
    {TUTTI_UINT32, TUTTI_NCCL_UINT32, false, 1},
    {TUTTI_INT64, TUTTI_NCCL_INT64, false, 1},
    {TUTTI_UINT64, TUTTI_NCCL_UINT64, false, 1},
    {TUTTI_FLOAT16, TUTTI_NCCL_FLOAT16, true, 0x3c00},
    {TUTTI_BFLOAT16, TUTTI_NCCL_BFLOAT16, true, 0x3f80},
    {TUTTI_FLOAT32, TUTTI_NCCL_FLOAT32, true, 0x3f800000},
    {TUTTI_FLOAT64, TUTTI_NCCL_FLOAT64, true, 0x3ff0000000000000},
};

/* NULL: NCCL does not have the type. */
static const numbers *find(tutti_type type) {
    for (size_t i = 0; i < TUTTI_COUNT_OF(known); i++)
        if (known[i].ours == type) return &known[i];
    return NULL;
}

static bool suits(const tutti_nccl_state *state, const tutti_op *op) {
    const numbers *type = find(op->type);
    if (type == NULL) return false;
    switch (op->reduction) {
    case TUTTI_SUM:
    case TUTTI_PROD:
    case TUTTI_AVG:
    case TUTTI_PREMUL_SUM: return !type->is_float || !state->rank_order;
    case TUTTI_MIN:
    case TUTTI_MAX: return !type->is_float;
    default: return false;
    }
}

/* True for averages of integers: divided after NCCL has summed. */
static bool divides(const tutti_op *op) {
    return op->reduction == TUTTI_AVG && !find(op->type)->is_float;
}

/* Returns NCCL's operation. A pre-multiplied sum is created for this call and destroyed after its calls are made. */
static tutti_nccl_op operation(tutti_nccl_batch *batch) {
    static const tutti_nccl_op simple[] = {[TUTTI_SUM] = TUTTI_NCCL_SUM,
                                           [TUTTI_PROD] = TUTTI_NCCL_PROD,
                                           [TUTTI_MIN] = TUTTI_NCCL_MIN,
                                           [TUTTI_MAX] = TUTTI_NCCL_MAX,
                                           [TUTTI_AVG] = TUTTI_NCCL_AVG};
    const tutti_op *op = batch->op;
    const numbers *type = find(op->type);
    if (divides(op)) return TUTTI_NCCL_SUM;
    if (op->reduction != TUTTI_PREMUL_SUM) return simple[op->reduction];
    uint64_t scalar = 0;
    const void *one = &type->one;
    tutti_nccl_op made = TUTTI_NCCL_SUM;
    tutti_reduce_host(&(tutti_reduce_args){.dst = &scalar,
                                           .srcs = &one,
                                           .factors = &op->factor,
                                           .nsrcs = 1,
                                           .count = 1,
                                           .type = op->type,
                                           .reduction = TUTTI_PREMUL_SUM});
    tutti_nccl_result result = batch->state->nccl->ncclRedOpCreatePreMulSum(&made, &scalar, type->theirs,
                                                                            TUTTI_NCCL_SCALAR_HOST, batch->handle);
    tutti_nccl_note(batch, result, "ncclRedOpCreatePreMulSum");
    return made;
}

/* A reduction to each rank that has a count. */
static void add_scatter_v(tutti_nccl_batch *batch, tutti_nccl_type type, tutti_nccl_op operation, tutti_stream stream) {
    const tutti_op *op = batch->op;
    const tutti_comm *comm = batch->state->comm;
    for (int root = 0; root < comm->nranks; root++) {
        void *dst = root == comm->rank ? op->dst : NULL;
        if (op->src_counts[root] == 0) continue;
        tutti_nccl_note(batch,
                        batch->state->nccl->ncclReduce(op->srcs[root], dst, op->src_counts[root], type, operation, root,
                                                       batch->handle, stream),
                        "ncclReduce");
    }
}

static void add_calls(tutti_nccl_batch *batch, tutti_nccl_op operation, tutti_stream stream) {
    const tutti_nccl *nccl = batch->state->nccl;
    const tutti_op *op = batch->op;
    tutti_nccl_type type = find(op->type)->theirs;
    void *dst = tutti_op_has_output(op, batch->state->comm->rank) ? op->dst : NULL;
    switch (op->kind) {
    case TUTTI_KIND_ALL_REDUCE:
        tutti_nccl_note(batch, nccl->ncclAllReduce(op->src, op->dst, op->count, type, operation, batch->handle, stream),
                        "ncclAllReduce");
        break;
    case TUTTI_KIND_REDUCE:
        tutti_nccl_note(batch,
                        nccl->ncclReduce(op->src, dst, op->count, type, operation, op->root, batch->handle, stream),
                        "ncclReduce");
        break;
    case TUTTI_KIND_REDUCE_SCATTER:
        tutti_nccl_note(batch,
                        nccl->ncclReduceScatter(op->src, op->dst, op->count, type, operation, batch->handle, stream),
                        "ncclReduceScatter");
        break;
    default: add_scatter_v(batch, type, operation, stream); break;
    }
}

static tutti_status divide(tutti_nccl_state *state, const tutti_stream_call *call) {
    const tutti_op *op = call->op;
    tutti_comm *comm = state->comm;
    if (!tutti_op_has_output(op, comm->rank)) return TUTTI_OK;
    tutti_span result = tutti_op_output(comm, op, 0);
    void *dst = (void *)result.data;
    const void *src = result.data;
    if (result.bytes == 0) return TUTTI_OK;
    tutti_reduce_args args = {.srcs = &src,
                              .nsrcs = 1,
                              .count = result.bytes / tutti_type_bytes(op->type),
                              .type = op->type,
                              .reduction = TUTTI_AVG,
                              .divisor = comm->nranks};
    return comm->cuda.streams->device->reduce(&args, &dst, 1, call->stream);
}

tutti_status tutti_nccl_reduce(tutti_nccl_state *state, const tutti_stream_call *call) {
    const tutti_op *op = call->op;
    tutti_nccl_batch batch;
    if (!suits(state, op)) return reduce_ordered(state, call);
    TUTTI_TRY(tutti_nccl_begin(state, call, &batch));
    tutti_nccl_op used = operation(&batch);
    if (batch.failed == NULL) {
        add_calls(&batch, used, call->stream);
        if (op->reduction == TUTTI_PREMUL_SUM)
            tutti_nccl_note(&batch, state->nccl->ncclRedOpDestroy(used, batch.handle), "ncclRedOpDestroy");
    }
    TUTTI_TRY(tutti_nccl_finish(&batch));
    return divides(op) ? divide(state, call) : TUTTI_OK;
}
