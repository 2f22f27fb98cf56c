/*
 * Global tensors: one tensor whose parts lie on many ranks, and the way from any layout to any other.
 *
 *   - A *placement* is a list of distinct ranks of a communicator, seen as an array of 1 to 8 axes, row-major: PyTorch calls it a
 *     DeviceMesh. The placement of the ranks 0, 3, 1, 2 with axes 2 x 2 is not that of 0, 1, 2, 3.
 *   - An *sbp* says what one axis of the placement does to the tensor: broadcast (each rank has all of it), split(dimension) or
 *     partial(reduction): the value is the reduction of what the ranks along the axis have. Axes apply from the first to the last, so
 *     where two axes split one dimension the second cuts what the first has left.
 *   - A *layout* is a placement, an sbp for each of its axes, a shape and a type. Each rank's *shard* is a box of the tensor, kept
 *     dense and row-major. A balanced split cuts n into k parts of which the first n % k are one longer; a chunked one, as PyTorch's,
 *     into parts of ceil(n / k); explicit cuts give the offsets. Parts may be empty.
 *
 * The value of a tensor with partial axes: neighbouring partial axes (those between them left out) of one reduction are one
 * reduction over their ranks in row-major order; such runs are reduced from the last to the first. So neither the value nor a bit
 * of it depends on the route by which it is computed. Where such ranks lie on several hosts, sums and products of floats are in
 * rank order within each host, then in pairs of hosts, as those of tutti_all_reduce (docs/hosts.md): copies that are
 * computed by ranks which lie on the hosts in other ways may then differ by a rounding. A target with partial axes holds the
 * value on coordinate 0 of its sum, prod and bxor axes and the identity elsewhere (for sums of floats -0.0, which changes no
 * number); along min, max, avg, band and bor all hold the value.
 *
 * Calls that are marked collective are made by all ranks of the placements that they name, in the same order with equal arguments; a
 * difference is an error on all of them. Wrong arguments are judged before anything is sent, from what is equal on all ranks.
 *
 * CUDA memory: each rank's shards are on the GPU that was the calling thread's current one when the placement was made
 * (tutti_device_use); several ranks may share one. All such placements on a communicator have one GPU on a rank.
 *   - Redistribution between tensors in CUDA memory is a call as those of <tutti/device.h>: it enqueues all of it in options.stream
 *     and returns; what precedes it in the stream is done before, what follows sees its result. It waits for peers only where it
 *     makes a plan, or uses a communicator with CUDA memory for the first time. Runs of one plan may be in several streams, which
 *     then wait for each other. What fails behind the call is told by the next one between the same ranks.
 *   - Reductions are those of tutti_all_reduce on CUDA memory. Where all ranks share one GPU, or go by way of host memory, all
 *     values are the host's, bit for bit, by every route. With a GPU for each rank sums, products and averages of floats are
 *     NCCL's, in its order, or, with TUTTI_DETERMINISTIC=1, in rank order, as the host's where the ranks are on one host. Where
 *     some ranks share GPUs they may differ from the host's by roundings, and by the route; with TUTTI_DETERMINISTIC=1 not from
 *     run to run. All else is exact everywhere.
 *   - From CUDA to host memory and back whole shards go by way of host memory: such a call waits for its stream, and for its own
 *     end.
 *   - Graphs may capture runs, after a first one, as far as collectives can be captured (docs/cuda.md); messages cannot. They use
 *     memory of the plan's: destroy them before it, those of tutti_tensor_redistribute before the last placement on the
 *     communicator.
 *   - Destroying tensors with memory of their own, plans, and the last placement on a communicator waits for the GPU, as cudaFree
 *     does: not while a graph is captured, nor, where ranks are threads, while streams of others wait for this rank.
 *
 * Communicators: tensors talk over communicators of their own, made with the caller's at the first use of each list of ranks, and
 * kept as long as there is a placement on the caller's. Where a rank dies, or does not come by the deadline, the one in use
 * breaks: all tensors whose plans use it get an error at once from then on, and the caller's communicator stays whole. To go on,
 * destroy all tensors, plans and placements on it, on all ranks that are left, and make new ones. Only where the rank was lost
 * while such a communicator was made does the caller's break too; so it does where ranks do not name the same ranks, by the
 * deadline of connections (TUTTI_CONNECT_TIMEOUT_MS).
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

/* The ranks of `comm` in `ranks` (NULL: all of them, in order), row-major over axes[0] x ... x axes[naxes - 1], which must be
 * their number. `memory`: where shards lie (TUTTI_MEMORY_ASK means the host's); TUTTI_ERR_UNSUPPORTED, with the reason, where it
 * is CUDA's, this rank is in the placement, and there is no GPU. Local: talks to no rank, and makes no communicator yet.
 * Counted: tensors keep theirs; `comm` must outlive it, and all tensors on it. */
