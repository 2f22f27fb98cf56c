/*
 * Rules: how the dimensions of an operator's inputs and output correspond, in einsum letters (factors in Shardy).
 *
 *     "xmk,xkn->xmn" with sums "k"    split m: a and y are split; split k: a and b are split, y is partial(sum)
 *
 * A digit stands for a dimension of that extent without a letter: "ab,1b->ab" broadcasts b along a. A whole letter
 * is never split. An input's dimension may be a part of its letter's range (concat, slice): it begins at an offset.
 */
#ifndef TUTTI_OPS_RULE_H
#define TUTTI_OPS_RULE_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/tensor.h>

enum { TUTTI_OPS_INPUTS = 16, TUTTI_OPS_FACTORS = 20, TUTTI_OPS_GROUPS = 4, TUTTI_OPS_RULE_TEXT = 192 };

/* An input, or the output. */
typedef struct tutti_ops_dims {
    int ndims;
    int factor[TUTTI_MOST_DIMS];     /* index of the letter; -1: no letter */
    int64_t shape[TUTTI_MOST_DIMS];  /* of the whole tensor */
    int64_t offset[TUTTI_MOST_DIMS]; /* where the dimension begins in its letter's range */
} tutti_ops_dims;

typedef struct tutti_ops_rule {
    char text[TUTTI_OPS_RULE_TEXT];
    int ninputs, nfactors;
    tutti_ops_dims inputs[TUTTI_OPS_INPUTS], output;
    char letters[TUTTI_OPS_FACTORS];
    int64_t extents[TUTTI_OPS_FACTORS]; /* -1: not known yet */
    unsigned sums;  /* mask of letters: where one is split, the output, which lacks it, is partial(reduction) */
    unsigned whole; /* mask of letters that stay whole */
    tutti_reduction reduction;
} tutti_ops_rule;

/* Reads letters, inputs and the output; `sums` and `whole` list letters (NULL: none). Returns false if the text is
 * not a rule, which is a bug of the operator. */
bool tutti_ops_rule_read(const char *text, const char *sums, const char *whole, tutti_ops_rule *rule_out);
/* Returns the letter's index; -1: not in the rule. */
int tutti_ops_rule_find(const tutti_ops_rule *rule, char letter);
/* Returns the dimension that has the letter; -1: none. */
int tutti_ops_dims_find(const tutti_ops_dims *dims, int factor);

#endif
