/*
 * UCC for the comparison, through its own interface. It needs every rank's address before it can send anything: ranks
 * pass these to each other in files beside the meeting's.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ucc/api/ucc.h>

#include "core.h"

static ucc_context_h context;
static ucc_team_h team;
static int rank, size, crowded;

static void must(ucc_status_t status, const char *what) {
    if (status == UCC_OK) return;
    fprintf(stderr, "ucc: %s: %s\n", what, ucc_status_string(status));
    exit(EXIT_FAILURE);
}

/* ---------------------------------------------------------------------------------------------- addresses */

static const char *folder; /* the beginning of the files' names */
static int gathers;

typedef struct gather {
    int number;
    size_t bytes;
    char *dst;
} gather;

static void name_file(char *path, size_t bytes, int number, int from) {
    snprintf(path, bytes, "%s.address.%d.%d", folder, number, from);
}

static ucc_status_t gather_start(void *src, void *dst, size_t bytes, void *info, void **request) {
    char path[4096], unfinished[4110];
    (void)info;
    gather *g = malloc(sizeof *g);
    if (g == NULL) return UCC_ERR_NO_MEMORY;
    *g = (gather){gathers++, bytes, dst};
    name_file(path, sizeof path, g->number, rank);
    snprintf(unfinished, sizeof unfinished, "%s.part", path);
    FILE *file = fopen(unfinished, "we");
    const int written = file != NULL && fwrite(src, 1, bytes, file) == bytes;
    if (file == NULL || fclose(file) != 0 || !written || rename(unfinished, path) != 0) {
        free(g);
        return UCC_ERR_NO_MESSAGE;
    }
    *request = g;
    return UCC_OK;
}

static ucc_status_t gather_test(void *request) {
    const gather *g = request;
    char path[4096];
    for (int from = 0; from < size; from++) {
        name_file(path, sizeof path, g->number, from);
        FILE *file = fopen(path, "re");
        if (file == NULL) return UCC_INPROGRESS;
        const size_t got = fread(g->dst + (size_t)from * g->bytes, 1, g->bytes, file);
        fclose(file);
        if (got != g->bytes) return UCC_ERR_NO_MESSAGE;
    }
    return UCC_OK;
}

static ucc_status_t gather_free(void *request) {
    free(request);
    return UCC_OK;
}

/* ------------------------------------------------------------------------------------------------- start */

static void start(void) {
    const ucc_oob_coll_t oob = {.allgather = gather_start,
                                .req_test = gather_test,
                                .req_free = gather_free,
                                .n_oob_eps = (uint32_t)size,
                                .oob_ep = (uint32_t)rank};
    const ucc_lib_params_t single = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_SINGLE};
    const ucc_context_params_t joined = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = oob};
    const ucc_team_params_t all = {.mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE |
                                           UCC_TEAM_PARAM_FIELD_OOB,
                                   .ep = (uint64_t)rank,
                                   .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
                                   .oob = oob};
    ucc_lib_config_h lib_config;
    ucc_context_config_h context_config;
    ucc_lib_h lib;
    ucc_status_t status;
    must(ucc_lib_config_read(NULL, NULL, &lib_config), "ucc_lib_config_read");
    must(ucc_init(&single, lib_config, &lib), "ucc_init");
    must(ucc_context_config_read(lib, NULL, &context_config), "ucc_context_config_read");
    must(ucc_context_create(lib, &joined, context_config, &context), "ucc_context_create");
    must(ucc_team_create_post(&context, 1, &all, &team), "ucc_team_create_post");
    while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS) ucc_context_progress(context);
    must(status, "ucc_team_create_test");
    ucc_lib_config_release(lib_config);
    ucc_context_config_release(context_config);
}

/* -------------------------------------------------------------------------------------------- operations */

static const ucc_coll_type_t kinds[CORE_COLLECTIVES] = {[CORE_ALL_REDUCE] = UCC_COLL_TYPE_ALLREDUCE,
                                                        [CORE_ALL_GATHER] = UCC_COLL_TYPE_ALLGATHER,
                                                        [CORE_REDUCE_SCATTER] = UCC_COLL_TYPE_REDUCE_SCATTER,
                                                        [CORE_BROADCAST] = UCC_COLL_TYPE_BCAST,
                                                        [CORE_ALL_TO_ALL] = UCC_COLL_TYPE_ALLTOALL,
                                                        [CORE_BARRIER] = UCC_COLL_TYPE_BARRIER,
                                                        [CORE_GATHER] = UCC_COLL_TYPE_GATHER,
                                                        [CORE_SCATTER] = UCC_COLL_TYPE_SCATTER};

static ucc_coll_buffer_info_t buffer(const void *memory, size_t count) {
    return (ucc_coll_buffer_info_t){.buffer = (void *)(uintptr_t)memory,
                                    .count = count,
                                    .datatype = UCC_DT_FLOAT32,
                                    .mem_type = UCC_MEMORY_TYPE_HOST};
}

/* UCC's counts are those of the whole buffer. */
static void describe(int collective, const float *src, float *dst, size_t count, int root, ucc_coll_args_t *args) {
    const size_t all = count * (size_t)size;
    const int parts = collective == CORE_REDUCE_SCATTER || collective == CORE_SCATTER || collective == CORE_ALL_TO_ALL;
    const int joins = collective == CORE_ALL_GATHER || collective == CORE_GATHER || collective == CORE_ALL_TO_ALL;
    args->coll_type = kinds[collective];
    args->op = UCC_OP_SUM;
    args->root = (uint64_t)root;
    args->src.info = buffer(collective == CORE_BROADCAST ? dst : src, parts ? all : count);
    args->dst.info = buffer(dst, joins ? all : count);
    if (src != dst || (collective != CORE_ALL_REDUCE && collective != CORE_REDUCE_SCATTER)) return;
    args->mask |= UCC_COLL_ARGS_FIELD_FLAGS;
    args->flags = UCC_COLL_ARGS_FLAG_IN_PLACE;
    if (collective == CORE_REDUCE_SCATTER) args->dst.info.count = all;
}

static int run(int collective, const float *src, float *dst, size_t count, int root) {
    ucc_coll_args_t args = {.mask = 0};
    ucc_coll_req_h request;
    if (kinds[collective] == 0) return 1; /* messages, which UCC does not have */
    describe(collective, src, dst, count, root, &args);
    ucc_status_t status = ucc_collective_init(&args, &request, team);
    if (status == UCC_OK) status = ucc_collective_post(request);
    while (status >= 0 && (status = ucc_collective_test(request)) == UCC_INPROGRESS) {
        ucc_context_progress(context);
        if (crowded) sched_yield();
    }
    if (status == UCC_OK) status = ucc_collective_finalize(request);
    if (status == UCC_OK) return 0;
    fprintf(stderr, "ucc: %s\n", ucc_status_string(status));
    return 1;
}

int main(int argc, char **argv) {
    core_start(argc, argv);
    rank = atoi(getenv("RANK"));
    size = atoi(getenv("WORLD_SIZE"));
    crowded = size > sysconf(_SC_NPROCESSORS_ONLN);
    folder = argv[1];
    start();
    const core_peer peer = {.rank = rank, .size = size, .slice_stays = 1, .run = run};
    const int status = core_run(&peer, argc, argv);
    fflush(NULL);
    _exit(status); /* ranks that are done no longer answer, and UCC's end would wait for them */
}
