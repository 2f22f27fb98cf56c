/*
 * Plans: how tensors of one layout are converted to tensors of another.
 *
 *     source ──reduce──> nothing partial ──exchange──> target, or a share of it per copy ──replicate──> target
 *     ──fill──> partial
 *
 * Each stage of a pair is a tiling (tiling.h): boxes on ranks. The first is the source's, the last the target's;
 * those between them lie in scratch memory. A step leads from one stage to the next; an exchange does so for all
 * pairs at once. The list of steps follows from the layouts alone, so it is the same on all ranks; each rank
 * computes its own part of a step.
 *
 * The files, from the lowest to the highest: plan_base.c has what all of them use; plan_query.c describes plans.
 * plan_reads.c, plan_move.c and plan_reduce.c compute steps; plan_price.c prices them, plan_choose.c chooses by prices,
 * and plan_steps.c lists the steps of a plan. run_steps.c runs them, run_gpu.c with CUDA memory, run.c for a call or
 * after it has returned. plan.c creates and destroys plans, and plan_cache.c keeps some.
 */
#ifndef TUTTI_TENSOR_PLAN_H
#define TUTTI_TENSOR_PLAN_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "tensor/costs.h"
#include "tensor/layout.h"
#include "tensor/pieces.h"
#include "tensor/scratch.h"

enum { TUTTI_MOST_STAGES = TUTTI_MOST_AXES + 3 }; /* source, one for each run of partial axes, shares, target */

typedef struct tutti_stage {
    tutti_tiling tiling;
    size_t bytes;          /* of this rank's box; 0: it has no box */
    size_t scratch_offset; /* of a stage between the first and the last */
} tutti_stage;

/* One of a plan's pairs. */
typedef struct tutti_route {
    tutti_kept_layout *src, *dst;
    size_t element_bytes;
    int nstages;
    tutti_stage stages[TUTTI_MOST_STAGES];
    bool *wants; /* by index in the target's placement: true: gets the value, else an identity. NULL: all get it */
    int filler;  /* reduction whose identity this rank gets; -1: no identity */
    /* Atomic: serials of layouts that were found equal to src and to dst, which saves comparing them again. */
    uint64_t known[2];
    size_t src_mirror, dst_mirror; /* staged plans: offsets in the scratch memory */
} tutti_route;

typedef enum tutti_step_kind {
    TUTTI_STEP_ALL_REDUCE,
    TUTTI_STEP_REDUCE_SCATTER,
    TUTTI_STEP_ALL_GATHER,
    TUTTI_STEP_BROADCAST,
    TUTTI_STEP_ALL_TO_ALL,
    TUTTI_STEP_MESSAGES,
    TUTTI_STEP_LOCAL /* exchanges data with no rank */
} tutti_step_kind;

/* The part of one pair in a message, or in copies within this rank. */
typedef struct tutti_plan_part {
    size_t pair;
    bool plain;         /* exchanges: one contiguous copy on both sides */
    size_t whole_bytes; /* reads: bytes of the shard that the part lies in */
    tutti_blocks blocks;
} tutti_plan_part;

/* A message to or from one rank. What is contiguous in a shard is sent and received there; the rest lies in scratch
 * memory. */
typedef struct tutti_plan_message {
    int peer; /* in the step's communicator */
    int wave; /* TUTTI_STEP_MESSAGES: waves run one after the other and use the same scratch memory */
    size_t bytes, scratch_offset;
    bool direct;
    tutti_plan_part *parts;
    size_t nparts;
} tutti_plan_message;

