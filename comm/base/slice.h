/*
 * The only place that splits elements over n ranks. Slices are whole cache lines, so that two ranks never write to
 * the same line; the first ranks get one line more.
 */
#ifndef TUTTI_SLICE_H
#define TUTTI_SLICE_H

#include "bootstrap/base/common.h"

typedef struct tutti_slice {
    size_t start, count; /* elements */
} tutti_slice;

static inline tutti_slice tutti_slice_of(size_t count, size_t item_bytes, int nranks, int rank) {
    size_t granule = TUTTI_CACHE_LINE / item_bytes, n = (size_t)nranks, r = (size_t)rank;
    size_t lines = (count + granule - 1) / granule;
    size_t each = lines / n, more = lines % n;
    size_t start = tutti_min_size((r * each + tutti_min_size(r, more)) * granule, count);
    size_t end = tutti_min_size(start + (each + (r < more)) * granule, count);
    return (tutti_slice){.start = start, .count = end - start};
}

#endif
