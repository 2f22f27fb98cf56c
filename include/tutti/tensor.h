/*
 * Global tensors: one tensor whose parts lie on many ranks, and conversions from any layout to any other.
 *
 *   - A *placement* is a list of distinct ranks of a communicator, seen as an array of 1 to 8 axes, row-major;
 *     PyTorch calls it a DeviceMesh. The placement of the ranks 0, 3, 1, 2 with axes 2 x 2 is not that of 0, 1, 2, 3.
 *   - An *sbp* says how one axis of the placement divides the tensor: broadcast (each rank has all of it),
 *     split(dimension) or partial(reduction): the value is the reduction of what the ranks along the axis have. Axes
 *     apply from the first to the last: where two axes split one dimension, the second cuts the parts of the first.
 *   - A *layout* is a placement, an sbp for each of its axes, a shape and a type. Each rank's *shard* is a box of the
 *     tensor, stored dense and row-major. A balanced split cuts n into k parts of which the first n % k are one
 *     longer; a chunked split, as in PyTorch, into parts of ceil(n / k); explicit cuts give the offsets. Parts may
 *     be empty.
 *
 * The value of a tensor with partial axes: neighbouring partial axes (with the axes between them left out) of one
 * reduction are one reduction over their ranks in row-major order; such runs of axes are reduced from the last to the
 * first. Therefore the value does not depend, down to the bit, on the route by which it is computed. Where such ranks
 * lie on several hosts, sums and products of floats are in rank order within each host, then in pairs of hosts, as in
 * tutti_all_reduce (docs/hosts.md): copies computed by ranks that lie on the hosts in other ways may then differ by a
 * rounding. A target with partial axes holds the value on coordinate 0 of its sum, prod and bxor axes and the
 * identity elsewhere (for sums of floats -0.0, which changes no number); along min, max, avg, band and bor all ranks
 * hold the value.
 *
 * All ranks of the placements that a collective call names make that call, in the same order and with equal
 * arguments; a difference is an error on all of them. Arguments are checked before anything is sent, from what is
 * equal on all ranks.
 *
 * CUDA memory: each rank's shards are on the GPU that was the calling thread's current one when the placement was
 * created (tutti_device_use); several ranks may share one GPU. All such placements on a communicator have one GPU on
 * a rank.
 *   - Redistribution between tensors in CUDA memory is a call like those of <tutti/device.h>: it enqueues all of it
 *     in options.stream and returns; what precedes it in the stream is done before, what follows sees its result. It
 *     waits for peers only where it makes a plan, or uses a communicator with CUDA memory for the first time. Runs
 *     of one plan may be in several streams, which then wait for each other. The next call between the same ranks
 *     reports a failure that happens after the call has returned.
 *   - Reductions are those of tutti_all_reduce on CUDA memory. Where all ranks share one GPU, or go by way of host
 *     memory, all values are equal to those in host memory, bit for bit, by every route. With a GPU for each rank,
 *     sums, products and averages of floats are NCCL's, in its order, or, with TUTTI_DETERMINISTIC=1, in rank order,
 *     as in host memory where the ranks are on one host. Where some ranks share GPUs the values may differ from
 *     those in host memory by roundings, and by the route; with TUTTI_DETERMINISTIC=1 not from run to run. All other
 *     results are exact.
 *   - From CUDA to host memory and back whole shards go by way of host memory: such a call waits for its stream, and
 *     for its own end.
 *   - Graphs may capture runs, after a first run, as far as collectives can be captured (docs/cuda.md); messages
 *     cannot. Graphs use memory of the plan: destroy them before the plan, and the graphs of
 *     tutti_tensor_redistribute before the last placement on the communicator.
 *   - Destroying tensors with their own memory, plans, and the last placement on a communicator waits for the GPU, as
 *     cudaFree does: do not do it while a graph is captured, nor, where ranks are threads, while streams of other
 *     ranks wait for this rank.
 *
 * Communicators: tensors use communicators of their own. They are created from the caller's at the first use of each
 * list of ranks, and kept as long as there is a placement on the caller's. Where a rank dies, or does not arrive by
 * the deadline, the communicator in use breaks: all tensors whose plans use it get an error at once from then on,
 * and the caller's communicator stays whole. To go on, destroy all tensors, plans and placements on it, on all
 * remaining ranks, and create new ones. The caller's communicator breaks, too, only where the rank was lost while
 * such a communicator was created, and where ranks do not name the same ranks by the deadline of connections
 * (TUTTI_CONNECT_TIMEOUT_MS).
 *
 * Errors of all calls below; those that are local return none of collectives.
 *   TUTTI_ERR_ARGUMENT     wrong arguments; or ranks gave different ones, which is the same error on all of them. All
 *                          communicators stay whole, and tensors as they were
 *   TUTTI_ERR_MEMORY, TUTTI_ERR_SYSTEM   on this rank, of the host or its GPU. In a collective call the other ranks
 *                          wait for this one until their deadline
 *   TUTTI_ERR_UNSUPPORTED  no GPU; what a call names; all ranks get the latter, before anything is sent
 *   TUTTI_ERR_CONFIG       TUTTI_PLAN has an unknown word
 *   TUTTI_ERR_FORKED       in a forked child
 *   errors of collectives  as in <tutti/tutti.h>: the communicator in use breaks (see above), and targets may hold
 *                          anything. Where that communicator is created, also the errors of tutti_comm_create_group
 */
