/*
 * The table of rows and arguments. See rows.h.
 */
#include "tests/ops/rows.h"

#include "kernels/operators.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/images.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/move.h"
#include "ops/norm.h"
#include "ops/reduce.h"

#define F32(...)                                                                                                       \
    { .type = TUTTI_FLOAT32, __VA_ARGS__ }
#define F64(...)                                                                                                       \
    { .type = TUTTI_FLOAT64, __VA_ARGS__ }
#define I32(...)                                                                                                       \
    { .type = TUTTI_INT32, __VA_ARGS__ }
#define I64(...)                                                                                                       \
    { .type = TUTTI_INT64, __VA_ARGS__ }
#define SHAPE(n, ...) .ndims = (n), .shape = {__VA_ARGS__}
#define CASE(row_, params_, n, ...)                                                                                    \
    {                                                                                                                  \
        .row = &tutti_ops_row_##row_, .params = (params_), .ninputs = (n), .inputs = { __VA_ARGS__ }                   \
    }
/* Tolerance for results that are rounded. */
#define NEAR(row_, params_, n, ...)                                                                                    \
    { .row = &tutti_ops_row_##row_, .params = (params_), .ninputs = (n), .inputs = {__VA_ARGS__}, .tolerance = 2e-5 }

static const double half = 0.5, two = 2, epsilon = 1e-5;
static const tutti_gelu erf_kind = TUTTI_GELU_ERF, tanh_kind = TUTTI_GELU_TANH;
static const tutti_type to_double = TUTTI_FLOAT64, to_int = TUTTI_INT32;
static const tutti_dropout_options dropout = {.rate = 0.4, .seed = 7, .stream = 3};
static const tutti_ops_reduction rows = {.dims = 1}, columns = {.dims = 2, .keep = true}, both = {.dims = 3},
                                 outer = {.dims = 5};
static const int64_t five_three[] = {5, 3}, four_five_three[] = {4, 5, 3};
static const tutti_ops_expansion repeat_rows = {.factor = 0.5, .dims = 1, .ndims = 2, .shape = five_three},
                                 repeat_kept = {
                                     .factor = 2, .dims = 5, .kept = true, .ndims = 3, .shape = four_five_three};
static const tutti_matmul ta = {.transpose_a = true}, tb = {.transpose_b = true}, tab = {true, true};
static const int64_t image[] = {3, 6, 5, 3};
static const tutti_ops_windows
    same3 = {.user = {.kernel = {3, 3}, .pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1},
             .x_shape = image,
             .kernel = {3, 3}},
    odd2 = {.user = {.kernel = {2, 2}, .stride = {2, 1}, .pad_top = 1}, .x_shape = image, .kernel = {2, 2}},
    counted = {.user = {.kernel = {2, 2}, .stride = {2, 1}, .pad_top = 1, .count_padding = true},
               .x_shape = image,
               .kernel = {2, 2}};
static const tutti_ops_classes seven = {.count = 7};
static const int turn[] = {2, 0, 1}, swap[] = {1, 0};
static const int64_t slice_first[] = {1, 0}, slice_end[] = {4, 3}, empty_end[] = {1, 3}, whole_shape[] = {5, 3};
static const tutti_ops_slice_of slice = {.first = slice_first, .end = slice_end, .whole = whole_shape},
                                nothing = {.first = slice_first, .end = empty_end, .whole = whole_shape};
static const int dim0 = 0, dim1 = 1;
static const int64_t table_rows = 6;

const row_case row_cases[] = {
    CASE(add, NULL, 2, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 5, 3))),
    CASE(add, NULL, 2, F64(SHAPE(3, 2, 1, 3)), F64(SHAPE(2, 4, 1))),
    CASE(add, NULL, 2, I32(SHAPE(1, 7)), I32(SHAPE(1, 7))),
    CASE(add, NULL, 2, F32(.ndims = 0), F32(SHAPE(1, 3))),
    CASE(add, NULL, 2, F32(SHAPE(2, 0, 3)), F32(SHAPE(1, 3))),
    CASE(sub, NULL, 2, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 1, 3))),
    CASE(mul, NULL, 2, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 5, 3))),
    CASE(mul, NULL, 2, I64(SHAPE(2, 2, 9)), I64(SHAPE(1, 1))),
    NEAR(div, NULL, 2, F32(SHAPE(2, 5, 3)), F32(SHAPE(1, 3), .values = VALUES_POSITIVE)),
    CASE(equal, NULL, 2, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 5, 1))),
    CASE(relu, NULL, 1, F32(SHAPE(2, 7, 2))),
    CASE(relu_backward, NULL, 2, F32(SHAPE(2, 7, 2)), F32(SHAPE(2, 7, 2))),
    NEAR(exp, NULL, 1, F32(SHAPE(2, 7, 2), .values = VALUES_QUARTERS)),
    NEAR(gelu, &erf_kind, 1, F32(SHAPE(2, 7, 2), .values = VALUES_QUARTERS)),
    NEAR(gelu, &tanh_kind, 1, F64(SHAPE(1, 5), .values = VALUES_QUARTERS)),
    NEAR(gelu_backward, &erf_kind, 2, F32(SHAPE(2, 7, 2), .values = VALUES_QUARTERS), F32(SHAPE(2, 7, 2))),
    NEAR(gelu_backward, &tanh_kind, 2, F64(SHAPE(1, 5), .values = VALUES_QUARTERS), F64(SHAPE(1, 5))),
    CASE(scale, &half, 1, F32(SHAPE(2, 5, 2))),
    CASE(scale, &two, 1, I32(SHAPE(1, 5))),
    CASE(scale, &half, 1, I32(SHAPE(1, 5))),
    CASE(add_number, &two, 1, F32(SHAPE(2, 5, 2))),
    CASE(cast, &to_double, 1, F32(SHAPE(2, 5, 2))),
    CASE(cast, &to_int, 1, F64(SHAPE(2, 5, 2), .values = VALUES_QUARTERS)),
    CASE(cast, &to_double, 1, I64(SHAPE(1, 5))),
    NEAR(dropout, &dropout, 1, F32(SHAPE(3, 3, 2, 5))),
    CASE(reduce_sum, &rows, 1, F32(SHAPE(2, 7, 3))),
    CASE(reduce_sum, &columns, 1, F64(SHAPE(2, 7, 3))),
    CASE(reduce_sum, &outer, 1, I32(SHAPE(3, 3, 2, 5))),
    NEAR(reduce_mean, &rows, 1, F32(SHAPE(2, 7, 3))),
    NEAR(reduce_mean, &both, 1, F64(SHAPE(2, 5, 5))),
    CASE(reduce_min, &rows, 1, F32(SHAPE(2, 7, 3))),
    CASE(reduce_max, &both, 1, F32(SHAPE(2, 2, 3))),
    CASE(reduce_max, &columns, 1, I32(SHAPE(2, 2, 5))),
    CASE(reduce_sum, &rows, 1, F32(SHAPE(2, 0, 3))),
    CASE(expand, &repeat_rows, 1, F32(SHAPE(1, 3))),
    CASE(expand, &repeat_kept, 1, F64(SHAPE(3, 1, 5, 1))),
    CASE(matmul, NULL, 2, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 3, 4))),
    CASE(matmul, &ta, 2, F64(SHAPE(2, 3, 5)), F64(SHAPE(2, 3, 4))),
    CASE(matmul, &tb, 2, F32(SHAPE(3, 2, 5, 3)), F32(SHAPE(2, 4, 3))),
    CASE(matmul, &tab, 2, F32(SHAPE(3, 1, 3, 2)), F32(SHAPE(3, 3, 5, 3))),
    CASE(matmul, NULL, 2, F32(SHAPE(2, 5, 0)), F32(SHAPE(2, 0, 2))),
    CASE(dense, NULL, 3, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 3, 4)), F32(SHAPE(1, 4))),
    CASE(dense, NULL, 2, F64(SHAPE(3, 2, 3, 5)), F64(SHAPE(2, 5, 2))),
    CASE(dense_dx, NULL, 2, F32(SHAPE(2, 5, 4)), F32(SHAPE(2, 3, 4))),
    CASE(dense_dweight, NULL, 2, F32(SHAPE(3, 2, 5, 3)), F32(SHAPE(3, 2, 5, 4))),
    CASE(conv2d, &same3, 3, F32(SHAPE(4, 3, 6, 5, 3)), F32(SHAPE(4, 3, 3, 3, 5)), F32(SHAPE(1, 5))),
    CASE(conv2d, &odd2, 2, F64(SHAPE(4, 3, 6, 5, 3)), F64(SHAPE(4, 2, 2, 3, 2))),
    CASE(conv2d_dx, &odd2, 2, F32(SHAPE(4, 3, 3, 4, 2)), F32(SHAPE(4, 2, 2, 3, 2))),
    CASE(conv2d_dweight, &same3, 2, F32(SHAPE(4, 3, 6, 5, 3)), F32(SHAPE(4, 3, 6, 5, 4))),
    CASE(max_pool2d, &odd2, 1, F32(SHAPE(4, 3, 6, 5, 3))),
    CASE(max_pool2d_backward, &odd2, 2, F32(SHAPE(4, 3, 6, 5, 3)), F32(SHAPE(4, 3, 3, 4, 3))),
    NEAR(avg_pool2d, &odd2, 1, F32(SHAPE(4, 3, 6, 5, 3))),
    NEAR(avg_pool2d, &counted, 1, F64(SHAPE(4, 3, 6, 5, 3))),
    NEAR(avg_pool2d_backward, &odd2, 1, F32(SHAPE(4, 3, 3, 4, 3))),
    CASE(batch_norm_statistics, &epsilon, 1, F32(SHAPE(3, 5, 2, 3))),
    NEAR(batch_norm, &epsilon, 4, F32(SHAPE(2, 5, 3)), F32(SHAPE(1, 3)), F32(SHAPE(1, 3)),
         F64(SHAPE(2, 2, 3), .values = VALUES_MOMENTS)),
    NEAR(batch_norm_sums, &epsilon, 3, F32(SHAPE(2, 5, 3)), F64(SHAPE(2, 2, 3), .values = VALUES_MOMENTS),
         F32(SHAPE(2, 5, 3))),
    NEAR(batch_norm_dx, &epsilon, 5, F32(SHAPE(2, 5, 3)), F32(SHAPE(1, 3)),
         F64(SHAPE(2, 2, 3), .values = VALUES_MOMENTS), F64(SHAPE(2, 2, 3)), F32(SHAPE(2, 5, 3))),
    NEAR(softmax, NULL, 1, F32(SHAPE(3, 2, 3, 7))),
    NEAR(softmax_backward, NULL, 2, F32(SHAPE(2, 5, 7)), F32(SHAPE(2, 5, 7))),
    NEAR(cross_entropy, &seven, 2, F32(SHAPE(2, 5, 7)), I32(SHAPE(1, 5), .values = VALUES_INDEX, .limit = 8)),
    NEAR(exp_sums, NULL, 2, F32(SHAPE(2, 5, 7)), F32(SHAPE(1, 5), .values = VALUES_POSITIVE)),
    CASE(label_logits, &seven, 2, F64(SHAPE(2, 5, 7)), I64(SHAPE(1, 5), .values = VALUES_INDEX, .limit = 7)),
    NEAR(losses, &seven, 4, F32(SHAPE(1, 5)), F32(SHAPE(1, 5), .values = VALUES_POSITIVE), F32(SHAPE(1, 5)),
         I32(SHAPE(1, 5), .values = VALUES_INDEX, .limit = 7)),
    NEAR(cross_entropy_backward, &seven, 5, F32(SHAPE(2, 5, 7)), I32(SHAPE(1, 5), .values = VALUES_INDEX, .limit = 7),
         F32(SHAPE(1, 5), .values = VALUES_POSITIVE), F32(SHAPE(1, 5), .values = VALUES_POSITIVE), F32(SHAPE(1, 5))),
    CASE(embedding, NULL, 2, I32(SHAPE(2, 2, 3), .values = VALUES_INDEX, .limit = 8), F32(SHAPE(2, 6, 3))),
    CASE(embedding_backward, &table_rows, 2, I64(SHAPE(1, 9), .values = VALUES_INDEX, .limit = 7), F64(SHAPE(2, 9, 2))),
    CASE(transpose, turn, 1, F32(SHAPE(3, 2, 5, 3))),
    CASE(transpose, swap, 1, I64(SHAPE(2, 5, 3))),
    CASE(slice, &slice, 1, F32(SHAPE(2, 5, 3))),
    CASE(slice, &nothing, 1, I32(SHAPE(2, 5, 3))),
    CASE(slice_backward, &slice, 1, F32(SHAPE(2, 3, 3))),
    CASE(concat, &dim0, 3, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 0, 3)), F32(SHAPE(2, 4, 3))),
    CASE(concat, &dim1, 2, I32(SHAPE(2, 5, 3)), I32(SHAPE(2, 5, 2))),
    {.row = NULL},
};

