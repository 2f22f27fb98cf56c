/*
 * GPUs behind one table: memory, copies, streams, events, waits, reductions. comm/ and the trainer use a GPU only
 * through it. libtutti_cuda.so (kernels/cuda) fills it and is opened on first use. Where there is no GPU, tests open
 * a stand-in, whose memory is host memory and whose streams are threads.
 *
 *   tutti_device_open()  ->  module "cuda"  ->  tutti_device: calls on the calling thread's current GPU, as in CUDA
 *
 * A stream is a cudaStream_t, an event a cudaEvent_t; NULL is the default stream. "In the stream" means: the call
 * enqueues the operation and returns at once; the operation runs after everything that was enqueued there before.
 *
 * Invariant: nothing here creates a CUDA context in a process that has none, except the calls whose comments say so.
 * Calls return Tutti's statuses, with CUDA's error text.
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

/* True when work enqueued in b is in order with work enqueued in a. */
static inline bool tutti_stream_is_same(tutti_stream a, tutti_stream b) {
    return a == b && (uintptr_t)a != TUTTI_STREAM_OF_THREAD;
}

typedef struct tutti_event_ *tutti_event_handle;

#define TUTTI_DEVICE_ID_BYTES  16
#define TUTTI_DEVICE_IPC_BYTES 64

/* One GPU, or one MIG instance. */
typedef struct tutti_device_facts {
    /* UUID of the GPU, or of the instance where a GPU has several: equal means the same GPU or instance */
    uint8_t id[TUTTI_DEVICE_ID_BYTES];
    char name[128];
    char pci[32]; /* "0000:3b:00.0", as hwloc and NCCL write it */
    int major, minor;
    size_t memory_bytes;
    int processors;    /* streaming multiprocessors */
    bool stream_waits; /* the device does wait_value and write_value; else a host thread does them */
    bool ipc;          /* memory can be exported */
    bool mps;          /* kernels of several processes run at the same time, under NVIDIA's MPS; else in turns */
} tutti_device_facts;

/* The memory that a pointer points to. */
typedef struct tutti_device_place {
    tutti_memory memory; /* TUTTI_MEMORY_HOST (pinned as well) or TUTTI_MEMORY_CUDA (managed as well) */
    int device;          /* CUDA: index */
    void *base;          /* CUDA: start of the allocation that the pointer is in */
    size_t bytes;
    /* CUDA: ID of that allocation; a later allocation at the same address has another ID
     * (CU_POINTER_ATTRIBUTE_BUFFER_ID). */
    uint64_t serial;
} tutti_device_place;

/* An exported allocation: a plain value that may be sent to another process of this host. */
typedef struct tutti_device_export {
    uint8_t handle[TUTTI_DEVICE_IPC_BYTES];
    uint64_t offset; /* of the exported pointer within the allocation */
    uint64_t serial; /* of the allocation, as in tutti_device_place */
} tutti_device_export;

#define TUTTI_DEVICE_MOST_BUFFERS 64
#define TUTTI_DEVICE_MOST_VALUES  (2 * TUTTI_DEVICE_MOST_BUFFERS)

/* One wait_value or write_value (see the table below) in a list of several. */
typedef struct tutti_device_value {
    void *at;
    uint64_t value;
    bool waits;
} tutti_device_value;

