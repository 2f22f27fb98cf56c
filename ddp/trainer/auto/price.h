/*
 * The cost of a strategy, layer by layer:
 *
 *   a layer        its kernels at the rank's shape, the reduction of its parameters' gradients, their update
 *   its output     the redistributions to its readers, forward and backward; bias and ReLU after partial sums; the sums
 *                  of several readers' gradients; for the last layer the redistribution for the loss, and the loss
 *   the input      making the samples that the rank reads, if the thread that makes them has no core of its own
 *
 * Layers with no trained layer before them do not run backward; frozen parameters are neither reduced nor updated.
 *
 * A layer's price depends on its own splits only, the price of an output on the splits of the layer and its
 * readers. So a strategy's price is a sum of small tables, which search.h minimizes. All prices are for coordinate
 * 0 of the mesh, whose parts are the largest.
 *
 * Times of kernels are measured (pieces.h); times of redistributions and reductions are predicted by
 * tutti_layout_predict from measured costs of the links between ranks.
 */
#ifndef TUTTI_TRAINER_PRICE_H
#define TUTTI_TRAINER_PRICE_H

#include "ddp/trainer/auto/pieces.h"
#include "ddp/trainer/layers/parallel.h"

#define TUTTI_PRICE_CHOICES 64 /* strategies of a layer on three axes */

typedef struct tutti_price {
    double forward_us, backward_us; /* kernels; for an output also redistributions */
    double moved_us;                /* redistributions, included above */
    double batch_us;                /* making the rank's samples, included above */
    double gradient_us;             /* its parameters' gradients, reduced one after another */
    double update_us;
    double bytes;    /* memory: parameters, gradients, optimizer state, activations */
    double received; /* bytes that the rank receives in a step: activations and their gradients, */
    double reduced;  /* and parameters' gradients */
} tutti_price;

typedef struct tutti_price_setup {
    tutti_comm *comm;
    const tutti_model *whole; /* an outline that is not cut */
    int batch;                /* samples of all ranks together */
    const char *optimizer;
    tutti_update_options update;
    tutti_auto_pieces *pieces;
    bool overlaps; /* gradients are reduced during backward */
    bool zero;     /* the optimizer's state is divided over the ranks whose gradients are summed */
    /* the loss accepts a part of the classes on each rank, and then reduces two numbers for each sample */
    bool expanded;
    double sample_us; /* time of a rank's core to make a sample; 0: another core makes them */
} tutti_price_setup;

/* The prices on one mesh. */
typedef struct tutti_prices {
    tutti_price_setup setup;
    tutti_strategy *mesh; /* its layers are not used */
    tutti_placement *placement;
    /* readers of all nodes, one after another; those of node i are at first_reader[i] up to first_reader[i + 1] */
    int *readers, *first_reader;
    bool counts_bytes;      /* count received bytes; a search does not need them */
    bool measured;          /* false: pieces are noted, and nothing is predicted */
    double gradient_weight; /* weight of gradients' reductions in a search */
    double trained;         /* number of parameters that are not frozen */
    /* time per element for each set of axes, if all gradients are reduced together; below 0: not known */
    double reduce_us[1 << 3];
    tutti_part *parts;              /* the layouts of each kind of layer, by its splits */
    struct tutti_price_edge *edges; /* a hash table of predictions */
    size_t nedges, edges_size;
    tutti_status failure; /* the first one */
} tutti_prices;

/* Up to three axes. Local. */
tutti_status tutti_prices_open(tutti_prices *prices, const tutti_price_setup *setup, const int *sizes, int naxes);
/* Accepts a struct that is only partly opened. */
void tutti_prices_close(tutti_prices *prices);

/* Lists all splits of layer `whole` (a node of the outline, from 1 on) that its kind and its extents allow; samples
 * first. */
int tutti_prices_list(const tutti_prices *prices, int whole, uint8_t (*choices_out)[TUTTI_MOST_AXES]);

/* Returns whether the kind and the extents of each layer allow the strategy. */
bool tutti_prices_allow(const tutti_prices *prices, const tutti_strategy *strategy);

/* The nodes that read node `whole` (0: the input), in order. */
int tutti_prices_readers(const tutti_prices *prices, int whole, const int **readers_out);

tutti_price tutti_prices_layer(tutti_prices *prices, int whole, const uint8_t *splits);
/* `splits`: by node; only those of `whole` and of its readers are used. */
tutti_price tutti_prices_output(tutti_prices *prices, int whole, const uint8_t *const *splits);

/* The sum that a search minimizes. */
double tutti_prices_sum(const tutti_prices *prices, const tutti_price *price);

/* The price of a step of the strategy, whose mesh must be that of the prices. */
typedef struct tutti_step_price {
    double us;        /* the whole step */
    double reduce_us; /* part of it: gradients that backward does not hide */
    double move_us;   /* part of it: redistributions */
    double batch_us;  /* part of it: making batches */
    double received;  /* bytes that a rank receives: activations and their gradients, */
    double reduced;   /* and parameters' gradients */
    double bytes;     /* memory, approximately */
    tutti_price layers[TUTTI_MODEL_LAYERS + 1], outputs[TUTTI_MODEL_LAYERS + 1];
} tutti_step_price;
tutti_status tutti_prices_step(tutti_prices *prices, const tutti_strategy *strategy, tutti_step_price *price_out);

#endif
