/*
 * Every public collective: checks the arguments, describes the call as a tutti_op, and submits it.
 *
 * A wrong argument is an error of this rank alone and changes nothing: the communicator stays whole, and the other
 * ranks' call waits for a correct call of this rank. The values that all ranks must agree on go into the signature,
 * which the first meeting compares.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/hash.h"
#include "comm/api/api.h"
#include "kernels/reduce.h"

/* `count` if it must be equal on all ranks, else 0. */
static void sign(tutti_op *op, uint64_t count) {
    uint64_t call = (uint64_t)op->kind | (uint64_t)op->type << 8 | (uint64_t)op->reduction << 16 |
                    (uint64_t)(uint32_t)op->root << 24;
    op->signature = tutti_hash_mix(call * UINT64_C(0x9e3779b97f4a7c15) + count * UINT64_C(0xff51afd7ed558ccd)) >> 1;
}

/* Hash of counts that must be equal, entry by entry. */
static uint64_t sign_counts(const size_t *counts, int nranks) {
    uint64_t sum = 0;
    for (int rank = 0; rank < nranks; rank++) sum = tutti_hash_mix(sum + counts[rank] + 1);
    return sum;
}

/* Returns true if memory can hold that many. (Without a division: it takes longer than the other checks together.) */
static bool is_possible(size_t count, size_t item_bytes) {
    size_t bytes;
    return !__builtin_mul_overflow(count, item_bytes, &bytes) && bytes <= SIZE_MAX / 2;
}

/* The checks of all collectives: communicator, type, root, options, memory, and that count * ranks fits. */
static tutti_status check_call(const tutti_comm *comm, const tutti_op *op, bool big, const tutti_options *options) {
    const char *name = tutti_kind_name(op->kind);
    if (comm == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: comm is NULL", name);
    size_t item_bytes = tutti_type_bytes(op->type);
    if (item_bytes == 0) return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: type %d is not a tutti_type", name, (int)op->type);
    if (op->root < 0 || op->root >= comm->nranks)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: root %d is out of range for a communicator of %d ranks", name,
                          op->root, comm->nranks);
    if (!is_possible(op->count, item_bytes * (big ? (size_t)comm->nranks : 1)))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: a count of %zu %s is more than memory can hold", name, op->count,
                          tutti_type_name(op->type));
    return tutti_options_check(options, name);
}

static bool is_float(tutti_type type) {
    switch (type) {
    case TUTTI_FLOAT16:
    case TUTTI_BFLOAT16:
    case TUTTI_FLOAT32:
    case TUTTI_FLOAT64:
    case TUTTI_FLOAT8_E4M3:
    case TUTTI_FLOAT8_E5M2: return true;
    default: return false;
    }
}

static tutti_status check_reduction(tutti_op *op, const tutti_options *options) {
    const char *name = tutti_kind_name(op->kind);
    if ((unsigned)op->reduction >= TUTTI_REDUCTION_COUNT)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: reduction %d is not a tutti_reduction", name, (int)op->reduction);
    if (!tutti_reduce_supports(op->type, op->reduction))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: reduction %s does not support type %s", name,
                          tutti_reduction_name(op->reduction), tutti_type_name(op->type));
    if (op->reduction != TUTTI_PREMUL_SUM) return TUTTI_OK;
    if (options == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: TUTTI_PREMUL_SUM needs options with the factor", name);
    op->factor = options->factor;
    bool whole = op->factor >= -9.2e18 && op->factor <= 9.2e18 && (double)(int64_t)op->factor == op->factor;
    if (!is_float(op->type) && !whole)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: the factor for type %s must be a whole number, not %g", name,
                          tutti_type_name(op->type), op->factor);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- uniform kinds */