#ifndef TUTTI_TENSOR_H
#define TUTTI_TENSOR_H

#include <stdbool.h>

#include <tutti/tutti.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_MOST_AXES 8
#define TUTTI_MOST_DIMS 8

/* ------------------------------------------------------------------------------------------ placements */

typedef struct tutti_placement tutti_placement;

/* Creates a placement of the ranks of `comm` in `ranks` (NULL: all of them, in order), row-major over axes[0] x ...
 * x axes[naxes - 1], whose product must be their number. `memory`: where shards lie (TUTTI_MEMORY_ASK means host
 * memory). TUTTI_ERR_UNSUPPORTED, with the reason, where it is CUDA memory, this rank is in the placement, and
 * there is no GPU. Local: sends nothing, and creates no communicator yet. Reference-counted: a tensor keeps its
 * placement; `comm` must outlive the placement and all tensors on it. */
TUTTI_API tutti_status tutti_placement_create(tutti_comm *comm, tutti_memory memory, const int *ranks, const int *axes,
                                              int naxes, tutti_placement **placement_out);
TUTTI_API void tutti_placement_destroy(tutti_placement *placement); /* NULL is allowed */
/* The number of axes, and the size of one axis; axis -1: all axes together, that is the number of ranks. */
TUTTI_API int tutti_placement_axes(const tutti_placement *placement);
TUTTI_API int tutti_placement_size(const tutti_placement *placement, int axis);
/* Position of this rank on the axis (-1: in the whole list); -1: this rank is not in the placement. */
TUTTI_API int tutti_placement_coordinate(const tutti_placement *placement, int axis);
/* True when both have the same ranks of one communicator in the same order, with the same axes and memory. */
TUTTI_API bool tutti_placement_is_equal(const tutti_placement *a, const tutti_placement *b);
TUTTI_API tutti_memory tutti_placement_memory(const tutti_placement *placement);
/* The GPU of this rank's shards; -1: the shards are in host memory, or this rank is not in the placement. */
TUTTI_API int tutti_placement_gpu(const tutti_placement *placement);
/* Returns the communicator of the ranks that differ from this one only on the axes of the mask (bit i: axis i), in
 * their order. It is created at the first use, which is collective over its ranks, and owned by the placement: do not
 * destroy it. This rank must be in the placement (else TUTTI_ERR_ARGUMENT). */
TUTTI_API tutti_status tutti_placement_comm(tutti_placement *placement, unsigned axes, tutti_comm **comm_out);
/* Measures what it costs to move tensors with shards of up to `bytes` between the placement's ranks, in the
 * placement's memory, for tutti_layout_predict. Collective over the placement's ranks, with equal arguments. In
 * host memory plans measure when they are created; in CUDA memory plans measure nothing, and this call is the only
 * way. Takes some milliseconds and up to 128 MiB of memory, which it frees; on GPUs no calls may be under way,
 * because freeing memory waits for the GPU. */
TUTTI_API tutti_status tutti_placement_measure(tutti_placement *placement, size_t bytes);
/* As tutti_comm_abort, for all communicators that placements on this one's communicator have created: waits inside
 * tensors' calls end with TUTTI_ERR_ABORTED, here and on the peers of these waits. Call it after tutti_comm_abort
 * of the communicator that the placements are on: it waits for a communicator that is being created. From any thread.
 * TUTTI_ERR_FORKED: in a forked child. */
