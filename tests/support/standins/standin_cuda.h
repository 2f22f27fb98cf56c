/*
 * Internals of the stand-in for CUDA (standin_cuda.c): its memory, streams and faults.
 *
 * One lock protects everything: allocations, streams, events. Streams are threads that hold it to fetch a task and
 * release it to run the task. Calls have the names and contracts of tutti_device.
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

/* The beginning of every call: fails in a forked child, after a failure in a stream, and where
 * STANDIN_FAIL=<call>:<nth> requires it. */
#define STANDIN_BEGIN(call) TUTTI_TRY(standin_begin(call))
tutti_status standin_begin(const char *call);
/* Something in a stream failed: all later calls fail, as in CUDA. */
void standin_break(const char *what);
bool standin_is_broken(void);
bool standin_is_forked(void);
/* Whether this pass through the point `name` of STANDIN_FAIL must fail. */
bool standin_fails(const char *name);
/* This process has a context from now on. */
void standin_make_context(void);
int standin_gpus(void);
STANDIN_EXPORT int standin_current(void);
/* For threads of stand-ins of other libraries: sets the current GPU; a GPU's id. */
STANDIN_EXPORT void standin_set_current(int gpu);
STANDIN_EXPORT const char *standin_id(int gpu);
int standin_delay_us(void);
int standin_depth(void);
bool standin_in_order(void);

/* ------------------------------------------------------------------------------------------------- memory */

/* Where ordinary code may touch the `bytes` at an address of a GPU, of pinned memory (the GPU's or the host's
 * address), or of ordinary memory. NULL: the range does not have that many bytes. */
void *standin_reach(const void *address, size_t bytes);
/* The same for memory that a GPU itself reads and writes: NULL for all addresses but the GPU's. */
STANDIN_EXPORT void *standin_reach_as_gpu(const void *address, size_t bytes);
/* Whether memory is neither a GPU's nor pinned: CUDA's copies from and to it wait. */
bool standin_is_pageable(const void *address);
tutti_status standin_locate(const void *pointer, tutti_device_place *place_out);
STANDIN_EXPORT tutti_status standin_alloc(size_t bytes, void **memory_out);
/* Memory like NCCL's and other libraries': CUDA's IPC does not export it. */
STANDIN_EXPORT tutti_status standin_alloc_unshared(size_t bytes, void **memory_out);
STANDIN_EXPORT tutti_status standin_free(void *memory);
tutti_status standin_alloc_pinned(size_t bytes, void **memory_out, void **device_out);
tutti_status standin_free_pinned(void *memory);
tutti_status standin_pin(void *memory, size_t bytes, void **device_out);
tutti_status standin_export_memory(void *memory, tutti_device_export *export_out);
tutti_status standin_import_memory(const tutti_device_export *exported, void **base_out);
tutti_status standin_close_import(void *base);
/* For tests: the number of allocations of GPU memory. */
STANDIN_EXPORT int standin_allocations(void);
/* How many of them are not freed. */
STANDIN_EXPORT int standin_allocated(void);
/* Waits until the stream, or all streams, have drained. Other threads' calls wait until then, as when memory is freed
 * or copied to pageable memory. */
#define STANDIN_ALL_STREAMS ((tutti_stream)UINTPTR_MAX)
void standin_sync_alone(tutti_stream stream);
/* Waits until no thread is inside standin_sync_alone. */
void standin_wait_for_frees(void);
/* For tests: whether a thread is inside it. */
STANDIN_EXPORT bool standin_is_freeing(void);

/* ------------------------------------------------------------------------------------ streams and events */

/* For stand-ins of other libraries as well, by dlsym: runs in the stream's order, on its thread. */
STANDIN_EXPORT void standin_enqueue(void *stream, void (*function)(void *context), void *context);
STANDIN_EXPORT void *standin_host_pointer(const void *device_pointer);
/* Pretends that a graph is being captured from the stream: what is enqueued runs at once. */
STANDIN_EXPORT void standin_capture(void *stream, bool captures);

/* Fails, as CUDA refuses a kernel, if the stream belongs to another GPU than the current one. */
tutti_status standin_check_launch(void *stream);

/* Graphs (standin_cuda_graph.c): keeps the task if the stream is being captured; else returns false. */
STANDIN_EXPORT bool standin_record(void *stream, void (*run)(void *context), void (*forget)(void *context),
                                   void *context);
/* The same for an event that is recorded (else waited for). */
bool standin_record_event(tutti_event_handle event, bool records, tutti_stream stream);
/* Recorded, or enqueued; `run` is called for each launch of the graph, `forget` once at the end. */
void standin_submit(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context);
/* For tests, as the driver's calls for graphs; 0 is success. A graph and its executable are destroyed separately. */
/* Modes of captures and threads, with the driver's numbers. */
enum { STANDIN_GLOBAL, STANDIN_THREAD_LOCAL, STANDIN_RELAXED };
STANDIN_EXPORT int standin_graph_begin(void *stream, int mode);
STANDIN_EXPORT int standin_graph_end(void *stream, void **graph_out);
STANDIN_EXPORT int standin_graph_instantiate(void **exec_out, void *graph, unsigned long long flags);
STANDIN_EXPORT int standin_graph_launch(void *exec, void *stream);
STANDIN_EXPORT int standin_graph_forget(void *graph);
/* Sets the calling thread's mode and returns the previous one, as cuThreadExchangeStreamCaptureMode. A thread begins
 * in STANDIN_GLOBAL. */
STANDIN_EXPORT int standin_exchange_mode(int *mode);
/* True if a capture forbids the calling thread what CUDA calls potentially unsafe, such as a query. All captures that
 * forbid it are invalidated. */
bool standin_graph_forbids(void);
/* As CUDA does if the whole GPU is waited for, in whatever mode: invalidates all captures. True: there were some. */
bool standin_graph_invalidates(void);
/* Invalidates the capture in which the event was recorded, if the capture is in progress. */
void standin_graph_spoil(const void *event);

/* Waits until everything that is enqueued now has run. Freeing memory waits for all streams. */
void standin_sync(tutti_stream stream);
void standin_sync_all(void);
/* Whether this thread is a stream's; such a thread must not make calls. */
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

#endif
