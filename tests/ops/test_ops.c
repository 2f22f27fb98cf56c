/*
 * Operators: errors, with the same text on all ranks; which layouts need no move; and difficult layouts.
 * tests/ops/ops_torch.py tests values.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tutti/device.h>
#include <tutti/ops.h>

#include "tests/support/ranks.h"

TestSuite(ops, .timeout = 120);

enum { MOST_ELEMENTS = 256 };

static void run(int nranks, ranks_body body) {
    const char *failure = ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = nranks, .timeout_s = 90}, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------ tensors */

#define SHAPE(...)                                                                                                     \
    (int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)), (const int64_t[]) {                                       \
        __VA_ARGS__                                                                                                    \
    }
#define INTS(...) ((const int64_t[]){__VA_ARGS__})

/* Element number i of a tensor. */
static double value_of(int64_t i) {
    return (double)(i * 7 % 13 - 6);
}

static void store(void *data, tutti_type type, size_t at, double value) {
    if (type == TUTTI_FLOAT64) ((double *)data)[at] = value;
    else if (type == TUTTI_FLOAT32) ((float *)data)[at] = (float)value;
    else if (type == TUTTI_INT32) ((int32_t *)data)[at] = (int32_t)value;
    else if (type == TUTTI_INT64) ((int64_t *)data)[at] = (int64_t)value;
    else ((uint8_t *)data)[at] = value != 0;
}

/* A tensor of value_of: if it is partial(sum), all ranks except the first hold 1. */
static tutti_status make(tutti_placement *placement, const char *name, tutti_type type, const char *sbp_text, int ndims,
                         const int64_t *shape, tutti_tensor **out) {
    tutti_sbp sbp[TUTTI_MOST_AXES];
    tutti_local local;
    int naxes, term = 0, terms = 1;
    TUTTI_TRY(tutti_sbp_parse(sbp_text, sbp, TUTTI_MOST_AXES, &naxes));
    const tutti_layout layout =
        TUTTI_LAYOUT(.placement = placement, .sbp = sbp, .type = type, .ndims = ndims, .shape = shape, .name = name);
    TUTTI_TRY(tutti_tensor_create(&layout, out));
    TUTTI_TRY(tutti_tensor_local(*out, &local));
    for (int axis = 0; axis < naxes; axis++) {
        if (sbp[axis].kind != TUTTI_SBP_PARTIAL) continue;
        term = term * tutti_placement_size(placement, axis) + tutti_placement_coordinate(placement, axis);
        terms *= tutti_placement_size(placement, axis);
    }
    for (size_t i = 0; i < local.count; i++) {
        int64_t rest = (int64_t)i, number = 0, stride = 1;
        for (int d = ndims - 1; d >= 0; d--) {
            number += (local.first[d] + rest % local.shape[d]) * stride;
            rest /= local.shape[d];
            stride *= shape[d];
        }
        store(local.data, type, i, term > 0 ? 1 : value_of(number) - (terms - 1));
    }
    return TUTTI_OK;
}

/* The whole of a float32 or float64. Collective. */
static tutti_status read_whole(const tutti_tensor *y, double values[MOST_ELEMENTS]) {
    tutti_tensor *whole;
    tutti_local local;
    TUTTI_TRY(tutti_tensor_to_global(y, NULL, NULL, NULL, &whole));
    TUTTI_TRY(tutti_tensor_local(whole, &local));
    RANKS_CHECK(local.count <= MOST_ELEMENTS, "%zu elements", local.count);
    for (size_t i = 0; i < local.count; i++)
        values[i] = tutti_tensor_layout(whole)->type == TUTTI_FLOAT64 ? ((const double *)local.data)[i]
                                                                      : (double)((const float *)local.data)[i];
    tutti_tensor_destroy(whole);
    return TUTTI_OK;
}

static tutti_status expect_values(int line, const tutti_tensor *y, const double *expected, size_t count) {
    double values[MOST_ELEMENTS] = {0};
    TUTTI_TRY(read_whole(y, values));
    for (size_t i = 0; i < count; i++)
        RANKS_CHECK(fabs(values[i] - expected[i]) <= 1e-5, "line %d: element %zu is %g, not %g", line, i, values[i],
                    expected[i]);
    return TUTTI_OK;
}

