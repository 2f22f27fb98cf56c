/*
 * Rows of softmax and its loss.
 */
#ifndef TUTTI_OPS_LOSS_H
#define TUTTI_OPS_LOSS_H

#include "ops/call.h"

/* Inputs: x | y, dy | logits, labels | logits, max | logits, labels | max, sums, label's logits, labels | logits,
 * labels, max, sums, dlosses */
extern const tutti_ops_row tutti_ops_row_softmax, tutti_ops_row_softmax_backward, tutti_ops_row_cross_entropy,
    tutti_ops_row_exp_sums, tutti_ops_row_label_logits, tutti_ops_row_losses, tutti_ops_row_cross_entropy_backward;

/* Params of rows that use labels. */
typedef struct tutti_ops_classes {
    int64_t count; /* classes on all ranks together */
} tutti_ops_classes;

#endif
