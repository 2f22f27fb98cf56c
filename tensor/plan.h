/*
 * Plans: how tensors of one layout become tensors of another.
 *
 *     source ──reduce──> nothing partial ──exchange──> target, or a share of it per copy ──replicate──> target ──fill──> partial
 *
 * Each stage of a pair is a tiling (tiling.h): boxes on ranks. The first is the source's, the last the target's; those between
 * them lie in scratch memory. A step leads from one stage to the next; an exchange does so for all pairs at once. Which steps
 * there are follows from the layouts alone, so it is the same on all ranks; each works out its own part.
 *
 * plan.c makes and keeps plans, plan_choose.c chooses by prices (plan_price.c) which, plan_steps.c lists the steps, plan_reduce.c,
 * plan_move.c and plan_reads.c work them out, run.c carries them out, run_gpu.c does so with CUDA memory, run_work.c behind the
 * call.
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
    size_t bytes;          /* of this rank's box; 0: it has none */
    size_t scratch_offset; /* of a stage between the first and the last */
} tutti_stage;

/* One of a plan's pairs. */
typedef struct tutti_route {
    tutti_kept_layout *src, *dst;
    size_t element_bytes;
    int nstages;
    tutti_stage stages[TUTTI_MOST_STAGES];
    bool *wants; /* by index in the target's placement: gets the value; else an identity. NULL: all do */
    int filler;  /* reduction whose identity this rank gets; -1: none */
    /* Atomic: serials of layouts that were found equal to src and to dst, which spares comparing them. */
    uint64_t known[2];
    size_t src_mirror, dst_mirror; /* of staged plans: in the scratch memory */
} tutti_route;

typedef enum tutti_step_kind {
    TUTTI_STEP_ALL_REDUCE,
    TUTTI_STEP_REDUCE_SCATTER,
    TUTTI_STEP_ALL_GATHER,
    TUTTI_STEP_BROADCAST,
    TUTTI_STEP_ALL_TO_ALL,
    TUTTI_STEP_MESSAGES,
    TUTTI_STEP_LOCAL /* talks to no rank */
} tutti_step_kind;

/* What one pair has in a message, or copies within this rank. */
typedef struct tutti_plan_part {
    size_t pair;
    bool plain;         /* of exchanges: one contiguous copy on both sides */
    size_t whole_bytes; /* of reads: of the shard that has it */
    tutti_blocks blocks;
} tutti_plan_part;

/* To or from one rank. What is contiguous in a shard is sent from there and received there; else it lies in scratch memory. */
typedef struct tutti_plan_message {
    int peer; /* in the step's communicator */
    int wave; /* of TUTTI_STEP_MESSAGES: waves go one after the other, and use the same scratch memory */
    size_t bytes, scratch_offset;
    bool direct;
    tutti_plan_part *parts;
    size_t nparts;
} tutti_plan_message;

typedef struct tutti_plan_step {
    tutti_step_kind kind;
    tutti_comm *comm;
    int nranks, me, root; /* of the communicator */
    size_t pair;          /* of all kinds but exchanges, which are of all pairs */
    int from, to;         /* stages of that pair; of an exchange: from_stages and to_stages */
    int *from_stages, *to_stages;
    tutti_reduction reduction;
    tutti_plan_message *sends,
        *recvs; /* of reduce_scatter: what is packed for each rank; of all_gather: what comes from each */
    int nsends, nrecvs, nwaves;
    atomic_int *works; /* runs with works on the communicator: placement.h */
    tutti_plan_part *locals;
    size_t nlocals;
    /* Of exchanges and all_gathers: ranks copy from each other's shards (run.c, read_all). */
    bool reads, streams; /* `streams`: so much that it goes past the caches */
    bool packs; /* where others cannot read the shards, this rank packs all that they need; else the messages go */
    tutti_plan_message *lookups; /* what is read, from each rank */
    int nlookups;
    size_t *shown, nshown; /* pairs of which others need a part */
    uint64_t *tables;      /* by rank: where its table lies; read_all says more */
    size_t table_offset;   /* of the own one, in scratch memory */
    /* Of reduce_scatter and all_gather: the parts are of one size and lie one behind the other, on all ranks of the step, so
     * that the variants for that serve, which are quicker where little is sent. */
    bool even;
    /* Arguments of the variants with a pointer for each rank. */
    const void **srcs;
    void **dsts;
    size_t *src_counts, *dst_counts;
} tutti_plan_step;

