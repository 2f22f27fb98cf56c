/*
 * A libcuda.so.1 that is not a driver, for tests of how CUDA is found: it has a version (FAKE_DRIVER_VERSION),
 * records whether a caller made a context (fake_driver_context), and has one range of "device memory"
 * (fake_driver_memory). The free memory is a MiB less at each query.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define CALL __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_INITIALIZED = 3 };
enum { MEMORY_TYPE = 2, BUFFER_ID = 7, IS_MANAGED = 8, DEVICE_ORDINAL = 9, RANGE_START = 11, RANGE_SIZE = 12 };

static bool has_context, asked_to_start;
CALL char fake_driver_memory[4096];
CALL void fake_driver_context(bool made);
CALL bool fake_driver_was_started(void);

void fake_driver_context(bool made) {
    has_context = made;
}

bool fake_driver_was_started(void) {
    return asked_to_start;
}

CALL int cuInit(unsigned flags);
CALL int cuDriverGetVersion(int *version);
CALL int cuGetErrorString(int error, const char **text);
CALL int cuDeviceGetCount(int *count);
CALL int cuDeviceGetAttribute(int *value, int attribute, int device);
CALL int cuDeviceGetUuid_v2(void *uuid, int device);
CALL int cuCtxGetCurrent(void **context);
CALL int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
CALL int cuPointerGetAttributes(unsigned count, const int *attributes, void **data, uint64_t pointer);
CALL int cuMemGetInfo_v2(size_t *free_out, size_t *total_out);
CALL int cuStreamWaitValue64_v2(void *stream, uint64_t at, uint64_t value, unsigned flags);
CALL int cuStreamBatchMemOp_v2(void *stream, unsigned count, void *operations, unsigned flags);
CALL int cuStreamWriteValue64_v2(void *stream, uint64_t at, uint64_t value, unsigned flags);

int cuInit(unsigned flags) {
    (void)flags;
    asked_to_start = true;
    return 100; /* no device */
}

int cuDriverGetVersion(int *version) {
    const char *text = getenv("FAKE_DRIVER_VERSION");
    *version = text != NULL ? atoi(text) : 13000;
    return SUCCESS;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == NOT_INITIALIZED ? "initialization error" : "some error";
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free_out, size_t *total_out) {
    static atomic_size_t questions;
    *total_out = (size_t)1 << 30;
    *free_out = *total_out - (atomic_fetch_add(&questions, 1) << 20);
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = 2;
    return has_context ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)attribute, (void)device;
    *value = 0;
    return SUCCESS;
}

int cuDeviceGetUuid_v2(void *uuid, int device) {
    (void)uuid, (void)device;
    return NOT_INITIALIZED;
}

int cuCtxGetCurrent(void **context) {
    *context = NULL; /* another thread's */
    return has_context ? SUCCESS : NOT_INITIALIZED;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = device == 1 && has_context;
    return SUCCESS;
}

int cuPointerGetAttributes(unsigned count, const int *attributes, void **data, uint64_t pointer) {
    bool ours = pointer - (uint64_t)(uintptr_t)fake_driver_memory < sizeof fake_driver_memory;
    if (!has_context) return NOT_INITIALIZED;
    for (unsigned i = 0; i < count && ours; i++) {
        switch (attributes[i]) {
        case MEMORY_TYPE: *(unsigned *)data[i] = 2; break; /* of a device */
        case BUFFER_ID: *(uint64_t *)data[i] = 77; break;
        case DEVICE_ORDINAL: *(int *)data[i] = 1; break;
        case RANGE_START: *(uint64_t *)data[i] = (uint64_t)(uintptr_t)fake_driver_memory; break;
        case RANGE_SIZE: *(uint64_t *)data[i] = sizeof fake_driver_memory; break;
        default: break;
        }
    }
    return SUCCESS;
}

int cuStreamWaitValue64_v2(void *stream, uint64_t at, uint64_t value, unsigned flags) {
    (void)stream, (void)at, (void)value, (void)flags;
    return NOT_INITIALIZED;
}

int cuStreamBatchMemOp_v2(void *stream, unsigned count, void *operations, unsigned flags) {
    (void)stream, (void)count, (void)operations, (void)flags;
    return NOT_INITIALIZED;
}

int cuStreamWriteValue64_v2(void *stream, uint64_t at, uint64_t value, unsigned flags) {
    (void)stream, (void)at, (void)value, (void)flags;
    return NOT_INITIALIZED;
}
