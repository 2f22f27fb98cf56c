/*
 * Data-parallel training: gradients are reduced in buckets while backward still runs.
 *
 *   tutti_ddp_create(comm, parameters, count, NULL, &ddp)     broadcasts the parameters from rank 0
 *   each step:
 *     for each parameter, last layer first:
 *       write its gradient to tutti_ddp_gradient(ddp, i), then tutti_ddp_ready(ddp, i)
 *     tutti_ddp_finish(ddp)                                     all gradients are now averaged over ranks
 *     optimizer step
 *
 * With options.zero (ZeRO-1: Rajbhandari et al., SC 2020) each rank gets only the reduced gradients of one part of each
 * bucket, keeps the optimizer's state of that part, updates that part, and calls tutti_ddp_share. tutti_ddp_divide
 * gives the parts.
 *
 * On a GPU (options.memory = TUTTI_MEMORY_CUDA) every call returns when its work is enqueued: gradients are written,
 * and used after tutti_ddp_finish, in options.stream; in between, buckets are reduced in a stream of the engine's own.
 *
 * Errors. TUTTI_ERR_ARGUMENT changes nothing. Others are those of collectives, and break the communicator as there:
 * the gradients may then hold anything, and only tutti_ddp_destroy makes sense. TUTTI_ERR_MEMORY, TUTTI_ERR_SYSTEM and
 * TUTTI_ERR_UNSUPPORTED (no GPU) may come from this rank alone and leave it whole. Unless the call says otherwise, the
 * engine cannot be used with the other ranks then, either. Any thread may call an engine; its calls run one at a time.
 *
 * Method: buckets as in PyTorch's DistributedDataParallel (Li et al., VLDB 2020): reverse order of
 * registration, rebuilt once in the order in which gradients became ready on rank 0.
 */
#ifndef TUTTI_DDP_H
#define TUTTI_DDP_H

#include <tutti/tutti.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tutti_ddp tutti_ddp;

typedef struct tutti_ddp_parameter {
    const char *name; /* for errors; copied */
    void *data;       /* count elements, owned by the caller, broadcast from rank 0 by create */
    size_t count;
    tutti_type type;
} tutti_ddp_parameter;

typedef struct tutti_ddp_options {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_ddp_options); /* of this struct */
    size_t bucket_bytes TUTTI_ZERO;                       /* cap of a bucket; 0: 25 MiB */
    /* Cap of the bucket that becomes ready first; 0: 1 MiB, at most bucket_bytes */
    size_t first_bucket_bytes TUTTI_ZERO;
    int sums TUTTI_ZERO;            /* 1: gradients are summed over ranks; 0: averaged */
    tutti_memory memory TUTTI_ZERO; /* where parameters and gradients are: TUTTI_MEMORY_CUDA; else host memory */
    void *stream TUTTI_ZERO;        /* CUDA: cudaStream_t in which gradients are written and used; NULL: the default */
    int no_broadcast TUTTI_ZERO;    /* 1: create leaves each rank's parameters as they are */
    /* 1: each part of a bucket is reduced to the rank that updates it (reduce_scatter). Buckets stay as create lays
     * them out, because the parts depend on that. */
    int zero TUTTI_ZERO;
} tutti_ddp_options;

#define TUTTI_DDP_OPTIONS(...) TUTTI_INITIALIZED(tutti_ddp_options, __VA_ARGS__)

/* Creates the engine and, without options.no_broadcast, broadcasts the parameters from rank 0. Collective over
 * `comm`. Number, order, counts and types of the parameters, and options, must agree on every rank; otherwise
 * TUTTI_ERR_MISMATCH names the parameter and both shapes. options NULL: defaults, average. `parameters` is copied;
 * their data and `comm` must outlive the engine. Destroy it with tutti_ddp_destroy. Where one rank fails by itself, as
 * with TUTTI_ERR_ARGUMENT (except NULL for comm or ddp_out), the others get TUTTI_ERR_MISMATCH, which names that rank.
 * After these errors the communicator is whole, and there is no engine. */
TUTTI_API tutti_status tutti_ddp_create(tutti_comm *comm, const tutti_ddp_parameter *parameters, size_t nparameters,
                                        const tutti_ddp_options *options, tutti_ddp **ddp_out);

