/*
 * Turns a plan for the host (kernels/box.h) into arguments of kernels. See box_plan.h.
 */
#include "kernels/cuda/reduce/box_plan.h"

#include <string.h>

/* The least extent of both dimensions for tiles: below it, tiles are so empty that scattered reads cost no more. */
#define TILE_LEAST 8

/* A copy in words: if a unit has several words, dims[] includes them as a dimension. */
typedef struct loops {
    char *dst;
    const char *src;
    int word_bytes, ndims;
    bool tiles;
    tutti_box_dim dims[TUTTI_CUDA_BOX_DIMS];
} loops;

static int word_for(const tutti_box_copy *copy, const char *dst, const char *src) {
    uint64_t bits = (uintptr_t)dst | (uintptr_t)src | copy->unit_bytes | 16;
    for (int i = 0; i < copy->ndims; i++) bits |= (uint64_t)copy->dims[i].dst_step | (uint64_t)copy->dims[i].src_step;
    return (int)(bits & -bits);
}

static loops make_loops(const tutti_box_copy *copy, char *dst, const char *src) {
    loops made = {.dst = dst + copy->dst_first, .src = src + copy->src_first, .ndims = copy->ndims};
    memcpy(made.dims, copy->dims, (size_t)copy->ndims * sizeof *made.dims);
    made.word_bytes = word_for(copy, made.dst, made.src);
    const int64_t words = (int64_t)copy->unit_bytes / made.word_bytes;
    if (words > 1) made.dims[made.ndims++] = (tutti_box_dim){words, made.word_bytes, made.word_bytes};
    made.tiles = copy->transposes && words == 1 && copy->dims[copy->ndims - 1].count >= TILE_LEAST &&
                 copy->dims[copy->ndims - 2].count >= TILE_LEAST;
    return made;
}

static uint32_t tiles_along(int64_t count, const tutti_cuda_box *box) {
    const uint32_t side = tutti_cuda_box_side(box->word_bytes, box->packs);
    return ((uint32_t)count + side - 1) / side;
}

/* Words are neighbours along a in dst and along b in src, and rows of both consist of whole, aligned groups of four
 * bytes. */
static bool can_pack(const loops *all) {
    const tutti_box_dim *a = &all->dims[all->ndims - 1], *b = &all->dims[all->ndims - 2];
    if (all->word_bytes > 4 || a->dst_step != all->word_bytes || b->src_step != all->word_bytes) return false;
    uint64_t bits = (uintptr_t)all->dst | (uintptr_t)all->src | (uint64_t)a->src_step | (uint64_t)b->dst_step;
    bits |= (uint64_t)(a->count | b->count) * (uint64_t)all->word_bytes;
    for (int i = 0; i < all->ndims - 2; i++) bits |= (uint64_t)all->dims[i].dst_step | (uint64_t)all->dims[i].src_step;
    return bits % 4 == 0;
}

/* All counts and their product must be below 2^31. */
static tutti_cuda_box make_box(const loops *all) {
    tutti_cuda_box box = {.dst = all->dst,
                          .src = all->src,
                          .items = 1,
                          .word_bytes = all->word_bytes,
                          .ndims = all->tiles ? all->ndims - 2 : all->ndims,
                          .tiles = all->tiles,
                          .packs = all->tiles && can_pack(all)};
    for (int i = 0; i < box.ndims; i++) {
        const tutti_box_dim *dim = &all->dims[i];
        box.dims[i] = (tutti_cuda_box_dim){dim->dst_step, dim->src_step, divider_by((int)dim->count)};
        box.items *= (uint32_t)dim->count;
    }
    if (!all->tiles) return box;
    const tutti_box_dim *a = &all->dims[all->ndims - 1], *b = &all->dims[all->ndims - 2];
    box.count_a = (uint32_t)a->count, box.dst_a = a->dst_step, box.src_a = a->src_step;
    box.count_b = (uint32_t)b->count, box.dst_b = b->dst_step, box.src_b = b->src_step;
    box.tiles_a = divider_by((int)tiles_along(a->count, &box));
    box.tiles_b = divider_by((int)tiles_along(b->count, &box));
    box.items *= box.tiles_a.divisor * box.tiles_b.divisor;
    return box;
}

/* Halves the longest dimension until no part has more than `most` words. */
static int run_in_parts(const loops *all, uint64_t most, int (*run)(const tutti_cuda_box *box, void *context),
                        void *context) {
    uint64_t words = 1;
    int longest = 0;
    for (int i = 0; i < all->ndims; i++) {
        words *= (uint64_t)all->dims[i].count;
        if (all->dims[i].count > all->dims[longest].count) longest = i;
    }
    if (words <= most) {
        const tutti_cuda_box box = make_box(all);
        return run(&box, context);
    }
    loops first = *all, second = *all;
    const tutti_box_dim *dim = &all->dims[longest];
    int64_t half = dim->count / 2;
    if (half > 4) half -= half % 4; /* both parts can be packed where the whole can */
    first.dims[longest].count = half;
    second.dims[longest].count = dim->count - half;
    second.dst += half * dim->dst_step;
    second.src += half * dim->src_step;
    const int result = run_in_parts(&first, most, run, context);
    return result != 0 ? result : run_in_parts(&second, most, run, context);
}

int tutti_cuda_box_each(const tutti_box_copy *copy, void *dst, const void *src, uint32_t most,
                        int (*run)(const tutti_cuda_box *box, void *context), void *context) {
    if (copy->bytes == 0) return 0;
    const loops all = make_loops(copy, dst, src);
    return run_in_parts(&all, most, run, context);
}
