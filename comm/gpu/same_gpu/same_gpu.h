/*
 * Several ranks on one GPU (processes or threads). Shared by the files same_gpu*.c.
 *
 *   host      Each rank posts its call on the board, with the addresses of its buffers. The last rank to post launches:
 *             only it knows all pointers, so no rank waits for another one on the host.
 *   streams   rank r:      [copy into its slot] -> ready[r] = step -> wait done >= step -> [copy out of its slot]
 *             launcher:    wait all ready >= step -> one kernel that reduces or copies for all -> done = step
 *
 * Buffers that others can map (all ranks in one process; memory of tutti_mem_alloc_cuda, and of cudaMalloc where each
 * rank is a process) are read and written in place; other buffers are copied by their owner through its slots, in
 * pieces that fit. Counters are in host memory that every process pins; they only grow: step = number of the call *
 * 2^20 + pieces done.
 *
 * A call that is captured into a CUDA graph also meets the others on the board, once, which fixes the launcher for
 * every replay. Graphs have their own counters, which are 0 again after each replay (same_gpu_steps.c), and their
 * own slots.
 *
 * One kernel serves all ranks because processes on one GPU run one at a time: ranks that only wait need no time
 * slice.
 *
 * Ranks that are all threads of one process share a CUDA context, in which CUDA may run a stream's work behind that of
 * any other stream; it heeds only the order that events express. So no stream of theirs waits for work that is not
 * enqueued yet: a call waits on the host until the last rank has launched (same_gpu_threads.c).
 *
 *   streams   rank r:      event ready[r] -> wait for event done
 *             launcher:    wait for ready of all others -> copies into slots, kernels -> event done
 */
#ifndef TUTTI_SAME_GPU_H
#define TUTTI_SAME_GPU_H

#include "comm/base/op.h"
#include "comm/gpu/stream.h"

#define TUTTI_SAME_GPU_DEPTH   32  /* calls that the fastest rank may be ahead of the slowest */
#define TUTTI_SAME_GPU_SLOTS   80  /* slots of one rank */
#define TUTTI_SAME_GPU_EXPORTS 208 /* allocations of one rank that peers can map: slots, and 128 of the caller's */
#define TUTTI_SAME_GPU_END     ((UINT64_C(1) << 20) - 1)

static inline uint64_t tutti_same_gpu_step(uint64_t number, uint64_t pieces) {
    return (number << 20) + pieces;
}

/* A buffer of one rank, or one segment of it. */
typedef struct tutti_same_gpu_region {
    uint64_t address; /* address in the owner's process; 0: none */
    uint64_t bytes;
    int32_t export_index; /* index in the owner's directory; -1: others cannot map it */
    int32_t unused;
} tutti_same_gpu_region;

/* One call of one rank. Its owner writes all fields before `number`. */
typedef struct tutti_same_gpu_post {
    _Atomic uint64_t number; /* its place on the board; release; pairs with the acquire in the launch */
    uint64_t signature;
    uint64_t stream;          /* stream handle; meaningful to ranks of the same process, as is: */
    tutti_event_handle ready; /* where all ranks are threads: the rank's stream has reached the call */
    tutti_event_handle done;  /* the same: the call has run; only if this rank launches it */
    tutti_call call;
    double factor;
    uint64_t pieces;
    bool captured;
    int32_t nin, nout;                       /* number of segments: n, one for all, or none */
    tutti_same_gpu_region in_slot, out_slot; /* bytes 0: the regions are used in place */
    uint64_t in_stride, out_stride;          /* stride of the segments in one half of a slot */
    uint64_t in_half, out_half;              /* bytes from one half of a slot to the other */
    tutti_same_gpu_region regions[]; /* n inputs by reader (one if all read the same), n outputs by source (one) */
} tutti_same_gpu_post;

typedef struct tutti_same_gpu_export {
    uint64_t address;       /* of the allocation, in the owner's process */
    _Atomic uint64_t bytes; /* of the allocation; 0: it was freed */
    bool may_be_freed;      /* by the caller: it is none of Tutti's */
    tutti_device_export exported;
} tutti_same_gpu_export;

/* A peer's allocation that is mapped here. */
typedef struct tutti_same_gpu_import {
    void *base; /* NULL: it is not */
    bool may_be_freed;
    tutti_device_export exported;
} tutti_same_gpu_import;

/* One rank's part of the board, in its process's heap; only this rank writes there. */
typedef struct tutti_same_gpu_board {
    _Atomic uint32_t nexports; /* stored with release after the entry */
    _Atomic uint32_t nfreed;   /* how often an entry's allocation was found freed */
    tutti_same_gpu_export exports[TUTTI_SAME_GPU_EXPORTS];
    TUTTI_ALIGNED_LINE char posts[]; /* DEPTH posts of post_bytes each */
} tutti_same_gpu_board;

typedef struct tutti_same_gpu_counter {
    TUTTI_ALIGNED_LINE _Atomic uint64_t value;
} tutti_same_gpu_counter;

