/*
 * Elementwise operators, and functions of an element's index in a global array.
 *
 * A thread takes elements at the distance of the grid's size, so that neighbours read neighbours. The kind of
 * operation is tested for each element, which the memory accesses hide; types are template parameters.
 */
#include "kernels/cuda/operators/op_element.h"
#include "kernels/cuda/operators/op_kernels.h"
#include "kernels/cuda/philox.h"

/* ------------------------------------------------------------------------------------------------ two operands */

template <typename T> static __device__ inline T divide_whole(T p, T q) {
    if (q == 0) return 0;
    return p / q;
}
/* The smallest integer divided by -1 is itself. */
#define DIVIDE_SIGNED(element, unsigned_element)                                                                       \
    template <> __device__ inline element divide_whole(element p, element q) {                                         \
        if (q == 0) return 0;                                                                                          \
        return q == -1 ? (element)((unsigned_element)0 - (unsigned_element)p) : (element)(p / q);                      \
    }
DIVIDE_SIGNED(int8_t, uint8_t)
DIVIDE_SIGNED(int16_t, uint16_t)
DIVIDE_SIGNED(int32_t, uint32_t)
DIVIDE_SIGNED(int64_t, uint64_t)

/* The factor 1u promotes narrow integers to unsigned ones, which wrap. */
template <typename T, typename U> static __device__ inline T whole_binary(tutti_kernel_binary_kind kind, T p, T q) {
    switch (kind) {
    case TUTTI_KERNEL_ADD: return (T)(1u * (U)p + (U)q);
    case TUTTI_KERNEL_SUB: return (T)(1u * (U)p - (U)q);
    case TUTTI_KERNEL_MUL: return (T)(1u * (U)p * (U)q);
    case TUTTI_KERNEL_DIV: return divide_whole<T>(p, q);
    case TUTTI_KERNEL_MAXIMUM: return p > q ? p : q;
    case TUTTI_KERNEL_MINIMUM: return p < q ? p : q;
    case TUTTI_KERNEL_EQUAL: return p == q;
    case TUTTI_KERNEL_RELU_BACKWARD: return p <= 0 ? 0 : q;
    default: return 0;
    }
}

#define REAL_BINARY(suffix, element)                                                                                   \
    static __device__ inline element real_binary(tutti_kernel_binary_kind kind, element p, element q) {                \
        switch (kind) {                                                                                                \
        case TUTTI_KERNEL_ADD: return p + q;                                                                           \
        case TUTTI_KERNEL_SUB: return p - q;                                                                           \
        case TUTTI_KERNEL_MUL: return p * q;                                                                           \
        case TUTTI_KERNEL_DIV: return p / q;                                                                           \
        case TUTTI_KERNEL_MAXIMUM: return extreme_##suffix(0, p, q);                                                   \
        case TUTTI_KERNEL_MINIMUM: return extreme_##suffix(1, p, q);                                                   \
        case TUTTI_KERNEL_EQUAL: return p == q ? 1 : 0;                                                                \
        case TUTTI_KERNEL_RELU_BACKWARD: return p <= 0 ? 0 : q;                                                        \
        case TUTTI_KERNEL_GELU_BACKWARD: return gelu_slope_##suffix(p) * q;                                            \
        case TUTTI_KERNEL_GELU_TANH_BACKWARD: return gelu_tanh_slope_##suffix(p) * q;                                  \
        }                                                                                                              \
        return 0;                                                                                                      \
    }
REAL_BINARY(f32, float)
REAL_BINARY(f64, double)

static __device__ inline bool bool_binary(tutti_kernel_binary_kind kind, bool p, bool q) {
    switch (kind) {
    case TUTTI_KERNEL_ADD:
    case TUTTI_KERNEL_MAXIMUM: return p | q;
    case TUTTI_KERNEL_MUL:
    case TUTTI_KERNEL_MINIMUM: return p & q;
    default: return p == q;
    }
}

template <tutti_type TYPE>
static __device__ inline typename of<TYPE>::wide compute(tutti_kernel_binary_kind kind, typename of<TYPE>::wide p,
                                                         typename of<TYPE>::wide q) {
    if constexpr (TYPE == TUTTI_BOOL) return bool_binary(kind, p, q);
    else if constexpr (is_integer(TYPE))
        return whole_binary<typename of<TYPE>::wide, typename of<TYPE>::wraps>(kind, p, q);
    else return real_binary(kind, p, q);
}

