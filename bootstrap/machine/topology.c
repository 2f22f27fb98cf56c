/*
 * The topology: from hwloc or /sys, restricted to the CPUs that this process may use, and counted.
 */
#include "bootstrap/machine/topology.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"

/* ------------------------------------------------------------------------------------------------ without hwloc
 * From the files of each CPU in /sys/devices/system/cpu/cpu<n>/. A core and a cache are numbered by their lowest CPU.
 * If files are missing, as in some virtual machines, each CPU is a core of its own, and all CPUs share the rest.
 */

enum { MOST_CACHES = 16, PATH_BYTES = 512 };

/* Reads the first line of <root>/sys/devices/system/cpu/cpu<n>/<name>; returns false when it cannot be read. */
static bool read_text(const char *root, int cpu, const char *name, char *text, int capacity) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/%s", root, cpu, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    bool good = fgets(text, capacity, file) != NULL;
    fclose(file);
    return good;
}

/* Reads the number at the start of the file; for a list like "2-3,8" that is the lowest one. */
static bool read_number(const char *root, int cpu, const char *name, int *number_out) {
    char text[32];
    int number;
    if (!read_text(root, cpu, name, text, sizeof text) || sscanf(text, "%d", &number) != 1) return false;
    *number_out = number;
    return true;
}

/* Returns the NUMA node of the CPU: the folder has an entry "node<number>". */
static int read_node(const char *root, int cpu) {
    char path[PATH_BYTES];
    int node = 0;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d", root, cpu);
    DIR *folder = opendir(path);
    if (folder == NULL) return 0;
    for (struct dirent *item; (item = readdir(folder)) != NULL;)
        if (sscanf(item->d_name, "node%d", &node) == 1) break;
    closedir(folder);
    return node;
}

/* Finds the cache of the highest level; returns its level, or 0 for none. */
static int read_cache(const char *root, int cpu, int *cache_out) {
    int highest = 0;
    for (int i = 0; i < MOST_CACHES; i++) {
        char name[64], kind[32];
        int level, first;
        snprintf(name, sizeof name, "cache/index%d/type", i);
        if (!read_text(root, cpu, name, kind, sizeof kind)) break;
        if (strncmp(kind, "Instruction", strlen("Instruction")) == 0) continue;
        snprintf(name, sizeof name, "cache/index%d/level", i);
        if (!read_number(root, cpu, name, &level) || level <= highest) continue;
        snprintf(name, sizeof name, "cache/index%d/shared_cpu_list", i);
        if (!read_number(root, cpu, name, &first)) continue;
        highest = level;
        *cache_out = first;
    }
    return highest;
}

static int by_place(const void *a, const void *b) {
    const tutti_topology_cpu *x = a, *y = b;
    const int order[][2] = {
        {x->package, y->package}, {x->node, y->node}, {x->cache, y->cache}, {x->core, y->core}, {x->cpu, y->cpu}};
    for (size_t i = 0; i < TUTTI_COUNT_OF(order); i++)
        if (order[i][0] != order[i][1]) return order[i][0] < order[i][1] ? -1 : 1;
    return 0;
}

