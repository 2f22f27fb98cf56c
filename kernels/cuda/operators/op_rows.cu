/*
 * Rows: softmax and its loss, whose rows are the classes of a sample; and rows of a table selected by indices.
 *
 * A block, or a thread where rows are short, computes a row: its largest element, then its sum, then the results.
 */
#include "kernels/cuda/operators/op_element.h"
#include "kernels/cuda/operators/op_kernels.h"

#define ROW_THREADS 128
#define SHORT_ROW   64 /* rows with fewer elements take one thread each */

#define FUNCTIONS(suffix, element)                                                                                     \
    static __device__ inline element exp_below(element x) {                                                            \
        return exp_below_##suffix(x);                                                                                  \
    }
FUNCTIONS(f32, float)
FUNCTIONS(f64, double)

/* ---------------------------------------------------------------------------------------- THREADS per row */

/* The rows of this block or thread. */
template <int THREADS_> static __device__ inline size_t first_row() {
    return THREADS_ == 1 ? (size_t)blockIdx.x * blockDim.x + threadIdx.x : blockIdx.x;
}
template <int THREADS_> static __device__ inline size_t row_step() {
    return THREADS_ == 1 ? (size_t)gridDim.x * blockDim.x : gridDim.x;
}
template <int THREADS_> static __device__ inline size_t first_column() {
    return THREADS_ == 1 ? 0 : threadIdx.x;
}

/* Every thread gets the sum, or maximum, of all their values. */
template <int THREADS_> static __device__ inline double join(bool adds, double mine) {
    if constexpr (THREADS_ == 1) return mine;
    else {
        __shared__ double values[THREADS_];
        values[threadIdx.x] = mine;
        for (unsigned width = THREADS_ / 2; width > 0; width /= 2) {
            __syncthreads();
            if (threadIdx.x >= width) continue;
            const double other = values[threadIdx.x + width], own = values[threadIdx.x];
            values[threadIdx.x] = adds ? own + other : other > own ? other : own;
        }
        __syncthreads();
        const double result = values[0];
        __syncthreads(); /* before the next call overwrites them */
        return result;
    }
}

/* A NaN may be skipped here: the sums that follow include it. */
template <typename Real, int THREADS_> static __device__ inline Real largest(size_t classes, const Real *x) {
    Real best = -(Real)INFINITY;
    for (size_t c = first_column<THREADS_>(); c < classes; c += THREADS_) best = x[c] > best ? x[c] : best;
    return (Real)join<THREADS_>(false, (double)best);
}

template <typename Real, int THREADS_> static __device__ inline Real add_exps(size_t classes, const Real *x, Real max) {
    double sum = 0;
    for (size_t c = first_column<THREADS_>(); c < classes; c += THREADS_) sum += (double)exp_below(x[c] - max);
    return (Real)join<THREADS_>(true, sum);
}

template <typename Real, int THREADS_>
static __global__ void softmax(size_t rows, size_t classes, const Real *x, Real *y) {
    for (size_t row = first_row<THREADS_>(); row < rows; row += row_step<THREADS_>()) {
        const Real *from = x + row * classes;
        const Real max = largest<Real, THREADS_>(classes, from);
        const Real factor = 1 / add_exps<Real, THREADS_>(classes, from, max);
        for (size_t c = first_column<THREADS_>(); c < classes; c += THREADS_)
            y[row * classes + c] = exp_below(from[c] - max) * factor;
    }
}

template <typename Real, int THREADS_>
static __global__ void softmax_backward(size_t rows, size_t classes, const Real *y, const Real *dy, Real *dx) {
    for (size_t row = first_row<THREADS_>(); row < rows; row += row_step<THREADS_>()) {
        const Real *of_row = y + row * classes, *slopes = dy + row * classes;
        double sum = 0;
        for (size_t c = first_column<THREADS_>(); c < classes; c += THREADS_)
            sum += (double)of_row[c] * (double)slopes[c];
        const Real along = (Real)join<THREADS_>(true, sum);
        for (size_t c = first_column<THREADS_>(); c < classes; c += THREADS_)
            dx[row * classes + c] = of_row[c] * (slopes[c] - along);
    }
}

