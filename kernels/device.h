/*
 * GPUs behind one table: memory, copies, streams, events, waiting, reductions. comm/ and the trainer speak to a GPU only
 * through it; libtutti_cuda.so (kernels/cuda) fills it, and is opened when first needed. Where no GPU is, tests open a
 * stand-in, whose memory is the host's and whose streams are threads.
 *
 *   device()  ->  module "cuda"  ->  tutti_device: calls that act on the calling thread's current GPU, as CUDA's own do
 *
 * A stream is a cudaStream_t, an event a cudaEvent_t; NULL is the default stream. "In the stream" means: enqueued, carried
 * out after all that was enqueued there before; the call returns at once.
 *
 * Invariant: nothing here makes a CUDA context in a process that has none, but the calls of which it is said. Statuses are
 * Tutti's, with CUDA's own words in the text.
 */
#ifndef TUTTI_KERNELS_DEVICE_H
#define TUTTI_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#include "bootstrap/machine/module.h"
#include "kernels/box.h"
#include "kernels/reduce.h"

typedef void *tutti_stream;
#define TUTTI_STREAM_OF_THREAD 2 /* cudaStreamPerThread: a handle that means another stream in each thread */

/* Is what goes into b in order with what went into a before? */
static inline bool tutti_stream_is_same(tutti_stream a, tutti_stream b) {
    return a == b && (uintptr_t)a != TUTTI_STREAM_OF_THREAD;
}

typedef struct tutti_event_ *tutti_event_handle;

#define TUTTI_DEVICE_ID_BYTES  16
#define TUTTI_DEVICE_IPC_BYTES 64

/* One GPU, or one MIG instance. */
typedef struct tutti_device_facts {
    uint8_t id
        [TUTTI_DEVICE_ID_BYTES]; /* UUID; of the instance, where there are several on a GPU: equal means the same one */
    char name[128];
    char pci[32]; /* "0000:3b:00.0", as hwloc and NCCL write it */
    int major, minor;
    size_t memory_bytes;
    int processors;    /* streaming multiprocessors */
    bool stream_waits; /* wait_value and write_value are done by the device; else a host thread does them */
    bool ipc;          /* memory can be exported */
} tutti_device_facts;

/* Where a pointer points. */
typedef struct tutti_device_place {
    tutti_memory memory; /* TUTTI_MEMORY_HOST (pinned as well) or TUTTI_MEMORY_CUDA (managed as well) */
    int device;          /* CUDA: index */
    void *base;          /* CUDA: of the allocation that it is in */
    size_t bytes;
    uint64_t
        serial; /* CUDA: of that allocation; another one at the same address has another (CU_POINTER_ATTRIBUTE_BUFFER_ID) */
} tutti_device_place;

/* An exported allocation: travels to another process of this host as it is. */
typedef struct tutti_device_export {
    uint8_t handle[TUTTI_DEVICE_IPC_BYTES];
    uint64_t offset; /* of the exported pointer in the allocation */
} tutti_device_export;

