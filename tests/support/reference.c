/*
 * The reference of the collectives. Integers are computed in 64 bits and truncated (which is what wrapping means),
 * small floats are decoded to float32, accumulated in float32 and encoded once.
 */
#include "tests/support/reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A small float: sign, exponent, mantissa, from the top; the widths describe it completely. */
typedef struct small_float {
    int exponent_bits, mantissa_bits, bias;
    bool infinities; /* else the exponent of all ones holds numbers too, and only the last mantissa is NaN */
} small_float;

static const small_float float16 = {5, 10, 15, true};
static const small_float bfloat16 = {8, 7, 127, true};
static const small_float e4m3 = {4, 3, 7, false};
static const small_float e5m2 = {5, 2, 15, true};

static const small_float *small_format(tutti_type type) {
    switch (type) {
    case TUTTI_FLOAT16: return &float16;
    case TUTTI_BFLOAT16: return &bfloat16;
    case TUTTI_FLOAT8_E4M3: return &e4m3;
    case TUTTI_FLOAT8_E5M2: return &e5m2;
    default: return NULL;
    }
}

static float decode(const small_float *format, unsigned bits) {
    unsigned mantissas = 1u << format->mantissa_bits, top = (1u << format->exponent_bits) - 1;
    unsigned mantissa = bits & (mantissas - 1), exponent = (bits >> format->mantissa_bits) & top;
    double sign = (bits >> (format->mantissa_bits + format->exponent_bits)) & 1 ? -1.0 : 1.0;
    if (exponent == top && format->infinities) return mantissa != 0 ? NAN : (float)(sign * INFINITY);
    if (exponent == top && mantissa == mantissas - 1) return NAN;
    if (exponent == 0) return (float)(sign * ldexp(mantissa, 1 - format->bias - format->mantissa_bits));
    return (float)(sign * ldexp(mantissas + mantissa, (int)exponent - format->bias - format->mantissa_bits));
}

/* Nearest, ties to even; too large is infinity, or the largest number where there are none. */
static unsigned encode(const small_float *format, long double value) {
    unsigned mantissas = 1u << format->mantissa_bits, top = (1u << format->exponent_bits) - 1;
    unsigned sign = signbit(value) ? 1u << (format->mantissa_bits + format->exponent_bits) : 0;
    unsigned nan_bits = (top << format->mantissa_bits) | (mantissas - 1);
    unsigned overflow = format->infinities ? top << format->mantissa_bits : nan_bits - 1;
    if (isnan(value)) return nan_bits;
    if (isinf(value)) return sign | overflow;
    int exponent;
    frexpl(value, &exponent);
    exponent--; /* value = 1.m * 2^exponent */
    if (value == 0 || exponent < 1 - format->bias) exponent = 1 - format->bias;
    long double units = nearbyintl(ldexpl(fabsl(value), format->mantissa_bits - exponent));
    if (units >= 2.0 * mantissas) {
        units /= 2;
        exponent++;
    }
    if (units < mantissas) return sign | (unsigned)units; /* subnormal or zero */
    unsigned bits = ((unsigned)(exponent + format->bias) << format->mantissa_bits) + ((unsigned)units - mantissas);
    return sign | (bits >= overflow ? overflow : bits);
}

uint64_t reference_hash(uint64_t seed, uint64_t a, uint64_t b) {
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + a * UINT64_C(0xbf58476d1ce4e5b9) + b + 1;
    for (int i = 0; i < 2; i++) { /* splitmix64's finish */
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        x ^= x >> 31;
    }
    return x;
}

bool reference_is_float(tutti_type type) {
    return type == TUTTI_FLOAT32 || type == TUTTI_FLOAT64 || small_format(type) != NULL;
}

static bool is_signed(tutti_type type) {
    return type == TUTTI_INT8 || type == TUTTI_INT16 || type == TUTTI_INT32 || type == TUTTI_INT64;
}

bool reference_supports(tutti_type type, tutti_reduction reduction) {
    bool bitwise = reduction == TUTTI_BAND || reduction == TUTTI_BOR || reduction == TUTTI_BXOR;
    if (reference_is_float(type)) return !bitwise;
    return type != TUTTI_BOOL || (reduction != TUTTI_AVG && reduction != TUTTI_PREMUL_SUM);
}

double reference_factor(tutti_type type, int rank) {
    return reference_is_float(type) ? 0.5 * (rank % 5 + 1) : rank % 3 + 1;
}

