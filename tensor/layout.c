/*
 * Checks and keeps layouts. Errors follow from facts that are equal on all ranks, so that all ranks report the same
 * text.
 */
#include "tensor/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/hash.h"
#include "kernels/reduce.h"

/* ------------------------------------------------------------------------------------------------ checks */

static const char *name_of(const tutti_layout *layout) {
    return layout->name != NULL ? layout->name : "tensor";
}

/* "[3136,512]" */
static const char *shape_text(const tutti_layout *layout, char text[128]) {
    size_t used = (size_t)snprintf(text, 128, "[");
    for (int d = 0; d < layout->ndims && used < 120; d++)
        used += (size_t)snprintf(text + used, 128 - used, d > 0 ? ",%lld" : "%lld", (long long)layout->shape[d]);
    snprintf(text + (used < 127 ? used : 126), 2, "]");
    return text;
}

static const char *sbp_text(const tutti_layout *layout, char text[128]) {
    static const tutti_sbp none[TUTTI_MOST_AXES];
    tutti_sbp_format(layout->sbp != NULL ? layout->sbp : none, layout->placement->naxes, text, 128);
    return text;
}

static tutti_status check_head(const tutti_layout *layout) {
    if (layout->placement == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tensor '%.60s': its layout has no placement", name_of(layout));
    if (tutti_type_bytes(layout->type) == 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tensor '%.60s': %d is not a type", name_of(layout), (int)layout->type);
    if (layout->ndims < 0 || layout->ndims > TUTTI_MOST_DIMS || (layout->ndims > 0 && layout->shape == NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tensor '%.60s' has %d dimensions%s; it may have 0 to %d",
                          name_of(layout), layout->ndims, layout->shape == NULL ? " and no shape" : "",
                          TUTTI_MOST_DIMS);
    if (layout->rule != TUTTI_SPLIT_BALANCED && layout->rule != TUTTI_SPLIT_CHUNK)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tensor '%.60s': %d is not a rule for splits", name_of(layout),
                          (int)layout->rule);
    return TUTTI_OK;
}

static tutti_status check_shape(const tutti_layout *layout, int64_t *nelements_out) {
    char shape[128];
    int64_t bytes = (int64_t)tutti_type_bytes(layout->type), product = 1;
    for (int d = 0; d < layout->ndims; d++) {
        if (layout->shape[d] < 0)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "tensor '%.60s' %s: dimension %d has a negative extent",
                              name_of(layout), shape_text(layout, shape), d);
        if (__builtin_mul_overflow(product, layout->shape[d] > 0 ? layout->shape[d] : 1, &product) ||
            product > INT64_MAX / bytes)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "tensor '%.60s' %s has more than 2^63 bytes", name_of(layout),
                              shape_text(layout, shape));
    }
    *nelements_out = product;
    for (int d = 0; d < layout->ndims; d++)
        if (layout->shape[d] == 0) *nelements_out = 0;
    return TUTTI_OK;
}

static tutti_status fail_sbp(const tutti_layout *layout, int axis, const char *problem) {
    char shape[128], sbp[128];
    return tutti_fail(TUTTI_ERR_ARGUMENT, "tensor '%.60s' %s, sbp %s, axis %d: %s", name_of(layout),
                      shape_text(layout, shape), sbp_text(layout, sbp), axis, problem);
}

static tutti_status check_sbp(const tutti_layout *layout, int axis) {
    char problem[160];
    tutti_sbp sbp = layout->sbp[axis];
    switch (sbp.kind) {
    case TUTTI_SBP_BROADCAST: return TUTTI_OK;
    case TUTTI_SBP_SPLIT:
        if (sbp.dim >= 0 && sbp.dim < layout->ndims) return TUTTI_OK;
        if (layout->ndims == 0)
            snprintf(problem, sizeof problem, "dimension %d cannot be split: it is a scalar", sbp.dim);
        else
            snprintf(problem, sizeof problem, "dimension %d cannot be split: there are dimensions 0 to %d", sbp.dim,
                     layout->ndims - 1);
        return fail_sbp(layout, axis, problem);
    case TUTTI_SBP_PARTIAL:
        if (sbp.reduction == TUTTI_PREMUL_SUM || sbp.reduction < 0 || sbp.reduction >= TUTTI_REDUCTION_COUNT)
            return fail_sbp(layout, axis, "a partial value is of sum, prod, min, max, avg, band, bor or bxor");
        if (tutti_reduce_supports(layout->type, sbp.reduction)) return TUTTI_OK;
        snprintf(problem, sizeof problem, "there is no %s of %s", tutti_reduction_name(sbp.reduction),
                 tutti_type_name(layout->type));
        return fail_sbp(layout, axis, problem);
    }
    return fail_sbp(layout, axis, "neither broadcast nor split nor partial");
}

