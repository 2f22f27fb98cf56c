/*
 * Looks up rows of a table by indices. If the table is split along its rows, each rank contributes the rows that it
 * has, and the result is a sum.
 */
#include "ops/embedding.h"

#include <string.h>

#include "kernels/operators.h"
#include "ops/gradient.h"

/* v and z are the rows and columns of the table. */
static tutti_status place_lookup(tutti_ops_call *call, const char *form, bool sums_indices) {
    const tutti_layout *indices = tutti_ops_input(call, 0);
    if (indices->type != TUTTI_INT32 && indices->type != TUTTI_INT64)
        return tutti_ops_fail(call, "indices are int32 or int64, not %s", tutti_type_name(indices->type));
    if (!tutti_ops_is_float(tutti_ops_input(call, 1)->type))
        return tutti_ops_fail(call, "'%.40s' must be float32 or float64", tutti_ops_input(call, 1)->name);
    call->type = tutti_ops_input(call, 1)->type;
    return tutti_ops_read_form(call, form, indices->ndims, sums_indices, "v", NULL);
}

static tutti_status place_embedding(tutti_ops_call *call) {
    return place_lookup(call, ".,vz->.z", false);
}

static tutti_kernel_embedding_args args_of(const tutti_ops_call *call, const tutti_ops_operand *table) {
    return (tutti_kernel_embedding_args){.type = table->type,
                                         .index_type = call->in[0].type,
                                         .count = call->in[0].count,
                                         .width = (size_t)table->shape[1],
                                         .first = table->first[0],
                                         .rows = table->shape[0],
                                         .indices = call->in[0].data};
}

static tutti_status run_embedding(const tutti_ops_call *call) {
    const tutti_kernel_embedding_args args = args_of(call, &call->in[1]);
    return call->kernels->embedding(call->stream, &args, call->in[1].data, call->out.data);
}

static tutti_status place_embedding_backward(tutti_ops_call *call) {
    TUTTI_TRY(place_lookup(call, ".,.z->vz", true));
    tutti_ops_set_extent(call, 'v', *(const int64_t *)call->params);
    return TUTTI_OK;
}

static tutti_status run_embedding_backward(const tutti_ops_call *call) {
    const tutti_kernel_embedding_args args = args_of(call, &call->out);
    return call->kernels->embedding_backward(call->stream, &args, call->in[1].data, call->out.data);
}

const tutti_ops_row tutti_ops_row_embedding = {.name = "embedding",
                                               .mixes_types = true,
                                               .linear = {2},
                                               .ns_per_point = 0.1,
                                               .place = place_embedding,
                                               .run = run_embedding};
const tutti_ops_row tutti_ops_row_embedding_backward = {.name = "embedding_backward",
                                                        .mixes_types = true,
                                                        .linear = {2},
                                                        .ns_per_point = 0.1,
                                                        .place = place_embedding_backward,
                                                        .run = run_embedding_backward};

tutti_status tutti_op_embedding(const tutti_tensor *indices, const tutti_tensor *table, const tutti_op_options *options,
                                tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("embedding");
    tutti_ops_call call =
        TUTTI_OPS_CALL(&tutti_ops_row_embedding, .ninputs = 2, .inputs = {indices, table}, .options = options);
    return tutti_ops_run(&call, y_out);
}

tutti_status tutti_op_embedding_backward(const tutti_tensor *indices, const tutti_tensor *table, const tutti_tensor *dy,
                                         tutti_tensor **dtable_out) {
    TUTTI_TRY(tutti_ops_check_given("embedding_backward", (const tutti_tensor *const[]){indices, table, dy}, 3));
    const tutti_layout *layout = tutti_tensor_layout(table);
    if (layout->ndims != 2)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "embedding_backward: '%.40s' must have 2 dimensions", layout->name);
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_embedding_backward, .params = &layout->shape[0], .ninputs = 2,
                                         .inputs = {indices, dy});
    return tutti_ops_run_gradient(&call, table, dtable_out);
}
