/*
 * Where the ranks of a comparison meet, outside the library that is measured: a page of a file that all of them map.
 * Barrier, largest value or sum of all ranks, the way of a cache line between two cores, binding to cores.
 */
#ifndef BENCH_PEERS_MEETING_H
#define BENCH_PEERS_MEETING_H

#include <stdint.h>

#define MEETING_RANKS 256 /* at most */

typedef struct meeting {
    int rank, size;
    int pinned;  /* to core (rank mod cores) */
    int crowded; /* more ranks than cores: a rank that waits yields */
    uint64_t times;
    struct meeting_page *page;
} meeting;

/* Binds this process to core (rank mod cores), the rank being the one that its launcher put into the environment. */
void meeting_pin_early(void);

/* `path`: a file of zeros, at least 64 KiB, that all ranks name. 0, or -1 with a line on stderr. */
int meeting_open(meeting *m, const char *path, int rank, int size, int pinned);

/* Waits until all ranks are here. */
void meeting_wait(meeting *m);

/* On every rank: the largest value of all ranks (at least 0), or their sum. */
double meeting_most(meeting *m, double value);
double meeting_sum(meeting *m, double value);

/* Time of a cache line from rank 0's core to rank 1's in nanoseconds, on every rank; 0 with one rank or core. */
double meeting_distance(meeting *m);

/* How fast the cores are just now: nanoseconds of a system call on the slowest of the ranks' cores, on every
 * rank; 0 where ranks share cores. */
double meeting_pace(meeting *m);

/* The step that a rank has reached, for callers that check whether all ranks have reached it. */
void meeting_enter(meeting *m, uint64_t step);
uint64_t meeting_entered(const meeting *m, int rank);

double meeting_now_ns(void);

#endif