typedef struct tutti_device {
    /* -------------------------------------------------------------------------------- GPUs of this process */

    /* Fails with TUTTI_ERR_UNSUPPORTED and the driver's reason: no driver, a driver that is too old ("driver X,
     * needs Y"), no GPU. */
    tutti_status (*check)(void);
    /* Writes for example "CUDA 13.0, driver for 13.1". */
    void (*describe)(char *text, size_t capacity);
    tutti_status (*count)(int *count_out);
    tutti_status (*facts)(int device, tutti_device_facts *facts_out);
    /* Set and get the calling thread's GPU. `use` creates its context if the process has none. */
    tutti_status (*use)(int device);
    tutti_status (*current)(int *device_out);
    /* Selects the GPU that was current before, unless this process has no context there: the current GPU of a
     * thread that has selected none is GPU 0, and selecting it would create a context. */
    void (*leave)(int device);
    /* True when this process has a context on any GPU; only then can a pointer be a CUDA pointer. Cheap; creates no
     * context. */
    bool (*in_use)(void);
    /* May be called only when in_use returns true; takes some 100 ns. */
    tutti_status (*locate)(const void *pointer, tutti_device_place *place_out);

    /* ---------------------------------------------------------------------------------------------- memory */

    /* Allocates on the current GPU. Each call makes a separate allocation, so that it can be exported. */
    tutti_status (*alloc)(size_t bytes, void **memory_out);
    tutti_status (*free)(void *memory);
    /* Host memory that the GPU reads and writes at the address returned in device_out (may be NULL). */
    tutti_status (*alloc_pinned)(size_t bytes, void **memory_out, void **device_out);
    tutti_status (*free_pinned)(void *memory);
    /* Existing memory, shared memory included, which stays pinned for as long as it exists. */
    tutti_status (*pin)(void *memory, size_t bytes, void **device_out);
    tutti_status (*export_memory)(void *memory, tutti_device_export *export_out);
    /* base_out: start of the allocation, mapped here; one mapping for each export. The export must be from another
     * process. */
    tutti_status (*import_memory)(const tutti_device_export *exported, void **base_out);
    tutti_status (*close_import)(void *base);

    /* --------------------------------------------------------------------------------- streams and events */

    tutti_status (*stream_create)(tutti_stream *stream_out); /* does not wait for the default stream */
    tutti_status (*stream_destroy)(tutti_stream stream);
    tutti_status (*stream_sync)(tutti_stream stream); /* waits; TUTTI_ERR_SYSTEM: an operation in it failed */
    tutti_status (*sync)(void);                       /* waits for all streams of the GPU; invalidates captures */
    tutti_status (*stream_captures)(tutti_stream stream, bool *captures_out); /* is it being captured into a graph? */
    tutti_status (*event_create)(tutti_event_handle *event_out);
    tutti_status (*event_destroy)(tutti_event_handle event);
    tutti_status (*event_record)(tutti_event_handle event, tutti_stream stream);
    tutti_status (*event_query)(tutti_event_handle event); /* TUTTI_OK, TUTTI_NOT_YET, or the failure */
    tutti_status (*stream_wait_event)(tutti_stream stream, tutti_event_handle event);

    /* -------------------------------------------------------------------------------------- in the stream */

    tutti_status (*copy)(void *dst, const void *src, size_t bytes, tutti_stream stream); /* between any two places */
    tutti_status (*fill)(void *dst, int value, size_t bytes, tutti_stream stream);
    /* Later work in the stream waits until *at has reached value: as CUDA compares, (int64_t)(*at - value) >= 0, so
     * values must stay below 2^63, and INT64_MAX releases all waits. at is a device address (for example of pinned
     * memory). All bytes that were written before the value are then visible. */
    tutti_status (*wait_value)(tutti_stream stream, void *at, uint64_t value);
    /* Sets *at to value once the results of all earlier work in the stream are visible to everything that reads
     * them. */
    tutti_status (*write_value)(tutti_stream stream, void *at, uint64_t value);
    /* Several waits and writes, in order, with one driver call; at most TUTTI_DEVICE_MOST_VALUES. The call copies
     * the array. */
    tutti_status (*use_values)(tutti_stream stream, const tutti_device_value *values, int count);
    /* kernels/reduce.h on device memory: each source is read once, and the result is written to each of ndsts
     * buffers (args->dst is not used; a buffer may be one of the sources if nothing else overlaps). The result
     * equals the host's bit for bit. The call copies the arrays. At most TUTTI_DEVICE_MOST_BUFFERS sources, and at
     * most that many results. */
    tutti_status (*reduce)(const tutti_reduce_args *args, void *const *dsts, int ndsts, tutti_stream stream);
    /* Many copies in one operation. */
    tutti_status (*copy_many)(void *const *dsts, const void *const *srcs, const size_t *bytes, int count,
                              tutti_stream stream);
    /* kernels/box.h on device memory; the call copies the plan. dst and src: addresses of element [0, 0, ...]; no
     * overlap. */
    tutti_status (*copy_box)(const tutti_box_copy *copy, void *dst, const void *src, tutti_stream stream);
    /* Copies at most `most` bytes; their number is the uint64_t at bytes_at when the stream reaches this operation.
     * src and bytes_at: device addresses of pinned memory; dst: memory of the GPU. */
    tutti_status (*copy_counted)(void *dst, const void *src, const void *bytes_at, size_t most, tutti_stream stream);
} tutti_device;

/* What libtutti_cuda.so exports (bootstrap/machine/module.h). */
typedef struct tutti_cuda_module {
    tutti_module_calls calls; /* first */
    tutti_device device;
    const struct tutti_kernels *kernels;     /* for the trainer: kernels/kernels.h; NULL in a stand-in without them */
    const struct tutti_operators *operators; /* for global tensors: kernels/operators.h; NULL as for kernels */
} tutti_cuda_module;

/* The calls exported here are for libtutti_trainer and libtutti_ops, which are separate libraries. */

/* Returns the table for the GPUs of this machine. The first call opens the module (TUTTI_CUDA_MODULE names another
 * file) and calls its check. Fails with TUTTI_ERR_UNSUPPORTED and the reason; later calls return the same result.
 * Any thread may call it. */
TUTTI_API tutti_status tutti_device_open(const tutti_device **device_out);
/* Returns the opened module's kernels, for the trainer. */
TUTTI_API tutti_status tutti_device_kernels(const struct tutti_kernels **kernels_out);
/* Returns the opened module's operators. */
TUTTI_API tutti_status tutti_device_operators(const struct tutti_operators **operators_out);
/* Returns this rank's GPU: TUTTI_DEVICE, else the rank table's device_id, else the rank on the host modulo the
 * number of GPUs. Does not make it current. */
TUTTI_API tutti_status tutti_device_choose(int *device_out);

/* Set by a thread whose stream is being captured, while it allocates memory: nothing may then wait for the GPU, which
 * would invalidate the capture. So it gets no memory that streams may still use, and what it frees is kept. */
extern __thread __attribute__((tls_model("initial-exec"))) bool tutti_device_captures;

/* Returns the table if this process has a context on a GPU and so may hold CUDA pointers; else NULL. The call takes
 * some ns while the answer is a recent no, and one load once it is yes. Only in_use, locate and current may be
 * called without tutti_device_open, which checks whether this module works with the present driver. It never starts
 * CUDA itself. */
const tutti_device *tutti_device_in_use(void);
/* As tutti_device_in_use, for a caller that has just read tutti_coarse_now_ns(). */
const tutti_device *tutti_device_in_use_at(int64_t coarse_now_ns);

#endif
