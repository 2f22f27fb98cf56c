/*
 * The timing core: see core.h.
 *
 * A row is the median over samples of the slowest rank's mean time. A sample is repeated, as long as time permits, if
 * a core was slower than it can be because other work ran on the other half of it (virtual machines cannot see that).
 * Where each rank has a core, each operation is timed by itself, from the moment when all ranks are ready; the time
 * excludes rewriting and reading the buffers, but not their effect on the caches. Where ranks share cores, the time
 * is what the operation adds to a loop (time_added()). The transfer time of a cache line between the cores of ranks 0
 * and 1 is measured before and after each row.
 */
#include "core.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data.h"
#include "meeting.h"

#define LINE           64
#define MOST_SAMPLES   64
#define ITERATIONS_MAX 10000
#define SLOW           1.1 /* factor of the best pace */
enum { COLLECTIVE = 3, SIZES, SAMPLES, SAMPLE_MS, PIN, MEMORY, ARGUMENTS };

/* The work of one row. */
typedef struct job {
    const core_peer *peer;
    meeting all;
    uint64_t step; /* operations so far; changes the data */
    int collective, in_place;
    size_t count, src_count, dst_count;
    float *src, *dst;
    double wrong;
    double loop_ns;     /* time of an iteration of the last loop; if ranks share cores */
    double best_pace;   /* the best so far; 0: none yet */
    double patience_ns; /* for repeating samples that slow cores spoiled */
} job;

static const char *const collective_names[CORE_COLLECTIVES] = {"all_reduce", "all_gather", "reduce_scatter",
                                                               "broadcast",  "all_to_all", "barrier",
                                                               "ping_pong",  "gather",     "scatter"};

void core_start(int argc, char **argv) {
    if (argc == ARGUMENTS && strcmp(argv[PIN], "pin") == 0) meeting_pin_early();
}

const char *core_memory(int argc, char **argv) {
    return argc == ARGUMENTS ? argv[MEMORY] : "malloc";
}

/* ----------------------------------------------------------------------------------------- data */

static void fill(float *data, size_t count, float add) {
    for (size_t i = 0; i < count; i++) data[i] = data_hash(i) + add;
}

/* The root changes with each operation: a permanent root would never wait for the others. */
static int root_of(const job *j) {
    return (int)(j->step % (uint64_t)j->peer->size);
}

static void write_input(job *j) {
    float add = data_offset(j->peer->rank, j->step);
    if (j->collective == CORE_BARRIER) return;
    if (j->collective != CORE_BROADCAST) fill(j->src, j->src_count, add);
    else if (j->peer->rank == root_of(j)) fill(j->dst, j->count, add);
}

/* The number of wrong elements of the result. */
static size_t read_result(const job *j) {
    int rank = j->peer->rank, size = j->peer->size;
    float sum = data_offset_sum(size, j->step);
    size_t wrong = 0, mine = (size_t)rank * j->count;
    switch (j->collective) {
    case CORE_ALL_REDUCE: return data_count_wrong(j->dst, j->count, 0, (float)size, sum);
    case CORE_REDUCE_SCATTER:
        return data_count_wrong(j->dst + (j->in_place && j->peer->slice_stays ? mine : 0), j->count, mine, (float)size,
                                sum);
    case CORE_BROADCAST: return data_count_wrong(j->dst, j->count, 0, 1, data_offset(root_of(j), j->step));
    case CORE_PING_PONG: return data_count_wrong(j->dst, j->count, 0, 1, data_offset(rank ^ 1, j->step));
    case CORE_BARRIER:
        for (int other = 0; other < size; other++) wrong += meeting_entered(&j->all, other) < j->step;
        return wrong;
    case CORE_SCATTER: return data_count_wrong(j->dst, j->count, mine, 1, data_offset(root_of(j), j->step));
    default:
        if (j->collective == CORE_GATHER && rank != root_of(j)) return 0;
        for (int other = 0; other < size; other++)
            wrong += data_count_wrong(j->dst + (size_t)other * j->count, j->count,
                                      j->collective == CORE_ALL_TO_ALL ? mine : 0, 1, data_offset(other, j->step));
        return wrong;
    }
}

static void set_counts(job *j, size_t bytes) {
    size_t elements = bytes / sizeof(float), ranks = (size_t)j->peer->size;
    int joins = j->collective == CORE_ALL_GATHER || j->collective == CORE_GATHER;
    int parts = j->collective == CORE_REDUCE_SCATTER || j->collective == CORE_SCATTER;
    int sliced = joins || parts || j->collective == CORE_ALL_TO_ALL;
    j->count = sliced ? elements / ranks : elements;
    if (j->count == 0) j->count = 1;
    j->src_count = sliced && !joins ? j->count * ranks : j->count;
    j->dst_count = sliced && !parts ? j->count * ranks : j->count;
}

/* --------------------------------------------------------------------------------------- timing */

/* One operation on this rank. Ends the process if the library fails. */
static void run_once(job *j) {
    if (j->peer->run(j->collective, j->src, j->dst, j->count, root_of(j)) != 0)
        _exit(EXIT_FAILURE); /* its launcher ends the other ranks */
}

