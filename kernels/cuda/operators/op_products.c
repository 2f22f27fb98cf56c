/*
 * Matrix products and convolutions of the operators, by cuBLAS in full precision.
 *
 * Each GPU has one handle, made at the first product there and used by all threads under a lock. Each product passes
 * its stream and its own workspace in that stream, so that products in other streams neither wait for it nor change
 * its result. A convolution unfolds its windows (op_windows.cu) for as many images at a time as fit into
 * MOST_COLUMNS_BYTES.
 */
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "kernels/cuda/blas_library.h"
#include "kernels/cuda/compute.h"
#include "kernels/cuda/operators/op_kernels.h"

#define WORKSPACE_BYTES    ((size_t)4 << 20)
#define MOST_COLUMNS_BYTES ((size_t)256 << 20)
#define MOST_GPUS          64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cublasHandle_t handles[MOST_GPUS]; /* under the lock; kept until the process ends */

static tutti_status check(cublasStatus_t result, const char *what) {
    if (result == CUBLAS_STATUS_SUCCESS) return TUTTI_OK;
    return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM, "cuBLAS: %s failed (status %d)", what, (int)result);
}

/* Returns the handle of the thread's GPU. The caller holds the lock. */
static tutti_status find_handle(const tutti_blas_library *blas, cublasHandle_t *handle_out) {
    int gpu = 0;
    TUTTI_TRY(tutti_cuda_device->current(&gpu));
    if (gpu < 0 || gpu >= MOST_GPUS)
        return tutti_cuda_host->fail(TUTTI_ERR_UNSUPPORTED,
                                     "GPU %d cannot compute products: at most %d GPUs are supported", gpu, MOST_GPUS);
    if (handles[gpu] == NULL) {
        cublasHandle_t made = NULL;
        TUTTI_TRY(check(blas->create(&made), "creating a handle"));
        handles[gpu] = made;
    }
    *handle_out = handles[gpu];
    return TUTTI_OK;
}

/* `count` products c = op(a) op(b), or c += op(a) op(b), row-major. The strides count elements between consecutive
 * matrices. */
typedef struct products {
    tutti_type type;
    bool transpose_a, transpose_b, adds;
    int m, n, k, count;
    const void *a, *b;
    void *c;
    int64_t a_stride, b_stride;
} products;

/* cuBLAS is column-major; a row-major matrix is its own transpose there: c' = op(b)' op(a)'. */
static tutti_status multiply_locked(const tutti_blas_library *blas, tutti_stream stream, const products *p,
                                    void *workspace) {
    const bool single = p->type == TUTTI_FLOAT32;
    const cudaDataType_t type = single ? CUDA_R_32F : CUDA_R_64F;
    const float one = 1, zero = 0;
    const double wide_one = 1, wide_zero = 0;
    const void *alpha = single ? (const void *)&one : &wide_one;
    const void *beta = p->adds ? alpha : single ? (const void *)&zero : &wide_zero;
    cublasHandle_t handle = NULL;
    TUTTI_TRY(find_handle(blas, &handle));
    TUTTI_TRY(check(blas->set_stream(handle, (cudaStream_t)stream), "setting the stream"));
    TUTTI_TRY(check(blas->set_workspace(handle, workspace, WORKSPACE_BYTES), "setting the workspace"));
    return check(blas->gemm_batched(handle, p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                    p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, p->n, p->m, p->k, alpha, p->b, type,
                                    p->transpose_b ? p->k : p->n, p->b_stride, p->a, type, p->transpose_a ? p->m : p->k,
                                    p->a_stride, beta, p->c, type, p->n, (long long)p->m * p->n, p->count,
                                    single ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT),
                 "a matrix product");
}

static tutti_status multiply(tutti_stream stream, const products *p, void *workspace) {
    const tutti_blas_library *blas;
    const size_t results = (size_t)p->m * (size_t)p->n * (size_t)p->count;
    if (results == 0) return TUTTI_OK;
    if (p->k == 0) return p->adds ? TUTTI_OK : tutti_gpu_op_fill(stream, p->type, 0, results, p->c);
    TUTTI_TRY(tutti_blas_library_open(&blas));
    pthread_mutex_lock(&lock);
    tutti_status status = multiply_locked(blas, stream, p, workspace);
    pthread_mutex_unlock(&lock);
    return status;
}

static size_t bytes_of(tutti_type type) {
    return type == TUTTI_FLOAT32 ? sizeof(float) : sizeof(double);
}

/* ------------------------------------------------------------------------------------------------ products */

size_t tutti_gpu_op_matmul_scratch(const tutti_kernel_matmul_args *args) {
    return args->m == 0 || args->n == 0 || args->k == 0 ? 0 : WORKSPACE_BYTES;
}

