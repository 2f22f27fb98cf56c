/*
 * Where this node's ranks run: which CPUs of a topology each of them gets.
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCH_PLACE_H
#define TUTTI_BOOTSTRAP_LAUNCH_PLACE_H

#include <tutti/tutti.h>

#include "bootstrap/machine/topology.h"

typedef enum tutti_launch_place {
    TUTTI_PLACE_NONE,      /* no rank is bound */
    TUTTI_PLACE_AUTO,      /* each rank its share of the cores; more ranks than cores: none is bound */
    TUTTI_PLACE_CORE,      /* one core each; more ranks than cores begin at the first core again */
    TUTTI_PLACE_CACHE,     /* all cores that share the last cache, where the rank's share begins */
    TUTTI_PLACE_NODE,      /* the whole NUMA node there */
    TUTTI_PLACE_PACKAGE,   /* the whole package there */
    TUTTI_PLACE_EXCLUSIVE, /* as NODE, but the node's cores are split among its ranks */
    TUTTI_PLACE_COMPLEX    /* the ranks of a node take its last caches in turn, those with most CPUs first */
} tutti_launch_place;

/* A rank's CPUs, topology->cpus[first..first+count); none: it is not bound. */
typedef struct tutti_place_range {
    int first, count;
} tutti_place_range;

/* Fills in ranges_out[0..nranks). `nodes`, where it is not NULL, says near which NUMA node each rank must be (that of
 * its GPU); else a rank is where its share of all cores begins. TUTTI_ERR_ARGUMENT when a place cannot be had. */
tutti_status tutti_place_ranks(const tutti_topology *topology, tutti_launch_place place, int nranks, const int *nodes,
                               tutti_place_range *ranges_out);

#endif
