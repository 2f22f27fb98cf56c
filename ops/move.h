/*
 * Rows of operators that only move elements.
 */
#ifndef TUTTI_OPS_MOVE_H
#define TUTTI_OPS_MOVE_H

#include "ops/call.h"

/* Params: int order[ndims] | tutti_ops_slice_of | the same | int dim */
extern const tutti_ops_row tutti_ops_row_transpose, tutti_ops_row_slice, tutti_ops_row_slice_backward,
    tutti_ops_row_concat;

typedef struct tutti_ops_slice_of {
    const int64_t *first, *end;
    const int64_t *whole; /* for the gradient of a slice: the shape of the sliced tensor */
} tutti_ops_slice_of;

#endif
