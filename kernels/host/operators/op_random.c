/*
 * Elements that depend on their index in a global array: dropout, random numbers, sequences.
 *
 * The local array is a list of runs, which are elements with consecutive indices, and runs are processed in blocks.
 * Word i % 4 of Philox's block i / 4 belongs to element i, as in the trainer's dropout; where float64 numbers are
 * drawn, an element has two words.
 */
#include <math.h>
#include <string.h>

#include "kernels/host/float_bits.h"
#include "kernels/host/operators/op_parts.h"
#include "kernels/host/vector/op_math.h"
#include "kernels/random.h"
#include "kernels/real.h"

/* The parameters of a block; not every operation uses all of them. */
typedef struct job {
    tutti_type type;
    size_t bytes; /* of an element */
    tutti_kernel_random random;
    double a, b;   /* low and the distance to high; mean and deviation; start and step */
    double last;   /* the largest number below high */
    bool is_whole; /* computed in 64 bits */
    const unsigned char *x;
    unsigned char *y;
} job;

/* Computes y[at, at + count), whose elements have the indices from `index` on; count <= OP_BLOCK. */
typedef void (*block_function)(const job *j, uint64_t index, size_t at, size_t count);

static void for_blocks(const tutti_kernel_shard *shard, const job *j, block_function run) {
    int outer = shard->ndims; /* dimensions around a run */
    uint64_t run_count = 1, strides[TUTTI_KERNEL_MOST_DIMS], stride = 1;
    bool whole = true; /* are all dimensions after d whole? */
    for (int d = shard->ndims - 1; d >= 0; d--) {
        if (shard->shape[d] == 0) return;
        strides[d] = stride;
        stride *= (uint64_t)shard->global_shape[d];
        if (!whole) continue;
        run_count *= (uint64_t)shard->shape[d];
        outer = d;
        whole = shard->shape[d] == shard->global_shape[d];
    }
    uint64_t index = 0;
    for (int d = 0; d < shard->ndims; d++) index += (uint64_t)shard->first[d] * strides[d];
    int64_t at[TUTTI_KERNEL_MOST_DIMS] = {0};
    size_t done = 0;
    for (int d = 0; d >= 0;) {
        for (uint64_t i = 0; i < run_count; i += OP_BLOCK)
            run(j, index + i, done + (size_t)i, op_least(OP_BLOCK, (size_t)(run_count - i)));
        done += (size_t)run_count;
        for (d = outer - 1; d >= 0; d--) {
            index += strides[d];
            if (++at[d] < shard->shape[d]) break;
            index -= strides[d] * (uint64_t)shard->shape[d];
            at[d] = 0;
        }
    }
}

/* Draws the words of a block, from the beginning of a Philox block on: 4 / each elements share one. Returns the
 * index of the first of these elements. */
typedef uint32_t words[2 * OP_BLOCK + 8 + 4 * OP_DRAW_BLOCKS];
static uint64_t draw(const job *j, uint64_t index, size_t count, uint64_t each, uint32_t *words_out) {
    const uint64_t per_block = 4 / each, first = index / per_block, end = (index + count + per_block - 1) / per_block;
    tutti_vector_in_use()->draw(j->random.seed, j->random.stream, first, (size_t)(end - first), words_out);
    return first * per_block;
}

/* y = the floats of a block, in the job's type. */
static void store(const job *j, size_t at, size_t count, const float *floats) {
    unsigned char *y = j->y + at * j->bytes;
    if (op_is_small(j->type)) op_narrow(j->type, count, floats, y);
    else memcpy(y, floats, count * sizeof *floats);
}

/* --------------------------------------------------------------------------------------------- dropout */

#define DROP(suffix, element, type)                                                                                    \
    TUTTI_VECTOR_CLONES static void drop_##suffix(size_t count, const uint32_t *restrict drawn, uint32_t threshold,    \
                                                  element factor, const element *x, element *y) {                      \
        REDUCE_SAME_INDEX_ONLY                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const element kept = x[i] * factor;                                                                        \
            y[i] = drawn[i] < threshold ? 0 : kept;                                                                    \
        }                                                                                                              \
    }
OP_REAL_TYPES(DROP)

static void drop_block(const job *j, uint64_t index, size_t at, size_t count) {
    words drawn;
    const uint32_t *first = drawn + (index - draw(j, index, count, 1, drawn));
    const uint32_t threshold = (uint32_t)ldexp(j->a, 32); /* words below it drop their element */
    const double factor = 1 / (1 - j->a);
    const unsigned char *x = j->x + at * j->bytes;
    unsigned char *y = j->y + at * j->bytes;
    op_block block;
    switch (j->type) {
    case TUTTI_FLOAT32: drop_f32(count, first, threshold, (float)factor, (const void *)x, (void *)y); return;
    case TUTTI_FLOAT64: drop_f64(count, first, threshold, factor, (const void *)x, (void *)y); return;
    default:
        op_widen(j->type, count, x, block.floats);
        drop_f32(count, first, threshold, (float)factor, block.floats, block.floats);
        store(j, at, count, block.floats);
    }
}

static size_t shard_count(const tutti_kernel_shard *shard) {
    size_t count = 1;
    for (int d = 0; d < shard->ndims; d++) count *= (size_t)shard->shape[d];
    return count;
}

void tutti_kernel_dropout(tutti_type type, const tutti_kernel_shard *shard, const tutti_kernel_random *random,
                          double rate, const void *x, void *y) {
    const job j = {.type = type, .bytes = op_bytes(type), .random = *random, .a = rate, .x = x, .y = y};
    if (rate >= 1) op_zero(y, shard_count(shard) * j.bytes);
    else for_blocks(shard, &j, drop_block);
}