/* With ndims 1 each operand is dense or one number. */
template <tutti_type TYPE>
static __global__ void combine(tutti_kernel_binary_kind kind, op_dims dims, size_t count, const void *a, const void *b,
                               void *y) {
    typedef typename of<TYPE>::stored stored;
    FOR_EACH(i, count) {
        int64_t at[2] = {(int64_t)i * dims.strides[0][0], (int64_t)i * dims.strides[1][0]};
        if (dims.ndims > 1) find_places(dims, i, at);
        const auto p = of<TYPE>::load(((const stored *)a)[at[0]]), q = of<TYPE>::load(((const stored *)b)[at[1]]);
        ((stored *)y)[i] = of<TYPE>::store(compute<TYPE>(kind, p, q));
    }
}

/* Removes dimensions of extent one, and merges those that are contiguous in both operands; at least one is left. */
static size_t merge(const tutti_kernel_binary_args *args, op_dims *dims) {
    const int64_t *strides[2] = {args->a_strides, args->b_strides};
    size_t count = 1;
    *dims = op_dims{};
    for (int d = 0; d < args->ndims; d++) {
        count *= (size_t)args->shape[d];
        if (args->shape[d] == 1) continue;
        int last = dims->ndims - 1;
        bool merges = last >= 0;
        for (int k = 0; k < 2 && merges; k++) merges = dims->strides[k][last] == strides[k][d] * args->shape[d];
        const int at = merges ? last : dims->ndims++;
        dims->shape[at] = (merges ? dims->shape[at] : 1) * (uint64_t)args->shape[d];
        for (int k = 0; k < 2; k++) dims->strides[k][at] = strides[k][d];
    }
    if (dims->ndims == 0) dims->shape[dims->ndims++] = 1;
    return count;
}

tutti_status tutti_gpu_op_binary(tutti_stream stream, tutti_kernel_binary_kind kind,
                                 const tutti_kernel_binary_args *args) {
    op_dims dims;
    const size_t count = merge(args, &dims);
    if (count == 0) return TUTTI_OK;
#define RUN(type)                                                                                                      \
    case type:                                                                                                         \
        return enqueue(stream, combine<type>, op_blocks(count), OP_THREADS, kind, dims, count, args->a, args->b,       \
                       args->y);
    switch (args->type) {
        FOR_ALL(RUN)
    default: return TUTTI_ERR_ARGUMENT;
    }
#undef RUN
}

/* ------------------------------------------------------------------------------------------------ one operand */

#define REAL_UNARY(suffix, element)                                                                                    \
    static __device__ inline element real_unary(tutti_kernel_unary_kind kind, element x) {                             \
        switch (kind) {                                                                                                \
        case TUTTI_KERNEL_RELU: return x < 0 ? 0 : x;                                                                  \
        case TUTTI_KERNEL_GELU: return gelu_##suffix(x);                                                               \
        case TUTTI_KERNEL_GELU_TANH: return gelu_tanh_##suffix(x);                                                     \
        case TUTTI_KERNEL_EXP: return exp_##suffix(x);                                                                 \
        case TUTTI_KERNEL_LOG: return log_##suffix(x);                                                                 \
        }                                                                                                              \
        return 0;                                                                                                      \
    }
REAL_UNARY(f32, float)
REAL_UNARY(f64, double)

template <tutti_type TYPE>
static __global__ void apply(tutti_kernel_unary_kind kind, size_t count, const void *x, void *y) {
    typedef typename of<TYPE>::stored stored;
    FOR_EACH(i, count) {
        const auto p = of<TYPE>::load(((const stored *)x)[i]);
        if constexpr (is_integer(TYPE)) ((stored *)y)[i] = p <= 0 ? 0 : p; /* relu is the only kind for integers */
        else ((stored *)y)[i] = of<TYPE>::store(real_unary(kind, p));
    }
}

tutti_status tutti_gpu_op_unary(tutti_stream stream, tutti_kernel_unary_kind kind, tutti_type type, size_t count,
                                const void *x, void *y) {
    if (count == 0) return TUTTI_OK;
#define RUN(type)                                                                                                      \
    case type: return enqueue(stream, apply<type>, op_blocks(count), OP_THREADS, kind, count, x, y);
    switch (type) {
        FOR_INTEGERS(RUN)
        FOR_FLOATS(RUN)
    default: return TUTTI_ERR_ARGUMENT;
    }
#undef RUN
}

