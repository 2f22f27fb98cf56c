/*
 * What it costs the ranks of a plan to move, copy and reduce: numbers from which plan_price.c predicts how long a plan takes.
 *
 * They are measured by the ranks themselves, all at the same time, with the very calls that plans make, in memory of
 * tutti_mem_alloc: the caches that they share, and cores that they share, so count. What a byte costs depends on how much memory a
 * run touches, so it is measured for several sizes; larger ones only when a plan is that large (levels). One list of ranks has one
 * set of costs, which are equal on all of them. Of ranks that have measured nothing yet, those of an ordinary machine serve.
 *
 * Costs of a GPU's memory are another set, which is measured only when the program asks for it: in plain memory of the GPU, with calls
 * in a stream, until that is done with them.
 *
 *     level                          1         2         3         4         5         6         7
 *     plans with boxes of more than  4 KiB     8 KiB     128 KiB   512 KiB   2 MiB     8 MiB     32 MiB
 *     measures                       latency   64 KiB    256 KiB   1 MiB     4 MiB     16 MiB    64 MiB
 */
#ifndef TUTTI_TENSOR_COSTS_H
#define TUTTI_TENSOR_COSTS_H

#include <stddef.h>

#include "tensor/placement.h"

typedef enum tutti_cost_kind {
    TUTTI_COST_GATHER,  /* bytes of the output of an all_gather; also of other collectives that move */
    TUTTI_COST_REDUCE,  /* of the vector of an all_reduce */
    TUTTI_COST_SCATTER, /* of the input of a reduce_scatter */
    TUTTI_COST_MESSAGE, /* that a rank receives, while it sends as much */
    TUTTI_COST_COPY,    /* within a rank, contiguous */
    TUTTI_COST_STRIDED, /* within a rank, rows of TUTTI_COST_ROW_BYTES */
    /* A byte of another rank's in a collective: as it was in the run before; just written, so that it leaves that rank's cache. */
    TUTTI_COST_PULL,
    TUTTI_COST_FRESH,
    TUTTI_COST_KINDS
} tutti_cost_kind;

enum { TUTTI_COST_POINTS = 6, TUTTI_COST_ROW_BYTES = 1024 };

typedef struct tutti_costs {
    struct tutti_costs *older; /* of a lower level, which others may be reading */
    int level, older_level;
    bool on_gpu;
    double crowd;                                        /* ranks of a host for each of its cores; at least 1 */
    double base_us[TUTTI_COST_KINDS];                    /* of a call that moves next to nothing */
    double byte_ns[TUTTI_COST_KINDS][TUTTI_COST_POINTS]; /* beyond that */
    double touched[TUTTI_COST_KINDS][TUTTI_COST_POINTS]; /* bytes of memory, of a rank, at each point */
    double row_ns;                                       /* of each row of a strided copy */
    double far_us, far_byte_ns; /* of a call between hosts, and of each byte that reaches the host it reaches most of */
    int nhosts;
    int host_of[]; /* of each of the ranks, where there are several hosts */
} tutti_costs;

/* Of an ordinary machine. */
extern const tutti_costs tutti_costs_ordinary;

/* What a byte costs, in a plan that touches so much memory of each rank. */
double tutti_costs_byte_ns(const tutti_costs *costs, tutti_cost_kind kind, double touched);

/* Makes sure that the costs of the ranks of `comm`, which the groups have made for that list, suffice for boxes of so many bytes,
 * in memory of this rank's GPU, or for -1 of the host. Collective over them, with equal arguments but for the GPU. */
tutti_status tutti_costs_measure(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm *comm, int gpu,
                                 size_t bytes);
/* In host memory, of the listed ranks, in rising order; never NULL, and valid as long as the groups. Local. */
const tutti_costs *tutti_costs_of(tutti_rank_groups *groups, const int *ranks, int nranks);

#endif