static tutti_status expect_sbp(int line, const tutti_tensor *y, const char *expected) {
    char text[64];
    const tutti_layout *layout = tutti_tensor_layout(y);
    tutti_sbp_format(layout->sbp, tutti_placement_axes(layout->placement), text, sizeof text);
    RANKS_CHECK(strcmp(text, expected) == 0, "line %d: the result is %s, not %s; %s", line, text, expected,
                tutti_op_explain());
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ errors */

static tutti_status expect_equal_words(const ranks_context *context, int line) {
    const char *text = tutti_last_error();
    uint64_t hash = 14695981039346656037u, least, most;
    for (; *text != '\0'; text++) hash = (hash ^ (uint8_t)*text) * 1099511628211u;
    TUTTI_TRY(tutti_all_reduce(context->comm, &hash, &least, 1, TUTTI_UINT64, TUTTI_MIN, NULL));
    TUTTI_TRY(tutti_all_reduce(context->comm, &hash, &most, 1, TUTTI_UINT64, TUTTI_MAX, NULL));
    RANKS_CHECK(least == most, "line %d: the ranks' errors differ; here '%s'", line, tutti_last_error());
    return TUTTI_OK;
}

static tutti_tensor *const nothing = (tutti_tensor *)16; /* results before a call, and after one that fails */

/* `expr` may store results in y, dx and dz. */
#define REFUSE(words, expr)                                                                                            \
    do {                                                                                                               \
        y = dx = dz = nothing;                                                                                         \
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, expr);                                                                        \
        RANKS_CHECK(strstr(tutti_last_error(), words) != NULL, "line %d: '%s', not '%s'", __LINE__,                    \
                    tutti_last_error(), words);                                                                        \
        RANKS_CHECK(y == nothing && dx == nothing && dz == nothing, "line %d: a result was stored", __LINE__);         \
        TUTTI_TRY(expect_equal_words(context, __LINE__));                                                              \
    } while (0)

typedef struct scene {
    tutti_placement *line, *grid; /* 4; 2 x 2 */
    tutti_tensor *a, *b, *wide, *matrix, *image, *weight, *table, *labels, *number, *twice, *grid_a, *largest, *flags,
        *four, *four_twice;
} scene;

static tutti_status open_scene(ranks_context *context, scene *s) {
    const int four = 4, square[] = {2, 2};
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &four, 1, &s->line));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, square, 2, &s->grid));
    TUTTI_TRY(make(s->line, "a", TUTTI_FLOAT32, "S0", SHAPE(4, 3), &s->a));
    TUTTI_TRY(make(s->line, "b", TUTTI_FLOAT32, "S1", SHAPE(4, 3), &s->b));
    TUTTI_TRY(make(s->line, "wide", TUTTI_FLOAT32, "B", SHAPE(4, 5), &s->wide));
    TUTTI_TRY(make(s->line, "matrix", TUTTI_FLOAT32, "S0", SHAPE(3, 6), &s->matrix));
    TUTTI_TRY(make(s->line, "image", TUTTI_FLOAT32, "S0", SHAPE(2, 5, 4, 3), &s->image));
    TUTTI_TRY(make(s->line, "weight", TUTTI_FLOAT32, "B", SHAPE(3, 2, 3, 2), &s->weight));
    TUTTI_TRY(make(s->line, "table", TUTTI_FLOAT32, "S0", SHAPE(7, 2), &s->table));
    TUTTI_TRY(make(s->line, "labels", TUTTI_INT32, "S0", SHAPE(4), &s->labels));
    TUTTI_TRY(make(s->line, "number", TUTTI_FLOAT32, "B", 0, NULL, &s->number));
    TUTTI_TRY(make(s->line, "twice", TUTTI_FLOAT64, "S0", SHAPE(4, 3), &s->twice));
    TUTTI_TRY(make(s->grid, "grid_a", TUTTI_FLOAT32, "S0,B", SHAPE(4, 3), &s->grid_a));
    TUTTI_TRY(make(s->line, "four", TUTTI_FLOAT32, "S0", SHAPE(4), &s->four));
    TUTTI_TRY(make(s->line, "four_twice", TUTTI_FLOAT64, "B", SHAPE(4), &s->four_twice));
    TUTTI_TRY(make(s->line, "largest", TUTTI_FLOAT32, "P(max)", SHAPE(4, 3), &s->largest));
    return make(s->line, "flags", TUTTI_BOOL, "S0", SHAPE(4, 3), &s->flags);
}

static void close_scene(scene *s) {
    tutti_tensor *tensors[] = {s->a,      s->b,     s->wide,   s->matrix,  s->image, s->weight, s->table,     s->labels,
                               s->number, s->twice, s->grid_a, s->largest, s->flags, s->four,   s->four_twice};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) tutti_tensor_destroy(tensors[i]);
    tutti_placement_destroy(s->line);
    tutti_placement_destroy(s->grid);
}

