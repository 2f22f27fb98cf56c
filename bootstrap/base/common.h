/*
 * Basic definitions used by every file: sizes, alignment, zeroed allocation, min and max.
 */
#ifndef TUTTI_BASE_COMMON_H
#define TUTTI_BASE_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#define TUTTI_CACHE_LINE      64
#define TUTTI_ALIGNED_LINE    __attribute__((aligned(TUTTI_CACHE_LINE)))
#define TUTTI_LIKELY(x)       __builtin_expect(!!(x), 1)
#define TUTTI_UNLIKELY(x)     __builtin_expect(!!(x), 0)
#define TUTTI_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#define TUTTI_NS_PER_US INT64_C(1000)
#define TUTTI_NS_PER_MS INT64_C(1000000)
#define TUTTI_NS_PER_S  INT64_C(1000000000)

static inline size_t tutti_min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t tutti_max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

static inline int64_t tutti_min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* `alignment` must be a power of two. */
static inline size_t tutti_align_up(size_t value, size_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
}

/* Allocates zeroed memory for count items; a count of 0 gives a valid pointer. Fails with TUTTI_ERR_MEMORY. Free
 * with free(). */
tutti_status tutti_calloc(size_t count, size_t item_bytes, void *memory_out);

/* Copies `text`. Fails with TUTTI_ERR_MEMORY. Free with free(). */
tutti_status tutti_strdup(const char *text, char **copy_out);

/* Fills memory with random bytes from the kernel, suitable for secrets. */
tutti_status tutti_getrandom(void *memory, size_t bytes);

#endif
