/*
 * Sums, minima and maxima over a set of dimensions.
 *
 * Dimensions are merged until kept and reduced ones alternate. If the last one is kept, a thread folds terms of one
 * result, and its neighbours those of the next results; if it is reduced, the threads of a block fold the terms of
 * one result, which are side by side in memory. Few results of many terms are folded in groups, whose results
 * (`partials`) are then joined: op_sums.h.
 */
#include "kernels/cuda/operators/op_kernels.h"
#include "kernels/cuda/operators/op_sums.h"

#define BLOCK_TERMS ((size_t)4096) /* the fewest for a block */

struct nest {
    tutti_reduction reduction;
    op_dims kept, reduced;
    size_t results, terms, groups;
    bool by_blocks;
};

/* Sums of floats are kept in float64; all other sums in a type that holds the element's type. */
template <tutti_type TYPE> struct total_of { typedef double type; };
#define WHOLE(kind, total)                                                                                             \
    template <> struct total_of<kind> { typedef total type; };
WHOLE(TUTTI_INT8, int64_t)
WHOLE(TUTTI_INT16, int64_t)
WHOLE(TUTTI_INT32, int64_t)
WHOLE(TUTTI_INT64, int64_t)
WHOLE(TUTTI_UINT8, uint64_t)
WHOLE(TUTTI_UINT16, uint64_t)
WHOLE(TUTTI_UINT32, uint64_t)
WHOLE(TUTTI_UINT64, uint64_t)
WHOLE(TUTTI_BOOL, uint64_t)
#undef WHOLE

static __device__ inline double fold(tutti_reduction reduction, double a, double b) {
    if (reduction == TUTTI_SUM) return a + b;
    return extreme_f64(reduction == TUTTI_MIN, a, b);
}

template <typename T> static __device__ inline T fold(tutti_reduction reduction, T a, T b) {
    if (reduction == TUTTI_SUM) return (T)((uint64_t)a + (uint64_t)b);
    return (reduction == TUTTI_MIN ? a < b : a > b) ? a : b;
}

template <tutti_type TYPE> static __device__ inline typename total_of<TYPE>::type identity(tutti_reduction reduction) {
    typedef typename total_of<TYPE>::type total;
    if (reduction == TUTTI_SUM) return 0;
    if constexpr (is_any_float(TYPE)) return reduction == TUTTI_MIN ? (double)INFINITY : -(double)INFINITY;
    else if constexpr (is_unsigned(TYPE)) return reduction == TUTTI_MIN ? ~(total)0 : 0;
    else return reduction == TUTTI_MIN ? INT64_MAX : INT64_MIN;
}

/* For bool, a sum is `or`, and so is a maximum. */
template <tutti_type TYPE> static __device__ inline tutti_reduction meaning(tutti_reduction reduction) {
    return TYPE == TUTTI_BOOL && reduction == TUTTI_SUM ? TUTTI_MAX : reduction;
}

template <tutti_type TYPE>
static __device__ inline void store_total(typename total_of<TYPE>::type total, void *y, size_t i) {
    if constexpr (is_any_float(TYPE)) store_number(TYPE, real_number(total), y, i);
    else store_number(TYPE, {IS_SIGNED, (int64_t)total, 0}, y, i);
}

template <tutti_type TYPE>
static __device__ inline typename total_of<TYPE>::type load_term(const nest &n, const void *x, int64_t base,
                                                                 size_t term) {
    int64_t at[2] = {(int64_t)term * n.reduced.strides[0][0], 0};
    if (n.reduced.ndims > 1) find_places(n.reduced, term, at);
    return (typename total_of<TYPE>::type)of<TYPE>::load(((const typename of<TYPE>::stored *)x)[base + at[0]]);
}

/* One thread per result and group; partials[group, result]. */
template <tutti_type TYPE> static __global__ void fold_columns(nest n, const void *x, void *partials, void *y) {
    typedef typename total_of<TYPE>::type total;
    const tutti_reduction reduction = meaning<TYPE>(n.reduction);
    FOR_EACH(i, n.results * n.groups) {
        const size_t group = i / n.results, result = i - group * n.results;
        int64_t base[2];
        find_places(n.kept, result, base);
        total sum = identity<TYPE>(reduction);
        for (size_t term = group; term < n.terms; term += n.groups)
            sum = fold(reduction, sum, load_term<TYPE>(n, x, base[0], term));
        if (n.groups > 1) ((total *)partials)[i] = sum;
        else store_total<TYPE>(sum, y, result);
    }
}

/* One block per result and group. */
template <tutti_type TYPE> static __global__ void fold_rows(nest n, const void *x, void *partials, void *y) {
    typedef typename total_of<TYPE>::type total;
    __shared__ total sums[OP_THREADS];
    const tutti_reduction reduction = meaning<TYPE>(n.reduction);
    const unsigned thread = threadIdx.x;
    for (size_t i = blockIdx.x; i < n.results * n.groups; i += gridDim.x) {
        const size_t group = i / n.results, result = i - group * n.results;
        int64_t base[2];
        find_places(n.kept, result, base);
        total sum = identity<TYPE>(reduction);
        for (size_t term = group * OP_THREADS + thread; term < n.terms; term += n.groups * OP_THREADS)
            sum = fold(reduction, sum, load_term<TYPE>(n, x, base[0], term));
        sums[thread] = sum;
        for (unsigned width = OP_THREADS / 2; width > 0; width /= 2) {
            __syncthreads();
            if (thread < width) sums[thread] = fold(reduction, sums[thread], sums[thread + width]);
        }
        if (thread == 0 && n.groups > 1) ((total *)partials)[i] = sums[0];
        else if (thread == 0) store_total<TYPE>(sums[0], y, result);
        __syncthreads();
    }
}

