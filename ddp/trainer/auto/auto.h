/*
 * Automatic parallelism: chooses the strategy with the shortest predicted step.
 *
 *   calibrate   all ranks   measures kernels at the local shapes that strategies would use, and the links between the
 *                           ranks (pieces.h, price.h)
 *   search      rank 0      finds the best strategy for each way to arrange the ranks in one to three axes (search.h);
 *                           chooses the best of these and of the plain modes: data parallelism unless another one is
 *                           better by a margin
 *   agree       all ranks   rank 0's strategy is broadcast
 *
 * With a memory limit, bytes have a price, too. Bisection finds the lowest price at which the best strategy fits
 * the limit. The memory that a strategy needs is then computed by planning it.
 */
#ifndef TUTTI_TRAINER_AUTO_H
#define TUTTI_TRAINER_AUTO_H

#include "ddp/trainer/auto/price.h"
#include "ddp/trainer/auto/search.h"

#define TUTTI_AUTO_MESHES 32
#define TUTTI_AUTO_PLAIN  3

typedef struct tutti_auto_setup {
    tutti_comm *comm;
    tutti_compute *compute;
    const char *precision; /* of matrix products on a GPU; NULL: fp32 */
    const tutti_model_layers *list;
    tutti_shape in;
    int batch; /* samples of all ranks together */
    const char *optimizer;
    tutti_update_options update;
    bool zero;            /* ZeRO-1 */
    bool expanded;        /* --loss softmax_cross_entropy_expand */
    double sample_us;     /* time to make one sample of a batch (batches.h) */
    int64_t memory_limit; /* bytes per rank; 0: no limit */
    int naxes;            /* axes of the mesh to use; 0: any mesh */
    const int *sizes;
    const tutti_strategy *given; /* another strategy to price; NULL: none */
    bool searches;               /* strategies of all meshes will be priced */
} tutti_auto_setup;

typedef struct tutti_auto {
    tutti_auto_setup setup;
    tutti_model *whole;
    tutti_auto_pieces pieces;
    tutti_prices *meshes;
    int nmeshes;
    struct {
        tutti_parallel_mode mode;
        tutti_strategy *strategy;
        bool allowed;
    } plain[TUTTI_AUTO_PLAIN];
    double search_seconds;
} tutti_auto;

/* Collective: measures everything that is not known yet. */
tutti_status tutti_auto_open(tutti_auto *automatic, const tutti_auto_setup *setup);
/* Accepts a struct that is only partly opened. */
void tutti_auto_close(tutti_auto *automatic);

/* Collective: the best strategy, the same on all ranks. */
tutti_status tutti_auto_choose(tutti_auto *automatic, tutti_strategy *strategy_out);

/* Local: the price of a step. The mesh must be one that tutti_auto_open was given. */
tutti_status tutti_auto_price(tutti_auto *automatic, const tutti_strategy *strategy, tutti_step_price *price_out);
/* Local: bytes of memory that a strategy needs on this rank: parameters, gradients, optimizer state, activations as
 * planned. */
tutti_status tutti_auto_bytes(tutti_auto *automatic, const tutti_strategy *strategy, double *bytes_out);

/* ---------------------------------------------------------------------------------------------- tables.c */

/* The search on one mesh: tables of microseconds, and tables of bytes beside them. */
typedef struct tutti_tables {
    tutti_search search;
    double **us, **bytes;                                     /* by table */
    uint8_t (*choices)[TUTTI_PRICE_CHOICES][TUTTI_MOST_AXES]; /* by layer */
} tutti_tables;

/* While the prices are not measured, this only notes pieces. */
tutti_status tutti_tables_open(tutti_tables *tables, tutti_prices *prices);
void tutti_tables_close(tutti_tables *tables);
/* Finds the best strategy if a byte of memory costs `byte_us`. */
tutti_status tutti_tables_solve(tutti_tables *tables, const tutti_prices *prices, double byte_us,
                                tutti_strategy *strategy_out, double *least_out);

#endif
