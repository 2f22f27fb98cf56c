/*
 * The job's store, reached from the launcher's variables.
 *
 * Where the launcher hosts the store, every rank is a client. Else rank 0 serves it at MASTER_ADDR:MASTER_PORT,
 * in this process, from the first rendezvous to the process's end: a rank that has finished with one
 * communicator may come back for the next at any time. Whoever closes says so in the store; rank 0 waits for all,
 * so that nobody loses the store while he still reads.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/store.h"
#include "bootstrap/world.h"

enum {
    JOIN_MS = 3000, /* how long a port in use gets to prove that a store is behind it */
    LEAVE_MS = 5000 /* how long rank 0 waits for the others at close */
};

struct tutti_rendezvous {
    tutti_store_client *client;
    tutti_store store;
    char prefix[320];
    int rank, nranks;
    bool agent;  /* the launcher hosts the store */
    bool serves; /* this process does */
};

/* Where the store is. */
typedef struct place {
    const char *host;
    int port;
    bool agent;
} place;

/* The store that this process serves. Guarded by the lock. */
static struct {
    pthread_mutex_t lock;
    tutti_store_server *server;
    pid_t owner; /* a forked child has the memory, not the thread */
    int port;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

static atomic_int nopens;

static const char *shown(const char *value) {
    return value != NULL && *value != '\0' ? value : "not set";
}

static tutti_status read_place(const tutti_world *world, place *place_out) {
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    char *end = NULL;
    long number = port != NULL ? strtol(port, &end, 10) : 0;
    if (host == NULL || *host == '\0' || end == NULL || end == port || *end != '\0' || number < 1 || number > 65535)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "launcher variables: a world of %d needs MASTER_ADDR and MASTER_PORT (1 to 65535), to meet "
                          "in the store there (MASTER_ADDR: %.80s, MASTER_PORT: %.40s); start with tuttirun or "
                          "torchrun, or set them",
                          world->size, shown(host), shown(port));
    *place_out = (place){.host = host,
                         .port = (int)number,
                         .agent = agent != NULL && (strcasecmp(agent, "true") == 0 || strcmp(agent, "1") == 0)};
    return TUTTI_OK;
}

static bool is_loopback(const char *host) {
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

/* Starts this process's store, or finds it running. Listens only where the ranks can reach it. */
static tutti_status serve(const place *where) {
    tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&own.lock);
    if (own.server == NULL || own.owner != getpid() || own.port != where->port) {
        if (own.server != NULL && own.owner == getpid()) tutti_store_server_stop(own.server);
        own.server = NULL;
        const char *address = !is_loopback(where->host) ? NULL : strcmp(where->host, "::1") == 0 ? "::1" : "127.0.0.1";
        status = tutti_store_server_start(address, where->port, &own.server);
        own.owner = getpid();
        own.port = where->port;
    }
    pthread_mutex_unlock(&own.lock);
    return status;
}

/* When the process or the library ends. */
__attribute__((destructor)) static void stop_serving(void) {
    if (own.server != NULL && own.owner == getpid()) tutti_store_server_stop(own.server);
    own.server = NULL;
}

/* Rank 0's way: serve; where the port is taken by a store already (a framework's, say), join it. */
static tutti_status serve_or_join(tutti_rendezvous *rendezvous, const place *where) {
    tutti_status status = serve(where);
    if (status == TUTTI_OK) {
        rendezvous->serves = true;
        const char *host = is_loopback(where->host) ? where->host : "127.0.0.1";
        return tutti_store_client_connect(host, where->port, tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS),
                                          &rendezvous->client);
    }
    if (status != TUTTI_ERR_CONFIG) return status;
    char reason[512];
    snprintf(reason, sizeof reason, "%s", tutti_last_error());
    if (tutti_store_client_connect(where->host, where->port, JOIN_MS, &rendezvous->client) != TUTTI_OK)
        return tutti_fail(status, "%s", reason);
    tutti_log(TUTTI_LOG_INFO, "joins the store that is at %s:%d already", where->host, where->port);
    return TUTTI_OK;
}

tutti_status tutti_rendezvous_open(const tutti_world *world, tutti_rendezvous **rendezvous_out) {
    place where;
    tutti_rendezvous *rendezvous;
    const char *run_id = getenv("TORCHELASTIC_RUN_ID");
    TUTTI_TRY(read_place(world, &where));
    TUTTI_TRY(tutti_calloc(1, sizeof *rendezvous, &rendezvous));
    rendezvous->rank = world->rank;
    rendezvous->nranks = world->size;
    rendezvous->agent = where.agent;
    snprintf(rendezvous->prefix, sizeof rendezvous->prefix, "tutti/%.256s/%d/%d",
             run_id != NULL && *run_id != '\0' ? run_id : "none", world->restart, atomic_fetch_add(&nopens, 1));
    tutti_status status =
        world->rank == 0 && !where.agent
            ? serve_or_join(rendezvous, &where)
            : tutti_store_client_connect(where.host, where.port, tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS),
                                         &rendezvous->client);
    if (status != TUTTI_OK) {
        free(rendezvous);
        return status;
    }
    rendezvous->store = tutti_store_client_callbacks(rendezvous->client);
    *rendezvous_out = rendezvous;
    return TUTTI_OK;
}

const tutti_store *tutti_rendezvous_store(const tutti_rendezvous *rendezvous) {
    return &rendezvous->store;
}

const char *tutti_rendezvous_prefix(const tutti_rendezvous *rendezvous) {
    return rendezvous->prefix;
}

/* Counts the ranks that are done; the last one sets the key for which the host waits. Failures mean only that
 * somebody is gone already. */
static void leave(tutti_rendezvous *rendezvous) {
    char key[384], word[8];
    const tutti_store *store = &rendezvous->store;
    int64_t left = 0;
    size_t bytes;
    snprintf(key, sizeof key, "%s/left", rendezvous->prefix);
    if (store->add(store->context, key, 1, &left) != TUTTI_OK) return;
    snprintf(key, sizeof key, "%s/all_left", rendezvous->prefix);
    if (left >= rendezvous->nranks) (void)store->set(store->context, key, "1", 1);
    else if (rendezvous->serves) (void)store->get(store->context, key, word, sizeof word, &bytes, LEAVE_MS);
}

void tutti_rendezvous_close(tutti_rendezvous *rendezvous) {
    if (rendezvous == NULL) return;
    char error[TUTTI_ERROR_TEXT_BYTES]; /* the text of why this is closed is worth more than what happens here */
    snprintf(error, sizeof error, "%s", tutti_last_error());
    if (!rendezvous->agent) leave(rendezvous);
    (void)tutti_fail(TUTTI_OK, "%s", error);
    tutti_store_client_close(rendezvous->client);
    free(rendezvous);
}
