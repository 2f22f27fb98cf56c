/*
 * Turns a box, as callers describe it, into loops over bytes. See box.h.
 *
 * Every loop goes upwards through dst; a loop that went downwards begins at its other end. Loops are ordered by
 * their steps in dst, so that dst is written in the order in which it lies in memory; then two loops that make one
 * longer row are neighbours and merge. If a loop other than the innermost has the shortest steps in src, the two
 * become the innermost loops: box.c runs them in blocks, so that a cache line is used up while it is in the cache,
 * on both sides.
 */
#include <assert.h>
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "kernels/box.h"

static void swap_ends(tutti_box_copy *copy, tutti_box_dim *dim) {
    copy->dst_first += (dim->count - 1) * dim->dst_step;
    copy->src_first += (dim->count - 1) * dim->src_step;
    dim->dst_step = -dim->dst_step;
    dim->src_step = -dim->src_step;
}

/* Inserts the loop: loops are sorted by steps in dst, the longest first. */
static void insert(tutti_box_copy *copy, tutti_box_dim dim) {
    int at = copy->ndims++;
    for (; at > 0 && copy->dims[at - 1].dst_step < dim.dst_step; at--) copy->dims[at] = copy->dims[at - 1];
    copy->dims[at] = dim;
}

static void drop(tutti_box_copy *copy, int at) {
    copy->ndims--;
    for (int i = at; i < copy->ndims; i++) copy->dims[i] = copy->dims[i + 1];
}

static void merge(tutti_box_copy *copy) {
    for (int i = copy->ndims - 2; i >= 0; i--) {
        const tutti_box_dim *outer = &copy->dims[i];
        tutti_box_dim *inner = &copy->dims[i + 1];
        if (outer->dst_step != inner->count * inner->dst_step || outer->src_step != inner->count * inner->src_step)
            continue;
        inner->count *= outer->count;
        drop(copy, i);
    }
    if (copy->ndims == 0) return;
    const tutti_box_dim *last = &copy->dims[copy->ndims - 1];
    const ptrdiff_t unit = (ptrdiff_t)copy->unit_bytes;
    if (last->dst_step != unit || last->src_step != unit) return;
    copy->unit_bytes *= (size_t)last->count;
    copy->ndims--;
}

/* Returns the loop with the shortest steps in src. */
static int nearest_in_src(const tutti_box_copy *copy) {
    int nearest = copy->ndims - 1;
    for (int i = nearest - 1; i >= 0; i--)
        if (labs(copy->dims[i].src_step) < labs(copy->dims[nearest].src_step)) nearest = i;
    return nearest;
}

/* Makes the loop with the shortest steps in src the second innermost. Units of a cache line and more use up the
 * lines that they touch in any order, and need no change. */
static void order_for_src(tutti_box_copy *copy) {
    const int nearest = nearest_in_src(copy), last = copy->ndims - 1;
    if (nearest == last || copy->unit_bytes >= TUTTI_CACHE_LINE) return;
    tutti_box_dim moved = copy->dims[nearest];
    for (int i = nearest; i < last - 1; i++) copy->dims[i] = copy->dims[i + 1];
    if (moved.src_step < 0) swap_ends(copy, &moved);
    copy->dims[last - 1] = moved;
    copy->transposes = true;
}

void tutti_box_plan(const tutti_box *box, tutti_box_copy *copy_out) {
    assert(box->ndims >= 0 && box->ndims <= TUTTI_BOX_MOST_DIMS && box->element_bytes >= 1);
    const ptrdiff_t element = (ptrdiff_t)box->element_bytes;
    tutti_box_copy copy = {.bytes = box->element_bytes, .unit_bytes = box->element_bytes};
    for (int i = 0; i < box->ndims; i++) copy.bytes *= (size_t)box->shape[i];
    if (copy.bytes == 0) {
        *copy_out = (tutti_box_copy){0};
        return;
    }
    for (int i = 0; i < box->ndims; i++) {
        tutti_box_dim dim = {box->shape[i], box->dst_strides[i] * element, box->src_strides[i] * element};
        if (dim.count < 2) continue;
        assert(dim.dst_step != 0 && dim.src_step != 0);
        if (dim.dst_step < 0) swap_ends(&copy, &dim);
        insert(&copy, dim);
    }
    merge(&copy);
    if (copy.ndims > 1) order_for_src(&copy);
    *copy_out = copy;
}
