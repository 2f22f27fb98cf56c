/*
 * Placement of the ranks of this node: the CPUs of a topology that each of them gets.
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCH_PLACE_H
#define TUTTI_BOOTSTRAP_LAUNCH_PLACE_H

#include <tutti/tutti.h>

#include "bootstrap/machine/topology.h"

typedef enum tutti_launch_place {
    TUTTI_PLACE_NONE,      /* no rank is bound */
    TUTTI_PLACE_AUTO,      /* each rank gets its share of the cores; with more ranks than cores none is bound */
    TUTTI_PLACE_CORE,      /* one core each; with more ranks than cores they start at the first core again */
    TUTTI_PLACE_CACHE,     /* all cores that share the last-level cache at the start of the share of the rank */
    TUTTI_PLACE_NODE,      /* the whole NUMA node at that core */
    TUTTI_PLACE_PACKAGE,   /* the whole package at that core */
    TUTTI_PLACE_EXCLUSIVE, /* like NODE, but the cores of the node are divided among its ranks */
    /* the ranks of a node take its last-level caches in turn, those with the most CPUs first */
    TUTTI_PLACE_COMPLEX
} tutti_launch_place;

/* CPUs of a rank, topology->cpus[first..first+count); count 0: not bound. */
typedef struct tutti_place_range {
    int first, count;
} tutti_place_range;

/* Fills in ranges_out[0..nranks). If `nodes` is not NULL, it holds the NUMA node that each rank must be near (that
 * of its GPU); else a rank is placed where its share of all cores starts. Fails with TUTTI_ERR_ARGUMENT if a
 * placement is not possible. */
tutti_status tutti_place_ranks(const tutti_topology *topology, tutti_launch_place place, int nranks, const int *nodes,
                               tutti_place_range *ranges_out);

#endif
