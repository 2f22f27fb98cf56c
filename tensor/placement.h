/*
 * Placements, and the communicators that tensors on one communicator use.
 */
#ifndef TUTTI_TENSOR_PLACEMENT_H
#define TUTTI_TENSOR_PLACEMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tutti/tensor.h>

#include "tensor/reuse.h"
#include "tensor/scratch.h"

/* Communicators of some or all ranks of one communicator, created when first needed and found again by the list of
 * ranks. They are separate from the user's communicator, whose messages of any tag must not match those of tensors.
 * Shared by all placements of that communicator, and destroyed with the last of them. */
typedef struct tutti_rank_groups tutti_rank_groups;

/* Tags of all messages there. Those of CUDA memory have their own, because messages from host memory may overtake
 * earlier ones from CUDA memory, and would then match their receives. */
enum { TUTTI_TAG_HOST, TUTTI_TAG_CUDA };

struct tutti_placement {
    int references; /* atomic */
    tutti_comm *comm;
    tutti_rank_groups *groups;
    bool is_shadow; /* does not keep the groups alive: see tutti_placement_shadow */
    tutti_memory memory;
    int gpu; /* CUDA memory: GPU of this rank's shards; -1: host memory, or this rank is not in the placement */
    int naxes;
    int sizes[TUTTI_MOST_AXES];
    int nranks;
    int me;        /* index of this rank; -1: it is not in the placement */
    uint64_t hash; /* of ranks, axes and memory */
    int ranks[];   /* nranks ranks, followed by the coordinates of each, naxes */
};

tutti_placement *tutti_placement_keep(tutti_placement *placement); /* tutti_placement_destroy drops the reference */
/* A copy for objects that the groups own and that therefore must not keep the groups alive. */
tutti_status tutti_placement_shadow(const tutti_placement *placement, tutti_placement **shadow_out);
/* True for the same ranks and axes, whatever the memory. */
bool tutti_placement_is_alike(const tutti_placement *a, const tutti_placement *b);
/* Coordinates of the index-th rank, one for each axis; and the index of coordinates. */
void tutti_placement_locate(const tutti_placement *placement, int index, int coordinates[TUTTI_MOST_AXES]);
int tutti_placement_index(const tutti_placement *placement, const int coordinates[TUTTI_MOST_AXES]);
/* Index of a rank of the communicator; -1: the rank is not in the placement. */
int tutti_placement_find(const tutti_placement *placement, int rank);
/* True when the index-th rank differs from this rank, which is in the placement, only on axes of the mask. */
bool tutti_placement_is_mate(const tutti_placement *placement, unsigned axes, int index);
/* Writes "ranks 0,3,1,2 as 2x2", followed by " in CUDA memory" where the memory is CUDA's. */
void tutti_placement_text(const tutti_placement *placement, char *text, size_t bytes);

/* Returns the communicator of the listed ranks of `comm`, in that order; this rank must be among them. Collective
 * over them at the first call. The groups own it. */
tutti_status tutti_rank_groups_get(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm **comm_out);

/* The number of runs of plans with works (run.c) that are under way on a communicator of the groups; the runs
 * count themselves. */
atomic_int *tutti_rank_groups_works(tutti_rank_groups *groups, const tutti_comm *comm);
/* Waits until that number, `works`, is 0: then messages may be sent there; unlike collectives, messages are not
 * queued. */
tutti_status tutti_works_await(tutti_comm *comm, const atomic_int *works);

/* Writes ", by a communicator whose ranks 0,1 are 3,2 here" for a communicator of the groups; empty where the
 * numbers are the same. Errors of such communicators name ranks by their own numbers. */
void tutti_rank_groups_text(tutti_rank_groups *groups, const tutti_comm *comm, char *text, size_t bytes);

/* The costs of plans among these ranks (costs.h), in host memory or that of GPUs, as set last; NULL: none were set.
 * Local. The groups own `costs` and free them at their end. */
struct tutti_costs;
const struct tutti_costs *tutti_rank_groups_costs(tutti_rank_groups *groups, const int *ranks, int nranks, bool on_gpu);

/* Predicted times of conversions, with the costs they follow from: a table in which new entries replace old ones.
 * Any thread may use it. */
typedef struct tutti_known_price {
    uint64_t src, dst;               /* hashes of layouts */
    const struct tutti_costs *costs; /* NULL: no entry */
    double us;
} tutti_known_price;
bool tutti_rank_groups_find_price(tutti_rank_groups *groups, tutti_known_price *price); /* fills in us */
void tutti_rank_groups_keep_price(tutti_rank_groups *groups, const tutti_known_price *price);
void tutti_rank_groups_set_costs(tutti_rank_groups *groups, const tutti_comm *comm, struct tutti_costs *costs);

/* Plans that are kept for reuse, and destroyed with the groups. The first `added` (NULL: none) is kept, and
 * returned from then on; NULL: there is none. */
typedef struct tutti_kept_plans {
    void (*destroy)(struct tutti_kept_plans *plans);
} tutti_kept_plans;
tutti_kept_plans *tutti_rank_groups_plans(tutti_rank_groups *groups, tutti_kept_plans *added);

/* GPU memory in which such plans pack what they send and receive, in turns. */
tutti_scratch_pool *tutti_rank_groups_scratch(tutti_rank_groups *groups);
/* GPU memory of tensors that were created and destroyed in a stream. */
tutti_reuse_pool *tutti_rank_groups_reuse(tutti_rank_groups *groups);

#endif
