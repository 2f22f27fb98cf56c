/*
 * Layouts that the library keeps: checked, copied, with all cuts computed.
 */
#ifndef TUTTI_TENSOR_LAYOUT_H
#define TUTTI_TENSOR_LAYOUT_H

#include <tutti/tensor.h>

#include "tensor/tiling.h"

typedef struct tutti_kept_layout {
    int references;    /* atomic */
    uint64_t serial;   /* unique */
    uint64_t hash;     /* equal for equal layouts in the same memory (tutti_layout_fits) */
    tutti_layout view; /* the layout that users see; its pointers lead into this struct */
    tutti_tiling tiling;
    int64_t nelements;
    tutti_sbp sbp[TUTTI_MOST_AXES];
    int64_t shape[TUTTI_MOST_DIMS];
    const int64_t *cuts[TUTTI_MOST_DIMS];
    char name[64];
} tutti_kept_layout;

/* Checks and copies a layout. Free it with tutti_layout_release. */
tutti_status tutti_layout_keep(const tutti_layout *layout, tutti_kept_layout **kept_out);
/* A copy on a shadow of the placement. */
tutti_status tutti_layout_shadow(const tutti_kept_layout *kept, tutti_kept_layout **shadow_out);
tutti_kept_layout *tutti_layout_again(tutti_kept_layout *kept);
void tutti_layout_release(tutti_kept_layout *kept); /* NULL is allowed */

/* True for the same boxes and the same partial axes on the same ranks, and one type, whatever the memory. */
bool tutti_layout_is_equal(const tutti_kept_layout *a, const tutti_kept_layout *b);
/* True when they are also in the same memory: a shard of one is a shard of the other. */
bool tutti_layout_fits(const tutti_kept_layout *a, const tutti_kept_layout *b);
/* True when a partial axis has more than one rank. */
bool tutti_layout_is_partial(const tutti_kept_layout *kept);
/* Writes "'w' float32[64,3] S0,B on ranks 0,1 as 2"; without the placement where `text` is short. */
void tutti_layout_text(const tutti_kept_layout *kept, char *text, size_t bytes);

#endif
