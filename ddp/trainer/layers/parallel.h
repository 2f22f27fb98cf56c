/*
 * A model that is cut over ranks: the list of nodes, each a whole layer, becomes a list of this rank's parts.
 *
 *   strategy along an axis   reads x as   writes y as   gets dy as   gives dx as   weights     gradients
 *   samples                  S(samples)   S(samples)    S(samples)   S(samples)    broadcast   are summed over the axis
 *   outputs, with weights    broadcast    S(channels)   S(channels)  P(sum)        split       -
 *   outputs, without         S(channels)  S(channels)   S(channels)  S(channels)   split       -
 *   inputs                   S(channels)  P(sum)        broadcast    S(channels)   split       -
 *   none                     broadcast    broadcast     broadcast    broadcast     broadcast   are equal
 *
 * If the layout of a layer's output or of its gradient is not the one that the reader needs, a node of the kind
 * redistribute is inserted: one plan of <tutti/tensor.h> forward, another backward. A layer with bias or ReLU that
 * is divided by inputs becomes three nodes: the product, whose sums are partial, the redistribution that adds them,
 * and a node of the kind bias. Values that are equal along an axis are computed by each rank from equal numbers,
 * and so stay equal.
 */
#ifndef TUTTI_TRAINER_PARALLEL_H
#define TUTTI_TRAINER_PARALLEL_H

#include "ddp/trainer/layers/model.h"
#include "ddp/trainer/layers/strategy.h"

typedef struct tutti_parallel {
    tutti_comm *comm;           /* the job's */
    tutti_placement *placement; /* all ranks of the job, with the strategy's axes */
    const tutti_strategy *strategy;
    int batch;            /* samples of all ranks together */
    bool divided_classes; /* the loss accepts logits of a part of the classes */
} tutti_parallel;

/* `whole`: the placed nodes of the whole model. Returns this rank's list, also placed; each node has a part. The
 * caller frees nodes and parts. A layer that cannot be cut is the same error on all ranks. */
tutti_status tutti_parallel_cut(const tutti_parallel *parallel, const tutti_node *whole, int nwhole,
                                tutti_node **nodes_out, tutti_part **parts_out, int *count_out);

/* Fills in sbp, first, part and sums of a node's parameter or state from its dims. */
tutti_status tutti_parallel_divide(const tutti_parallel *parallel, const tutti_node *node, bool is_bias,
                                   tutti_parameter *parameter);

/* Makes the plans of all redistributions. Collective. The nodes' buffers must have their addresses. */
tutti_status tutti_parallel_connect(const tutti_parallel *parallel, tutti_node *nodes, int nnodes);
void tutti_parallel_disconnect(tutti_node *nodes, int nnodes);

/* Runs a redistribution. */
tutti_status tutti_parallel_forward(const tutti_compute *compute, const tutti_node *node);
tutti_status tutti_parallel_backward(const tutti_compute *compute, const tutti_node *node);

/* The rules by which nodes are made, for code that prices a strategy without making them. This one fills in x, dx,
 * y and dy from the part's splits by the table above. */
void tutti_parallel_fill_layouts(const tutti_strategy *mesh, tutti_layer_kind kind, tutti_part *part);
/* Returns whether activations of the layouts a and b are the same in memory. */
bool tutti_parallel_is_same(const tutti_strategy *mesh, const tutti_sbp *a, tutti_shape of_a, const tutti_sbp *b,
                            tutti_shape of_b);
/* The shape that a layer reads: a dense layer sees all values of a sample as channels. */
tutti_shape tutti_parallel_seen_by(const tutti_node *whole);
/* Chooses the layout of the bias and ReLU of a layer with the splits of `part`: along the axes divided by inputs,
 * the layout that the next layer needs. reader: the first node that reads the layer, with part `next`; NULL: none. */
void tutti_parallel_choose_bias(const tutti_strategy *mesh, const tutti_node *whole, const tutti_node *reader,
                                const tutti_part *next, tutti_part *part);

/* The number of parts of a batch for which batch norm computes separate statistics, if a model that is not cut runs
 * on `nranks` ranks; 0: there is no batch norm. */
int tutti_parallel_norm_parts(const tutti_model *model, int nranks);

#endif
