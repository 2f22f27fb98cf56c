/*
 * Elements of all types for the operators' kernels: how they are stored, and in which type they are computed.
 *
 *   template <tutti_type> of<type>:  stored, wide; load() and store() convert between the two
 *   number:  any element as an int64, a uint64 or a double; casts go through it
 *
 * Invariant: the rules are those of kernels/operators.h, bit for bit: exactly rounded operations, compiled with
 * -fmad=false.
 */
#ifndef TUTTI_KERNELS_CUDA_OP_ELEMENT_H
#define TUTTI_KERNELS_CUDA_OP_ELEMENT_H

#include "kernels/cuda/grid.h"
#include "kernels/cuda/reduce/reduce_element.h"
#include "kernels/host/numbers.h"
#include "kernels/host/vector/op_math.h"
#include "kernels/operators.h"

template <tutti_type TYPE> struct of;

/* `wide_` holds all values of the type; integers also have an unsigned type of their own size, in which they wrap. */
#define PLAIN(type, stored_, wide_, unsigned_)                                                                         \
    template <> struct of<type> {                                                                                      \
        typedef stored_ stored;                                                                                        \
        typedef wide_ wide;                                                                                            \
        typedef unsigned_ wraps;                                                                                       \
        static __device__ inline wide load(stored x) {                                                                 \
            return (wide)x;                                                                                            \
        }                                                                                                              \
        static __device__ inline stored store(wide x) {                                                                \
            return (stored)x;                                                                                          \
        }                                                                                                              \
    };
PLAIN(TUTTI_INT8, int8_t, int8_t, uint8_t)
PLAIN(TUTTI_UINT8, uint8_t, uint8_t, uint8_t)
PLAIN(TUTTI_INT16, int16_t, int16_t, uint16_t)
PLAIN(TUTTI_UINT16, uint16_t, uint16_t, uint16_t)
PLAIN(TUTTI_INT32, int32_t, int32_t, uint32_t)
PLAIN(TUTTI_UINT32, uint32_t, uint32_t, uint32_t)
PLAIN(TUTTI_INT64, int64_t, int64_t, uint64_t)
PLAIN(TUTTI_UINT64, uint64_t, uint64_t, uint64_t)
PLAIN(TUTTI_FLOAT32, float, float, float)
PLAIN(TUTTI_FLOAT64, double, double, double)
#undef PLAIN

/* Any byte other than 0 is true. */
template <> struct of<TUTTI_BOOL> {
    typedef uint8_t stored;
    typedef bool wide;
    static __device__ inline wide load(stored x) {
        return x != 0;
    }
    static __device__ inline stored store(wide x) {
        return x;
    }
};

#define SMALL(type, stored_, name)                                                                                     \
    template <> struct of<type> {                                                                                      \
        typedef stored_ stored;                                                                                        \
        typedef float wide;                                                                                            \
        typedef float wraps;                                                                                           \
        static __device__ inline wide load(stored x) {                                                                 \
            return widen_##name(x);                                                                                    \
        }                                                                                                              \
        static __device__ inline stored store(wide x) {                                                                \
            return narrow_##name(x);                                                                                   \
        }                                                                                                              \
    };
SMALL(TUTTI_FLOAT16, uint16_t, f16)
SMALL(TUTTI_BFLOAT16, uint16_t, bf16)
SMALL(TUTTI_FLOAT8_E4M3, uint8_t, e4m3)
SMALL(TUTTI_FLOAT8_E5M2, uint8_t, e5m2)
#undef SMALL

static constexpr __host__ __device__ bool is_integer(tutti_type type) {
    return type <= TUTTI_UINT64;
}
static constexpr __host__ __device__ bool is_any_float(tutti_type type) {
    return type >= TUTTI_FLOAT16 && type <= TUTTI_FLOAT8_E5M2;
}
static constexpr __host__ __device__ bool is_unsigned(tutti_type type) {
    return type == TUTTI_UINT8 || type == TUTTI_UINT16 || type == TUTTI_UINT32 || type == TUTTI_UINT64 ||
           type == TUTTI_BOOL;
}

static inline size_t bytes_of(tutti_type type) {
    switch (type) {
    case TUTTI_INT16:
    case TUTTI_UINT16:
    case TUTTI_FLOAT16:
    case TUTTI_BFLOAT16: return 2;
    case TUTTI_INT32:
    case TUTTI_UINT32:
    case TUTTI_FLOAT32: return 4;
    case TUTTI_INT64:
    case TUTTI_UINT64:
    case TUTTI_FLOAT64: return 8;
    default: return 1;
    }
}

/* The value of DO(type) for the type at hand. */
#define FOR_INTEGERS(DO)                                                                                               \
    DO(TUTTI_INT8)                                                                                                     \
    DO(TUTTI_UINT8) DO(TUTTI_INT16) DO(TUTTI_UINT16) DO(TUTTI_INT32) DO(TUTTI_UINT32) DO(TUTTI_INT64) DO(TUTTI_UINT64)
#define FOR_FLOATS(DO)                                                                                                 \
    DO(TUTTI_FLOAT16) DO(TUTTI_BFLOAT16) DO(TUTTI_FLOAT32) DO(TUTTI_FLOAT64) DO(TUTTI_FLOAT8_E4M3) DO(TUTTI_FLOAT8_E5M2)
