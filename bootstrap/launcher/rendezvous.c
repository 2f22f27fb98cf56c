/*
 * The job's store, found from the launcher's variables.
 *
 * If the launcher hosts the store, every rank is a client. Otherwise rank 0 serves it in this process, at the
 * address that meeting.h determines, from the first rendezvous to the process's end: a rank that has finished with
 * one communicator may return for the next at any time. A rank that closes its rendezvous reports it in the store;
 * rank 0 waits for all of them, so that no rank loses the store while it still reads.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/meeting.h"
#include "bootstrap/launcher/world.h"
#include "bootstrap/store/secret.h"
#include "bootstrap/store/store.h"

enum {
    JOIN_MS = 3000,  /* how long a store behind a port in use may take to answer */
    LEAVE_MS = 5000, /* how long rank 0 waits for the others at close */
    HURRY_MS = 1500  /* the same if the others only have to read the reason of a failure */
};

struct tutti_rendezvous {
    tutti_store_client *client;
    tutti_store store;
    char prefix[320];
    int rank, nranks;
    bool agent;  /* the launcher hosts the store */
    bool serves; /* this process serves it */
    int64_t leave_ms;
};

/* The store that this process serves. Under TUTTI_LOCK_OWN_STORE. */
static struct {
    tutti_store_server *server;
    pid_t owner; /* a forked child has the memory, but not the thread */
    int port;
} own;

static atomic_int nopens;

/* Starts this process's store, or finds it running. Listens only where the ranks can reach it. */
static tutti_status serve(const tutti_meeting *where, const char *secret, const char *address, int *port_out) {
    tutti_status status = TUTTI_OK;
    tutti_lock(TUTTI_LOCK_OWN_STORE);
    bool have = own.server != NULL && own.owner == getpid() && (own.port == where->port || where->port == 0);
    if (!have) {
        if (own.server != NULL && own.owner == getpid()) tutti_store_server_stop(own.server);
        own.server = NULL;
        status = tutti_store_server_start(address, where->port, secret, &own.server);
        own.owner = getpid();
        own.port = status == TUTTI_OK ? tutti_store_server_port(own.server) : 0;
    }
    *port_out = own.port;
    tutti_unlock(TUTTI_LOCK_OWN_STORE);
    return status;
}

/* Runs when the process ends or the library is closed. */
__attribute__((destructor)) static void stop_serving(void) {
    if (own.server != NULL && own.owner == getpid()) tutti_store_server_stop(own.server);
    own.server = NULL;
}

/* A rank that waits for the store. */
typedef struct seeker {
    const tutti_meeting *where;
    tutti_notice notice;
} seeker;

static void say_late(void *context, int64_t waited_ns, const char *reason) {
    seeker *s = context;
    if (!tutti_notice_due(&s->notice, waited_ns)) return;
    tutti_log(TUTTI_LOG_WARN,
              "the start has waited %lld s for the store at %s:%d, where the ranks meet (%s so far); %s serves it; "
              "waits until TUTTI_CONNECT_TIMEOUT_MS",
              (long long)(waited_ns / TUTTI_NS_PER_S), s->where->host, s->where->port, reason,
              s->where->agent ? "the launcher on node 0" : "rank 0");
}

/* All ranks of a host wait for the same; only the first one logs it. */
static tutti_status seek(const tutti_world *world, const tutti_meeting *where, const char *secret, const char *host,
                         tutti_store_client **client_out) {
    seeker s = {.where = where};
    const tutti_store_client_options wanted = {.secret = secret,
                                               .connect_ms = tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS),
                                               .late = world->local_rank == 0 ? say_late : NULL,
                                               .context = &s};
    return tutti_store_client_reach(host, where->port, &wanted, client_out);
}

/* Rank 0 serves the store, or joins that of this user which has the port (a framework's, or another job's). */
static tutti_status serve_or_join(const tutti_world *world, tutti_rendezvous *rendezvous, const tutti_meeting *where,
                                  const char *secret) {
    const tutti_store_client_options wanted = {.secret = secret, .connect_ms = JOIN_MS};
    const char *address = tutti_meeting_listen_address(where->host);
    int port;
    tutti_status status = serve(where, secret, address, &port);
    if (status == TUTTI_OK) {
        rendezvous->serves = true;
        return seek(world, where, secret, address != NULL ? address : "127.0.0.1", &rendezvous->client);
    }
    if (status != TUTTI_ERR_CONFIG) return status;
    const tutti_error error = tutti_fail_save();
    TUTTI_TRY(tutti_store_check_holder(where->port));
    status = tutti_store_client_reach(where->host, where->port, &wanted, &rendezvous->client);
    if (status == TUTTI_ERR_REFUSED) return status;
    if (status != TUTTI_OK) return tutti_fail_again(TUTTI_ERR_CONFIG, &error);
    tutti_log(TUTTI_LOG_INFO, "joins the store that already listens at %s:%d", where->host, where->port);
    return TUTTI_OK;
}

