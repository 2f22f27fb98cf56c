/*
 * The cores that the ranks of this host may use. Their number decides whether waiters spin.
 */
#ifndef TUTTI_CPUS_H
#define TUTTI_CPUS_H

#include <stdint.h>

#define TUTTI_CORE_WORDS 16 /* 1024 cores; cores beyond are ignored */

/* One bit per core. */
typedef struct tutti_core_mask {
    uint64_t words[TUTTI_CORE_WORDS];
} tutti_core_mask;

/* The cores in this process's affinity mask. */
void tutti_cpus_allowed(tutti_core_mask *mask_out);
void tutti_cpus_add(tutti_core_mask *mask, const tutti_core_mask *other);
/* Number of cores of CPU time in this process's cgroup quota; a very large number if the quota is unlimited. */
int tutti_cpus_most(void);
/* Number of cores that processes with these masks may use together: bits set, at most `most`, at least 1;
 * TUTTI_CPUS overrides it. Equal on all ranks that pass equal arguments. */
int tutti_cpus_count(const tutti_core_mask *mask, int most);

#endif
