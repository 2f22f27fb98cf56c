/*
 * The timing core: see core.h.
 *
 * A row is the median over samples of the slowest rank's mean time. Each operation is timed by itself, from the
 * moment when all ranks are ready; rewriting and reading the buffers lies outside, but its effect on the caches
 * inside. The way of a cache line between the cores of ranks 0 and 1 is measured before and after each row.
 */
#include "core.h"

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LINE           64
#define MOST_RANKS     64
#define MOST_SAMPLES   64
#define ITERATIONS_MAX 10000
enum { COLLECTIVE = 3, SIZES, SAMPLES, SAMPLE_MS, PIN, MEMORY, ARGUMENTS };

/* Lies in the file that all ranks map; zero at the start. */
typedef struct meeting {
    _Alignas(LINE) uint64_t arrived; /* how often ranks have come to meet(), all together */
    _Alignas(LINE) uint32_t turn;    /* odd: rank 1's turn in measure_distance() */
    struct {
        _Alignas(LINE) double value;
    } of[MOST_RANKS];
    struct {
        _Alignas(LINE) uint64_t step;
    } entered[MOST_RANKS]; /* the barrier that a rank has come to */
} meeting;

/* One row's work. */
typedef struct job {
    const core_peer *peer;
    meeting *shared;
    uint64_t meetings; /* that this rank has been to */
    uint64_t step;     /* operations so far; changes the data */
    int collective, in_place, crowded, pinned;
    size_t count, src_count, dst_count;
    float *src, *dst;
    double wrong;
} job;

static const char *const collective_names[CORE_COLLECTIVES] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier", "ping_pong"};

static double now_ns(void) {
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

void core_start(int argc, char **argv) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"};
    if (argc != ARGUMENTS || strcmp(argv[PIN], "pin") != 0) return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = getenv(names[i]);
        if (rank == NULL) continue;
        pin(atoi(rank));
        return;
    }
}

const char *core_memory(int argc, char **argv) {
    return argc == ARGUMENTS ? argv[MEMORY] : "malloc";
}

/* -------------------------------------------------------------------------------------- meeting */

/* Waits until all ranks are here. */
static void meet(job *j) {
    uint64_t all = ++j->meetings * (uint64_t)j->peer->size;
    __atomic_fetch_add(&j->shared->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&j->shared->arrived, __ATOMIC_ACQUIRE) < all) {
        if (j->crowded) sched_yield();
        else relax();
    }
}

/* The largest value (or the sum) of all ranks, on every rank. */
static double gather_value(job *j, double value, int sum) {
    j->shared->of[j->peer->rank].value = value;
    meet(j);
    double result = 0;
    for (int rank = 0; rank < j->peer->size; rank++) {
        double other = j->shared->of[rank].value;
        if (sum) result += other;
        else if (other > result) result = other;
    }
    meet(j);
    return result;
}

/* Ranks 0 and 1 throw one line to and fro; the best of several rounds, one way, on every rank. */
static double measure_distance(job *j) {
    uint32_t side = (uint32_t)j->peer->rank;
    double best = 1e9;
    cpu_set_t before;
    if (core_count() < 2 || j->peer->size < 2) return 0;
    sched_getaffinity(0, sizeof before, &before);
    if (!j->pinned) pin(j->peer->rank);
    meet(j);
    for (int round = 0; round < 20 && side < 2; round++) {
        double start = now_ns();
        for (int i = 0; i < 100; i++) {
            while (__atomic_load_n(&j->shared->turn, __ATOMIC_ACQUIRE) % 2 != side) relax();
            __atomic_fetch_add(&j->shared->turn, 1, __ATOMIC_ACQ_REL);
        }
        double each = (now_ns() - start) / 200;
        if (each < best) best = each;
    }
    meet(j);
    sched_setaffinity(0, sizeof before, &before);
    return gather_value(j, side < 2 ? best : 0, 0);
}

/* ----------------------------------------------------------------------------------------- data */

