/*
 * Pieces: the part that one rank's shard has in common with another's, and how it is copied.
 *
 * Each receiver of a box has one owner among the ranks that hold the box in the source: the receiver itself where it
 * holds the box; else, if both placements are the same, the rank at the receiver's position on the axes that make
 * copies; else the holders take turns. All of this follows from facts that are equal on all ranks, so each rank
 * computes only its own row. Boxes of a source have no element in common, so each element that a rank lacks arrives
 * exactly once.
 *
 * Where the shapes differ, elements correspond by their row-major numbers; a shard's order in memory is that of these
 * numbers, too.
 */
#ifndef TUTTI_TENSOR_PIECES_H
#define TUTTI_TENSOR_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/box.h"
#include "tensor/tiling.h"

/* A strided copy: from element src_first of one array to element dst_first of another. */
typedef struct tutti_block {
    int64_t src_first, dst_first;
    tutti_box_copy copy;
} tutti_block;

typedef struct tutti_blocks {
    tutti_block *items; /* release with free() */
    size_t count, capacity;
    size_t bytes; /* of all items */
} tutti_blocks;

/* A transfer between two tilings of one tensor. `wants`: for each index of the target's placement, whether that
 * rank needs data; NULL: all do. */
typedef struct tutti_transfer {
    const tutti_tiling *src, *dst;
    const bool *wants;
    size_t element_bytes;
} tutti_transfer;

/* True when the src_index-th rank of the source sends anything to the dst_index-th rank of the target, which may be
 * the same rank. */
bool tutti_shards_give(const tutti_transfer *transfer, int src_index, int dst_index);

/* Appends to `blocks` the copies of the elements that the two ranks have in common: from one shard to the other
 * (PIECE_LOCAL), into a message (PIECE_PACK), or out of it (PIECE_UNPACK). In a message the elements are
 * contiguous, by their numbers, from element `at` on. */
typedef enum tutti_piece_use { TUTTI_PIECE_LOCAL, TUTTI_PIECE_PACK, TUTTI_PIECE_UNPACK } tutti_piece_use;
tutti_status tutti_shards_list_pieces(const tutti_transfer *transfer, int src_index, int dst_index, tutti_piece_use use,
                                      int64_t at, tutti_blocks *blocks);

void tutti_blocks_free(tutti_blocks *blocks);
/* True when the blocks are one contiguous copy, or nothing. */
bool tutti_blocks_are_contiguous(const tutti_blocks *blocks);
/* `streams`: write past the caches, for copies that are larger than the caches. */
void tutti_blocks_run(const tutti_blocks *blocks, size_t element_bytes, void *dst, const void *src, bool streams);

#endif
