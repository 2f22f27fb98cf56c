/*
 * Non-temporal copies, and a loop. See copy.h. Past the caches, whole lines are written by the widest stores that the
 * processor has, because a line that one store fills never waits in a write-combining buffer for its other half.
 */
#include "kernels/copy.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "bootstrap/base/common.h"

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f"))) static void stream_lines_512(char *dst, const char *src, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm512_stream_si512((void *)(dst + i), _mm512_loadu_si512(src + i));
}

__attribute__((target("avx"))) static void stream_lines_256(char *dst, const char *src, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        __m256i low = _mm256_loadu_si256((const void *)(src + i)),
                high = _mm256_loadu_si256((const void *)(src + i + 32));
        _mm256_stream_si256((void *)(dst + i), low);
        _mm256_stream_si256((void *)(dst + i + 32), high);
    }
}

static void stream_lines_128(char *dst, const char *src, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 16)
        _mm_stream_si128((void *)(dst + i), _mm_loadu_si128((const void *)(src + i)));
}

static void stream_lines(char *dst, const char *src, size_t bytes) {
    if (__builtin_cpu_supports("avx512f")) stream_lines_512(dst, src, bytes);
    else if (__builtin_cpu_supports("avx")) stream_lines_256(dst, src, bytes);
    else stream_lines_128(dst, src, bytes);
}

void tutti_copy_stream_fence(void) {
    _mm_sfence();
}

/* Two lines a turn; the last two overlap those before. */
__attribute__((target("avx"))) static void copy_256(char *dst, const char *src, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 128) {
        i = tutti_min_size(i, bytes - 128);
        __m256i a = _mm256_loadu_si256((const void *)(src + i)), b = _mm256_loadu_si256((const void *)(src + i + 32)),
                c = _mm256_loadu_si256((const void *)(src + i + 64)),
                d = _mm256_loadu_si256((const void *)(src + i + 96));
        _mm256_storeu_si256((void *)(dst + i), a);
        _mm256_storeu_si256((void *)(dst + i + 32), b);
        _mm256_storeu_si256((void *)(dst + i + 64), c);
        _mm256_storeu_si256((void *)(dst + i + 96), d);
    }
}

/* In these bounds glibc's memcpy takes up to 9 % longer (Zen 4, source in a near cache); above both are equal. */
#define LEAST_LOOP_BYTES ((size_t)2 << 10)
#define MOST_LOOP_BYTES  ((size_t)256 << 10)

void tutti_copy_loop(void *dst, const void *src, size_t bytes) {
    bool fits = bytes >= LEAST_LOOP_BYTES && bytes <= MOST_LOOP_BYTES;
    if (fits && __builtin_cpu_supports("avx")) copy_256(dst, src, bytes);
    else memcpy(dst, src, bytes);
}
#else
void tutti_copy_loop(void *dst, const void *src, size_t bytes) {
    memcpy(dst, src, bytes);
}

static void stream_lines(char *dst, const char *src, size_t bytes) {
    memcpy(dst, src, bytes);
}

void tutti_copy_stream_fence(void) {}
#endif

void tutti_copy_stream_part(void *dst, const void *src, size_t bytes) {
    char *to = dst;
    const char *from = src;
    size_t head = tutti_min_size((size_t)(-(uintptr_t)to % TUTTI_CACHE_LINE), bytes);
    size_t lines = (bytes - head) / TUTTI_CACHE_LINE * TUTTI_CACHE_LINE;
    if (head > 0) memcpy(to, from, head);
    if (lines > 0) stream_lines(to + head, from + head, lines);
    if (head + lines < bytes) memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}

void tutti_copy_stream(void *dst, const void *src, size_t bytes) {
    tutti_copy_stream_part(dst, src, bytes);
    tutti_copy_stream_fence();
}
