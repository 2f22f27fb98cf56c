/*
 * Opens the module of the GPUs, and finds out cheaply whether this process uses a GPU.
 *
 * Any pointer that a caller passes may be a CUDA pointer, and asking CUDA costs some 100 ns, so callers first ask
 * whether there is a context at all. Processes that never use a GPU must get that answer in some ns, and it must
 * never be a stale no: host code that touches device memory crashes. A no stays valid for at most the time that it
 * takes to make a context: loading the driver's library and making a context take tens of ms at least, so a no is
 * checked again at each tick of the system's coarse clock, 10 ms at most. A process that has opened the module
 * through this table can have a context sooner, so there the module is asked each time.
 *
 * Invariant: in_use never loads the driver's library and never starts it (cuInit): both would be new to this process,
 * and a process that forks after cuInit has children that cannot use a GPU.
 */
#include "kernels/device.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"

typedef enum answer { UNKNOWN, YES, NO } answer;

/* Written under the lock. */
static struct {
    answer loaded, works;                      /* is the module in this process? was its check good? */
    tutti_error reason;                        /* the error where either is NO */
    _Atomic(const tutti_cuda_module *) module; /* pairs: stored with release when loaded becomes YES */
    atomic_bool opened;                        /* by tutti_device_open, or a call for the kernels or operators */
} state;

/* State of tutti_device_in_use, on a cache line that all callers read and that is rarely written. */
static struct {
    _Atomic(const tutti_device *) device; /* set once there has been a context */
    _Atomic int64_t looked;               /* the clock tick at which the answer was last found to be no */
    _Atomic unsigned long long loads;     /* libraries loaded by the last search, which found no driver; 0: none yet */
} TUTTI_ALIGNED_LINE use;

/* --------------------------------------------------------------------------------------------- the module */

static tutti_status load_module(const tutti_module_calls **calls_out) {
    static const char left_out[] = TUTTI_CUDA_LEFT_OUT; /* why this build has no such module; "": it has one */
    const char *file = tutti_setting_text(TUTTI_SETTING_CUDA_MODULE);
    if (file[0] != '\0') return tutti_module_open_file(file, calls_out);
    if (left_out[0] != '\0')
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "the module cuda, for GPUs, is not in this build: %s; fix that, then build and install again",
                          left_out);
    return tutti_module_open("cuda", /* left_out */ "", calls_out);
}

/* The caller holds the lock. The first answer is kept, with its error text. */
static tutti_status load(void) {
    const tutti_module_calls *calls = NULL;
    if (state.loaded == YES) return TUTTI_OK;
    if (state.loaded == UNKNOWN) {
        tutti_status status = load_module(&calls);
        if (status == TUTTI_OK) {
            atomic_store_explicit(&state.module, (const tutti_cuda_module *)(const void *)calls, memory_order_release);
            state.loaded = YES;
            return TUTTI_OK;
        }
        state.reason = tutti_fail_save();
        state.loaded = NO;
    }
    return tutti_fail_again(TUTTI_ERR_UNSUPPORTED, &state.reason);
}

/* The caller holds the lock. */
static tutti_status check(const tutti_cuda_module *module) {
    if (state.works == YES) return TUTTI_OK;
    if (state.works == UNKNOWN) {
        state.works = module->device.check() == TUTTI_OK ? YES : NO;
        if (state.works == YES) return TUTTI_OK;
        state.reason = tutti_fail_save();
    }
    return tutti_fail_again(TUTTI_ERR_UNSUPPORTED, &state.reason);
}

static tutti_status open_module(const tutti_cuda_module **module_out) {
    tutti_lock(TUTTI_LOCK_DEVICE);
    tutti_status status = load();
    const tutti_cuda_module *module = atomic_load_explicit(&state.module, memory_order_relaxed);
    if (status == TUTTI_OK) status = check(module);
    if (status == TUTTI_OK) atomic_store_explicit(&state.opened, true, memory_order_release);
    tutti_unlock(TUTTI_LOCK_DEVICE);
    if (status == TUTTI_OK) *module_out = module;
    return status;
}

__thread __attribute__((tls_model("initial-exec"))) bool tutti_device_captures;

tutti_status tutti_device_open(const tutti_device **device_out) {
    const tutti_cuda_module *module = NULL;
    TUTTI_TRY(open_module(&module));
    *device_out = &module->device;
    return TUTTI_OK;
}

tutti_status tutti_device_kernels(const struct tutti_kernels **kernels_out) {
    const tutti_cuda_module *module = NULL;
    TUTTI_TRY(open_module(&module));
    if (module->kernels == NULL)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "the CUDA module has no kernels for training");
    *kernels_out = module->kernels;
    return TUTTI_OK;
}

tutti_status tutti_device_operators(const struct tutti_operators **operators_out) {
    const tutti_cuda_module *module = NULL;
    TUTTI_TRY(open_module(&module));
    if (module->operators == NULL)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "the CUDA module has no kernels for operators: it was built "
                                                 "without cuBLAS's headers, or without the trainer");
    *operators_out = module->operators;
    return TUTTI_OK;
}

