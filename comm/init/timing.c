/*
 * The times of a startup. See timing.h.
 */
#include "comm/init/timing.h"

#include <stdio.h>
#include <string.h>

#include "bootstrap/base/deadline.h"

static const char *const names[TUTTI_TIMING_PHASES] = {
    [TUTTI_TIMING_LAUNCHER] = "launcher",     [TUTTI_TIMING_STORE] = "store",
    [TUTTI_TIMING_MEMORY] = "memory",         [TUTTI_TIMING_PEER_TABLE] = "peer table",
    [TUTTI_TIMING_LOCAL] = "local bootstrap", [TUTTI_TIMING_ADDRESSES] = "addresses",
    [TUTTI_TIMING_MEETING] = "meeting",
};

static TUTTI_THREAD_LOCAL struct {
    int64_t last_ns;
    int64_t phase_ns[TUTTI_TIMING_PHASES];
} watch;

void tutti_timing_begin(void) {
    memset(&watch, 0, sizeof watch);
    watch.last_ns = tutti_now_ns();
}

void tutti_timing_over(tutti_timing_phase phase) {
    int64_t now_ns = tutti_now_ns();
    watch.phase_ns[phase] += now_ns - watch.last_ns;
    watch.last_ns = now_ns;
}

void tutti_timing_store(tutti_shm_member *member) {
    memcpy(member->phase_ns, watch.phase_ns, sizeof watch.phase_ns);
}

/* The longest time of a phase among the host's ranks. All ranks share the first barrier, so the times of other
 * ranks do not contain it yet. */
static int64_t longest(const tutti_shm_segment *segment, int nmembers, int phase) {
    int64_t most_ns = watch.phase_ns[phase];
    for (int local_rank = 0; local_rank < nmembers; local_rank++) {
        int64_t ns = tutti_shm_segment_member(segment, local_rank)->phase_ns[phase];
        if (ns > most_ns) most_ns = ns;
    }
    return most_ns;
}

void tutti_timing_log(const char *name, int nranks, int nhosts, const tutti_shm_segment *segment, int nmembers) {
    char text[512];
    size_t used = 0;
    int64_t total_ns = 0;
    text[0] = '\0';
    for (int phase = 0; phase < TUTTI_TIMING_PHASES; phase++) {
        int64_t own_ns = watch.phase_ns[phase], most_ns = longest(segment, nmembers, phase);
        total_ns += own_ns;
        if (most_ns == 0) continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "; %s %.1f", names[phase], (double)own_ns / 1e6);
        if (most_ns > own_ns + own_ns / 2 + TUTTI_NS_PER_MS)
            used += (size_t)snprintf(text + used, sizeof text - used, " (slowest %.1f)", (double)most_ns / 1e6);
    }
    tutti_log(TUTTI_LOG_INFO, "communicator \"%s\" of %d ranks on %d host%s is ready after %.1f ms%s", name, nranks,
              nhosts, nhosts > 1 ? "s" : "", (double)total_ns / 1e6, text);
}