tutti_status tutti_topology_read_sys(const char *root, const tutti_topology_mask *allowed,
                                     tutti_topology *topology_out) {
    size_t most = (size_t)CPU_COUNT_S(sizeof *allowed, allowed->sets);
    snprintf(topology_out->source, sizeof topology_out->source, "/sys");
    TUTTI_TRY(tutti_calloc(most, sizeof *topology_out->cpus, &topology_out->cpus));
    for (int cpu = 0; cpu < TUTTI_TOPOLOGY_MOST_CPUS; cpu++) {
        if (!CPU_ISSET_S(cpu, sizeof *allowed, allowed->sets)) continue;
        tutti_topology_cpu *item = &topology_out->cpus[topology_out->ncpus++];
        *item = (tutti_topology_cpu){.cpu = cpu, .core = cpu, .node = read_node(root, cpu)};
        item->cache = -1 - item->node;
        read_number(root, cpu, "topology/physical_package_id", &item->package);
        read_number(root, cpu, "topology/thread_siblings_list", &item->core);
        int level = read_cache(root, cpu, &item->cache);
        if (level > topology_out->cache_level) topology_out->cache_level = level;
    }
    qsort(topology_out->cpus, (size_t)topology_out->ncpus, sizeof *topology_out->cpus, by_place);
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------------- the topology */

static tutti_status read_hwloc(tutti_topology *topology_out) {
    const tutti_module_calls *calls;
    TUTTI_TRY(tutti_module_open("hwloc", TUTTI_HWLOC_LEFT_OUT, &calls));
    return ((const tutti_topology_module *)calls)->read(topology_out);
}

/* Removes the CPUs that are not in `allowed`; the order stays. */
static void restrict_to(tutti_topology *topology, const tutti_topology_mask *allowed) {
    int kept = 0;
    for (int i = 0; i < topology->ncpus; i++) {
        int cpu = topology->cpus[i].cpu;
        if (cpu < TUTTI_TOPOLOGY_MOST_CPUS && CPU_ISSET_S(cpu, sizeof *allowed, allowed->sets))
            topology->cpus[kept++] = topology->cpus[i];
    }
    topology->ncpus = kept;
}

/* Each domain is a range, so it is counted at its first CPU. */
static void count_domains(tutti_topology *topology) {
    topology->ncores = topology->ncaches = topology->nnodes = topology->npackages = 0;
    for (int i = 0; i < topology->ncpus; i++) {
        const tutti_topology_cpu *here = &topology->cpus[i], *before = i > 0 ? here - 1 : NULL;
        topology->ncores += before == NULL || before->core != here->core;
        topology->ncaches += before == NULL || before->cache != here->cache;
        topology->nnodes += before == NULL || before->node != here->node;
        topology->npackages += before == NULL || before->package != here->package;
    }
}

tutti_status tutti_topology_read(tutti_topology *topology_out) {
    tutti_topology topology = {0};
    tutti_topology_mask allowed;
    if (sched_getaffinity(0, sizeof allowed, allowed.sets) != 0)
        return tutti_fail_errno(errno, "cannot read which CPUs this process may use");
    if (read_hwloc(&topology) != TUTTI_OK) {
        snprintf(topology.no_hwloc, sizeof topology.no_hwloc, "%s", tutti_last_error());
        TUTTI_TRY(tutti_topology_read_sys("", &allowed, &topology));
    }
    if (!topology.foreign) restrict_to(&topology, &allowed);
    if (topology.ncpus == 0) {
        tutti_topology_free(&topology);
        return tutti_fail(TUTTI_ERR_SYSTEM, "%s describes none of the CPUs that this process may use", topology.source);
    }
    count_domains(&topology);
    *topology_out = topology;
    return TUTTI_OK;
}

void tutti_topology_free(tutti_topology *topology) {
    free(topology->cpus);
    topology->cpus = NULL;
    topology->ncpus = 0;
}

void tutti_topology_mask_of(const tutti_topology_cpu *cpus, int count, tutti_topology_mask *mask_out) {
    CPU_ZERO_S(sizeof *mask_out, mask_out->sets);
    for (int i = 0; i < count; i++)
        if (cpus[i].cpu < TUTTI_TOPOLOGY_MOST_CPUS) CPU_SET_S(cpus[i].cpu, sizeof *mask_out, mask_out->sets);
}

void tutti_topology_list(const tutti_topology_cpu *cpus, int count, char *text, size_t capacity) {
    tutti_topology_mask mask;
    size_t used = 0;
    tutti_topology_mask_of(cpus, count, &mask);
    text[0] = '\0';
    for (int cpu = 0; cpu < TUTTI_TOPOLOGY_MOST_CPUS && used < capacity; cpu++) {
        if (!CPU_ISSET_S(cpu, sizeof mask, mask.sets)) continue;
        int last = cpu;
        while (last + 1 < TUTTI_TOPOLOGY_MOST_CPUS && CPU_ISSET_S(last + 1, sizeof mask, mask.sets)) last++;
        used += (size_t)snprintf(text + used, capacity - used, last > cpu ? "%s%d-%d" : "%s%d", used > 0 ? "," : "",
                                 cpu, last);
        cpu = last;
    }
}
