/*
 * A rank of a job, for tests of launchers: prints its rank, exchanges values with the other ranks through the job's
 * store, and prints them.
 *
 *   world_probe            exchanges twice, and prints "rank 1 of 4, local 1 of 2, node 0 of 2: met"
 *   world_probe reduce     makes the world's communicator, sums the ranks, and then prints its rank
 *   world_probe calls      makes it, calls every collective (short, medium, long), compares with the reference
 *   world_probe rdma       the same after tutti_comm_init_rdma; and messages
 *   world_probe rdma FILE  makes FILE.<rank> after tutti_comm_init_rdma, waits for FILE, and makes the world once more
 *   world_probe anew FILE  the same without tutti_comm_init_rdma
 *   world_probe world      only prints its rank
 *   world_probe configure DEVICE_NUM CTRL_PORT NODES WHAT   WHAT, configured with these; NODES "-": here
 *   world_probe stop get KEY   makes it, and stops itself after reading KEY from the store
 *   world_probe stop set KEY   makes it, and stops itself before writing KEY
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/launcher/world.h"
#include "tests/support/call.h"

#ifdef __SANITIZE_ADDRESS__
/* libpmix never frees a few bytes. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libpmix";
}
__attribute__((visibility("default"))) const char *__lsan_default_options(void);
const char *__lsan_default_options(void) {
    return "print_suppressions=0";
}
#endif

enum { TIMEOUT_MS = 20000, NTIMES = 2 };

/* Each rank writes its number; each reads all of them. */
static tutti_status talk(const tutti_world *world, const tutti_rendezvous *rendezvous) {
    const tutti_store *store = tutti_rendezvous_store(rendezvous);
    for (int i = 0; i <= world->size; i++) {
        char key[400], value[32] = "", expected[32];
        size_t bytes;
        int whom = i == 0 ? world->rank : i - 1;
        snprintf(key, sizeof key, "%s/probe/%d", tutti_rendezvous_prefix(rendezvous), whom);
        snprintf(expected, sizeof expected, "I am %d", whom);
        if (i == 0) {
            TUTTI_TRY(store->set(store->context, key, expected, strlen(expected) + 1));
            continue;
        }
        TUTTI_TRY(store->get(store->context, key, value, sizeof value, &bytes, TIMEOUT_MS));
        if (strcmp(value, expected) != 0) return tutti_fail(TUTTI_ERR_DATA, "'%s' from rank %d", value, whom);
    }
    return TUTTI_OK;
}

static tutti_status meet(const tutti_world *world) {
    for (int i = 0; i < NTIMES && world->size > 1; i++) {
        tutti_rendezvous *rendezvous;
        TUTTI_TRY(tutti_rendezvous_open(world, &rendezvous));
        tutti_status status = talk(world, rendezvous);
        tutti_rendezvous_close(rendezvous);
        TUTTI_TRY(status);
    }
    return TUTTI_OK;
}

static tutti_status reduce(const tutti_world *world) {
    tutti_comm *comm;
    int32_t sum = world->rank;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    tutti_status status = tutti_all_reduce(comm, &sum, &sum, 1, TUTTI_INT32, TUTTI_SUM, NULL);
    tutti_comm_destroy(comm);
    if (status == TUTTI_OK && sum != world->size * (world->size - 1) / 2)
        status = tutti_fail(TUTTI_ERR_DATA, "the ranks' sum is %d", sum);
    return status;
}

static tutti_status call_all(tutti_comm *comm) {
    static const size_t counts[] = {5, 3001, 50021};
    for (unsigned turn = 0; turn < 3 * CALL_KINDS; turn++) {
        call c = {.kind = (call_kind)(turn % CALL_KINDS),
                  .type = turn % 2 == 0 ? TUTTI_FLOAT32 : TUTTI_INT64,
                  .count = counts[turn / CALL_KINDS],
                  .root = (int)turn % tutti_comm_size(comm),
                  .shared = (call_mode)(turn % CALL_MODES),
                  .seed = turn};
        TUTTI_TRY(call_run(&c, comm));
    }
    return TUTTI_OK;
}

static tutti_status calls(void) {
    tutti_comm *comm;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    tutti_status status = call_all(comm);
    tutti_comm_destroy(comm);
    return status;
}

/* -------------------------------------------------------------------------------------------------- RDMA */

/* To the next rank, in two sizes. */
static tutti_status send_round(tutti_comm *comm) {
    static char out[100000], in[100000];
    int rank = tutti_comm_rank(comm), n = tutti_comm_size(comm);
    for (size_t bytes = 100; bytes <= sizeof out; bytes *= 1000) {
        memset(out, rank + 1, bytes);
        TUTTI_TRY(tutti_group_begin(comm));
        TUTTI_TRY(tutti_send(comm, out, bytes, TUTTI_UINT8, (rank + 1) % n, 1, NULL));
        TUTTI_TRY(tutti_recv(comm, in, bytes, TUTTI_UINT8, (rank + n - 1) % n, 1, NULL));
        TUTTI_TRY(tutti_group_end(comm, NULL));
        if (in[0] != (rank + n - 1) % n + 1 || in[bytes - 1] != in[0])
            return tutti_fail(TUTTI_ERR_DATA, "%d came", in[0]);
    }
    return TUTTI_OK;
}

