/*
 * How a collective is split into pieces, and the layout of a piece in its slot. See staged.h.
 *
 * If all ranks know all counts, pieces are as long as fits into a slot, and all ranks have the same number of them.
 * The counts of all_to_all_v, gather_v and scatter_v are known pairwise only: such a call is one piece, in its own
 * memory.
 */
#include <stdlib.h>

#include "bootstrap/base/hash.h"
#include "bootstrap/base/status.h"
#include "comm/base/op.h"
#include "comm/gpu/staged/staged.h"

#define PART_ALIGNMENT ((size_t)64)

static bool counts_are_known(const tutti_op *op) {
    return op->kind != TUTTI_KIND_ALL_TO_ALL_V && op->kind != TUTTI_KIND_GATHER_V && op->kind != TUTTI_KIND_SCATTER_V;
}

/* Number of slices of a piece in the slot of the rank that has most of them. */
static size_t slices(const tutti_comm *comm, const tutti_op *op) {
    switch (op->kind) {
    case TUTTI_KIND_ALL_REDUCE:
    case TUTTI_KIND_REDUCE:
    case TUTTI_KIND_BROADCAST:
    case TUTTI_KIND_BARRIER: return 1;
    default: return (size_t)comm->nranks;
    }
}

/* ------------------------------------------------------------------------------------------------ parts */

static void add(tutti_staged_part *parts, int *count, tutti_span span, size_t item_bytes, size_t slice) {
    parts[(*count)++] =
        (tutti_staged_part){.on_gpu = (char *)(uintptr_t)span.data, .count = span.bytes / item_bytes, .slice = slice};
}

/* The slice of the slot that holds the rank's only input or output. */
static size_t own_slice(const tutti_comm *comm, const tutti_op *op) {
    switch (op->kind) {
    case TUTTI_KIND_ALL_GATHER:
    case TUTTI_KIND_REDUCE_SCATTER:
    case TUTTI_KIND_ALL_GATHER_V:
    case TUTTI_KIND_REDUCE_SCATTER_V: return (size_t)comm->rank;
    case TUTTI_KIND_GATHER:
    case TUTTI_KIND_SCATTER:
    case TUTTI_KIND_GATHER_V:
    case TUTTI_KIND_SCATTER_V: return comm->rank == op->root ? (size_t)comm->rank : 0;
    default: return 0;
    }
}

static void list_parts(const tutti_comm *comm, tutti_staged_job *job) {
    const tutti_op *op = &job->op;
    size_t item_bytes = tutti_type_bytes(op->type);
    int ins = !tutti_op_has_input(op, comm->rank) ? 0 : tutti_op_is_split(op) ? comm->nranks : 1;
    int outs = !tutti_op_has_output(op, comm->rank) ? 0 : tutti_op_collects(op) ? comm->nranks : 1;
    for (int i = 0; i < ins; i++)
        add(job->ins, &job->nins, tutti_op_input(comm, op, i), item_bytes, ins > 1 ? (size_t)i : own_slice(comm, op));
    for (int i = 0; i < outs; i++)
        add(job->outs, &job->nouts, tutti_op_output(comm, op, i), item_bytes,
            outs > 1 ? (size_t)i : own_slice(comm, op));
}

/* Places slices of different sizes one after the other; returns the bytes of all. */
static size_t lay_out(tutti_staged_part *parts, int count, size_t piece, size_t item_bytes, size_t at) {
    for (int i = 0; i < count; i++) {
        parts[i].at = at;
        at += tutti_align_up(tutti_min_size(parts[i].count, piece) * item_bytes, PART_ALIGNMENT);
    }
    return at;
}

/* Places both lists. A list of one part is placed in this rank's slice of the other list, if that has several. */
static size_t lay_out_both(tutti_staged_job *job, size_t item_bytes) {
    bool both = job->nins > 1 && job->nouts > 1;
    tutti_staged_part *longer = job->nins > job->nouts ? job->ins : job->outs;
    tutti_staged_part *shorter = longer == job->ins ? job->outs : job->ins;
    int nlonger = longer == job->ins ? job->nins : job->nouts, nshorter = longer == job->ins ? job->nouts : job->nins;
    size_t bytes = lay_out(longer, nlonger, job->piece, item_bytes, 0);
    if (both) return lay_out(shorter, nshorter, job->piece, item_bytes, bytes);
    if (nshorter == 1) shorter[0].at = nlonger > 1 ? longer[shorter[0].slice].at : 0;
    return bytes;
}

static size_t longest(const tutti_staged_job *job) {
    size_t most = job->equal ? job->op.count : 0;
    for (int i = 0; i < job->nins; i++) most = tutti_max_size(most, job->ins[i].count);
    for (int i = 0; i < job->nouts; i++) most = tutti_max_size(most, job->outs[i].count);
    return most;
}

static void cut(const tutti_comm *comm, tutti_staged_job *job, size_t slot_bytes) {
    size_t item_bytes = tutti_type_bytes(job->op.type), most = longest(job);
    if (job->op.kind == TUTTI_KIND_BARRIER || !counts_are_known(&job->op)) {
        job->piece = tutti_max_size(most, 1);
        job->pieces = 1;
    } else {
        size_t for_slice = slot_bytes / slices(comm, &job->op) & ~(PART_ALIGNMENT - 1);
        job->piece = tutti_max_size(for_slice / item_bytes, 1);
        job->pieces = tutti_max_size((most + job->piece - 1) / job->piece, 1);
    }
    if (!job->equal) lay_out_both(job, item_bytes);
}