template <typename Real, int THREADS_>
static __global__ void exp_sums(size_t rows, size_t classes, const Real *x, const Real *max, Real *sums) {
    for (size_t row = first_row<THREADS_>(); row < rows; row += row_step<THREADS_>()) {
        const Real sum = add_exps<Real, THREADS_>(classes, x + row * classes, max[row]);
        if (first_column<THREADS_>() == 0) sums[row] = sum;
    }
}

/* ------------------------------------------------------------------------------------------------ labels */

/* As tutti_kernel_labels, without the addresses, which are arguments of their own. */
struct classed {
    bool wide; /* int64 */
    int64_t classes, first;
};

static classed classes_of(const tutti_kernel_labels *labels) {
    return {labels->type == TUTTI_INT64, labels->classes, labels->first};
}

static __device__ inline bool is_label(int64_t label, const classed &labels) {
    return label >= 0 && label < labels.classes;
}

static __device__ inline int64_t whole_at(bool wide, const void *values, size_t i) {
    return wide ? ((const int64_t *)values)[i] : ((const int32_t *)values)[i];
}

/* The label's column; `classes` if this rank does not have it. */
static __device__ inline size_t column_of(int64_t label, const classed &labels, size_t classes) {
    const int64_t column = label - labels.first;
    return is_label(label, labels) && column >= 0 && (uint64_t)column < classes ? (size_t)column : classes;
}

template <typename Real> static __device__ inline Real loss_of(bool labelled, Real max, Real sum, Real logit) {
    const double loss = log((double)sum) + ((double)max - (double)logit);
    return labelled ? (Real)loss : (Real)NAN;
}

template <typename Real>
static __global__ void label_logits(size_t rows, size_t classes, const Real *x, classed labels, const void *values,
                                    Real *logits) {
    FOR_EACH(row, rows) {
        const size_t column = column_of(whole_at(labels.wide, values, row), labels, classes);
        logits[row] = column < classes ? x[row * classes + column] : 0;
    }
}

template <typename Real>
static __global__ void find_losses(size_t rows, const Real *max, const Real *sums, const Real *logits, classed labels,
                                   const void *values, Real *losses) {
    FOR_EACH(row, rows)
    losses[row] = loss_of(is_label(whole_at(labels.wide, values, row), labels), max[row], sums[row], logits[row]);
}

template <typename Real, int THREADS_>
static __global__ void cross_entropy(size_t rows, size_t classes, const Real *x, classed labels, const void *values,
                                     Real *max, Real *sums, Real *losses) {
    for (size_t row = first_row<THREADS_>(); row < rows; row += row_step<THREADS_>()) {
        const Real *from = x + row * classes;
        const Real best = largest<Real, THREADS_>(classes, from), sum = add_exps<Real, THREADS_>(classes, from, best);
        if (first_column<THREADS_>() != 0) continue;
        const int64_t label = whole_at(labels.wide, values, row);
        const size_t column = column_of(label, labels, classes);
        max[row] = best;
        sums[row] = sum;
        losses[row] = loss_of(is_label(label, labels), best, sum, column < classes ? from[column] : (Real)0);
    }
}

template <typename Real>
static __global__ void loss_backward(size_t count, size_t classes, const Real *x, classed labels, const void *values,
                                     const Real *max, const Real *sums, const Real *dlosses, Real *dx) {
    FOR_EACH(i, count) {
        const size_t row = i / classes, column = i - row * classes;
        const int64_t label = whole_at(labels.wide, values, row);
        const Real factor = is_label(label, labels) ? dlosses[row] / sums[row] : (Real)NAN;
        const Real share = exp_below(x[i] - max[row]) * factor;
        dx[i] = column == column_of(label, labels, classes) ? share - dlosses[row] : share;
    }
}

/* ------------------------------------------------------------------------------------------------ calls */

