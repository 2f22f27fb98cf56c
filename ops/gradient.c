/*
 * Common parts of gradients. See gradient.h.
 */
#include "ops/gradient.h"

#include <string.h>

#include "ops/reduce.h"

tutti_status tutti_ops_check_given(const char *name, const tutti_tensor *const *tensors, int count) {
    for (int i = 0; i < count; i++)
        if (tensors[i] == NULL)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: tensor %d of its arguments is NULL", name, i);
    return TUTTI_OK;
}

/* The extent of dimension d of `ndims`, where the last dimensions are aligned; 1 if the layout lacks it. */
static int64_t extent_of(const tutti_layout *layout, int d, int ndims) {
    int own = d - (ndims - layout->ndims);
    return own >= 0 ? layout->shape[own] : 1;
}

tutti_status tutti_ops_check_result(const char *name, const tutti_tensor *a, const tutti_tensor *b,
                                    const tutti_tensor *y) {
    const tutti_layout *one = tutti_tensor_layout(a), *other = tutti_tensor_layout(b), *is = tutti_tensor_layout(y);
    int ndims = one->ndims > other->ndims ? one->ndims : other->ndims;
    if (!tutti_placement_is_equal(is->placement, one->placement))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "%s: '%.40s' lies on another placement than '%.40s'; tutti_tensor_to_global moves it there",
                          name, is->name, one->name);
    if (is->type != one->type)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: '%.40s' is %s, and '%.40s' %s; tutti_op_cast changes one", name,
                          is->name, tutti_type_name(is->type), one->name, tutti_type_name(one->type));
    if (is->ndims != ndims)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: '%.40s' has %d dimensions, and the result %d", name, is->name,
                          is->ndims, ndims);
    for (int d = 0; d < ndims; d++) {
        int64_t extent = extent_of(one, d, ndims);
        if (extent == 1) extent = extent_of(other, d, ndims);
        if (is->shape[d] != extent)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: dimension %d of '%.40s' is %lld, and of the result %lld", name,
                              d, is->name, (long long)is->shape[d], (long long)extent);
    }
    return TUTTI_OK;
}

tutti_status tutti_ops_give(tutti_status status, tutti_tensor *const *made, tutti_tensor **const *outs, int count) {
    for (int i = 0; i < count; i++)
        if (status == TUTTI_OK && outs[i] != NULL) *outs[i] = made[i];
        else tutti_ops_tensor_end(made[i], NULL);
    return status;
}

tutti_status tutti_ops_adjoint(const tutti_tensor *of, tutti_ops_layout *adjoint_out) {
    const tutti_layout *layout = tutti_tensor_layout(of);
    adjoint_out->view = *layout;
    adjoint_out->view.sbp = adjoint_out->sbp;
    for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++)
        TUTTI_TRY(tutti_sbp_adjoint(layout->sbp[axis], &adjoint_out->sbp[axis]));
    return TUTTI_OK;
}

tutti_status tutti_ops_convert(const tutti_tensor *x, const tutti_layout *layout, const tutti_options *options,
                               tutti_tensor **y_out) {
    tutti_tensor *y;
    TUTTI_TRY(tutti_ops_tensor_make(layout, options, &y));
    tutti_status status = TUTTI_OK;
    if (tutti_placement_coordinate(layout->placement, -1) >= 0)
        status = tutti_tensor_redistribute(x, y, tutti_ops_collectives(options));
    if (status == TUTTI_OK) *y_out = y;
    else tutti_ops_tensor_end(y, options);
    return status;
}

tutti_status tutti_ops_make_whole(tutti_status status, const tutti_options *options, tutti_tensor **tensor) {
    tutti_sbp sbp[TUTTI_MOST_AXES];
    tutti_tensor *partial = *tensor, *whole = NULL;
    if (status != TUTTI_OK) return status;
    const tutti_layout *layout = tutti_tensor_layout(partial);
    for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++) {
        sbp[axis] = layout->sbp[axis];
        if (sbp[axis].kind == TUTTI_SBP_PARTIAL) sbp[axis] = TUTTI_BROADCAST;
    }
    tutti_ops_layout target = {.view = *layout};
    target.view.sbp = sbp;
    status = tutti_ops_convert(partial, &target.view, options, &whole);
    tutti_ops_tensor_end(partial, options);
    *tensor = whole;
    return status;
}

bool tutti_ops_is_broadcast(const tutti_tensor *of, const tutti_tensor *y) {
    const tutti_layout *a = tutti_tensor_layout(of), *b = tutti_tensor_layout(y);
    return a->ndims != b->ndims ||
           (a->ndims > 0 && memcmp(a->shape, b->shape, (size_t)a->ndims * sizeof *a->shape) != 0);
}

tutti_status tutti_ops_narrow_gradient(tutti_status status, tutti_tensor *wide, const tutti_tensor *of,
                                       tutti_tensor **dx_out) {
    tutti_ops_layout target;
    if (status == TUTTI_OK) status = tutti_ops_adjoint(of, &target);
    if (status == TUTTI_OK)
        status = tutti_ops_is_broadcast(of, wide) ? tutti_ops_sum_to(wide, &target.view, dx_out)
                                                  : tutti_ops_convert(wide, &target.view, NULL, dx_out);
    tutti_ops_tensor_end(wide, NULL);
    return status;
}

tutti_status tutti_ops_run_gradient(tutti_ops_call *call, const tutti_tensor *of, tutti_tensor **dx_out) {
    tutti_ops_layout target;
    if (of == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: the tensor whose gradient is wanted is NULL", call->row->name);
    TUTTI_TRY(tutti_ops_adjoint(of, &target));
    call->target = &target.view;
    return tutti_ops_run(call, dx_out);
}
