/*
 * Allocation and randomness with recorded errors.
 */
#include "bootstrap/base/common.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

tutti_status tutti_calloc(size_t count, size_t item_bytes, void *memory_out) {
    void *memory = calloc(count > 0 ? count : 1, item_bytes);
    if (memory == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for %zu times %zu bytes", count, item_bytes);
    memcpy(memory_out, &memory, sizeof memory);
    return TUTTI_OK;
}

tutti_status tutti_strdup(const char *text, char **copy_out) {
    char *copy = strdup(text);
    if (copy == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a text of %zu bytes", strlen(text));
    *copy_out = copy;
    return TUTTI_OK;
}

tutti_status tutti_getrandom(void *memory, size_t bytes) {
    uint8_t *next = memory;
    while (bytes > 0) {
        ssize_t got = getrandom(next, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return tutti_fail_errno(errno, "getrandom");
        next += got;
        bytes -= (size_t)got;
    }
    return TUTTI_OK;
}