template <tutti_type TYPE> static __global__ void join(nest n, const void *partials, void *y) {
    typedef typename total_of<TYPE>::type total;
    const tutti_reduction reduction = meaning<TYPE>(n.reduction);
    FOR_EACH(result, n.results) {
        total sum = ((const total *)partials)[result];
        for (size_t group = 1; group < n.groups; group++)
            sum = fold(reduction, sum, ((const total *)partials)[group * n.results + result]);
        store_total<TYPE>(sum, y, result);
    }
}

/* The result of a reduction over nothing. */
template <tutti_type TYPE> static __global__ void fill_identity(tutti_reduction reduction, size_t count, void *y) {
    const double infinite = reduction == TUTTI_MIN ? INFINITY : -INFINITY;
    FOR_EACH(i, count) {
        if (TYPE == TUTTI_BOOL) ((uint8_t *)y)[i] = reduction == TUTTI_MIN;
        else store_number(TYPE, real_number(reduction == TUTTI_SUM ? 0 : infinite), y, i);
    }
}

static void add_dim(op_dims *dims, uint64_t extent, int64_t stride) {
    dims->shape[dims->ndims] = extent;
    dims->strides[0][dims->ndims++] = stride;
}

static nest make_nest(tutti_reduction reduction, const tutti_kernel_reduce_args *args) {
    nest n = {};
    uint64_t shape[TUTTI_KERNEL_MOST_DIMS];
    bool reduced[TUTTI_KERNEL_MOST_DIMS];
    int64_t strides[TUTTI_KERNEL_MOST_DIMS], stride = 1;
    int ndims = 0;
    n.reduction = reduction;
    n.results = n.terms = 1;
    for (int d = 0; d < args->ndims; d++) {
        const bool is_reduced = args->dims >> d & 1;
        if (args->shape[d] == 1) continue;
        if (ndims > 0 && reduced[ndims - 1] == is_reduced) {
            shape[ndims - 1] *= (uint64_t)args->shape[d];
            continue;
        }
        shape[ndims] = (uint64_t)args->shape[d];
        reduced[ndims++] = is_reduced;
    }
    for (int d = ndims - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= (int64_t)shape[d];
    }
    for (int d = 0; d < ndims; d++) {
        add_dim(reduced[d] ? &n.reduced : &n.kept, shape[d], strides[d]);
        (reduced[d] ? n.terms : n.results) *= shape[d];
    }
    n.by_blocks = ndims > 0 && reduced[ndims - 1] && shape[ndims - 1] >= OP_THREADS / 4;
    n.groups = groups_for(n.results, n.terms);
    if (n.by_blocks) {
        n.groups = groups_for(n.results * OP_THREADS, n.terms);
        if (n.groups > n.terms / BLOCK_TERMS) n.groups = n.terms / BLOCK_TERMS;
        if (n.groups < 1) n.groups = 1;
    }
    return n;
}

size_t tutti_gpu_op_reduce_scratch(const tutti_kernel_reduce_args *args) {
    const nest n = make_nest(TUTTI_SUM, args);
    return n.groups > 1 ? n.groups * n.results * sizeof(double) : 0;
}

template <tutti_type TYPE>
static tutti_status reduce(tutti_stream stream, const nest &n, const void *x, void *scratch, void *y) {
    if (n.terms == 0)
        return enqueue(stream, fill_identity<TYPE>, op_blocks(n.results), OP_THREADS, n.reduction, n.results, y);
    const size_t items = n.results * n.groups;
    const dim3 blocks = n.by_blocks ? op_blocks(items * OP_THREADS) : op_blocks(items);
    const tutti_status status = n.by_blocks ? enqueue(stream, fold_rows<TYPE>, blocks, OP_THREADS, n, x, scratch, y)
                                            : enqueue(stream, fold_columns<TYPE>, blocks, OP_THREADS, n, x, scratch, y);
    if (status != TUTTI_OK || n.groups == 1) return status;
    return enqueue(stream, join<TYPE>, op_blocks(n.results), OP_THREADS, n, (const void *)scratch, y);
}

tutti_status tutti_gpu_op_reduce(tutti_stream stream, tutti_reduction reduction, const tutti_kernel_reduce_args *args,
                                 void *scratch) {
    const nest n = make_nest(reduction, args);
    if (n.results == 0) return TUTTI_OK;
    if (n.reduced.ndims == 0) return tutti_gpu_op_cast(stream, args->type, args->type, n.results, args->x, args->y);
#define RUN(type)                                                                                                      \
    case type: return reduce<type>(stream, n, args->x, scratch, args->y);
    switch (args->type) {
        FOR_ALL(RUN)
    default: return TUTTI_ERR_ARGUMENT;
    }
#undef RUN
}