/* The address that rank 0 published through the launcher's server: once per process, by all ranks together. */
static struct {
    tutti_meeting meeting;
    pid_t owner; /* 0: not published yet */
} known;

/* Rank 0 serves before it publishes the address. */
static tutti_status exchange(const tutti_world *world, const char *secret, tutti_meeting *where) {
    tutti_status status = TUTTI_OK;
    tutti_lock(TUTTI_LOCK_RENDEZVOUS);
    if (known.owner != getpid()) {
        int port = 0;
        char own_address[TUTTI_ADDRESS_TEXT_BYTES];
        if (world->rank == 0) status = serve(where, secret, tutti_meeting_own_address(world, own_address), &port);
        if (status == TUTTI_OK) status = tutti_meeting_exchange(world, port, where);
        known.meeting = *where;
        known.owner = status == TUTTI_OK ? getpid() : 0;
    }
    if (status == TUTTI_OK) *where = known.meeting;
    tutti_unlock(TUTTI_LOCK_RENDEZVOUS);
    return status;
}

static tutti_status reach(const tutti_world *world, const tutti_meeting *where, const char *secret,
                          tutti_rendezvous *rendezvous) {
    if (world->rank != 0 || where->agent) return seek(world, where, secret, where->host, &rendezvous->client);
    if (!where->exchange) return serve_or_join(world, rendezvous, where, secret);
    rendezvous->serves = true; /* since the exchange: at the one published address, or at all of them */
    bool several = strchr(where->host, ',') != NULL;
    return seek(world, where, secret, several ? "127.0.0.1" : where->host, &rendezvous->client);
}

static tutti_status open_with_secret(const tutti_world *world, const char *secret, tutti_rendezvous **rendezvous_out) {
    tutti_meeting where;
    tutti_rendezvous *rendezvous;
    TUTTI_TRY(tutti_meeting_find(world, &where));
    if (where.exchange) TUTTI_TRY(exchange(world, secret, &where));
    TUTTI_TRY(tutti_calloc(1, sizeof *rendezvous, &rendezvous));
    rendezvous->rank = world->rank;
    rendezvous->nranks = world->size;
    rendezvous->agent = where.agent;
    rendezvous->leave_ms = LEAVE_MS;
    snprintf(rendezvous->prefix, sizeof rendezvous->prefix, "tutti/%.256s/%d/%d", where.run, world->restart,
             atomic_fetch_add(&nopens, 1));
    tutti_status status = reach(world, &where, secret, rendezvous);
    if (status != TUTTI_OK) {
        free(rendezvous);
        return status;
    }
    rendezvous->store = tutti_store_client_callbacks(rendezvous->client);
    *rendezvous_out = rendezvous;
    return TUTTI_OK;
}

tutti_status tutti_rendezvous_open(const tutti_world *world, tutti_rendezvous **rendezvous_out) {
    char secret[TUTTI_SECRET_BYTES];
    bool is_set;
    tutti_status status = tutti_secret_get(secret, sizeof secret, &is_set);
    if (status == TUTTI_OK) status = open_with_secret(world, secret, rendezvous_out);
    explicit_bzero(secret, sizeof secret);
    return status;
}

const tutti_store *tutti_rendezvous_store(const tutti_rendezvous *rendezvous) {
    return &rendezvous->store;
}

const char *tutti_rendezvous_prefix(const tutti_rendezvous *rendezvous) {
    return rendezvous->prefix;
}

/* Counts the ranks that are done; the last one sets the key for which rank 0 waits. Fails only if a rank has ended. */
static void leave(tutti_rendezvous *rendezvous) {
    char key[384], word[8];
    const tutti_store *store = &rendezvous->store;
    int64_t left = 0;
    size_t bytes;
    snprintf(key, sizeof key, "%s/left", rendezvous->prefix);
    if (store->add(store->context, key, 1, &left) != TUTTI_OK) return;
    snprintf(key, sizeof key, "%s/all_left", rendezvous->prefix);
    if (left >= rendezvous->nranks) (void)store->set(store->context, key, "1", 1);
    else if (rendezvous->serves) (void)store->get(store->context, key, word, sizeof word, &bytes, rendezvous->leave_ms);
}

void tutti_rendezvous_hurry(tutti_rendezvous *rendezvous) {
    rendezvous->leave_ms = HURRY_MS;
}

void tutti_rendezvous_close(tutti_rendezvous *rendezvous) {
    if (rendezvous == NULL) return;
    const tutti_error error = tutti_fail_save(); /* the one that led to this close */
    if (!rendezvous->agent) leave(rendezvous);
    tutti_fail_again(TUTTI_OK, &error);
    tutti_store_client_close(rendezvous->client);
    free(rendezvous);
}