/* ------------------------------------------------------------------------------------------------ wrong rows */

/* A row without the rules that make it whole or summed. */
static tutti_status place_open_softmax(tutti_ops_call *call) {
    TUTTI_TRY(tutti_ops_row_softmax.place(call));
    call->rule.whole = 0;
    return TUTTI_OK;
}

static tutti_status place_open_pool(tutti_ops_call *call) {
    TUTTI_TRY(tutti_ops_row_max_pool2d.place(call));
    call->rule.whole = 0;
    return TUTTI_OK;
}

/* A mean of means. */
static tutti_status run_mean_of_means(const tutti_ops_call *call) {
    const tutti_ops_operand *x = &call->in[0];
    const tutti_kernel_reduce_args args = {
        .type = x->type, .ndims = x->ndims, .shape = x->shape, .dims = 1, .x = x->data, .y = call->out.data};
    TUTTI_TRY(call->kernels->reduce(call->stream, TUTTI_SUM, &args, NULL)); /* small: it needs no scratch */
    return call->kernels->scale(call->stream, x->type, x->shape[0] > 0 ? 1 / (double)x->shape[0] : 0, call->out.count,
                                call->out.data, call->out.data);
}

/* Random numbers that depend on the place in the shard, not in the tensor. */
static tutti_status run_local_dropout(const tutti_ops_call *call) {
    const tutti_ops_operand *y = &call->out;
    static const int64_t none[TUTTI_MOST_DIMS];
    const tutti_kernel_shard shard = {.ndims = y->ndims, .global_shape = y->shape, .first = none, .shape = y->shape};
    const tutti_kernel_random random = {.seed = 7, .stream = 3};
    return call->kernels->dropout(call->stream, y->type, &shard, &random, 0.4, call->in[0].data, y->data);
}

