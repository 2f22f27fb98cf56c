/*
 * The meeting: see meeting.h. Everything in the page starts as zero and only counts up.
 */
#include "meeting.h"

#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LINE 64

typedef struct meeting_page {
    _Alignas(LINE) uint64_t arrived; /* calls of meeting_wait() by all ranks together */
    _Alignas(LINE) uint32_t turn;    /* odd: rank 1's turn in meeting_distance() */
    struct {
        _Alignas(LINE) double value;
    } of[MEETING_RANKS];
    struct {
        _Alignas(LINE) uint64_t step;
    } entered[MEETING_RANKS];
} meeting_page;

double meeting_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* ---------------------------------------------------------------------------------------- cores */

static int core_count(void) {
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static void pin(int rank) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(rank % core_count(), &set);
    sched_setaffinity(0, sizeof set, &set);
}

void meeting_pin_early(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = getenv(names[i]);
        if (rank == NULL) continue;
        pin(atoi(rank));
        return;
    }
}

/* -------------------------------------------------------------------------------------- meeting */

int meeting_open(meeting *m, const char *path, int rank, int size, int pinned) {
    *m = (meeting){.rank = rank, .size = size, .pinned = pinned, .crowded = size > core_count()};
    int file = size <= MEETING_RANKS ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *memory = mmap(NULL, sizeof(meeting_page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (memory != MAP_FAILED) m->page = memory;
    }
    if (m->page != NULL) return 0;
    fprintf(stderr, "meeting: cannot map %s, or %d ranks are more than %d\n", path, size, MEETING_RANKS);
    return -1;
}

void meeting_wait(meeting *m) {
    uint64_t all = ++m->times * (uint64_t)m->size;
    __atomic_fetch_add(&m->page->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&m->page->arrived, __ATOMIC_ACQUIRE) < all) {
        if (m->crowded) sched_yield();
        else relax();
    }
}

static double gather_value(meeting *m, double value, int sum) {
    m->page->of[m->rank].value = value;
    meeting_wait(m);
    double result = 0;
    for (int rank = 0; rank < m->size; rank++) {
        double other = m->page->of[rank].value;
        if (sum) result += other;
        else if (other > result) result = other;
    }
    meeting_wait(m);
    return result;
}

double meeting_most(meeting *m, double value) {
    return gather_value(m, value, 0);
}

double meeting_sum(meeting *m, double value) {
    return gather_value(m, value, 1);
}

/* Ranks 0 and 1 pass one line back and forth; the best of several rounds counts. */
double meeting_distance(meeting *m) {
    uint32_t side = (uint32_t)m->rank;
    double best = 1e9;
    cpu_set_t before;
    if (core_count() < 2 || m->size < 2) return 0;
    sched_getaffinity(0, sizeof before, &before);
    if (!m->pinned) pin(m->rank);
    meeting_wait(m);
    for (int round = 0; round < 20 && side < 2; round++) {
        double start = meeting_now_ns();
        for (int i = 0; i < 100; i++) {
            while (__atomic_load_n(&m->page->turn, __ATOMIC_ACQUIRE) % 2 != side) relax();
            __atomic_fetch_add(&m->page->turn, 1, __ATOMIC_ACQ_REL);
        }
        double each = (meeting_now_ns() - start) / 200;
        if (each < best) best = each;
    }
    meeting_wait(m);
    sched_setaffinity(0, sizeof before, &before);
    return meeting_most(m, side < 2 ? best : 0);
}

double meeting_pace(meeting *m) {
    double best = 1e9;
    if (m->crowded) return 0;
    for (int round = 0; round < 2; round++) {
        double start = meeting_now_ns();
        for (int i = 0; i < 100; i++) syscall(SYS_getppid); /* glibc's function might not enter the kernel */
        double each = (meeting_now_ns() - start) / 100;
        if (each < best) best = each;
    }
    return meeting_most(m, best);
}

void meeting_enter(meeting *m, uint64_t step) {
    __atomic_store_n(&m->page->entered[m->rank].step, step, __ATOMIC_RELEASE);
}

uint64_t meeting_entered(const meeting *m, int rank) {
    return __atomic_load_n(&m->page->entered[rank].step, __ATOMIC_ACQUIRE);
}
