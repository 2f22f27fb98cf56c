/*
 * Host memory that GPUs reach, in blocks that the process keeps for reuse: to pin memory takes a system call for each page,
 * and to give it back waits for the GPU, which may be waiting for us.
 */
#ifndef TUTTI_PINNED_H
#define TUTTI_PINNED_H

#include "comm/gpu/event.h"

typedef struct tutti_pinned {
    char *memory;
    char *on_device; /* the same bytes as the GPU names them, for wait_value and write_value */
    size_t bytes;
    struct tutti_pinned *next;
    tutti_stream_event *after; /* returned, but in use until streams have passed this; NULL */
} tutti_pinned;

/* A block of at least `bytes`, zeroed for as much as a page. The calling thread's GPU is the one to use it. */
tutti_status tutti_pinned_lease(const tutti_device *device, size_t bytes, tutti_pinned **block_out);
/* Nobody uses it any more. NULL is allowed. */
void tutti_pinned_return(tutti_pinned *block);
/* Streams use it until they have passed the mark; takes the mark over. NULL mark: they do not. NULL block: the mark goes. */
void tutti_pinned_return_after(tutti_pinned *block, tutti_stream_event *after);
/* A stream may use it, and there is no mark behind that: nobody gets it any more. NULL is allowed. */
void tutti_pinned_abandon(tutti_pinned *block);

#endif