static tutti_status place_plain(tutti_ops_call *call) {
    return tutti_ops_place_elementwise(call);
}

static tutti_status place_unsummed_dense(tutti_ops_call *call) {
    return tutti_ops_row_dense.place(call);
}

static tutti_status place_rows(tutti_ops_call *call) {
    return tutti_ops_row_reduce_sum.place(call);
}

static tutti_status run_max(const tutti_ops_call *call) {
    return tutti_ops_row_reduce_max.run(call);
}

static tutti_status run_relu(const tutti_ops_call *call) {
    return tutti_ops_row_relu.run(call);
}

static tutti_status run_add(const tutti_ops_call *call) {
    return tutti_ops_row_add.run(call);
}

static tutti_status run_mul(const tutti_ops_call *call) {
    return tutti_ops_row_mul.run(call);
}

static tutti_status run_add_number(const tutti_ops_call *call) {
    return tutti_ops_row_add_number.run(call);
}

static tutti_status run_softmax(const tutti_ops_call *call) {
    return tutti_ops_row_softmax.run(call);
}

static tutti_status run_pool(const tutti_ops_call *call) {
    return tutti_ops_row_max_pool2d.run(call);
}

static tutti_status run_dense(const tutti_ops_call *call) {
    return tutti_ops_row_dense.run(call);
}

