/*
 * Tutti for bench/overlap, through its public interface. Kinds: "malloc", asynchronous all_reduces on ordinary
 * memory; "tutti", the same on memory of tutti_mem_alloc; "ddp", the DDP engine, with one parameter per bucket.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/ddp.h>
#include <tutti/tutti.h>

#include "overlap.h"

#define MOST_WORKS 1024

static tutti_comm *world;
static tutti_work *works[MOST_WORKS];
static int started;

static int report(tutti_status status) {
    if (status == TUTTI_OK) return 0;
    fprintf(stderr, "%s\n", tutti_last_error());
    return 1;
}

static void *alloc(size_t bytes) {
    void *memory = NULL;
    return tutti_mem_alloc(bytes, &memory) == TUTTI_OK ? memory : NULL;
}

static void release(void *memory) {
    tutti_mem_free(memory);
}

static int start(int index, float *data, size_t count) {
    (void)index;
    if (started == MOST_WORKS) return 1;
    return report(tutti_all_reduce(world, data, data, count, TUTTI_FLOAT32, TUTTI_SUM,
                                   &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST, .work = &works[started++])));
}

static int finish(void) {
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < started; i++) {
        if (status == TUTTI_OK) status = tutti_work_wait(works[i], -1);
        tutti_work_free(works[i]);
    }
    started = 0;
    return report(status);
}

/* ------------------------------------------------------------------------------------ DDP engine */

static tutti_ddp *ddp;
static int parameters;
static float *values; /* the values of all parameters */

/* Bucket 0 holds the last parameter, as backward begins at the last layer. */
static size_t parameter_of(int index) {
    return (size_t)(parameters - 1 - index);
}

static int ddp_open(int buckets, const size_t *counts) {
    size_t total = 0, most = 0, at = 0;
    for (int i = 0; i < buckets; i++) {
        total += counts[i];
        if (counts[i] > most) most = counts[i];
    }
    tutti_ddp_parameter *list = calloc((size_t)buckets, sizeof *list);
    values = calloc(total, sizeof *values);
    if (list == NULL || values == NULL) return 1;
    parameters = buckets;
    for (int i = 0; i < buckets; i++) {
        list[parameter_of(i)] =
            (tutti_ddp_parameter){.name = "layer", .data = values + at, .count = counts[i], .type = TUTTI_FLOAT32};
        at += counts[i];
    }
    size_t bytes = most * sizeof(float);
    tutti_ddp_options options = TUTTI_DDP_OPTIONS(.bucket_bytes = bytes, .first_bucket_bytes = bytes, .sums = 1);
    int status = report(tutti_ddp_create(world, list, (size_t)buckets, &options, &ddp));
    free(list);
    return status;
}

static void ddp_close(void) {
    tutti_ddp_destroy(ddp);
    free(values);
}

static float *ddp_bucket(int index) {
    return tutti_ddp_gradient(ddp, parameter_of(index));
}

static int ddp_start(int index, float *data, size_t count) {
    (void)data;
    (void)count;
    return report(tutti_ddp_ready(ddp, parameter_of(index)));
}

static int ddp_finish(void) {
    return report(tutti_ddp_finish(ddp));
}

int main(int argc, char **argv) {
    overlap_begin(argc, argv);
    if (report(tutti_comm_create_world(&world)) != 0) return EXIT_FAILURE;
    overlap_peer peer = {
        .rank = tutti_comm_rank(world), .size = tutti_comm_size(world), .start = start, .finish = finish};
    const char *kind = overlap_kind(argc, argv);
    if (strcmp(kind, "tutti") == 0) peer.alloc = alloc, peer.release = release;
    if (strcmp(kind, "ddp") == 0)
        peer = (overlap_peer){.rank = peer.rank,
                              .size = peer.size,
                              .open = ddp_open,
                              .close = ddp_close,
                              .bucket = ddp_bucket,
                              .start = ddp_start,
                              .finish = ddp_finish};
    int status = overlap_run(&peer, argc, argv);
    tutti_comm_destroy(world);
    return status;
}
