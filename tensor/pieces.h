/*
 * Pieces: what one rank's shard and another's have in common, and how it is copied.
 *
 * Of the ranks that hold a box of the source, each receiver has one owner: itself where it holds the box, else the one that stands
 * where the receiver stands on the axes that make copies, if both placements are the same, else they take turns. All follows from what
 * is equal on all ranks, so that each rank works out its own row only. Boxes of a source have no element in common, so each element
 * that a rank lacks comes exactly once.
 *
 * Where the shapes differ, elements correspond by their row-major numbers; a shard's order in memory is that of these numbers, too.
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
    tutti_block *items; /* free() */
    size_t count, capacity;
    size_t bytes; /* of all of them */
} tutti_blocks;

/* Between two tilings of one tensor. `wants` says of each index of the target's placement whether that rank needs data; NULL: all. */
typedef struct tutti_transfer {
    const tutti_tiling *src, *dst;
    const bool *wants;
    size_t element_bytes;
} tutti_transfer;

/* The index, in the source's placement, of the rank from which the dst_index-th rank of the target gets what it needs of the box with
 * these parts. */
int tutti_transfer_owner(const tutti_transfer *transfer, const int parts[TUTTI_MOST_DIMS], int dst_index);
/* Whether the src_index-th rank of the source gives the dst_index-th of the target anything; itself included. */
bool tutti_transfer_gives(const tutti_transfer *transfer, int src_index, int dst_index);

/* Of what these two have in common: the copy from the one's shard to the other's (PIECE_LOCAL), into a message (PIECE_PACK), out of
 * it (PIECE_UNPACK). In a message the elements lie one behind the other, by their numbers, from element `at` on. Appends to blocks. */
typedef enum tutti_piece_use { TUTTI_PIECE_LOCAL, TUTTI_PIECE_PACK, TUTTI_PIECE_UNPACK } tutti_piece_use;
tutti_status tutti_transfer_piece(const tutti_transfer *transfer, int src_index, int dst_index, tutti_piece_use use,
                                  int64_t at, tutti_blocks *blocks);

void tutti_blocks_free(tutti_blocks *blocks);
/* One contiguous copy, or nothing. */
bool tutti_blocks_are_contiguous(const tutti_blocks *blocks);
/* `streams`: past the caches, for what is more than they hold. */
void tutti_blocks_run(const tutti_blocks *blocks, size_t element_bytes, void *dst, const void *src, bool streams);

#endif