static const tutti_ops_row
    mean_of_means = {.name = "mean of means", .reduction = TUTTI_AVG, .place = place_rows, .run = run_mean_of_means},
    local_dropout = {.name = "dropout by shard", .place = place_plain, .run = run_local_dropout},
    linear_relu = {.name = "linear relu", .linear = {1}, .place = place_plain, .run = run_relu},
    linear_add = {.name = "add of one partial", .linear = {1}, .place = place_plain, .run = run_add},
    bilinear_mul = {.name = "mul of two partials", .linear = {3}, .place = place_plain, .run = run_mul},
    linear_number = {.name = "number added to a partial", .linear = {1}, .place = place_plain, .run = run_add_number},
    max_as_sum = {.name = "sum of maxima", .reduction = TUTTI_SUM, .place = place_rows, .run = run_max},
    max_keeps_min = {.name = "minimum of maxima",
                     .reduction = TUTTI_MAX,
                     .has_keeps = true,
                     .keeps = TUTTI_MIN,
                     .place = place_rows,
                     .run = run_max},
    open_softmax = {.name = "softmax of parts", .place = place_open_softmax, .run = run_softmax},
    open_pool = {.name = "pooling of parts", .rule = "nhwc->nHWc", .place = place_open_pool, .run = run_pool},
    bias_on_each = {.name = "bias on each rank", .place = place_unsummed_dense, .run = run_dense};

#define WRONG(row_, params_, n, ...)                                                                                   \
    { .row = &(row_), .params = (params_), .ninputs = (n), .inputs = {__VA_ARGS__}, .tolerance = 2e-5 }

const row_case wrong_cases[] = {
    WRONG(mean_of_means, &rows, 1, F32(SHAPE(2, 7, 3))),
    WRONG(local_dropout, NULL, 1, F32(SHAPE(2, 9, 5))),
    WRONG(linear_relu, NULL, 1, F32(SHAPE(2, 7, 2))),
    WRONG(linear_add, NULL, 2, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 5, 3))),
    WRONG(bilinear_mul, NULL, 2, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 5, 3))),
    WRONG(linear_number, &two, 1, F32(SHAPE(2, 5, 2))),
    WRONG(max_as_sum, &rows, 1, F32(SHAPE(2, 7, 3))),
    WRONG(max_keeps_min, &rows, 1, F32(SHAPE(2, 7, 3))),
    WRONG(open_softmax, NULL, 1, F32(SHAPE(2, 3, 7))),
    WRONG(bias_on_each, NULL, 3, F32(SHAPE(2, 5, 3)), F32(SHAPE(2, 3, 4)), F32(SHAPE(1, 4))),
    WRONG(open_pool, &odd2, 1, F32(SHAPE(4, 3, 6, 5, 3))),
    {.row = NULL},
};
