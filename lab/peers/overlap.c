/*
 * The timing core of bench/overlap: see overlap.h.
 *
 * A step is one of four kinds, which take turns: the compute alone; all buckets alone; both overlapped, each bucket
 * started as soon as it is written; both in sequence. Times are those of the slowest rank, medians over samples. The
 * compute of a bucket is `rounds` passes per block of 4 KiB, each adding up a part of 256 KiB of weights; then the
 * block's gradients are written. Every gradient is checked after each step, outside the timed part.
 */
#include "overlap.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data.h"
#include "meeting.h"

#define LINE            64
#define BLOCK           1024      /* elements */
#define PROGRESS_BLOCKS 16        /* blocks between two calls of peer->progress */
#define WEIGHTS         (1 << 16) /* elements */
#define MOST_BUCKETS    1024
#define MOST_SAMPLES    64
#define WARM_STEPS      2 /* steps of each kind */
enum { PIN = 3, KIND, TOTAL, SAMPLES, LOADS, ARGUMENTS };
enum { COMPUTE = 0, ALONE, OVERLAPPED, SEQUENTIAL, KINDS };

/* The times of a step: the whole, writing buckets, calls of the library while writing, the wait at the end. */
typedef struct spans {
    double whole, pieces, calls, wait;
} spans;

typedef struct job {
    const overlap_peer *peer;
    meeting all;
    uint64_t step; /* changes the data */
    int rounds, buckets;
    size_t counts[MOST_BUCKETS], firsts[MOST_BUCKETS]; /* elements of a bucket, and of all before it */
    float *own[MOST_BUCKETS];                          /* buckets that the core made */
    float *weights;
    size_t weight;  /* the next one to read */
    double in_call; /* time in peer->progress in this piece */
    double wrong;
} job;

void overlap_begin(int argc, char **argv) {
    if (argc == ARGUMENTS && strcmp(argv[PIN], "pin") == 0) meeting_pin_early();
}

const char *overlap_kind(int argc, char **argv) {
    return argc == ARGUMENTS ? argv[KIND] : "";
}

/* A library that fails ends the process; its launcher ends the rest. */
static void check(int status) {
    if (status != 0) _exit(EXIT_FAILURE);
}

/* -------------------------------------------------------------------------------------- compute */

static float *bucket_of(const job *j, int index) {
    return j->peer->bucket != NULL ? j->peer->bucket(index) : j->own[index];
}

/* Writes up to BLOCK gradients. The sums never reach the limit, but the compiler cannot know that, so it computes
 * them. */
static void write_block(job *j, float *data, size_t count, size_t first, int rounds) {
    float sums[BLOCK] = {0}, add = data_offset(j->peer->rank, j->step);
    for (int round = 0; round < rounds; round++) {
        const float *weights = j->weights + j->weight;
        for (int i = 0; i < BLOCK; i++) sums[i] = 0.5f * sums[i] + weights[i];
        j->weight = (j->weight + BLOCK) % WEIGHTS;
    }
    for (size_t i = 0; i < count; i++) data[i] = data_hash(first + i) + add + (sums[i] > 1e30f ? 1.0f : 0.0f);
}

/* One piece of backward. `progress`: the library may be called meanwhile; in_call counts that time. */
static void write_bucket(job *j, int index, int rounds, int progress) {
    float *data = bucket_of(j, index);
    size_t blocks = 0;
    for (size_t at = 0; at < j->counts[index]; at += BLOCK, blocks++) {
        size_t left = j->counts[index] - at;
        write_block(j, data + at, left < BLOCK ? left : BLOCK, j->firsts[index] + at, rounds);
        if (!progress || blocks % PROGRESS_BLOCKS != PROGRESS_BLOCKS - 1) continue;
        double start = meeting_now_ns();
        check(j->peer->progress());
        j->in_call += meeting_now_ns() - start;
    }
}

/* ----------------------------------------------------------------------------------------- steps */

static void start_bucket(job *j, int index) {
    check(j->peer->start(index, bucket_of(j, index), j->counts[index]));
}

/* The number of wrong gradients. */
static size_t count_wrong(const job *j, int kind) {
    float times = kind == COMPUTE ? 1 : (float)j->peer->size;
    float add = kind == COMPUTE ? data_offset(j->peer->rank, j->step) : data_offset_sum(j->peer->size, j->step);
    size_t wrong = 0;
    for (int i = 0; i < j->buckets; i++)
        wrong += data_count_wrong(bucket_of(j, i), j->counts[i], j->firsts[i], times, add);
    return wrong;
}

static void work(job *j, int kind, spans *spent) {
    int progress = kind == OVERLAPPED && j->peer->progress != NULL;
    for (int i = 0; i < j->buckets; i++) {
        double begin = meeting_now_ns();
        j->in_call = 0;
        if (kind != ALONE) write_bucket(j, i, j->rounds, progress);
        double written = meeting_now_ns();
        if (kind == ALONE || kind == OVERLAPPED) start_bucket(j, i);
        spent->pieces += written - begin - j->in_call;
        spent->calls += meeting_now_ns() - written + j->in_call;
    }
}