static tutti_status refuse_inputs(ranks_context *context) {
    scene s;
    tutti_tensor *y, *dx, *dz;
    TUTTI_TRY(open_scene(context, &s));
    REFUSE("add: input 1 is NULL", tutti_op_add(s.a, NULL, NULL, &y));
    REFUSE("matmul: input 0 is NULL", tutti_op_matmul(NULL, s.a, NULL, NULL, &y));
    REFUSE("relu: the result is NULL", tutti_op_relu(s.a, NULL, NULL));
    REFUSE("reshape", tutti_op_reshape(s.a, 2, INTS(3, 4), NULL, NULL));
    REFUSE("batch_norm", tutti_op_batch_norm(s.image, s.table, s.table, 1e-5, NULL, &y, NULL));
    REFUSE("must have one dimension of 3, the channels of 'image'",
           tutti_op_batch_norm(s.image, s.table, s.table, 1e-5, NULL, &y, &dx));
    REFUSE("'twice' is float64, and must be float32", tutti_op_batch_norm(s.a, s.twice, s.twice, 1e-5, NULL, &y, &dx));
    REFUSE("needs samples and channels", tutti_op_batch_norm(s.number, s.number, s.number, 1e-5, NULL, &y, &dx));
    REFUSE("lies on another placement than 'a'", tutti_op_add(s.a, s.grid_a, NULL, &y));
    REFUSE("the types differ", tutti_op_mul(s.a, s.twice, NULL, &y));
    REFUSE("do not broadcast: dimension 1 of 'a' is 3, of the result 5", tutti_op_add(s.a, s.wide, NULL, &y));
    REFUSE("bool is not a number", tutti_op_add(s.flags, s.flags, NULL, &y));
    REFUSE("not int32", tutti_op_exp(s.labels, NULL, &y));
    REFUSE("is neither TUTTI_GELU_ERF nor", tutti_op_gelu(s.a, (tutti_gelu)2, NULL, &y));
    REFUSE("99 is not a type", tutti_op_cast(s.a, (tutti_type)99, NULL, &y));
    REFUSE("at least two dimensions", tutti_op_matmul(s.a, s.number, NULL, NULL, &y));
    REFUSE("is 4, and must be 3", tutti_op_matmul(s.a, s.b, NULL, NULL, &y));
    REFUSE("is 4, and must be 3", tutti_op_dense(s.a, s.wide, NULL, NULL, &y));
    REFUSE("has 2 dimensions, and must have 1", tutti_op_dense(s.a, s.matrix, s.a, NULL, &y));
    REFUSE("order[1] is 0: each of 0 to 1 must come once", tutti_op_transpose(s.a, (int[]){0, 0}, NULL, &y));
    REFUSE("order[0] is 2", tutti_op_transpose(s.a, (int[]){2, 0}, NULL, &y));
    REFUSE("the order is NULL", tutti_op_transpose(s.a, NULL, NULL, &y));
    REFUSE("[2, 5) of dimension 0 is not within its extent 4", tutti_op_slice(s.a, INTS(2, 0), INTS(5, 3), NULL, &y));
    REFUSE("[2, 1) of dimension 1", tutti_op_slice(s.a, INTS(0, 2), INTS(4, 1), NULL, &y));
    REFUSE("first or end is NULL", tutti_op_slice(s.a, NULL, INTS(4, 1), NULL, &y));
    const tutti_tensor *pair[] = {s.a, s.wide}, *gap[] = {s.a, NULL};
    REFUSE("differs from 'a' in another dimension than 0", tutti_op_concat(pair, 2, 0, NULL, &y));
    REFUSE("dimension 2 is not there", tutti_op_concat(pair, 2, 2, NULL, &y));
    REFUSE("0 tensors; there may be 1 to 16", tutti_op_concat(pair, 0, 0, NULL, &y));
    REFUSE("NULL", tutti_op_concat(gap, 2, 0, NULL, &y));
    REFUSE("it has 12 elements, which do not fill the shape", tutti_op_reshape(s.a, 2, INTS(5, 3), NULL, &y));
    REFUSE("it has 12 elements, which do not fill the shape", tutti_op_reshape(s.a, 2, INTS(5, -1), NULL, &y));
    REFUSE("it has 12 elements, which do not fill the shape", tutti_op_reshape(s.a, 2, INTS(0, -1), NULL, &y));
    REFUSE("one may be -1", tutti_op_reshape(s.a, 2, INTS(-1, -1), NULL, &y));
    REFUSE("extent 0 is -3", tutti_op_reshape(s.a, 2, INTS(-3, -4), NULL, &y));
    REFUSE("9 dimensions", tutti_op_reshape(s.a, 9, INTS(12, 1, 1, 1, 1, 1, 1, 1, 1), NULL, &y));
    REFUSE("names dimensions beyond the 2", tutti_op_reduce(s.a, TUTTI_SUM, 4, false, NULL, &y));
    REFUSE("is none of TUTTI_SUM", tutti_op_reduce(s.a, TUTTI_PROD, 1, false, NULL, &y));
    REFUSE("not int32", tutti_op_reduce(s.labels, TUTTI_AVG, 1, false, NULL, &y));
    REFUSE("a scalar has no classes", tutti_op_softmax(s.number, NULL, &y));
    REFUSE("labels are int32 or int64, not float32", tutti_op_softmax_cross_entropy(s.a, s.number, NULL, &y));
    REFUSE("has 1 dimensions, and must have 3", tutti_op_softmax_cross_entropy(s.image, s.labels, NULL, &y));
    REFUSE("indices are int32 or int64, not float32", tutti_op_embedding(s.a, s.table, NULL, &y));
    REFUSE("has 4 dimensions, and must have 2", tutti_op_embedding(s.labels, s.image, NULL, &y));
    close_scene(&s);
    return TUTTI_OK;
}

