/*
 * Random boxes for tests of copies between strided arrays (kernels/box.h), and a copy index by index to compare with.
 */
#ifndef TUTTI_TESTS_BOXES_H
#define TUTTI_TESTS_BOXES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/box.h"

/* A box with the two arrays that contain it. Element [0, 0, ...] is dst_at (src_at) bytes behind the beginning of an
 * array of dst_bytes (src_bytes) bytes; the box, or a gap behind it, may extend to the last of them. */
typedef struct boxes_case {
    tutti_box box;
    size_t dst_at, src_at, dst_bytes, src_bytes;
} boxes_case;

/* A random box, the same one for the same seed: up to 8 dimensions, about `most` elements at most, gaps, any order of
 * dimensions, negative strides, any alignment. */
void boxes_make(uint64_t seed, size_t element_bytes, int64_t most, boxes_case *case_out);

/* dst and src are the addresses of element [0, 0, ...]. */
void boxes_copy_slowly(const tutti_box *box, void *dst, const void *src);

/* For messages, "8 bytes [3: -1 > 5, ...]": extents, strides in src and in dst. */
const char *boxes_text(const tutti_box *box, char *text, size_t capacity);

#endif
