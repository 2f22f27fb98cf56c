/*
 * The loops of limit.c: copy and sum of floats, by stores that go through the caches or past them. The loops are as
 * wide as the compiler's target allows; without x86's non-temporal stores both kinds are the same.
 */
#ifndef BENCH_PEERS_LIMIT_LOOPS_H
#define BENCH_PEERS_LIMIT_LOOPS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define LOOP_LINE  16   /* floats */
#define LOOP_BLOCK 2048 /* floats of a sum that stays in the first-level cache */

#if defined(__AVX512F__)
#define LOOP_WIDTH           16
#define LOOP_STREAM(to, sum) _mm512_stream_ps(to, (__m512)(sum))
#elif defined(__AVX__)
#define LOOP_WIDTH           8
#define LOOP_STREAM(to, sum) _mm256_stream_ps(to, (__m256)(sum))
#elif defined(__SSE2__)
#define LOOP_WIDTH           4
#define LOOP_STREAM(to, sum) _mm_stream_ps(to, (__m128)(sum))
#else
#define LOOP_WIDTH           4
#define LOOP_STREAM(to, sum) memcpy(to, &(sum), sizeof(sum))
#endif

typedef float loop_vector __attribute__((vector_size(LOOP_WIDTH * sizeof(float))));

static inline loop_vector loop_load(const float *from) {
    loop_vector value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* The number of elements before the first whole line of dst. */
static inline size_t loop_head(const float *dst, size_t count) {
    size_t head = -(uintptr_t)dst % (LOOP_LINE * sizeof(float)) / sizeof(float);
    return head < count ? head : count;
}

static inline void loop_fence(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* memcpy() of some KiB uses the string instruction, which begins slowly. */
#define LOOP_LONG ((size_t)64 << 10) /* floats */

static inline void loop_copy_cached(float *dst, const float *src, size_t count) {
    size_t i = 0;
    for (; count < LOOP_LONG && i + LOOP_LINE <= count; i += LOOP_LINE)
        for (size_t j = i; j < i + LOOP_LINE; j += LOOP_WIDTH) {
            loop_vector value = loop_load(src + j);
            memcpy(dst + j, &value, sizeof value);
        }
    memcpy(dst + i, src + i, (count - i) * sizeof *dst);
}

static inline void loop_copy(float *dst, const float *src, size_t count, int past) {
    if (dst == src) return;
    if (!past) {
        loop_copy_cached(dst, src, count);
        return;
    }
    size_t i = loop_head(dst, count);
    memcpy(dst, src, i * sizeof *dst);
    for (; i + LOOP_LINE <= count; i += LOOP_LINE)
        for (size_t j = i; j < i + LOOP_LINE; j += LOOP_WIDTH) LOOP_STREAM(dst + j, loop_load(src + j));
    memcpy(dst + i, src + i, (count - i) * sizeof *dst);
    loop_fence();
}

static inline void loop_add(float *dst, const float *a, const float *b, size_t count, int past) {
    size_t i = 0;
    for (size_t head = past ? loop_head(dst, count) : 0; i < head; i++) dst[i] = a[i] + b[i];
    for (; past && i + LOOP_LINE <= count; i += LOOP_LINE)
        for (size_t j = i; j < i + LOOP_LINE; j += LOOP_WIDTH)
            LOOP_STREAM(dst + j, loop_load(a + j) + loop_load(b + j));
    for (; i + LOOP_WIDTH <= count; i += LOOP_WIDTH) {
        loop_vector sum = loop_load(a + i) + loop_load(b + i);
        memcpy(dst + i, &sum, sizeof sum);
    }
    for (; i < count; i++) dst[i] = a[i] + b[i];
    if (past) loop_fence();
}

/* dst = the sum of n >= 2 vectors. */
static inline void loop_reduce(float *dst, const float *const *views, int n, size_t count, int past) {
    float sum[LOOP_BLOCK];
    if (n == 2) {
        loop_add(dst, views[0], views[1], count, past);
        return;
    }
    for (size_t at = 0; at < count; at += LOOP_BLOCK) {
        size_t part = count - at < LOOP_BLOCK ? count - at : LOOP_BLOCK;
        loop_add(sum, views[0] + at, views[1] + at, part, 0);
        for (int i = 2; i < n - 1; i++) loop_add(sum, sum, views[i] + at, part, 0);
        loop_add(dst + at, sum, views[n - 1] + at, part, past);
    }
}

/* Fetches lines for writing. */
static inline void loop_fetch(const float *lines, size_t count) {
    for (size_t i = 0; i < count; i += LOOP_LINE) {
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(lines[i])); /* the builtin may emit a read */
#else
        __builtin_prefetch(lines + i, 1);
#endif
    }
}

#endif