/* What TUTTI_PLAN says. */
typedef struct tutti_plan_wish {
    bool all_reduce, reduce_scatter;  /* how partial values are reduced */
    bool no_collective;               /* no all_gather and broadcast */
    bool all_to_all, messages, reads; /* how pieces travel */
    bool shares;                      /* copies get a share each, and gather these */
    bool any;                         /* a word is set */
} tutti_plan_wish;

/* What a plan for one pair is predicted to take; plan_price.c. */
typedef struct tutti_plan_price {
    double us;
    int steps;       /* that talk */
    double received; /* bytes, of all ranks together */
    double call_us;  /* of us: what the call of an exchange costs, whatever it moves */
    /* What it does: all_reduces, a reduce_scatter, an exchange, as an all_to_all. */
    bool reduces, scatters, exchanges, dense;
} tutti_plan_price;

/* The wish whose plan is the quickest, and its price; and that of the plan that receives least, which may be the same one. */
typedef struct tutti_choice {
    tutti_plan_wish wish, least_wish;
    tutti_plan_price price, least;
} tutti_choice;

/* Where a plan works: where all its shards lie, or, where some are in CUDA memory and some in the host's, in host memory, with
 * copies of the former. */
typedef enum tutti_plan_place { TUTTI_PLAN_HOST, TUTTI_PLAN_CUDA, TUTTI_PLAN_STAGED } tutti_plan_place;

struct tutti_plan {
    tutti_plan_place place;
    tutti_rank_groups *groups;
    tutti_comm *comm;   /* of all ranks that take part */
    int *ranks, nranks; /* these, as ranks of the placements' communicator */
    size_t npairs;
    tutti_route *routes;
    tutti_plan_step *steps;
    int nsteps;
    pthread_mutex_t lock;  /* held while a call runs it: for what follows, and the arguments in the steps */
    pthread_cond_t unused; /* no run with a work is left; of these the communicator's queue runs one at a time */
    atomic_int
        works; /* such runs, until they have ended; changed under lock. A call runs the plan only where there are none */
    size_t scratch_bytes;
    void *scratch; /* of the host's memory; NULL: not needed, or not yet */
    size_t packed_bytes;
    void *packed; /* the same, of steps that read: what cannot be read in place */
    tutti_scratch_pool
        gpu_scratch;         /* of a GPU's; a plan that is cached has others for what is not captured into graphs */
    tutti_scratch *captured; /* of the runs that are; NULL: there was none */
    void **mirrors;          /* of staged plans: arguments of a run */
    bool
        is_cached; /* gives much scratch memory back after each run, so that others that wait to be used again have it */
    uint64_t sent_bytes, received_bytes, least_bytes;
    double predicted_us;
    tutti_choice choice;    /* all 0: there was none */
    bool takes_work;        /* on no rank more than one step talks */
    bool is_one_collective; /* that is all that this rank does, so options.work can be handed to it */
};

/* May tensors of the one layout become such of the other, on communicator `comm`? Before any rank is asked. */
tutti_status tutti_plan_check_pair(const tutti_kept_layout *src, const tutti_kept_layout *dst, const tutti_comm *comm);

/* The same as tutti_plan_create for layouts that are kept; it keeps them, too. */
tutti_status tutti_plan_of(tutti_kept_layout *const *srcs, tutti_kept_layout *const *dsts, size_t npairs,
                           tutti_plan **plan_out);

/* Puts in front of an error what was done to which tensors, and which ranks those of `comm` (NULL: not shown) are. Gives
 * `status`. */
tutti_status tutti_plan_fail_context(const tutti_plan *plan, tutti_status status, const char *what,
                                     const tutti_comm *comm);
