/*
 * The topology: from hwloc or /sys, restricted to the CPUs that this process may use, and counted.
 */
#include "bootstrap/machine/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"

static tutti_status read_hwloc(tutti_topology *topology_out) {
    static const char left_out[] = TUTTI_HWLOC_LEFT_OUT; /* why this build lacks the module; "": it is included */
    const tutti_module_calls *calls;
    if (left_out[0] != '\0') return tutti_fail(TUTTI_ERR_UNSUPPORTED, "not part of this build: %s", left_out);
    TUTTI_TRY(tutti_module_open("hwloc", &calls));
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
