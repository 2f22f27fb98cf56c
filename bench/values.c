/*
 * Values that are exact in their type, and their check. See values.h.
 *
 * A tile is one period of the data. Sending repeats it; checking compares the result with it bit by bit, and counts
 * wrong elements only if the compare fails.
 */
#include "bench/values.h"

#include <math.h>
#include <string.h>

#include <tutti/device.h>

/* Prime: no chunk, slice or page is a multiple of it, so data in the wrong place is detected. */
#define PERIOD 65521

/* clang-format off */
const bench_type bench_types[BENCH_TYPES] = {
    {.name = "int8", .type = TUTTI_INT8, .bytes = 1, .exact = INT8_MAX, .is_signed = true},
    {.name = "uint8", .type = TUTTI_UINT8, .bytes = 1, .exact = UINT8_MAX},
    {.name = "int32", .type = TUTTI_INT32, .bytes = 4, .exact = INT32_MAX, .is_signed = true},
    {.name = "uint32", .type = TUTTI_UINT32, .bytes = 4, .exact = UINT32_MAX},
    {.name = "int64", .type = TUTTI_INT64, .bytes = 8, .exact = INT64_C(1) << 53, .is_signed = true},
    {.name = "uint64", .type = TUTTI_UINT64, .bytes = 8, .exact = INT64_C(1) << 53},
    {.name = "half", .type = TUTTI_FLOAT16, .bytes = 2, .exact = 1 << 11, .is_signed = true, .mantissa = 10,
     .bias = 15},
    [BENCH_TYPE_FLOAT] = {.name = "float", .type = TUTTI_FLOAT32, .bytes = 4, .exact = 1 << 24, .is_signed = true,
     .mantissa = 23, .bias = 127},
    {.name = "double", .type = TUTTI_FLOAT64, .bytes = 8, .exact = INT64_C(1) << 53, .is_signed = true,
     .mantissa = 52, .bias = 1023},
    {.name = "bfloat16", .type = TUTTI_BFLOAT16, .bytes = 2, .exact = 1 << 8, .is_signed = true, .mantissa = 7,
     .bias = 127},
    {.name = "f8e4m3", .type = TUTTI_FLOAT8_E4M3, .bytes = 1, .exact = 1 << 4, .is_signed = true, .mantissa = 3,
     .bias = 7},
    {.name = "f8e5m2", .type = TUTTI_FLOAT8_E5M2, .bytes = 1, .exact = 1 << 3, .is_signed = true, .mantissa = 2,
     .bias = 15},
};
/* clang-format on */

const bench_reduction bench_reductions[BENCH_REDUCTIONS] = {
    {.name = "sum", .reduction = TUTTI_SUM}, {.name = "prod", .reduction = TUTTI_PROD},
    {.name = "max", .reduction = TUTTI_MAX}, {.name = "min", .reduction = TUTTI_MIN},
    {.name = "avg", .reduction = TUTTI_AVG}, {.name = "mulsum", .reduction = TUTTI_PREMUL_SUM},
};
/* clang-format on */

/* splitmix64's finalizer: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t random_bits(const bench_pattern *pattern, int rank, size_t index) {
    return mix(mix(((uint64_t)pattern->round << 32) + (uint32_t)rank) + index);
}

double bench_values_factor(int rank) {
    return 1 + rank % 2;
}

/* Is this rank one of the `room` ranks that contribute to this element? */
static bool takes_part(const bench_pattern *pattern, int rank, size_t index, int room) {
    return ((uint64_t)rank + mix(index + pattern->round)) % (uint64_t)pattern->nranks < (uint64_t)room;
}

/* A number from -most to most (from 0 for unsigned types). */
static int64_t number_up_to(const bench_type *type, int64_t most, uint64_t bits) {
    if (!type->is_signed) return (int64_t)(bits % (uint64_t)(most + 1));
    return (int64_t)(bits % (uint64_t)(2 * most + 1)) - most;
}

/* Each rank gets an equal share of the exact range; if that is less than 1, as many ranks as fit contribute 1. */
static int64_t summand(const bench_pattern *pattern, int rank, size_t index, int64_t exact) {
    int64_t share = exact / pattern->nranks;
    if (share == 0) share = takes_part(pattern, rank, index, (int)exact) ? 1 : 0;
    return number_up_to(pattern->type, share, random_bits(pattern, rank, index));
}

