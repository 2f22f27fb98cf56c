/*
 * Internals of the DDP engine: parameters, the buckets that their gradients are views into, and the current step.
 *
 * ddp.c holds the public calls; ddp_layout.c cuts gradients into buckets; ddp_step.c reduces buckets; ddp_zero.c
 * gathers parameters; ddp_memory.c handles the memory of buckets; ddp_agree.c checks that all ranks agree.
 * Everything that decides which collective comes next (layout, order of buckets, mode) is computed from values that
 * are equal on all ranks; values that differ per rank (the order of ready calls) only decide when.
 */
#ifndef TUTTI_DDP_STATE_H
#define TUTTI_DDP_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/ddp.h>

typedef struct ddp_parameter {
    char *name;
    void *data; /* owned by the caller */
    size_t count;
    tutti_type type;
    size_t bucket;       /* index of the bucket that holds the gradient */
    size_t offset;       /* in bytes, in that bucket's memory */
    tutti_ddp_part part; /* the part that this rank updates */
    bool ready;          /* in the current step */
} ddp_parameter;

typedef struct ddp_bucket {
    tutti_type type;
    size_t bytes;         /* views and the gaps that align them; the gaps stay zero */
    size_t nparameters;   /* views in the bucket */
    size_t nready;        /* of these, ready in the current step */
    size_t last_position; /* position of its last view in the order: buckets are sorted by it */
    void *memory;         /* from tutti_mem_alloc, or tutti_mem_alloc_cuda */
    tutti_work *work;     /* while it is reduced; on a GPU: NULL */
} ddp_bucket;

struct tutti_ddp {
    pthread_mutex_t lock; /* guards all members below */
    tutti_comm *comm;
    tutti_ddp_options options; /* with the defaults filled in */
    tutti_reduction reduction;
    void *stream; /* stream of the buckets, on a GPU */
    ddp_parameter *parameters;
    size_t nparameters;
    ddp_bucket *buckets; /* in the order of launching */
    size_t nbuckets;

    /* The current step. */
    uint64_t *ready_order; /* parameters in the order in which they became ready; nready of them */
    size_t nready;
    size_t nlaunched; /* buckets, from the first; grows only if buckets are reduced during backward */
    int64_t first_ready_ns;
    bool sync;

    tutti_ddp_statistics statistics;
};

/* ------------------------------------------------------------------------------------------- ddp_layout.c */

/* A layout that is not in use yet. */
typedef struct ddp_layout {
    ddp_bucket *buckets;
    size_t nbuckets;
    struct place {
        size_t bucket, offset;
    } *places; /* by parameter */
} ddp_layout;

/* Cuts the gradients, taken in the order `order` (a permutation of the parameters), into buckets: one type per
 * bucket, and no bucket larger than its cap unless a single gradient is. The gradients' contents are copied, and are
 * zero where there is no layout before. Replace the old layout by it with tutti_ddp_layout_use, or drop it. */
tutti_status tutti_ddp_layout_make(const tutti_ddp *ddp, const uint64_t *order, ddp_layout *made_out);
void tutti_ddp_layout_use(tutti_ddp *ddp, ddp_layout *made);
void tutti_ddp_layout_drop(ddp_layout *made);
/* The result of tutti_ddp_divide for a layout in the order `order`. */
tutti_status tutti_ddp_layout_divide(const tutti_ddp *ddp, const uint64_t *order, int rank, int nranks,
                                     tutti_ddp_part *parts_out);
/* With options.zero: bytes of each rank's part of a bucket of `bytes` bytes; parts extend into the padding behind
 * it. */
size_t tutti_ddp_layout_part_bytes(size_t bytes, int nranks);
/* Frees the buckets, which must not be under way. */
void tutti_ddp_layout_release(ddp_bucket *buckets, size_t nbuckets);
void *tutti_ddp_layout_view(const tutti_ddp *ddp, const ddp_parameter *parameter);

/* ------------------------------------------------------------------------------------------- ddp_memory.c */

static inline bool tutti_ddp_on_gpu(const tutti_ddp *ddp) {
    return ddp->options.memory == TUTTI_MEMORY_CUDA;
}

tutti_status tutti_ddp_memory_open(tutti_ddp *ddp);
/* Does nothing when the memory was not opened. */
void tutti_ddp_memory_close(tutti_ddp *ddp);
/* Allocates memory filled with zeros. Free it with tutti_mem_free. */
tutti_status tutti_ddp_memory_alloc(const tutti_ddp *ddp, size_t bytes, void **memory_out);
tutti_status tutti_ddp_memory_zero(const tutti_ddp *ddp, void *memory, size_t bytes);
tutti_status tutti_ddp_memory_copy(const tutti_ddp *ddp, void *dst, const void *src, size_t bytes);
/* fork: later work in the buckets' stream waits for the caller's stream; join: the reverse. No-ops on the host. */
tutti_status tutti_ddp_memory_fork(const tutti_ddp *ddp);
tutti_status tutti_ddp_memory_join(const tutti_ddp *ddp);

/* --------------------------------------------------------------------------------------------- ddp_zero.c */

/* Finds this rank's part of each parameter. */
tutti_status tutti_ddp_zero_prepare(tutti_ddp *ddp);
/* Reduces a bucket to its parts; work as in tutti_options, NULL on a GPU. */
tutti_status tutti_ddp_zero_reduce(tutti_ddp *ddp, ddp_bucket *bucket, const tutti_options *options);
/* Gathers the updated parts on all ranks. */
tutti_status tutti_ddp_zero_share(tutti_ddp *ddp);

/* -------------------------------------------------------------------------------------------- ddp_agree.c */

/* Collective. Checks that no rank has failed so far; needs no memory. A rank that has passes its status as `local` and
 * gets it back with its text; the others get TUTTI_ERR_MISMATCH, which names the rank. `call`: for the text. */
tutti_status tutti_ddp_agree_on_success(tutti_comm *comm, const char *call, tutti_status local);
/* Collective. Checks that all ranks have the same parameters and options, and that no preparation failed: `local`. */
tutti_status tutti_ddp_agree_on_model(tutti_ddp *ddp, tutti_status local);
/* Collective. Broadcasts the parameters' data from rank 0. */
tutti_status tutti_ddp_agree_on_data(tutti_ddp *ddp);
/* Collective. Replaces the ready order of all ranks by that of rank 0. TUTTI_ERR_MEMORY is this rank's alone. */
tutti_status tutti_ddp_agree_on_order(tutti_ddp *ddp);

/* --------------------------------------------------------------------------------------------- ddp_step.c */

/* Launches the buckets that are complete, up to the first that is not. */
tutti_status tutti_ddp_step_launch(tutti_ddp *ddp);
/* Reduces, or waits for, all buckets, all of which are complete; adds to the statistics' communication time. */
tutti_status tutti_ddp_step_complete(tutti_ddp *ddp);
/* Waits for the buckets under way and drops their works. */
void tutti_ddp_step_cancel(tutti_ddp *ddp);
/* Clears all ready marks for the next step. */
void tutti_ddp_step_reset(tutti_ddp *ddp);
int64_t tutti_ddp_step_now_ns(void);

#endif
