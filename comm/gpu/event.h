/*
 * Marks: points in streams, and the test whether a stream has passed them, without a CUDA call. A thread of the
 * program that is inside cudaFree, for example, can block every other CUDA call until all streams have ended,
 * including a stream that waits for a dead peer. A thread that has to release this stream must not wait in such a
 * call itself.
 *
 *   put      the stream writes a number to a word of pinned memory when it gets there (write_value)
 *   ask      the word is read
 *   fault    a GPU that has failed writes nothing: a separate thread asks CUDA for failures
 *
 * Where streams cannot write to memory, a mark is a CUDA event, and ask queries CUDA. Marks are not for streams
 * that are being captured into a graph: each launch of the graph would write the number of the capture.
 */
#ifndef TUTTI_STREAM_MARK_H
#define TUTTI_STREAM_MARK_H

#include "kernels/device.h"

typedef struct tutti_stream_event tutti_stream_event;
typedef struct tutti_error_poll tutti_error_poll;

/* Takes a mark that is in no stream; it counts as passed. fault: the error poll of the GPU whose streams use the
 * mark; this GPU must be current. NULL: streams cannot write to memory, and the mark is a CUDA event. */
tutti_status tutti_stream_event_take(const tutti_device *device, tutti_error_poll *fault,
                                     tutti_stream_event **mark_out);
/* Adds a holder; each holder must free the mark. */
tutti_stream_event *tutti_stream_event_share(tutti_stream_event *mark);
/* NULL is allowed. The stream need not have passed the mark. */
void tutti_stream_event_free(tutti_stream_event *mark);
/* Puts the mark behind all work in the stream so far. Allowed again once the stream has passed the previous point. */
tutti_status tutti_stream_event_put(tutti_stream_event *mark, tutti_stream stream);
/* The same for a mark that is put by use_values, with other values: true, and the write. False: only put can. */
bool tutti_stream_event_value(tutti_stream_event *mark, tutti_device_value *value_out);
/* TUTTI_OK: the stream has passed the mark, and its earlier writes to pinned memory are visible. TUTTI_NOT_YET: it has
 * not. Any other status: it never will. Any thread; a CUDA event is queried on the calling thread's GPU. */
tutti_status tutti_stream_event_ask(const tutti_stream_event *mark);

/* Memory of an engine that serves one call at a time: a call in another stream waits for the last one. */
typedef struct tutti_stream_chain {
    tutti_event_handle tail; /* recorded behind the last call; from event_create */
    tutti_stream last;       /* the stream of that call */
    bool used;
} tutti_stream_chain;
tutti_status tutti_stream_chain_follow(const tutti_stream_chain *chain, const tutti_device *device,
                                       tutti_stream stream);
tutti_status tutti_stream_chain_extend(tutti_stream_chain *chain, const tutti_device *device, tutti_stream stream);

/* -------------------------------------------------------------------------------------------- failed GPUs */

/* Returns the error poll of that GPU; each process has one per GPU, which is never freed. NULL: out of memory. */
tutti_error_poll *tutti_error_poll_of(const tutti_device *device, int index);
/* Calls are in flight on the GPU: CUDA is polled for the next second. */
void tutti_error_poll_expect(tutti_error_poll *fault);

/* ----------------------------------------------------------------------------------------------- pinned.c
 * Pinned host memory in blocks that the process keeps for reuse: pinning takes a system call per page, and
 * unpinning waits for the GPU, which may be waiting for us.
 */

typedef struct tutti_pinned {
    char *memory;
    char *on_device; /* the same bytes at their GPU address, for wait_value and write_value */
    size_t bytes;
    struct tutti_pinned *next;
    tutti_stream_event *after; /* returned, but in use until streams have passed this mark; or NULL */
} tutti_pinned;

/* Leases a block of at least `bytes`; its first page at least is zeroed. The GPU that uses it must be current. */
tutti_status tutti_pinned_lease(const tutti_device *device, size_t bytes, tutti_pinned **block_out);
/* Returns a block that is no longer used. NULL is allowed. */
void tutti_pinned_return(tutti_pinned *block);
/* Returns a block that streams use until they have passed the mark; takes ownership of the mark. NULL mark: no
 * stream uses the block. NULL block: only frees the mark. */
void tutti_pinned_return_after(tutti_pinned *block, tutti_stream_event *after);
/* Gives up a block that a stream may use with no mark behind: it is never reused. NULL is allowed. */
void tutti_pinned_abandon(tutti_pinned *block);

#endif
