/*
 * Tutti for the comparison, through its public interface: ordinary memory, or tutti_mem_alloc's when the last
 * argument is "tutti".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/tutti.h>

#include "core.h"

static tutti_comm *world;
static int rank;

static tutti_status ping_pong(const float *src, float *dst, size_t count) {
    int other = rank ^ 1;
    if (rank % 2 == 0) TUTTI_TRY(tutti_send(world, src, count, TUTTI_FLOAT32, other, 0, NULL));
    TUTTI_TRY(tutti_recv(world, dst, count, TUTTI_FLOAT32, other, 0, NULL));
    if (rank % 2 == 1) TUTTI_TRY(tutti_send(world, src, count, TUTTI_FLOAT32, other, 0, NULL));
    return TUTTI_OK;
}

/* In place, reduce_scatter's result is the rank's own slice. */
static tutti_status reduce_scatter(const float *src, float *dst, size_t count) {
    if (src == dst) dst += (size_t)rank * count;
    return tutti_reduce_scatter(world, src, dst, count, TUTTI_FLOAT32, TUTTI_SUM, NULL);
}

static tutti_status start(int collective, const float *src, float *dst, size_t count, int root) {
    switch (collective) {
    case CORE_ALL_REDUCE: return tutti_all_reduce(world, src, dst, count, TUTTI_FLOAT32, TUTTI_SUM, NULL);
    case CORE_ALL_GATHER: return tutti_all_gather(world, src, dst, count, TUTTI_FLOAT32, NULL);
    case CORE_REDUCE_SCATTER: return reduce_scatter(src, dst, count);
    case CORE_BROADCAST: return tutti_broadcast(world, dst, count, TUTTI_FLOAT32, root, NULL);
    case CORE_ALL_TO_ALL: return tutti_all_to_all(world, src, dst, count, TUTTI_FLOAT32, NULL);
    case CORE_BARRIER: return tutti_barrier(world, NULL);
    case CORE_PING_PONG: return ping_pong(src, dst, count);
    case CORE_GATHER: return tutti_gather(world, src, dst, count, TUTTI_FLOAT32, root, NULL);
    case CORE_SCATTER: return tutti_scatter(world, src, dst, count, TUTTI_FLOAT32, root, NULL);
    default: return TUTTI_ERR_UNSUPPORTED;
    }
}

static int run(int collective, const float *src, float *dst, size_t count, int root) {
    if (start(collective, src, dst, count, root) == TUTTI_OK) return 0;
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

int main(int argc, char **argv) {
    core_start(argc, argv);
    if (tutti_comm_create_world(&world) != TUTTI_OK) {
        fprintf(stderr, "%s\n", tutti_last_error());
        return EXIT_FAILURE;
    }
    rank = tutti_comm_rank(world);
    core_peer peer = {.rank = rank, .size = tutti_comm_size(world), .slice_stays = 1, .run = run};
    if (strcmp(core_memory(argc, argv), "tutti") == 0) peer.alloc = alloc, peer.release = release;
    int status = core_run(&peer, argc, argv);
    tutti_comm_destroy(world);
    return status;
}
