/*
 * CUDA memory, communicators of one rank: inputs are copied to outputs. As on the host (single.c), reductions still
 * run.
 */
#include <stdio.h>

#include "comm/base/op.h"
#include "comm/gpu/stream.h"

static bool fits(const tutti_comm *comm, char *reason_out, size_t capacity) {
    snprintf(reason_out, capacity, "it has %d ranks", comm->nranks);
    return comm->nranks == 1;
}

static tutti_status enqueue(tutti_comm *comm, const tutti_stream_call *call) {
    const tutti_device *device = comm->cuda.streams->device;
    const tutti_op *op = call->op;
    tutti_span input = tutti_op_input(comm, op, 0), output = tutti_op_output(comm, op, 0);
    if (input.bytes == 0 || !tutti_op_has_output(op, 0)) return TUTTI_OK;
    void *dst = (void *)output.data;
    const void *src = input.data;
    if (tutti_op_reduces(op)) {
        tutti_reduce_args args = {.srcs = &src,
                                  .factors = op->reduction == TUTTI_PREMUL_SUM ? &op->factor : NULL,
                                  .nsrcs = 1,
                                  .count = input.bytes / tutti_type_bytes(op->type),
                                  .type = op->type,
                                  .reduction = op->reduction,
                                  .divisor = 1};
        return device->reduce(&args, &dst, 1, call->stream);
    }
    return src == dst ? TUTTI_OK : device->copy(dst, src, input.bytes, call->stream);
}

const tutti_stream_engine tutti_engine_single = {
    .name = "single",
    .when = "one rank",
    .fits = fits,
    .enqueue = enqueue,
    .captures = true,
    .minds_deaths = true,
};