TUTTI_API tutti_status tutti_placement_create(tutti_comm *comm, tutti_memory memory, const int *ranks, const int *axes,
                                              int naxes, tutti_placement **placement_out);
TUTTI_API void tutti_placement_destroy(tutti_placement *placement); /* NULL is allowed */
/* The number of axes, and the size of one; -1: of all together, that is the number of ranks. */
TUTTI_API int tutti_placement_axes(const tutti_placement *placement);
TUTTI_API int tutti_placement_size(const tutti_placement *placement, int axis);
/* Where this rank stands on the axis (-1: in the whole list); -1: it is not in the placement. */
TUTTI_API int tutti_placement_coordinate(const tutti_placement *placement, int axis);
/* The same ranks of one communicator in the same order, with the same axes and memory? */
TUTTI_API bool tutti_placement_is_equal(const tutti_placement *a, const tutti_placement *b);
TUTTI_API tutti_memory tutti_placement_memory(const tutti_placement *placement);
/* The GPU of this rank's shards; -1: they lie in host memory, or this rank is not in the placement. */
TUTTI_API int tutti_placement_gpu(const tutti_placement *placement);
/* The communicator of the ranks that differ from this one only on the axes of the mask (bit i: axis i), in their order. Made at the
 * first use, collective over its ranks, and kept by the placement. This rank must be in it. */
TUTTI_API tutti_status tutti_placement_comm(tutti_placement *placement, unsigned axes, tutti_comm **comm_out);
/* Collective over the placement's ranks, with equal arguments: they measure together what it costs to move tensors between them, whose
 * shards are of up to `bytes`, in the placement's memory; for tutti_layout_predict. In host memory plans do so when they are made; in
 * CUDA memory plans measure nothing, so that this is the only way. Takes some milliseconds, and up to 128 MiB of memory,
 * which it gives back; on GPUs no calls may be under way, since that waits for the GPU. */
TUTTI_API tutti_status tutti_placement_measure(tutti_placement *placement, size_t bytes);
/* As tutti_comm_abort, of all communicators that placements on this one's communicator have made: what waits in a tensor's call ends
 * with TUTTI_ERR_ABORTED, here and on the ranks that it waits with. To be called after tutti_comm_abort of their own communicator. */
TUTTI_API tutti_status tutti_placement_abort(tutti_placement *placement, const char *reason);

/* ------------------------------------------------------------------------------------------------- sbp */

typedef enum tutti_sbp_kind { TUTTI_SBP_BROADCAST = 0, TUTTI_SBP_SPLIT, TUTTI_SBP_PARTIAL } tutti_sbp_kind;

typedef struct tutti_sbp {
    tutti_sbp_kind kind;
    int dim;                   /* of a split */
    tutti_reduction reduction; /* of a partial: any but TUTTI_PREMUL_SUM */
} tutti_sbp;

/* All zeros are a broadcast. &TUTTI_SPLIT(0) points to something that lasts until the end of the block that it stands in. In C++: tutti_sbp{TUTTI_SBP_SPLIT, 0, TUTTI_SUM}. */
#define TUTTI_BROADCAST           ((tutti_sbp){.kind = TUTTI_SBP_BROADCAST})
#define TUTTI_SPLIT(dim_)         ((tutti_sbp){.kind = TUTTI_SBP_SPLIT, .dim = (dim_)})
#define TUTTI_PARTIAL(reduction_) ((tutti_sbp){.kind = TUTTI_SBP_PARTIAL, .reduction = (reduction_)})

/* Reads "S0,B,P(sum)"; also OneFlow's "split(0)", "broadcast", "partial_sum" and DTensor's "Shard(0)", "Replicate()", "Partial()".
 * One per axis, split by commas; at most `capacity`. */
TUTTI_API tutti_status tutti_sbp_parse(const char *text, tutti_sbp *sbp_out, int capacity, int *naxes_out);
/* "S0,B,P(sum)"; cut where it does not fit. */
TUTTI_API void tutti_sbp_format(const tutti_sbp *sbp, int naxes, char *text, size_t bytes);
/* Of a gradient: a split stays, broadcast and partial(sum) change places. Other partials have none: TUTTI_ERR_ARGUMENT. */
TUTTI_API tutti_status tutti_sbp_adjoint(tutti_sbp sbp, tutti_sbp *adjoint_out);

/* --------------------------------------------------------------------------------------------- layouts */

typedef enum tutti_split_rule { TUTTI_SPLIT_BALANCED = 0, TUTTI_SPLIT_CHUNK } tutti_split_rule;