static tutti_status check_cuts(const tutti_layout *layout, const tutti_tiling *tiling, int dim) {
    const int64_t *offsets = layout->cuts[dim];
    int nparts = tiling->nparts[dim];
    char shape[128];
    for (int part = 0; part <= nparts; part++) {
        bool good = part == 0 ? offsets[0] == 0 : offsets[part] >= offsets[part - 1];
        if (good && (part < nparts || offsets[part] == layout->shape[dim])) continue;
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "tensor '%.60s' %s: the cuts of dimension %d must rise from 0 to %lld in %d parts, but number %d "
            "is %lld",
            name_of(layout), shape_text(layout, shape), dim, (long long)layout->shape[dim], nparts, part,
            (long long)offsets[part]);
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ keeping */

static uint64_t last_serial;

static tutti_status tile(const tutti_layout *layout, tutti_kept_layout *kept) {
    tutti_tiling *tiling = &kept->tiling;
    tutti_tiling_begin(tiling, layout->placement, layout->ndims, layout->shape);
    for (int axis = 0; axis < layout->placement->naxes; axis++) {
        if (layout->sbp == NULL) continue;
        TUTTI_TRY(check_sbp(layout, axis));
        kept->sbp[axis] = (tutti_sbp){.kind = layout->sbp[axis].kind};
        if (kept->sbp[axis].kind == TUTTI_SBP_SPLIT) kept->sbp[axis].dim = layout->sbp[axis].dim;
        if (kept->sbp[axis].kind == TUTTI_SBP_PARTIAL) kept->sbp[axis].reduction = layout->sbp[axis].reduction;
        if (kept->sbp[axis].kind == TUTTI_SBP_SPLIT && layout->placement->sizes[axis] > 1)
            TUTTI_TRY(tutti_tiling_split(tiling, kept->sbp[axis].dim, axis, layout->rule));
    }
    for (int d = 0; d < layout->ndims; d++) {
        if (layout->cuts == NULL || layout->cuts[d] == NULL) continue;
        TUTTI_TRY(check_cuts(layout, tiling, d));
        tutti_tiling_cut(tiling, d, layout->cuts[d]);
    }
    return TUTTI_OK;
}

static bool is_partial_on(const tutti_kept_layout *kept, int axis) {
    return kept->sbp[axis].kind == TUTTI_SBP_PARTIAL && kept->view.placement->sizes[axis] > 1;
}

/* Hash of all that tutti_layout_fits compares. */
static uint64_t hash_of(const tutti_kept_layout *kept) {
    const tutti_placement *placement = kept->view.placement;
    const tutti_tiling *tiling = &kept->tiling;
    uint64_t hash = tutti_hash_add((uint64_t)kept->view.type << 32 | (uint64_t)tiling->ndims, placement->hash);
    for (int axis = 0; axis < placement->naxes; axis++) {
        uint64_t reduction = is_partial_on(kept, axis) ? (uint64_t)kept->sbp[axis].reduction + 1 : 0;
        hash = tutti_hash_add(hash, (uint64_t)placement->sizes[axis] << 32 | reduction);
    }
    for (int d = 0; d < tiling->ndims; d++) {
        hash = tutti_hash_add(hash, (uint64_t)tiling->shape[d]);
        for (int i = 0; i < tiling->nsplits[d]; i++) hash = tutti_hash_add(hash, (uint64_t)tiling->axes[d][i] + 1);
        for (int part = 1; part < tiling->nparts[d]; part++)
            hash = tutti_hash_add(hash, (uint64_t)tiling->offsets[d][part]);
    }
    return hash;
}

tutti_status tutti_layout_keep(const tutti_layout *given, tutti_kept_layout **kept_out) {
    tutti_kept_layout *kept;
    tutti_layout taken;
    const tutti_layout *layout = &taken;
    if (given == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "layout: NULL argument");
    TUTTI_TRY(tutti_struct_take("layout", "TUTTI_LAYOUT(...)", given, &taken, sizeof taken));
    TUTTI_TRY(check_head(layout));
    TUTTI_TRY(tutti_calloc(1, sizeof *kept, &kept));
    kept->references = 1;
    kept->serial = __atomic_add_fetch(&last_serial, 1, __ATOMIC_RELAXED);
    tutti_status status = check_shape(layout, &kept->nelements);
    if (status == TUTTI_OK) status = tile(layout, kept);
    if (status != TUTTI_OK) {
        tutti_tiling_free(&kept->tiling);
        free(kept);
        return status;
    }
    memcpy(kept->shape, kept->tiling.shape, sizeof kept->shape);
    snprintf(kept->name, sizeof kept->name, "%s", name_of(layout));
    for (int d = 0; d < layout->ndims; d++) kept->cuts[d] = kept->tiling.offsets[d];
    kept->view = (tutti_layout){.struct_bytes = sizeof kept->view,
                                .placement = tutti_placement_keep(layout->placement),
                                .sbp = kept->sbp,
                                .type = layout->type,
                                .ndims = layout->ndims,
                                .shape = kept->shape,
                                .rule = layout->rule,
                                .cuts = kept->cuts,
                                .name = kept->name};
    kept->hash = hash_of(kept);
    *kept_out = kept;
    return TUTTI_OK;
}

tutti_status tutti_layout_shadow(const tutti_kept_layout *kept, tutti_kept_layout **shadow_out) {
    tutti_layout view = kept->view;
    TUTTI_TRY(tutti_placement_shadow(kept->view.placement, &view.placement));
    tutti_status status = tutti_layout_keep(&view, shadow_out);
    tutti_placement_destroy(view.placement); /* the layout holds a reference */
    return status;
}

tutti_kept_layout *tutti_layout_again(tutti_kept_layout *kept) {
    __atomic_add_fetch(&kept->references, 1, __ATOMIC_RELAXED);
    return kept;
}

void tutti_layout_release(tutti_kept_layout *kept) {
    if (kept == NULL || __atomic_sub_fetch(&kept->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    tutti_tiling_free(&kept->tiling);
    tutti_placement_destroy(kept->view.placement);
    free(kept);
}

/* ------------------------------------------------------------------------------------------------- questions */

bool tutti_layout_is_partial(const tutti_kept_layout *kept) {
    for (int axis = 0; axis < kept->view.placement->naxes; axis++)
        if (is_partial_on(kept, axis)) return true;
    return false;
}

bool tutti_layout_is_equal(const tutti_kept_layout *a, const tutti_kept_layout *b) {
    if (a->view.type != b->view.type || !tutti_tiling_is_equal(&a->tiling, &b->tiling)) return false;
    for (int axis = 0; axis < a->view.placement->naxes; axis++)
        if (is_partial_on(a, axis) != is_partial_on(b, axis) ||
            (is_partial_on(a, axis) && a->sbp[axis].reduction != b->sbp[axis].reduction))
            return false;
    return true;
}

bool tutti_layout_fits(const tutti_kept_layout *a, const tutti_kept_layout *b) {
    return a->view.placement->memory == b->view.placement->memory && tutti_layout_is_equal(a, b);
}

void tutti_layout_text(const tutti_kept_layout *kept, char *text, size_t bytes) {
    char shape[128], sbp[128], placement[200];
    tutti_placement_text(kept->view.placement, placement, sizeof placement);
    snprintf(text, bytes, "'%s' %s%s %s on %s", kept->name, tutti_type_name(kept->view.type),
             shape_text(&kept->view, shape), sbp_text(&kept->view, sbp), placement);
}

tutti_status tutti_layout_box(const tutti_layout *layout, int index, int64_t *first_out, int64_t *end_out) {
    tutti_kept_layout *kept;
    tutti_region region;
    if (first_out == NULL || end_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_layout_box: NULL argument");
    TUTTI_TRY(tutti_layout_keep(layout, &kept));
    tutti_status status = TUTTI_OK;
    if (index < 0 || index >= layout->placement->nranks)
        status =
            tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_layout_box: index %d is out of range for a placement of %d ranks",
                       index, layout->placement->nranks);
    if (status == TUTTI_OK) {
        tutti_tiling_region(&kept->tiling, index, &region);
        memcpy(first_out, region.first, (size_t)layout->ndims * sizeof *first_out);
        memcpy(end_out, region.end, (size_t)layout->ndims * sizeof *end_out);
    }
    tutti_layout_release(kept);
    return status;
}
