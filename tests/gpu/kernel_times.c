/*
 * Records a program's GPU activity: time and number of each kernel, and the GPUs of its contexts. The driver loads
 * this library into any program if CUDA_INJECTION64_PATH names it, and CUPTI reports all finished activities, nodes
 * of graphs included.
 *
 * Lines are written to TUTTI_KERNEL_TIMES.PID at the end, contexts at once:
 *
 *   context <tab> GPU
 *   kernel <tab> ns of all calls <tab> calls <tab> start of the first <tab> start of the last <tab> blocks and name
 *
 * tests/gpu/check compiles it if CUPTI is installed, and tests/gpu/kernel_times.py reads its output.
 */
#include <cupti.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record;
typedef CUpti_ActivityMemcpy6 copy_record;
#else
typedef CUpti_ActivityKernel9 kernel_record;
typedef CUpti_ActivityMemcpy5 copy_record;
#endif
typedef CUpti_ActivityMemset4 fill_record;

enum { BUFFER_BYTES = 4 << 20, MOST_NAMES = 1000, MOST_BYTES = 4096 };

typedef struct row {
    char *name;
    uint64_t ns, calls, first, last;
} row;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static row rows[MOST_NAMES]; /* protected by the lock, as is everything below */
static int nrows;

static FILE *open_output(void) {
    char path[4096];
    const char *prefix = getenv("TUTTI_KERNEL_TIMES");
    if (prefix == NULL) return NULL;
    snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
    return fopen(path, "a");
}

/* Under the lock. */
static row *find_row(const char *name) {
    for (int i = 0; i < nrows; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    if (nrows == MOST_NAMES) return NULL;
    rows[nrows] = (row){.name = strdup(name), .first = UINT64_MAX};
    return &rows[nrows++];
}

static void add(const char *name, uint64_t start, uint64_t end) {
    pthread_mutex_lock(&lock);
    row *r = find_row(name);
    if (r != NULL) {
        r->ns += end - start;
        r->calls++;
        if (start < r->first) r->first = start;
        if (start > r->last) r->last = start;
    }
    pthread_mutex_unlock(&lock);
}

static void take(const CUpti_Activity *record) {
    const void *whole = record;
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const kernel_record *kernel = whole;
        char name[MOST_BYTES];
        snprintf(name, sizeof name, "%" PRId32 "x%" PRId32 " %s", kernel->gridX, kernel->gridY,
                 kernel->name != NULL ? kernel->name : "?");
        add(name, kernel->start, kernel->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const copy_record *copy = whole;
        add("[copy]", copy->start, copy->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const fill_record *fill = whole;
        add("[fill]", fill->start, fill->end);
    }
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *most_records) {
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *size = *buffer != NULL ? BUFFER_BYTES : 0;
    *most_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)size;
    while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) take(record);
    free(buffer);
}

static void CUPTIAPI note_context(void *nothing, CUpti_CallbackDomain domain, CUpti_CallbackId what, const void *data) {
    const CUpti_ResourceData *resource = data;
    uint32_t gpu = 0;
    (void)nothing;
    if (domain != CUPTI_CB_DOMAIN_RESOURCE || what != CUPTI_CBID_RESOURCE_CONTEXT_CREATED) return;
    FILE *output = open_output();
    if (output == NULL) return;
    if (cuptiGetDeviceId(resource->context, &gpu) == CUPTI_SUCCESS) fprintf(output, "context\t%" PRIu32 "\n", gpu);
    else fprintf(output, "context\t?\n");
    fclose(output);
}

static void write_rows(void) {
    (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    FILE *output = open_output();
    if (output == NULL) return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < nrows; i++)
        fprintf(output, "kernel\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\n", rows[i].ns, rows[i].calls,
                rows[i].first, rows[i].last, rows[i].name);
    pthread_mutex_unlock(&lock);
    fclose(output);
}

static int check(CUptiResult result, const char *what) {
    const char *text = "unknown error";
    if (result == CUPTI_SUCCESS) return 1;
    (void)cuptiGetResultString(result, &text);
    fprintf(stderr, "kernel_times: %s: %s\n", what, text);
    return 0;
}

/* The driver calls it. */
int InitializeInjection(void);

int InitializeInjection(void) {
    CUpti_SubscriberHandle subscriber;
    if (check(cuptiSubscribe(&subscriber, note_context, NULL), "cuptiSubscribe"))
        check(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED),
              "cuptiEnableCallback");
    if (getenv("TUTTI_KERNEL_TIMES_CONTEXTS") != NULL) return 1; /* only these */
    if (!check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks")) return 1;
    check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "tracing kernels");
    check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY), "tracing copies");
    check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET), "tracing fills");
    atexit(write_rows);
    return 1;
}
