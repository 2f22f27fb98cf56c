/*
 * Copies of N-dimensional boxes between strided arrays: they move a part of a tensor into a message and out of it.
 *
 *   tutti_box (shapes and strides, as callers give them)  ->  tutti_box_plan  ->  tutti_box_copy  ->  tutti_box_run
 *
 * A plan drops dimensions of one element, merges dimensions that are contiguous in both arrays, and orders the
 * loops. It is a plain value without pointers: it may be copied, kept, and run on any two arrays, here or on a GPU
 * (kernels/device.h, copy_box). Nothing here allocates or fails. Bytes between the elements of dst are not touched.
 */
#ifndef TUTTI_KERNELS_BOX_H
#define TUTTI_KERNELS_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#define TUTTI_BOX_MOST_DIMS 8

/* shape[0] x shape[1] x ... elements; element [i, j, ...] lies i * strides[0] + j * strides[1] + ... elements after
 * (with a negative stride: before) the address given to tutti_box_run. */
typedef struct tutti_box {
    int ndims;                                /* 0, which is one element, to TUTTI_BOX_MOST_DIMS */
    size_t element_bytes;                     /* >= 1; 1, 2, 4 and 8 are fast */
    int64_t shape[TUTTI_BOX_MOST_DIMS];       /* a 0 makes the box empty */
    int64_t dst_strides[TUTTI_BOX_MOST_DIMS], /* in elements, of any sign; not 0 where the extent is above 1 */
        src_strides[TUTTI_BOX_MOST_DIMS];
} tutti_box;

typedef struct tutti_box_dim {
    int64_t count;                /* >= 2 */
    ptrdiff_t dst_step, src_step; /* bytes from one index to the next */
} tutti_box_dim;

/* Any code may read its fields; only tutti_box_plan sets them. */
typedef struct tutti_box_copy {
    size_t bytes;                   /* total; 0: an empty box */
    size_t unit_bytes;              /* contiguous bytes in both arrays: an element or more */
    ptrdiff_t dst_first, src_first; /* offset of the first unit from the given addresses, in bytes */
    int ndims;                      /* loops around a unit; 0: the box is one unit */
    /* The innermost loop has the shortest steps in dst, the loop around it the shortest steps in src: the two are
     * run in blocks. */
    bool transposes;
    tutti_box_dim dims[TUTTI_BOX_MOST_DIMS]; /* outermost first */
} tutti_box_copy;

/* The next two are exported for libtutti_ops, which is a separate library. */
TUTTI_API void tutti_box_plan(const tutti_box *box, tutti_box_copy *copy_out);

/* dst and src: addresses of element [0, 0, ...]; any alignment. Elements of dst must not overlap those of src, nor
 * each other. */
TUTTI_API void tutti_box_run(const tutti_box_copy *copy, void *dst, const void *src);

/* The same for a dst that another core reads next: long rows are written past the caches, with a fence at the end
 * (see copy.h). */
void tutti_box_run_stream(const tutti_box_copy *copy, void *dst, const void *src);

/* Returns 0 for an empty box. */
static inline size_t tutti_box_bytes(const tutti_box_copy *copy) {
    return copy->bytes;
}

/* True when the copy is one memcpy, or nothing: then it copies `bytes` from src + src_first to dst + dst_first. */
static inline bool tutti_box_is_contiguous(const tutti_box_copy *copy) {
    return copy->ndims == 0;
}

#endif