tutti_status tutti_all_reduce(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                              tutti_reduction reduction, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("all_reduce");
    tutti_op op = {
        .kind = TUTTI_KIND_ALL_REDUCE, .type = type, .reduction = reduction, .src = src, .dst = dst, .count = count};
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    TUTTI_TRY(check_reduction(&op, options));
    TUTTI_TRY(tutti_arguments_check(&op, src, count, dst, count, /* own slice at */ 0));
    sign(&op, count);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_reduce(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                          tutti_reduction reduction, int root, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("reduce");
    tutti_op op = {.kind = TUTTI_KIND_REDUCE,
                   .type = type,
                   .reduction = reduction,
                   .root = root,
                   .src = src,
                   .dst = dst,
                   .count = count};
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    TUTTI_TRY(check_reduction(&op, options));
    TUTTI_TRY(tutti_arguments_check(&op, src, count, dst, comm->rank == root ? count : 0, 0));
    sign(&op, count);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_broadcast(tutti_comm *comm, void *buffer, size_t count, tutti_type type, int root,
                             const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("broadcast");
    tutti_op op = {
        .kind = TUTTI_KIND_BROADCAST, .type = type, .root = root, .src = buffer, .dst = buffer, .count = count};
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    TUTTI_TRY(tutti_arguments_check(&op, buffer, count, buffer, count, 0));
    sign(&op, count);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_all_gather(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                              const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("all_gather");
    tutti_op op = {.kind = TUTTI_KIND_ALL_GATHER, .type = type, .src = src, .dst = dst, .count = count};
    TUTTI_TRY(check_call(comm, &op, /* big */ true, options));
    TUTTI_TRY(tutti_arguments_check(&op, src, count, dst, count * (size_t)comm->nranks, count * (size_t)comm->rank));
    sign(&op, count);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_reduce_scatter(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                  tutti_reduction reduction, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("reduce_scatter");
    tutti_op op = {.kind = TUTTI_KIND_REDUCE_SCATTER,
                   .type = type,
                   .reduction = reduction,
                   .src = src,
                   .dst = dst,
                   .count = count};
    TUTTI_TRY(check_call(comm, &op, /* big */ true, options));
    TUTTI_TRY(check_reduction(&op, options));
    TUTTI_TRY(tutti_arguments_check(&op, src, count * (size_t)comm->nranks, dst, count, count * (size_t)comm->rank));
    sign(&op, count);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_all_to_all(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                              const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("all_to_all");
    tutti_op op = {.kind = TUTTI_KIND_ALL_TO_ALL, .type = type, .src = src, .dst = dst, .count = count};
    TUTTI_TRY(check_call(comm, &op, /* big */ true, options));
    size_t all = count * (size_t)comm->nranks;
    TUTTI_TRY(tutti_arguments_check(&op, src, all, dst, all, 0));
    sign(&op, count);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_gather(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type, int root,
                          const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("gather");
    tutti_op op = {.kind = TUTTI_KIND_GATHER, .type = type, .root = root, .src = src, .dst = dst, .count = count};
    TUTTI_TRY(check_call(comm, &op, /* big */ true, options));
    bool is_root = comm->rank == root;
    TUTTI_TRY(tutti_arguments_check(&op, src, count, dst, is_root ? count * (size_t)comm->nranks : 0,
                                    count * (size_t)comm->rank));
    sign(&op, count);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_scatter(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type, int root,
                           const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("scatter");
    tutti_op op = {.kind = TUTTI_KIND_SCATTER, .type = type, .root = root, .src = src, .dst = dst, .count = count};
    TUTTI_TRY(check_call(comm, &op, /* big */ true, options));
    bool is_root = comm->rank == root;
    TUTTI_TRY(tutti_arguments_check(&op, src, is_root ? count * (size_t)comm->nranks : 0, dst, count,
                                    count * (size_t)comm->rank));
    sign(&op, count);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_barrier(tutti_comm *comm, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("barrier");
    tutti_op op = {.kind = TUTTI_KIND_BARRIER};
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    sign(&op, 0);
    return tutti_submit_op(comm, &op, options);
}

/* -------------------------------------------------------------------------------------------------- v-kinds */

tutti_status tutti_all_gather_v(tutti_comm *comm, const void *src, size_t src_count, void *const *dsts,
                                const size_t *counts, tutti_type type, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("all_gather_v");
    tutti_op op = {.kind = TUTTI_KIND_ALL_GATHER_V,
                   .type = type,
                   .src = src,
                   .count = src_count,
                   .dsts = dsts,
                   .dst_counts = counts};
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    if (dsts == NULL || counts == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "all_gather_v: dsts and counts must not be NULL");
    if (counts[comm->rank] != src_count)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "all_gather_v: rank %d passes %zu elements but its entry in counts is %zu", comm->rank,
                          src_count, counts[comm->rank]);
    TUTTI_TRY(tutti_arguments_check_lists(&op, comm->nranks, comm->rank));
    sign(&op, sign_counts(counts, comm->nranks));
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_reduce_scatter_v(tutti_comm *comm, const void *const *srcs, void *dst, const size_t *counts,
                                    tutti_type type, tutti_reduction reduction, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("reduce_scatter_v");
    tutti_op op = {.kind = TUTTI_KIND_REDUCE_SCATTER_V,
                   .type = type,
                   .reduction = reduction,
                   .srcs = srcs,
                   .src_counts = counts,
                   .dst = dst};
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    if (srcs == NULL || counts == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "reduce_scatter_v: srcs and counts must not be NULL");
    op.count = counts[comm->rank];
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    TUTTI_TRY(check_reduction(&op, options));
    TUTTI_TRY(tutti_arguments_check_lists(&op, comm->nranks, comm->rank));
    sign(&op, sign_counts(counts, comm->nranks));
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_all_to_all_v(tutti_comm *comm, const void *const *srcs, const size_t *src_counts, void *const *dsts,
                                const size_t *dst_counts, tutti_type type, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("all_to_all_v");
    tutti_op op = {.kind = TUTTI_KIND_ALL_TO_ALL_V,
                   .type = type,
                   .srcs = srcs,
                   .src_counts = src_counts,
                   .dsts = dsts,
                   .dst_counts = dst_counts};
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    if (srcs == NULL || src_counts == NULL || dsts == NULL || dst_counts == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "all_to_all_v: none of the arrays may be NULL");
    if (src_counts[comm->rank] != dst_counts[comm->rank])
        return tutti_fail(TUTTI_ERR_ARGUMENT, "all_to_all_v: rank %d sends itself %zu elements but expects %zu",
                          comm->rank, src_counts[comm->rank], dst_counts[comm->rank]);
    TUTTI_TRY(tutti_arguments_check_lists(&op, comm->nranks, comm->rank));
    sign(&op, 0);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_gather_v(tutti_comm *comm, const void *src, size_t src_count, void *const *dsts,
                            const size_t *counts, tutti_type type, int root, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("gather_v");
    tutti_op op = {.kind = TUTTI_KIND_GATHER_V, .type = type, .root = root, .src = src, .count = src_count};
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    if (comm->rank == root) {
        if (dsts == NULL || counts == NULL)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "gather_v: dsts and counts must not be NULL on the root");
        if (counts[root] != src_count)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "gather_v: the root passes %zu elements but its entry in counts is %zu", src_count,
                              counts[root]);
        op.dsts = dsts;
        op.dst_counts = counts;
    }
    TUTTI_TRY(tutti_arguments_check_lists(&op, comm->nranks, comm->rank));
    sign(&op, 0);
    return tutti_submit_op(comm, &op, options);
}

tutti_status tutti_scatter_v(tutti_comm *comm, const void *const *srcs, const size_t *counts, void *dst,
                             size_t dst_count, tutti_type type, int root, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("scatter_v");
    tutti_op op = {.kind = TUTTI_KIND_SCATTER_V, .type = type, .root = root, .dst = dst, .count = dst_count};
    TUTTI_TRY(check_call(comm, &op, /* big */ false, options));
    if (comm->rank == root) {
        if (srcs == NULL || counts == NULL)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "scatter_v: srcs and counts must not be NULL on the root");
        if (counts[root] != dst_count)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "scatter_v: the root expects %zu elements but its entry in counts is %zu", dst_count,
                              counts[root]);
        op.srcs = srcs;
        op.src_counts = counts;
    }
    TUTTI_TRY(tutti_arguments_check_lists(&op, comm->nranks, comm->rank));
    sign(&op, 0);
    return tutti_submit_op(comm, &op, options);
}

/* ------------------------------------------------------------------------------------------- point to point */

/* All fields one by one: GCC clears a struct that is given in part by a string instruction here, whatever the options
 * say, and that is slow to begin. */
static void describe_message(tutti_message *message, size_t item_bytes, size_t count, int peer, int64_t tag,
                             const tutti_options *options) {
    message->sends = false;
    message->src = NULL;
    message->dst = NULL;
    message->bytes = count * item_bytes;
    message->item_bytes = item_bytes;
    message->peer = peer;
    message->tag = tag;
    message->timeout_ms = options != NULL ? options->timeout_ms : 0;
    message->received = NULL;
    message->gpu = TUTTI_PLACE_HOST;
    message->stream = NULL;
}

static tutti_status check_message(const tutti_comm *comm, const char *name, const tutti_message *message, size_t count,
                                  tutti_type type, const tutti_options *options) {
    if (comm == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: comm is NULL", name);
    if (message->item_bytes == 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: type %d is not a tutti_type", name, (int)type);
    if (!is_possible(count, message->item_bytes))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: a count of %zu %s is more than memory can hold", name, count,
                          tutti_type_name(type));
    bool any_peer = !message->sends && message->peer == TUTTI_ANY_SOURCE;
    if (!any_peer && (message->peer < 0 || message->peer >= comm->nranks))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: rank %d is out of range for a communicator of %d ranks", name,
                          message->peer, comm->nranks);
    bool any_tag = !message->sends && message->tag == TUTTI_ANY_TAG;
    if (!any_tag && message->tag < 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: tag %lld is negative; tags must be 0 or above", name,
                          (long long)message->tag);
    if (count > 0 && message->src == NULL && message->dst == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: the buffer of %zu elements is NULL", name, count);
    return tutti_options_check(options, name);
}

tutti_status tutti_send(tutti_comm *comm, const void *src, size_t count, tutti_type type, int peer, int64_t tag,
                        const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("send");
    tutti_message message;
    describe_message(&message, tutti_type_bytes(type), count, peer, tag, options);
    message.sends = true;
    message.src = src;
    TUTTI_TRY(check_message(comm, "send", &message, count, type, options));
    return tutti_submit_message(comm, &message, options);
}

tutti_status tutti_recv(tutti_comm *comm, void *dst, size_t count, tutti_type type, int peer, int64_t tag,
                        const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("recv");
    tutti_message message;
    describe_message(&message, tutti_type_bytes(type), count, peer, tag, options);
    message.dst = dst;
    message.received = options != NULL ? options->received : NULL;
    TUTTI_TRY(check_message(comm, "recv", &message, count, type, options));
    return tutti_submit_message(comm, &message, options);
}
