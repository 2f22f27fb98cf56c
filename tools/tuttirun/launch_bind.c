/*
 * Binding of ranks to cores: --bind and --numa-binding.
 *
 * All cores in tuttirun's own affinity mask are divided among the ranks (launch_place.c), so taskset or numactl
 * around tuttirun limit them. Each rank then binds itself between fork and exec. Memory needs no binding: Linux
 * allocates a page on the NUMA node of the core that touches it first.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/machine/gpus.h"
#include "tools/tuttirun/launch.h"

/* --------------------------------------------------------------------------------------------- options */

typedef struct choice {
    const char *name;
    tutti_launch_place place;
} choice;

static const choice binds[] = {{"auto", TUTTI_PLACE_AUTO}, {"none", TUTTI_PLACE_NONE}, {"core", TUTTI_PLACE_CORE},
                               {"l3", TUTTI_PLACE_CACHE},  {"numa", TUTTI_PLACE_NODE}, {"socket", TUTTI_PLACE_PACKAGE}};
static const choice numa_bindings[] = {{"node", TUTTI_PLACE_NODE},
                                       {"socket", TUTTI_PLACE_PACKAGE},
                                       {"exclusive", TUTTI_PLACE_EXCLUSIVE},
                                       {"core-complex", TUTTI_PLACE_COMPLEX}};

static tutti_status choose(const char *option, const char *name, const choice *choices, size_t count,
                           tutti_launch_place *place_out) {
    char names[128] = "";
    for (size_t i = 0, used = 0; i < count; i++) {
        if (strcmp(choices[i].name, name) == 0) {
            *place_out = choices[i].place;
            return TUTTI_OK;
        }
        const char *gap = i == 0 ? "" : i + 1 < count ? ", " : " or ";
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", gap, choices[i].name);
    }
    return tutti_fail(TUTTI_ERR_ARGUMENT, "%s %s: must be %s", option, name, names);
}

tutti_status tutti_launch_bind_parse(tutti_launch_options *options) {
    const char *near_gpu = options->numa_binding, *bind = options->bind;
    if (near_gpu != NULL && bind != NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--bind and --numa-binding exclude each other");
    options->near_gpus = near_gpu != NULL;
    if (near_gpu != NULL)
        return choose("--numa-binding", near_gpu, numa_bindings, TUTTI_COUNT_OF(numa_bindings), &options->place);
    return choose("--bind", bind != NULL ? bind : "auto", binds, TUTTI_COUNT_OF(binds), &options->place);
}

/* ------------------------------------------------------------------------------------------------ GPUs */

/* NUMA node of a PCI device; -1 in the file means that the machine has only one. */
static bool read_device_node(const char *root, const char *address, int *node_out) {
    char path[512];
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/numa_node", root, address);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    bool good = fscanf(file, "%d", node_out) == 1;
    fclose(file);
    if (good && *node_out < 0) *node_out = 0;
    return good;
}

bool tutti_launch_gpu_nodes(const char *root, const char *visible, int nranks, int *nodes_out) {
    char address[TUTTI_GPU_ADDRESS_BYTES];
    for (int rank = 0; rank < nranks; rank++)
        if (!tutti_gpus_address(root, visible, rank, address) || !read_device_node(root, address, &nodes_out[rank]))
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------ plan */

static void log_plan(const tutti_launch_options *options, const tutti_launch_binding *binding) {
    const tutti_topology *topology = &binding->topology;
    if (topology->no_hwloc[0] != '\0')
        tutti_log(TUTTI_LOG_DEBUG, "topology from %s, without hwloc: %s", topology->source, topology->no_hwloc);
    for (int i = 0; i < options->nproc; i++) {
        tutti_place_range range = binding->ranges[i];
        char list[512];
        if (range.count == 0) continue;
        tutti_topology_list(&topology->cpus[range.first], range.count, list, sizeof list);
        tutti_log(TUTTI_LOG_INFO, "rank %d runs on CPUs %s (NUMA node %d, package %d, by %s)",
                  tutti_launch_rank_of(options, i), list, topology->cpus[range.first].node,
                  topology->cpus[range.first].package, topology->source);
    }
    if (binding->ranges[0].count == 0)
        tutti_log(TUTTI_LOG_INFO, "ranks are not bound to cores: %d ranks, %d cores", options->nproc, topology->ncores);
}

/* The GPUs of the ranks, as in CUDA_VISIBLE_DEVICES; a rank table gives their numbers on the host. */
static const char *list_gpus(const tutti_launch_options *options, char *text, size_t capacity) {
    size_t used = 0;
    if (options->entries == NULL) return getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; i < options->nproc && used < capacity; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%d", i > 0 ? "," : "", options->entries[i].device);
    return text;
}

static tutti_status place_ranks(const tutti_launch_options *options, tutti_launch_binding *binding) {
    int *gpu_nodes = NULL;
    char gpus[256];
    tutti_status status = TUTTI_OK;
    TUTTI_TRY(tutti_topology_read(&binding->topology));
    if (binding->topology.foreign)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "cannot bind ranks: hwloc is configured for another machine; if it is this one, "
                          "set HWLOC_THISSYSTEM=1");
    TUTTI_TRY(tutti_calloc((size_t)options->nproc, sizeof *binding->ranges, &binding->ranges));
    TUTTI_TRY(tutti_calloc((size_t)options->nproc, sizeof *gpu_nodes, &gpu_nodes));
    bool near = options->near_gpus &&
                tutti_launch_gpu_nodes("", list_gpus(options, gpus, sizeof gpus), options->nproc, gpu_nodes);
    status =
        tutti_place_ranks(&binding->topology, options->place, options->nproc, near ? gpu_nodes : NULL, binding->ranges);
    free(gpu_nodes);
    return status;
}

tutti_status tutti_launch_bind_plan(const tutti_launch_options *options, tutti_launch_binding *binding_out) {
    tutti_launch_binding binding = {0};
    bool automatic = options->place == TUTTI_PLACE_AUTO;
    *binding_out = binding;
    if (options->place == TUTTI_PLACE_NONE || (automatic && options->nproc == 1))
        return TUTTI_OK; /* its share is all cores */
    tutti_status status = place_ranks(options, &binding);
    if (status == TUTTI_OK) {
        log_plan(options, &binding);
        *binding_out = binding;
        return TUTTI_OK;
    }
    tutti_launch_bind_free(&binding);
    if (!automatic) return status;
    tutti_log(TUTTI_LOG_INFO, "ranks are not bound to cores: %s", tutti_last_error());
    return TUTTI_OK; /* the user did not ask for binding */
}

void tutti_launch_bind_free(tutti_launch_binding *binding) {
    tutti_topology_free(&binding->topology);
    free(binding->ranges);
    binding->ranges = NULL;
}

void tutti_launch_bind_self(const tutti_launch_binding *binding, int local_rank) {
    static const char words[] = "tuttirun: cannot bind a rank to its cores; it runs unbound\n";
    tutti_topology_mask mask;
    if (binding->ranges == NULL || binding->ranges[local_rank].count == 0) return;
    const tutti_place_range *range = &binding->ranges[local_rank];
    tutti_topology_mask_of(&binding->topology.cpus[range->first], range->count, &mask);
    if (sched_setaffinity(0, sizeof mask, mask.sets) == 0) return;
    ssize_t written = write(STDERR_FILENO, words, sizeof words - 1); /* the allowed cores have changed meanwhile */
    (void)written;
}