typedef struct tutti_plan_step {
    tutti_step_kind kind;
    tutti_comm *comm;
    int nranks, me, root; /* of the communicator */
    size_t pair;          /* all kinds except exchanges, which have all pairs */
    int from, to;         /* stages of that pair; an exchange uses from_stages and to_stages */
    int *from_stages, *to_stages;
    tutti_reduction reduction;
    tutti_plan_message *sends,
        *recvs; /* of reduce_scatter: what is packed for each rank; of all_gather: what comes from each */
    int nsends, nrecvs, nwaves;
    atomic_int *works; /* runs with works on the communicator: placement.h */
    tutti_plan_part *locals;
    size_t nlocals;
    /* Exchanges and all_gathers: ranks copy from each other's shards (run_steps.c, read_all). */
    bool reads, streams; /* `streams`: the amount is large enough to write past the caches */
    bool packs; /* where others cannot read the shards, this rank packs all that they need; else messages are sent */
    tutti_plan_message *lookups; /* what is read, from each rank */
    int nlookups;
    size_t *shown, nshown; /* pairs of which other ranks need a part */
    uint64_t *tables;      /* by rank: address of its table; see read_all */
    size_t table_offset;   /* of this rank's own table, in scratch memory */
    /* reduce_scatter and all_gather: the parts have one size and are contiguous, in order, on all ranks of the
     * step. Then the variants with one count are used, which are faster where little is sent. */
    bool even;
    /* Arguments of the variants with a pointer for each rank. */
    const void **srcs;
    void **dsts;
    size_t *src_counts, *dst_counts;
} tutti_plan_step;

/* The value of TUTTI_PLAN. */
typedef struct tutti_plan_wish {
    bool all_reduce, reduce_scatter;  /* how partial values are reduced */
    bool no_collective;               /* no all_gather and no broadcast */
    bool all_to_all, messages, reads; /* how pieces are moved */
    bool shares;                      /* each copy gets a share, and the shares are gathered */
    bool any;                         /* a word is set */
} tutti_plan_wish;

/* The predicted cost of a plan for one pair; see plan_price.c. */
typedef struct tutti_plan_price {
    double us;
    int steps;       /* steps that exchange data */
    double received; /* bytes received by all ranks together */
    double call_us;  /* part of us: the cost of the call of an exchange, whatever it moves */
    /* Its steps: all_reduces, a reduce_scatter, an exchange, an exchange as an all_to_all. */
    bool reduces, scatters, exchanges, dense;
} tutti_plan_price;

/* The wish whose plan is the fastest, and its price; and those of the plan that receives least, which may be the
 * same plan. */
typedef struct tutti_choice {
    tutti_plan_wish wish, least_wish;
    tutti_plan_price price, least;
} tutti_choice;

/* Where a plan works: where all its shards lie; or, where some are in CUDA memory and some in host memory, in host
 * memory, with copies of those in CUDA memory. */
typedef enum tutti_plan_place { TUTTI_PLAN_HOST, TUTTI_PLAN_CUDA, TUTTI_PLAN_STAGED } tutti_plan_place;

struct tutti_plan {
    tutti_plan_place place;
    tutti_rank_groups *groups;
    tutti_comm *comm;   /* of all ranks that take part */
    int *ranks, nranks; /* the same, as ranks of the placements' communicator */
    size_t npairs;
    tutti_route *routes;
    tutti_plan_step *steps;
    int nsteps;
    /* Held while a call runs the plan: guards the members below and the arguments in the steps */
    pthread_mutex_t lock;
    pthread_cond_t unused; /* no run with a work is left; the communicator's queue runs such runs one at a time */
    atomic_int works;      /* runs with works under way; changed under lock. A call runs the plan only at 0 */
    size_t scratch_bytes;
    void *scratch; /* host memory; NULL: not needed, or not yet allocated */
    size_t packed_bytes;
    void *packed; /* the same, for steps that read: what cannot be read in place */
    /* On a GPU; a cached plan uses the groups' pool for runs that are not captured into graphs. */
    tutti_scratch_pool gpu_scratch;
    tutti_scratch *captured; /* of captured runs; NULL: there was none */
    void **mirrors;          /* staged plans: arguments of a run */
    bool is_cached;          /* frees large scratch memory after each run, so that other kept plans can use it */
    uint64_t sent_bytes, received_bytes, least_bytes;
    double predicted_us;
    tutti_choice choice;    /* all 0: no choice was made */
    bool takes_work;        /* no rank has more than one step that exchanges data */
    bool is_one_collective; /* this rank does only that collective, so options.work can be passed to it */
};

