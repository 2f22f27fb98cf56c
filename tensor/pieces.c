/*
 * The parts that two shards have in common. See pieces.h.
 */
#include "tensor/pieces.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"

/* ------------------------------------------------------------------------------------------------- owners */

static bool is_same_shape(const tutti_transfer *transfer) {
    return transfer->src->ndims == transfer->dst->ndims &&
           memcmp(transfer->src->shape, transfer->dst->shape,
                  (size_t)transfer->src->ndims * sizeof *transfer->src->shape) == 0;
}

/* True when the rank with these coordinates holds the box. */
static bool holds_parts(const tutti_tiling *tiling, const int coordinates[TUTTI_MOST_AXES],
                        const int parts[TUTTI_MOST_DIMS]) {
    const tutti_placement *placement = tiling->placement;
    for (int d = 0; d < tiling->ndims; d++) {
        int part = 0;
        for (int i = 0; i < tiling->nsplits[d]; i++)
            part = part * placement->sizes[tiling->axes[d][i]] + coordinates[tiling->axes[d][i]];
        if (part != parts[d]) return false;
    }
    return true;
}

/* Replaces the coordinates on the splitting axes by those of the box. */
static void set_parts(const tutti_tiling *tiling, const int parts[TUTTI_MOST_DIMS], int coordinates[TUTTI_MOST_AXES]) {
    for (int d = 0; d < tiling->ndims; d++) {
        int part = parts[d];
        for (int i = tiling->nsplits[d] - 1; i >= 0; i--) {
            int axis = tiling->axes[d][i], size = tiling->placement->sizes[axis];
            coordinates[axis] = part % size;
            part /= size;
        }
    }
}

/* The index, in the source's placement, of the rank from which the dst_index-th rank of the target gets its part of
 * the box with these parts. */
static int owner_of(const tutti_transfer *transfer, const int parts[TUTTI_MOST_DIMS], int dst_index) {
    const tutti_tiling *src = transfer->src;
    const tutti_placement *from = src->placement, *to = transfer->dst->placement;
    int coordinates[TUTTI_MOST_AXES] = {0};
    bool same = tutti_placement_is_alike(from, to);
    int own = same ? dst_index : tutti_placement_find(from, to->ranks[dst_index]);
    if (own >= 0) {
        tutti_placement_locate(from, own, coordinates);
        if (holds_parts(src, coordinates, parts)) return own;
    }
    if (!same) { /* the ranks that hold the box take turns */
        int turn = dst_index;
        for (int axis = from->naxes - 1; axis >= 0; axis--) {
            coordinates[axis] = 0;
            if (tutti_tiling_is_split(src, axis)) continue;
            coordinates[axis] = turn % from->sizes[axis];
            turn /= from->sizes[axis];
        }
    }
    set_parts(src, parts, coordinates);
    return tutti_placement_index(from, coordinates);
}

/* ------------------------------------------------------------------------------------------- runs of numbers */

/* The row-major numbers of a region's elements, as runs of consecutive numbers, in rising order. */
typedef struct run_walk {
    const tutti_tiling *tiling;
    tutti_region region;
    int inner;      /* dimensions from here on are whole, so that a run covers them and one more */
    int64_t length; /* of each run */
    int64_t strides[TUTTI_MOST_DIMS];
    int64_t at[TUTTI_MOST_DIMS];
    int64_t first, local; /* of this run: its first number, and its position in the shard */
    bool over;
} run_walk;

static void place_run(run_walk *walk) {
    walk->first = 0;
    for (int d = 0; d < walk->tiling->ndims; d++) walk->first += walk->at[d] * walk->strides[d];
}

static void walk_begin(run_walk *walk, const tutti_tiling *tiling, int index) {
    int64_t stride = 1;
    *walk = (run_walk){.tiling = tiling};
    tutti_tiling_region(tiling, index, &walk->region);
    for (int d = tiling->ndims - 1; d >= 0; d--) {
        walk->strides[d] = stride;
        stride *= tiling->shape[d];
    }
    int d = tiling->ndims;
    walk->length = 1;
    while (d > 0) {
        d--;
        walk->length *= walk->region.end[d] - walk->region.first[d];
        if (walk->region.end[d] - walk->region.first[d] != tiling->shape[d]) break;
    }
    walk->inner = d;
    walk->over = tutti_region_elements(&walk->region) == 0;
    memcpy(walk->at, walk->region.first, sizeof walk->at);
    place_run(walk);
}

