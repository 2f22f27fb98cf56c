/*
 * What a strategy costs, layer by layer:
 *
 *   of a layer        its kernels at the shape that the rank has, the reduction of its parameters' gradients, their update
 *   of its output     the redistributions to its readers, forwards and backwards; bias and ReLU behind partial sums; the sums of
 *                     several readers' gradients; of the last layer the way to the loss, and the loss
 *   of the input      making the samples that the rank reads, where the thread that does so has no core of its own
 *
 * Layers before which nothing is trained do not run backwards; frozen parameters are neither reduced nor updated.
 *
 * A layer's price depends on its own splits only, that of an output on the layer's and its readers'. So a strategy's price is a
 * sum of small tables, which search.h makes as small as possible. All is of coordinate 0 of the mesh, whose parts are the largest.
 *
 * Kernels' times are measured (pieces.h), redistributions' and reductions' predicted by tutti_layout_predict, which knows measured
 * costs of what joins the ranks.
 */
#ifndef TUTTI_TRAINER_PRICE_H
#define TUTTI_TRAINER_PRICE_H

#include "ddp/trainer/auto/pieces.h"
#include "ddp/trainer/parallel.h"

#define TUTTI_PRICE_CHOICES 64 /* strategies of a layer on three axes */

typedef struct tutti_price {
    double forward_us, backward_us; /* kernels, of an output: what is moved, too */
    double moved_us;                /* of these: redistributions */
    double batch_us;                /* of these: making the rank's samples */
    double gradient_us;             /* its parameters' gradients, reduced one after the other */
    double update_us;
    double bytes;    /* of memory: parameters, gradients, optimizer's state, activations */
    double received; /* bytes that a step brings the rank: activations and their gradients, */
    double reduced;  /* and parameters' gradients */
} tutti_price;

typedef struct tutti_price_setup {
    tutti_comm *comm;
    const tutti_model *whole; /* an outline that is not cut */
    int batch;                /* of all ranks together */
    const char *optimizer;
    tutti_update_options update;
    tutti_auto_pieces *pieces;
    bool overlaps;    /* gradients travel while backward computes */
    bool zero;        /* the optimizer's state is divided over the ranks whose gradients are summed */
    bool expanded;    /* the loss takes logits of some classes each, too, and reduces two numbers of each sample */
    double sample_us; /* what making a sample takes from each rank's core; 0: another core makes them */
} tutti_price_setup;

/* Of one mesh. */
typedef struct tutti_prices {
    tutti_price_setup setup;
    tutti_strategy *mesh; /* layers are not looked at */
    tutti_placement *placement;
    int *readers,
        *first_reader; /* of all nodes, one after the other; of node i from first_reader[i] to first_reader[i + 1] */
    bool counts_bytes; /* that travel: a search does not look at them */
    bool measured;     /* false: pieces are noted, and nothing is predicted */
    double gradient_weight;   /* what is counted of gradients' reductions, in a search */
    double trained;           /* parameters that are not frozen */
    double reduce_us[1 << 3]; /* of an element, for each set of axes, as a part of all that are; below 0: not known */
    tutti_part *parts;        /* the layouts of each kind of layer, by its splits */
    struct tutti_price_edge *edges; /* a hash table of predictions */
    size_t nedges, edges_size;
    tutti_status failure; /* the first one */
} tutti_prices;

/* Up to three axes. Local. */
tutti_status tutti_prices_open(tutti_prices *prices, const tutti_price_setup *setup, const int *sizes, int naxes);
/* Accepts half-opened ones. */
void tutti_prices_close(tutti_prices *prices);

/* All splits of layer `whole` (a node of the outline, from 1 on) that its kind and its extents allow; samples first. */
int tutti_prices_list(const tutti_prices *prices, int whole, uint8_t (*choices_out)[TUTTI_MOST_AXES]);

/* Does each layer's kind, and each of its extents, allow the strategy? */
bool tutti_prices_allow(const tutti_prices *prices, const tutti_strategy *strategy);

/* The nodes that read node `whole` (0: the input), in order. */
int tutti_prices_readers(const tutti_prices *prices, int whole, const int **readers_out);

tutti_price tutti_prices_layer(tutti_prices *prices, int whole, const uint8_t *splits);
/* `splits`: of all nodes; those of `whole` and of its readers are looked at. */
tutti_price tutti_prices_output(tutti_prices *prices, int whole, const uint8_t *const *splits);

/* Microseconds to sum `count` elements' gradients over the ranks of these axes. */
double tutti_prices_reduce(tutti_prices *prices, unsigned axes, double count);

/* What counts in a search. */
double tutti_prices_sum(const tutti_prices *prices, const tutti_price *price);

/* A step of the strategy, whose mesh is that of the prices. */
typedef struct tutti_step_price {
    double us;        /* of all */
    double reduce_us; /* of it: gradients that backward does not hide */
    double move_us;   /* of it: redistributions */
    double batch_us;  /* of it: making batches */
    double received;  /* bytes that it brings a rank: activations and their gradients, */
    double reduced;   /* and parameters' gradients */
    double bytes;     /* of memory, about */
    tutti_price layers[TUTTI_MODEL_LAYERS + 1], outputs[TUTTI_MODEL_LAYERS + 1];
} tutti_step_price;
tutti_status tutti_prices_step(tutti_prices *prices, const tutti_strategy *strategy, tutti_step_price *price_out);

#endif
