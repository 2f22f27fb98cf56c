/*
 * The kernels of a module (libtutti_cuda.so, or the stand-in that TUTTI_CUDA_MODULE names) under the names of the
 * kernels that are compiled for the host, so that tests/kernels/test_cuda_kernels*.c test them, too. See arrays.h.
 *
 *   tutti_gpu_add(compute, ...)  ->  upload the arrays, call kernels->add(the module's compute, ...), download them
 *
 * Arrays are allocated from one piece of memory, of which the GPU has a copy: each address has its counterpart there.
 * Functions that are not in the table of kernels (parts of other kernels) are skipped.
 */
#include "kernels/gemm.h"
#include "tests/support/emulated/arrays.h"

#define ARENA_BYTES ((size_t)96 << 20)
#define PRECISIONS  (TUTTI_PRECISION_BF16 + 1)
#define GOOD(call)  cr_assert_eq(call, TUTTI_OK, #call ": %s", tutti_last_error())

tutti_cuda_compute the_compute; /* its precision selects the module's compute */
tutti_compute *const compute = &the_compute.base;

/* Memory besides arrays that kernels read and write, at the beginning of the arena. */
typedef struct corner {
    tutti_step_values values;
    double sums[2];
} corner;

static const tutti_kernels *kernels;
static tutti_compute *computes[PRECISIONS];
static char *arena, *arena_there;
static size_t used, live; /* bytes; arrays */
static uint64_t next_stream = 1;

static corner *the_corner(void) {
    return (corner *)(void *)arena;
}

static void open_module(void) {
    const tutti_device *device = NULL;
    tutti_compute *compute_of_arena = NULL;
    void *memory = NULL;
    if (kernels != NULL) return;
    GOOD(tutti_device_open(&device));
    GOOD(tutti_device_kernels(&kernels));
    if (kernels == NULL) cr_skip_test("the module has no kernels for layers: it was built without cuBLAS");
    GOOD(kernels->open(&(tutti_compute_options){.precision = TUTTI_PRECISION_FP32}, &compute_of_arena));
    computes[TUTTI_PRECISION_FP32] = compute_of_arena;
    GOOD(kernels->alloc(compute_of_arena, ARENA_BYTES, &memory));
    arena_there = memory;
    arena = aligned_alloc(256, ARENA_BYTES);
    used = 256;
}

/* Its address on the GPU. */
static void *there(const void *here) {
    size_t at = (size_t)((const char *)here - arena);
    if (here == NULL) return NULL;
    cr_assert_lt(at, ARENA_BYTES, "the address is not in an array");
    return arena_there + at;
}

static tutti_compute *mine(void) {
    tutti_compute **own = &computes[the_compute.precision];
    open_module();
    if (*own == NULL) GOOD(kernels->open(&(tutti_compute_options){.precision = the_compute.precision}, own));
    return *own;
}

static void begin(void) {
    kernels->upload(mine(), arena_there, arena, used);
}

static void end(void) {
    GOOD(kernels->download(mine(), arena, arena_there, used));
}

/* ------------------------------------------------------------------------------------------------- arrays */

void *bytes_array(size_t bytes) {
    open_module();
    void *made = arena + used;
    used += (bytes + 127) / 64 * 64;
    cr_assert_leq(used, ARENA_BYTES, "the arena is too small");
    live++;
    return made;
}

void array_free(void *array) {
    if (array != NULL && --live == 0) used = 256;
}

float *array(size_t count) {
    float *made = bytes_array(count * sizeof *made);
    next_stream++;
    for (size_t i = 0; i < count; i++) made[i] = (float)(2 * tutti_random_uniform(11, next_stream, i) - 1);
    made[count] = 77;
    return made;
}

float *unwritten(size_t count) {
    float *made = array(count);
    for (size_t i = 0; i < count; i++) made[i] = NAN;
    return made;
}

float *copy_of(const float *values, size_t count) {
    float *made = array(count);
    memcpy(made, values, count * sizeof *made);
    return made;
}