tutti_status tutti_staged_job_make(tutti_comm *comm, const tutti_op *op, size_t slot_bytes,
                                   tutti_staged_job **job_out) {
    size_t n = (size_t)comm->nranks;
    char *block;
    TUTTI_TRY(
        tutti_calloc(1, sizeof(tutti_staged_job) + 2 * n * sizeof(tutti_staged_part) + 4 * n * sizeof(void *), &block));
    tutti_staged_job *job = (tutti_staged_job *)(void *)block;
    job->ins = (tutti_staged_part *)(void *)(job + 1);
    job->outs = job->ins + n;
    job->srcs = (const void **)(void *)(job->outs + n);
    job->dsts = (void **)(void *)(job->srcs + n);
    job->src_counts = (size_t *)(void *)(job->dsts + n);
    job->dst_counts = job->src_counts + n;
    job->op = *op;
    job->equal = !tutti_op_has_counts(op);
    list_parts(comm, job);
    cut(comm, job, slot_bytes);
    job->op.src = job->op.dst = NULL; /* the host must not access these, and the arrays end with the call */
    job->op.srcs = NULL;
    job->op.dsts = NULL;
    job->op.src_counts = job->op.dst_counts = NULL;
    *job_out = job;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ pieces */

size_t tutti_staged_job_bytes(const tutti_staged_job *job) {
    size_t item_bytes = tutti_type_bytes(job->op.type), most = 0;
    for (int i = 0; i < job->nins + job->nouts; i++) {
        const tutti_staged_part *part = i < job->nins ? &job->ins[i] : &job->outs[i - job->nins];
        size_t count = tutti_min_size(part->count, job->piece);
        most = tutti_max_size(most, (job->equal ? part->slice * count * item_bytes : part->at) + count * item_bytes);
    }
    return most;
}

size_t tutti_staged_part_count(const tutti_staged_job *job, const tutti_staged_part *part, size_t k) {
    size_t start = k * job->piece;
    return part->count <= start ? 0 : tutti_min_size(part->count - start, job->piece);
}

static char *slot_of(const tutti_staged_job *job, size_t k) {
    if (job->own_slots != NULL) return job->own_slots->memory;
    return job->staged->slots + (job->ticket + k) % TUTTI_STAGED_SLOTS * job->staged->slot_bytes;
}

char *tutti_staged_part_place(const tutti_staged_job *job, const tutti_staged_part *part, size_t k) {
    size_t slice_bytes = tutti_staged_part_count(job, part, k) * tutti_type_bytes(job->op.type);
    return slot_of(job, k) + (job->equal ? part->slice * slice_bytes : part->at);
}

/* Fills the lists of the piece entry by entry, if the kind has lists. */
static void fill_lists(tutti_staged_job *job, size_t k, tutti_op *piece) {
    bool lists = tutti_op_has_counts(piece);
    bool input_list = lists && tutti_op_is_split(piece), output_list = lists && tutti_op_collects(piece);
    for (int i = 0; i < job->nins && input_list; i++) {
        job->srcs[i] = tutti_staged_part_place(job, &job->ins[i], k);
        job->src_counts[i] = tutti_staged_part_count(job, &job->ins[i], k);
    }
    for (int i = 0; i < job->nouts && output_list; i++) {
        job->dsts[i] = tutti_staged_part_place(job, &job->outs[i], k);
        job->dst_counts[i] = tutti_staged_part_count(job, &job->outs[i], k);
    }
    if (input_list && job->nins > 0) {
        piece->srcs = job->srcs;
        piece->src_counts = job->src_counts;
    }
    if (output_list && job->nouts > 0) {
        piece->dsts = job->dsts;
        piece->dst_counts = job->dst_counts;
    }
    if (!input_list && job->nins > 0) {
        piece->src = tutti_staged_part_place(job, &job->ins[0], k);
        piece->count = tutti_staged_part_count(job, &job->ins[0], k);
    }
    if (!output_list && job->nouts > 0) {
        piece->dst = tutti_staged_part_place(job, &job->outs[0], k);
        piece->count = tutti_staged_part_count(job, &job->outs[0], k);
    }
}

tutti_op tutti_staged_piece(tutti_comm *comm, tutti_staged_job *job, size_t k) {
    const tutti_op *op = &job->op;
    tutti_op piece = *op;
    piece.part_of = op;
    piece.signature = tutti_hash_add(op->signature, k) >> 1;
    if (!job->equal) {
        piece.count = 0;
        fill_lists(job, k, &piece);
        return piece;
    }
    size_t start = k * job->piece;
    piece.count = op->count <= start ? 0 : tutti_min_size(op->count - start, job->piece);
    if (piece.count == 0) return piece;
    if (job->nins > 0) piece.src = tutti_staged_part_place(job, &job->ins[0], k);
    if (job->nouts > 0) piece.dst = tutti_staged_part_place(job, &job->outs[0], k);
    if (op->kind == TUTTI_KIND_BROADCAST) {
        if (comm->rank == op->root) piece.dst = (void *)(uintptr_t)piece.src;
        else piece.src = piece.dst;
    }
    return piece;
}