TUTTI_API tutti_status tutti_placement_abort(tutti_placement *placement, const char *reason);

/* ------------------------------------------------------------------------------------------------- sbp */

typedef enum tutti_sbp_kind { TUTTI_SBP_BROADCAST = 0, TUTTI_SBP_SPLIT, TUTTI_SBP_PARTIAL } tutti_sbp_kind;

typedef struct tutti_sbp {
    tutti_sbp_kind kind;
    int dim;                   /* dimension of a split */
    tutti_reduction reduction; /* reduction of a partial: any but TUTTI_PREMUL_SUM */
} tutti_sbp;

/* All zeros are a broadcast. &TUTTI_SPLIT(0) points to an object that lasts until the end of the enclosing block.
 * In C++: tutti_sbp{TUTTI_SBP_SPLIT, 0, TUTTI_SUM}. */
#define TUTTI_BROADCAST           ((tutti_sbp){.kind = TUTTI_SBP_BROADCAST})
#define TUTTI_SPLIT(dim_)         ((tutti_sbp){.kind = TUTTI_SBP_SPLIT, .dim = (dim_)})
#define TUTTI_PARTIAL(reduction_) ((tutti_sbp){.kind = TUTTI_SBP_PARTIAL, .reduction = (reduction_)})

/* Reads "S0,B,P(sum)"; also OneFlow's "split(0)", "broadcast", "partial_sum" and DTensor's "Shard(0)",
 * "Replicate()", "Partial()". One entry per axis, separated by commas; at most `capacity` entries.
 * TUTTI_ERR_ARGUMENT for any other text. */
TUTTI_API tutti_status tutti_sbp_parse(const char *text, tutti_sbp *sbp_out, int capacity, int *naxes_out);
/* Writes "S0,B,P(sum)" to `text`, cut where it does not fit into `bytes`. */
TUTTI_API void tutti_sbp_format(const tutti_sbp *sbp, int naxes, char *text, size_t bytes);
/* Gives the sbp of a gradient: a split stays, broadcast and partial(sum) change places. Other partials have no
 * adjoint: TUTTI_ERR_ARGUMENT. */
TUTTI_API tutti_status tutti_sbp_adjoint(tutti_sbp sbp, tutti_sbp *adjoint_out);

/* --------------------------------------------------------------------------------------------- layouts */

typedef enum tutti_split_rule { TUTTI_SPLIT_BALANCED = 0, TUTTI_SPLIT_CHUNK } tutti_split_rule;

/* Where part number `part` of `nparts` of an extent begins by the rule; for part nparts, the extent. */
TUTTI_API int64_t tutti_split_begin(int64_t extent, int part, int nparts, tutti_split_rule rule);

typedef struct tutti_layout {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_layout); /* of this struct */
    tutti_placement *placement TUTTI_ZERO;
    const tutti_sbp *sbp TUTTI_ZERO; /* one for each axis of the placement; NULL: broadcast on all axes */
    tutti_type type TUTTI_ZERO;
    int ndims TUTTI_ZERO;
    const int64_t *shape TUTTI_ZERO; /* of the whole tensor, ndims extents of at least 0 */
    tutti_split_rule rule TUTTI_ZERO;
    /* For each dimension the offsets of its parts and its end, (product of the sizes of the axes that split it) + 1
     * offsets, or NULL: by the rule. NULL: all dimensions by the rule. */
    const int64_t *const *cuts TUTTI_ZERO;
    const char *name TUTTI_ZERO; /* shown in errors; NULL: "tensor" */
} tutti_layout;

#define TUTTI_LAYOUT(...) TUTTI_INITIALIZED(tutti_layout, __VA_ARGS__)

/* Gives the box of the placement's index-th rank: from first_out[d] up to, excluding, end_out[d], in each
 * dimension; both have ndims entries. Local. */
TUTTI_API tutti_status tutti_layout_box(const tutti_layout *layout, int index, int64_t *first_out, int64_t *end_out);