uint64_t reference_load_integer(const void *src, size_t i, tutti_type type) {
    size_t bytes = tutti_type_bytes(type);
    uint64_t bits = 0;
    memcpy(&bits, (const char *)src + i * bytes, bytes); /* little endian */
    int unused = 64 - 8 * (int)bytes;
    return is_signed(type) ? (uint64_t)((int64_t)(bits << unused) >> unused) : bits;
}

void reference_store_integer(void *dst, size_t i, tutti_type type, uint64_t bits) {
    size_t bytes = tutti_type_bytes(type);
    memcpy((char *)dst + i * bytes, &bits, bytes);
}

double reference_load_float(const void *src, size_t i, tutti_type type) {
    if (type == TUTTI_FLOAT64) return ((const double *)src)[i];
    if (type == TUTTI_FLOAT32) return ((const float *)src)[i];
    return decode(small_format(type), (unsigned)reference_load_integer(src, i, type));
}

void reference_store_float(void *dst, size_t i, tutti_type type, long double value) {
    if (type == TUTTI_FLOAT64) ((double *)dst)[i] = (double)value;
    else if (type == TUTTI_FLOAT32) ((float *)dst)[i] = (float)value;
    else reference_store_integer(dst, i, type, encode(small_format(type), value));
}

void reference_fill(void *dst, size_t count, tutti_type type, tutti_reduction reduction, uint64_t seed, int rank,
                    int block) {
    static const double specials[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0};
    bool extremes = reduction == TUTTI_MIN || reduction == TUTTI_MAX;
    uint64_t stream = reference_hash(seed, (uint64_t)rank, (uint64_t)block);
    for (size_t i = 0; i < count; i++) {
        uint64_t h = reference_hash(stream, i, 0);
        if (reference_is_float(type)) {
            /* Thirds of numbers of several magnitudes: nearly every sum rounds, so that its order shows. */
            double value = ldexp(((double)(h % 2001) - 1000) / 3, -(int)(h >> 40) % 9 - 3);
            if (extremes && (h >> 20) % 7 == 0) value = specials[(h >> 32) % 5];
            reference_store_float(dst, i, type, value);
        } else if (type == TUTTI_BOOL) {
            reference_store_integer(dst, i, type, h % 3 == 0 ? 0 : h % 3 == 1 ? 1 : 0x80);
        } else if (reduction == TUTTI_AVG) {
            reference_store_integer(dst, i, type, is_signed(type) ? h % 15 - 7 : h % 16);
        } else {
            reference_store_integer(dst, i, type, h);
        }
    }
}

static uint64_t reduce_integers(uint64_t acc, uint64_t next, tutti_type type, tutti_reduction reduction) {
    bool less = is_signed(type) ? (int64_t)next < (int64_t)acc : next < acc;
    switch (reduction) {
    case TUTTI_PROD: return acc * next;
    case TUTTI_MIN: return less ? next : acc;
    case TUTTI_MAX: return less ? acc : next;
    case TUTTI_BAND: return acc & next;
    case TUTTI_BOR: return acc | next;
    case TUTTI_BXOR: return acc ^ next;
    default: return acc + next;
    }
}

static uint64_t reduce_bools(uint64_t acc, uint64_t next, tutti_reduction reduction) {
    if (reduction == TUTTI_BXOR) return acc ^ next;
    bool both = reduction == TUTTI_PROD || reduction == TUTTI_MIN || reduction == TUTTI_BAND;
    return both ? acc & next : acc | next;
}

/* One element of integers or bools. */
static uint64_t integer_element(const void *const *srcs, int nsrcs, size_t i, tutti_type type,
                                tutti_reduction reduction) {
    uint64_t acc = 0;
    for (int k = 0; k < nsrcs; k++) {
        uint64_t next = reference_load_integer(srcs[k], i, type);
        if (type == TUTTI_BOOL) next = next != 0;
        if (reduction == TUTTI_PREMUL_SUM) next *= (uint64_t)reference_factor(type, k);
        if (k == 0) acc = next;
        else
            acc = type == TUTTI_BOOL ? reduce_bools(acc, next, reduction) : reduce_integers(acc, next, type, reduction);
    }
    if (reduction != TUTTI_AVG) return acc;
    return is_signed(type) ? (uint64_t)((int64_t)acc / nsrcs) : acc / (uint64_t)nsrcs;
}

static double extreme(double acc, double next, bool smallest) {
    if (isnan(acc) || isnan(next)) return NAN;
    if (acc == next) return signbit(acc) == smallest ? acc : next; /* -0 < +0 */
    return (next < acc) == smallest ? next : acc;
}

static const int *hosts; /* by source; NULL: one host */

void reference_set_hosts(const int *host_of) {
    hosts = host_of;
}

/* acc op next, rounded to float32 for a type narrower than double: the double result of one float operation rounds to
 * the float result. */