/* The innermost batch dimension takes one call; there is one such call for each index of the outer ones. */
tutti_status tutti_gpu_op_matmul(tutti_stream stream, const tutti_kernel_matmul_args *args, void *scratch) {
    const size_t bytes = bytes_of(args->type);
    int64_t index[TUTTI_KERNEL_MOST_DIMS] = {0}, rows = args->m;
    int outer = args->batch_ndims;
    products p = {.type = args->type,
                  .transpose_a = args->transpose_a,
                  .transpose_b = args->transpose_b,
                  .adds = args->bias != NULL,
                  .m = (int)args->m,
                  .n = (int)args->n,
                  .k = (int)args->k,
                  .count = 1};
    for (int d = 0; d < args->batch_ndims; d++) rows *= args->batch_shape[d];
    if (rows * args->n == 0) return TUTTI_OK;
    if (args->bias != NULL)
        TUTTI_TRY(tutti_gpu_op_repeat(stream, args->type, (size_t)rows, (size_t)args->n, args->bias, args->y));
    if (outer > 0 && args->batch_shape[outer - 1] <= INT32_MAX) {
        outer--;
        p.count = (int)args->batch_shape[outer];
        p.a_stride = args->a_strides[outer];
        p.b_stride = args->b_strides[outer];
    }
    const size_t step = (size_t)p.count * (size_t)args->m * (size_t)args->n * bytes;
    char *y = args->y;
    for (int d = 0; d >= 0; y += step) {
        int64_t at_a = 0, at_b = 0;
        for (int i = 0; i < outer; i++) {
            at_a += index[i] * args->a_strides[i];
            at_b += index[i] * args->b_strides[i];
        }
        p.a = (const char *)args->a + at_a * (int64_t)bytes;
        p.b = (const char *)args->b + at_b * (int64_t)bytes;
        p.c = y;
        TUTTI_TRY(multiply(stream, &p, scratch));
        for (d = outer - 1; d >= 0 && ++index[d] == args->batch_shape[d]; d--) index[d] = 0;
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ convolution */

static bool is_unfolded(const tutti_kernel_window *w) {
    return w->kernel_height == 1 && w->kernel_width == 1 && w->stride_height == 1 && w->stride_width == 1 &&
           w->pad_top == 0 && w->pad_left == 0 && w->out_height == w->in_height && w->out_width == w->in_width;
}

static size_t pixels_of(const tutti_kernel_window *w) {
    return (size_t)w->out_height * (size_t)w->out_width;
}

static size_t taps_of(const tutti_kernel_window *w) {
    return (size_t)w->kernel_height * (size_t)w->kernel_width * (size_t)w->channels;
}

/* Returns at least one; a product must have less than 2^31 rows. */
static int64_t images_at_once(tutti_type type, const tutti_kernel_window *w) {
    const size_t pixels = pixels_of(w), image_bytes = pixels * taps_of(w) * bytes_of(type);
    int64_t images = w->batch;
    if (image_bytes > 0 && (size_t)images > MOST_COLUMNS_BYTES / image_bytes && !is_unfolded(w))
        images = (int64_t)(MOST_COLUMNS_BYTES / image_bytes);
    if (pixels > 0 && images > (int64_t)(INT32_MAX / pixels)) images = (int64_t)(INT32_MAX / pixels);
    return images < 1 ? 1 : images;
}

static size_t columns_bytes(tutti_type type, const tutti_kernel_window *w) {
    if (is_unfolded(w) || w->batch == 0) return 0;
    return ((size_t)images_at_once(type, w) * pixels_of(w) * taps_of(w) * bytes_of(type) + 255) / 256 * 256;
}

size_t tutti_gpu_op_conv_scratch(tutti_type type, const tutti_kernel_window *w, int64_t filters) {
    if (filters == 0 || w->batch == 0 || pixels_of(w) == 0) return 0;
    return WORKSPACE_BYTES + columns_bytes(type, w);
}

/* Some images, with their columns and their part of y or dy. */
typedef struct some {
    int64_t first, count;
    size_t rows, x_at, y_at; /* rows of the product; bytes from the beginning of x and of y */
} some;

static some take_images(tutti_type type, const tutti_kernel_window *w, int64_t filters, int64_t first) {
    const int64_t most = images_at_once(type, w), left = w->batch - first;
    const size_t pixels = pixels_of(w), image = (size_t)(w->in_height * w->in_width * w->channels);
    some s = {.first = first, .count = left < most ? left : most};
    s.rows = (size_t)s.count * pixels;
    s.x_at = (size_t)first * image * bytes_of(type);
    s.y_at = (size_t)first * pixels * (size_t)filters * bytes_of(type);
    return s;
}

static tutti_status prepare_columns(tutti_stream stream, tutti_type type, const tutti_kernel_window *w, const some *s,
                                    const void *x, char *scratch, const void **columns_out) {
    *columns_out = (const char *)x + s->x_at;
    if (is_unfolded(w)) return TUTTI_OK;
    *columns_out = scratch + WORKSPACE_BYTES;
    return tutti_gpu_op_unfold(stream, type, w, s->first, s->count, x, scratch + WORKSPACE_BYTES);
}

tutti_status tutti_gpu_op_conv_forward(tutti_stream stream, tutti_type type, const tutti_kernel_window *w,
                                       int64_t filters, const void *x, const void *weight, const void *bias,
                                       void *scratch, void *y) {
    const size_t rows = (size_t)w->batch * pixels_of(w);
    if (rows == 0 || filters == 0) return TUTTI_OK;
    if (bias != NULL) TUTTI_TRY(tutti_gpu_op_repeat(stream, type, rows, (size_t)filters, bias, y));
    for (int64_t first = 0; first < w->batch;) {
        const some s = take_images(type, w, filters, first);
        products p = {.type = type, .adds = bias != NULL, .m = (int)s.rows, .n = (int)filters, .k = (int)taps_of(w)};
        TUTTI_TRY(prepare_columns(stream, type, w, &s, x, scratch, &p.a));
        p.b = weight;
        p.c = (char *)y + s.y_at;
        p.count = 1;
        TUTTI_TRY(multiply(stream, &p, scratch));
        first += s.count;
    }
    return TUTTI_OK;
}

static tutti_status backward_weight(tutti_stream stream, const tutti_kernel_window *w,
                                    const tutti_kernel_conv_backward_args *args) {
    const tutti_type type = args->type;
    TUTTI_TRY(tutti_gpu_op_fill(stream, type, 0, taps_of(w) * (size_t)args->filters, args->dweight));
    for (int64_t first = 0; first < w->batch && pixels_of(w) > 0 && args->filters > 0;) {
        const some s = take_images(type, w, args->filters, first);
        products p = {.type = type, .transpose_a = true, .adds = true, .count = 1};
        p.m = (int)taps_of(w);
        p.n = (int)args->filters;
        p.k = (int)s.rows;
        TUTTI_TRY(prepare_columns(stream, type, w, &s, args->x, args->scratch, &p.a));
        p.b = (const char *)args->dy + s.y_at;
        p.c = args->dweight;
        TUTTI_TRY(multiply(stream, &p, args->scratch));
        first += s.count;
    }
    return TUTTI_OK;
}

static tutti_status backward_x(tutti_stream stream, const tutti_kernel_window *w,
                               const tutti_kernel_conv_backward_args *args) {
    const tutti_type type = args->type;
    const size_t image = (size_t)(w->in_height * w->in_width * w->channels);
    if (args->filters == 0 || pixels_of(w) == 0)
        return tutti_gpu_op_fill(stream, type, 0, (size_t)w->batch * image, args->dx);
    for (int64_t first = 0; first < w->batch;) {
        const some s = take_images(type, w, args->filters, first);
        products p = {.type = type, .transpose_b = true, .count = 1};
        p.m = (int)s.rows;
        p.n = (int)taps_of(w);
        p.k = (int)args->filters;
        p.a = (const char *)args->dy + s.y_at;
        p.b = args->weight;
        p.c = is_unfolded(w) ? (char *)args->dx + s.x_at : (char *)args->scratch + WORKSPACE_BYTES;
        TUTTI_TRY(multiply(stream, &p, args->scratch));
        if (!is_unfolded(w)) TUTTI_TRY(tutti_gpu_op_fold(stream, type, w, s.first, s.count, p.c, args->dx));
        first += s.count;
    }
    return TUTTI_OK;
}

static tutti_status backward_bias(tutti_stream stream, const tutti_kernel_window *w,
                                  const tutti_kernel_conv_backward_args *args) {
    const int64_t shape[] = {w->batch * (int64_t)pixels_of(w), args->filters};
    const tutti_kernel_reduce_args sum = {
        .type = args->type, .ndims = 2, .shape = shape, .dims = 1, .x = args->dy, .y = args->dbias};
    return tutti_gpu_op_reduce(stream, TUTTI_SUM, &sum, args->scratch);
}

tutti_status tutti_gpu_op_conv_backward(tutti_stream stream, const tutti_kernel_window *window,
                                        const tutti_kernel_conv_backward_args *args) {
    if (args->dbias != NULL) TUTTI_TRY(backward_bias(stream, window, args));
    if (args->dweight != NULL) TUTTI_TRY(backward_weight(stream, window, args));
    return args->dx != NULL ? backward_x(stream, window, args) : TUTTI_OK;
}