/* Predicts the time, in microseconds, that it takes to convert a tensor of layout src to layout dst, as
 * tutti_plan_get predicts it for the plan, without creating a plan and without sending anything. 0 where the
 * layouts are equal. The result is equal on all ranks of the communicator that the placements belong to. Where the
 * placements have all its ranks it follows from costs that the ranks measured together, when they created their
 * first plan and, for tensors larger than before, when they created a plan for these; elsewhere, and before that,
 * from the costs of an ordinary machine. In CUDA memory it is TUTTI_ERR_UNSUPPORTED, unless both placements are in
 * CUDA memory and have all ranks of the communicator, and these ranks have called tutti_placement_measure. */
TUTTI_API tutti_status tutti_layout_predict(const tutti_layout *src, const tutti_layout *dst, double *microseconds_out);

/* --------------------------------------------------------------------------------------------- tensors */

/* A layout, and this rank's shard. A layout that is given is copied. */
typedef struct tutti_tensor tutti_tensor;

/* Creates a tensor. Local. The shard is memory of tutti_mem_alloc, or on its GPU of tutti_mem_alloc_cuda; it is not
 * initialized. A rank outside the placement gets a tensor without a shard. Destroy it with tutti_tensor_destroy. */
TUTTI_API tutti_status tutti_tensor_create(const tutti_layout *layout, tutti_tensor **tensor_out);
/* Creates a tensor whose shard is the caller's memory, of the placement's kind and GPU: the memory is not copied,
 * holds the box's elements dense and row-major, and must stay valid until tutti_tensor_destroy. Local. `local` is
 * NULL where the shard is empty or this rank is outside the placement. TUTTI_ERR_ARGUMENT also for memory of another
 * kind or GPU. */
TUTTI_API tutti_status tutti_tensor_wrap(const tutti_layout *layout, void *local, tutti_tensor **tensor_out);
/* Creates a tensor from the ranks' own shards, however uneven: OneFlow's local.to_global(). Collective over the
 * placement. `like` gives placement, sbp, type, number of dimensions and name; its shape, rule and cuts are not
 * read, as they follow from the ranks' local shapes: the extents of a dimension's parts are added up; ranks that
 * hold the same part must have the same extent. Ranks that hold the same box, along broadcast axes, must hold the
 * same bytes, which is checked by a hash (of CUDA memory, after its GPU has finished all that is in its streams).
 * `local` is wrapped as in tutti_tensor_wrap. A difference, or what is wrong with one rank's `local` or local_shape,
 * is TUTTI_ERR_ARGUMENT on all ranks; CUDA memory of a rank that cannot be read is TUTTI_ERR_SYSTEM on all. */
TUTTI_API tutti_status tutti_tensor_from_local(const tutti_layout *like, const int64_t *local_shape, void *local,
                                               tutti_tensor **tensor_out);
TUTTI_API void tutti_tensor_destroy(tutti_tensor *tensor); /* NULL is allowed */
/* As tutti_tensor_create and tutti_tensor_destroy, for tensors that are created and destroyed in the order of a
 * stream (in host memory the stream is not used). create reuses memory that destroy has left, for work that is
 * enqueued in the stream from now on. destroy does not wait for the GPU, unlike tutti_tensor_destroy: the memory is
 * reused after what is in the stream now, which must include all work that uses the tensor. In a stream that is
 * captured into a graph, the memory belongs to the graph until the last placement on the communicator is gone. */
TUTTI_API tutti_status tutti_tensor_create_in_stream(const tutti_layout *layout, void *stream,
                                                     tutti_tensor **tensor_out);
TUTTI_API void tutti_tensor_destroy_in_stream(tutti_tensor *tensor, void *stream); /* NULL is allowed */

typedef struct tutti_local {
    void *data; /* NULL: no shard, or an empty one */
    int ndims;
    int64_t shape[TUTTI_MOST_DIMS], first[TUTTI_MOST_DIMS]; /* of the box, and its start in the tensor */
    size_t count;                                           /* elements */
} tutti_local;

/* Gives this rank's shard without a copy; valid as long as the tensor. */
TUTTI_API tutti_status tutti_tensor_local(const tutti_tensor *tensor, tutti_local *local_out);
/* The tensor's layout; valid as long as the tensor. It has cuts for each split dimension. */
TUTTI_API const tutti_layout *tutti_tensor_layout(const tutti_tensor *tensor);