/* --------------------------------------------------------------------------------------------- with a number */

/* y = factor * x (scales) or x + addend, in the wide type. */
template <tutti_type TYPE>
static __global__ void with_number(bool scales, double value, size_t count, const void *x, void *y) {
    typedef typename of<TYPE>::stored stored;
    typedef typename of<TYPE>::wide wide;
    wide number;
    if constexpr (is_integer(TYPE)) number = (wide)(int64_t)value; /* its low bits */
    else number = (wide)value;
    FOR_EACH(i, count) {
        const wide p = of<TYPE>::load(((const stored *)x)[i]);
        ((stored *)y)[i] = of<TYPE>::store(compute<TYPE>(scales ? TUTTI_KERNEL_MUL : TUTTI_KERNEL_ADD, p, number));
    }
}

/* Integers combined with a number that is not whole. */
static __global__ void with_fraction(tutti_type type, double factor, double addend, size_t count, const void *x,
                                     void *y) {
    FOR_EACH(i, count) {
        const number n = load_number(type, x, i);
        const double value = n.kind == IS_SIGNED ? (double)n.whole : (double)(uint64_t)n.whole;
        store_number(type, real_number(nearbyint(factor * value + addend)), y, i);
    }
}

static bool is_whole(double number) {
    return floor(number) == number && fabs(number) < 0x1p63;
}

static tutti_status compute_with(tutti_stream stream, tutti_type type, bool scales, double value, size_t count,
                                 const void *x, void *y) {
    if (count == 0) return TUTTI_OK;
    if (is_integer(type) && !is_whole(value))
        return enqueue(stream, with_fraction, op_blocks(count), OP_THREADS, type, scales ? value : 1.0,
                       scales ? 0.0 : value, count, x, y);
#define RUN(type)                                                                                                      \
    case type: return enqueue(stream, with_number<type>, op_blocks(count), OP_THREADS, scales, value, count, x, y);
    switch (type) {
        FOR_INTEGERS(RUN)
        FOR_FLOATS(RUN)
    default: return TUTTI_ERR_ARGUMENT;
    }
#undef RUN
}

tutti_status tutti_gpu_op_scale(tutti_stream stream, tutti_type type, double number, size_t count, const void *x,
                                void *y) {
    return compute_with(stream, type, true, number, count, x, y);
}

tutti_status tutti_gpu_op_add_number(tutti_stream stream, tutti_type type, double number, size_t count, const void *x,
                                     void *y) {
    return compute_with(stream, type, false, number, count, x, y);
}

/* ------------------------------------------------------------------------------------------------ cast, fill */

static __global__ void cast(tutti_type x_type, tutti_type y_type, size_t count, const void *x, void *y) {
    FOR_EACH(i, count) store_number(y_type, load_number(x_type, x, i), y, i);
}

/* Copies the bits, also those of a NaN. */
template <typename Word> static __global__ void copy_words(size_t count, const void *x, void *y) {
    FOR_EACH(i, count)((Word *)y)[i] = ((const Word *)x)[i];
}

tutti_status tutti_gpu_op_cast(tutti_stream stream, tutti_type x_type, tutti_type y_type, size_t count, const void *x,
                               void *y) {
    if (count == 0) return TUTTI_OK;
    if (x_type != y_type || x_type == TUTTI_BOOL)
        return enqueue(stream, cast, op_blocks(count), OP_THREADS, x_type, y_type, count, x, y);
    if (x == y) return TUTTI_OK;
    switch (bytes_of(x_type)) {
    case 1: return enqueue(stream, copy_words<uint8_t>, op_blocks(count), OP_THREADS, count, x, y);
    case 2: return enqueue(stream, copy_words<uint16_t>, op_blocks(count), OP_THREADS, count, x, y);
    case 4: return enqueue(stream, copy_words<uint32_t>, op_blocks(count), OP_THREADS, count, x, y);
    default: return enqueue(stream, copy_words<uint64_t>, op_blocks(count), OP_THREADS, count, x, y);
    }
}

static __global__ void fill_with(tutti_type type, double value, size_t count, void *y) {
    FOR_EACH(i, count) store_number(type, real_number(value), y, i);
}

