/*
 * Inside of libtutti_cuda.so: errors, the driver's own functions, and the calls that make up the table (module.c).
 *
 * The runtime is linked in statically and looks for the driver (libcuda.so.1) at its first call, so the module also
 * loads where there is none. The driver's functions are looked up by name in the same library, and may be queried
 * without starting CUDA.
 */
#ifndef TUTTI_KERNELS_CUDA_STATE_H
#define TUTTI_KERNELS_CUDA_STATE_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "bootstrap/machine/module.h"
#include "kernels/device.h"

/* The functions that the host provides, and the module's own table; set when the module is started. */
extern const tutti_module_host *tutti_cuda_host;
extern const tutti_device *tutti_cuda_device;

/* TUTTI_OK, or an error with CUDA's text: "<what>: ...". Clears the error in CUDA's own record: it is not the
 * program's. */
tutti_status tutti_cuda_result(cudaError_t result, const char *what);
tutti_status tutti_cuda_driver_result(CUresult result, const char *what);
#define TUTTI_CUDA_TRY(call) TUTTI_TRY(tutti_cuda_result(call, #call))

/* Begins every call that needs CUDA. Fails with TUTTI_ERR_FORKED in a child that was forked after CUDA was started
 * here. */
#define TUTTI_CUDA_BEGIN() TUTTI_TRY(tutti_cuda_begin())
tutti_status tutti_cuda_begin(void);
bool tutti_cuda_is_forked(void);
/* Called once, when the module is started. */
void tutti_cuda_watch_forks(void);
/* Records that other code has started CUDA in this process. */
void tutti_cuda_note_start(void);

/* While one thread captures a graph in CUDA's global mode, no thread may make calls that wait, allocate or query;
 * between these two functions they are permitted, and are not part of any capture. */
typedef enum cudaStreamCaptureMode tutti_cuda_mode;
tutti_cuda_mode tutti_cuda_relax(void);
void tutti_cuda_unrelax(tutti_cuda_mode mode);

/* ---------------------------------------------------------------------------------------- driver.c: the driver */

typedef struct tutti_cuda_driver {
    CUresult (*version)(int *version);
    CUresult (*error_string)(CUresult error, const char **text);
    CUresult (*device_count)(int *count);
    CUresult (*device_attribute)(int *value, CUdevice_attribute attribute, CUdevice device);
    CUresult (*device_uuid)(CUuuid *uuid, CUdevice device);
    CUresult (*context_current)(CUcontext *context);
    CUresult (*primary_state)(CUdevice device, unsigned *flags, int *active);
    CUresult (*pointer_attributes)(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr pointer);
    CUresult (*wait_value)(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags);
    CUresult (*batch)(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags);
    CUresult (*write_value)(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags);
} tutti_cuda_driver;

/* Returns NULL where no driver is found; with `load` false, where this process has not loaded one so far. */
const tutti_cuda_driver *tutti_cuda_driver_get(bool load);

/* ------------------------------------------------------------------------------------------------ device.c */

tutti_status tutti_cuda_check(void);
void tutti_cuda_describe(char *text, size_t capacity);
tutti_status tutti_cuda_count(int *count_out);
tutti_status tutti_cuda_facts(int device, tutti_device_facts *facts_out);
tutti_status tutti_cuda_use(int device);
tutti_status tutti_cuda_current(int *device_out);
void tutti_cuda_leave(int device);
bool tutti_cuda_in_use(void);
/* Returns the number of processors of the calling thread's GPU. */
tutti_status tutti_cuda_processors(int *processors_out);
bool tutti_cuda_stream_waits(void);

/* ------------------------------------------------------------------------------------------------ memory.c */

tutti_status tutti_cuda_locate(const void *pointer, tutti_device_place *place_out);
tutti_status tutti_cuda_alloc(size_t bytes, void **memory_out);
tutti_status tutti_cuda_free(void *memory);
tutti_status tutti_cuda_alloc_pinned(size_t bytes, void **memory_out, void **device_out);
tutti_status tutti_cuda_free_pinned(void *memory);
tutti_status tutti_cuda_pin(void *memory, size_t bytes, void **device_out);
tutti_status tutti_cuda_export_memory(void *memory, tutti_device_export *export_out);
tutti_status tutti_cuda_import_memory(const tutti_device_export *exported, void **base_out);
tutti_status tutti_cuda_close_import(void *base);

/* ------------------------------------------------------------------------------------------------ stream.c */

tutti_status tutti_cuda_stream_create(tutti_stream *stream_out);
tutti_status tutti_cuda_stream_destroy(tutti_stream stream);
tutti_status tutti_cuda_stream_sync(tutti_stream stream);
tutti_status tutti_cuda_sync(void);
tutti_status tutti_cuda_stream_captures(tutti_stream stream, bool *captures_out);
tutti_status tutti_cuda_event_create(tutti_event_handle *event_out);
tutti_status tutti_cuda_event_destroy(tutti_event_handle event);
tutti_status tutti_cuda_event_record(tutti_event_handle event, tutti_stream stream);
tutti_status tutti_cuda_event_query(tutti_event_handle event);
tutti_status tutti_cuda_stream_wait_event(tutti_stream stream, tutti_event_handle event);
tutti_status tutti_cuda_wait_value(tutti_stream stream, void *at, uint64_t value);
tutti_status tutti_cuda_write_value(tutti_stream stream, void *at, uint64_t value);
tutti_status tutti_cuda_use_values(tutti_stream stream, const tutti_device_value *values, int count);

/* -------------------------------------------------------------------------------------------------- work.c */

tutti_status tutti_cuda_copy(void *dst, const void *src, size_t bytes, tutti_stream stream);
tutti_status tutti_cuda_fill(void *dst, int value, size_t bytes, tutti_stream stream);
tutti_status tutti_cuda_reduce(const tutti_reduce_args *args, void *const *dsts, int ndsts, tutti_stream stream);
tutti_status tutti_cuda_copy_counted(void *dst, const void *src, const void *bytes_at, size_t most,
                                     tutti_stream stream);
tutti_status tutti_cuda_copy_many(void *const *dsts, const void *const *srcs, const size_t *bytes, int count,
                                  tutti_stream stream);
tutti_status tutti_cuda_copy_box(const tutti_box_copy *copy, void *dst, const void *src, tutti_stream stream);

#endif
