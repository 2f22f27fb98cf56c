/*
 * Which cores the ranks of this host may use: it decides whether waiters spin.
 */
#ifndef TUTTI_CPUS_H
#define TUTTI_CPUS_H

#include <stdint.h>

#define TUTTI_CORE_WORDS 16 /* 1024 cores; more count as none */

/* One bit per core. */
typedef struct tutti_core_mask {
    uint64_t words[TUTTI_CORE_WORDS];
} tutti_core_mask;

/* The cores in this process's affinity mask. */
void tutti_cpus_allowed(tutti_core_mask *mask_out);
void tutti_cpus_add(tutti_core_mask *mask, const tutti_core_mask *other);
/* Cores' worth of time that this process's cgroup may use; very many when it sets no limit. */
int tutti_cpus_most(void);
/* Number of cores that processes with these masks may use together: bits, at most `most`; TUTTI_CPUS overrides. At least
 * 1. The same on all ranks that give the same. */
int tutti_cpus_count(const tutti_core_mask *mask, int most);

#endif