/* Where part number `part` of `nparts` of an extent begins, by the rule; part nparts: the extent. */
TUTTI_API int64_t tutti_split_begin(int64_t extent, int part, int nparts, tutti_split_rule rule);

typedef struct tutti_layout {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_layout); /* of this struct */
    tutti_placement *placement TUTTI_ZERO;
    const tutti_sbp *sbp TUTTI_ZERO; /* one for each axis of the placement; NULL: broadcast on all */
    tutti_type type TUTTI_ZERO;
    int ndims TUTTI_ZERO;
    const int64_t *shape TUTTI_ZERO; /* of the whole tensor, ndims extents of at least 0 */
    tutti_split_rule rule TUTTI_ZERO;
    /* For each dimension the offsets of its parts and its end, (product of the sizes of the axes that split it) + 1 of them, or NULL:
     * by the rule. NULL: all by the rule. */
    const int64_t *const *cuts TUTTI_ZERO;
    const char *name TUTTI_ZERO; /* shown in errors; NULL: "tensor" */
} tutti_layout;

#define TUTTI_LAYOUT(...) TUTTI_INITIALIZED(tutti_layout, __VA_ARGS__)

/* The box of the placement's index-th rank: from first_out[d] up to, but not with, end_out[d], for each dimension. Local. */
TUTTI_API tutti_status tutti_layout_box(const tutti_layout *layout, int index, int64_t *first_out, int64_t *end_out);

/* About how long it takes, in microseconds, to make a tensor of layout src one of layout dst: what tutti_plan_get predicts of the plan
 * for it, without making one, and without talking to any rank. 0 where the layouts are equal. Equal on all ranks of the communicator
 * that the placements belong to: where these have all its ranks it follows from costs that the ranks have measured together, when they
 * made their first plan and, for larger tensors than before, when they made one of these; elsewhere, and before that, from those of an
 * ordinary machine. In CUDA memory TUTTI_ERR_UNSUPPORTED, unless both placements are there and have all ranks of the communicator, which
 * have called tutti_placement_measure. */
TUTTI_API tutti_status tutti_layout_predict(const tutti_layout *src, const tutti_layout *dst, double *microseconds_out);

/* --------------------------------------------------------------------------------------------- tensors */

/* A layout, and this rank's shard. What is given as a layout is copied. */
typedef struct tutti_tensor tutti_tensor;

/* Local. The shard is memory of tutti_mem_alloc, or on its GPU of tutti_mem_alloc_cuda; it is not filled. A rank outside the
 * placement gets a tensor without a shard. */
TUTTI_API tutti_status tutti_tensor_create(const tutti_layout *layout, tutti_tensor **tensor_out);
/* Local. The caller's memory, of the placement's kind and GPU, becomes the shard: it is not copied, holds the box's elements
 * dense and row-major, and must stay until tutti_tensor_destroy. NULL where the shard is empty or this rank is outside the
 * placement. */
TUTTI_API tutti_status tutti_tensor_wrap(const tutti_layout *layout, void *local, tutti_tensor **tensor_out);
/* A tensor whose shards are what the ranks have, however uneven: OneFlow's local.to_global(). Collective over the placement.
 * `like` says placement, sbp, type, number of dimensions and name; its shape, rule and cuts are not looked at, since they are
 * found from the ranks' local shapes: extents of parts of one dimension add up; ranks that hold the same part must have the same
 * extent. Ranks that hold the same box, along broadcast axes, must hold the same bytes, which is checked by a hash (of CUDA
 * memory, when its GPU has done all that is in its streams). `local` is wrapped as in tutti_tensor_wrap. A difference is the
 * same error on all ranks. */
TUTTI_API tutti_status tutti_tensor_from_local(const tutti_layout *like, const int64_t *local_shape, void *local,
                                               tutti_tensor **tensor_out);
TUTTI_API void tutti_tensor_destroy(tutti_tensor *tensor); /* NULL is allowed */
/* The same for tensors that come and go in a stream (host memory: as the two above, and the stream is not looked at). create
 * takes memory that destroy has left, for what is enqueued in the stream from now on; destroy does not wait for the GPU, as
 * tutti_tensor_destroy does: the memory is used again behind what is in the stream now, which must be all that uses the
 * tensor. In a stream that is captured into a graph, it stays the graph's until the last placement on the communicator is
 * gone. */
TUTTI_API tutti_status tutti_tensor_create_in_stream(const tutti_layout *layout, void *stream,
                                                     tutti_tensor **tensor_out);
TUTTI_API void tutti_tensor_destroy_in_stream(tutti_tensor *tensor, void *stream); /* NULL is allowed */