/* kernel<Real, threads of a row>(rows, classes, arguments...) */
#define BY_ROWS(kernel, Real, ...)                                                                                     \
    (classes < SHORT_ROW                                                                                               \
         ? enqueue(stream, kernel<Real, 1>, op_blocks(rows), OP_THREADS, rows, classes, __VA_ARGS__)                   \
         : enqueue(stream, kernel<Real, ROW_THREADS>, dim3((unsigned)(rows < OP_MOST_BLOCKS ? rows : OP_MOST_BLOCKS)), \
                   ROW_THREADS, rows, classes, __VA_ARGS__))
#define R(address)  ((const Real *)(address))
#define RW(address) ((Real *)(address))
/* The statement for both types. */
#define FOR_REALS(statement)                                                                                           \
    if (type == TUTTI_FLOAT32) {                                                                                       \
        typedef float Real;                                                                                            \
        return statement;                                                                                              \
    }                                                                                                                  \
    typedef double Real;                                                                                               \
    return statement

tutti_status tutti_gpu_op_softmax(tutti_stream stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                  void *y) {
    if (rows == 0 || classes == 0) return TUTTI_OK;
    FOR_REALS(BY_ROWS(softmax, Real, R(x), RW(y)));
}

tutti_status tutti_gpu_op_softmax_backward(tutti_stream stream, tutti_type type, size_t rows, size_t classes,
                                           const void *y, const void *dy, void *dx) {
    if (rows == 0 || classes == 0) return TUTTI_OK;
    FOR_REALS(BY_ROWS(softmax_backward, Real, R(y), R(dy), RW(dx)));
}

tutti_status tutti_gpu_op_exp_sums(tutti_stream stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                   const void *max, void *sums) {
    if (rows == 0) return TUTTI_OK;
    FOR_REALS(BY_ROWS(exp_sums, Real, R(x), R(max), RW(sums)));
}

tutti_status tutti_gpu_op_label_logits(tutti_stream stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                       const tutti_kernel_labels *labels, void *logits) {
    const classed of_all = classes_of(labels);
    if (rows == 0) return TUTTI_OK;
    FOR_REALS(enqueue(stream, label_logits<Real>, op_blocks(rows), OP_THREADS, rows, classes, R(x), of_all,
                      labels->values, RW(logits)));
}

tutti_status tutti_gpu_op_cross_entropy_losses(tutti_stream stream, tutti_type type, size_t rows, const void *max,
                                               const void *sums, const void *logits, const tutti_kernel_labels *labels,
                                               void *losses) {
    const classed of_all = classes_of(labels);
    if (rows == 0) return TUTTI_OK;
    FOR_REALS(enqueue(stream, find_losses<Real>, op_blocks(rows), OP_THREADS, rows, R(max), R(sums), R(logits), of_all,
                      labels->values, RW(losses)));
}

tutti_status tutti_gpu_op_cross_entropy(tutti_stream stream, tutti_type type, size_t rows, size_t classes,
                                        const void *x, const tutti_kernel_labels *labels, void *max, void *sums,
                                        void *losses) {
    const classed of_all = classes_of(labels);
    if (rows == 0) return TUTTI_OK;
    FOR_REALS(BY_ROWS(cross_entropy, Real, R(x), of_all, labels->values, RW(max), RW(sums), RW(losses)));
}

tutti_status tutti_gpu_op_cross_entropy_backward(tutti_stream stream, tutti_type type, size_t rows, size_t classes,
                                                 const void *x, const tutti_kernel_labels *labels, const void *max,
                                                 const void *sums, const void *dlosses, void *dx) {
    const classed of_all = classes_of(labels);
    const size_t count = rows * classes;
    if (count == 0) return TUTTI_OK;
    FOR_REALS(enqueue(stream, loss_backward<Real>, op_blocks(count), OP_THREADS, count, classes, R(x), of_all,
                      labels->values, R(max), R(sums), R(dlosses), RW(dx)));
}

/* ------------------------------------------------------------------------------------------------ embedding */

