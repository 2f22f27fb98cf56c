/*
 * ZeRO-1: each rank updates one part of each bucket's parameters.
 *
 *   bucket   | part of rank 0 | part of rank 1 | ... | part of the last rank and padding |
 *
 * Parts are equal and begin at cache lines; where the views end inside of one, the rest is padding. Gradients are
 * reduced in place: the rank's own part of the bucket holds them after a step. Parameters use the same memory in the
 * other direction: each rank copies what it has updated to its part, the parts are gathered, and all ranks copy the
 * parts of other ranks out. Both are plain collectives with equal counts, for which every transport has its best
 * algorithm.
 */
#include <stdlib.h>

#include "ddp/ddp_state.h"

tutti_status tutti_ddp_zero_prepare(tutti_ddp *ddp) {
    if (!ddp->options.zero) return TUTTI_OK;
    tutti_ddp_part *parts = calloc(ddp->nparameters + 1, sizeof *parts);
    if (!parts) return tutti_fail(TUTTI_ERR_MEMORY, "tutti_ddp_create: no memory for %zu parts", ddp->nparameters);
    const tutti_status status =
        tutti_ddp_layout_divide(ddp, ddp->ready_order, tutti_comm_rank(ddp->comm), tutti_comm_size(ddp->comm), parts);
    for (size_t i = 0; status == TUTTI_OK && i < ddp->nparameters; i++) ddp->parameters[i].part = parts[i];
    free(parts);
    return status;
}

/* The address of this rank's part of a bucket, and the number of elements of each rank's part. */
static void *find_part(const tutti_ddp *ddp, const ddp_bucket *bucket, size_t *count_out) {
    const size_t bytes = tutti_ddp_layout_part_bytes(bucket->bytes, tutti_comm_size(ddp->comm));
    *count_out = bytes / tutti_type_bytes(bucket->type);
    return (char *)bucket->memory + (size_t)tutti_comm_rank(ddp->comm) * bytes;
}

tutti_status tutti_ddp_zero_reduce(tutti_ddp *ddp, ddp_bucket *bucket, const tutti_options *options) {
    size_t count;
    void *own = find_part(ddp, bucket, &count);
    return tutti_reduce_scatter(ddp->comm, bucket->memory, own, count, bucket->type, ddp->reduction, options);
}

/* Copies elements [first, end) of a parameter between the parameter and its view. */
static tutti_status copy(const tutti_ddp *ddp, const ddp_parameter *parameter, size_t first, size_t end, bool to_view) {
    const size_t bytes = tutti_type_bytes(parameter->type);
    if (first >= end) return TUTTI_OK;
    char *data = (char *)parameter->data + first * bytes;
    char *view = (char *)tutti_ddp_layout_view(ddp, parameter) + first * bytes;
    return tutti_ddp_memory_copy(ddp, to_view ? view : data, to_view ? data : view, (end - first) * bytes);
}

static tutti_status gather(tutti_ddp *ddp, ddp_bucket *bucket) {
    size_t count;
    const void *own = find_part(ddp, bucket, &count);
    return tutti_all_gather(ddp->comm, own, bucket->memory, count, bucket->type,
                            &TUTTI_OPTIONS(.memory = ddp->options.memory, .stream = ddp->stream));
}

tutti_status tutti_ddp_zero_share(tutti_ddp *ddp) {
    if (!ddp->options.zero || tutti_comm_size(ddp->comm) == 1) return TUTTI_OK;
    for (size_t i = 0; i < ddp->nparameters; i++) {
        const ddp_parameter *parameter = &ddp->parameters[i];
        TUTTI_TRY(copy(ddp, parameter, parameter->part.first, parameter->part.first + parameter->part.count, true));
    }
    TUTTI_TRY(tutti_ddp_memory_fork(ddp));
    for (size_t i = 0; i < ddp->nbuckets; i++) TUTTI_TRY(gather(ddp, &ddp->buckets[i]));
    TUTTI_TRY(tutti_ddp_memory_join(ddp));
    for (size_t i = 0; i < ddp->nparameters; i++) {
        const ddp_parameter *parameter = &ddp->parameters[i];
        const tutti_ddp_part part = parameter->part;
        const size_t end = part.count > 0 ? part.first : parameter->count;
        TUTTI_TRY(copy(ddp, parameter, 0, end, false));
        if (part.count > 0) TUTTI_TRY(copy(ddp, parameter, part.first + part.count, parameter->count, false));
    }
    return TUTTI_OK;
}