/* An event has happened meanwhile: new connections detect it. */
static tutti_status meet_again(const tutti_world *world, const char *file) {
    char own[256];
    tutti_comm *again;
    snprintf(own, sizeof own, "%s.%d", file, world->rank);
    FILE *made = fopen(own, "w");
    if (made == NULL || fclose(made) != 0) return tutti_fail(TUTTI_ERR_SYSTEM, "cannot make %s", own);
    for (int turn = 0; access(file, F_OK) != 0; turn++) {
        if (turn == 600) return tutti_fail(TUTTI_ERR_TIMEOUT, "%s did not come", file);
        usleep(100000);
    }
    TUTTI_TRY(tutti_comm_create_world(&again));
    tutti_comm_destroy(again);
    return TUTTI_OK;
}

static tutti_status rdma(const tutti_world *world, bool asks, const char *file) {
    tutti_comm *comm;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    tutti_status status = asks ? tutti_comm_init_rdma(comm) : tutti_barrier(comm, NULL);
    if (status == TUTTI_OK) status = file != NULL ? meet_again(world, file) : call_all(comm);
    if (status == TUTTI_OK && file == NULL) status = send_round(comm);
    tutti_comm_destroy(comm);
    return status;
}

/* ---------------------------------------------------------------------------------------------- stopping */

/* The job's store, in front of a rank that stops itself. */
typedef struct fatal_store {
    const tutti_store *inner;
    const char *kind, *key;
} fatal_store;

static void stop_at(const fatal_store *f, const char *kind, const char *key) {
    size_t bytes = strlen(key), suffix = strlen(f->key);
    if (strcmp(kind, f->kind) == 0 && bytes >= suffix && strcmp(key + bytes - suffix, f->key) == 0) raise(SIGSTOP);
}

static tutti_status fatal_set(void *context, const char *key, const void *value, size_t bytes) {
    const fatal_store *f = context;
    stop_at(f, "set", key);
    return f->inner->set(f->inner->context, key, value, bytes);
}

static tutti_status fatal_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                              int64_t timeout_ms) {
    const fatal_store *f = context;
    tutti_status status = f->inner->get(f->inner->context, key, value, capacity, bytes_out, timeout_ms);
    stop_at(f, "get", key);
    return status;
}

static tutti_status fatal_add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    const fatal_store *f = context;
    return f->inner->add(f->inner->context, key, amount, value_out);
}

static tutti_status fatal_check(void *context, const char *key, int *exists_out) {
    const fatal_store *f = context;
    return f->inner->check(f->inner->context, key, exists_out);
}

static tutti_status stop(const tutti_world *world, const char *kind, const char *key) {
    tutti_rendezvous *rendezvous;
    tutti_comm *comm;
    TUTTI_TRY(tutti_rendezvous_open(world, &rendezvous));
    fatal_store fatal = {.inner = tutti_rendezvous_store(rendezvous), .kind = kind, .key = key};
    const tutti_store store = {.struct_bytes = sizeof store,
                               .context = &fatal,
                               .set = fatal_set,
                               .get = fatal_get,
                               .add = fatal_add,
                               .check = fatal_check};
    tutti_status status =
        tutti_comm_create(world->rank, world->size, &store, tutti_rendezvous_prefix(rendezvous), NULL, &comm);
    if (status == TUTTI_OK) tutti_comm_destroy(comm);
    tutti_rendezvous_close(rendezvous);
    return status;
}

static tutti_status configure(int argc, char **argv) {
    const char *nodes[8];
    int nnodes = 0;
    char *copy = strdup(argv[4]), *rest = copy;
    for (char *node; strcmp(argv[4], "-") != 0 && nnodes < 8 && (node = strsep(&rest, ",")) != NULL;)
        nodes[nnodes++] = node;
    printf("configures\n");
    tutti_status status =
        tutti_world_configure(&TUTTI_WORLD_CONFIG(.nodes = nnodes > 0 ? nodes : NULL, .nnodes = nnodes,
                                                  .ctrl_port = atoi(argv[3]), .device_num = atoi(argv[2])),
                              argc, argv);
    free(copy);
    return status;
}

int main(int argc, char **argv) {
    const bool configures = argc > 5 && strcmp(argv[1], "configure") == 0;
    const char *what = configures ? argv[5] : argc > 1 ? argv[1] : "meet";
    tutti_world world;
    tutti_status status = configures ? configure(argc, argv) : TUTTI_OK;
    if (status == TUTTI_OK) status = tutti_world_get(&world);
    if (status == TUTTI_OK && strcmp(what, "meet") == 0) status = meet(&world);
    if (status == TUTTI_OK && strcmp(what, "reduce") == 0) status = reduce(&world);
    if (status == TUTTI_OK && strcmp(what, "calls") == 0) status = calls();
    if (status == TUTTI_OK && strcmp(what, "rdma") == 0)
        status = rdma(&world, /* asks */ true, argc > 2 ? argv[2] : NULL);
    if (status == TUTTI_OK && strcmp(what, "anew") == 0 && argc > 2) status = rdma(&world, /* asks */ false, argv[2]);
    if (status == TUTTI_OK && strcmp(what, "stop") == 0 && argc > 3) status = stop(&world, argv[2], argv[3]);
    if (status == TUTTI_OK && strcmp(what, "reduce") == 0) status = tutti_world_get(&world);
    if (status != TUTTI_OK) {
        fprintf(stderr, "world_probe: %s\n", tutti_last_error());
        return 1;
    }
    printf("rank %d of %d, local %d of %d, node %d of %d: %s\n", world.rank, world.size, world.local_rank,
           world.local_size, world.node, world.nodes,
           strcmp(what, "reduce") == 0  ? "summed"
           : strcmp(what, "calls") == 0 ? "called"
           : strcmp(what, "rdma") == 0  ? "called"
           : strcmp(what, "meet") == 0  ? "met"
                                        : "is there");
    return 0;
}
