/*
 * Cuts and boxes. See tiling.h.
 */
#include "tensor/tiling.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"

void tutti_tiling_begin(tutti_tiling *tiling, tutti_placement *placement, int ndims, const int64_t *shape) {
    *tiling = (tutti_tiling){.placement = placement, .ndims = ndims};
    for (int d = 0; d < ndims; d++) {
        tiling->shape[d] = shape[d];
        tiling->nparts[d] = 1;
    }
}

void tutti_tiling_free(tutti_tiling *tiling) {
    for (int d = 0; d < tiling->ndims; d++) free(tiling->offsets[d]);
    tiling->ndims = 0;
}

/* Dimensions that are not split have no offsets until a second part is requested. */
static int64_t offset_of(const tutti_tiling *tiling, int dim, int part) {
    if (tiling->offsets[dim] != NULL) return tiling->offsets[dim][part];
    return part == 0 ? 0 : tiling->shape[dim];
}

int64_t tutti_split_begin(int64_t extent, int part, int nparts, tutti_split_rule rule) {
    if (rule == TUTTI_SPLIT_CHUNK) {
        int64_t chunk = extent / nparts + (extent % nparts != 0);
        return tutti_min_i64(part * chunk, extent);
    }
    return part * (extent / nparts) + tutti_min_i64(part, extent % nparts);
}

tutti_status tutti_tiling_split(tutti_tiling *tiling, int dim, int axis, tutti_split_rule rule) {
    int size = tiling->placement->sizes[axis], before = tiling->nparts[dim], after = before * size;
    int64_t *offsets;
    TUTTI_TRY(tutti_calloc((size_t)after + 1, sizeof *offsets, &offsets));
    for (int part = 0; part < after; part++) {
        int64_t first = offset_of(tiling, dim, part / size), end = offset_of(tiling, dim, part / size + 1);
        offsets[part] = first + tutti_split_begin(end - first, part % size, size, rule);
    }
    offsets[after] = tiling->shape[dim];
    free(tiling->offsets[dim]);
    tiling->offsets[dim] = offsets;
    tiling->nparts[dim] = after;
    tiling->axes[dim][tiling->nsplits[dim]++] = axis;
    return TUTTI_OK;
}

void tutti_tiling_cut(tutti_tiling *tiling, int dim, const int64_t *offsets) {
    if (tiling->offsets[dim] != NULL)
        memcpy(tiling->offsets[dim], offsets, ((size_t)tiling->nparts[dim] + 1) * sizeof *offsets);
}

tutti_status tutti_tiling_copy(const tutti_tiling *tiling, tutti_tiling *copy_out) {
    tutti_tiling copy = *tiling;
    memset(copy.offsets, 0, sizeof copy.offsets);
    for (int d = 0; d < tiling->ndims; d++) {
        if (tiling->offsets[d] == NULL) continue;
        size_t count = (size_t)tiling->nparts[d] + 1;
        tutti_status status = tutti_calloc(count, sizeof *copy.offsets[d], &copy.offsets[d]);
        if (status != TUTTI_OK) {
            tutti_tiling_free(&copy);
            return status;
        }
        memcpy(copy.offsets[d], tiling->offsets[d], count * sizeof *copy.offsets[d]);
    }
    *copy_out = copy;
    return TUTTI_OK;
}

