/*
 * Copies of boxes as the kernels take them: by value, ready to run. Made on the host, by code that needs no GPU.
 *
 * A word is the unit that a thread moves at once: the longest that all addresses and steps permit. Words are numbered
 * in the order in which they lie in dst, and so are the tiles of a transpose; a thread or block computes its place
 * from a number by divisions, the innermost dimension first.
 */
#ifndef TUTTI_KERNELS_CUDA_BOX_PLAN_H
#define TUTTI_KERNELS_CUDA_BOX_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/box.h"
#include "kernels/cuda/divide.h"

#define TUTTI_CUDA_BOX_DIMS  (TUTTI_BOX_MOST_DIMS + 1) /* plus one for the words of a unit */
#define TUTTI_CUDA_BOX_WORDS 5                         /* lengths of a word: 1, 2, 4, 8 and 16 bytes */

typedef struct tutti_cuda_box_dim {
    int64_t dst_step, src_step; /* bytes */
    divider by;                 /* divides by the dimension's extent */
} tutti_cuda_box_dim;

/* A kernel's argument. */
typedef struct tutti_cuda_box {
    char *dst;
    const char *src;
    uint32_t items; /* words, or tiles where `tiles` is set; below 2^31 */
    int word_bytes, ndims;
    bool tiles;
    bool packs; /* with tiles: threads move four bytes at once, one word or several neighbours */
    tutti_cuda_box_dim dims[TUTTI_CUDA_BOX_DIMS]; /* outermost first */
    /* With tiles: the two dimensions that they lie in; dims are those around them. Steps are shortest in dst along a,
     * in src along b. */
    uint32_t count_a, count_b;
    int64_t dst_a, src_a, dst_b, src_b;
    divider tiles_a, tiles_b;
} tutti_cuda_box;

/* Words on each side of a tile. */
static inline uint32_t tutti_cuda_box_side(int word_bytes, bool packs) {
    if (packs && word_bytes == 1) return 128;
    return packs || word_bytes < 4 ? 64 : 32;
}

/* Calls `run` for each kernel that a copy takes: one, unless there are more than `most` words; none for an empty box.
 * Stops at the first call that does not return 0, and returns its result. */
int tutti_cuda_box_each(const tutti_box_copy *copy, void *dst, const void *src, uint32_t most,
                        int (*run)(const tutti_cuda_box *box, void *context), void *context);
#define TUTTI_CUDA_BOX_MOST ((uint32_t)INT32_MAX) /* the largest number that can be divided */

#endif
