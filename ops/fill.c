/*
 * Tensors whose elements are functions of their position.
 */
#include <string.h>

#include <tutti/ops.h>

#include "kernels/operators.h"
#include "ops/gradient.h"

/* The tensor to fill. */
typedef struct filling {
    const void *params;
    const tutti_operators *kernels;
    void *stream, *y;
    tutti_type type;
    tutti_kernel_shard shard;
    size_t count;
} filling;

typedef tutti_status fill_function(void *filling);

/* Each rank fills its own box. Along partial axes the values are computed as if they were broadcast, and each rank
 * then keeps what a redistribution would give it: without messages. */
static tutti_status make(const char *name, const tutti_layout *layout, fill_function *function, const void *params,
                         tutti_tensor **y_out) {
    tutti_ops_layout plain;
    tutti_tensor *y = NULL;
    tutti_local local;
    bool is_partial = false;
    if (layout == NULL || y_out == NULL || layout->placement == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: the layout, its placement or the result is NULL", name);
    filling f = {.params = params, .type = layout->type, .stream = tutti_ops_collectives(NULL)->stream};
    TUTTI_TRY(tutti_ops_find_kernels(name, layout->placement, &f.kernels));
    plain.view = *layout;
    plain.view.sbp = plain.sbp;
    for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++) {
        plain.sbp[axis] = layout->sbp != NULL ? layout->sbp[axis] : TUTTI_BROADCAST;
        if (plain.sbp[axis].kind != TUTTI_SBP_PARTIAL) continue;
        plain.sbp[axis] = TUTTI_BROADCAST;
        is_partial = true;
    }
    int64_t first[TUTTI_MOST_DIMS], end[TUTTI_MOST_DIMS];
    TUTTI_TRY(tutti_layout_box(layout, 0, first, end)); /* includes the partial axes */
    TUTTI_TRY(tutti_ops_tensor_make(&plain.view, NULL, &y));
    tutti_status status = tutti_tensor_local(y, &local);
    f.shard = (tutti_kernel_shard){
        .ndims = local.ndims, .global_shape = layout->shape, .first = local.first, .shape = local.shape};
    f.count = local.count;
    f.y = local.data;
    if (status == TUTTI_OK && local.count > 0) status = tutti_ops_visit(layout->placement, function, &f);
    if (status == TUTTI_OK && !is_partial) {
        *y_out = y;
        return TUTTI_OK;
    }
    if (status == TUTTI_OK) status = tutti_ops_convert(y, layout, NULL, y_out);
    tutti_ops_tensor_end(y, NULL);
    return status;
}

static tutti_status fill_random(void *context) {
    const filling *f = context;
    const tutti_random_options *random = f->params;
    const tutti_kernel_random by = {.seed = random->seed, .stream = random->stream};
    if (random->distribution == TUTTI_UNIFORM)
        return f->kernels->random_uniform(f->stream, f->type, &f->shard, &by, random->a, random->b, f->y);
    return f->kernels->random_normal(f->stream, f->type, &f->shard, &by, random->a, random->b, f->y);
}

tutti_status tutti_op_random(const tutti_layout *layout, const tutti_random_options *random, tutti_tensor **y_out) {
    if (random == NULL || (random->distribution != TUTTI_UNIFORM && random->distribution != TUTTI_NORMAL))
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "random: its options are NULL, or the distribution is neither TUTTI_UNIFORM nor TUTTI_NORMAL");
    if (layout != NULL && (layout->type < TUTTI_FLOAT16 || layout->type > TUTTI_FLOAT8_E5M2))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "random: the type must be a float, not %s",
                          tutti_type_name(layout->type));
    return make("random", layout, fill_random, random, y_out);
}

static tutti_status fill_value(void *context) {
    const filling *f = context;
    return f->kernels->fill(f->stream, f->type, *(const double *)f->params, f->count, f->y);
}

tutti_status tutti_op_fill(const tutti_layout *layout, double value, tutti_tensor **y_out) {
    return make("fill", layout, fill_value, &value, y_out);
}

static tutti_status fill_arange(void *context) {
    const filling *f = context;
    const double *numbers = f->params;
    return f->kernels->arange(f->stream, f->type, &f->shard, numbers[0], numbers[1], f->y);
}

tutti_status tutti_op_arange(const tutti_layout *layout, double first, double step, tutti_tensor **y_out) {
    const double numbers[] = {first, step};
    if (layout != NULL && layout->type == TUTTI_BOOL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "arange: bool is not a number");
    return make("arange", layout, fill_arange, numbers, y_out);
}