float of_bfloat16(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static bool is_standin(void) {
    return getenv("TUTTI_CUDA_MODULE") != NULL;
}

double tolerance_of_sums(void) {
    return is_standin() ? 1e-10 : 1e-6;
}

void expect_near(const char *what, size_t count, const float *got, const float *expected, double tolerance) {
    for (size_t i = 0; i < count; i++) {
        if (isnan(got[i]) && isnan(expected[i])) continue;
        cr_assert(fabs((double)got[i] - (double)expected[i]) <= tolerance * (1 + fabs((double)expected[i])),
                  "%s[%zu of %zu]: %.9g, expected %.9g", what, i, count, (double)got[i], (double)expected[i]);
    }
    cr_assert_eq(got[count], 77, "%s: written behind its %zu elements", what, count);
}

void expect_same(const char *what, size_t count, const float *got, const float *expected) {
    expect_near(what, count, got, expected, is_standin() ? 0 : 2e-6);
}

/* ------------------------------------------------------------------------------------------------- kernels */

#define CALL(kernel, ...)                                                                                              \
    do {                                                                                                               \
        begin();                                                                                                       \
        kernels->kernel(mine(), __VA_ARGS__);                                                                          \
        end();                                                                                                         \
    } while (0)

size_t tutti_gpu_conv_scratch_count(const tutti_conv *conv, int batch) {
    open_module();
    return kernels->conv_scratch_count(conv, batch);
}

size_t tutti_gpu_conv_kept_count(const tutti_conv *conv, int batch) {
    open_module();
    return kernels->conv_kept_count(conv, batch);
}

void tutti_gpu_conv_forward(tutti_compute *by, const tutti_conv *conv, const tutti_conv_forward_args *args) {
    (void)by;
    tutti_conv_forward_args on_gpu = {.batch = args->batch,
                                      .x = there(args->x),
                                      .weight = there(args->weight),
                                      .bias = there(args->bias),
                                      .scratch = there(args->scratch),
                                      .y = there(args->y),
                                      .kept = there(args->kept)};
    CALL(conv_forward, conv, &on_gpu);
}

void tutti_gpu_conv_backward(tutti_compute *by, const tutti_conv *conv, const tutti_conv_backward_args *args) {
    (void)by;
    tutti_conv_backward_args on_gpu = {.batch = args->batch,
                                       .x = there(args->x),
                                       .weight = there(args->weight),
                                       .y = there(args->y),
                                       .dy = there(args->dy),
                                       .scratch = there(args->scratch),
                                       .kept = there(args->kept),
                                       .dweight = there(args->dweight),
                                       .dbias = there(args->dbias),
                                       .dx = there(args->dx)};
    CALL(conv_backward, conv, &on_gpu);
}

void tutti_gpu_dense_forward(tutti_compute *by, const tutti_dense *dense, const tutti_dense_forward_args *args) {
    (void)by;
    tutti_dense_forward_args on_gpu = {args->batch, there(args->x), there(args->weight), there(args->bias),
                                       there(args->y)};
    CALL(dense_forward, dense, &on_gpu);
}

void tutti_gpu_dense_backward(tutti_compute *by, const tutti_dense *dense, const tutti_dense_backward_args *args) {
    (void)by;
    tutti_dense_backward_args on_gpu = {.batch = args->batch,
                                        .x = there(args->x),
                                        .weight = there(args->weight),
                                        .y = there(args->y),
                                        .dy = there(args->dy),
                                        .dweight = there(args->dweight),
                                        .dbias = there(args->dbias),
                                        .dx = there(args->dx)};
    CALL(dense_backward, dense, &on_gpu);
}

void tutti_gpu_max_pool_forward(tutti_compute *by, const tutti_window *window, int batch, const float *x, float *y,
                                int32_t *where) {
    (void)by;
    CALL(max_pool_forward, window, batch, there(x), there(y), there(where));
}

void tutti_gpu_max_pool_backward(tutti_compute *by, const tutti_window *window, int batch, const float *dy,
                                 const int32_t *where, float *dx) {
    (void)by;
    CALL(max_pool_backward, window, batch, there(dy), there(where), there(dx));
}

void tutti_gpu_average_pool_forward(tutti_compute *by, const tutti_window *window, int batch, const float *x,
                                    float *y) {
    (void)by;
    CALL(average_pool_forward, window, batch, there(x), there(y));
}

void tutti_gpu_average_pool_backward(tutti_compute *by, const tutti_window *window, int batch, const float *dy,
                                     float *dx) {
    (void)by;
    CALL(average_pool_backward, window, batch, there(dy), there(dx));
}

void tutti_gpu_batch_norm_forward(tutti_compute *by, const tutti_batch_norm *norm,
                                  const tutti_batch_norm_forward_args *args) {
    (void)by;
    open_module();
    tutti_batch_norm_forward_args on_gpu = {args->rows,
                                            args->training,
                                            there(args->x),
                                            there(args->gamma),
                                            there(args->beta),
                                            there(args->moving_mean),
                                            there(args->moving_variance),
                                            there(args->scratch),
                                            there(args->kept),
                                            there(args->y)};
    CALL(batch_norm_forward, norm, &on_gpu);
}

void tutti_gpu_batch_norm_backward(tutti_compute *by, const tutti_batch_norm *norm,
                                   const tutti_batch_norm_backward_args *args) {
    (void)by;
    open_module();
    tutti_batch_norm_backward_args on_gpu = {
        args->rows,        there(args->x),       there(args->gamma),  there(args->beta),  there(args->dy),
        there(args->kept), there(args->scratch), there(args->dgamma), there(args->dbeta), there(args->dx)};
    CALL(batch_norm_backward, norm, &on_gpu);
}

void tutti_gpu_relu_forward(tutti_compute *by, size_t count, const float *x, float *y) {
    (void)by;
    CALL(relu_forward, count, there(x), there(y));
}

void tutti_gpu_relu_backward(tutti_compute *by, size_t count, const float *y, const float *dy, float *dx) {
    (void)by;
    CALL(relu_backward, count, there(y), there(dy), there(dx));
}

void tutti_gpu_add(tutti_compute *by, size_t count, const float *a, const float *b, float *y) {
    (void)by;
    CALL(add, count, there(a), there(b), there(y));
}

void tutti_gpu_add_relu(tutti_compute *by, size_t count, const float *a, const float *b, float *y) {
    (void)by;
    CALL(add_relu, count, there(a), there(b), there(y));
}

void tutti_gpu_fill(tutti_compute *by, size_t count, float value, float *data) {
    (void)by;
    CALL(fill, count, value, there(data));
}

void tutti_gpu_truncated_normal(tutti_compute *by, const tutti_normal *normal, size_t count, float *data) {
    (void)by;
    CALL(truncated_normal, normal, count, there(data));
}

static const tutti_step_values *put_values(const tutti_step_values *values) {
    open_module();
    the_corner()->values = *values;
    return there(&the_corner()->values);
}

void tutti_gpu_dropout(tutti_compute *by, const tutti_dropout *dropout, const tutti_step_values *values, size_t count,
                       const float *src, float *dst) {
    (void)by;
    const tutti_step_values *on_gpu = put_values(values);
    CALL(dropout, dropout, on_gpu, count, there(src), there(dst));
}

void tutti_gpu_softmax_loss(tutti_compute *by, const tutti_softmax_loss_args *args, bool adds, double *sums) {
    (void)by;
    tutti_softmax_loss_args on_gpu = *args;
    open_module();
    on_gpu.logits = there(args->logits);
    on_gpu.labels = there(args->labels);
    on_gpu.dlogits = there(args->dlogits);
    memcpy(the_corner()->sums, sums, sizeof the_corner()->sums);
    CALL(softmax_loss, &on_gpu, adds, there(the_corner()->sums));
    memcpy(sums, the_corner()->sums, sizeof the_corner()->sums);
}

static tutti_softmax_parts parts_there(const tutti_softmax_parts *parts) {
    tutti_softmax_parts on_gpu = *parts;
    open_module();
    on_gpu.logits = there(parts->logits), on_gpu.labels = there(parts->labels);
    on_gpu.distributions = there(parts->distributions), on_gpu.largest = there(parts->largest);
    on_gpu.sums = there(parts->sums), on_gpu.best = there(parts->best);
    return on_gpu;
}

void tutti_gpu_softmax_largest(tutti_compute *by, const tutti_softmax_parts *parts) {
    (void)by;
    const tutti_softmax_parts on_gpu = parts_there(parts);
    CALL(softmax_largest, &on_gpu);
}

void tutti_gpu_softmax_sums(tutti_compute *by, const tutti_softmax_parts *parts) {
    (void)by;
    const tutti_softmax_parts on_gpu = parts_there(parts);
    CALL(softmax_sums, &on_gpu);
}

void tutti_gpu_softmax_losses(tutti_compute *by, const tutti_softmax_parts *parts, float scale, float *dlogits,
                              bool adds, double *sums) {
    (void)by;
    const tutti_softmax_parts on_gpu = parts_there(parts);
    memcpy(the_corner()->sums, sums, sizeof the_corner()->sums);
    CALL(softmax_losses, &on_gpu, scale, there(dlogits), adds, there(the_corner()->sums));
    memcpy(sums, the_corner()->sums, sizeof the_corner()->sums);
}

/* The list itself stays on the host. */
static const tutti_optimizer_piece *put_pieces(const tutti_optimizer_piece *pieces, int npieces) {
    static tutti_optimizer_piece on_gpu[128];
    cr_assert_leq(npieces, (int)COUNT_OF(on_gpu));
    for (int i = 0; i < npieces; i++)
        on_gpu[i] = (tutti_optimizer_piece){pieces[i].count,
                                            there(pieces[i].gradient),
                                            {there(pieces[i].states[0]), there(pieces[i].states[1])},
                                            there(pieces[i].parameter)};
    return on_gpu;
}

void tutti_gpu_sgd(tutti_compute *by, const tutti_sgd *rule, const tutti_step_values *values,
                   const tutti_optimizer_piece *pieces, int npieces) {
    (void)by;
    const tutti_step_values *on_gpu = put_values(values);
    CALL(sgd, rule, on_gpu, put_pieces(pieces, npieces), npieces);
}

void tutti_gpu_adam(tutti_compute *by, const tutti_adam *rule, const tutti_step_values *values,
                    const tutti_optimizer_piece *pieces, int npieces) {
    (void)by;
    const tutti_step_values *on_gpu = put_values(values);
    CALL(adam, rule, on_gpu, put_pieces(pieces, npieces), npieces);
}

/* --------------------------------------------------------------------------------- functions that are not in the
 * table */

#define PART "part of other kernels, not in the table"

uint32_t emulated_divide(uint32_t dividend, int divisor);

uint32_t emulated_divide(uint32_t dividend, int divisor) {
    cr_skip_test(PART);
    return dividend / (uint32_t)divisor;
}

void tutti_gpu_round(tutti_compute *by, size_t count, const float *src, uint16_t *dst) {
    (void)by, (void)count, (void)src, (void)dst;
    cr_skip_test(PART);
}

void tutti_gpu_bias_forward(tutti_compute *by, size_t rows, int channels, bool relu, const float *bias, float *y) {
    (void)by, (void)rows, (void)channels, (void)relu, (void)bias, (void)y;
    cr_skip_test(PART);
}

void tutti_gpu_bias_backward(tutti_compute *by, const tutti_bias_backward_args *args) {
    (void)by, (void)args;
    cr_skip_test(PART);
}

void tutti_gpu_add_rows(tutti_compute *by, size_t rows, int columns, float *src, float *dst) {
    (void)by, (void)rows, (void)columns, (void)src, (void)dst;
    cr_skip_test(PART);
}

void tutti_gpu_unfold(tutti_compute *by, const tutti_window *window, int batch, const float *x, void *columns,
                      bool rounded) {
    (void)by, (void)window, (void)batch, (void)x, (void)columns, (void)rounded;
    cr_skip_test(PART);
}

void tutti_gpu_fold(tutti_compute *by, const tutti_window *window, int batch, const float *columns, float *x) {
    (void)by, (void)window, (void)batch, (void)columns, (void)x;
    cr_skip_test(PART);
}
