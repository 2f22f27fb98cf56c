/*
 * Random boxes for tests. See boxes.h.
 */
#include "tests/support/boxes.h"

#include <stdio.h>
#include <string.h>

#define MOST_ELEMENTS 60000 /* of an array with gaps: with 8 dimensions the gaps would be most of it */

static uint64_t next(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static int64_t below(uint64_t *state, int64_t end) {
    return (int64_t)(next(state) % (uint64_t)end);
}

/* The strides of an array that holds such a box, whose dimension order[0] is the outermost, with `gap` indices more
 * in each dimension; returns the number of elements of the array. */
static int64_t lay(const int64_t *shape, int ndims, const int *order, int64_t gap, int64_t *strides) {
    int64_t elements = 1;
    for (int i = ndims - 1; i >= 0; i--) {
        strides[order[i]] = elements;
        elements *= shape[order[i]] + gap;
    }
    return elements;
}

/* In one of the two arrays. */
static void lay_randomly(uint64_t *state, const boxes_case *c, int64_t *strides, size_t *at_out, size_t *bytes_out) {
    int order[TUTTI_BOX_MOST_DIMS];
    const int ndims = c->box.ndims;
    for (int i = 0; i < ndims; i++) order[i] = i;
    for (int i = ndims - 1; i > 0 && below(state, 2) == 0; i--) { /* else they stay in order */
        int other = (int)below(state, i + 1), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    const int64_t gap = below(state, 3) == 0 ? 1 + below(state, 3) : 0, sparse = below(state, 8) == 0 ? 2 : 1;
    int64_t elements = lay(c->box.shape, ndims, order, gap, strides), at = 0;
    if (elements > MOST_ELEMENTS) elements = lay(c->box.shape, ndims, order, 0, strides);
    elements *= sparse;
    for (int i = 0; i < ndims; i++) {
        strides[i] *= sparse;
        if (below(state, 6) != 0 || c->box.shape[i] == 0) continue;
        at += (c->box.shape[i] - 1) * strides[i];
        strides[i] = -strides[i];
    }
    const size_t element = c->box.element_bytes, shift = below(state, 2) == 0 ? 0 : (size_t)below(state, 64);
    *at_out = (size_t)at * element + shift;
    *bytes_out = (size_t)elements * element + *at_out - (size_t)at * element;
}

void boxes_make(uint64_t seed, size_t element_bytes, int64_t most, boxes_case *case_out) {
    static const int64_t extents[] = {1, 2, 2, 3, 3, 4, 5, 7, 8, 13, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 211};
    uint64_t state = seed;
    boxes_case c = {.box = {.ndims = (int)below(&state, TUTTI_BOX_MOST_DIMS + 1), .element_bytes = element_bytes}};
    int64_t elements = 1;
    for (int i = 0; i < c.box.ndims; i++) {
        int64_t extent = extents[below(&state, sizeof extents / sizeof *extents)];
        if (elements * extent > most) extent = 1 + below(&state, 2);
        if (below(&state, 60) == 0) extent = 0;
        c.box.shape[i] = extent;
        elements *= extent > 0 ? extent : 1;
    }
    lay_randomly(&state, &c, c.box.dst_strides, &c.dst_at, &c.dst_bytes);
    lay_randomly(&state, &c, c.box.src_strides, &c.src_at, &c.src_bytes);
    *case_out = c;
}

static void copy_dim(const tutti_box *box, int dim, char *dst, const char *src) {
    const int64_t element = (int64_t)box->element_bytes;
    if (dim == box->ndims) {
        memcpy(dst, src, box->element_bytes);
        return;
    }
    for (int64_t i = 0; i < box->shape[dim]; i++)
        copy_dim(box, dim + 1, dst + i * box->dst_strides[dim] * element, src + i * box->src_strides[dim] * element);
}

void boxes_copy_slowly(const tutti_box *box, void *dst, const void *src) {
    copy_dim(box, 0, dst, src);
}

const char *boxes_text(const tutti_box *box, char *text, size_t capacity) {
    int used = snprintf(text, capacity, "%zu bytes [", box->element_bytes);
    for (int i = 0; i < box->ndims && used >= 0 && (size_t)used < capacity; i++)
        used += snprintf(text + used, capacity - (size_t)used, "%s%lld: %lld > %lld", i > 0 ? ", " : "",
                         (long long)box->shape[i], (long long)box->src_strides[i], (long long)box->dst_strides[i]);
    if (used >= 0 && (size_t)used < capacity) snprintf(text + used, capacity - (size_t)used, "]");
    return text;
}
