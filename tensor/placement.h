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

/* Communicators of some ranks of one communicator, or of all of them, made when first needed and found again by the list of ranks.
 * They are apart from the user's, whose messages of any tag must not be met by ours. Shared by all placements of that communicator,
 * and gone with the last of them. */
typedef struct tutti_rank_groups tutti_rank_groups;

struct tutti_placement {
    int references; /* atomic */
    tutti_comm *comm;
    tutti_rank_groups *groups;
    bool is_shadow; /* does not keep the groups alive: see tutti_placement_shadow */
    tutti_memory memory;
    int gpu; /* of CUDA memory: on which this rank's shards lie; -1: of the host's, or this rank is not in the placement */
    int naxes;
    int sizes[TUTTI_MOST_AXES];
    int nranks;
    int me;        /* index of this rank; -1: it is not in the placement */
    uint64_t hash; /* of ranks, axes and memory */
    int ranks[];   /* nranks; behind them the coordinates of each, naxes */
};

tutti_placement *tutti_placement_keep(tutti_placement *placement); /* tutti_placement_destroy gives it back */
/* A copy for what the groups keep themselves, and so must not keep them alive. */
tutti_status tutti_placement_shadow(const tutti_placement *placement, tutti_placement **shadow_out);
/* The same ranks and axes, whatever the memory. */
bool tutti_placement_is_alike(const tutti_placement *a, const tutti_placement *b);
/* Coordinates of the index-th rank, one for each axis; and back. */
void tutti_placement_locate(const tutti_placement *placement, int index, int coordinates[TUTTI_MOST_AXES]);
int tutti_placement_index(const tutti_placement *placement, const int coordinates[TUTTI_MOST_AXES]);
/* -1: not in it. */
int tutti_placement_find(const tutti_placement *placement, int rank);
/* Does the index-th rank differ from this one, which is in the placement, on no axis but those of the mask? */
bool tutti_placement_is_mate(const tutti_placement *placement, unsigned axes, int index);
/* "ranks 0,3,1,2 as 2x2", with " in CUDA memory" behind it where it is so. */
void tutti_placement_text(const tutti_placement *placement, char *text, size_t bytes);

/* The communicator of the listed ranks of `comm`, in that order, this rank among them. Collective over them at the first call. The
 * groups keep it. */
tutti_status tutti_rank_groups_get(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm **comm_out);

/* Runs of plans with works (run_work.c) on a communicator that the groups have made, until they have ended: counted by those. */
atomic_int *tutti_rank_groups_works(tutti_rank_groups *groups, const tutti_comm *comm);
/* Waits for them, `works` being their number: then messages may be sent there, which have no turn in a queue as collectives have. */
tutti_status tutti_works_await(tutti_comm *comm, const atomic_int *works);

/* ", by a communicator whose ranks 0,1 are 3,2 here" of a communicator that the groups have made; empty where the numbers are
 * the same. Errors of such communicators name ranks by their own numbers. */
void tutti_rank_groups_text(tutti_rank_groups *groups, const tutti_comm *comm, char *text, size_t bytes);

/* What plans among these ranks cost (costs.h), in host memory or that of GPUs, as it was set last; NULL: nothing was. Local. `costs` are kept, and freed with the
 * groups. */
struct tutti_costs;
const struct tutti_costs *tutti_rank_groups_costs(tutti_rank_groups *groups, const int *ranks, int nranks, bool on_gpu);

/* What conversions were predicted to take by certain costs: a table in which new entries replace old ones. Any thread. */
typedef struct tutti_known_price {
    uint64_t src, dst;               /* hashes of layouts */
    const struct tutti_costs *costs; /* NULL: there is none */
    double us;
} tutti_known_price;
bool tutti_rank_groups_find_price(tutti_rank_groups *groups, tutti_known_price *price); /* fills in us */
void tutti_rank_groups_keep_price(tutti_rank_groups *groups, const tutti_known_price *price);
void tutti_rank_groups_set_costs(tutti_rank_groups *groups, const tutti_comm *comm, struct tutti_costs *costs);

/* Plans that are to be used again, which end with the groups. The first `added` (NULL: none) is kept, and given from then on; NULL:
 * there is none. */
typedef struct tutti_kept_plans {
    void (*destroy)(struct tutti_kept_plans *plans);
} tutti_kept_plans;
tutti_kept_plans *tutti_rank_groups_plans(tutti_rank_groups *groups, tutti_kept_plans *added);

/* GPU memory in which such plans pack what they send and receive, in turns. */
tutti_scratch_pool *tutti_rank_groups_scratch(tutti_rank_groups *groups);
/* And that of tensors which came and went in a stream. */
tutti_reuse_pool *tutti_rank_groups_reuse(tutti_rank_groups *groups);

#endif