Test(ops, wrong_inputs_are_refused_in_one_line_on_all_ranks) {
    run(4, refuse_inputs);
}

static tutti_status refuse_memory(ranks_context *context) {
    scene s;
    tutti_placement *gpus;
    tutti_tensor *moved;
    const int four = 4;
    TUTTI_TRY(tutti_device_use(-1));
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &four, 1, &gpus));
    TUTTI_TRY(tutti_tensor_to_global(s.a, gpus, NULL, NULL, &moved));
    const tutti_layout layout =
        TUTTI_LAYOUT(.placement = gpus, .type = TUTTI_FLOAT32, .ndims = 1, .shape = INTS(4), .name = "made");
    tutti_tensor *y = nothing;
    const char *words = "of tensors in CUDA memory: the CUDA module has no kernels for operators";
    tutti_status got[] = {tutti_op_relu(moved, NULL, &y), tutti_op_fill(&layout, 1, &y)};
    RANKS_CHECK(got[0] == TUTTI_ERR_UNSUPPORTED && got[1] == TUTTI_ERR_UNSUPPORTED && y == nothing, "%s and %s",
                tutti_status_name(got[0]), tutti_status_name(got[1]));
    RANKS_CHECK(strstr(tutti_last_error(), words) != NULL, "%s", tutti_last_error());
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, tutti_op_add(moved, moved, NULL, &y));
    RANKS_CHECK(strncmp(tutti_last_error(), "add of", 6) == 0 && strstr(tutti_last_error(), words) != NULL, "%s",
                tutti_last_error());
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_op_add(s.a, moved, NULL, &y));
    RANKS_CHECK(strstr(tutti_last_error(), "lies on another placement than 'a'") != NULL, "%s", tutti_last_error());
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    tutti_tensor_destroy(moved);
    tutti_placement_destroy(gpus);
    close_scene(&s);
    return TUTTI_OK;
}

Test(ops, tensors_in_cuda_memory_are_refused_without_kernels_for_them) {
    run(4, refuse_memory);
}

static tutti_status refuse_settings(ranks_context *context) {
    scene s;
    tutti_tensor *y, *dx, *dz;
    TUTTI_TRY(open_scene(context, &s));
    const tutti_windows good = {.kernel = {2, 2}}, none = {.kernel = {0, 2}},
                        backward = {.kernel = {2, 2}, .stride = {-1, 1}}, negative = {.kernel = {2, 2}, .pad_left = -1};
    REFUSE("its windows are NULL", tutti_op_conv2d(s.image, s.weight, NULL, NULL, NULL, &y));
    REFUSE("kernel 0x2 and stride 1x1 must be positive", tutti_op_max_pool2d(s.image, &none, NULL, &y));
    REFUSE("stride -1x1 must be positive", tutti_op_conv2d(s.image, s.weight, NULL, &backward, NULL, &y));
    REFUSE("a padding of 0,0,-1,0 is negative", tutti_op_avg_pool2d(s.image, &negative, NULL, &y));
    REFUSE("has 2 dimensions, and must have 4", tutti_op_max_pool2d(s.a, &good, NULL, &y));
    REFUSE("images are [batch, height, width, channels]", tutti_op_conv2d(s.image, s.a, NULL, &good, NULL, &y));
    REFUSE("dimension 2 of 'image' is 4, and must be 3", tutti_op_conv2d(s.image, s.image, NULL, &good, NULL, &y));
    const tutti_dropout_options all = {.rate = 1}, less = {.rate = -0.5}, no_number = {.rate = NAN};
    REFUSE("the rate is 1, and must be at least 0 and below 1", tutti_op_dropout(s.a, &all, NULL, &y));
    REFUSE("the rate is -0.5", tutti_op_dropout(s.a, &less, NULL, &y));
    REFUSE("the rate is", tutti_op_dropout(s.a, &no_number, NULL, &y));
    REFUSE("its options are NULL", tutti_op_dropout(s.a, NULL, NULL, &y));
    const tutti_sbp far = TUTTI_SPLIT(2), near = TUTTI_SPLIT(-1), odd = TUTTI_PARTIAL(TUTTI_PREMUL_SUM),
                    bits = TUTTI_PARTIAL(TUTTI_BAND), strange = {.kind = (tutti_sbp_kind)7};
    const tutti_sbp *const wrong[] = {&far, &near, &odd, &bits, &strange};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const tutti_op_options options = TUTTI_OP_OPTIONS(.sbp = wrong[i], .name = "wanted");
        REFUSE("'wanted'", tutti_op_add(s.a, s.b, &options, &y));
        REFUSE("'wanted'", tutti_op_reshape(s.a, 2, INTS(3, 4), &options, &y));
    }
    tutti_op_options strange_bytes = TUTTI_OP_OPTIONS(.name = "y");
    strange_bytes.struct_bytes = 3;
    REFUSE("add: options: struct_bytes is 3,", tutti_op_add(s.a, s.b, &strange_bytes, &y));
    REFUSE("reshape: options: struct_bytes is 3,", tutti_op_reshape(s.a, 1, INTS(12), &strange_bytes, &y));
    tutti_work *work;
    const tutti_options asynchronous = TUTTI_OPTIONS(.work = &work);
    const tutti_op_options with_work = TUTTI_OP_OPTIONS(.options = &asynchronous);
    REFUSE("options.work must be NULL", tutti_op_relu(s.a, &with_work, &y));
    REFUSE("options.work must be NULL", tutti_op_reshape(s.a, 1, INTS(12), &with_work, &y));
    const tutti_layout layout =
        TUTTI_LAYOUT(.placement = s.line, .type = TUTTI_INT32, .ndims = 1, .shape = INTS(4), .name = "made");
    const tutti_layout flags =
        TUTTI_LAYOUT(.placement = s.line, .type = TUTTI_BOOL, .ndims = 1, .shape = INTS(4), .name = "made");
    const tutti_layout split = TUTTI_LAYOUT(.placement = s.line, .sbp = &far, .type = TUTTI_FLOAT32, .ndims = 1,
                                            .shape = INTS(4), .name = "made");
    const tutti_random_options uniform = {.b = 1}, neither = {.distribution = (tutti_distribution)5};
    REFUSE("the type must be a float, not int32", tutti_op_random(&layout, &uniform, &y));
    REFUSE("neither TUTTI_UNIFORM nor TUTTI_NORMAL", tutti_op_random(&layout, &neither, &y));
    REFUSE("its options are NULL", tutti_op_random(&layout, NULL, &y));
    REFUSE("fill: the layout, its placement or the result is NULL", tutti_op_fill(NULL, 1, &y));
    REFUSE("fill: the layout, its placement or the result is NULL", tutti_op_fill(&layout, 1, NULL));
    REFUSE("dimension 2 cannot be split", tutti_op_fill(&split, 1, &y));
    REFUSE("bool is not a number", tutti_op_arange(&flags, 0, 1, &y));
    close_scene(&s);
    return TUTTI_OK;
}