static double reduce_floats(double acc, double next, bool wide, tutti_reduction reduction) {
    double result;
    if (reduction == TUTTI_MIN || reduction == TUTTI_MAX) result = extreme(acc, next, reduction == TUTTI_MIN);
    else result = reduction == TUTTI_PROD ? acc * next : acc + next;
    return wide ? result : (float)result;
}

/* Collects the sources of one host, whose entry in hosts is `host`; without hosts, all. Returns false if there are
 * none. */
static bool host_element(const void *const *srcs, int nsrcs, int host, size_t i, tutti_type type,
                         tutti_reduction reduction, double *result_out) {
    bool wide = type == TUTTI_FLOAT64, any = false;
    double acc = 0;
    for (int k = 0; k < nsrcs; k++) {
        if (hosts != NULL && hosts[k] != host) continue;
        double next = reference_load_float(srcs[k], i, type);
        if (reduction == TUTTI_PREMUL_SUM) next *= reference_factor(type, k);
        if (!wide) next = (float)next;
        acc = any ? reduce_floats(acc, next, wide, reduction) : next;
        any = true;
    }
    *result_out = acc;
    return any;
}

#define MOST_HOSTS 64

/* Reduces one after the other. */
static double in_turn(const double *values, int count, bool wide, tutti_reduction reduction) {
    double acc = values[0];
    for (int k = 1; k < count; k++) acc = reduce_floats(acc, values[k], wide, reduction);
    return acc;
}

/* Reduces pairs until a power of two is left; then all neighbours until one is left. */
static double in_pairs(double *values, int count, bool wide, tutti_reduction reduction) {
    int power = 1, left = 0;
    while (2 * power <= count) power *= 2;
    int pairs = count - power;
    for (int k = 0; k < pairs; k++) values[left++] = reduce_floats(values[2 * k], values[2 * k + 1], wide, reduction);
    for (int k = 2 * pairs; k < count; k++) values[left++] = values[k];
    for (; left > 1; left /= 2)
        for (int k = 0; k < left / 2; k++) values[k] = reduce_floats(values[2 * k], values[2 * k + 1], wide, reduction);
    return values[0];
}

/* One element of floats; rounding to float32 after each step, except for float64, and to the type after each host. */
static double float_element(const void *const *srcs, int nsrcs, size_t i, tutti_type type, tutti_reduction reduction) {
    bool wide = type == TUTTI_FLOAT64;
    double of_hosts[MOST_HOSTS], value;
    int count = 0;
    while (count < MOST_HOSTS && host_element(srcs, nsrcs, count, i, type, reduction, &value)) {
        uint64_t rounded;
        if (hosts != NULL) {
            reference_store_float(&rounded, 0, type, value);
            value = reference_load_float(&rounded, 0, type);
        }
        of_hosts[count++] = value;
        if (hosts == NULL) break;
    }
    value = wide || type == TUTTI_FLOAT32 ? in_pairs(of_hosts, count, wide, reduction)
                                          : in_turn(of_hosts, count, wide, reduction);
    if (reduction == TUTTI_AVG) value /= nsrcs;
    return wide ? value : (float)value;
}

void reference_reduce(void *dst, const void *const *srcs, int nsrcs, size_t count, tutti_type type,
                      tutti_reduction reduction) {
    for (size_t i = 0; i < count; i++) {
        if (reference_is_float(type))
            reference_store_float(dst, i, type, float_element(srcs, nsrcs, i, type, reduction));
        else reference_store_integer(dst, i, type, integer_element(srcs, nsrcs, i, type, reduction));
    }
}

size_t reference_compare(const void *a, const void *b, size_t count, tutti_type type) {
    size_t bytes = tutti_type_bytes(type);
    if (count == 0 || memcmp(a, b, count * bytes) == 0) return count;
    for (size_t i = 0; i < count; i++) {
        if (memcmp((const char *)a + i * bytes, (const char *)b + i * bytes, bytes) == 0) continue;
        if (reference_is_float(type) && isnan(reference_load_float(a, i, type)) &&
            isnan(reference_load_float(b, i, type)))
            continue;
        return i;
    }
    return count;
}

const char *reference_show(const void *buffer, size_t index, tutti_type type, char *text) {
    if (reference_is_float(type)) snprintf(text, 64, "%.17g", reference_load_float(buffer, index, type));
    else if (is_signed(type)) snprintf(text, 64, "%lld", (long long)reference_load_integer(buffer, index, type));
    else snprintf(text, 64, "%llu", (unsigned long long)reference_load_integer(buffer, index, type));
    return text;
}
