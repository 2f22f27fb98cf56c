/*
 * What files everywhere use: sizes, alignment, zeroed allocation, min and max; errors, logs, fault points.
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

/* Allocates zeroed memory for count items; a count of 0 gives a valid pointer, too. Free it with free(). */
tutti_status tutti_calloc(size_t count, size_t item_bytes, void *memory_out);

/* Copies `text`. Fails with TUTTI_ERR_MEMORY. Free with free(). */
tutti_status tutti_strdup(const char *text, char **copy_out);

/* Fills memory with random bytes from the kernel, suitable for secrets. */
tutti_status tutti_getrandom(void *memory, size_t bytes);

/* --------------------------------------------------------------------------------------------- status.c: errors
 * The function that detects an error records the text and returns the status in one line, `return
 * tutti_fail(TUTTI_ERR_X, "...")`; callers propagate it with TUTTI_TRY or TUTTI_TRY_GOTO (tutti.h).
 */

/* A thread's error text is cut at this length. */
#define TUTTI_ERROR_TEXT_BYTES 2048

/* Returns TUTTI_ERR_SYSTEM and records "<format...>: <text of errno value `error`>". */
tutti_status tutti_fail_errno(int error, const char *format, ...) TUTTI_PRINTF(2, 3);

/* Prepends "<format...>: " to the recorded text; returns `status`. */
tutti_status tutti_fail_context(tutti_status status, const char *format, ...) TUTTI_PRINTF(2, 3);

/* A thread's error text, saved while the thread makes calls that may fail, too, such as those of a cleanup. */
typedef struct tutti_error {
    char text[TUTTI_ERROR_TEXT_BYTES];
} tutti_error;
tutti_error tutti_fail_save(void);
/* Records the saved text again; returns `status`. */
tutti_status tutti_fail_again(tutti_status status, const tutti_error *error);

/* Makes an external text safe to print on a terminal: replaces control characters (C0 and C1, also as UTF-8) by
 * blanks, and bytes that are not valid UTF-8 by question marks. */
void tutti_make_printable(char *text);

/* -------------------------------------------------------------------------------------------------- log.c: logs
 * Lines on standard error: "tutti <level> [rank R] text". TUTTI_LOG sets the level: error, warn (default), info,
 * debug. A line is one write, so lines of several ranks do not mix.
 */

typedef enum tutti_log_level { TUTTI_LOG_ERROR, TUTTI_LOG_WARN, TUTTI_LOG_INFO, TUTTI_LOG_DEBUG } tutti_log_level;

void tutti_log(tutti_log_level level, const char *format, ...) TUTTI_PRINTF(2, 3);

/* The rank shown in this thread's lines; -1: none. */
void tutti_log_set_rank(int rank);

/* ---------------------------------------------------------------------------------------- fault.c: fault points
 * Named places where a test makes the library fail, set by TUTTI_FAULT=name[:after[:times]],... ("after": number of
 * passes that succeed first, default 0; "times": number of passes that fail after that, default 1). Without the
 * variable a fault point costs one load.
 */

/* Returns true when the fault point `name` must fail now. */
bool tutti_fault(const char *name);

#endif
