/*
 * Inside of the stand-in for CUDA (standin_cuda.c): its memory, streams and faults.
 *
 * One lock guards all there is: allocations, streams, events. Streams are threads that take it to fetch a task and put it down to
 * run it. Names of calls are those of tutti_device, and so are their contracts.
 */
#ifndef TUTTI_TESTS_STANDIN_CUDA_H
#define TUTTI_TESTS_STANDIN_CUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/machine/module.h"
#include "kernels/device.h"

#define STANDIN_MOST_GPUS 16
#define STANDIN_EXPORT    __attribute__((visibility("default")))

typedef struct standin_stream standin_stream;

extern const tutti_module_host *standin_host;
extern pthread_mutex_t standin_lock;
extern pthread_cond_t standin_changed; /* a task ended, an event was reached, something broke */

/* The beginning of every call: in a forked child, after a failure in a stream, and where STANDIN_FAIL=<call>:<nth> says so, it
 * fails. */
#define STANDIN_BEGIN(call) TUTTI_TRY(standin_begin(call))
tutti_status standin_begin(const char *call);
/* Something in a stream failed: all later calls fail, as in CUDA. */
void standin_break(const char *what);
bool standin_is_broken(void);
bool standin_is_forked(void);
/* The next pass through the point `name` of STANDIN_FAIL is the one to fail. */
bool standin_fails(const char *name);
/* This process has a context from now on. */
void standin_make_context(void);
int standin_gpus(void);
STANDIN_EXPORT int standin_current(void);
/* For threads of stand-ins of other libraries, and which GPU one is. */
STANDIN_EXPORT void standin_set_current(int gpu);
STANDIN_EXPORT const char *standin_id(int gpu);
int standin_delay_us(void);
int standin_depth(void);

/* ------------------------------------------------------------------------------------------------- memory */

/* Where ordinary code may touch the `bytes` at an address: a GPU's, pinned memory's (as the GPU or the host knows it), ordinary.
 * NULL: that many are not there. */
void *standin_reach(const void *address, size_t bytes);
/* The same for what a GPU reads and writes by itself: NULL for all addresses but the GPU's. */
STANDIN_EXPORT void *standin_reach_as_gpu(const void *address, size_t bytes);
/* Neither a GPU's nor pinned: CUDA's copies from and to it wait. */
bool standin_is_pageable(const void *address);
tutti_status standin_locate(const void *pointer, tutti_device_place *place_out);
STANDIN_EXPORT tutti_status standin_alloc(size_t bytes, void **memory_out);
/* As NCCL's and other libraries': CUDA's IPC does not export it. */
STANDIN_EXPORT tutti_status standin_alloc_unshared(size_t bytes, void **memory_out);
STANDIN_EXPORT tutti_status standin_free(void *memory);
tutti_status standin_alloc_pinned(size_t bytes, void **memory_out, void **device_out);
tutti_status standin_free_pinned(void *memory);
tutti_status standin_pin(void *memory, size_t bytes, void **device_out);
tutti_status standin_unpin(void *memory);
tutti_status standin_export_memory(void *memory, tutti_device_export *export_out);
tutti_status standin_import_memory(const tutti_device_export *exported, void **base_out);
tutti_status standin_close_import(void *base);
/* For tests: how often memory of a GPU has been taken. */
STANDIN_EXPORT int standin_allocations(void);
/* How much of it is not given back. */
STANDIN_EXPORT int standin_allocated(void);
/* Until the stream, or all of them, have passed what is in them. Other threads' calls wait until then, as where memory is given
 * back or copied to pageable memory. */
#define STANDIN_ALL_STREAMS ((tutti_stream)UINTPTR_MAX)
void standin_sync_alone(tutti_stream stream);
/* Until no thread is inside of standin_sync_alone. */
void standin_wait_for_frees(void);
/* For tests: is a thread inside of it? */
STANDIN_EXPORT bool standin_is_freeing(void);

/* ------------------------------------------------------------------------------------ streams and events */

/* For stand-ins of other libraries as well, by dlsym: runs in the stream's order, on its thread. */
STANDIN_EXPORT void standin_enqueue(void *stream, void (*function)(void *context), void *context);
STANDIN_EXPORT void *standin_host_pointer(const void *device_pointer);
/* As if a graph were being captured from the stream: what is enqueued runs at once. */
STANDIN_EXPORT void standin_capture(void *stream, bool captures);

