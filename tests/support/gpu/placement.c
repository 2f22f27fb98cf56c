/*
 * Ranks on stand-ins of GPUs. See placement.h.
 */
#include "tests/support/gpu/placement.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/gpu/stream.h"
#include "tests/support/reference.h"

enum { MOST_RANKS = 16, MOST_SETTINGS = 16 };

/* Returns the next rank's GPU: a letter, and the digits of its instance. Length 0: there are no more ranks. */
static int next_gpu(const char *gpus) {
    return *gpus == '\0' ? 0 : 1 + (int)strspn(gpus + 1, "0123456789");
}

const int *placement_gpus(const char *gpus) {
    static int numbers[MOST_RANKS];
    const char *starts[MOST_RANKS];
    int lengths[MOST_RANKS], count = 0;
    for (int rank = 0; (lengths[rank] = next_gpu(gpus)) > 0 && rank < MOST_RANKS - 1; gpus += lengths[rank], rank++) {
        int same = 0;
        starts[rank] = gpus;
        while (lengths[same] != lengths[rank] || memcmp(starts[same], gpus, (size_t)lengths[rank]) != 0) same++;
        numbers[rank] = same < rank ? numbers[same] : count++;
    }
    return numbers;
}

/* Writes "STANDIN_IDS=a/1,a/2"; returns the number of ranks. */
static int write_ids(const char *gpus, char *text, size_t capacity) {
    int nranks = 0;
    size_t used = (size_t)snprintf(text, capacity, "STANDIN_IDS=");
    for (int length; (length = next_gpu(gpus)) > 0; gpus += length, nranks++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%c%s%.*s", nranks > 0 ? "," : "", *gpus,
                                 length > 1 ? "/" : "", length - 1, gpus + 1);
    return nranks;
}

static void set(const char *setting) {
    char name[64];
    const char *equals = strchr(setting, '=');
    snprintf(name, sizeof name, "%.*s", (int)(equals - setting), setting);
    setenv(name, equals + 1, 1);
}

const char *placement_run(const char *gpus, ranks_kind kind, const char *const *settings, ranks_body body) {
    char ids[128], count[32];
    const char *environment[MOST_SETTINGS + 3] = {ids, count};
    int nranks = write_ids(gpus, ids, sizeof ids), n = 2;
    snprintf(count, sizeof count, "STANDIN_GPUS=%d", nranks);
    for (int i = 0; settings != NULL && settings[i] != NULL && n < MOST_SETTINGS; i++) environment[n++] = settings[i];
    for (int i = 0; i < n; i++) set(environment[i]);
    tutti_settings_reload();
    reference_set_hosts(placement_gpus(gpus));
    return ranks_run(&(ranks_options){.kind = kind, .nranks = nranks, .timeout_s = 120, .environment = environment},
                     body);
}

tutti_status placement_with_rank(ranks_context *context, const char *engine,
                                 tutti_status (*body)(ranks_context *context, cuda_rank *rank)) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)4 << 20, &rank));
    TUTTI_TRY(body(context, &rank));
    const char *used = context->comm->cuda.streams->engine->name;
    RANKS_CHECK(strcmp(used, engine) == 0, "\"%s\" did it, not \"%s\"", used, engine);
    return cuda_rank_close(&rank, context->comm);
}

tutti_status placement_capture(tutti_stream stream, bool captures) {
    void (*capture)(void *stream, bool captures);
    void *module = dlopen(getenv("TUTTI_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = module != NULL ? dlsym(module, "standin_capture") : NULL;
    RANKS_CHECK(symbol != NULL, "no standin_capture");
    memcpy(&capture, &symbol, sizeof capture);
    capture(stream, captures);
    return TUTTI_OK;
}
