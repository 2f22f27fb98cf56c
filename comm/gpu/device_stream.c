/*
 * <tutti/device.h>: streams and stream operations, for code without CUDA. Thin wrappers of the device function
 * table.
 */
#include <tutti/device.h>

#include "bootstrap/base/common.h"
#include "comm/base/comm.h"
#include "comm/base/fork.h"
#include "kernels/device.h"

static tutti_status open_device(const tutti_device **device_out) {
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    return tutti_device_open(device_out);
}

tutti_status tutti_device_stream_create(void **stream_out) {
    const tutti_device *device = NULL;
    if (stream_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_device_stream_create: stream_out is NULL");
    TUTTI_TRY(open_device(&device));
    return device->stream_create(stream_out);
}

tutti_status tutti_device_stream_destroy(void *stream) {
    const tutti_device *device = NULL;
    if (stream == NULL) return TUTTI_OK;
    TUTTI_TRY(open_device(&device));
    return device->stream_destroy(stream);
}

tutti_status tutti_device_follow(void *stream, void *leader) {
    const tutti_device *device = NULL;
    tutti_event_handle event;
    TUTTI_TRY(open_device(&device));
    TUTTI_TRY(device->event_create(&event));
    tutti_status status = device->event_record(event, leader);
    if (status == TUTTI_OK) status = device->stream_wait_event(stream, event);
    (void)device->event_destroy(event); /* streams that wait for it still do */
    return status;
}

tutti_status tutti_device_copy(void *dst, const void *src, size_t bytes, void *stream) {
    const tutti_device *device = NULL;
    if (bytes == 0) return TUTTI_OK;
    if (dst == NULL || src == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_device_copy: %s is NULL", dst == NULL ? "dst" : "src");
    TUTTI_TRY(open_device(&device));
    return device->copy(dst, src, bytes, stream);
}

tutti_status tutti_device_fill(void *dst, int value, size_t bytes, void *stream) {
    const tutti_device *device = NULL;
    if (bytes == 0) return TUTTI_OK;
    if (dst == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_device_fill: dst is NULL");
    TUTTI_TRY(open_device(&device));
    return device->fill(dst, value, bytes, stream);
}
