/*
 * How a shape is cut into boxes, and which ranks of a placement hold each: a layout without its partial axes.
 *
 * Each dimension is cut at its offsets; part number p of a dimension follows from the coordinates of the axes that
 * split it, the first axis outermost. Axes that split nothing make copies: ranks that differ only on them hold the
 * same box.
 *
 *     placement 2x2, S1,S0, shape 4x6:    offsets[0] = 0 2 4, of axis 1    offsets[1] = 0 3 6, of axis 0
 */
#ifndef TUTTI_TENSOR_TILING_H
#define TUTTI_TENSOR_TILING_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/tensor.h>

#include "tensor/placement.h"

/* A box: [first[d], end[d]) in each dimension. */
typedef struct tutti_region {
    int ndims;
    int64_t first[TUTTI_MOST_DIMS], end[TUTTI_MOST_DIMS];
} tutti_region;

typedef struct tutti_tiling {
    tutti_placement *placement;
    int ndims;
    int64_t shape[TUTTI_MOST_DIMS];
    int nsplits[TUTTI_MOST_DIMS];               /* axes that split the dimension */
    int axes[TUTTI_MOST_DIMS][TUTTI_MOST_AXES]; /* these axes, outermost first */
    int nparts[TUTTI_MOST_DIMS];
    int64_t *offsets[TUTTI_MOST_DIMS]; /* nparts + 1 */
} tutti_tiling;

/* The whole shape on each rank; free it with tutti_tiling_free, also after a failed split. */
void tutti_tiling_begin(tutti_tiling *tiling, tutti_placement *placement, int ndims, const int64_t *shape);
/* Cuts each part of the dimension once more, along the axis, which must split nothing yet. */
tutti_status tutti_tiling_split(tutti_tiling *tiling, int dim, int axis, tutti_split_rule rule);
/* Replaces the offsets of a dimension, after all its splits have been made. */
void tutti_tiling_cut(tutti_tiling *tiling, int dim, const int64_t *offsets);
/* Makes a copy in which the first dimension of more than one element is cut once more, evenly along the axes of the
 * mask, inside of its present cuts: where it has none, the parts are contiguous in memory, in order. Without
 * such a dimension it makes no copy and sets *done_out to false. */
tutti_status tutti_tiling_cut_evenly(const tutti_tiling *tiling, unsigned axes, tutti_tiling *cut_out, bool *done_out);
/* Computes the tiling in which each of the ranks that are to hold one box gets a share of it. *done_out false: no
 * box is held by several ranks. */
tutti_status tutti_tiling_shares(const tutti_tiling *target, tutti_tiling *shares_out, bool *done_out);
tutti_status tutti_tiling_copy(const tutti_tiling *tiling, tutti_tiling *copy_out);
void tutti_tiling_free(tutti_tiling *tiling);

/* Number of elements of the whole shape, or of a region. */
int64_t tutti_tiling_elements(const tutti_tiling *tiling);
/* Number of elements of the largest box. */
int64_t tutti_tiling_largest(const tutti_tiling *tiling);
int64_t tutti_region_elements(const tutti_region *region);
/* Returns false and writes nothing where the two have no element in common. */
bool tutti_region_intersect(const tutti_region *a, const tutti_region *b, tutti_region *common_out);

/* True when the axis splits any dimension. */
bool tutti_tiling_is_split(const tutti_tiling *tiling, int axis);
/* The part of each dimension that the index-th rank of the placement has, and its box. */
void tutti_tiling_parts(const tutti_tiling *tiling, int index, int parts[TUTTI_MOST_DIMS]);
void tutti_tiling_region(const tutti_tiling *tiling, int index, tutti_region *region_out);
/* True for the same boxes on the same ranks. */
bool tutti_tiling_is_equal(const tutti_tiling *a, const tutti_tiling *b);

#endif
