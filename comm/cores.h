/*
 * Which cores the ranks of this host may use: it decides whether waiters spin.
 */
#ifndef TUTTI_CORES_H
#define TUTTI_CORES_H

#include <stdint.h>

#define TUTTI_CORE_WORDS 16 /* 1024 cores; more count as none */

/* One bit per core. */
typedef struct tutti_core_mask {
    uint64_t words[TUTTI_CORE_WORDS];
} tutti_core_mask;

/* The cores in this process's affinity mask. */
void tutti_cores_allowed(tutti_core_mask *mask_out);
void tutti_cores_join(tutti_core_mask *mask, const tutti_core_mask *other);
/* Number of cores that processes with these masks may use together: bits, bounded by the cgroup's quota of this
 * process; TUTTI_CPUS overrides. At least 1. */
int tutti_cores_count(const tutti_core_mask *mask);

#endif
