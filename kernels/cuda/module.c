/*
 * The table of the module libtutti_cuda.so.
 */
#include "kernels/cuda/compute.h"
#include "kernels/cuda/operators/op_kernels.h"
#include "kernels/cuda/state.h"

#ifndef TUTTI_CUDA_KERNELS /* built without cuBLAS */
#define TUTTI_CUDA_KERNELS   NULL
#define TUTTI_CUDA_OPERATORS NULL
#else
#define TUTTI_CUDA_OPERATORS &tutti_cuda_operators
#endif

__attribute__((visibility("default"))) tutti_status tutti_module_start(const tutti_module_host *host,
                                                                       const tutti_module_calls **calls_out);

tutti_status tutti_module_start(const tutti_module_host *host, const tutti_module_calls **calls_out) {
    static const tutti_cuda_module module = {
        .calls.version = TUTTI_MODULE_VERSION,
        .device = {.check = tutti_cuda_check,
                   .describe = tutti_cuda_describe,
                   .count = tutti_cuda_count,
                   .facts = tutti_cuda_facts,
                   .use = tutti_cuda_use,
                   .current = tutti_cuda_current,
                   .leave = tutti_cuda_leave,
                   .in_use = tutti_cuda_in_use,
                   .locate = tutti_cuda_locate,
                   .alloc = tutti_cuda_alloc,
                   .free = tutti_cuda_free,
                   .alloc_pinned = tutti_cuda_alloc_pinned,
                   .free_pinned = tutti_cuda_free_pinned,
                   .pin = tutti_cuda_pin,
                   .export_memory = tutti_cuda_export_memory,
                   .import_memory = tutti_cuda_import_memory,
                   .close_import = tutti_cuda_close_import,
                   .stream_create = tutti_cuda_stream_create,
                   .stream_destroy = tutti_cuda_stream_destroy,
                   .stream_sync = tutti_cuda_stream_sync,
                   .sync = tutti_cuda_sync,
                   .stream_captures = tutti_cuda_stream_captures,
                   .event_create = tutti_cuda_event_create,
                   .event_destroy = tutti_cuda_event_destroy,
                   .event_record = tutti_cuda_event_record,
                   .event_query = tutti_cuda_event_query,
                   .stream_wait_event = tutti_cuda_stream_wait_event,
                   .copy = tutti_cuda_copy,
                   .fill = tutti_cuda_fill,
                   .wait_value = tutti_cuda_wait_value,
                   .write_value = tutti_cuda_write_value,
                   .use_values = tutti_cuda_use_values,
                   .reduce = tutti_cuda_reduce,
                   .copy_many = tutti_cuda_copy_many,
                   .copy_counted = tutti_cuda_copy_counted,
                   .copy_box = tutti_cuda_copy_box},
        .kernels = TUTTI_CUDA_KERNELS,
        .operators = TUTTI_CUDA_OPERATORS,
    };
    if (host->version == TUTTI_MODULE_VERSION) {
        tutti_cuda_device = &module.device;
        tutti_cuda_host = host; /* else the caller detects the difference, and makes no call */
        tutti_cuda_watch_forks();
    }
    *calls_out = &module.calls;
    return TUTTI_OK;
}
