/*
 * What all ranks must agree on: the model, its data, the order of the gradients.
 *
 * Create first exchanges whether a rank has failed by itself, as the rebuild of the buckets does, and then one small
 * record (numbers, options, a hash of all shapes). Only when records differ do the ranks exchange all shapes and find
 * the first difference; each rank then fails with the same text about it. As every rank decides on the same gathered
 * data, either all succeed or all fail.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ddp/ddp_state.h"

/* Exchanged as words. */
typedef struct model_record {
    uint64_t nparameters, reduction, bucket_bytes, first_bucket_bytes, no_broadcast, zero;
    uint64_t shapes; /* hash of counts and types, in order */
} model_record;

#define WORDS_OF(type)  (sizeof(type) / sizeof(uint64_t))
#define WORDS_PER_SHAPE 2 /* count, type */

/* FNV-1a over 64-bit words; a collision would only be found later, by the first bucket. */
static uint64_t hash_shapes(const tutti_ddp *ddp) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < ddp->nparameters; i++) {
        hash = (hash ^ ddp->parameters[i].count) * UINT64_C(0x100000001b3);
        hash = (hash ^ ddp->parameters[i].type) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static tutti_status check_options(const model_record *records, int nranks) {
    const model_record *first = &records[0];
    for (int rank = 1; rank < nranks; rank++) {
        const model_record *other = &records[rank];
        if (other->reduction != first->reduction)
            return tutti_fail(
                TUTTI_ERR_MISMATCH,
                "tutti_ddp_create: rank 0 has the reduction %s, rank %d %s: pass equal options on all ranks",
                tutti_reduction_name((tutti_reduction)first->reduction), rank,
                tutti_reduction_name((tutti_reduction)other->reduction));
        if (other->bucket_bytes != first->bucket_bytes || other->first_bucket_bytes != first->first_bucket_bytes)
            return tutti_fail(TUTTI_ERR_MISMATCH,
                              "tutti_ddp_create: rank 0 has buckets of %" PRIu64 " bytes (the first %" PRIu64
                              "), rank %d of %" PRIu64 " (%" PRIu64 "): pass equal options on all ranks",
                              first->bucket_bytes, first->first_bucket_bytes, rank, other->bucket_bytes,
                              other->first_bucket_bytes);
        if (other->no_broadcast != first->no_broadcast || other->zero != first->zero)
            return tutti_fail(TUTTI_ERR_MISMATCH,
                              "tutti_ddp_create: rank 0 has no_broadcast %" PRIu64 " and zero %" PRIu64
                              ", rank %d %" PRIu64 " and %" PRIu64 ": pass equal options on all ranks",
                              first->no_broadcast, first->zero, rank, other->no_broadcast, other->zero);
    }
    return TUTTI_OK;
}

/* `shapes`: those of the first `common` parameters, rank after rank. */
static tutti_status fail_shapes(const tutti_ddp *ddp, const model_record *records, const uint64_t *shapes,
                                size_t common, int nranks) {
    for (size_t i = 0; i < common; i++) {
        const uint64_t *first = &shapes[i * WORDS_PER_SHAPE];
        for (int rank = 1; rank < nranks; rank++) {
            const uint64_t *other = &shapes[((size_t)rank * common + i) * WORDS_PER_SHAPE];
            if (other[0] == first[0] && other[1] == first[1]) continue;
            return tutti_fail(TUTTI_ERR_MISMATCH,
                              "tutti_ddp_create: parameter %zu ('%s') has %" PRIu64
                              " elements of %s on rank 0, %" PRIu64
                              " of %s on rank %d: build the same model on all ranks",
                              i, ddp->parameters[i].name, first[0], tutti_type_name((tutti_type)first[1]), other[0],
                              tutti_type_name((tutti_type)other[1]), rank);
        }
    }
    int longer = 0, shorter = 0;
    for (int rank = 1; rank < nranks; rank++) {
        if (records[rank].nparameters > records[longer].nparameters) longer = rank;
        if (records[rank].nparameters < records[shorter].nparameters) shorter = rank;
    }
    const char *name = common < ddp->nparameters ? ddp->parameters[common].name : "not here";
    return tutti_fail(TUTTI_ERR_MISMATCH,
                      "tutti_ddp_create: rank %d has %" PRIu64 " parameters, rank %d only %" PRIu64
                      ": parameter %zu ('%s') is missing there; build the same model on all ranks",
                      longer, records[longer].nparameters, shorter, records[shorter].nparameters, common, name);
}

/* Records differ: all ranks exchange the shapes of the parameters that every rank has, and report the same first
 * difference. */
static tutti_status compare_shapes(tutti_ddp *ddp, const model_record *records, int nranks) {
    size_t common = records[0].nparameters;
    for (int rank = 1; rank < nranks; rank++)
        if (records[rank].nparameters < common) common = records[rank].nparameters;
    uint64_t *own = calloc(common * WORDS_PER_SHAPE + 1, sizeof *own);
    uint64_t *all = calloc((size_t)nranks * common * WORDS_PER_SHAPE + 1, sizeof *all);
    tutti_status status = TUTTI_OK;
    if (!own || !all)
        status = tutti_fail(TUTTI_ERR_MEMORY, "tutti_ddp_create: no memory to compare %zu parameters of %d ranks",
                            common, nranks);
    TUTTI_TRY_GOTO(status, tutti_ddp_agree_on_success(ddp->comm, "tutti_ddp_create", status), done);
    for (size_t i = 0; i < common; i++) {
        own[i * WORDS_PER_SHAPE] = ddp->parameters[i].count;
        own[i * WORDS_PER_SHAPE + 1] = ddp->parameters[i].type;
    }
    TUTTI_TRY_GOTO(status, tutti_all_gather(ddp->comm, own, all, common * WORDS_PER_SHAPE, TUTTI_UINT64, NULL), done);
    status = fail_shapes(ddp, records, all, common, nranks);
done:
    free(own), free(all);
    return status;
}

static tutti_status compare_records(tutti_ddp *ddp, const model_record *records, int nranks) {
    TUTTI_TRY(check_options(records, nranks));
    for (int rank = 1; rank < nranks; rank++)
        if (records[rank].shapes != records[0].shapes || records[rank].nparameters != records[0].nparameters)
            return compare_shapes(ddp, records, nranks);
    return TUTTI_OK;
}

tutti_status tutti_ddp_agree_on_success(tutti_comm *comm, const char *call, tutti_status local) {
    enum { STATUSES = 1000 };
    char text[1024];
    /* The lowest rank that has failed, and its status. */
    int64_t failed = local == TUTTI_OK ? INT64_MAX : (int64_t)tutti_comm_rank(comm) * STATUSES - local;
    /* The exchange must not replace this rank's own error text. */
    snprintf(text, sizeof text, "%s", local == TUTTI_OK ? "" : tutti_last_error());
    tutti_status status = tutti_all_reduce(comm, &failed, &failed, 1, TUTTI_INT64, TUTTI_MIN, NULL);
    if (local != TUTTI_OK) return tutti_fail(local, "%s", text);
    if (status != TUTTI_OK || failed == INT64_MAX) return status;
    return tutti_fail(TUTTI_ERR_MISMATCH, "%s failed on rank %d (%s): see that rank's error", call,
                      (int)(failed / STATUSES), tutti_status_name((tutti_status)(0 - failed % STATUSES)));
}

tutti_status tutti_ddp_agree_on_model(tutti_ddp *ddp, tutti_status local) {
    const int nranks = tutti_comm_size(ddp->comm);
    model_record *records = calloc((unsigned)nranks, sizeof *records);
    if (!records && local == TUTTI_OK)
        local = tutti_fail(TUTTI_ERR_MEMORY, "tutti_ddp_create: no memory for %d records", nranks);
    tutti_status status = tutti_ddp_agree_on_success(ddp->comm, "tutti_ddp_create", local);
    if (status == TUTTI_OK) {
        const model_record own = {.nparameters = ddp->nparameters,
                                  .reduction = ddp->reduction,
                                  .bucket_bytes = ddp->options.bucket_bytes,
                                  .first_bucket_bytes = ddp->options.first_bucket_bytes,
                                  .no_broadcast = ddp->options.no_broadcast != 0,
                                  .zero = ddp->options.zero != 0,
                                  .shapes = hash_shapes(ddp)};
        status = tutti_all_gather(ddp->comm, &own, records, WORDS_OF(model_record), TUTTI_UINT64, NULL);
    }
    if (status == TUTTI_OK) status = compare_records(ddp, records, nranks);
    free(records);
    return status;
}

tutti_status tutti_ddp_agree_on_data(tutti_ddp *ddp) {
    for (size_t i = 0; i < ddp->nparameters; i++) {
        const ddp_parameter *parameter = &ddp->parameters[i];
        if (parameter->count == 0) continue;
        TUTTI_TRY(tutti_broadcast(ddp->comm, parameter->data, parameter->count, parameter->type, 0,
                                  &TUTTI_OPTIONS(.memory = ddp->options.memory, .stream = ddp->options.stream)));
    }
    return TUTTI_OK;
}

tutti_status tutti_ddp_agree_on_order(tutti_ddp *ddp) {
    TUTTI_TRY(tutti_broadcast(ddp->comm, ddp->ready_order, ddp->nparameters, TUTTI_UINT64, 0, NULL));
    unsigned char *seen = calloc(ddp->nparameters + 1, 1);
    if (!seen) return tutti_fail(TUTTI_ERR_MEMORY, "tutti_ddp_finish: no memory for %zu marks", ddp->nparameters);
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < ddp->nparameters && status == TUTTI_OK; i++) {
        const uint64_t index = ddp->ready_order[i];
        if (index >= ddp->nparameters || seen[index]++)
            status = tutti_fail(TUTTI_ERR_DATA,
                                "tutti_ddp_finish: rank 0 sent an order of gradients that names %" PRIu64
                                " twice or out of range: its memory was overwritten",
                                index);
    }
    free(seen);
    return status;
}