/* Returns the index of the GPU with this device_id on the host among those in CUDA_VISIBLE_DEVICES; -1 if it is not
 * there or cannot be determined, as with UUIDs. */
static int find_visible(const char *visible, int device_id) {
    int index = 0;
    for (const char *next = visible; *next != '\0'; index++) {
        char *end;
        const long number = strtol(next, &end, 10);
        if (end == next || (*end != ',' && *end != '\0') || number < 0) return -1; /* CUDA ends the list here, too */
        if (number == device_id) return index;
        next = *end == ',' ? end + 1 : end;
    }
    return -1;
}

/* Chooses the GPU of the device_id that a rank table gives this rank, else the one of this rank's place on the
 * host. */
static tutti_status choose_by_rank(int count, int *device_out) {
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    tutti_world world;
    TUTTI_TRY(tutti_world_get(&world));
    const int device_id = world.device;
    const int index = device_id < 0 || visible == NULL ? device_id : find_visible(visible, device_id);
    *device_out = (world.local_rank >= 0 ? world.local_rank : world.rank) % count;
    if (index >= 0 && index < count) *device_out = index;
    else if (device_id >= 0 && !atomic_flag_test_and_set(&logged))
        tutti_log(
            TUTTI_LOG_WARN,
            "the rank table's device_id %d is not among the %d GPUs that this process sees%s%.200s: the rank uses "
            "GPU %d, by its place on the host; set TUTTI_DEVICE to choose another",
            device_id, count, visible != NULL ? ", CUDA_VISIBLE_DEVICES=" : "", visible != NULL ? visible : "",
            *device_out);
    return TUTTI_OK;
}

tutti_status tutti_device_choose(int *device_out) {
    const tutti_device *device = NULL;
    bool by_rank = strcmp(tutti_setting_text(TUTTI_SETTING_DEVICE), "auto") == 0;
    int count = 0, chosen = (int)tutti_setting_int(TUTTI_SETTING_DEVICE);
    TUTTI_TRY(tutti_device_open(&device));
    TUTTI_TRY(device->count(&count));
    if (!by_rank && chosen >= count)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "TUTTI_DEVICE=%d is out of range: this process sees %d GPU%s; see CUDA_VISIBLE_DEVICES",
                          chosen, count, count == 1 ? "" : "s");
    if (by_rank) TUTTI_TRY(choose_by_rank(count, &chosen));
    *device_out = chosen;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- in use */

static int count_loads(struct dl_phdr_info *info, size_t bytes, void *loads_out) {
    (void)bytes;
    *(unsigned long long *)loads_out = info->dlpi_adds;
    return 1; /* the count is the same for every library */
}

/* True if PyTorch, a runtime linked into the program, or the program itself has loaded the driver's library. A search
 * takes 20 us, so the function searches only if a library has been loaded since the last search. */
static bool driver_is_loaded(void) {
    unsigned long long loads = 0;
    dl_iterate_phdr(count_loads, &loads);
    if (loads != 0 && loads == atomic_load_explicit(&use.loads, memory_order_relaxed)) return false;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver != NULL) dlclose(driver);
    else atomic_store_explicit(&use.loads, loads, memory_order_relaxed);
    return driver != NULL;
}

/* Returns the module if this process may be using CUDA. A driver without a module is not an error: most processes
 * in which a driver is loaded pass only host memory. */
static const tutti_cuda_module *module_to_ask(void) {
    const tutti_cuda_module *module = atomic_load_explicit(&state.module, memory_order_acquire);
    if (module != NULL || !driver_is_loaded()) return module;
    tutti_lock(TUTTI_LOCK_DEVICE);
    bool first = state.loaded == UNKNOWN;
    if (load() != TUTTI_OK && first)
        tutti_log(TUTTI_LOG_INFO, "the CUDA driver is loaded, but GPU memory is not recognised: %s", state.reason.text);
    tutti_unlock(TUTTI_LOCK_DEVICE);
    return atomic_load_explicit(&state.module, memory_order_acquire);
}

__attribute__((noinline)) static const tutti_device *look(int64_t now) {
    atomic_store_explicit(&use.looked, now, memory_order_relaxed);
    const tutti_cuda_module *module = module_to_ask();
    if (module == NULL || !module->device.in_use()) return NULL;
    atomic_store_explicit(&use.device, &module->device, memory_order_release);
    return &module->device;
}

const tutti_device *tutti_device_in_use_at(int64_t coarse_now_ns) {
    const tutti_device *device = atomic_load_explicit(&use.device, memory_order_acquire);
    if (device != NULL) return device;
    bool fresh = coarse_now_ns == atomic_load_explicit(&use.looked, memory_order_relaxed);
    if (TUTTI_LIKELY(fresh && !atomic_load_explicit(&state.opened, memory_order_acquire))) return NULL;
    return look(coarse_now_ns);
}

const tutti_device *tutti_device_in_use(void) {
    return tutti_device_in_use_at(tutti_coarse_now_ns());
}