/* Copies src's elements to dst (where the shapes differ, by their row-major numbers: the counts must be equal); src
 * is not changed. Collective over the ranks of both placements, which belong to one communicator. The two must not
 * share memory. Of the options, stream (for CUDA memory), timeout_ms and work are used.
 *
 * options.work: accepted in host memory for plans in which no rank has more than one step that exchanges data with
 * other ranks (tutti_plan_get), including what is packed, unpacked and copied around that step. The call returns, and
 * all of it is done when the work ends; errors in it are reported by the work; wrong arguments, and errors of making
 * the plan, by the call, which then stores no work. It runs on a thread of the step's communicator, except a reduction
 * or an all_gather of shards in place, which is an asynchronous collective. Several works may be under way, also of one
 * plan; between the same ranks they run one at a time, in the order of their calls, and may be waited for in any order.
 * Until a work has ended its tensors must stay, its sources must not be written, and its targets must not be touched. A
 * rank that only makes copies makes them in the call, and gets a work that has ended.
 *
 * Other calls may be made in between, as long as all ranks make them in the same order: a call without a work first
 * waits for the works on the communicators that it uses. A call that makes a plan, as the first redistribution
 * between two layouts does, waits for works between its ranks, and for the other ranks. Plans of several steps, and
 * tensors in CUDA memory, are TUTTI_ERR_UNSUPPORTED on all ranks, before anything is sent. */
TUTTI_API tutti_status tutti_tensor_redistribute(const tutti_tensor *src, tutti_tensor *dst,
                                                 const tutti_options *options);

/* OneFlow's to_global(placement, sbp): creates a tensor of src's shape, type and rule in another placement (NULL:
 * src's) with another sbp (NULL: broadcast on all axes), filled from src. Collective over the ranks of both
 * placements. The tensor always has its own memory; the caller destroys it, with options.work only when the work has
 * ended. After an error there is none. */
TUTTI_API tutti_status tutti_tensor_to_global(const tutti_tensor *src, tutti_placement *placement, const tutti_sbp *sbp,
                                              const tutti_options *options, tutti_tensor **dst_out);

/* ----------------------------------------------------------------------------------------------- plans */

/* How tensors of certain layouts are converted to others: computed once, run any number of times. */
typedef struct tutti_plan tutti_plan;

/* Creates a plan for `npairs` tensors at once, in one round: srcs[i] is converted to dsts[i]. All placements belong
 * to one communicator. Collective over the ranks of all of them. The layouts are copied. */
TUTTI_API tutti_status tutti_plan_create(const tutti_layout *srcs, const tutti_layout *dsts, size_t npairs,
                                         tutti_plan **plan_out);
/* Runs the plan. Collective over the plan's ranks. The tensors must have the plan's layouts (else TUTTI_ERR_ARGUMENT,
 * on this rank). Options and their errors as in tutti_tensor_redistribute; after an error the plan stays. */
TUTTI_API tutti_status tutti_plan_run(tutti_plan *plan, const tutti_tensor *const *srcs, tutti_tensor *const *dsts,
                                      const tutti_options *options);
/* Frees the plan. NULL is allowed. It waits for works of the plan that are under way, and for works that were
 * started after them between the same ranks; in a forked child it does not wait. */
TUTTI_API void tutti_plan_destroy(tutti_plan *plan);

typedef struct tutti_plan_details {
    int steps;                           /* steps that exchange data with other ranks */
    uint64_t sent_bytes, received_bytes; /* of this rank in one run */
    uint64_t least_bytes;                /* the least that this rank must receive, whatever the plan */
    /* Scratch that the plan keeps; more once ranks of a host could not read a shard */
    uint64_t scratch_bytes;
    /* Predicted time of one run, in memory of tutti_mem_alloc; the same on all ranks. With CUDA memory it is 0, except
     * for plans in CUDA memory alone between ranks that have called tutti_placement_measure before. */
    double predicted_us;
} tutti_plan_details;
/* Gives the plan's details. TUTTI_ERR_ARGUMENT when an argument is NULL. */
TUTTI_API tutti_status tutti_plan_get(const tutti_plan *plan, tutti_plan_details *details_out);
/* Writes "reduce_scatter of 2 ranks, then messages to 3 and from 3 ranks: receives 1048576 bytes of at least
 * 1048576, predicted 412 us"; cut where it does not fit. "by reading" means that ranks of this host read the pieces
 * in each other's shards if these lie in memory of tutti_mem_alloc. Where another plan receives less but is
 * predicted to take longer, the text names that plan, too. bytes must not be 0. */
TUTTI_API tutti_status tutti_plan_describe(const tutti_plan *plan, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