Test(ops, wrong_settings_are_refused_in_one_line_on_all_ranks) {
    run(4, refuse_settings);
}

static tutti_status refuse_gradients(ranks_context *context) {
    scene s;
    tutti_tensor *y, *dx, *dz;
    TUTTI_TRY(open_scene(context, &s));
    const tutti_windows windows = {.kernel = {2, 2}};
    const tutti_dropout_options half = {.rate = 0.5};
    REFUSE("max", tutti_op_add_backward(s.a, s.largest, s.a, &dx, &dz)); /* it has no adjoint, and dx is reset */
    REFUSE("max", tutti_op_relu_backward(s.largest, s.a, s.a, &dx));
    REFUSE("max", tutti_op_reshape_backward(s.largest, s.a, &dx));
    REFUSE("is NULL", tutti_op_add_backward(s.a, s.b, NULL, &dx, &dz));
    REFUSE("is NULL", tutti_op_matmul_backward(s.a, NULL, NULL, s.a, &dx, &dz));
    REFUSE("is NULL", tutti_op_softmax_backward(s.a, s.a, NULL, &dx));
    REFUSE("is NULL", tutti_op_softmax_backward(NULL, s.a, s.a, &dx));
    REFUSE("is NULL", tutti_op_reduce_backward(s.a, NULL, TUTTI_MAX, 1, false, s.a, &dx));
    REFUSE("the bias is NULL", tutti_op_dense_backward(s.a, s.matrix, NULL, s.a, NULL, NULL, &dx));
    /* Gradients of results that have another shape. */
    REFUSE("'wide'", tutti_op_add_backward(s.a, s.b, s.wide, &dx, NULL));
    REFUSE("'number'", tutti_op_add_backward(s.a, s.b, s.number, &dx, NULL));
    REFUSE("'image'", tutti_op_add_backward(s.number, s.number, s.image, &dx, &dz));
    REFUSE("'image'", tutti_op_sub_backward(s.number, s.number, s.image, NULL, &dz));
    REFUSE("'number'", tutti_op_mul_backward(s.a, s.b, s.number, &dx, &dz));
    REFUSE("'number'", tutti_op_mul_backward(s.number, s.a, s.number, &dx, NULL));
    REFUSE("'wide'", tutti_op_scale_backward(s.a, 2, s.wide, &dx));
    REFUSE("'number'", tutti_op_relu_backward(s.a, s.a, s.number, &dx));
    REFUSE("'number'", tutti_op_exp_backward(s.a, s.a, s.number, &dx));
    REFUSE("'number'", tutti_op_gelu_backward(s.a, TUTTI_GELU_ERF, s.number, &dx));
    REFUSE("'wide'", tutti_op_cast_backward(s.twice, s.wide, &dx));
    REFUSE("'a'", tutti_op_transpose_backward(s.a, (int[]){1, 0}, s.a, &dx));
    REFUSE("order[1] is 0", tutti_op_transpose_backward(s.a, (int[]){0, 0}, s.a, &dx));
    REFUSE("reshape of 'wide'", tutti_op_reshape_backward(s.a, s.wide, &dx));
    REFUSE("that of the slice is", tutti_op_slice_backward(s.a, INTS(0, 0), INTS(2, 2), s.a, &dx));
    const tutti_tensor *pair[] = {s.a, s.b};
    tutti_tensor *both[2] = {nothing, nothing};
    REFUSE("concat_backward", tutti_op_concat_backward(pair, 2, 0, s.a, both));
    REFUSE("concat_backward", tutti_op_concat_backward(pair, 1, 1, s.wide, both));
    RANKS_CHECK(both[0] == nothing && both[1] == nothing, "a gradient of concat was stored");
    REFUSE("", tutti_op_matmul_backward(s.a, s.matrix, NULL, s.a, &dx, &dz));
    REFUSE("", tutti_op_dense_backward(s.a, s.matrix, NULL, s.wide, &dx, &dz, NULL));
    REFUSE("", tutti_op_conv2d_backward(s.image, s.weight, NULL, &windows, s.image, &dx, &dz, NULL));
    REFUSE("'image' has 5x4 pixels, and the output of these windows 4x3",
           tutti_op_max_pool2d_backward(s.image, &windows, s.image, &dx));
    REFUSE("", tutti_op_avg_pool2d_backward(s.image, &windows, s.a, &dx));
    REFUSE("", tutti_op_reduce_backward(s.a, NULL, TUTTI_SUM, 1, false, s.wide, &dx));
    REFUSE("the mask 0x8", tutti_op_reduce_backward(s.a, s.a, TUTTI_SUM, 8, false, s.a, &dx));
    REFUSE("'labels' is int32", tutti_op_reduce_backward(s.a, s.labels, TUTTI_MAX, 2, false, s.four, &dx));
    REFUSE("'four' has 1 dimensions, and the result 2",
           tutti_op_reduce_backward(s.a, s.four, TUTTI_MAX, 2, true, s.four, &dx));
    REFUSE("'wide' has 2 dimensions, and the result 1",
           tutti_op_reduce_backward(s.a, s.four, TUTTI_MIN, 2, false, s.wide, &dx));
    REFUSE("dimension 0 of 'four' is 4, and of the result 3",
           tutti_op_reduce_backward(s.a, s.four, TUTTI_MIN, 1, false, s.four, &dx));
    REFUSE("", tutti_op_softmax_backward(s.a, s.a, s.wide, &dx));
    REFUSE("", tutti_op_softmax_cross_entropy_backward(s.a, s.labels, s.a, &dx));
    REFUSE("", tutti_op_softmax_cross_entropy_backward(s.b, s.labels, s.number, &dx));
    REFUSE("is float64, and must be float32",
           tutti_op_softmax_cross_entropy_backward(s.b, s.labels, s.four_twice, &dx));
    REFUSE("max", tutti_op_softmax_cross_entropy_backward(s.largest, s.labels, s.four, &dx));
    REFUSE("", tutti_op_embedding_backward(s.labels, s.table, s.a, &dx));
    REFUSE("'wide'", tutti_op_dropout_backward(s.a, &half, s.wide, &dx));
    /* Gradients of another type, or on another placement. */
    REFUSE("'a'", tutti_op_add_backward(s.a, s.b, s.twice, &dx, NULL));
    REFUSE("'a'", tutti_op_add_backward(s.a, s.b, s.grid_a, &dx, NULL));
    /* Without an address for the result. */
    REFUSE("NULL", tutti_op_reshape_backward(s.a, s.a, NULL));
    REFUSE("NULL", tutti_op_relu_backward(s.a, s.a, s.a, NULL));
    REFUSE("NULL", tutti_op_concat_backward(pair, 2, 0, s.a, NULL));
    close_scene(&s);
    return TUTTI_OK;
}