tutti_status tutti_gpu_op_fill(tutti_stream stream, tutti_type type, double value, size_t count, void *y) {
    if (count == 0) return TUTTI_OK;
    return enqueue(stream, fill_with, op_blocks(count), OP_THREADS, type, value, count, y);
}

/* ------------------------------------------------------------------------------------------- by global index */

/* Where a shard lies: strides[0] are those of the global array. */
struct placed_shard {
    op_dims dims;
    uint64_t first;
};

/* Returns the number of elements. */
static size_t place_shard(const tutti_kernel_shard *shard, placed_shard *placed) {
    size_t count = 1;
    int64_t stride = 1;
    *placed = placed_shard{};
    placed->dims.ndims = shard->ndims;
    for (int d = shard->ndims - 1; d >= 0; d--) {
        placed->dims.shape[d] = (uint64_t)shard->shape[d];
        placed->dims.strides[0][d] = stride;
        placed->first += (uint64_t)shard->first[d] * (uint64_t)stride;
        stride *= shard->global_shape[d];
        count *= (size_t)shard->shape[d];
    }
    return count;
}

static __device__ inline uint64_t global_index(const placed_shard &placed, size_t i) {
    int64_t places[2];
    find_places(placed.dims, i, places);
    return placed.first + (uint64_t)places[0];
}

/* Word i % 4 of Philox's block i / 4 belongs to element i; an element of float64 has two words. */
static __device__ inline uint32_t word_of(const tutti_kernel_random &random, uint64_t i) {
    uint32_t words[4];
    philox(random.seed, random.stream, i / 4, words);
    return words[i % 4];
}

static __device__ inline void store_float(tutti_type type, float value, void *y, size_t i) {
    switch (type) {
    case TUTTI_FLOAT16: ((uint16_t *)y)[i] = narrow_f16(value); break;
    case TUTTI_BFLOAT16: ((uint16_t *)y)[i] = narrow_bf16(value); break;
    case TUTTI_FLOAT8_E4M3: ((uint8_t *)y)[i] = narrow_e4m3(value); break;
    case TUTTI_FLOAT8_E5M2: ((uint8_t *)y)[i] = narrow_e5m2(value); break;
    default: ((float *)y)[i] = value;
    }
}

static __global__ void drop(tutti_type type, placed_shard placed, tutti_kernel_random random, uint32_t threshold,
                            double factor, size_t count, const void *x, void *y) {
    FOR_EACH(i, count) {
        const bool drops = word_of(random, global_index(placed, i)) < threshold;
        const double value = load_number(type, x, i).real;
        if (type == TUTTI_FLOAT64) ((double *)y)[i] = drops ? 0 : value * factor;
        else store_float(type, drops ? 0 : (float)value * (float)factor, y, i);
    }
}

tutti_status tutti_gpu_op_dropout(tutti_stream stream, tutti_type type, const tutti_kernel_shard *shard,
                                  const tutti_kernel_random *random, double rate, const void *x, void *y) {
    placed_shard placed;
    const size_t count = place_shard(shard, &placed);
    if (count == 0) return TUTTI_OK;
    if (rate >= 1) return tutti_gpu_op_fill(stream, type, 0, count, y);
    return enqueue(stream, drop, op_blocks(count), OP_THREADS, type, placed, *random, (uint32_t)ldexp(rate, 32),
                   1 / (1 - rate), count, x, y);
}

/* Rounds the value to the type. */
static __device__ inline double rounded(tutti_type type, double value) {
    uint64_t room;
    store_number(type, real_number(value), &room, 0);
    return load_number(type, &room, 0).real;
}

/* The largest number of the type below `high`, but at least `low` rounded to the type. */
static __device__ double largest_below(tutti_type type, double low, double high) {
    uint64_t room = 0;
    double last = rounded(type, high);
    const double least = rounded(type, low);
    if (last >= high) {
        if (type == TUTTI_FLOAT64) last = nextafter(last, -(double)INFINITY);
        else if (type == TUTTI_FLOAT32) last = (double)nextafterf((float)last, -INFINITY);
        else { /* sign and magnitude: one step towards 0, or away from it */
            const int bits = type == TUTTI_FLOAT16 || type == TUTTI_BFLOAT16 ? 16 : 8;
            store_number(type, real_number(last), &room, 0);
            room = last > 0 ? room - 1 : last < 0 ? room + 1 : UINT64_C(1) << (bits - 1) | 1;
            last = load_number(type, &room, 0).real;
        }
    }
    return last < least ? least : last;
}

