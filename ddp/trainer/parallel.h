/*
 * A model that is cut over ranks: the list of nodes, of which each is a layer as a whole, becomes a list of what this rank has.
 *
 *   strategy along an axis   reads x as   writes y as   gets dy as   gives dx as   weights     gradients
 *   samples                  S(samples)   S(samples)    S(samples)   S(samples)    broadcast   are summed over the axis
 *   outputs, with weights    broadcast    S(channels)   S(channels)  P(sum)        split       -
 *   outputs, without         S(channels)  S(channels)   S(channels)  S(channels)   split       -
 *   inputs                   S(channels)  P(sum)        broadcast    S(channels)   split       -
 *   none                     broadcast    broadcast     broadcast    broadcast     broadcast   are equal
 *
 * Where a layer's output or its gradient is not as the reader wants it, a node of the kind redistribute stands between: a plan of
 * <tutti/tensor.h> forwards, another one backwards. A layer with bias or ReLU that is divided by inputs becomes three: the product,
 * whose sums are partial, the redistribution that adds them, and a node of the kind bias. What is equal along an axis is computed by
 * each rank from equal numbers, and so stays equal.
 */
#ifndef TUTTI_TRAINER_PARALLEL_H
#define TUTTI_TRAINER_PARALLEL_H

#include "ddp/trainer/model.h"
#include "ddp/trainer/strategy.h"

typedef struct tutti_parallel {
    tutti_comm *comm;           /* of the job */
    tutti_placement *placement; /* all ranks of the job, with the strategy's axes */
    const tutti_strategy *strategy;
    int batch;            /* of all ranks together */
    bool divided_classes; /* the loss takes logits of some classes each, too */
} tutti_parallel;

/* `whole`: the nodes of the model as one rank has them, placed. Gives the list of this rank, placed too; each node has a part. The
 * caller frees nodes and parts. What cannot be cut is the same error on all ranks. */
tutti_status tutti_parallel_cut(const tutti_parallel *parallel, const tutti_node *whole, int nwhole,
                                tutti_node **nodes_out, tutti_part **parts_out, int *count_out);

/* How a node's parameter, or state, is divided: fills in sbp, first, part and sums from dims. */
tutti_status tutti_parallel_divide(const tutti_parallel *parallel, const tutti_node *node, bool is_bias,
                                   tutti_parameter *parameter);

/* Makes the plans of all redistributions. Collective. Nodes' buffers have their addresses. */
tutti_status tutti_parallel_connect(const tutti_parallel *parallel, tutti_node *nodes, int nnodes);
void tutti_parallel_disconnect(tutti_node *nodes, int nnodes);

/* Runs a redistribution. */
tutti_status tutti_parallel_forward(const tutti_compute *compute, const tutti_node *node);
tutti_status tutti_parallel_backward(const tutti_compute *compute, const tutti_node *node);

/* What nodes are made by, for code that prices a strategy without making them. The table above: fills in x, dx, y and dy from
 * the part's splits. */
void tutti_parallel_fill_layouts(const tutti_strategy *mesh, tutti_layer_kind kind, tutti_part *part);
/* Is an activation that is one also the other, without a change of memory? */
bool tutti_parallel_is_same(const tutti_strategy *mesh, const tutti_sbp *a, tutti_shape of_a, const tutti_sbp *b,
                            tutti_shape of_b);
/* What a layer reads: a dense layer sees all that belongs to a sample as channels. */
tutti_shape tutti_parallel_seen_by(const tutti_node *whole);
/* Bias and ReLU of a layer, whose splits `part` has: along the axes of its inputs as the next layer wants it. reader: the first
 * that reads the layer, of part `next`; NULL: none. */
void tutti_parallel_choose_bias(const tutti_strategy *mesh, const tutti_node *whole, const tutti_node *reader,
                                const tutti_part *next, tutti_part *part);

/* The layout of an activation, for explanations: "S0,B". */
void tutti_parallel_format(const tutti_parallel *parallel, const tutti_sbp *sbp, char *text, size_t bytes);

/* How many parts of a batch have statistics of their own in batch norm, where a model that is not cut is on `nranks`; 0: there is no
 * batch norm. */
int tutti_parallel_norm_parts(const tutti_model *model, int nranks);

#endif