/* Element i of a rank's data: a hash of i, so that no piece looks like another one, plus an offset by rank and step.
 * All are whole and sums stay far below 2^24: exact in float32. */
static float hash(size_t i) {
    return (float)(int32_t)(((uint32_t)i * 2654435761u) >> 24);
}

static float offset(const job *j, int rank) {
    return (float)(3 * rank + (int)(j->step % 16));
}

static void fill(float *data, size_t count, float add) {
    for (size_t i = 0; i < count; i++) data[i] = hash(i) + add;
}

static size_t count_wrong(const float *data, size_t count, size_t first, float times, float add) {
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) wrong += data[i] != times * hash(first + i) + add;
    return wrong;
}

static void write_input(job *j) {
    float add = offset(j, j->peer->rank);
    if (j->collective == CORE_BARRIER) return;
    if (j->collective != CORE_BROADCAST) fill(j->src, j->src_count, add);
    else if (j->peer->rank == 0) fill(j->dst, j->count, add);
}

/* Elements of the result that are not what they should be. */
static size_t read_result(const job *j) {
    int rank = j->peer->rank, size = j->peer->size;
    float sum = 0;
    size_t wrong = 0, mine = (size_t)rank * j->count;
    for (int other = 0; other < size; other++) sum += offset(j, other);
    switch (j->collective) {
    case CORE_ALL_REDUCE: return count_wrong(j->dst, j->count, 0, (float)size, sum);
    case CORE_REDUCE_SCATTER:
        return count_wrong(j->dst + (j->in_place && j->peer->slice_stays ? mine : 0), j->count, mine, (float)size, sum);
    case CORE_BROADCAST: return count_wrong(j->dst, j->count, 0, 1, offset(j, 0));
    case CORE_PING_PONG: return count_wrong(j->dst, j->count, 0, 1, offset(j, rank ^ 1));
    case CORE_BARRIER:
        for (int other = 0; other < size; other++)
            wrong += __atomic_load_n(&j->shared->entered[other].step, __ATOMIC_ACQUIRE) < j->step;
        return wrong;
    default:
        for (int other = 0; other < size; other++)
            wrong += count_wrong(j->dst + (size_t)other * j->count, j->count,
                                 j->collective == CORE_ALL_TO_ALL ? mine : 0, 1, offset(j, other));
        return wrong;
    }
}

static void set_counts(job *j, size_t bytes) {
    size_t elements = bytes / sizeof(float), ranks = (size_t)j->peer->size;
    int sliced =
        j->collective == CORE_ALL_GATHER || j->collective == CORE_REDUCE_SCATTER || j->collective == CORE_ALL_TO_ALL;
    j->count = sliced ? elements / ranks : elements;
    if (j->count == 0) j->count = 1;
    j->src_count = sliced && j->collective != CORE_ALL_GATHER ? j->count * ranks : j->count;
    j->dst_count = sliced && j->collective != CORE_REDUCE_SCATTER ? j->count * ranks : j->count;
}

/* --------------------------------------------------------------------------------------- timing */

