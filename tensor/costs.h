/*
 * The costs of moving, copying and reducing between the ranks of a plan: numbers from which plan_price.c predicts how
 * long a plan takes.
 *
 * The ranks measure them themselves, all at the same time, with the same calls that plans make, in memory of
 * tutti_mem_alloc, so that shared caches and shared cores count. The cost of a byte depends on how much memory a run
 * touches, so it is measured for several sizes; larger sizes only when a plan is that large (levels). One list of
 * ranks has one set of costs, equal on all of them. Ranks that have measured nothing yet use the costs of an
 * ordinary machine.
 *
 * Costs of a GPU's memory are a separate set, which is measured only when the program asks for it: in plain memory of
 * the GPU, with calls in a stream, until the stream has finished them.
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
    TUTTI_COST_GATHER,  /* per byte of the output of an all_gather; also for other collectives that move */
    TUTTI_COST_REDUCE,  /* per byte of the vector of an all_reduce */
    TUTTI_COST_SCATTER, /* per byte of the input of a reduce_scatter */
    TUTTI_COST_MESSAGE, /* per byte that a rank receives while it sends as many */
    TUTTI_COST_COPY,    /* within a rank, contiguous */
    TUTTI_COST_STRIDED, /* within a rank, rows of TUTTI_COST_ROW_BYTES */
    /* Per byte of another rank in a collective: unchanged since the run before; just written, so that it leaves
     * that rank's cache. */
    TUTTI_COST_PULL,
    TUTTI_COST_FRESH,
    TUTTI_COST_KINDS
} tutti_cost_kind;

enum { TUTTI_COST_POINTS = 6, TUTTI_COST_ROW_BYTES = 1024 };

typedef struct tutti_costs {
    struct tutti_costs *older; /* costs of a lower level, which other threads may be reading */
    int level, older_level;
    bool on_gpu;
    double crowd;                                        /* ranks of a host per core; at least 1 */
    double base_us[TUTTI_COST_KINDS];                    /* of a call that moves almost nothing */
    double byte_ns[TUTTI_COST_KINDS][TUTTI_COST_POINTS]; /* of each byte beyond that */
    double touched[TUTTI_COST_KINDS][TUTTI_COST_POINTS]; /* bytes of memory that a rank touches, at each point */
    double row_ns;                                       /* of each row of a strided copy */
    double far_us, far_byte_ns; /* a call between hosts, and each byte that reaches the host that receives the most */
    int nhosts;
    int host_of[]; /* host of each rank, where there are several hosts */
} tutti_costs;

/* The costs of an ordinary machine. */
extern const tutti_costs tutti_costs_ordinary;

/* The cost of a byte in a plan that touches `touched` bytes of memory of each rank. */
double tutti_costs_byte_ns(const tutti_costs *costs, tutti_cost_kind kind, double touched);

/* Measures, where needed, until the costs of the ranks of `comm`, which the groups have created for that list,
 * suffice for boxes of `bytes` bytes, in memory of this rank's GPU, or for -1 of the host. Collective over them,
 * with equal arguments except the GPU. */
tutti_status tutti_costs_measure(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm *comm, int gpu,
                                 size_t bytes);
/* The costs in host memory of the listed ranks, in rising order; never NULL, and valid as long as the groups.
 * Local. */
const tutti_costs *tutti_costs_of(tutti_rank_groups *groups, const int *ranks, int nranks);

#endif
