/*
 * libstandin_cuda.so: a module of GPUs without a GPU, for tests (TUTTI_CUDA_MODULE names it). It keeps to the
 * contract of kernels/device.h and is as unkind as CUDA may be: ordinary code that touches device memory crashes,
 * streams are late, copies of pageable memory and freeing wait for streams, kernels and events require the stream's
 * GPU, and after a failure in a stream every call fails.
 *
 * The host's own code does the computation. Results on it show nothing about speed or kernels/cuda.
 *
 *   STANDIN_GPUS=n            number of GPUs (2); STANDIN_IDS=a,a,b: equal ids are the same GPU; a/1,a/2: MIG
 *                             instances of one
 *   STANDIN_STREAM_WAITS=0    facts report that a host thread waits; STANDIN_IPC=0: memory cannot be exported;
 *                             STANDIN_MPS=0: processes take turns
 *   STANDIN_DELAY_US=n        a task begins up to n us late
 *   STANDIN_IN_ORDER=1        all streams of the process share one hardware queue: a task runs when all that were
 *                             enqueued before it, in whatever stream, have ended
 *   STANDIN_DEPTH=n           tasks that a stream holds (1000); a thread that enqueues one more waits
 *   STANDIN_FREE_ALONE=0      calls go on while a thread frees memory, waits for the GPU, or copies to pageable memory
 *                             behind work in a stream. Else such a thread blocks all other calls until the streams have
 *                             ended, except those that only choose a GPU for their thread
 *   STANDIN_FAIL=call:nth,... that call fails the nth time; "task" is the execution of a task in a stream
 */
#include "tests/support/standins/standin_cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"

/* Only in libstandin_training.so (emulated/training.c). */
extern const struct tutti_kernels tutti_cuda_kernels __attribute__((weak));
extern const struct tutti_operators tutti_cuda_operators __attribute__((weak));
extern void standin_training_start(const tutti_module_host *host, const tutti_device *device) __attribute__((weak));

const tutti_module_host *standin_host;
pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t standin_changed = PTHREAD_COND_INITIALIZER;

static struct {
    pid_t process;
    int gpus, delay_us, depth;
    char ids[STANDIN_MOST_GPUS][TUTTI_DEVICE_ID_BYTES];
    bool stream_waits, ipc, mps, free_alone, in_order;
    atomic_bool context, broken;
    char what[128]; /* why it failed; written before `broken` */
} standin;

static _Thread_local __attribute__((tls_model("initial-exec"))) int current_gpu;

/* ------------------------------------------------------------------------------------------------- faults */

/* Counts passes through each point that STANDIN_FAIL names. */
bool standin_fails(const char *name) {
    static atomic_int passes[8];
    const char *list = getenv("STANDIN_FAIL");
    size_t length = strlen(name);
    for (int i = 0; list != NULL && i < 8; i++) {
        if (strncmp(list, name, length) == 0 && list[length] == ':')
            return atomic_fetch_add(&passes[i], 1) + 1 == atoi(list + length + 1);
        list = strchr(list, ',');
        if (list != NULL) list++;
    }
    return false;
}

bool standin_is_broken(void) {
    return atomic_load_explicit(&standin.broken, memory_order_acquire);
}

void standin_break(const char *what) {
    pthread_mutex_lock(&standin_lock);
    if (!standin_is_broken()) snprintf(standin.what, sizeof standin.what, "%s", what);
    atomic_store_explicit(&standin.broken, true, memory_order_release);
    pthread_cond_broadcast(&standin_changed);
    pthread_mutex_unlock(&standin_lock);
}

bool standin_is_forked(void) {
    return getpid() != standin.process;
}