Test(ops, wrong_gradients_are_refused_in_one_line_on_all_ranks) {
    run(4, refuse_gradients);
}

/* ------------------------------------------------------------------------------------------------ dispatch */

static bool moves(const char *input) {
    char text[48];
    snprintf(text, sizeof text, "; '%s' ", input);
    return strstr(tutti_op_explain(), text) != NULL;
}

#define EXPECT_SBP(y_, expected)          TUTTI_TRY(expect_sbp(__LINE__, y_, expected))
#define EXPECT_VALUES(y_, values_, count) TUTTI_TRY(expect_values(__LINE__, y_, values_, count))

static tutti_status dispatch(ranks_context *context) {
    scene s;
    tutti_tensor *y, *terms, *other, *tall, *left, *right;
    double expected[MOST_ELEMENTS];
    TUTTI_TRY(open_scene(context, &s));

    TUTTI_TRY(tutti_op_add(s.a, s.b, NULL, &y));
    RANKS_CHECK(moves("a") != moves("b"), "add of S0 and S1: %s", tutti_op_explain());
    for (int i = 0; i < 12; i++) expected[i] = 2 * value_of(i);
    EXPECT_VALUES(y, expected, 12);
    tutti_tensor_destroy(y);

    TUTTI_TRY(make(s.line, "right", TUTTI_FLOAT32, "B", SHAPE(3, 5), &right));
    TUTTI_TRY(tutti_op_matmul(s.a, right, NULL, NULL, &y));
    RANKS_CHECK(!moves("a") && !moves("right"), "S0 times B: %s", tutti_op_explain());
    EXPECT_SBP(y, "S0");
    for (int i = 0; i < 20; i++) {
        expected[i] = 0;
        for (int k = 0; k < 3; k++) expected[i] += value_of(i / 5 * 3 + k) * value_of(k * 5 + i % 5);
    }
    EXPECT_VALUES(y, expected, 20);
    tutti_tensor_destroy(y);
    tutti_tensor_destroy(right);

    TUTTI_TRY(make(s.line, "left", TUTTI_FLOAT32, "S1", SHAPE(3, 8), &left));
    TUTTI_TRY(make(s.line, "tall", TUTTI_FLOAT32, "S0", SHAPE(8, 2), &tall));
    TUTTI_TRY(tutti_op_matmul(left, tall, NULL, NULL, &y));
    RANKS_CHECK(!moves("left") && !moves("tall"), "S1 times S0: %s", tutti_op_explain());
    EXPECT_SBP(y, "P(sum)");
    for (int i = 0; i < 6; i++) {
        expected[i] = 0;
        for (int k = 0; k < 8; k++) expected[i] += value_of(i / 2 * 8 + k) * value_of(k * 2 + i % 2);
    }
    EXPECT_VALUES(y, expected, 6);
    tutti_tensor_destroy(y);
    const tutti_sbp rows = TUTTI_SPLIT(0);
    TUTTI_TRY(tutti_op_matmul(left, tall, NULL, &TUTTI_OP_OPTIONS(.sbp = &rows, .name = "product"), &y));
    EXPECT_SBP(y, "S0");
    RANKS_CHECK(strcmp(tutti_tensor_layout(y)->name, "product") == 0, "its name is '%s'", tutti_tensor_layout(y)->name);
    EXPECT_VALUES(y, expected, 6);
    tutti_tensor_destroy(y);
    tutti_tensor_destroy(left);
    tutti_tensor_destroy(tall);

    TUTTI_TRY(make(s.line, "terms", TUTTI_FLOAT32, "P(sum)", SHAPE(3, 2), &terms));
    TUTTI_TRY(make(s.line, "other", TUTTI_FLOAT32, "P(sum)", SHAPE(3, 2), &other));
    TUTTI_TRY(tutti_op_add(terms, other, NULL, &y));
    RANKS_CHECK(!moves("terms") && !moves("other"), "P + P: %s", tutti_op_explain());
    EXPECT_SBP(y, "P(sum)");
    for (int i = 0; i < 6; i++) expected[i] = 2 * value_of(i);
    EXPECT_VALUES(y, expected, 6);
    tutti_tensor_destroy(y);
    TUTTI_TRY(tutti_op_add_number(terms, 5, NULL, &y));
    RANKS_CHECK(moves("terms"), "P + number: %s", tutti_op_explain());
    for (int i = 0; i < 6; i++) expected[i] = value_of(i) + 5;
    EXPECT_VALUES(y, expected, 6);
    tutti_tensor_destroy(y);
    TUTTI_TRY(tutti_op_cast(terms, TUTTI_FLOAT64, NULL, &y));
    RANKS_CHECK(!moves("terms"), "P to float64: %s", tutti_op_explain());
    EXPECT_SBP(y, "P(sum)");
    tutti_tensor_destroy(y);
    TUTTI_TRY(tutti_op_cast(terms, TUTTI_BFLOAT16, NULL, &y));
    RANKS_CHECK(moves("terms"), "P to bfloat16: %s", tutti_op_explain());
    tutti_tensor_destroy(y);
    tutti_tensor_destroy(terms);
    tutti_tensor_destroy(other);
    close_scene(&s);
    return TUTTI_OK;
}