/* Where each rank has a core: the mean time of an operation on this rank, each operation timed by itself. */
static double time_each(job *j, int iterations) {
    double spent = 0;
    for (int i = 0; i < iterations; i++) {
        j->step++;
        write_input(j);
        meeting_wait(&j->all);
        meeting_enter(&j->all, j->step);
        double start = meeting_now_ns();
        run_once(j);
        spent += meeting_now_ns() - start;
        j->wrong += (double)read_result(j);
    }
    return spent / iterations;
}

/* The time of a loop, with or without the operation, on the rank that ends last. */
static double time_loop(job *j, int iterations, int operates) {
    double unread = 0;
    meeting_wait(&j->all);
    double start = meeting_now_ns();
    for (int i = 0; i < iterations; i++) {
        j->step++;
        write_input(j);
        meeting_enter(&j->all, j->step);
        if (operates) run_once(j);
        *(operates ? &j->wrong : &unread) += (double)read_result(j);
    }
    return meeting_most(&j->all, meeting_now_ns() - start);
}

/* Where ranks share cores: the time that the operation adds to a loop that rewrites the buffers and reads the result.
 * A single operation cannot be timed there: of two ranks on a core, the first one to call waits while the second one
 * calls, and which one is first is up to chance. */
static double time_added(job *j, int iterations) {
    double with = time_loop(j, iterations, /* operates */ 1), without = time_loop(j, iterations, /* operates */ 0);
    j->loop_ns = with / iterations;
    return with > without ? (with - without) / iterations : 0;
}

static double time_operations(job *j, int iterations) {
    double each = j->all.crowded ? time_added(j, iterations) : time_each(j, iterations);
    return j->collective == CORE_PING_PONG ? each / 2 : each;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int is_slow(job *j) {
    double pace = meeting_pace(&j->all);
    if (j->best_pace == 0 || pace < j->best_pace) j->best_pace = pace;
    return pace > SLOW * j->best_pace;
}

/* Fills `times`; returns the number of slow samples. */
static int take_samples(job *j, int iterations, int samples, double *times) {
    double end = meeting_now_ns() + j->patience_ns;
    int slow = 0;
    for (int taken = 0; taken < samples;) {
        int before = is_slow(j);
        times[taken] = meeting_most(&j->all, time_operations(j, iterations));
        int counts = !is_slow(j) && !before;
        if (!counts && meeting_most(&j->all, meeting_now_ns() >= end) == 0) continue;
        slow += !counts;
        taken++;
    }
    return slow;
}

/* Writes the row of the job's buffers. */
static int measure_row(job *j, size_t bytes, int samples, double sample_ns, FILE *rows) {
    double times[MOST_SAMPLES], before = meeting_distance(&j->all);
    time_operations(j, 3);
    double warm = time_operations(j, 3);
    if (j->all.crowded) warm = j->loop_ns;
    double fit = sample_ns / (meeting_most(&j->all, warm) + 1);
    int iterations = fit < 1 ? 1 : fit > ITERATIONS_MAX ? ITERATIONS_MAX : (int)fit;
    time_operations(j, iterations / 4 + 1);
    int slow = take_samples(j, iterations, samples, times);
    qsort(times, (size_t)samples, sizeof *times, by_value);
    double median = (times[(samples - 1) / 2] + times[samples / 2]) / 2, after = meeting_distance(&j->all);
    double wrong = meeting_sum(&j->all, j->wrong);
    if (j->peer->rank != 0) return 0;
    fprintf(rows, "%s,%s,%zu,%.4f,%d,%.0f,%.1f,%.1f,%d,%.1f\n", collective_names[j->collective],
            j->in_place ? "in" : "out", bytes, median * 1e-3, iterations, wrong, before, after, slow, j->best_pace);
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
    meeting_wait(&j->all); /* no rank frees memory that a peer may still read */
    if (!j->in_place) drop_buffer(j->peer, j->src);
    drop_buffer(j->peer, j->dst);
    return status;
}

/* --------------------------------------------------------------------------------------- the run */

/* Runs every size, out of place and, for the reductions, in place. */
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

/* Reads the environment; some launchers do not pass it to all hosts. */
static double setting(job *j, const char *name) {
    const char *text = getenv(name);
    return meeting_most(&j->all, text != NULL ? atof(text) : 0);
}

int core_run(const core_peer *peer, int argc, char **argv) {
    if (argc != ARGUMENTS) return EXIT_FAILURE;
    job j = {.peer = peer};
    if (meeting_open(&j.all, argv[1], peer->rank, peer->size, strcmp(argv[PIN], "pin") == 0) != 0) return EXIT_FAILURE;
    while (j.collective < CORE_COLLECTIVES && strcmp(argv[COLLECTIVE], collective_names[j.collective]) != 0)
        j.collective++;
    j.best_pace = setting(&j, "CORE_PACE_NS"); /* passed on from launch to launch */
    j.patience_ns = setting(&j, "CORE_PATIENCE_MS") * 1e6;
    FILE *rows = fopen(peer->rank == 0 ? argv[2] : "/dev/null", "we");
    if (rows == NULL || j.collective == CORE_COLLECTIVES) {
        fprintf(stderr, "core: cannot open %s, or no collective is called %s\n", argv[2], argv[COLLECTIVE]);
        return EXIT_FAILURE;
    }
    int status = run_sizes(&j, argv, rows);
    fclose(rows);
    return status;
}
