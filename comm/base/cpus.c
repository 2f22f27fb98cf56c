/*
 * Affinity masks, and the cpu.max limits (cgroup version 2) of this process's group and all groups above it.
 */
#include "comm/base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/settings.h"

#define MOST_CORES (64 * TUTTI_CORE_WORDS)

void tutti_cpus_allowed(tutti_core_mask *mask_out) {
    cpu_set_t set;
    memset(mask_out, 0, sizeof *mask_out);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (int core = 0; core < MOST_CORES && core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set)) mask_out->words[core / 64] |= UINT64_C(1) << (core % 64);
}

void tutti_cpus_add(tutti_core_mask *mask, const tutti_core_mask *other) {
    for (int i = 0; i < TUTTI_CORE_WORDS; i++) mask->words[i] |= other->words[i];
}

/* Number of cores that one cpu.max file allows, rounded up; MOST_CORES if it sets no limit. */
static int quota_of(const char *directory) {
    char path[4200];
    long long quota, period;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", directory);
    FILE *file = fopen(path, "re");
    if (file == NULL) return MOST_CORES;
    int fields = fscanf(file, "%lld %lld", &quota, &period);
    fclose(file);
    if (fields != 2 || quota <= 0 || period <= 0) return MOST_CORES;
    long long cores = (quota + period - 1) / period;
    return cores < MOST_CORES ? (int)cores : MOST_CORES;
}

static int cgroup_quota(void) {
    char line[4096], *directory = NULL;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file == NULL) return MOST_CORES;
    while (directory == NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "0::", 3) == 0) directory = line + 3;
    fclose(file);
    if (directory == NULL) return MOST_CORES;
    directory[strcspn(directory, "\n")] = '\0';
    int least = MOST_CORES;
    for (;;) {
        int quota = quota_of(strcmp(directory, "/") == 0 ? "" : directory);
        if (quota < least) least = quota;
        char *slash = strrchr(directory, '/');
        if (slash == NULL) return least;
        *slash = '\0';
    }
}

int tutti_cpus_most(void) {
    return cgroup_quota();
}

int tutti_cpus_count(const tutti_core_mask *mask, int most) {
    int set = (int)tutti_setting_int(TUTTI_SETTING_CPUS), cores = 0;
    if (set > 0) return set;
    for (int i = 0; i < TUTTI_CORE_WORDS; i++) cores += __builtin_popcountll(mask->words[i]);
    if (cores > most) cores = most;
    return cores > 0 ? cores : 1;
}
