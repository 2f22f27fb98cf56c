/*
 * Kinds that reduce, by NCCL where it gives the results that tutti.h promises, except for the order of a sum of
 * floats:
 *
 *   integers of 8, 32 and 64 bits    sum, prod, min, max, pre-multiplied sum: exact in any order; avg is the sum,
 *                                    divided once by our kernel (NCCL's own has divided negative numbers as unsigned)
 *   float16, bfloat16, float32, 64   sum, prod, avg, pre-multiplied sum: in NCCL's order, and 16-bit types rounded at
 *                                    each step; avg multiplies by 1/n before it sums
 *
 * All other reductions are in nccl_ordered.c: bool, 16-bit integers and bitwise operations, which NCCL does not
 * have; min and max of floats, where NCCL drops NaN; float8, where NCCL rounds and overflows differently; and with
 * TUTTI_DETERMINISTIC=1 all floats.
 */
#include <string.h>

#include "bootstrap/base/common.h"
#include "comm/base/op.h"
#include "comm/gpu/nccl/nccl_state.h"
#include "kernels/reduce.h"

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

/* Returns NCCL's operation. A pre-multiplied sum is created for this call and destroyed after its calls are
 * made. */
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
    if (!suits(state, op)) return tutti_nccl_ordered(state, call);
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