const char *tutti_step_name(tutti_step_kind kind);

/* ---- plan_cache.c: a plan for one pair, which stays as long as their communicator has placements. Collective where it is new. */
tutti_status tutti_plan_find(const tutti_kept_layout *src, const tutti_kept_layout *dst, tutti_plan **plan_out);

tutti_status tutti_plan_read_wish(tutti_plan_wish *wish_out);

/* ---- plan_steps.c: fills in stages and steps of the routes. */
tutti_status tutti_plan_choose(tutti_plan *plan);
/* Steps of this rank that talk to others. */
int tutti_plan_talks(const tutti_plan *plan);
bool tutti_plan_is_one_collective(const tutti_plan *plan);
tutti_plan_step *tutti_plan_add_step(tutti_plan *plan, tutti_step_kind kind);
/* Do these lie one behind the other, in scratch memory or in a shard (of the source, or of the target)? */
bool tutti_messages_are_even(const tutti_plan_message *messages, int count, size_t element_bytes, bool of_source);
/* Room in the scratch memory, aligned. */
size_t tutti_plan_take_scratch(tutti_plan *plan, size_t bytes);
tutti_status tutti_route_add_stage(tutti_plan *plan, tutti_route *route, tutti_tiling *tiling);

/* Whether not all of the target's ranks want the value: fills in wants and filler. */
tutti_status tutti_route_list_wants(tutti_route *route);
/* Each rank of those that are to hold one box gets a share of it: the tiling of the shares. *done_out false: there are no such. */
tutti_status tutti_tiling_shares(const tutti_tiling *target, tutti_tiling *shares_out, bool *done_out);

/* ---- plan_reduce.c: takes the partial axes of the source away, run by run. */
tutti_status tutti_plan_reduce(tutti_plan *plan, size_t pair, const tutti_plan_wish *wish);
typedef struct tutti_partial_run {
    unsigned axes;
    int nranks;
    tutti_reduction reduction;
} tutti_partial_run;
/* From the first to the last; gives their number. */
int tutti_reduce_list_runs(const tutti_kept_layout *layout, tutti_partial_run runs[TUTTI_MOST_AXES]);
/* How the first run, of these axes, is reduced, once the tiling is `now`: by reduce_scatter to *cut_out, or by all_reduce. */
tutti_status tutti_reduce_cut(const tutti_route *route, const tutti_tiling *now, unsigned axes,
                              const tutti_plan_wish *wish, tutti_tiling *cut_out, bool *scatters_out);
/* Elements of the largest box. */
int64_t tutti_tiling_largest(const tutti_tiling *tiling);

/* ---- plan_move.c: from the last stage that each pair has to the given tilings. */
tutti_status tutti_plan_gather(tutti_plan *plan, size_t pair, const tutti_plan_wish *wish, bool *done_out);
tutti_status tutti_plan_exchange(tutti_plan *plan, const int *from_stages, const int *to_stages,
                                 const tutti_plan_wish *wish);

/* The axes along which an all_gather leads from `fine` to `coarse`; 0: none does. */
unsigned tutti_move_gathered_axes(const tutti_tiling *fine, const tutti_tiling *coarse);
/* Are the boxes that are gathered strided in what they become? The same answer on all ranks; where cuts are uneven it may be
 * wrong, which does no harm. */
bool tutti_move_is_strided(const tutti_tiling *fine, const tutti_tiling *coarse);
/* Does a broadcast? */
bool tutti_move_broadcasts(const tutti_tiling *now, const tutti_tiling *target);

/* The axes on which ranks that have something for each other differ; all where the placements do. */
unsigned tutti_move_exchange_axes(const tutti_transfer *transfer);
/* Of so many ranks the pairs that have something for each other are counted. */
enum { TUTTI_MOST_COUNTED = 64 };
/* Is an exchange in which `talks` of `all` ordered pairs do (-1: not counted) an all_to_all? */
static inline bool tutti_move_is_dense(const tutti_plan_wish *wish, int64_t talks, int64_t all) {
    return wish->all_to_all || (!wish->messages && 2 * talks > all);
}

