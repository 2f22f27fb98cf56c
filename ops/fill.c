/*
 * Tensors whose elements follow from their places.
 */
#include <string.h>

#include <tutti/ops.h>

#include "kernels/operators.h"
#include "ops/gradient.h"

typedef void fill_function(const void *params, tutti_type type, const tutti_kernel_shard *shard, size_t count, void *y);

/* Each rank fills its own box. Where the layout is partial the values are made as if it were broadcast there, then it
 * holds them as redistribution says: without a message. */
static tutti_status make(const char *name, const tutti_layout *layout, fill_function *function, const void *params,
                         tutti_tensor **y_out) {
    tutti_ops_layout plain;
    tutti_tensor *y = NULL;
    tutti_local local;
    bool is_partial = false;
    if (layout == NULL || y_out == NULL || layout->placement == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: the layout, its placement or the result is NULL", name);
    if (tutti_placement_memory(layout->placement) != TUTTI_MEMORY_HOST)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "%s: operators compute in the host's memory only; tutti_tensor_to_global moves the "
                          "tensor from there",
                          name);
    plain.view = *layout;
    plain.view.sbp = plain.sbp;
    for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++) {
        plain.sbp[axis] = layout->sbp != NULL ? layout->sbp[axis] : TUTTI_BROADCAST;
        if (plain.sbp[axis].kind != TUTTI_SBP_PARTIAL) continue;
        plain.sbp[axis] = TUTTI_BROADCAST;
        is_partial = true;
    }
    int64_t first[TUTTI_MOST_DIMS], end[TUTTI_MOST_DIMS];
    TUTTI_TRY(tutti_layout_box(layout, 0, first, end)); /* also of the partial axes */
    TUTTI_TRY(tutti_tensor_create(&plain.view, &y));
    tutti_status status = tutti_tensor_local(y, &local);
    const tutti_kernel_shard shard = {
        .ndims = local.ndims, .global_shape = layout->shape, .first = local.first, .shape = local.shape};
    if (status == TUTTI_OK && local.count > 0) function(params, layout->type, &shard, local.count, local.data);
    if (status == TUTTI_OK && !is_partial) {
        *y_out = y;
        return TUTTI_OK;
    }
    if (status == TUTTI_OK) status = tutti_ops_convert(y, layout, NULL, y_out);
    tutti_tensor_destroy(y);
    return status;
}

static void fill_random(const void *params, tutti_type type, const tutti_kernel_shard *shard, size_t count, void *y) {
    const tutti_random_options *random = params;
    const tutti_kernel_random by = {.seed = random->seed, .stream = random->stream};
    (void)count;
    if (random->distribution == TUTTI_UNIFORM) tutti_kernel_random_uniform(type, shard, &by, random->a, random->b, y);
    else tutti_kernel_random_normal(type, shard, &by, random->a, random->b, y);
}

tutti_status tutti_op_random(const tutti_layout *layout, const tutti_random_options *random, tutti_tensor **y_out) {
    if (random == NULL || (random->distribution != TUTTI_UNIFORM && random->distribution != TUTTI_NORMAL))
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "random: its options are NULL, or the distribution is neither TUTTI_UNIFORM nor TUTTI_NORMAL");
    if (layout != NULL && (layout->type < TUTTI_FLOAT16 || layout->type > TUTTI_FLOAT8_E5M2))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "random: it makes floats, not %s", tutti_type_name(layout->type));
    return make("random", layout, fill_random, random, y_out);
}

static void fill_value(const void *params, tutti_type type, const tutti_kernel_shard *shard, size_t count, void *y) {
    (void)shard;
    tutti_kernel_fill(type, *(const double *)params, count, y);
}

tutti_status tutti_op_fill(const tutti_layout *layout, double value, tutti_tensor **y_out) {
    return make("fill", layout, fill_value, &value, y_out);
}

static void fill_arange(const void *params, tutti_type type, const tutti_kernel_shard *shard, size_t count, void *y) {
    const double *numbers = params;
    (void)count;
    tutti_kernel_arange(type, shard, numbers[0], numbers[1], y);
}

tutti_status tutti_op_arange(const tutti_layout *layout, double first, double step, tutti_tensor **y_out) {
    const double numbers[] = {first, step};
    if (layout != NULL && layout->type == TUTTI_BOOL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "arange: bool is not a number");
    return make("arange", layout, fill_arange, numbers, y_out);
}