Test(ops, matching_layouts_are_computed_without_a_move) {
    run(4, dispatch);
}

/* Layouts for which DTensor is wrong: means of uneven shards, a view of a split dimension, one dimension split by two
 * axes. */
static tutti_status hurt(ranks_context *context) {
    scene s;
    tutti_tensor *x, *y, *whole;
    double expected[MOST_ELEMENTS], sum = 0;
    TUTTI_TRY(open_scene(context, &s));

    TUTTI_TRY(make(s.line, "x", TUTTI_FLOAT32, "S0", SHAPE(7, 3), &x)); /* 2, 2, 2 and 1 rows */
    TUTTI_TRY(tutti_op_reduce(x, TUTTI_AVG, 3, false, NULL, &y));
    RANKS_CHECK(!moves("x"), "mean: %s", tutti_op_explain());
    for (int i = 0; i < 21; i++) sum += value_of(i);
    expected[0] = sum / 21;
    EXPECT_VALUES(y, expected, 1);
    tutti_tensor_destroy(x);
    tutti_tensor_destroy(y);

    for (int i = 0; i < 96; i++) expected[i] = value_of(i);
    TUTTI_TRY(make(s.line, "x", TUTTI_FLOAT32, "S1", SHAPE(12, 8), &x));
    TUTTI_TRY(tutti_op_reshape(x, 2, INTS(16, 6), NULL, &y));
    EXPECT_VALUES(y, expected, 96);
    tutti_tensor_destroy(x);
    tutti_tensor_destroy(y);

    TUTTI_TRY(
        make(s.line, "x", TUTTI_FLOAT32, "S0", SHAPE(12, 8), &x)); /* nothing moves: each rank keeps its 3 rows of 8 */
    TUTTI_TRY(tutti_op_reshape(x, 3, INTS(-1, 3, 8), NULL, &y));
    EXPECT_SBP(y, "S0");
    tutti_local before, after;
    TUTTI_TRY(tutti_tensor_local(x, &before));
    TUTTI_TRY(tutti_tensor_local(y, &after));
    RANKS_CHECK(after.shape[0] == 1 && after.first[0] == context->rank && after.count == 24,
                "a part begins at %lld and has %zu elements", (long long)after.first[0], after.count);
    RANKS_CHECK(memcmp(before.data, after.data, after.count * sizeof(float)) == 0, "a part has other elements");
    EXPECT_VALUES(y, expected, 96);
    tutti_tensor_destroy(x);
    tutti_tensor_destroy(y);

    TUTTI_TRY(make(s.grid, "x", TUTTI_FLOAT32, "S0,S0", SHAPE(5, 3), &x));
    TUTTI_TRY(tutti_tensor_to_global(x, NULL, NULL, NULL, &whole));
    EXPECT_VALUES(whole, expected, 15);
    TUTTI_TRY(tutti_op_scale(x, 1, NULL, &y));
    EXPECT_SBP(y, "S0,S0");
    EXPECT_VALUES(y, expected, 15);
    tutti_tensor_destroy(whole);
    tutti_tensor_destroy(x);
    tutti_tensor_destroy(y);
    close_scene(&s);
    return TUTTI_OK;
}

