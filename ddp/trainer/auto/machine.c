/*
 * Names of processors and GPUs.
 */
#include "ddp/trainer/auto/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"

static void name_processor(const tutti_calibration *calibration, char *text, size_t bytes) {
    char line[256], processor[128] = "unknown";
    tutti_comm_details details = {.host_ranks = 0};
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "model name : %127[^\n]", processor) == 1) break;
    if (file != NULL) fclose(file);
    (void)tutti_comm_get(calibration->comm, &details);
    snprintf(text, bytes, "%s, %d ranks on %d cores, %s", processor, details.host_ranks, details.host_cores,
             calibration->compute->kernels->name);
}

/* The number of ranks on the GPU with the most of them. Collective. */
static tutti_status count_sharers(tutti_comm *comm, const tutti_device_facts *facts, int *most_out) {
    const size_t nranks = (size_t)tutti_comm_size(comm), bytes = sizeof facts->id;
    uint8_t *ids = malloc(nranks * bytes);
    if (ids == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the names of %zu GPUs", nranks);
    const tutti_status status = tutti_all_gather(comm, facts->id, ids, bytes, TUTTI_UINT8, NULL);
    *most_out = 0;
    for (size_t i = 0; i < nranks && status == TUTTI_OK; i++) {
        int same = 0;
        for (size_t other = 0; other < nranks; other++)
            same += memcmp(ids + i * bytes, ids + other * bytes, bytes) == 0;
        if (same > *most_out) *most_out = same;
    }
    free(ids);
    return status;
}

static tutti_status name_gpu(const tutti_calibration *calibration, char *text, size_t bytes) {
    const tutti_device *device = NULL;
    tutti_device_facts facts;
    int gpu = 0, sharers;
    TUTTI_TRY(tutti_device_open(&device));
    TUTTI_TRY(device->current(&gpu));
    TUTTI_TRY(device->facts(gpu, &facts));
    TUTTI_TRY(count_sharers(calibration->comm, &facts, &sharers));
    snprintf(text, bytes, "%s with %d multiprocessors, %s, up to %d ranks on a GPU, %s", facts.name, facts.processors,
             calibration->precision != NULL ? calibration->precision : "fp32", sharers,
             calibration->compute->kernels->name);
    return TUTTI_OK;
}

tutti_status tutti_machine_name(const tutti_calibration *calibration, char *text, size_t bytes) {
    if (calibration->compute->kernels->memory != TUTTI_MEMORY_HOST) return name_gpu(calibration, text, bytes);
    name_processor(calibration, text, bytes);
    return TUTTI_OK;
}