/* Elements [first, first + count) of a parameter. */
typedef struct tutti_ddp_part {
    size_t first, count;
} tutti_ddp_part;

/* Gives the part of each parameter that rank `rank` of `nranks` updates, in an engine with these parameters and
 * options, where options->zero is set; else all of it. parts_out: `nparameters` parts. The parts of all ranks
 * together are the parameter; a part begins at a multiple of 64 bytes and may be empty, and the parts of one bucket
 * are equal except those of the last ranks. Local. TUTTI_ERR_ARGUMENT, TUTTI_ERR_MEMORY. */
TUTTI_API tutti_status tutti_ddp_divide(const tutti_ddp_parameter *parameters, size_t nparameters,
                                        const tutti_ddp_options *options, int rank, int nranks,
                                        tutti_ddp_part *parts_out);

/* Returns where parameter `index` keeps its gradient: a view into a bucket, `count` elements of its type, owned by
 * the engine. Zero at the start. Call it again in every step: the first tutti_ddp_finish may lay the buckets out
 * anew. NULL: `index` is out of range. */
TUTTI_API void *tutti_ddp_gradient(tutti_ddp *ddp, size_t index);

/* Marks the gradient of `index` as complete. A bucket whose gradients are all ready is launched, in bucket order. A
 * second call in one step is TUTTI_ERR_ARGUMENT, which names the parameter. After an error of a launch the parameter
 * is ready all the same; tutti_ddp_finish tries again. */
TUTTI_API tutti_status tutti_ddp_ready(tutti_ddp *ddp, size_t index);

/* Ends the step: waits until every bucket is reduced. A parameter that was not ready is TUTTI_ERR_ARGUMENT, which names
 * it: the step goes on, and the call may be repeated once all are ready. After any other error the step is over.
 * The first call lays the buckets out anew. If a rank has no memory for that, it gets TUTTI_ERR_MEMORY, and the other
 * ranks get TUTTI_ERR_MISMATCH, which names it: gradients are reduced, the buckets stay as they are, and the next call
 * tries again.
 * While sync is off it only ends the step: gradients stay local. With options.zero only this rank's part of a
 * gradient is reduced; the rest of the view must not be used. */
TUTTI_API tutti_status tutti_ddp_finish(tutti_ddp *ddp);

/* With options.zero, after the update of this rank's parts: gives all parts of the parameters to all ranks
 * (all_gather). Collective; call it between steps. It uses the buckets, so gradients are overwritten. Without
 * options.zero it does nothing. Within a step it is TUTTI_ERR_ARGUMENT. */
TUTTI_API tutti_status tutti_ddp_share(tutti_ddp *ddp);

/* sync 0: the next steps accumulate locally (the caller adds to the views and does not zero them); sync 1 (the
 * default): the next step's buckets are reduced, with all that was accumulated. Within a step it is
 * TUTTI_ERR_ARGUMENT. */
TUTTI_API tutti_status tutti_ddp_set_sync(tutti_ddp *ddp, int sync);

/* Sets all gradients to zero. TUTTI_ERR_ARGUMENT while buckets are being reduced. Local. */
TUTTI_API tutti_status tutti_ddp_zero(tutti_ddp *ddp);

typedef struct tutti_ddp_statistics {
    uint64_t steps;           /* finished and synchronised */
    size_t buckets;           /* now */
    size_t bytes;             /* of all gradients */
    int rebuilt;              /* 1: buckets have been laid out in ready order */
    int overlapped;           /* 1: buckets are reduced during backward (there is a core for it) */
    int64_t compute_ns;       /* sum over steps: first ready (or start of step) to finish called */
    int64_t communication_ns; /* sum over steps and buckets: a bucket's reduction, start to end; on a GPU: 0 */
    int64_t exposed_ns;       /* sum over steps: time spent inside finish */
} tutti_ddp_statistics;
/* Overlap = 1 - exposed_ns / communication_ns where communication_ns > 0. */
TUTTI_API tutti_status tutti_ddp_get_statistics(const tutti_ddp *ddp, tutti_ddp_statistics *statistics_out);

/* Frees the engine. Local. NULL is allowed. The call waits for works under way. */
TUTTI_API void tutti_ddp_destroy(tutti_ddp *ddp);

#ifdef __cplusplus
}
#endif

#endif
