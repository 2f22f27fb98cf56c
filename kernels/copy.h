/*
 * Copies that memcpy makes less well: past the caches, and of some KiB through them.
 *
 * An ordinary store to a line that another core has read must first take that line from the other core's cache. Where
 * the two share a last-level cache this is fast; where they do not it costs more than the rest of a transfer
 * (measured: 27 ns a line, against 2 with non-temporal stores). Within one cache it is the opposite: data written
 * past the cache must come back from memory.
 */
#ifndef TUTTI_KERNELS_COPY_H
#define TUTTI_KERNELS_COPY_H

#include <stddef.h>

/* memcpy with non-temporal stores, and a fence: a flag that is set afterwards becomes visible after the bytes.
 * Whole lines of dst are written past the caches; the ends, and everything on processors without such stores,
 * through the caches. */
void tutti_copy_stream(void *dst, const void *src, size_t bytes);

/* The same in two parts: one fence after many copies. */
void tutti_copy_stream_part(void *dst, const void *src, size_t bytes);
void tutti_copy_stream_fence(void);

/* memcpy by a loop of vector loads and stores, where that is faster: from some KiB on glibc uses the string
 * instruction, which begins slowly. Best where the source is in a near cache. */
void tutti_copy_loop(void *dst, const void *src, size_t bytes);

#endif
