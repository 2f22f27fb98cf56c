/*
 * Several GPUs, several ranks on some of them: what the files mixed*.c share. A call goes in steps, all in the caller's stream:
 *
 *      GPU a: ranks 0 2 3        GPU b: ranks 1 4
 *       0 <- 2, 3                 1 <- 4              within GPUs: the engine for ranks on one GPU
 *       0 <-------------------->  1                   between leaders, the lowest rank of each GPU: NCCL
 *       0 -> 2, 3                 1 -> 4              within GPUs
 *
 * Parts (comm/stream_part.h) carry out the steps. Sums are in the order of ranks within a GPU, then in NCCL's between GPUs, or
 * in that of leaders where TUTTI_DETERMINISTIC=1; types of 16 bits and less are rounded once more for each GPU.
 *
 * Where a rank's data is in blocks that lie apart (all_gather, reduce_scatter), each rank packs them into a scratch of its
 * own, GPU by GPU, in rounds that fit: so a GPU's blocks are one, and the others on the GPU map it.
 */
#ifndef TUTTI_MIXED_H
#define TUTTI_MIXED_H

#include "comm/op.h"
#include "comm/stream.h"

typedef struct tutti_mixed {
    tutti_comm *local;   /* part: this GPU's ranks; the leader is its rank 0 */
    tutti_comm *leaders; /* part: of each GPU the lowest rank; NULL on others */
    int ngpus, gpu;      /* GPUs are numbered by their lowest rank; gpu: this rank's */
    int *gpu_of;         /* by rank */
    int *local_of;       /* by rank: its rank in its GPU's part */
    int *order;          /* all ranks, GPU by GPU */
    int *first;          /* by GPU: where its ranks begin in order; first[ngpus] is the number of ranks */
    int *leader_of;      /* by GPU */
    char *scratch;       /* of the GPU; peers on it can map it */
    size_t scratch_bytes;
    tutti_event_handle tail; /* behind the last call, in last_stream */
    tutti_stream last_stream;
    bool has_tail;
    /* For one call: by rank, or by GPU. */
    const void **srcs;
    void **dsts;
    size_t *src_counts, *dst_counts;
    size_t *places; /* by place in order, and one more: bytes from the scratch's start, of this round */
} tutti_mixed;

static inline bool tutti_mixed_leads(const tutti_mixed *m) {
    return m->leaders != NULL;
}

/* mixed_call.c: kinds whose data lies in one piece; mixed_blocks.c: those with a block for each rank. */
tutti_status tutti_mixed_carry_out(tutti_comm *comm, const tutti_stream_call *call);
tutti_status tutti_mixed_all_gather(tutti_comm *comm, const tutti_stream_call *call);
tutti_status tutti_mixed_reduce_scatter(tutti_comm *comm, const tutti_stream_call *call);

/* A step within this GPU; and between leaders, nothing on other ranks. */
tutti_status tutti_mixed_within(tutti_mixed *m, const tutti_stream_call *call, tutti_op op);
tutti_status tutti_mixed_between(tutti_mixed *m, const tutti_stream_call *call, tutti_op op);
/* The reductions of these steps; an average is a sum, divided by tutti_mixed_divide on the leader, in place. */
tutti_reduction tutti_mixed_reduction_within(const tutti_op *op);
tutti_reduction tutti_mixed_reduction_between(const tutti_op *op);
tutti_status tutti_mixed_divide(const tutti_comm *comm, const tutti_stream_call *call, void *data, size_t count);

#endif