/* 1 or 2, for at most six ranks 2 (64 fits int8 and is exact in each float), with a sign for signed types. */
static int64_t multiplicand(const bench_pattern *pattern, int rank, size_t index) {
    uint64_t bits = random_bits(pattern, rank, index);
    int64_t value = (bits & 1) != 0 && takes_part(pattern, rank, index, 6) ? 2 : 1;
    return pattern->type->is_signed && (bits & 2) != 0 ? -value : value;
}

/* The value that `rank` contributes to the reduction. */
static int64_t input(const bench_pattern *pattern, int rank, size_t index) {
    switch (pattern->reduction) {
    case TUTTI_PROD: return multiplicand(pattern, rank, index);
    case TUTTI_PREMUL_SUM: return summand(pattern, rank, index, pattern->type->exact / 2);
    case TUTTI_MIN:
    case TUTTI_MAX: return number_up_to(pattern->type, pattern->type->exact, random_bits(pattern, rank, index));
    default: return summand(pattern, rank, index, pattern->type->exact);
    }
}

/* The result of the reduction, before avg divides. */
static int64_t output(const bench_pattern *pattern, size_t index) {
    int64_t acc = 0;
    for (int rank = 0; rank < pattern->nranks; rank++) {
        int64_t value = input(pattern, rank, index);
        switch (pattern->reduction) {
        case TUTTI_PROD: acc = rank == 0 ? value : acc * value; break;
        case TUTTI_MIN: acc = rank == 0 || value < acc ? value : acc; break;
        case TUTTI_MAX: acc = rank == 0 || value > acc ? value : acc; break;
        case TUTTI_PREMUL_SUM: acc += value * (int64_t)bench_values_factor(rank); break;
        default: acc += value; break;
        }
    }
    return acc;
}

/* The bits of a whole number that is exact in the type. */
static uint64_t encode(const bench_type *type, int64_t value) {
    if (type->mantissa == 0) return (uint64_t)value;
    if (value == 0) return 0;
    uint64_t magnitude = (uint64_t)(value < 0 ? -value : value);
    int exponent = 63 - __builtin_clzll(magnitude);
    uint64_t fraction = exponent <= type->mantissa ? magnitude << (type->mantissa - exponent)
                                                   : magnitude >> (exponent - type->mantissa);
    uint64_t sign = (uint64_t)(value < 0) << (type->bytes * 8 - 1);
    fraction &= (UINT64_C(1) << type->mantissa) - 1;
    return sign | (uint64_t)(exponent + type->bias) << type->mantissa | fraction;
}

static void store(const bench_type *type, uint64_t bits, void *dst) {
    switch (type->bytes) {
    case 1: memcpy(dst, &(uint8_t){(uint8_t)bits}, 1); break;
    case 2: memcpy(dst, &(uint16_t){(uint16_t)bits}, 2); break;
    case 4: memcpy(dst, &(uint32_t){(uint32_t)bits}, 4); break;
    default: memcpy(dst, &bits, 8); break;
    }
}

static uint64_t load(const bench_type *type, const void *src) {
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    switch (type->bytes) {
    case 1: memcpy(&u8, src, 1); return u8;
    case 2: memcpy(&u16, src, 2); return u16;
    case 4: memcpy(&u32, src, 4); return u32;
    default: memcpy(&u64, src, 8); return u64;
    }
}

/* Infinities and NaN become numbers beyond the type's range, which no expected value comes near. */
static double decode(const bench_type *type, uint64_t bits) {
    uint64_t fraction = bits & ((UINT64_C(1) << type->mantissa) - 1);
    int sign_bit = (int)type->bytes * 8 - 1;
    int exponent = (int)((bits >> type->mantissa) & ((UINT64_C(1) << (sign_bit - type->mantissa)) - 1));
    if (exponent > 0) fraction |= UINT64_C(1) << type->mantissa;
    double magnitude = ldexp((double)fraction, (exponent > 0 ? exponent : 1) - type->bias - type->mantissa);
    return (bits >> sign_bit & 1) != 0 ? -magnitude : magnitude;
}

static size_t tile_count(size_t count) {
    return count < PERIOD ? count : PERIOD;
}

static size_t periodic(size_t first, size_t i) {
    return (first + i) % PERIOD;
}

static void make_sent_tile(const bench_pattern *pattern, int rank, size_t first, size_t count, char *tile) {
    const bench_type *type = pattern->type;
    for (size_t i = 0; i < tile_count(count); i++) {
        size_t index = periodic(first, i);
        uint64_t bits =
            pattern->reduces ? encode(type, input(pattern, rank, index)) : random_bits(pattern, rank, index);
        store(type, bits, tile + i * type->bytes);
    }
}