/* In rank 0's heap: first the counters that streams write and wait for, then those of the host. */
typedef struct tutti_same_gpu_counters {
    tutti_same_gpu_counter done;
    tutti_same_gpu_counter ready[TUTTI_DEVICE_MOST_BUFFERS];
    tutti_same_gpu_counter graph_done[TUTTI_DEVICE_MOST_BUFFERS]; /* for calls in graphs: one per waiting rank */
    tutti_same_gpu_counter graph_ready[TUTTI_DEVICE_MOST_BUFFERS];
    tutti_same_gpu_counter trial;                          /* 1 once a graph with calls was launched */
    tutti_same_gpu_counter arrived[TUTTI_SAME_GPU_DEPTH];  /* number of ranks that have posted */
    tutti_same_gpu_counter launched[TUTTI_SAME_GPU_DEPTH]; /* the last call of this place whose work is enqueued */
    _Atomic uint64_t launcher, changes; /* the last launcher's rank + 1; how often it was another rank than before */
    /* Set by any rank whose abort releases streams, before it leaves: streams may write to these counters for a
     * long time, so no other communicator may use them. */
    atomic_bool released;
} tutti_same_gpu_counters;

/* A slot: two halves, one for each of two pieces in flight. */
typedef struct tutti_same_gpu_slot {
    char *memory;
    size_t half_bytes;
} tutti_same_gpu_slot;

typedef struct tutti_same_gpu {
    const tutti_device *device;
    int index, rank, nranks;       /* index: of the GPU */
    tutti_same_gpu_board **boards; /* boards of all ranks, mapped here */
    tutti_same_gpu_board *own;
    size_t post_bytes;
    tutti_same_gpu_counters *counters;
    tutti_same_gpu_counters *on_device;                       /* the same counters at their GPU address */
    tutti_same_gpu_counters *own_counters;                    /* only on rank 0 */
    tutti_same_gpu_import (*imports)[TUTTI_SAME_GPU_EXPORTS]; /* by rank */
    uint32_t *seen_freed;       /* by rank: its nfreed when its mappings were looked through */
    bool maps_any;              /* peers may map CUDA's allocations of this rank */
    tutti_device_place located; /* the last of them that a call uses; bytes 0: none so far */
    int located_index;          /* its entry, or -1 */
    uint64_t refused[16];       /* numbers of allocations that CUDA does not export, the last ones */
    unsigned nrefused;
    bool alone;                       /* all ranks are in this process: every pointer is valid here */
    size_t most_slot_bytes;           /* bytes of one half, at most; equal on all ranks */
    char *kept[TUTTI_SAME_GPU_SLOTS]; /* all slots made so far: sizes double */
    int nkept;
    tutti_same_gpu_slot in, out;
    tutti_same_gpu_slot graph_in, graph_out; /* slots of calls in graphs, which may be launched at any time */
    uint64_t places;                         /* calls on the board, including captured ones */
    atomic_bool graphs;                      /* calls were captured */
    bool capturing;                          /* a call is being captured, and the other ranks may rely on it */
    bool maps;                               /* ranks of other processes map memory of this process */
    struct tutti_same_gpu_release *release;  /* set by an abort if graphs may still be launched; else NULL */
    tutti_stream_chain chain;                /* slots and counters serve one call at a time */
    struct tutti_same_gpu_events *events;    /* where all ranks are threads: this rank's, in each post; else NULL */
    atomic_bool released;                    /* set by abort */
    const void **srcs;                       /* scratch: n * n pointers and sizes for a launch */
    void **dsts;
    size_t *bytes;
    double *factors;
} tutti_same_gpu;

/* A call, as this rank carries it out. */
typedef struct tutti_same_gpu_plan {
    const tutti_op *op;
    uint64_t number; /* number among the calls that are not captured */
    uint64_t place;  /* place on the board */
    bool captured;
    tutti_stream stream;
    size_t item_bytes;
    size_t segment_bytes; /* bytes of a segment in one piece, at most; equal on all ranks */
    int nin, nout;        /* segments of this rank's input and output */
    uint64_t pieces;      /* pieces of this rank */
    bool in_staged, out_staged;
    tutti_device_value values[TUTTI_DEVICE_MOST_VALUES]; /* waits and writes that are to be enqueued next */
    int nvalues;
} tutti_same_gpu_plan;

static inline tutti_same_gpu_post *tutti_same_gpu_post_at(const tutti_same_gpu *s, int rank, uint64_t place) {
    return (tutti_same_gpu_post *)(void *)(s->boards[rank]->posts + place % TUTTI_SAME_GPU_DEPTH * s->post_bytes);
}
/* Returns the bytes of the piece in a segment of `bytes`, and where they start. */
static inline size_t tutti_same_gpu_piece(size_t bytes, size_t segment_bytes, uint64_t piece, size_t *start_out) {
    *start_out = tutti_min_size(bytes, segment_bytes * piece);
    return tutti_min_size(bytes - *start_out, segment_bytes);
}