static void walk_next(run_walk *walk) {
    walk->local += walk->length;
    int d = walk->inner - 1;
    for (; d >= 0; d--) {
        if (++walk->at[d] < walk->region.end[d]) break;
        walk->at[d] = walk->region.first[d];
    }
    walk->over = d < 0;
    if (!walk->over) place_run(walk);
}

/* ------------------------------------------------------------------------------------------------- blocks */

static tutti_status append(tutti_blocks *blocks, const tutti_box *box, int64_t src_first, int64_t dst_first) {
    if (blocks->count == blocks->capacity) {
        size_t capacity = blocks->capacity > 0 ? 2 * blocks->capacity : 1;
        tutti_block *items = realloc(blocks->items, capacity * sizeof *items);
        if (items == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the %zu pieces of a plan", capacity);
        blocks->items = items;
        blocks->capacity = capacity;
    }
    tutti_block *block = &blocks->items[blocks->count++];
    *block = (tutti_block){.src_first = src_first, .dst_first = dst_first};
    tutti_box_plan(box, &block->copy);
    blocks->bytes += block->copy.bytes;
    return TUTTI_OK;
}

/* The dense strides of a region, and the position of `at` in its shard. */
static int64_t locate_in(const tutti_region *shard, const int64_t at[TUTTI_MOST_DIMS],
                         int64_t strides[TUTTI_MOST_DIMS]) {
    int64_t stride = 1, offset = 0;
    for (int d = shard->ndims - 1; d >= 0; d--) {
        strides[d] = stride;
        offset += (at[d] - shard->first[d]) * stride;
        stride *= shard->end[d] - shard->first[d];
    }
    return offset;
}

/* Appends the one box that both shards have. */
static tutti_status append_box(const tutti_transfer *transfer, const tutti_region *from, const tutti_region *to,
                               tutti_piece_use use, int64_t at, tutti_blocks *blocks) {
    tutti_region common;
    if (!tutti_region_intersect(from, to, &common)) return TUTTI_OK;
    tutti_box box = {.ndims = common.ndims, .element_bytes = transfer->element_bytes};
    for (int d = 0; d < common.ndims; d++) box.shape[d] = common.end[d] - common.first[d];
    int64_t src_first = use == TUTTI_PIECE_UNPACK ? at + locate_in(&common, common.first, box.src_strides)
                                                  : locate_in(from, common.first, box.src_strides);
    int64_t dst_first = use == TUTTI_PIECE_PACK ? at + locate_in(&common, common.first, box.dst_strides)
                                                : locate_in(to, common.first, box.dst_strides);
    return append(blocks, &box, src_first, dst_first);
}

/* Runs of one length at equal distances become one block. */
typedef struct run_row {
    int64_t src, dst, length, src_step, dst_step, count;
} run_row;

static tutti_status append_row(const run_row *row, size_t element_bytes, tutti_blocks *blocks) {
    tutti_box box = {.ndims = 2, .element_bytes = element_bytes, .shape = {row->count, row->length}};
    if (row->count == 0) return TUTTI_OK;
    box.src_strides[0] = row->src_step;
    box.dst_strides[0] = row->dst_step;
    box.src_strides[1] = box.dst_strides[1] = 1;
    return append(blocks, &box, row->src, row->dst);
}

static tutti_status add_run(run_row *row, int64_t src, int64_t dst, int64_t length, size_t element_bytes,
                            tutti_blocks *blocks) {
    bool fits = row->count > 0 && length == row->length;
    if (fits && row->count == 1) {
        row->src_step = src - row->src;
        row->dst_step = dst - row->dst;
        row->count = 2;
        return TUTTI_OK;
    }
    if (fits && src == row->src + row->count * row->src_step && dst == row->dst + row->count * row->dst_step) {
        row->count++;
        return TUTTI_OK;
    }
    TUTTI_TRY(append_row(row, element_bytes, blocks));
    *row = (run_row){.src = src, .dst = dst, .length = length, .count = 1};
    return TUTTI_OK;
}

/* With different shapes: goes through the two lists of runs in parallel. */
static tutti_status append_runs(const tutti_transfer *transfer, int src_index, int dst_index, tutti_piece_use use,
                                int64_t at, tutti_blocks *blocks) {
    run_walk from, to;
    run_row row = {0};
    walk_begin(&from, transfer->src, src_index);
    walk_begin(&to, transfer->dst, dst_index);
    while (!from.over && !to.over) {
        int64_t first = from.first > to.first ? from.first : to.first;
        int64_t end = tutti_min_i64(from.first + from.length, to.first + to.length);
        if (first < end) {
            int64_t src = use == TUTTI_PIECE_UNPACK ? at : from.local + first - from.first;
            int64_t dst = use == TUTTI_PIECE_PACK ? at : to.local + first - to.first;
            TUTTI_TRY(add_run(&row, src, dst, end - first, transfer->element_bytes, blocks));
            at += end - first;
        }
        bool from_ends = from.first + from.length <= to.first + to.length;
        bool to_ends = to.first + to.length <= from.first + from.length;
        if (from_ends) walk_next(&from);
        if (to_ends) walk_next(&to);
    }
    return append_row(&row, transfer->element_bytes, blocks);
}

tutti_status tutti_shards_list_pieces(const tutti_transfer *transfer, int src_index, int dst_index, tutti_piece_use use,
                                      int64_t at, tutti_blocks *blocks) {
    tutti_region from, to;
    if (!is_same_shape(transfer)) return append_runs(transfer, src_index, dst_index, use, at, blocks);
    tutti_tiling_region(transfer->src, src_index, &from);
    tutti_tiling_region(transfer->dst, dst_index, &to);
    return append_box(transfer, &from, &to, use, at, blocks);
}

/* True when the two shards have an element in common. */
static bool overlap(const tutti_transfer *transfer, int src_index, int dst_index) {
    tutti_region from, to, common;
    if (is_same_shape(transfer)) {
        tutti_tiling_region(transfer->src, src_index, &from);
        tutti_tiling_region(transfer->dst, dst_index, &to);
        return tutti_region_intersect(&from, &to, &common);
    }
    run_walk a, b;
    walk_begin(&a, transfer->src, src_index);
    walk_begin(&b, transfer->dst, dst_index);
    while (!a.over && !b.over) {
        int64_t a_end = a.first + a.length, b_end = b.first + b.length;
        if (a.first < b_end && b.first < a_end) return true;
        if (a_end <= b_end) walk_next(&a);
        else walk_next(&b);
    }
    return false;
}

bool tutti_shards_give(const tutti_transfer *transfer, int src_index, int dst_index) {
    int parts[TUTTI_MOST_DIMS];
    if (transfer->wants != NULL && !transfer->wants[dst_index]) return false;
    tutti_tiling_parts(transfer->src, src_index, parts);
    return owner_of(transfer, parts, dst_index) == src_index && overlap(transfer, src_index, dst_index);
}

void tutti_blocks_free(tutti_blocks *blocks) {
    free(blocks->items);
    *blocks = (tutti_blocks){0};
}

bool tutti_blocks_are_contiguous(const tutti_blocks *blocks) {
    return blocks->count == 0 || (blocks->count == 1 && tutti_box_is_contiguous(&blocks->items[0].copy));
}

void tutti_blocks_run(const tutti_blocks *blocks, size_t element_bytes, void *dst, const void *src, bool streams) {
    for (size_t i = 0; i < blocks->count; i++) {
        const tutti_block *block = &blocks->items[i];
        (streams ? tutti_box_run_stream : tutti_box_run)(&block->copy,
                                                         (char *)dst + block->dst_first * (int64_t)element_bytes,
                                                         (const char *)src + block->src_first * (int64_t)element_bytes);
    }
}
