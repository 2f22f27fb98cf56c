/*
 * Host name, processor, memory and launchers, from the system and the environment.
 */
#include "bench/report/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define GIB ((size_t)1 << 30)

/* The rest of the first line of `path` that begins with `key`, after the colon; "" if there is none. */
static void read_field(const char *path, const char *key, char *value_out, size_t capacity) {
    char line[512];
    value_out[0] = '\0';
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    while (value_out[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, key, strlen(key)) != 0) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(value_out, capacity, "%s", colon);
    }
    fclose(file);
}

void bench_machine_describe(int rank, int group, int local_rank, bench_device *device_out) {
    *device_out = (bench_device){
        .rank = rank, .group = group, .pid = (int)getpid(), .index = local_rank, .address = "0000:00:00"};
    gethostname(device_out->host, sizeof device_out->host - 1);
    device_out->host[strcspn(device_out->host, ".")] = '\0';
    read_field("/proc/cpuinfo", "model name", device_out->name, sizeof device_out->name);
    struct utsname system;
    if (device_out->name[0] == '\0' && uname(&system) == 0)
        snprintf(device_out->name, sizeof device_out->name, "%s", system.machine);
}

/* Memory of the machine, or of the container if that has less. */
size_t bench_machine_memory_bytes(void) {
    size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    unsigned long long limit;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "re");
    if (file == NULL) return bytes;
    if (fscanf(file, "%llu", &limit) == 1 && limit < bytes) bytes = (size_t)limit;
    fclose(file);
    return bytes;
}

size_t bench_machine_buffer_bytes(size_t all, int ranks, int buffers) {
    size_t reserve = (all + 16 * GIB - 1) / (16 * GIB) * GIB;
    reserve = (reserve < 4 * GIB ? reserve : 4 * GIB) + GIB;
    size_t usable = all > 2 * reserve ? all - reserve : all / 2;
    return usable / (size_t)buffers / (size_t)ranks;
}

const char *bench_machine_foreign_launcher(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS",
                                            "HOROVOD_SIZE"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *text = getenv(variables[i]);
        if (text != NULL && atoi(text) > 1) return variables[i];
    }
    return NULL;
}
