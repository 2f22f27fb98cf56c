/*
 * Is there a core to spare for moving buckets?
 *
 * Ranks tell each other their machine (its boot id), the cores in their affinity mask, the quota in the cpu.max at the
 * root of the cgroup file system that they see, and TUTTI_CPUS. A machine has cores to spare when the union of its
 * ranks' masks, cut to the smallest quota, or else what TUTTI_CPUS says, holds two for each rank. Where a rank cannot
 * tell its cores, the answer is no: buckets that travel inside finish() cost some overlap, a stolen core costs more.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/ddp_state.h"

#define MASK_WORDS (sizeof(cpu_set_t) / sizeof(uint64_t))

/* Exchanged as words. */
typedef struct core_record {
    uint64_t machine[5]; /* text of the boot id, 36 characters */
    uint64_t quota;      /* in cores; 0: none */
    uint64_t told;       /* TUTTI_CPUS; 0: not set */
    uint64_t mask[MASK_WORDS];
} core_record;

/* Cores' worth of quota, rounded up; 0 for none. */
static uint64_t read_quota(void) {
    long long quota, period;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!file) return 0;
    const int fields = fscanf(file, "%lld %lld", &quota, &period);
    fclose(file);
    return fields == 2 && quota > 0 && period > 0 ? (uint64_t)((quota + period - 1) / period) : 0;
}

static uint64_t read_told(void) {
    const char *text = getenv("TUTTI_CPUS");
    const long told = text ? strtol(text, NULL, 10) : 0;
    return told > 0 ? (uint64_t)told : 0;
}

static void fill_record(core_record *record) {
    memset(record, 0, sizeof *record);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        char text[sizeof record->machine] = "";
        if (fgets(text, sizeof text, file)) memcpy(record->machine, text, sizeof text);
        fclose(file);
    }
    record->quota = read_quota();
    record->told = read_told();
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) memcpy(record->mask, &set, sizeof record->mask);
}

static bool same_machine(const core_record *a, const core_record *b) {
    return memcmp(a->machine, b->machine, sizeof a->machine) == 0;
}

static uint64_t smaller_known(uint64_t a, uint64_t b) {
    return a == 0 || (b != 0 && b < a) ? b : a;
}

/* Has the machine of rank `first`, which is its lowest rank, two cores for each of its ranks? */
static bool machine_has_spare(const core_record *records, int nranks, int first) {
    uint64_t mask[MASK_WORDS] = {0}, cores = 0, local_ranks = 0, quota = 0, told = 0;
    for (int rank = first; rank < nranks; rank++) {
        const core_record *record = &records[rank];
        if (!same_machine(record, &records[first])) continue;
        local_ranks++;
        for (size_t i = 0; i < MASK_WORDS; i++) mask[i] |= record->mask[i];
        quota = smaller_known(quota, record->quota);
        told = smaller_known(told, record->told);
    }
    for (size_t i = 0; i < MASK_WORDS; i++) cores += (uint64_t)__builtin_popcountll(mask[i]);
    if (quota > 0 && quota < cores) cores = quota;
    if (told > 0) cores = told;
    return cores >= 2 * local_ranks;
}

static bool all_machines_have_spare(const core_record *records, int nranks) {
    for (int rank = 0; rank < nranks; rank++) {
        bool lowest = true;
        for (int other = 0; other < rank && lowest; other++) lowest = !same_machine(&records[other], &records[rank]);
        if (lowest && !machine_has_spare(records, nranks, rank)) return false;
    }
    return true;
}

tutti_status tutti_ddp_cores_to_spare(tutti_comm *comm, bool *spare_out) {
    const int nranks = tutti_comm_size(comm);
    core_record own, *records = calloc((size_t)nranks, sizeof *records);
    if (!records) return tutti_fail(TUTTI_ERR_MEMORY, "tutti_ddp_create: no memory for %d records", nranks);
    fill_record(&own);
    const tutti_status status =
        tutti_all_gather(comm, &own, records, sizeof own / sizeof(uint64_t), TUTTI_UINT64, NULL);
    if (status == TUTTI_OK) *spare_out = all_machines_have_spare(records, nranks);
    free(records);
    return status;
}
