/*
 * Reshape: finds the layout that the same elements have in another shape without a move, if there is one.
 *
 * Both shapes are divided into groups of dimensions with equal products, each as short as possible: [6, 4, 5] ->
 * [24, 5] has (6 4 | 24) and (5 | 5). A split of a group's outermost dimension cuts whole runs of the group's
 * elements, in rows of both sides if the cuts are multiples of the product of the dimensions inside of the
 * outermost one.
 */
#include <stdlib.h>
#include <string.h>

#include <tutti/ops.h>

#include "ops/gradient.h"

/* The outermost dimension of a group in x and in y, and the number of elements of the group in one index of it. */
typedef struct group {
    int x_dim, y_dim;
    int64_t x_inner, y_inner;
} group;

/* Dimensions of extent 1 belong to no group. Returns the number of groups; empty tensors have none. */
static int find_groups(const tutti_layout *x, int ndims, const int64_t *shape, group groups[TUTTI_MOST_DIMS]) {
    int i = 0, j = 0, count = 0;
    for (;;) {
        while (i < x->ndims && x->shape[i] == 1) i++;
        while (j < ndims && shape[j] == 1) j++;
        if (i == x->ndims || j == ndims) return count;
        group g = {.x_dim = i, .y_dim = j, .x_inner = 1, .y_inner = 1};
        int64_t left = x->shape[i++], right = shape[j++];
        while (left != right) {
            if (left < right) {
                g.x_inner *= x->shape[i];
                left *= x->shape[i++];
            } else {
                g.y_inner *= shape[j];
                right *= shape[j++];
            }
        }
        groups[count++] = g;
    }
}

static int parts_of(const tutti_layout *x, int dim) {
    int nparts = 1;
    for (int axis = 0; axis < tutti_placement_axes(x->placement); axis++)
        if (x->sbp[axis].kind == TUTTI_SBP_SPLIT && x->sbp[axis].dim == dim)
            nparts *= tutti_placement_size(x->placement, axis);
    return nparts;
}

static int64_t elements_of(int ndims, const int64_t *shape) {
    int64_t count = 1;
    for (int d = 0; d < ndims; d++) count *= shape[d];
    return count;
}

/* Finds the group that keeps a split of x's dimension, with its cuts in y; false: none, or not with these cuts. */
static bool carry_cuts(const tutti_layout *x, int dim, const group *groups, int ngroups, int *y_dim_out,
                       int64_t *cuts) {
    for (int g = 0; g < ngroups; g++) {
        if (groups[g].x_dim != dim) continue;
        for (int part = 0; part <= parts_of(x, dim); part++) {
            int64_t elements = x->cuts[dim][part] * groups[g].x_inner;
            if (elements % groups[g].y_inner != 0) return false;
            cuts[part] = elements / groups[g].y_inner;
        }
        *y_dim_out = groups[g].y_dim;
        return true;
    }
    return false;
}

/* Fills in sbp and cuts of y; `free` is memory for all cuts. Returns false if elements must move. */
static bool carry_layout(const tutti_layout *x, tutti_ops_layout *y, int64_t *free) {
    group groups[TUTTI_MOST_DIMS];
    int y_dims[TUTTI_MOST_DIMS];
    int ngroups = elements_of(x->ndims, x->shape) > 0 ? find_groups(x, y->view.ndims, y->shape, groups) : 0;
    for (int d = 0; d < x->ndims; d++) {
        if (parts_of(x, d) == 1) continue;
        if (!carry_cuts(x, d, groups, ngroups, &y_dims[d], free)) return false;
        y->cuts[y_dims[d]] = free;
        free += parts_of(x, d) + 1;
    }
    for (int axis = 0; axis < tutti_placement_axes(x->placement); axis++) {
        y->sbp[axis] = x->sbp[axis];
        if (tutti_placement_size(x->placement, axis) == 1) y->sbp[axis] = TUTTI_BROADCAST;
        else if (x->sbp[axis].kind == TUTTI_SBP_SPLIT) y->sbp[axis] = TUTTI_SPLIT(y_dims[x->sbp[axis].dim]);
    }
    return true;
}

/* For reshapes that move elements: axes that split x split y's outermost dimension of more than one element. */
static void split_outermost(const tutti_layout *x, tutti_ops_layout *y) {
    int dim = 0;
    memset(y->cuts, 0, sizeof y->cuts);
    while (dim < y->view.ndims - 1 && y->shape[dim] == 1) dim++;
    for (int axis = 0; axis < tutti_placement_axes(x->placement); axis++) {
        y->sbp[axis] = x->sbp[axis];
        if (x->sbp[axis].kind == TUTTI_SBP_SPLIT) y->sbp[axis] = y->view.ndims > 0 ? TUTTI_SPLIT(dim) : TUTTI_BROADCAST;
    }
}

/* The shards of both tensors have the same bytes. */
typedef struct shards {
    const tutti_operators *kernels;
    void *stream, *dst;
    const void *src;
    size_t bytes;
} shards;

static tutti_status copy_bytes(void *context) {
    const shards *s = context;
    return s->kernels->copy(s->stream, s->dst, s->src, s->bytes);
}

