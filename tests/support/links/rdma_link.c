/*
 * The pipe alone, measured as perftest measures: half the round trip of small messages, the rate of large ones in one
 * direction. Buffers are registered beforehand, as perftest's are.
 *
 *   rdma_link serve PORT lat|bw BYTES COUNT
 *   rdma_link join ADDRESS PORT lat|bw BYTES COUNT
 *
 * The side that joins prints "lat BYTES <us>" or "bw BYTES <MB/s>" (10^6 bytes).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/links/rdma_pair.h"

typedef struct measured {
    char *buffer;
    size_t bytes;
    int count;
} measured;

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static tutti_status latency(rdma_pair *pair, const measured *work, double *us_out) {
    int64_t *times = calloc((size_t)work->count, sizeof *times);
    for (int i = 0; i < work->count; i++) {
        int64_t start = tutti_now_ns();
        TUTTI_TRY(pair->first ? rdma_pair_recv(pair, work->buffer, work->bytes)
                              : rdma_pair_send(pair, work->buffer, work->bytes));
        TUTTI_TRY(pair->first ? rdma_pair_send(pair, work->buffer, work->bytes)
                              : rdma_pair_recv(pair, work->buffer, work->bytes));
        times[i] = tutti_now_ns() - start;
    }
    qsort(times, (size_t)work->count, sizeof *times, compare);
    *us_out = (double)times[work->count / 2] / 2000.0;
    free(times);
    return TUTTI_OK;
}

/* Waits until the other side has confirmed that it received everything. */
static tutti_status rate(rdma_pair *pair, const measured *work, double *rate_out) {
    char done = 0;
    int64_t start = tutti_now_ns();
    for (int i = 0; i < work->count; i++)
        TUTTI_TRY(pair->first ? rdma_pair_recv(pair, work->buffer, work->bytes)
                              : rdma_pair_send(pair, work->buffer, work->bytes));
    TUTTI_TRY(pair->first ? rdma_pair_send(pair, &done, 1) : rdma_pair_recv(pair, &done, 1));
    *rate_out = (double)work->bytes * work->count / ((double)(tutti_now_ns() - start) / 1000.0);
    return TUTTI_OK;
}

static tutti_status run(rdma_pair *pair, const char *what, const measured *work) {
    double result = 0;
    char go = 0;
    TUTTI_TRY(rdma_pair_open(pair));
    TUTTI_TRY(tutti_mem_register(work->buffer, work->bytes));
    TUTTI_TRY(pair->first ? rdma_pair_send(pair, &go, 1) : rdma_pair_recv(pair, &go, 1));
    bool lat = strcmp(what, "lat") == 0;
    pair->restless = lat; /* as perftest does */
    TUTTI_TRY((lat ? latency : rate)(pair, work, &result));
    if (!pair->first) printf("%s %zu %.2f\n", what, work->bytes, result);
    if (getenv("RDMA_LINK_COUNTERS") != NULL) {
        const tutti_rdma_counters *now = tutti_verbs_counters(pair->pipe);
        printf("   records %lu pieces %lu states %lu work requests %lu receives %lu registrations %lu\n", now->records,
               now->pieces, now->states, now->work_requests, now->receives, now->registrations);
    }
    TUTTI_TRY(tutti_mem_deregister(work->buffer));
    rdma_pair_close(pair);
    return TUTTI_OK;
}

int main(int argc, char **argv) {
    rdma_pair pair;
    int used = rdma_pair_read(&pair, argc, argv);
    if (used == 0 || argc < used + 3) {
        fprintf(stderr, "usage: rdma_link serve PORT lat|bw BYTES COUNT | join ADDRESS PORT lat|bw BYTES COUNT\n");
        return 2;
    }
    measured work = {.bytes = (size_t)atoll(argv[used + 1]), .count = atoi(argv[used + 2])};
    work.buffer = aligned_alloc(4096, tutti_align_up(work.bytes + 1, 4096));
    memset(work.buffer, 1, work.bytes);
    tutti_status status = run(&pair, argv[used], &work);
    if (status != TUTTI_OK) fprintf(stderr, "rdma_link: %s\n", tutti_last_error());
    free(work.buffer);
    return status != TUTTI_OK;
}
