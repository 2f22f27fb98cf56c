/*
 * Instructions for cache lines that move between cores.
 */
#ifndef TUTTI_CACHELINE_H
#define TUTTI_CACHELINE_H

#include <stddef.h>
#include <string.h>

#include "bootstrap/base/common.h"

/* A processor that reads lines in order prefetches lines beyond those that were read. If another core is about to
 * write them, it must take them back, which takes a round trip. So other data begins this far behind data that is read
 * in order. In trials on Zen 4, messages of 512 bytes were 1.25 times as fast between near cores with this gap, and
 * 1.6 times between distant ones; half of it was too little. */
#define TUTTI_GAP_BYTES ((size_t)1 << 10)
/* Fetching the lines of the next data of that size to write them, while another core reads the last ones, takes less
 * time than fetching them when they are written; with more bytes it delays the reader more. From trials on Zen 4. */
#define TUTTI_MOST_FETCHED_BYTES ((size_t)512)

/* For loops that poll memory written by another core. Takes up to 25 ns, which is well spent: polling without a
 * pause takes the line from its writer between two of its stores. */
static inline void tutti_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Fetches the line exclusively, away from its readers, so that a following store need not wait for that. */
static inline void tutti_prefetch_to_write(const void *line) {
#if defined(__x86_64__)
    /* on old targets the compiler's builtin prefetches for reading */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* memmove of some KiB that lie in another core's cache, or that another core has read. From 2 KiB on, glibc copies
 * with string instructions on many processors, and these fetch lines of other caches one after the other: 4 KiB
 * take 60 % longer. With shorter pieces, memmove uses its vector loop. */
static inline void tutti_copy_lines(void *dst, const void *src, size_t bytes) {
    enum { PIECE_BYTES = 512 };
    char *to = dst;
    const char *from = src;
    for (; bytes > PIECE_BYTES; to += PIECE_BYTES, from += PIECE_BYTES, bytes -= PIECE_BYTES)
        memmove(to, from, PIECE_BYTES);
    memmove(to, from, bytes);
}

#endif