#define FOR_ALL(DO) FOR_INTEGERS(DO) FOR_FLOATS(DO) DO(TUTTI_BOOL)

/* ------------------------------------------------------------------------------------------------ numbers */

typedef enum number_kind { IS_SIGNED, IS_UNSIGNED, IS_FLOAT } number_kind;

struct number {
    number_kind kind;
    int64_t whole; /* an int64, or a uint64's bits */
    double real;
};

static __device__ inline number real_number(double x) {
    return {IS_FLOAT, 0, x};
}

static __device__ inline number load_number(tutti_type type, const void *x, size_t i) {
    number n = {is_any_float(type) ? IS_FLOAT : is_unsigned(type) ? IS_UNSIGNED : IS_SIGNED, 0, 0};
    switch (type) {
#define LOAD(type)                                                                                                     \
    case type: n.whole = (int64_t)of<type>::load(((const of<type>::stored *)x)[i]); break;
        FOR_INTEGERS(LOAD)
        LOAD(TUTTI_BOOL)
#undef LOAD
#define LOAD(type)                                                                                                     \
    case type: n.real = (double)of<type>::load(((const of<type>::stored *)x)[i]); break;
        FOR_FLOATS(LOAD)
#undef LOAD
    default: break;
    }
    return n;
}

/* Converts to float32, rounded to odd: the result will be rounded once more. */
static __device__ inline float number_to_odd(number n) {
    if (n.kind == IS_FLOAT) return f64_to_odd(n.real);
    if (n.kind == IS_SIGNED) return f64_to_odd((double)i64_shorten(n.whole));
    return f64_to_odd((double)u64_shorten((uint64_t)n.whole));
}

static __device__ inline bool is_true(number n) {
    return n.kind == IS_FLOAT ? n.real != 0 : n.whole != 0;
}

static __device__ inline void store_number(tutti_type type, number n, void *y, size_t i) {
    const bool real = n.kind == IS_FLOAT;
    switch (type) {
#define STORE(type, element, suffix)                                                                                   \
    case type: ((element *)y)[i] = real ? f64_to_##suffix(n.real) : (element)n.whole; break;
        STORE(TUTTI_INT8, int8_t, i8)
        STORE(TUTTI_UINT8, uint8_t, u8)
        STORE(TUTTI_INT16, int16_t, i16)
        STORE(TUTTI_UINT16, uint16_t, u16)
        STORE(TUTTI_INT32, int32_t, i32)
        STORE(TUTTI_UINT32, uint32_t, u32)
        STORE(TUTTI_INT64, int64_t, i64)
        STORE(TUTTI_UINT64, uint64_t, u64)
#undef STORE
    case TUTTI_BOOL: ((uint8_t *)y)[i] = is_true(n); break;
    case TUTTI_FLOAT32:
        ((float *)y)[i] = real ? (float)n.real : n.kind == IS_SIGNED ? (float)n.whole : (float)(uint64_t)n.whole;
        break;
    case TUTTI_FLOAT64:
        ((double *)y)[i] = real ? n.real : n.kind == IS_SIGNED ? (double)n.whole : (double)(uint64_t)n.whole;
        break;
    case TUTTI_FLOAT16: ((uint16_t *)y)[i] = narrow_f16(number_to_odd(n)); break;
    case TUTTI_BFLOAT16: ((uint16_t *)y)[i] = narrow_bf16(number_to_odd(n)); break;
    case TUTTI_FLOAT8_E4M3: ((uint8_t *)y)[i] = narrow_e4m3(number_to_odd(n)); break;
    case TUTTI_FLOAT8_E5M2: ((uint8_t *)y)[i] = narrow_e5m2(number_to_odd(n)); break;
    default: break;
    }
}

/* ---------------------------------------------------------------------------------------------------- grids */

#define OP_THREADS     256
#define OP_MOST_BLOCKS 16384 /* each thread advances by the grid's size */

static inline dim3 op_blocks(size_t items) {
    const size_t wanted = (items + OP_THREADS - 1) / OP_THREADS;
    return dim3((unsigned)(wanted < OP_MOST_BLOCKS ? wanted : OP_MOST_BLOCKS));
}

#define FOR_EACH(i, count)                                                                                             \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, step_ = (size_t)gridDim.x * blockDim.x;             \
         i < (count); i += step_)

/* Dimensions, outermost first, that turn an element's number into a place. */
struct op_dims {
    int ndims;
    uint64_t shape[TUTTI_KERNEL_MOST_DIMS];
    int64_t strides[2][TUTTI_KERNEL_MOST_DIMS]; /* for up to two arrays */
};

/* Places of element `rest` of a dense array. */
static __device__ inline void find_places(const op_dims &dims, uint64_t rest, int64_t places[2]) {
    places[0] = places[1] = 0;
    for (int d = dims.ndims - 1; d >= 0; d--) {
        uint64_t index;
        if (rest <= UINT32_MAX && dims.shape[d] <= UINT32_MAX) { /* a division in 32 bits is several times as fast */
            const uint32_t quotient = (uint32_t)rest / (uint32_t)dims.shape[d];
            index = (uint32_t)rest - quotient * (uint32_t)dims.shape[d];
            rest = quotient;
        } else {
            index = rest % dims.shape[d];
            rest /= dims.shape[d];
        }
        places[0] += (int64_t)index * dims.strides[0][d];
        places[1] += (int64_t)index * dims.strides[1][d];
    }
}

#endif