/* The row of this rank's part of the table; -1 if this rank does not have it. */
struct table_part {
    bool wide; /* indices are int64 */
    int64_t first, rows;
};

static __device__ inline int64_t row_of(const table_part &part, const void *indices, size_t i) {
    const int64_t index = whole_at(part.wide, indices, i);
    return index < part.first || index >= part.first + part.rows ? -1 : index - part.first;
}

template <typename Word>
static __global__ void look_up(table_part part, size_t count, size_t width, const void *indices, const void *table,
                               void *y) {
    FOR_EACH(i, count * width) {
        const size_t at = i / width;
        const int64_t row = row_of(part, indices, at);
        ((Word *)y)[i] = row < 0 ? (Word)0 : ((const Word *)table)[(size_t)row * width + (i - at * width)];
    }
}

tutti_status tutti_gpu_op_embedding(tutti_stream stream, const tutti_kernel_embedding_args *args, const void *table,
                                    void *y) {
    const table_part part = {args->index_type == TUTTI_INT64, args->first, args->rows};
    const size_t count = args->count, width = args->width;
    if (count * width == 0) return TUTTI_OK;
#define RUN(Word)                                                                                                      \
    enqueue(stream, look_up<Word>, op_blocks(count *width), OP_THREADS, part, count, width, args->indices, table, y)
    switch (bytes_of(args->type)) {
    case 1: return RUN(uint8_t);
    case 2: return RUN(uint16_t);
    case 4: return RUN(uint32_t);
    default: return RUN(uint64_t);
    }
#undef RUN
}

#define MOST_SHARES 512 /* shares of the table's rows: each reads all indices */

/* A block owns rows [first, end) of the table and OP_THREADS columns: it scans all indices, and adds its own rows in
 * the order of the indices, so without atomics. */
template <typename Real>
static __global__ void add_to_table(table_part part, int64_t rows_each, size_t count, size_t width, const void *indices,
                                    const Real *dy, Real *dtable) {
    __shared__ int64_t found[OP_THREADS];
    const unsigned thread = threadIdx.x;
    const size_t column = (size_t)blockIdx.y * OP_THREADS + thread;
    const int64_t first = (int64_t)blockIdx.x * rows_each;
    const int64_t end = first + rows_each < part.rows ? first + rows_each : part.rows;
    for (int64_t row = first; row < end && column < width; row++) dtable[(size_t)row * width + column] = 0;
    for (size_t at = 0; at < count; at += OP_THREADS) {
        const int64_t row = at + thread < count ? row_of(part, indices, at + thread) : -1;
        found[thread] = row >= first && row < end ? row : -1;
        __syncthreads();
        for (unsigned i = 0; i < OP_THREADS; i++)
            if (found[i] >= 0 && column < width)
                dtable[(size_t)found[i] * width + column] += dy[(at + i) * width + column];
        __syncthreads();
    }
}

tutti_status tutti_gpu_op_embedding_backward(tutti_stream stream, const tutti_kernel_embedding_args *args,
                                             const void *dy, void *dtable) {
    const table_part part = {args->index_type == TUTTI_INT64, args->first, args->rows};
    const tutti_type type = args->type;
    if (args->rows * (int64_t)args->width == 0) return TUTTI_OK;
    const int64_t each = (args->rows + MOST_SHARES - 1) / MOST_SHARES;
    const size_t parts = (args->width + OP_THREADS - 1) / OP_THREADS;
    if (parts > 65535) return tutti_cuda_host->fail(TUTTI_ERR_UNSUPPORTED,
                                     "the table's rows have %zu elements, and the kernel supports at most %d: split the "
                                     "table along its rows' elements, or compute in host memory",
                                     args->width, 65535 * OP_THREADS);
    const dim3 grid((unsigned)((args->rows + each - 1) / each), (unsigned)parts);
    FOR_REALS(enqueue(stream, add_to_table<Real>, grid, OP_THREADS, part, each, args->count, args->width, args->indices,
                      R(dy), RW(dtable)));
}