typedef struct tutti_device {
    /* -------------------------------------------------------------------------------- which GPUs there are */

    /* TUTTI_ERR_UNSUPPORTED with the driver's reason: no driver, one that is too old ("driver X, needs Y"), no GPU. */
    tutti_status (*check)(void);
    /* "CUDA 13.0, driver for 13.1". */
    void (*describe)(char *text, size_t capacity);
    tutti_status (*count)(int *count_out);
    tutti_status (*facts)(int device, tutti_device_facts *facts_out);
    /* The calling thread's GPU. use makes its context, where the process has none. */
    tutti_status (*use)(int device);
    tutti_status (*current)(int *device_out);
    /* Back to the GPU that was current, unless this process has no context there: a thread that has chosen none stands at GPU 0,
     * and to go there would make one. */
    void (*leave)(int device);
    /* Has this process a context on any GPU? Only then can a pointer be one of CUDA's. Cheap; makes none. */
    bool (*in_use)(void);
    /* Only where in_use. Some 100 ns. */
    tutti_status (*locate)(const void *pointer, tutti_device_place *place_out);

    /* ---------------------------------------------------------------------------------------------- memory */

    tutti_status (*alloc)(size_t bytes,
                          void **memory_out); /* of the current GPU; own allocation, so that it can be exported */
    tutti_status (*free)(void *memory);
    /* Host memory that the GPU reads and writes at the address given back in device_out (may be NULL). */
    tutti_status (*alloc_pinned)(size_t bytes, void **memory_out, void **device_out);
    tutti_status (*free_pinned)(void *memory);
    tutti_status (*pin)(void *memory, size_t bytes,
                        void **device_out); /* memory that is there, shared memory as well */
    tutti_status (*unpin)(void *memory);
    tutti_status (*export_memory)(void *memory, tutti_device_export *export_out);
    /* base_out: of the allocation, mapped here; one mapping for each export of another process. Not for own exports. */
    tutti_status (*import_memory)(const tutti_device_export *exported, void **base_out);
    tutti_status (*close_import)(void *base);

    /* --------------------------------------------------------------------------------- streams and events */

    tutti_status (*stream_create)(tutti_stream *stream_out); /* does not wait for the default stream */
    tutti_status (*stream_destroy)(tutti_stream stream);
    tutti_status (*stream_sync)(tutti_stream stream); /* waits; TUTTI_ERR_SYSTEM: something in it failed */
    tutti_status (*sync)(void);                       /* waits for all streams of the current GPU */
    tutti_status (*stream_captures)(tutti_stream stream, bool *captures_out); /* into a graph */
    tutti_status (*event_create)(tutti_event_handle *event_out);
    tutti_status (*event_destroy)(tutti_event_handle event);
    tutti_status (*event_record)(tutti_event_handle event, tutti_stream stream);
    tutti_status (*event_query)(tutti_event_handle event); /* TUTTI_OK, TUTTI_NOT_YET, or what has failed */
    tutti_status (*stream_wait_event)(tutti_stream stream, tutti_event_handle event);

    /* -------------------------------------------------------------------------------------- in the stream */

    tutti_status (*copy)(void *dst, const void *src, size_t bytes, tutti_stream stream); /* between any two places */
    tutti_status (*fill)(void *dst, int value, size_t bytes, tutti_stream stream);
    /* What follows waits until *at has reached value: as CUDA compares, (int64_t)(*at - value) >= 0, so values must stay below
     * 2^63, and INT64_MAX releases all waits. at is a device address (of pinned memory, say). All bytes written before somebody
     * wrote the value are then seen. */
    tutti_status (*wait_value)(tutti_stream stream, void *at, uint64_t value);
    /* The same for each of several places, 64 at most. */
    tutti_status (*wait_values)(tutti_stream stream, void *const *ats, int count, uint64_t value);
    /* After all that came before in the stream is seen by everyone, *at becomes value. */
    tutti_status (*write_value)(tutti_stream stream, void *at, uint64_t value);
    /* kernels/reduce.h on device memory, each source read once, the result written to each of ndsts buffers (args->dst is not
     * used; a source may be one of them where nothing else overlaps); bit for bit what the host gives. The arrays are copied
     * by the call. At most TUTTI_DEVICE_MOST_BUFFERS sources, and as many results. */
    tutti_status (*reduce)(const tutti_reduce_args *args, void *const *dsts, int ndsts, tutti_stream stream);
    /* Many copies as one. */
    tutti_status (*copy_many)(void *const *dsts, const void *const *srcs, const size_t *bytes, int count,
                              tutti_stream stream);
    /* kernels/box.h on device memory; the plan is copied by the call. dst and src: of element [0, 0, ...]; no overlap. */
    tutti_status (*copy_box)(const tutti_box_copy *copy, void *dst, const void *src, tutti_stream stream);
    /* So many bytes as the uint64_t at bytes_at says when the stream comes to it, but `most` at most. src and bytes_at: device
     * addresses of pinned memory; dst: of the GPU. */
    tutti_status (*copy_counted)(void *dst, const void *src, const void *bytes_at, size_t most, tutti_stream stream);
    /* A function on a thread of the driver's, which may call nothing of this table; what follows in the stream waits. */
    tutti_status (*call_host)(tutti_stream stream, void (*function)(void *context), void *context);
} tutti_device;

#define TUTTI_DEVICE_MOST_BUFFERS 64

/* What libtutti_cuda.so exports (bootstrap/machine/module.h). */
typedef struct tutti_cuda_module {
    tutti_module_calls calls; /* first */
    tutti_device device;
    const struct tutti_kernels *kernels;     /* of the trainer: kernels/kernels.h; NULL in a stand-in without them */
    const struct tutti_operators *operators; /* of global tensors: kernels/operators.h; as kernels */
} tutti_cuda_module;

/* What is exported here is for libtutti_trainer and libtutti_ops, which are libraries of their own. */

/* The GPUs of this machine: opens the module (TUTTI_CUDA_MODULE names another file) at the first call and asks its check.
 * TUTTI_ERR_UNSUPPORTED with the reason; the same answer from then on. Any thread. */
TUTTI_API tutti_status tutti_device_open(const tutti_device **device_out);
/* Of the opened module; for the trainer. */
TUTTI_API tutti_status tutti_device_kernels(const struct tutti_kernels **kernels_out);
/* The same for operators. */
TUTTI_API tutti_status tutti_device_operators(const struct tutti_operators **operators_out);
/* Which GPU is this rank's: TUTTI_DEVICE, else its rank on the host modulo the number of GPUs. Makes it nobody's. */
TUTTI_API tutti_status tutti_device_choose(int *device_out);

/* The table, if this process has a context on a GPU and so may hold CUDA pointers; else NULL. Some ns where the answer was no
 * a moment ago, one load once it is yes. Only in_use, locate and current may be called without asking tutti_device_open: it
 * says whether this module can work with the driver that is there. Never starts CUDA itself. */
const tutti_device *tutti_device_in_use(void);
/* The same for a caller that has just read tutti_coarse_now_ns(). */
const tutti_device *tutti_device_in_use_at(int64_t coarse_now_ns);

#endif