Test(ops, difficult_layouts) {
    run(4, hurt);
}

/* ------------------------------------------------------------------------------------------------ outsiders */

static tutti_status call_from_outside(ranks_context *context) {
    static const int inside[] = {2, 0};
    const int two = 2;
    tutti_placement *pair;
    tutti_tensor *x, *w, *y, *dx, *dw;
    tutti_local local;
    bool member = context->rank == 0 || context->rank == 2;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, inside, &two, 1, &pair));
    TUTTI_TRY(make(pair, "x", TUTTI_FLOAT32, "P(sum)", SHAPE(5, 3), &x));
    TUTTI_TRY(make(pair, "w", TUTTI_FLOAT32, "S1", SHAPE(3, 4), &w));
    TUTTI_TRY(tutti_op_matmul(x, w, NULL, &TUTTI_OP_OPTIONS(.sbp = &TUTTI_SPLIT(0)), &y));
    TUTTI_TRY(tutti_op_matmul_backward(x, w, NULL, y, &dx, &dw));
    EXPECT_SBP(y, "S0");
    EXPECT_SBP(dx, "B");
    EXPECT_SBP(dw, "S1");
    TUTTI_TRY(tutti_tensor_local(y, &local));
    RANKS_CHECK((local.data != NULL) == member && local.count == (member ? context->rank == 2 ? 12u : 8u : 0u),
                "rank %d has %zu elements", context->rank, local.count);
    double expected[20];
    for (int i = 0; i < 20; i++) {
        expected[i] = 0;
        for (int k = 0; k < 3; k++) expected[i] += value_of(i / 4 * 3 + k) * value_of(k * 4 + i % 4);
    }
    if (member) EXPECT_VALUES(y, expected, 20);
    tutti_tensor *tensors[] = {x, w, y, dx, dw};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) tutti_tensor_destroy(tensors[i]);
    tutti_placement_destroy(pair);
    return TUTTI_OK;
}

Test(ops, ranks_outside_of_the_placement_get_tensors_without_a_shard) {
    run(4, call_from_outside);
}