/* same_gpu_memory.c: maps the first allocation shared by the next rank in another process. */
tutti_status tutti_same_gpu_try_import(tutti_comm *comm, tutti_same_gpu *s);
void tutti_same_gpu_close_imports(tutti_same_gpu *s);
/* Adds an allocation to this rank's directory, so that peers can map it; does nothing if all ranks share a process. */
tutti_status tutti_same_gpu_share(tutti_same_gpu *s, void *memory, size_t bytes);
/* Describes memory of this rank for peers; export_index -1: they cannot map it. `begin` comes first in a call. */
void tutti_same_gpu_describe_begin(tutti_same_gpu *s);
tutti_same_gpu_region tutti_same_gpu_describe(tutti_same_gpu *s, const void *memory, size_t bytes);
/* Finds the address of a region of `rank` in this process. TUTTI_ERR_DATA: the region is invalid. */
tutti_status tutti_same_gpu_find(tutti_same_gpu *s, const tutti_comm *comm, int rank,
                                 const tutti_same_gpu_region *region, void **memory_out);
/* The rest outlives communicators. Returns the GPU address of the counters, in the heap of `owner`. */
tutti_status tutti_same_gpu_pin(const tutti_device *device, struct tutti_peer *owner, tutti_same_gpu_counters *counters,
                                tutti_same_gpu_counters **on_device_out);
/* Zeroed counters in this process's heap. */
tutti_status tutti_same_gpu_take_counters(tutti_same_gpu_counters **counters_out);
void tutti_same_gpu_return_counters(void *memory);
/* Takes an allocation of exactly `bytes` on that GPU, which must be current. */
tutti_status tutti_same_gpu_take_slot(const tutti_device *device, int index, size_t bytes, char **memory_out);
void tutti_same_gpu_return_slot(const char *memory);

/* same_gpu_steps.c: steps of the plan's stream; `pieces` is TUTTI_SAME_GPU_END for the last piece. They are gathered in
 * the plan, since one driver call for several costs hardly more than for one; flush enqueues them, and must precede
 * all other work. */
tutti_status tutti_same_gpu_say_ready(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, uint64_t pieces);
tutti_status tutti_same_gpu_wait_done(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, uint64_t pieces);
/* The counterparts for the launcher: wait until all other ranks are ready; let all ranks continue. */
tutti_status tutti_same_gpu_wait_ready(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, uint64_t pieces);
tutti_status tutti_same_gpu_say_done(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, uint64_t pieces);
/* Puts a mark; NULL: does nothing. */
tutti_status tutti_same_gpu_put_mark(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, tutti_stream_event *mark);
tutti_status tutti_same_gpu_flush(const tutti_same_gpu *s, tutti_same_gpu_plan *plan);
/* Checks if a call can be captured. TUTTI_ERR_UNSUPPORTED, on all ranks alike: it cannot; no peer has seen the call. */
tutti_status tutti_same_gpu_try_capture(tutti_comm *comm, tutti_same_gpu *s, tutti_stream stream);
/* Releases all waiting streams, including those of graphs that are launched later, until some time after `leave`,
 * which is called at the end of the communicator. Takes ownership of the slots. */
void tutti_same_gpu_release_streams(tutti_same_gpu *s);
void tutti_same_gpu_release_leave(tutti_same_gpu *s);

/* same_gpu_threads.c: makes this rank's events. They are kept, as is the board, until no rank reads them any more. */
tutti_status tutti_same_gpu_events_make(const tutti_device *device, struct tutti_same_gpu_events **events_out);
void tutti_same_gpu_events_free(void *events);
/* Enqueues a call of ranks that are all threads, which is planned and posted except for its events. Waits on the host
 * until all ranks have made it. */
tutti_status tutti_same_gpu_put_together(tutti_comm *comm, tutti_same_gpu *s, tutti_same_gpu_plan *plan,
                                         tutti_same_gpu_post *post, const tutti_stream_call *call);

/* same_gpu_launch.c: publishes this rank's post, which is complete. True: this rank is the last one, and launches. */
bool tutti_same_gpu_arrive(tutti_same_gpu *s, tutti_same_gpu_post *post, uint64_t place);
/* Compares all posts and prepares what the caller needs to launch every piece. */
typedef struct tutti_same_gpu_launch tutti_same_gpu_launch;
tutti_status tutti_same_gpu_launch_begin(tutti_comm *comm, tutti_same_gpu *s, tutti_same_gpu_plan *plan,
                                         tutti_same_gpu_launch **launch_out);
uint64_t tutti_same_gpu_launch_pieces(const tutti_same_gpu_launch *launch);
tutti_status tutti_same_gpu_launch_piece(tutti_same_gpu_launch *launch, uint64_t piece);
/* Where all ranks are threads: the whole call, behind the events of the other ranks. */
tutti_status tutti_same_gpu_launch_together(tutti_same_gpu_launch *launch);
/* Lets ranks on that wait on the host for the launch, or for its place on the board; drop does not: threads must see
 * that the communicator broke instead. Both free it. */
void tutti_same_gpu_launch_end(tutti_same_gpu_launch *launch);
void tutti_same_gpu_launch_drop(tutti_same_gpu_launch *launch);

#endif