typedef struct tutti_local {
    void *data; /* NULL: no shard, or an empty one */
    int ndims;
    int64_t shape[TUTTI_MOST_DIMS], first[TUTTI_MOST_DIMS]; /* of the box, and where it begins in the tensor */
    size_t count;                                           /* elements */
} tutti_local;

/* This rank's shard, without a copy; valid as long as the tensor. */
TUTTI_API tutti_status tutti_tensor_local(const tutti_tensor *tensor, tutti_local *local_out);
/* Valid as long as the tensor. Cuts are given for each split dimension. */
TUTTI_API const tutti_layout *tutti_tensor_layout(const tutti_tensor *tensor);

/* Collective over the ranks of both placements, which belong to one communicator. dst gets src's elements (where the shapes differ,
 * by their row-major numbers: the counts must be equal); src stays. The two may not share memory. Of the options, stream (for CUDA
 * memory), timeout_ms and work count.
 *
 * options.work: taken in host memory by plans of which no rank has more than one step that talks to others (tutti_plan_get), with
 * whatever is packed, unpacked and copied around it. The call returns, and all of that is done when the work ends; errors in it are
 * the work's, wrong arguments the call's. It runs on a thread of the step's communicator, but for a reduction or an all_gather of
 * shards as they lie, which is an asynchronous collective. Several works may be under way, also of one plan; between the same
 * ranks they go one at a time, in the order of their calls, and may be waited for in any. Until one is done its tensors must stay,
 * its sources must not be written, and its targets not be touched. A rank that has only copies to make makes them in the call, and
 * gets a work that has ended.
 * Other calls may come in between, as long as all ranks make them in the same order: one without a work waits first for the works
 * on the communicators that it uses, and one that makes a plan, as the first redistribution between two layouts does, for works
 * between its ranks, and for the others.
 * Plans of several steps, and tensors in CUDA memory, are TUTTI_ERR_UNSUPPORTED on all ranks, before anything is sent. */
TUTTI_API tutti_status tutti_tensor_redistribute(const tutti_tensor *src, tutti_tensor *dst,
                                                 const tutti_options *options);

/* OneFlow's to_global(placement, sbp): makes a tensor of src's shape, type and rule in another placement (NULL: src's) with another sbp
 * (NULL: broadcast on all axes), filled from src. Collective over the ranks of both. The memory is always its own. */
TUTTI_API tutti_status tutti_tensor_to_global(const tutti_tensor *src, tutti_placement *placement, const tutti_sbp *sbp,
                                              const tutti_options *options, tutti_tensor **dst_out);

/* ----------------------------------------------------------------------------------------------- plans */

/* How tensors of certain layouts become tensors of others: worked out once, run as often as one likes. */
typedef struct tutti_plan tutti_plan;

/* For `npairs` tensors at once, in one round: srcs[i] becomes dsts[i]. All placements belong to one communicator. Collective over the
 * ranks of all of them. */
TUTTI_API tutti_status tutti_plan_create(const tutti_layout *srcs, const tutti_layout *dsts, size_t npairs,
                                         tutti_plan **plan_out);
/* Collective. The tensors must have the plan's layouts. */
TUTTI_API tutti_status tutti_plan_run(tutti_plan *plan, const tutti_tensor *const *srcs, tutti_tensor *const *dsts,
                                      const tutti_options *options);
/* NULL is allowed. Where works of the plan are under way it waits for them, and for those that were started after them between
 * the same ranks; in a forked child it does not. */
TUTTI_API void tutti_plan_destroy(tutti_plan *plan);

typedef struct tutti_plan_details {
    int steps;                           /* that talk to other ranks */
    uint64_t sent_bytes, received_bytes; /* of this rank in one run */
    uint64_t least_bytes;                /* that this rank must receive, whatever the plan */
    uint64_t scratch_bytes;              /* that the plan keeps; more once ranks of a host could not read a shard */
    /* Of one run, in memory of tutti_mem_alloc; the same on all ranks. With CUDA memory 0, but for plans of it alone, between ranks that
     * have called tutti_placement_measure before. */
    double predicted_us;
} tutti_plan_details;
TUTTI_API tutti_status tutti_plan_get(const tutti_plan *plan, tutti_plan_details *details_out);
/* "reduce_scatter of 2 ranks, then messages to 3 and from 3 ranks: receives 1048576 bytes of at least 1048576, predicted 412 us";
 * cut where it does not fit. "by reading": ranks of this host read the pieces in each other's shards, if these lie in memory of
 * tutti_mem_alloc. Where another plan receives less, but is predicted to take longer, it names that one, too. */
TUTTI_API tutti_status tutti_plan_describe(const tutti_plan *plan, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
