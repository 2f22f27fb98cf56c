/*
 * The topology with hwloc: libtutti_hwloc.so, opened by topology.c.
 *
 * hwloc's logical order of the processing units is the machine's order that topology.h requires. Cores and packages
 * have hwloc's logical numbers, NUMA nodes the system's; a cache, which may be of any level, has its number among
 * all objects.
 */
#include <hwloc.h>
#include <stdio.h>

#include "bootstrap/machine/topology.h"

static const tutti_module_host *host;

/* Returns the NUMA node nearest to the unit. Memory is attached beside the tree of cores, possibly behind a cache
 * of its own; if several kinds are attached at one place, the first is ordinary memory. */
static int node_of(hwloc_obj_t unit) {
    for (hwloc_obj_t at = unit; at != NULL; at = at->parent) {
        hwloc_obj_t memory = at->memory_first_child;
        while (memory != NULL && memory->type != HWLOC_OBJ_NUMANODE) memory = memory->memory_first_child;
        if (memory != NULL) return (int)memory->os_index;
    }
    return 0;
}

/* Returns the logical number of the core or package that contains the unit; `fallback` if there is none. */
static int ancestor(hwloc_topology_t tree, hwloc_obj_t unit, hwloc_obj_type_t type, int fallback) {
    hwloc_obj_t object = hwloc_get_ancestor_obj_by_type(tree, type, unit);
    return object != NULL ? (int)object->logical_index : fallback;
}

/* Returns the outermost data cache above the unit; NULL: none. */
static hwloc_obj_t last_cache(hwloc_obj_t unit) {
    hwloc_obj_t cache = NULL;
    for (hwloc_obj_t at = unit; at != NULL; at = at->parent)
        if (hwloc_obj_type_is_dcache(at->type)) cache = at;
    return cache;
}

static void fill(hwloc_topology_t tree, tutti_topology *topology) {
    for (int i = 0; i < topology->ncpus; i++) {
        hwloc_obj_t unit = hwloc_get_obj_by_type(tree, HWLOC_OBJ_PU, (unsigned)i), cache = last_cache(unit);
        tutti_topology_cpu *item = &topology->cpus[i];
        item->cpu = (int)unit->os_index;
        item->core = ancestor(tree, unit, HWLOC_OBJ_CORE, -1 - i);
        item->node = node_of(unit);
        item->package = ancestor(tree, unit, HWLOC_OBJ_PACKAGE, 0);
        item->cache = cache != NULL ? (int)cache->gp_index : -1 - item->node;
        int level = cache != NULL ? (int)cache->attr->cache.depth : 0;
        if (level > topology->cache_level) topology->cache_level = level;
    }
}

static tutti_status read_topology(tutti_topology *topology_out) {
    hwloc_topology_t tree;
    unsigned version = hwloc_get_api_version();
    if (version >> 16 != HWLOC_API_VERSION >> 16)
        return host->fail(TUTTI_ERR_UNSUPPORTED, "built with hwloc %u, found hwloc %u", HWLOC_API_VERSION >> 16,
                          version >> 16);
    if (hwloc_topology_init(&tree) != 0) return host->fail(TUTTI_ERR_SYSTEM, "hwloc_topology_init failed");
#if HWLOC_API_VERSION >= 0x00020500
    hwloc_topology_set_flags(
        tree, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING); /* reading must not move the thread to other CPUs */
#endif
    if (hwloc_topology_load(tree) != 0) {
        hwloc_topology_destroy(tree);
        return host->fail(TUTTI_ERR_SYSTEM, "hwloc cannot read this machine's topology");
    }
    int ncpus = hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_PU);
    tutti_status status = host->calloc((size_t)ncpus, sizeof *topology_out->cpus, &topology_out->cpus);
    if (status == TUTTI_OK) {
        topology_out->ncpus = ncpus;
        topology_out->foreign = !hwloc_topology_is_thissystem(tree);
        snprintf(topology_out->source, sizeof topology_out->source, "hwloc %u.%u", version >> 16, version >> 8 & 255);
        fill(tree, topology_out);
    }
    hwloc_topology_destroy(tree);
    return status;
}

tutti_status tutti_module_start(const tutti_module_host *caller, const tutti_module_calls **calls_out) {
    static const tutti_topology_module calls = {.head.version = TUTTI_MODULE_VERSION, .read = read_topology};
    if (caller->version == TUTTI_MODULE_VERSION)
        host = caller; /* otherwise the caller sees the version mismatch and calls nothing */
    *calls_out = &calls.head;
    return TUTTI_OK;
}
