/*
 * What the processor can be told about cache lines that go between cores.
 */
#ifndef TUTTI_LINES_H
#define TUTTI_LINES_H

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

#endif
