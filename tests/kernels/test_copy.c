/*
 * The copies of kernels/copy.h: every length around their bounds, every place in a line. Sources and destinations are
 * in allocations of their own, so that the address sanitizer detects accesses beyond the ends.
 */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/copy.h"

static void check(void (*copy)(void *, const void *, size_t), size_t bytes, size_t from, size_t to) {
    uint8_t *src = malloc(from + bytes + 1), *dst = malloc(to + bytes + 1);
    for (size_t i = 0; i < from + bytes + 1; i++) src[i] = (uint8_t)(i * 37 + i / 256);
    memset(dst, 0xa5, to + bytes + 1);
    copy(dst + to, src + from, bytes);
    cr_assert(memcmp(dst + to, src + from, bytes) == 0, "%zu bytes from %zu to %zu differ", bytes, from, to);
    for (size_t i = 0; i < to; i++) cr_assert(dst[i] == 0xa5, "%zu bytes to %zu: wrote before", bytes, to);
    cr_assert(dst[to + bytes] == 0xa5, "%zu bytes to %zu: wrote behind", bytes, to);
    free(src);
    free(dst);
}

static void check_all(void (*copy)(void *, const void *, size_t)) {
    static const size_t lengths[] = {0,    1,    63,   64,   65,   127,    128,    129,    1000,   2047,
                                     2048, 2049, 2111, 2175, 2176, 262143, 262144, 262145, 300000, 1 << 20};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (size_t place = 0; place < 64; place += lengths[i] < 3000 ? 1 : 21)
            check(copy, lengths[i], place * 5 % 64, place);
}

Test(copy, past_the_caches) {
    check_all(tutti_copy_stream);
}

Test(copy, by_a_loop) {
    check_all(tutti_copy_loop);
    for (size_t bytes = 2048; bytes < 2048 + 300; bytes++) check(tutti_copy_loop, bytes, bytes % 3, bytes % 7);
}
