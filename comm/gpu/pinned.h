/*
 * Pinned host memory in blocks that the process keeps for reuse: pinning takes a system call per page, and
 * unpinning waits for the GPU, which may be waiting for us.
 */
#ifndef TUTTI_PINNED_H
#define TUTTI_PINNED_H

#include "comm/gpu/event.h"

typedef struct tutti_pinned {
    char *memory;
    char *on_device; /* the same bytes at their GPU address, for wait_value and write_value */
    size_t bytes;
    struct tutti_pinned *next;
    tutti_stream_event *after; /* returned, but in use until streams have passed this mark; or NULL */
} tutti_pinned;

/* Leases a block of at least `bytes`; at least its first page is zeroed. The calling thread's GPU must be the one
 * that uses it. */
tutti_status tutti_pinned_lease(const tutti_device *device, size_t bytes, tutti_pinned **block_out);
/* Returns a block that is no longer used. NULL is allowed. */
void tutti_pinned_return(tutti_pinned *block);
/* Returns a block that streams use until they have passed the mark; takes ownership of the mark. NULL mark: no
 * stream uses the block. NULL block: only frees the mark. */
void tutti_pinned_return_after(tutti_pinned *block, tutti_stream_event *after);
/* Gives up a block that a stream may use with no mark behind: it is never reused. NULL is allowed. */
void tutti_pinned_abandon(tutti_pinned *block);

#endif
