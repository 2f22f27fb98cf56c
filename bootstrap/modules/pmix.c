/*
 * PMIx: libtutti_pmix.so, opened by pmix.c. Communicates with the launcher's server on this host through libpmix.
 *
 * The first call connects (PMIx_Init); only the end of the process disconnects (PMIx_Finalize), because a process
 * cannot connect again after that, and MPI may want to connect as well: libpmix counts the connections.
 */
#include <pmix.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/launcher/pmix.h"

#define STORE_KEY "tutti.store"

static const tutti_module_host *host;

static tutti_status fail(pmix_status_t code, const char *what) {
    return host->fail(TUTTI_ERR_SYSTEM, "PMIx: %s: %s; set MASTER_ADDR and MASTER_PORT to start without PMIx", what,
                      PMIx_Error_string(code));
}

/* This process's name since PMIx_Init; a forked child has not connected. */
static pmix_proc_t self;
static pid_t joined;

static tutti_status join(void) {
    if (joined == getpid()) return TUTTI_OK;
    pmix_status_t code = PMIx_Init(&self, NULL, 0);
    if (code != PMIX_SUCCESS) return fail(code, "cannot connect to the launcher's server");
    joined = getpid();
    return TUTTI_OK;
}

__attribute__((destructor)) static void leave(void) {
    if (joined == getpid()) PMIx_Finalize(NULL, 0);
}

/* Reads a number of this process or of the whole job; -1: the server does not provide it. Servers choose its width. */
static int get_number(const char *key, bool of_job) {
    pmix_proc_t whom = self;
    pmix_value_t *value = NULL;
    int number = -1;
    if (of_job) whom.rank = PMIX_RANK_WILDCARD;
    if (PMIx_Get(&whom, key, NULL, 0, &value) != PMIX_SUCCESS) return -1;
    switch (value->type) {
    case PMIX_UINT32: number = (int)value->data.uint32; break;
    case PMIX_UINT16: number = (int)value->data.uint16; break;
    case PMIX_INT: number = value->data.integer; break;
    case PMIX_INT32: number = value->data.int32; break;
    case PMIX_UINT64: number = (int)value->data.uint64; break;
    case PMIX_PROC_RANK: number = (int)value->data.rank; break;
    default: break;
    }
    PMIX_VALUE_RELEASE(value);
    return number;
}

static tutti_status read_world(tutti_world *world_out) {
    TUTTI_TRY(join());
    world_out->rank = (int)self.rank;
    world_out->size = get_number(PMIX_JOB_SIZE, true);
    world_out->local_rank = get_number(PMIX_LOCAL_RANK, false);
    world_out->local_size = get_number(PMIX_LOCAL_SIZE, true);
    world_out->node = get_number(PMIX_NODEID, false);
    world_out->nodes = get_number(PMIX_NUM_NODES, true);
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- exchange */

static tutti_status publish(const char *text) {
    char copy[TUTTI_PMIX_TEXT_BYTES];
    pmix_value_t value = {.type = PMIX_STRING, .data.string = copy};
    snprintf(copy, sizeof copy, "%s", text);
    pmix_status_t code = PMIx_Put(PMIX_GLOBAL, STORE_KEY, &value);
    if (code == PMIX_SUCCESS) code = PMIx_Commit();
    return code == PMIX_SUCCESS ? TUTTI_OK : fail(code, "cannot publish the store's address");
}

/* Waits for all ranks of the job and distributes their published values to each host. */
static tutti_status fence(int timeout_s) {
    pmix_proc_t everybody = self;
    pmix_info_t infos[2];
    bool collect = true;
    everybody.rank = PMIX_RANK_WILDCARD;
    PMIX_INFO_LOAD(&infos[0], PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[1], PMIX_TIMEOUT, &timeout_s, PMIX_INT);
    pmix_status_t code = PMIx_Fence(&everybody, 1, infos, 2);
    return code == PMIX_SUCCESS ? TUTTI_OK : fail(code, "not all ranks have reached the rendezvous");
}

static tutti_status look_up(int timeout_s, char text_out[TUTTI_PMIX_TEXT_BYTES]) {
    pmix_proc_t first = self;
    pmix_value_t *value = NULL;
    pmix_info_t info;
    first.rank = 0;
    PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &timeout_s, PMIX_INT);
    pmix_status_t code = PMIx_Get(&first, STORE_KEY, &info, 1, &value);
    if (code != PMIX_SUCCESS) return fail(code, "rank 0 has not published its store's address");
    bool fits =
        value->type == PMIX_STRING && value->data.string != NULL && strlen(value->data.string) < TUTTI_PMIX_TEXT_BYTES;
    if (fits) snprintf(text_out, TUTTI_PMIX_TEXT_BYTES, "%s", value->data.string);
    PMIX_VALUE_RELEASE(value);
    return fits ? TUTTI_OK : host->fail(TUTTI_ERR_DATA, "PMIx: the value published by rank 0 is not a store address");
}

static tutti_status exchange(const char *mine, int timeout_s, char text_out[TUTTI_PMIX_TEXT_BYTES]) {
    TUTTI_TRY(join());
    if (mine != NULL) TUTTI_TRY(publish(mine));
    TUTTI_TRY(fence(timeout_s));
    return look_up(timeout_s, text_out);
}

tutti_status tutti_module_start(const tutti_module_host *caller, const tutti_module_calls **calls_out) {
    static const tutti_pmix_module calls = {
        .head.version = TUTTI_MODULE_VERSION, .read_world = read_world, .exchange = exchange};
    if (caller->version == TUTTI_MODULE_VERSION)
        host = caller; /* otherwise the caller sees the version mismatch and calls nothing */
    *calls_out = &calls.head;
    return TUTTI_OK;
}
