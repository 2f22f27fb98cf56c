/*
 * Copies past the caches.
 *
 * An ordinary store to a line that another core has read must first take that line from the other's cache. Where the
 * two share a last-level cache this is quick; where they do not it costs more than all the rest of a transfer (in a trial:
 * 27 ns a line, against 2 with non-temporal stores). Within one cache it is the other way round: what goes past it must
 * come back from memory.
 */
#ifndef TUTTI_KERNELS_COPY_H
#define TUTTI_KERNELS_COPY_H

#include <stddef.h>

/* memcpy with non-temporal stores, and a fence: a flag that is set afterwards is seen after the bytes. Whole lines of
 * dst go past the caches; the ends, and everything on processors without such stores, through them. */
void tutti_copy_stream(void *dst, const void *src, size_t bytes);

/* The same in parts: one fence after many copies. */
void tutti_copy_stream_part(void *dst, const void *src, size_t bytes);
void tutti_copy_stream_fence(void);

#endif
