/*
 * The driver's own functions, looked up by name. Checking whether CUDA is in use must not start it, but the first
 * call of the runtime, whichever it is, starts it; so these are looked up in the library itself, if it is loaded
 * already.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "kernels/cuda/state.h"

typedef struct name_row {
    const char *name, *older; /* older: its previous name, if that version suffices */
    size_t offset;            /* in tutti_cuda_driver */
} name_row;

#define ROW(member, ...)                                                                                               \
    { .offset = offsetof(tutti_cuda_driver, member), __VA_ARGS__ }

static const name_row names[] = {
    ROW(version, .name = "cuDriverGetVersion"),
    ROW(error_string, .name = "cuGetErrorString"),
    ROW(device_count, .name = "cuDeviceGetCount"),
    ROW(device_attribute, .name = "cuDeviceGetAttribute"),
    ROW(device_uuid, .name = "cuDeviceGetUuid_v2", .older = "cuDeviceGetUuid"), /* v2: the UUID of the MIG instance */
    ROW(context_current, .name = "cuCtxGetCurrent"),
    ROW(primary_state, .name = "cuDevicePrimaryCtxGetState"),
    ROW(pointer_attributes, .name = "cuPointerGetAttributes"),
    ROW(wait_value, .name = "cuStreamWaitValue64_v2", .older = "cuStreamWaitValue64"),
    ROW(batch, .name = "cuStreamBatchMemOp_v2", .older = "cuStreamBatchMemOp"),
    ROW(write_value, .name = "cuStreamWriteValue64_v2", .older = "cuStreamWriteValue64"),
};

static bool look_up(void *library, tutti_cuda_driver *driver) {
    for (size_t i = 0; i < TUTTI_COUNT_OF(names); i++) {
        void *symbol = dlsym(library, names[i].name);
        if (symbol == NULL && names[i].older != NULL) symbol = dlsym(library, names[i].older);
        if (symbol == NULL) return false; /* the driver is older than any that this build works with */
        memcpy((char *)driver + names[i].offset, &symbol, sizeof symbol);
    }
    return true;
}

/* Once found, the driver stays loaded: no code unloads it. */
const tutti_cuda_driver *tutti_cuda_driver_get(bool load) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static tutti_cuda_driver functions;
    static _Atomic(const tutti_cuda_driver *) found; /* release: after the functions are filled in */
    const tutti_cuda_driver *driver = atomic_load_explicit(&found, memory_order_acquire);
    if (driver != NULL) return driver;
    pthread_mutex_lock(&lock);
    driver = atomic_load_explicit(&found, memory_order_relaxed);
    void *library = driver == NULL ? dlopen("libcuda.so.1", RTLD_LAZY | (load ? 0 : RTLD_NOLOAD)) : NULL;
    if (library != NULL && look_up(library, &functions)) {
        driver = &functions;
        atomic_store_explicit(&found, driver, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return driver;
}