/* ---- plan_base.c */
/* Reads TUTTI_PLAN. */
tutti_status tutti_plan_read_wish(tutti_plan_wish *wish_out);
/* Checks whether tensors of one layout can be converted to the other, on communicator `comm`. Local. */
tutti_status tutti_plan_check_pair(const tutti_kept_layout *src, const tutti_kept_layout *dst, const tutti_comm *comm);
/* Fills in wants and filler, where some ranks of the target do not get the value. */
tutti_status tutti_route_list_wants(tutti_route *route);
tutti_plan_step *tutti_plan_add_step(tutti_plan *plan, tutti_step_kind kind);
/* True when the messages are contiguous, in order, in scratch memory or in a shard (of the source, or of the
 * target). */
bool tutti_messages_are_even(const tutti_plan_message *messages, int count, size_t element_bytes, bool of_source);
/* Reserves aligned space in the scratch memory; returns its offset. */
size_t tutti_plan_take_scratch(tutti_plan *plan, size_t bytes);
tutti_status tutti_route_add_stage(tutti_plan *plan, tutti_route *route, tutti_tiling *tiling);
/* Number of this rank's steps that exchange data with other ranks. */
int tutti_plan_talks(const tutti_plan *plan);
/* Adds to the front of an error what was done to which tensors, and which ranks those of `comm` (NULL: not shown)
 * are. Returns `status`. */
tutti_status tutti_plan_fail_context(const tutti_plan *plan, tutti_status status, const char *what,
                                     const tutti_comm *comm);
const char *tutti_plan_step_name(tutti_step_kind kind);

/* ---- plan_reads.c: steps of exchanges and all_gathers in which ranks read from each other's shards. */
tutti_status tutti_reads_pay(const tutti_plan *plan, const tutti_plan_step *step, const tutti_plan_wish *wish,
                             bool *reads_out);
/* The same for `bytes` bytes and `nranks` ranks of one host; all_meet: for steps that otherwise use no messages. */
bool tutti_reads_pay_for(uint64_t bytes, int nranks, bool all_meet, const tutti_plan_wish *wish);
/* Begin and end of the list of lookups. */
tutti_status tutti_reads_begin(tutti_plan *plan, tutti_plan_step *step);
void tutti_reads_end(tutti_plan_step *step);
/* Adds a box of which this rank reads a part, or all. */
tutti_status tutti_reads_add(const tutti_transfer *transfer, size_t pair, int src_index, int dst_index,
                             tutti_plan_message *lookup);
/* Lists the data that other ranks read from this rank, after its messages are listed. */
tutti_status tutti_reads_show(tutti_plan *plan, tutti_plan_step *step, const tutti_plan_wish *wish);
/* Reserves space for the data of a message: in the scratch memory, or, in a step that reads, in memory that is
 * allocated only where shards cannot be read. */
size_t tutti_plan_take_room(tutti_plan *plan, const tutti_plan_step *step, size_t bytes);

/* ---- plan_reduce.c: reduces the partial axes of the source, run by run. */
tutti_status tutti_plan_reduce(tutti_plan *plan, size_t pair, const tutti_plan_wish *wish);
typedef struct tutti_partial_run {
    unsigned axes;
    int nranks;
    tutti_reduction reduction;
} tutti_partial_run;
/* Lists the runs from the first to the last; returns their number. */
int tutti_plan_reduce_list_runs(const tutti_kept_layout *layout, tutti_partial_run runs[TUTTI_MOST_AXES]);
/* Decides how the first run, with these axes, is reduced from tiling `now`: by reduce_scatter to *cut_out, or by
 * all_reduce. */
tutti_status tutti_plan_reduce_cut(const tutti_route *route, const tutti_tiling *now, unsigned axes,
                                   const tutti_plan_wish *wish, tutti_tiling *cut_out, bool *scatters_out);

/* ---- plan_move.c: from the last stage that each pair has to the given tilings. */
tutti_status tutti_plan_gather(tutti_plan *plan, size_t pair, const tutti_plan_wish *wish, bool *done_out);
tutti_status tutti_plan_exchange(tutti_plan *plan, const int *from_stages, const int *to_stages,
                                 const tutti_plan_wish *wish);