/* Mean time of `iterations` operations on this rank. The process ends when the library fails. */
static double time_operations(job *j, int iterations) {
    double spent = 0;
    for (int i = 0; i < iterations; i++) {
        j->step++;
        write_input(j);
        meet(j);
        __atomic_store_n(&j->shared->entered[j->peer->rank].step, j->step, __ATOMIC_RELEASE);
        double start = now_ns();
        if (j->peer->run(j->collective, j->src, j->dst, j->count) != 0)
            _exit(EXIT_FAILURE); /* its launcher ends the rest */
        spent += now_ns() - start;
        j->wrong += (double)read_result(j);
    }
    return spent / iterations / (j->collective == CORE_PING_PONG ? 2 : 1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Writes the row of the job's buffers. */
static int measure_row(job *j, size_t bytes, int samples, double sample_ns, FILE *rows) {
    double times[MOST_SAMPLES], before = measure_distance(j);
    time_operations(j, 3);
    double warm = time_operations(j, 3);
    double fit = sample_ns / (gather_value(j, warm, 0) + 1);
    int iterations = fit < 1 ? 1 : fit > ITERATIONS_MAX ? ITERATIONS_MAX : (int)fit;
    time_operations(j, iterations / 4 + 1);
    for (int i = 0; i < samples; i++) times[i] = gather_value(j, time_operations(j, iterations), 0);
    qsort(times, (size_t)samples, sizeof *times, by_value);
    double median = (times[(samples - 1) / 2] + times[samples / 2]) / 2, after = measure_distance(j);
    double wrong = gather_value(j, j->wrong, 1);
    if (j->peer->rank != 0) return 0;
    fprintf(rows, "%s,%s,%zu,%.4f,%d,%.0f,%.1f,%.1f\n", collective_names[j->collective], j->in_place ? "in" : "out",
            bytes, median * 1e-3, iterations, wrong, before, after);
    return fflush(rows);
}

static float *make_buffer(const core_peer *peer, size_t count) {
    size_t bytes = (count * sizeof(float) + LINE - 1) / LINE * LINE;
    float *buffer = peer->alloc != NULL ? peer->alloc(bytes) : aligned_alloc(LINE, bytes);
    if (buffer != NULL) memset(buffer, 0, bytes);
    return buffer;
}

static void drop_buffer(const core_peer *peer, float *buffer) {
    if (buffer == NULL) return;
    if (peer->release != NULL) peer->release(buffer);
    else free(buffer);
}

static int run_size(job *j, size_t bytes, int samples, double sample_ns, FILE *rows) {
    set_counts(j, bytes);
    j->wrong = 0;
    j->dst = make_buffer(j->peer, j->in_place ? j->src_count : j->dst_count);
    j->src = j->in_place ? j->dst : make_buffer(j->peer, j->src_count);
    if (j->src == NULL || j->dst == NULL) return -1;
    int status = measure_row(j, bytes, samples, sample_ns, rows);
    meet(j); /* nobody takes memory away that a peer may still read */
    if (!j->in_place) drop_buffer(j->peer, j->src);
    drop_buffer(j->peer, j->dst);
    return status;
}

/* --------------------------------------------------------------------------------------- the run */

static meeting *open_meeting(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    void *memory = mmap(NULL, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Every size, out of place and, for the reductions, in place. */
static int run_sizes(job *j, char **argv, FILE *rows) {
    int samples = atoi(argv[SAMPLES]),
        reduces = j->collective == CORE_ALL_REDUCE || j->collective == CORE_REDUCE_SCATTER;
    if (samples < 1 || samples > MOST_SAMPLES) return EXIT_FAILURE;
    for (const char *size = argv[SIZES]; *size != '\0';) {
        char *end;
        size_t bytes = strtoull(size, &end, 10);
        for (j->in_place = 0; j->in_place <= reduces; j->in_place++)
            if (run_size(j, bytes, samples, atof(argv[SAMPLE_MS]) * 1e6, rows) != 0) return EXIT_FAILURE;
        size = *end == ',' ? end + 1 : "";
    }
    return EXIT_SUCCESS;
}

int core_run(const core_peer *peer, int argc, char **argv) {
    if (argc != ARGUMENTS || peer->size > MOST_RANKS) return EXIT_FAILURE;
    job j = {.peer = peer, .shared = open_meeting(argv[1]), .crowded = peer->size > core_count()};
    j.pinned = strcmp(argv[PIN], "pin") == 0;
    while (j.collective < CORE_COLLECTIVES && strcmp(argv[COLLECTIVE], collective_names[j.collective]) != 0)
        j.collective++;
    FILE *rows = fopen(peer->rank == 0 ? argv[2] : "/dev/null", "we");
    if (j.shared == NULL || rows == NULL || j.collective == CORE_COLLECTIVES) {
        fprintf(stderr, "core: cannot open %s or %s, or no collective is called %s\n", argv[1], argv[2],
                argv[COLLECTIVE]);
        return EXIT_FAILURE;
    }
    int status = run_sizes(&j, argv, rows);
    fclose(rows);
    return status;
}