/* ---- plan_price.c: local, and the same on all ranks. */
typedef struct tutti_pricing {
    const tutti_costs *costs;
    const int *ranks; /* that take part, in rising order */
    int nranks;
    double touched_more; /* bytes of memory of a rank that other pairs go over at the same time */
} tutti_pricing;
/* Of the plan that would be made with that wish; of the route only src, dst, wants and element_bytes are looked at. */
tutti_status tutti_price_plan(const tutti_pricing *pricing, const tutti_route *route, const tutti_plan_wish *wish,
                              tutti_plan_price *price_out);
/* Bytes of the largest boxes of source and target. */
double tutti_price_touched(const tutti_route *route);

/* ---- plan_choose.c: likewise. */
tutti_status tutti_price_choose(const tutti_pricing *pricing, const tutti_route *route, tutti_choice *choice_out);
/* ---- plan_reads.c: steps of exchanges and all_gathers in which ranks read from each other's shards. */
tutti_status tutti_reads_pay(const tutti_plan *plan, const tutti_plan_step *step, const tutti_plan_wish *wish,
                             bool *reads_out);
/* Of so many bytes, by so many ranks of one host; all_meet: in steps that are no messages otherwise. */
bool tutti_reads_pay_for(uint64_t bytes, int nranks, bool all_meet, const tutti_plan_wish *wish);
/* Begins and ends the list of lookups. */
tutti_status tutti_reads_begin(tutti_plan *plan, tutti_plan_step *step);
void tutti_reads_end(tutti_plan_step *step);
/* A box of which this rank reads a part, or all. */
tutti_status tutti_reads_add(const tutti_transfer *transfer, size_t pair, int src_index, int dst_index,
                             tutti_plan_message *lookup);
/* What others need of this rank, after its messages are listed. */
tutti_status tutti_reads_show(tutti_plan *plan, tutti_plan_step *step, const tutti_plan_wish *wish);
/* Room for what goes as a message: in the scratch memory, or, of a step that reads, in memory that is taken only where shards
 * cannot be read. */
size_t tutti_plan_take_room(tutti_plan *plan, const tutti_plan_step *step, size_t bytes);

/* ---- plan_agree.c: collective over the plan's ranks; the same error on all of them where they differ. */
tutti_status tutti_plan_agree(tutti_plan *plan);

/* ---- run.c: the shards of all pairs; NULL where there is none. */
tutti_status tutti_plan_carry_out(tutti_plan *plan, void *const *srcs, void *const *dsts, const tutti_options *options);

/* The same, when nothing else runs it. */
tutti_status tutti_plan_run_now(tutti_plan *plan, void *const *srcs, void *const *dsts, const tutti_options *options);

/* ---- run_work.c: runs with works, of plans in host memory of which this rank has one step that talks. */
tutti_status tutti_plan_start(tutti_plan *plan, void *const *srcs, void *const *dsts, const tutti_options *options);
/* Until there are none on the communicators of the plan's steps. */
tutti_status tutti_plan_await_works(const tutti_plan *plan);
/* Until there are none of this plan, and takes the lock. */
void tutti_plan_lock(tutti_plan *plan);

/* One run: all steps on memory of one kind. `device`: with its GPU as the current one, all is enqueued in options.stream; NULL: the
 * host does it. */
typedef struct tutti_run {
    tutti_plan *plan;
    void *const *srcs, *const *dsts; /* shards */
    char *scratch;
    const tutti_options *options; /* with the kind of memory */
    const tutti_device *device;
} tutti_run;
tutti_status tutti_plan_run_steps(const tutti_run *run);

/* ---- run_gpu.c */
tutti_status tutti_plan_run_on_gpu(tutti_plan *plan, void *const *srcs, void *const *dsts,
                                   const tutti_options *options);
/* Copies what is in CUDA memory to the host and back, around a run there; waits for all of it. */
tutti_status tutti_plan_run_staged(tutti_plan *plan, void *const *srcs, void *const *dsts,
                                   const tutti_options *options);

#endif