/* The axes along which an all_gather leads from `fine` to `coarse`; 0: no all_gather does. */
unsigned tutti_move_gathered_axes(const tutti_tiling *fine, const tutti_tiling *coarse);
/* True when the gathered boxes are strided in the result. The same answer on all ranks; with uneven cuts it may be
 * wrong, which is harmless. */
bool tutti_move_is_strided(const tutti_tiling *fine, const tutti_tiling *coarse);
/* True when a broadcast leads from `now` to `target`. */
bool tutti_move_broadcasts(const tutti_tiling *now, const tutti_tiling *target);

/* The axes on which ranks that exchange data differ; all axes where the placements differ. */
unsigned tutti_move_exchange_axes(const tutti_transfer *transfer);
/* Up to this number of ranks the pairs that exchange data are counted. */
enum { TUTTI_MOST_COUNTED = 64 };
/* True when an exchange in which `talks` of `all` ordered pairs exchange data (-1: not counted) is done as an
 * all_to_all. */
static inline bool tutti_move_is_dense(const tutti_plan_wish *wish, int64_t talks, int64_t all) {
    return wish->all_to_all || (!wish->messages && 2 * talks > all);
}

/* ---- plan_price.c: local, and the same on all ranks. */
typedef struct tutti_pricing {
    const tutti_costs *costs;
    const int *ranks; /* ranks that take part, in rising order */
    int nranks;
    double touched_more; /* bytes of a rank's memory that other pairs touch at the same time */
} tutti_pricing;
/* Prices the plan that would be made with that wish; of the route only src, dst, wants and element_bytes are
 * read. */
tutti_status tutti_price_plan(const tutti_pricing *pricing, const tutti_route *route, const tutti_plan_wish *wish,
                              tutti_plan_price *price_out);
/* Bytes of the largest boxes of source and target. */
double tutti_price_touched(const tutti_route *route);

/* ---- plan_choose.c: local, and the same on all ranks. */
tutti_status tutti_price_choose(const tutti_pricing *pricing, const tutti_route *route, tutti_choice *choice_out);

/* ---- plan_steps.c: fills in stages and steps of the routes. */
tutti_status tutti_plan_choose(tutti_plan *plan);

/* ---- plan_agree.c: collective over the plan's ranks; a difference is the same error on all of them. */
tutti_status tutti_plan_agree(tutti_plan *plan);

/* ---- run_steps.c */
/* One run: all steps on memory of one kind. `device`: all work is enqueued in options.stream, with its GPU as the
 * current one; NULL: the host does the work. */
typedef struct tutti_run {
    tutti_plan *plan;
    void *const *srcs, *const *dsts; /* shards */
    char *scratch;
    const tutti_options *options; /* with the kind of memory set */
    const tutti_device *device;
} tutti_run;
tutti_status tutti_plan_run_steps(const tutti_run *run);

/* ---- run_gpu.c */
tutti_status tutti_plan_run_on_gpu(tutti_plan *plan, void *const *srcs, void *const *dsts,
                                   const tutti_options *options);
/* Copies shards in CUDA memory to the host and back, around a run in host memory; waits for all of it. */
tutti_status tutti_plan_run_staged(tutti_plan *plan, void *const *srcs, void *const *dsts,
                                   const tutti_options *options);

/* ---- run.c: srcs and dsts are the shards of all pairs; NULL where this rank has none. */
tutti_status tutti_plan_carry_out(tutti_plan *plan, void *const *srcs, void *const *dsts, const tutti_options *options);
/* Waits until no works are left on the communicators of the plan's steps. */
tutti_status tutti_plan_await_works(const tutti_plan *plan);
/* Waits until no works of this plan are left, and takes the lock. */
void tutti_plan_lock(tutti_plan *plan);

/* ---- plan.c */
/* As tutti_plan_create, for kept layouts, of which the plan keeps references. */
tutti_status tutti_plan_of(tutti_kept_layout *const *srcs, tutti_kept_layout *const *dsts, size_t npairs,
                           tutti_plan **plan_out);

/* ---- plan_cache.c: a plan for one pair, which lives as long as the communicator has placements. Collective for a
 * new pair. */
tutti_status tutti_plan_find(const tutti_kept_layout *src, const tutti_kept_layout *dst, tutti_plan **plan_out);

#endif
