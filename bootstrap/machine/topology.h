/*
 * The CPUs that this process may use, and which of them share a core, a cache, a NUMA node or a package.
 *
 * The topology is read with hwloc, through a module (modules/hwloc.c), or else from /sys, which describes unusual
 * machines less completely. The CPUs are in the machine's order: the CPUs of a core are adjacent, as are the cores
 * that share a cache, the caches of a NUMA node and the nodes of a package. Each of these is therefore a range of
 * the array.
 */
#ifndef TUTTI_BOOTSTRAP_TOPOLOGY_H
#define TUTTI_BOOTSTRAP_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include <tutti/tutti.h>

#include "bootstrap/machine/module.h"

/* One CPU as numbered by the system: a hardware thread. Equal numbers denote the same object. */
typedef struct tutti_topology_cpu {
    int cpu;         /* the system's number */
    int core, cache; /* cache: the last level before memory; without caches all CPUs of the node share a number */
    int node;        /* the system's number of the NUMA node */
    int package;
} tutti_topology_cpu;

typedef struct tutti_topology {
    int ncpus;
    tutti_topology_cpu *cpus;
    int ncores, ncaches, nnodes, npackages;
    int cache_level;     /* 3: `cache` is an L3; 0: no cache is known */
    bool foreign;        /* hwloc describes another machine (HWLOC_SYNTHETIC, HWLOC_XMLFILE): CPUs must not be bound */
    char source[64];     /* "hwloc 2.9.0" or "/sys" */
    char no_hwloc[1024]; /* why hwloc was not used; "": it was used */
} tutti_topology;

/* The module's table. `read` fills in all members that hwloc provides, for all CPUs of the machine. */
typedef struct tutti_topology_module {
    tutti_module_calls head;
    tutti_status (*read)(tutti_topology *topology_out);
} tutti_topology_module;

/* Reads the part of the machine that this thread's affinity mask allows. Free it with tutti_topology_free. */
tutti_status tutti_topology_read(tutti_topology *topology_out);
void tutti_topology_free(tutti_topology *topology);

/* An affinity mask for more CPUs than cpu_set_t holds; for the CPU_..._S macros, with sizeof. */
enum { TUTTI_TOPOLOGY_MOST_CPUS = 8192 };
typedef struct tutti_topology_mask {
    cpu_set_t sets[TUTTI_TOPOLOGY_MOST_CPUS / CPU_SETSIZE];
} tutti_topology_mask;

/* The mask of cpus[0..count). */
void tutti_topology_mask_of(const tutti_topology_cpu *cpus, int count, tutti_topology_mask *mask_out);
/* Writes cpus[0..count) as "0-3,8". */
void tutti_topology_list(const tutti_topology_cpu *cpus, int count, char *text, size_t capacity);

/* For topology.c and tests: reads the CPUs in `allowed` from /sys under `root` ("" or a folder). */
tutti_status tutti_topology_read_sys(const char *root, const tutti_topology_mask *allowed,
                                     tutti_topology *topology_out);

#endif
