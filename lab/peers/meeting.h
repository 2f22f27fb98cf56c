/*
 * The place where the ranks of a comparison meet, outside the measured library: a page of a file that all of them
 * map. Barrier, maximum or sum over all ranks, transfer time of a cache line between two cores, binding to cores.
 */
#ifndef BENCH_PEERS_MEETING_H
#define BENCH_PEERS_MEETING_H

#include <stdint.h>

#define MEETING_RANKS 256 /* at most */

typedef struct meeting {
    int rank, size;
    int pinned;  /* bound to core (rank mod cores) */
    int crowded; /* more ranks than cores: a rank that waits yields */
    uint64_t times;
    struct meeting_page *page;
} meeting;

/* Binds this process to core (rank mod cores), with the rank that the launcher put into the environment. */
void meeting_pin_early(void);

/* `path`: a file of zeros, at least 64 KiB, the same on all ranks. Returns 0, or -1 after a line on stderr. */
int meeting_open(meeting *m, const char *path, int rank, int size, int pinned);

/* Waits until all ranks are here. */
void meeting_wait(meeting *m);

/* Every rank gets the largest value of all ranks (at least 0), or their sum. */
double meeting_most(meeting *m, double value);
double meeting_sum(meeting *m, double value);

/* The transfer time of a cache line from rank 0's core to rank 1's in ns, on every rank; 0 with one rank or core. */
double meeting_distance(meeting *m);

/* The current speed of the cores: nanoseconds of a system call on the slowest of the ranks' cores, on every rank; 0
 * if ranks share cores. */
double meeting_pace(meeting *m);

/* Records the step that this rank has reached, for callers that check whether all ranks have reached it. */
void meeting_enter(meeting *m, uint64_t step);
uint64_t meeting_entered(const meeting *m, int rank);

double meeting_now_ns(void);

#endif
