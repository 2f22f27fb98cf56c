/*
 * Points in streams, and whether a stream has passed them, without asking CUDA: a thread of the program's that is inside
 * cudaFree, say, may keep every other call of CUDA's out until all streams have ended, so also one that waits for a peer that
 * has died. Who is to release that stream must not wait in such a call himself.
 *
 *   put      the stream writes a number to a word of pinned memory when it comes there (write_value)
 *   ask      the word is read
 *   fault    a GPU that has failed writes nothing any more: a thread of its own asks CUDA for that (error_poll.c)
 *
 * Where streams cannot write to memory by themselves, a mark is an event, and to ask means to ask CUDA. Marks are not for streams
 * that are being captured into a graph: each launch of the graph would write the number of the capture.
 */
#ifndef TUTTI_STREAM_MARK_H
#define TUTTI_STREAM_MARK_H

#include "kernels/device.h"

typedef struct tutti_stream_event tutti_stream_event;
typedef struct tutti_error_poll tutti_error_poll;

/* A mark that is not in any stream: it counts as passed. fault: of the GPU whose streams it is for, which is current; NULL where
 * they do not write to memory, for an event. */
tutti_status tutti_stream_event_take(const tutti_device *device, tutti_error_poll *fault, tutti_stream_event **mark_out);
/* One more holder, each of whom frees it. */
tutti_stream_event *tutti_stream_event_share(tutti_stream_event *mark);
/* NULL is allowed. The stream need not have passed it. */
void tutti_stream_event_free(tutti_stream_event *mark);
/* Behind all that is in the stream so far. Once it has passed the place before. */
tutti_status tutti_stream_event_put(tutti_stream_event *mark, tutti_stream stream);
/* TUTTI_OK: the stream has passed it, and what it wrote to pinned memory before is seen. TUTTI_NOT_YET. Else what has failed:
 * the stream will never pass it. Any thread; an event is asked for on the calling thread's GPU. */
tutti_status tutti_stream_event_ask(const tutti_stream_event *mark);

/* --------------------------------------------------------------------------------------- error_poll.c */

/* Of that GPU; there is one in a process, and it stays. NULL: no memory. */
tutti_error_poll *tutti_error_poll_of(const tutti_device *device, int index);
/* Before it can be told; the GPU is current. Any number of times. */
tutti_status tutti_error_poll_open(tutti_error_poll *fault);
/* Calls are under way there: CUDA is asked now and then, for the next second. */
void tutti_error_poll_expect(tutti_error_poll *fault);
/* TUTTI_OK, or the failure that CUDA has told, as this thread's error. */
tutti_status tutti_error_poll_status(const tutti_error_poll *fault);

#endif