static tutti_status copy_shard(const tutti_tensor *x, const tutti_layout *layout, const tutti_options *options,
                               tutti_tensor **y_out) {
    tutti_local from, to;
    tutti_tensor *y;
    shards s = {.stream = tutti_ops_collectives(options)->stream};
    TUTTI_TRY(tutti_ops_find_kernels("reshape", layout->placement, &s.kernels));
    TUTTI_TRY(tutti_ops_tensor_make(layout, options, &y));
    tutti_status status = tutti_tensor_local(x, &from);
    if (status == TUTTI_OK) status = tutti_tensor_local(y, &to);
    if (status == TUTTI_OK && to.count > 0) {
        s.dst = to.data;
        s.src = from.data;
        s.bytes = to.count * tutti_type_bytes(layout->type);
        status = tutti_ops_visit(layout->placement, copy_bytes, &s);
    }
    if (status == TUTTI_OK) *y_out = y;
    else tutti_ops_tensor_end(y, options);
    return status;
}

static tutti_status read_shape(const tutti_layout *x, int ndims, const int64_t *shape, int64_t *read_out) {
    int64_t known = 1, count = elements_of(x->ndims, x->shape);
    int open = -1;
    if (ndims < 0 || ndims > TUTTI_MOST_DIMS || (ndims > 0 && shape == NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "reshape of '%.40s': %d dimensions; there may be 0 to %d", x->name, ndims,
                          TUTTI_MOST_DIMS);
    for (int d = 0; d < ndims; d++) {
        bool bad = shape[d] < -1 || (shape[d] == -1 && open >= 0);
        if (bad || (shape[d] > 0 && __builtin_mul_overflow(known, shape[d], &known)))
            return tutti_fail(TUTTI_ERR_ARGUMENT, "reshape of '%.40s': extent %d is %lld; one may be -1", x->name, d,
                              (long long)shape[d]);
        if (shape[d] == -1) open = d;
        if (shape[d] == 0) known = 0;
        read_out[d] = shape[d];
    }
    if (open >= 0 && known > 0) read_out[open] = count / known;
    if ((open >= 0 && known == 0) || elements_of(ndims, read_out) != count)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "reshape of '%.40s': it has %lld elements, which do not fill the shape",
                          x->name, (long long)count);
    return TUTTI_OK;
}

tutti_status tutti_op_reshape(const tutti_tensor *x, int ndims, const int64_t *shape, const tutti_op_options *options,
                              tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("reshape");
    static const tutti_ops_row row = {.name = "reshape"}; /* used only for checks: it has no rule */
    TUTTI_TRY(tutti_ops_check_inputs(&TUTTI_OPS_CALL(&row, .ninputs = 1, .inputs = {x}, .options = options)));
    if (y_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "reshape: NULL argument");
    const tutti_layout *layout = tutti_tensor_layout(x);
    tutti_ops_layout y;
    TUTTI_TRY(read_shape(layout, ndims, shape, y.shape));
    int64_t *cuts = calloc((size_t)tutti_placement_size(layout->placement, -1) * 2 + TUTTI_MOST_DIMS, sizeof *cuts);
    if (cuts == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "reshape of '%.40s': no memory for its cuts", layout->name);
    memset(y.cuts, 0, sizeof y.cuts);
    y.view = TUTTI_LAYOUT(.placement = layout->placement, .sbp = y.sbp, .type = layout->type, .ndims = ndims,
                          .shape = y.shape, .rule = layout->rule, .cuts = y.cuts,
                          .name = options != NULL && options->name != NULL ? options->name : layout->name);
    bool carries = carry_layout(layout, &y, cuts);
    if (!carries) split_outermost(layout, &y);
    if (options != NULL && options->sbp != NULL) {
        for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++) {
            bool same = y.sbp[axis].kind == options->sbp[axis].kind && y.sbp[axis].dim == options->sbp[axis].dim &&
                        y.sbp[axis].reduction == options->sbp[axis].reduction;
            carries = carries && (same || tutti_placement_size(layout->placement, axis) == 1);
        }
        if (!carries) memset(y.cuts, 0, sizeof y.cuts);
        memcpy(y.sbp, options->sbp, (size_t)tutti_placement_axes(layout->placement) * sizeof *y.sbp);
    }
    const tutti_options *collectives = options != NULL ? options->options : NULL;
    tutti_status status =
        carries ? copy_shard(x, &y.view, collectives, y_out) : tutti_ops_convert(x, &y.view, collectives, y_out);
    free(cuts);
    return status;
}

tutti_status tutti_op_reshape_backward(const tutti_tensor *x, const tutti_tensor *dy, tutti_tensor **dx_out) {
    TUTTI_TRY(tutti_ops_check_given("reshape_backward", (const tutti_tensor *const[]){x, dy}, 2));
    if (dx_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "reshape_backward: the result is NULL");
    const tutti_layout *layout = tutti_tensor_layout(x);
    tutti_ops_layout target;
    tutti_tensor *shaped = NULL;
    TUTTI_TRY(tutti_ops_adjoint(x, &target));
    tutti_status status = tutti_op_reshape(dy, layout->ndims, layout->shape, NULL, &shaped);
    if (status == TUTTI_OK && tutti_ops_layouts_are_equal(tutti_tensor_layout(shaped), &target.view)) {
        *dx_out = shaped;
        return TUTTI_OK;
    }
    if (status == TUTTI_OK) status = tutti_ops_convert(shaped, &target.view, NULL, dx_out);
    tutti_ops_tensor_end(shaped, NULL);
    return status;
}
