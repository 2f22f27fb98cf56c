/*
 * What the processor can be told about cache lines that go between cores.
 */
#ifndef TUTTI_CACHELINE_H
#define TUTTI_CACHELINE_H

#include <stddef.h>
#include <string.h>

#include "bootstrap/base/common.h"

/* In a loop that looks at what another core writes. Takes up to 25 ns, and that is well spent: who looks all the time
 * takes the line away from its writer between two of his stores. */
static inline void tutti_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Fetches the line, and takes it from whoever has read it, so that a store to it soon need not wait for that. */
static inline void tutti_prefetch_to_write(const void *line) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line)); /* the compiler's is one to read on old targets */
#else
    __builtin_prefetch(line, 1);
#endif
}

/* memmove of some KiB that lie in another core's cache, or that another core has read. From 2 KiB on glibc's copies by string
 * instructions on many processors, which fetch lines of other caches one after the other: 4 KiB take 60 % longer. Shorter pieces
 * keep it to its vector loop. */
static inline void tutti_copy_lines(void *dst, const void *src, size_t bytes) {
    enum { PIECE_BYTES = 1024 };
    char *to = dst;
    const char *from = src;
    for (; bytes > PIECE_BYTES; to += PIECE_BYTES, from += PIECE_BYTES, bytes -= PIECE_BYTES)
        memmove(to, from, PIECE_BYTES);
    memmove(to, from, bytes);
}

#endif