static __global__ void draw_uniform(tutti_type type, placed_shard placed, tutti_kernel_random random, double low,
                                    double high, size_t count, void *y) {
    const double last = largest_below(type, low, high), span = high - low;
    FOR_EACH(i, count) {
        const uint64_t index = global_index(placed, i);
        uint32_t words[4];
        if (type == TUTTI_FLOAT64) {
            philox(random.seed, random.stream, index / 2, words);
            const uint64_t bits = (uint64_t)words[index % 2 * 2 + 1] << 32 | words[index % 2 * 2];
            const double value = low + (double)(bits >> 11) * 0x1p-53 * span;
            ((double *)y)[i] = value > last ? last : value;
        } else {
            const float part = (float)(int32_t)(word_of(random, index) >> 8) * 0x1p-24f;
            const float value = (float)low + part * (float)span;
            store_float(type, value > (float)last ? (float)last : value, y, i);
        }
    }
}

tutti_status tutti_gpu_op_random_uniform(tutti_stream stream, tutti_type type, const tutti_kernel_shard *shard,
                                         const tutti_kernel_random *random, double low, double high, void *y) {
    placed_shard placed;
    const size_t count = place_shard(shard, &placed);
    if (count == 0) return TUTTI_OK;
    return enqueue(stream, draw_uniform, op_blocks(count), OP_THREADS, type, placed, *random, low, high, count, y);
}

static __global__ void draw_normal(tutti_type type, placed_shard placed, tutti_kernel_random random, double mean,
                                   double deviation, size_t count, void *y) {
    FOR_EACH(i, count) {
        const uint64_t index = global_index(placed, i);
        uint32_t words[4];
        if (type == TUTTI_FLOAT64) {
            double point[2];
            philox(random.seed, random.stream, index / 2, words);
            const double share = (double)((((uint64_t)words[1] << 32 | words[0]) >> 11) + 1) * 0x1p-53;
            circle_point_f64((double)(((uint64_t)words[3] << 32 | words[2]) >> 11) * 0x1p-53, &point[0], &point[1]);
            ((double *)y)[i] = mean + deviation * sqrt(-2 * log(share)) * point[index % 2];
        } else {
            float point[2];
            philox(random.seed, random.stream, index / 4, words);
            const uint32_t *pair = words + index % 4 / 2 * 2;
            const float share = ((float)(int32_t)(pair[0] >> 1) + 1) * 0x1p-31f;
            const float radius = (float)deviation * sqrtf(-2 * log_f32(share));
            circle_point_f32((float)(int32_t)pair[1] * 0x1p-32f, &point[0], &point[1]);
            store_float(type, (float)mean + radius * point[index % 2], y, i);
        }
    }
}

tutti_status tutti_gpu_op_random_normal(tutti_stream stream, tutti_type type, const tutti_kernel_shard *shard,
                                        const tutti_kernel_random *random, double mean, double stddev, void *y) {
    placed_shard placed;
    const size_t count = place_shard(shard, &placed);
    if (count == 0) return TUTTI_OK;
    return enqueue(stream, draw_normal, op_blocks(count), OP_THREADS, type, placed, *random, mean, stddev, count, y);
}

static __global__ void count_up(tutti_type type, placed_shard placed, bool whole, double start, double step,
                                size_t count, void *y) {
    FOR_EACH(i, count) {
        const uint64_t index = global_index(placed, i);
        number n = real_number(start + step * (double)index);
        if (whole) n = {IS_SIGNED, (int64_t)((uint64_t)(int64_t)start + (uint64_t)(int64_t)step * index), 0};
        store_number(type, n, y, i);
    }
}

tutti_status tutti_gpu_op_arange(tutti_stream stream, tutti_type type, const tutti_kernel_shard *shard, double start,
                                 double step, void *y) {
    placed_shard placed;
    const size_t count = place_shard(shard, &placed);
    if (count == 0) return TUTTI_OK;
    const bool whole = is_integer(type) && is_whole(start) && is_whole(step);
    return enqueue(stream, count_up, op_blocks(count), OP_THREADS, type, placed, whole, start, step, count, y);
}
