/*
 * Automatic parallelism: of all strategies the one whose step is predicted to be the shortest.
 *
 *   calibrate   all ranks   kernels at the local shapes that strategies would give them, what joins the ranks (pieces.h, price.h)
 *   search      rank 0      for each way to array the ranks in one to three axes the best strategy (search.h); of those and of the
 *                           plain modes' the best, data parallelism unless another one is better by a margin
 *   agree       all ranks   rank 0's strategy is broadcast
 *
 * With a limit of memory bytes have a price, too, which is found by bisection: the lowest with which the best strategy keeps to the
 * limit. What a strategy takes is then found out by planning it.
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
    const char *precision; /* of a GPU's products; NULL: fp32 */
    const tutti_model_layers *list;
    tutti_shape in;
    int batch; /* of all ranks together */
    const char *optimizer;
    tutti_update_options update;
    bool zero;            /* ZeRO-1 */
    bool expanded;        /* --loss softmax_cross_entropy_expand */
    double sample_us;     /* what making a sample of a batch takes (batches.h) */
    int64_t memory_limit; /* bytes of each rank; 0: none */
    int naxes;            /* the mesh to take; 0: any */
    const int *sizes;
    const tutti_strategy *given; /* what is to be priced besides; NULL: nothing */
    bool searches;               /* strategies of all meshes will be asked for */
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

/* Collective: measures what is not known yet. */
tutti_status tutti_auto_open(tutti_auto *automatic, const tutti_auto_setup *setup);
/* Accepts half-opened ones. */
void tutti_auto_close(tutti_auto *automatic);

/* Collective: the best strategy, the same on all ranks. */
tutti_status tutti_auto_choose(tutti_auto *automatic, tutti_strategy *strategy_out);

/* Local: a step of a strategy on a mesh that was named to open. */
tutti_status tutti_auto_price(tutti_auto *automatic, const tutti_strategy *strategy, tutti_step_price *price_out);
/* Local: bytes that a strategy takes on this rank: parameters, gradients, optimizer's state, activations as they are planned. */
tutti_status tutti_auto_bytes(tutti_auto *automatic, const tutti_strategy *strategy, double *bytes_out);

/* ---------------------------------------------------------------------------------------------- tables.c */

/* The search of a mesh: tables of microseconds, and of bytes beside them. */
typedef struct tutti_tables {
    tutti_search search;
    double **us, **bytes;                                     /* of each table */
    uint8_t (*choices)[TUTTI_PRICE_CHOICES][TUTTI_MOST_AXES]; /* of each layer */
} tutti_tables;

/* While the prices are not measured, pieces are noted. */
tutti_status tutti_tables_open(tutti_tables *tables, tutti_prices *prices);
void tutti_tables_close(tutti_tables *tables);
/* The best strategy where a byte of memory costs `byte_us`. */
tutti_status tutti_tables_solve(tutti_tables *tables, const tutti_prices *prices, double byte_us,
                                tutti_strategy *strategy_out, double *least_out);

#endif