tutti_status tutti_tiling_cut_evenly(const tutti_tiling *tiling, unsigned axes, tutti_tiling *cut_out, bool *done_out) {
    int dim = 0;
    while (dim < tiling->ndims && tiling->shape[dim] <= 1) dim++;
    *done_out = dim < tiling->ndims;
    if (!*done_out) return TUTTI_OK;
    TUTTI_TRY(tutti_tiling_copy(tiling, cut_out));
    for (int axis = 0; axis < tiling->placement->naxes; axis++) {
        if ((axes >> axis & 1) == 0) continue;
        tutti_status status = tutti_tiling_split(cut_out, dim, axis, TUTTI_SPLIT_BALANCED);
        if (status == TUTTI_OK) continue;
        tutti_tiling_free(cut_out);
        return status;
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ regions */

int64_t tutti_tiling_elements(const tutti_tiling *tiling) {
    int64_t count = 1;
    for (int d = 0; d < tiling->ndims; d++) count *= tiling->shape[d];
    return count;
}

int64_t tutti_tiling_largest(const tutti_tiling *tiling) {
    int64_t product = 1;
    for (int d = 0; d < tiling->ndims; d++) {
        int64_t most = tiling->offsets[d] == NULL ? tiling->shape[d] : 0;
        for (int part = 0; part < tiling->nparts[d] && tiling->offsets[d] != NULL; part++)
            if (tiling->offsets[d][part + 1] - tiling->offsets[d][part] > most)
                most = tiling->offsets[d][part + 1] - tiling->offsets[d][part];
        product *= most;
    }
    return product;
}

int64_t tutti_region_elements(const tutti_region *region) {
    int64_t count = 1;
    for (int d = 0; d < region->ndims; d++) count *= region->end[d] - region->first[d];
    return count;
}

bool tutti_region_intersect(const tutti_region *a, const tutti_region *b, tutti_region *common_out) {
    tutti_region common = {.ndims = a->ndims};
    for (int d = 0; d < a->ndims; d++) {
        common.first[d] = a->first[d] > b->first[d] ? a->first[d] : b->first[d];
        common.end[d] = tutti_min_i64(a->end[d], b->end[d]);
        if (common.first[d] >= common.end[d]) return false;
    }
    *common_out = common;
    return true;
}

bool tutti_tiling_is_split(const tutti_tiling *tiling, int axis) {
    for (int d = 0; d < tiling->ndims; d++)
        for (int i = 0; i < tiling->nsplits[d]; i++)
            if (tiling->axes[d][i] == axis) return true;
    return false;
}

tutti_status tutti_tiling_shares(const tutti_tiling *target, tutti_tiling *shares_out, bool *done_out) {
    unsigned axes = 0;
    for (int axis = 0; axis < target->placement->naxes; axis++)
        if (target->placement->sizes[axis] > 1 && !tutti_tiling_is_split(target, axis)) axes |= 1u << axis;
    *done_out = false;
    return axes != 0 ? tutti_tiling_cut_evenly(target, axes, shares_out, done_out) : TUTTI_OK;
}

void tutti_tiling_parts(const tutti_tiling *tiling, int index, int parts[TUTTI_MOST_DIMS]) {
    int coordinates[TUTTI_MOST_AXES];
    tutti_placement_locate(tiling->placement, index, coordinates);
    for (int d = 0; d < tiling->ndims; d++) {
        parts[d] = 0;
        for (int i = 0; i < tiling->nsplits[d]; i++) {
            int axis = tiling->axes[d][i];
            parts[d] = parts[d] * tiling->placement->sizes[axis] + coordinates[axis];
        }
    }
}

void tutti_tiling_region(const tutti_tiling *tiling, int index, tutti_region *region_out) {
    int parts[TUTTI_MOST_DIMS];
    tutti_tiling_parts(tiling, index, parts);
    region_out->ndims = tiling->ndims;
    for (int d = 0; d < tiling->ndims; d++) {
        region_out->first[d] = offset_of(tiling, d, parts[d]);
        region_out->end[d] = offset_of(tiling, d, parts[d] + 1);
    }
}

bool tutti_tiling_is_equal(const tutti_tiling *a, const tutti_tiling *b) {
    if (!tutti_placement_is_alike(a->placement, b->placement) || a->ndims != b->ndims) return false;
    for (int d = 0; d < a->ndims; d++) {
        if (a->shape[d] != b->shape[d] || a->nsplits[d] != b->nsplits[d]) return false;
        for (int i = 0; i < a->nsplits[d]; i++)
            if (a->axes[d][i] != b->axes[d][i]) return false;
        for (int part = 1; part < a->nparts[d]; part++)
            if (offset_of(a, d, part) != offset_of(b, d, part)) return false;
    }
    return true;
}