/* --------------------------------------------------------------------------------------- random numbers */

static void uniform_block(const job *j, uint64_t index, size_t at, size_t count) {
    words drawn;
    if (j->type == TUTTI_FLOAT64) {
        const uint32_t *pair = drawn + 2 * (index - draw(j, index, count, 2, drawn));
        double *y = (double *)(void *)j->y + at;
        for (size_t i = 0; i < count; i++, pair += 2) {
            const uint64_t bits = (uint64_t)pair[1] << 32 | pair[0];
            const double value = j->a + (double)(bits >> 11) * 0x1p-53 * j->b;
            y[i] = value > j->last ? j->last : value;
        }
        return;
    }
    op_block block;
    const uint32_t *first = drawn + (index - draw(j, index, count, 1, drawn));
    tutti_vector_in_use()->uniform(count, first, (float)j->a, (float)j->b, (float)j->last, block.floats);
    store(j, at, count, block.floats);
}

/* Returns the largest number of the type below `high`, but not less than `low` rounded to the type. */
static double largest_below(tutti_type type, double low, double high) {
    double wide[2] = {low, high};
    op_block narrow;
    tutti_kernel_cast(TUTTI_FLOAT64, type, 2, wide, narrow.bytes);
    tutti_kernel_cast(type, TUTTI_FLOAT64, 2, narrow.bytes, wide);
    if (wide[1] >= high) {
        if (type == TUTTI_FLOAT64) wide[1] = nextafter(wide[1], -INFINITY);
        else if (type == TUTTI_FLOAT32) wide[1] = (double)nextafterf((float)wide[1], -INFINITY);
        else { /* sign and magnitude: one step towards 0, or away from it */ const size_t bytes = op_bytes(type);
            uint16_t code = 0;
            memcpy(&code, narrow.bytes + bytes, bytes);
            code = (uint16_t)(wide[1] > 0 ? code - 1 : wide[1] < 0 ? code + 1 : 1 << (8 * bytes - 1) | 1);
            memcpy(narrow.bytes + bytes, &code, bytes);
            tutti_kernel_cast(type, TUTTI_FLOAT64, 1, narrow.bytes + bytes, &wide[1]);
        }
    }
    return wide[1] < wide[0] ? wide[0] : wide[1];
}

void tutti_kernel_random_uniform(tutti_type type, const tutti_kernel_shard *shard, const tutti_kernel_random *random,
                                 double low, double high, void *y) {
    const job j = {.type = type,
                   .bytes = op_bytes(type),
                   .random = *random,
                   .a = low,
                   .b = high - low,
                   .last = largest_below(type, low, high),
                   .y = y};
    for_blocks(shard, &j, uniform_block);
}

static void normal_block(const job *j, uint64_t index, size_t at, size_t count) {
    words drawn;
    if (j->type == TUTTI_FLOAT64) {
        const uint64_t first = draw(j, index, count, 2, drawn);
        double *y = (double *)(void *)j->y + at;
        for (size_t i = 0; i < count; i++) {
            const uint32_t *four = drawn + (index - first + i) / 2 * 4;
            const double share = (double)((((uint64_t)four[1] << 32 | four[0]) >> 11) + 1) * 0x1p-53;
            double point[2];
            circle_point_f64((double)(((uint64_t)four[3] << 32 | four[2]) >> 11) * 0x1p-53, &point[0], &point[1]);
            y[i] = j->a + j->b * sqrt(-2 * log(share)) * point[(index + i) % 2];
        }
        return;
    }
    float floats[OP_BLOCK + 8];
    const uint64_t first = draw(j, index, count, 1, drawn);
    tutti_vector_in_use()->normal((size_t)(index - first + count + 1) / 2, drawn, (float)j->a, (float)j->b, floats);
    store(j, at, count, floats + (index - first));
}

void tutti_kernel_random_normal(tutti_type type, const tutti_kernel_shard *shard, const tutti_kernel_random *random,
                                double mean, double stddev, void *y) {
    const job j = {.type = type, .bytes = op_bytes(type), .random = *random, .a = mean, .b = stddev, .y = y};
    for_blocks(shard, &j, normal_block);
}

/* -------------------------------------------------------------------------------------------- sequences */

static void arange_block(const job *j, uint64_t index, size_t at, size_t count) {
    unsigned char *y = j->y + at * j->bytes;
    if (j->is_whole) {
        const uint64_t start = (uint64_t)(int64_t)j->a, step = (uint64_t)(int64_t)j->b;
        int64_t wholes[OP_BLOCK];
        for (size_t i = 0; i < count; i++) wholes[i] = (int64_t)(start + step * (index + i));
        tutti_kernel_cast(TUTTI_INT64, j->type, count, wholes, y);
        return;
    }
    double values[OP_BLOCK];
    const double first = (double)index;
    for (size_t i = 0; i < count; i++) values[i] = j->a + j->b * (first + (double)(int32_t)i);
    tutti_kernel_cast(TUTTI_FLOAT64, j->type, count, values, y);
}

void tutti_kernel_arange(tutti_type type, const tutti_kernel_shard *shard, double start, double step, void *y) {
    const job j = {.type = type,
                   .bytes = op_bytes(type),
                   .a = start,
                   .b = step,
                   .is_whole = op_is_integer(type) && op_is_whole(start) && op_is_whole(step),
                   .y = y};
    for_blocks(shard, &j, arange_block);
}