static spans run_step(job *j, int kind) {
    spans spent = {0};
    j->step++;
    for (int i = 0; i < j->buckets && kind == ALONE; i++) write_bucket(j, i, 0, 0);
    /* All ranks use the same instant: otherwise a rank that waits for its core would begin its step late and seem
     * fast. */
    double start = meeting_most(&j->all, meeting_now_ns());
    work(j, kind, &spent);
    double worked = meeting_now_ns();
    for (int i = 0; i < j->buckets && kind == SEQUENTIAL; i++) start_bucket(j, i);
    if (kind != COMPUTE) check(j->peer->finish());
    spent.wait = meeting_now_ns() - worked;
    spent.whole = meeting_now_ns() - start;
    j->wrong += (double)count_wrong(j, kind);
    return spent;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* One row: the wholes are those of the slowest rank, the parts means over ranks. */
static void measure_row(job *j, size_t bucket_bytes, int samples, FILE *rows) {
    double whole[KINDS][MOST_SAMPLES], parts[4][MOST_SAMPLES], exposed[MOST_SAMPLES];
    double us = 1e-3, mean_us = us / j->peer->size;
    double before = meeting_distance(&j->all);
    for (int i = 0; i < WARM_STEPS * KINDS; i++) run_step(j, i % KINDS);
    for (int sample = 0; sample < samples; sample++) {
        for (int turn = 0; turn < KINDS; turn++) {
            int kind = (sample + turn) % KINDS;
            spans spent = run_step(j, kind);
            whole[kind][sample] = meeting_most(&j->all, spent.whole) * us;
            double pieces = meeting_sum(&j->all, spent.pieces) * mean_us;
            double calls = meeting_sum(&j->all, spent.calls) * mean_us;
            double wait = meeting_sum(&j->all, spent.wait) * mean_us;
            if (kind == COMPUTE) parts[0][sample] = pieces;
            if (kind != OVERLAPPED) continue;
            parts[1][sample] = pieces;
            parts[2][sample] = calls;
            parts[3][sample] = wait;
        }
        exposed[sample] = whole[OVERLAPPED][sample] - whole[COMPUTE][sample];
    }
    double after = meeting_distance(&j->all), wrong = meeting_sum(&j->all, j->wrong);
    if (j->peer->rank != 0) return;
    fprintf(rows, "%zu,%d,%d", bucket_bytes, j->rounds, j->buckets);
    for (int kind = 0; kind < KINDS; kind++) fprintf(rows, ",%.1f", median(whole[kind], samples));
    for (int part = 0; part < 4; part++) fprintf(rows, ",%.1f", median(parts[part], samples));
    fprintf(rows, ",%.1f,%.0f,%.1f,%.1f\n", median(exposed, samples), wrong, before, after);
    fflush(rows);
}

/* --------------------------------------------------------------------------------------- the run */

static float *make_bucket(const overlap_peer *peer, size_t count) {
    size_t bytes = (count * sizeof(float) + LINE - 1) / LINE * LINE;
    float *bucket = peer->alloc != NULL ? peer->alloc(bytes) : aligned_alloc(LINE, bytes);
    if (bucket != NULL) memset(bucket, 0, bytes);
    return bucket;
}

static void drop_buckets(job *j) {
    for (int i = 0; i < j->buckets && j->peer->bucket == NULL; i++) {
        if (j->own[i] == NULL) continue;
        if (j->peer->release != NULL) j->peer->release(j->own[i]);
        else free(j->own[i]);
    }
}

/* Cuts the gradients into buckets; the last one gets the rest. Returns 0 or -1. */
static int make_buckets(job *j, size_t total, size_t bucket) {
    j->buckets = 0;
    for (size_t at = 0; at < total; at += bucket) {
        if (j->buckets == MOST_BUCKETS) return -1;
        int i = j->buckets++;
        j->firsts[i] = at;
        j->counts[i] = total - at < bucket ? total - at : bucket;
        j->own[i] = j->peer->bucket == NULL ? make_bucket(j->peer, j->counts[i]) : NULL;
        if (j->peer->bucket == NULL && j->own[i] == NULL) return -1;
    }
    return j->peer->open != NULL ? j->peer->open(j->buckets, j->counts) : 0;
}

static int run_load(job *j, char **argv, size_t bucket_bytes, FILE *rows) {
    size_t total = strtoull(argv[TOTAL], NULL, 10) / sizeof(float), bucket = bucket_bytes / sizeof(float);
    int samples = atoi(argv[SAMPLES]);
    if (total == 0 || bucket == 0 || samples < 1 || samples > MOST_SAMPLES || make_buckets(j, total, bucket) != 0)
        return EXIT_FAILURE;
    j->wrong = 0;
    measure_row(j, bucket_bytes, samples, rows);
    meeting_wait(&j->all); /* no rank frees memory that a peer may still read */
    if (j->peer->close != NULL) j->peer->close();
    drop_buckets(j);
    return EXIT_SUCCESS;
}

static int run_loads(job *j, char **argv, FILE *rows) {
    for (const char *load = argv[LOADS]; *load != '\0';) {
        char *end;
        size_t bucket_bytes = strtoull(load, &end, 10);
        if (*end != ':') return EXIT_FAILURE;
        j->rounds = (int)strtol(end + 1, &end, 10);
        if (run_load(j, argv, bucket_bytes, rows) != EXIT_SUCCESS) return EXIT_FAILURE;
        load = *end == ',' ? end + 1 : "";
    }
    return EXIT_SUCCESS;
}

int overlap_run(const overlap_peer *peer, int argc, char **argv) {
    static job j;
    j.peer = peer;
    if (argc != ARGUMENTS || meeting_open(&j.all, argv[1], peer->rank, peer->size, strcmp(argv[PIN], "pin") == 0) != 0)
        return EXIT_FAILURE;
    FILE *rows = fopen(peer->rank == 0 ? argv[2] : "/dev/null", "we");
    j.weights = malloc(WEIGHTS * sizeof *j.weights);
    if (rows == NULL || j.weights == NULL) return EXIT_FAILURE;
    for (size_t i = 0; i < WEIGHTS; i++) j.weights[i] = data_hash(i);
    int status = run_loads(&j, argv, rows);
    free(j.weights);
    fclose(rows);
    return status;
}