tutti_status standin_begin(const char *call) {
    if (standin_in_stream()) {
        fprintf(stderr, "stand-in: %s from within a stream\n", call);
        abort();
    }
    bool chooses = strcmp(call, "use") == 0 || strcmp(call, "current") == 0;
    if (standin.free_alone && !chooses) standin_wait_for_frees();
    if (standin_is_forked()) return standin_host->fail(TUTTI_ERR_FORKED, "stand-in: %s in a forked process", call);
    if (standin_is_broken())
        return standin_host->fail(TUTTI_ERR_SYSTEM, "stand-in: %s: an earlier failure: %s", call, standin.what);
    if (standin_fails(call))
        return standin_host->fail(TUTTI_ERR_SYSTEM, "stand-in: %s was made to fail (STANDIN_FAIL)", call);
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------------- GPUs */

void standin_make_context(void) {
    atomic_store_explicit(&standin.context, true, memory_order_release);
}

int standin_gpus(void) {
    return standin.gpus;
}

int standin_current(void) {
    return current_gpu;
}

void standin_set_current(int gpu) {
    current_gpu = gpu;
}

const char *standin_id(int gpu) {
    return standin.ids[gpu];
}

int standin_delay_us(void) {
    return standin.delay_us;
}

bool standin_in_order(void) {
    return standin.in_order;
}

int standin_depth(void) {
    return standin.depth;
}

static tutti_status check(void) {
    if (standin.gpus == 0 || standin_fails("check"))
        return standin_host->fail(TUTTI_ERR_UNSUPPORTED, "stand-in: no CUDA-capable device is detected");
    return TUTTI_OK;
}

static void describe(char *text, size_t capacity) {
    snprintf(text, capacity, "a stand-in without a GPU");
}

static tutti_status count(int *count_out) {
    STANDIN_BEGIN("count");
    *count_out = standin.gpus;
    return TUTTI_OK;
}

static tutti_status check_index(int device) {
    if (device >= 0 && device < standin.gpus) return TUTTI_OK;
    return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: GPU %d is out of range, of %d", device, standin.gpus);
}

/* The first GPU that is the same, or another instance of it. */
static int physical(int device) {
    size_t length = strcspn(standin.ids[device], "/");
    int first = 0;
    while (strcspn(standin.ids[first], "/") != length || memcmp(standin.ids[first], standin.ids[device], length) != 0)
        first++;
    return first;
}

static tutti_status facts(int device, tutti_device_facts *facts_out) {
    STANDIN_BEGIN("facts");
    TUTTI_TRY(check_index(device));
    tutti_device_facts facts = {.name = "stand-in",
                                .major = 9,
                                .memory_bytes = (size_t)1 << 30,
                                .processors = 2,
                                .stream_waits = standin.stream_waits,
                                .ipc = standin.ipc,
                                .mps = standin.mps};
    memcpy(facts.id, standin.ids[device], sizeof facts.id);
    snprintf(facts.pci, sizeof facts.pci, "0000:%02x:00.0", physical(device) + 1);
    *facts_out = facts;
    return TUTTI_OK;
}

static tutti_status use(int device) {
    STANDIN_BEGIN("use");
    TUTTI_TRY(check_index(device));
    current_gpu = device;
    standin_make_context();
    return TUTTI_OK;
}

static tutti_status current(int *device_out) {
    STANDIN_BEGIN("current");
    *device_out = current_gpu;
    return TUTTI_OK;
}

static void leave(int device) {
    current_gpu = device;
}

static bool in_use(void) {
    return atomic_load_explicit(&standin.context, memory_order_acquire);
}

/* --------------------------------------------------------------------------------------------- the module */

static int number(const char *name, int fallback) {
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : fallback;
}

/* GPUs without an id in the list have their number as id. */
static void read_settings(void) {
    int gpus = number("STANDIN_GPUS", 2);
    const char *ids = getenv("STANDIN_IDS");
    standin.process = getpid();
    standin.gpus = gpus > STANDIN_MOST_GPUS ? STANDIN_MOST_GPUS : gpus;
    standin.delay_us = number("STANDIN_DELAY_US", 0);
    standin.depth = number("STANDIN_DEPTH", 1000);
    standin.in_order = number("STANDIN_IN_ORDER", 0) != 0;
    standin.stream_waits = number("STANDIN_STREAM_WAITS", 1) != 0;
    standin.ipc = number("STANDIN_IPC", 1) != 0;
    standin.mps = number("STANDIN_MPS", 1) != 0;
    standin.free_alone = number("STANDIN_FREE_ALONE", 1) != 0;
    for (int i = 0; i < standin.gpus; i++) {
        int length = ids != NULL ? (int)strcspn(ids, ",") : 0;
        if (length > 0) snprintf(standin.ids[i], sizeof standin.ids[i], "id %.*s", length, ids);
        else snprintf(standin.ids[i], sizeof standin.ids[i], "gpu %d", i);
        if (ids != NULL) ids += length + (ids[length] == ',');
    }
}

STANDIN_EXPORT tutti_status tutti_module_start(const tutti_module_host *host, const tutti_module_calls **calls_out);

STANDIN_EXPORT tutti_status tutti_module_start(const tutti_module_host *host, const tutti_module_calls **calls_out) {
    static const tutti_cuda_module module = {
        .calls.version = TUTTI_MODULE_VERSION,
        .device = {.check = check,
                   .describe = describe,
                   .count = count,
                   .facts = facts,
                   .use = use,
                   .current = current,
                   .leave = leave,
                   .in_use = in_use,
                   .locate = standin_locate,
                   .alloc = standin_alloc,
                   .free = standin_free,
                   .alloc_pinned = standin_alloc_pinned,
                   .free_pinned = standin_free_pinned,
                   .pin = standin_pin,
                   .export_memory = standin_export_memory,
                   .import_memory = standin_import_memory,
                   .close_import = standin_close_import,
                   .stream_create = standin_stream_create,
                   .stream_destroy = standin_stream_destroy,
                   .stream_sync = standin_stream_sync,
                   .sync = standin_device_sync,
                   .stream_captures = standin_stream_captures,
                   .event_create = standin_event_create,
                   .event_destroy = standin_event_destroy,
                   .event_record = standin_event_record,
                   .event_query = standin_event_query,
                   .stream_wait_event = standin_stream_wait_event,
                   .copy = standin_copy,
                   .fill = standin_fill,
                   .wait_value = standin_wait_value,
                   .write_value = standin_write_value,
                   .use_values = standin_use_values,
                   .reduce = standin_reduce,
                   .copy_many = standin_copy_many,
                   .copy_counted = standin_copy_counted,
                   .copy_box = standin_copy_box},
        .kernels = &tutti_cuda_kernels,
        .operators = &tutti_cuda_operators,
    };
    standin_host = host;
    if (standin_training_start != NULL) standin_training_start(host, &module.device);
    read_settings();
    *calls_out = &module.calls;
    return TUTTI_OK;
}