/* One period of the data to send, or of the expected data. Each rank that is a thread has its own. */
static _Thread_local char tile[PERIOD * sizeof(uint64_t)];

static tutti_status put(const bench_pattern *pattern, void *dst, const void *src, size_t bytes) {
    if (pattern->on_gpu) return tutti_device_copy(dst, src, bytes, pattern->stream);
    memcpy(dst, src, bytes);
    return TUTTI_OK;
}

tutti_status bench_values_fill(const bench_pattern *pattern, int rank, size_t first, size_t count, void *dst) {
    size_t bytes = pattern->type->bytes;
    make_sent_tile(pattern, rank, first, count, tile);
    for (size_t done = 0; done < count; done += PERIOD)
        TUTTI_TRY(put(pattern, (char *)dst + done * bytes, tile, tile_count(count - done) * bytes));
    return TUTTI_OK;
}

/* At most one period of a buffer for checking: in place, or a copy of data on the GPU; NULL: the copy failed. */
static const char *view(const bench_pattern *pattern, const void *got, size_t first, size_t count) {
    static _Thread_local char piece[PERIOD * sizeof(uint64_t)];
    const char *at = (const char *)got + first * pattern->type->bytes;
    if (!pattern->on_gpu) return at;
    tutti_status status = tutti_device_copy(piece, at, count * pattern->type->bytes, pattern->stream);
    return status == TUTTI_OK ? piece : NULL;
}

static int64_t differences(const bench_type *type, const char *expected, const char *got, size_t count) {
    if (got == NULL) return (int64_t)count;
    if (memcmp(expected, got, count * type->bytes) == 0) return 0;
    int64_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += memcmp(expected + i * type->bytes, got + i * type->bytes, type->bytes) != 0;
    return wrong;
}

static int64_t differences_from_tile(const bench_pattern *pattern, const void *got, size_t count) {
    int64_t wrong = 0;
    for (size_t done = 0; done < count; done += PERIOD) {
        size_t some = tile_count(count - done);
        wrong += differences(pattern->type, tile, view(pattern, got, done, some), some);
    }
    return wrong;
}

int64_t bench_values_check_moved(const bench_pattern *pattern, int source, size_t first, size_t count,
                                 const void *got) {
    make_sent_tile(pattern, source, first, count, tile);
    return differences_from_tile(pattern, got, count);
}

/* avg on floats: one unit in the last place may differ, since dividing by n and multiplying by 1/n are both right. */
static bool near_average(const bench_pattern *pattern, int64_t sum, uint64_t bits) {
    const bench_type *type = pattern->type;
    double smallest = ldexp(1, 1 - type->bias - type->mantissa);
    double expected = (double)sum / pattern->nranks;
    double unit = fmax(ldexp(fabs(expected), -type->mantissa), smallest);
    return fabs(decode(type, bits) - expected) <= unit;
}

static int64_t check_average(const bench_pattern *pattern, size_t first, size_t count, const void *got) {
    static _Thread_local int64_t sums[PERIOD];
    int64_t wrong = 0;
    for (size_t i = 0; i < tile_count(count); i++) sums[i] = output(pattern, periodic(first, i));
    for (size_t done = 0; done < count; done += PERIOD) {
        size_t some = tile_count(count - done);
        const char *piece = view(pattern, got, done, some);
        for (size_t i = 0; i < some; i++)
            wrong +=
                piece == NULL || !near_average(pattern, sums[i], load(pattern->type, piece + i * pattern->type->bytes));
    }
    return wrong;
}

int64_t bench_values_check_reduced(const bench_pattern *pattern, size_t first, size_t count, const void *got) {
    const bench_type *type = pattern->type;
    bool average = pattern->reduction == TUTTI_AVG;
    if (average && type->mantissa > 0) return check_average(pattern, first, count, got);
    for (size_t i = 0; i < tile_count(count); i++) {
        int64_t value = output(pattern, periodic(first, i));
        store(type, encode(type, average ? value / pattern->nranks : value), tile + i * type->bytes);
    }
    return differences_from_tile(pattern, got, count);
}

int64_t bench_values_check_untouched(const bench_pattern *pattern, size_t count, const void *got) {
    memset(tile, 0, tile_count(count) * pattern->type->bytes);
    return differences_from_tile(pattern, got, count);
}