/* As CUDA refuses a kernel: the stream is of another GPU than the current one. */
tutti_status standin_check_launch(void *stream);

/* Graphs (standin_cuda_graph.c): kept for one, if the stream is being captured; else false. */
STANDIN_EXPORT bool standin_record(void *stream, void (*run)(void *context), void (*forget)(void *context),
                                   void *context);
/* The same for an event that is recorded (else waited for). */
bool standin_record_event(tutti_event_handle event, bool records, tutti_stream stream);
/* Recorded, or enqueued; run may come as often as a graph is launched, forget once behind it. */
void standin_submit(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context);
/* For tests, as the driver's calls for graphs; 0 is success. A graph and what is made of it are forgotten one by one. */
/* Modes of captures and of threads: the driver's numbers. */
enum { STANDIN_GLOBAL, STANDIN_THREAD_LOCAL, STANDIN_RELAXED };
STANDIN_EXPORT int standin_graph_begin(void *stream, int mode);
STANDIN_EXPORT int standin_graph_end(void *stream, void **graph_out);
STANDIN_EXPORT int standin_graph_instantiate(void **exec_out, void *graph, unsigned long long flags);
STANDIN_EXPORT int standin_graph_launch(void *exec, void *stream);
STANDIN_EXPORT int standin_graph_forget(void *graph);
/* Gives the calling thread this mode, and tells the one that it had: cuThreadExchangeStreamCaptureMode. A thread begins in
 * STANDIN_GLOBAL. */
STANDIN_EXPORT int standin_exchange_mode(int *mode);
/* True if a capture forbids the calling thread what CUDA calls potentially unsafe, such as a query. All captures that forbid it
 * are invalidated. */
bool standin_graph_forbids(void);
/* Invalidates the capture in which the event was recorded, if that is under way. */
void standin_graph_spoil(const void *event);

/* Until all that is enqueued now has run. Freeing memory waits for all streams. */
void standin_sync(tutti_stream stream);
void standin_sync_all(void);
/* Is this thread a stream's? It may make no calls. */
bool standin_in_stream(void);
tutti_status standin_stream_create(tutti_stream *stream_out);
tutti_status standin_stream_destroy(tutti_stream stream);
tutti_status standin_stream_sync(tutti_stream stream);
tutti_status standin_device_sync(void);
tutti_status standin_stream_captures(tutti_stream stream, bool *captures_out);
tutti_status standin_event_create(tutti_event_handle *event_out);
tutti_status standin_event_destroy(tutti_event_handle event);
tutti_status standin_event_record(tutti_event_handle event, tutti_stream stream);
tutti_status standin_event_query(tutti_event_handle event);
/* cudaEventQuery itself, in the calling thread's mode: for a stand-in of PyTorch's CUDA. */
STANDIN_EXPORT tutti_status standin_event_query_bare(tutti_event_handle event);
tutti_status standin_stream_wait_event(tutti_stream stream, tutti_event_handle event);

/* ------------------------------------------------------------------------------------------ in the stream */

tutti_status standin_copy(void *dst, const void *src, size_t bytes, tutti_stream stream);
tutti_status standin_fill(void *dst, int value, size_t bytes, tutti_stream stream);
tutti_status standin_wait_value(tutti_stream stream, void *at, uint64_t value);
tutti_status standin_write_value(tutti_stream stream, void *at, uint64_t value);
tutti_status standin_use_values(tutti_stream stream, const tutti_device_value *values, int count);
tutti_status standin_reduce(const tutti_reduce_args *args, void *const *dsts, int ndsts, tutti_stream stream);
tutti_status standin_copy_many(void *const *dsts, const void *const *srcs, const size_t *bytes, int count,
                               tutti_stream stream);
tutti_status standin_copy_box(const tutti_box_copy *copy, void *dst, const void *src, tutti_stream stream);
tutti_status standin_copy_counted(void *dst, const void *src, const void *bytes_at, size_t most, tutti_stream stream);
tutti_status standin_call_host(tutti_stream stream, void (*function)(void *context), void *context);

#endif
