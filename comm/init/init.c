/*
 * Creates a communicator of ranks that meet in a store.
 *
 *   all          the peer table: the ranks, their hosts and the leader of each host (peer_table.h)
 *   one host     bootstrap with the leader: its segment, with a member and a page per rank, then all heaps
 *                (local_bootstrap.h)
 *   several      in between, the listeners of all processes: stored in the segment, and exchanged between the leaders
 *                through the store (address_exchange.h)
 */
#include "comm/init/init.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/launcher.h"
#include "bootstrap/store/secret.h"
#include "comm/base/namespace.h"
#include "comm/base/page.h"
#include "comm/init/address_exchange.h"
#include "comm/init/local_bootstrap.h"
#include "comm/net/hosts.h"
#include "comm/net/listener.h"
#include "comm/shm/flags.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"
#include "comm/shm/segment.h"

/* ----------------------------------------------------------------------------------------- the times of a start */

_Static_assert((int)TUTTI_TIMING_PHASES <= TUTTI_SHM_SEGMENT_PHASES, "the phases fit into a member");

static const char *const names[TUTTI_TIMING_PHASES] = {
    [TUTTI_TIMING_LAUNCHER] = "launcher",     [TUTTI_TIMING_STORE] = "store",
    [TUTTI_TIMING_MEMORY] = "memory",         [TUTTI_TIMING_PEER_TABLE] = "peer table",
    [TUTTI_TIMING_LOCAL] = "local bootstrap", [TUTTI_TIMING_ADDRESSES] = "addresses",
    [TUTTI_TIMING_MEETING] = "meeting",
};

static TUTTI_THREAD_LOCAL struct {
    int64_t last_ns;
    int64_t phase_ns[TUTTI_TIMING_PHASES];
} watch;

void tutti_timing_begin(void) {
    memset(&watch, 0, sizeof watch);
    watch.last_ns = tutti_now_ns();
}

void tutti_timing_over(tutti_timing_phase phase) {
    int64_t now_ns = tutti_now_ns();
    watch.phase_ns[phase] += now_ns - watch.last_ns;
    watch.last_ns = now_ns;
}

/* Stores this rank's times in its member of the segment, before the first barrier. */
static void store_times(tutti_shm_member *member) {
    memcpy(member->phase_ns, watch.phase_ns, sizeof watch.phase_ns);
}

/* The longest time of a phase among the host's ranks; of other ranks without the first barrier, which all share. */
static int64_t longest(const tutti_shm_segment *segment, int nmembers, int phase) {
    int64_t most_ns = watch.phase_ns[phase];
    for (int local_rank = 0; local_rank < nmembers; local_rank++) {
        int64_t ns = tutti_shm_segment_member(segment, local_rank)->phase_ns[phase];
        if (ns > most_ns) most_ns = ns;
    }
    return most_ns;
}

/* After the first barrier. */
static void log_times(const char *name, int nranks, int nhosts, const tutti_shm_segment *segment, int nmembers) {
    char text[512];
    size_t used = 0;
    int64_t total_ns = 0;
    text[0] = '\0';
    for (int phase = 0; phase < TUTTI_TIMING_PHASES; phase++) {
        int64_t own_ns = watch.phase_ns[phase], most_ns = longest(segment, nmembers, phase);
        total_ns += own_ns;
        if (most_ns == 0) continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "; %s %.1f", names[phase], (double)own_ns / 1e6);
        if (most_ns > own_ns + own_ns / 2 + TUTTI_NS_PER_MS)
            used += (size_t)snprintf(text + used, sizeof text - used, " (slowest %.1f)", (double)most_ns / 1e6);
    }
    tutti_log(TUTTI_LOG_INFO, "communicator \"%s\" of %d ranks on %d host%s is ready after %.1f ms%s", name, nranks,
              nhosts, nhosts > 1 ? "s" : "", (double)total_ns / 1e6, text);
}

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

typedef struct meeting {
    tutti_comm *comm;
    tutti_comm *local; /* communicator of this host's ranks: comm itself, or its hosts->local */
    const tutti_store *store;
    const char *prefix;
    tutti_status (*end)(tutti_comm *comm); /* opens the communicator and meets the other ranks */
    tutti_deadline deadline;
    tutti_peer_info own;
    tutti_place place;
    tutti_peer_table *table; /* leader */
    tutti_local_bootstrap bootstrap;
} meeting;

/* ---------------------------------------------------------------------------------------- this rank's info */

/* Number of the machine, from the id of this boot; 0: unknown. */
static uint64_t read_machine(void) {
    unsigned long long high = 0, middle = 0, low = 0;
    FILE *file = fopen(BOOT_ID, "re");
    if (file == NULL) return 0;
    int fields = fscanf(file, "%llx-%llx-%llx", &high, &middle, &low);
    fclose(file);
    return fields == 3 ? high << 32 | middle << 16 | low : 0;
}

static void read_host_id(char *text, size_t capacity) {
    const char *set = tutti_setting_text(TUTTI_SETTING_HOST_ID);
    snprintf(text, capacity, "%s", set);
    if (set[0] != '\0') return;
    FILE *file = fopen(BOOT_ID, "re");
    if (file == NULL || fgets(text, (int)capacity, file) == NULL) gethostname(text, capacity - 1);
    if (file != NULL) fclose(file);
    text[strcspn(text, "\n")] = '\0';
    /* The sockets over which descriptors of memory are passed reach only within a network namespace. */
    size_t used = strlen(text);
    uint64_t network = tutti_namespace_net();
    if (network != 0) snprintf(text + used, capacity - used, "/%llx", (unsigned long long)network);
}

/* This rank's info, except the name of its socket. */
static tutti_status fill_info(int rank, int nranks, tutti_peer_info *info_out) {
    tutti_peer *self;
    TUTTI_TRY(tutti_peer_self(&self));
    tutti_peer_info info = {.rank = rank, .nranks = nranks, .pid = getpid()};
    info.pid_space = tutti_namespace_pid();
    snprintf(info.version, sizeof info.version, "%s", tutti_version());
    tutti_settings_agreed(info.settings, sizeof info.settings);
    read_host_id(info.host_id, sizeof info.host_id);
    info.machine = read_machine();
    memcpy(info.host, self->host, sizeof info.host);
    tutti_cpus_allowed(&info.cores);
    info.most_cores = tutti_cpus_most();
    *info_out = info;
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------- several hosts */

/* Logged only by rank 0 of the first communicator over several hosts: once for the world, not for its subgroups. */
static void warn_unprotected(const meeting *m) {
    static atomic_flag seen = ATOMIC_FLAG_INIT;
    bool first = !atomic_flag_test_and_set(&seen);
    if (!first || m->comm->rank != 0) return;
    if (getenv(tutti_setting_row_of(TUTTI_SETTING_SECRET_REQUIRED)->name) != NULL)
        return; /* 0: the user has chosen this */
    tutti_log(TUTTI_LOG_WARN,
              "ranks are on %d hosts without a secret: any process that reaches the store can join the job or redirect "
              "ranks, and data is sent unencrypted; set TUTTI_SECRET_FILE on all ranks, and TUTTI_ENCRYPT=1 to encrypt "
              "(TUTTI_SECRET_REQUIRED=0 turns this warning off)",
              m->place.nhosts);
}

/* Adds the key that processes of other hosts must know. */
static tutti_status add_key(const meeting *m) {
    char secret[TUTTI_SECRET_BYTES];
    bool set;
    TUTTI_TRY(tutti_secret_get(secret, sizeof secret, &set));
    if (!set && tutti_setting_int(TUTTI_SETTING_SECRET_REQUIRED) != 0)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "TUTTI_SECRET_REQUIRED is set, but neither TUTTI_SECRET nor TUTTI_SECRET_FILE");
    if (!set && tutti_setting_int(TUTTI_SETTING_ENCRYPT) != 0)
        return tutti_fail(
            TUTTI_ERR_REFUSED,
            "TUTTI_ENCRYPT=1 needs TUTTI_SECRET or TUTTI_SECRET_FILE, equal on all hosts: without one, the "
            "key would be sent through the store, where other processes can read it");
    tutti_status status = set ? tutti_listener_add_key(secret, strlen(secret))
                              : tutti_listener_add_key(m->place.nonce, sizeof m->place.nonce);
    explicit_bzero(secret, sizeof secret);
    if (!set) warn_unprotected(m);
    return status;
}

/* Number of ranks of the world if the launcher has started all of them on one host; 0: it has not, or does not say. */
static int ranks_of_only_host(void) {
    const tutti_launcher_row *row = tutti_launcher_row_present();
    int values[TUTTI_GIVEN_COUNT];
    if (row == NULL || tutti_launcher_row_read(row, values) != TUTTI_OK) return 0;
    return values[TUTTI_GIVEN_SIZE] == values[TUTTI_GIVEN_LOCAL_SIZE] && values[TUTTI_GIVEN_SIZE] > 0
               ? values[TUTTI_GIVEN_SIZE]
               : 0;
}

/* Without a secret, a process of another user that can write to the store could become a rank by claiming to be on
 * another host. So the launcher is trusted before the store, to which other processes may have access. */
static tutti_status check_hosts(const meeting *m) {
    char secret[TUTTI_SECRET_BYTES];
    bool set;
    if (m->place.nhosts == 1) return TUTTI_OK;
    TUTTI_TRY(tutti_secret_get(secret, sizeof secret, &set));
    explicit_bzero(secret, sizeof secret);
    int only = set || *tutti_setting_text(TUTTI_SETTING_HOST_ID) != '\0' ? 0 : ranks_of_only_host();
    if (only == 0) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_REFUSED,
        "the store says that ranks are on %d hosts, but the launcher has started all %d on this one: another "
        "process has written into the store, or ranks run in network namespaces of their own; to allow "
        "that, set TUTTI_SECRET or TUTTI_SECRET_FILE, equal on all ranks",
        m->place.nhosts, only);
}

/* Creates the structure of the communicator over the hosts of the peer table. */
static tutti_status lay_out(meeting *m) {
    const tutti_peer_table *table = tutti_shm_segment_peer_table(m->bootstrap.segment);
    int nranks = m->comm->nranks, *keys;
    TUTTI_TRY(tutti_calloc((size_t)nranks, sizeof *keys, &keys));
    for (int rank = 0; rank < nranks; rank++) keys[rank] = tutti_peer_table_ranks(table)[rank].host;
    tutti_status status = tutti_hosts_create(m->comm, keys);
    free(keys);
    TUTTI_TRY(status);
    m->local = m->comm->net.hosts->local;
    tutti_listener_info *listeners = tutti_shm_segment_listeners(m->bootstrap.segment);
    m->comm->net.hosts->listeners = listeners;
    TUTTI_TRY(add_key(m));
    return tutti_listener_open(&listeners[m->comm->rank]);
}

/* Adds the ranks of other hosts as members. */
static tutti_status enter_far(const meeting *m) {
    const tutti_peer_table *table = tutti_shm_segment_peer_table(m->bootstrap.segment);
    for (int rank = 0; rank < m->comm->nranks; rank++) {
        const tutti_peer_table_rank *there = &tutti_peer_table_ranks(table)[rank];
        const tutti_listener_info *listener = &m->comm->net.hosts->listeners[rank];
        if (there->host == m->place.host) continue;
        tutti_process_info info = {.pid = there->pid};
        tutti_peer *process;
        memcpy(info.id, listener->process, sizeof info.id);
        memcpy(info.host, tutti_peer_table_hosts(table)[there->host].name, sizeof info.host);
        TUTTI_TRY(tutti_peer_admit_remote(&info, m->bootstrap.segment, listener, &process));
        tutti_hosts_enter_remote(m->comm, rank, process);
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ hosts */

/* Moves the rank's page, which no other rank has seen yet, into the segment. */
static void move_page(meeting *m, tutti_comm *comm) {
    comm->page = tutti_shm_segment_page(m->bootstrap.segment, m->bootstrap.local_rank);
    tutti_shm_segment_retain(m->bootstrap.segment);
    comm->shm.segment = m->bootstrap.segment;
}

static tutti_status fill_member(meeting *m) {
    tutti_peer *self;
    tutti_shm_member *member = tutti_shm_segment_member(m->bootstrap.segment, m->bootstrap.local_rank);
    TUTTI_TRY(tutti_peer_self(&self));
    member->info = (tutti_process_info){.heap_base = self->remote_base, .heap_bytes = self->bytes, .pid = self->pid};
    memcpy(member->info.id, self->id, sizeof self->id);
    memcpy(member->info.host, self->host, sizeof self->host);
    member->pid_space = m->own.pid_space;
    tutti_heap_free(m->comm->page);
    m->comm->page = NULL;
    move_page(m, m->comm);
    tutti_page_prepare(m->comm->page);
    tutti_comm_identify(m->comm, m->place.comm_id);
    if (m->place.nhosts == 1) return TUTTI_OK;
    TUTTI_TRY(lay_out(m));
    move_page(m, m->local);
    return TUTTI_OK;
}

/* Counts the cores that this host's ranks may use. If the ranks of all hosts on the same machine (containers, for
 * example) together have fewer cores per rank, those counts are used instead. */
static void count_cores(const meeting *m) {
    const tutti_peer_table *table = tutti_shm_segment_peer_table(m->bootstrap.segment);
    const tutti_peer_table_host *hosts = tutti_peer_table_hosts(table), *own = &hosts[m->place.host];
    tutti_core_mask cores = own->cores;
    int nranks = 0;
    for (int host = 0; host < table->nhosts; host++) {
        if (hosts[host].machine != own->machine) continue;
        tutti_cpus_add(&cores, &hosts[host].cores);
        nranks += hosts[host].nranks;
    }
    m->comm->host_ranks = own->nranks;
    m->comm->host_cores = tutti_cpus_count(&own->cores, own->most_cores);
    if (own->machine == 0 || tutti_setting_int(TUTTI_SETTING_CPUS) > 0) return;
    int ncores = tutti_cpus_count(&cores, INT_MAX); /* each host has its own limit */
    if ((int64_t)ncores * own->nranks >= (int64_t)m->comm->host_cores * nranks) return;
    m->comm->host_ranks = nranks;
    m->comm->host_cores = ncores;
}

/* All ranks of this host have filled in their members: the leader exchanges their addresses with other hosts, then
 * every rank maps the memory of all. */
static tutti_status share(meeting *m, tutti_status status) {
    bool leads = m->table != NULL;
    if (status == TUTTI_OK && leads && m->place.nhosts > 1) {
        tutti_timing_over(TUTTI_TIMING_LOCAL);
        status = tutti_address_exchange(m->store, m->prefix, m->table, m->place.host, &m->deadline,
                                        tutti_shm_segment_listeners(m->bootstrap.segment));
        tutti_timing_over(TUTTI_TIMING_ADDRESSES);
    }
    TUTTI_TRY(tutti_local_bootstrap_share(&m->bootstrap, status, m->local->members));
    if (m->place.nhosts == 1) return TUTTI_OK;
    tutti_hosts_adopt_local(m->comm);
    return enter_far(m);
}

static tutti_status meet(meeting *m) {
    tutti_status status = tutti_local_bootstrap_open(&m->bootstrap, m->table);
    if (status == TUTTI_OK) status = fill_member(m);
    status = tutti_local_bootstrap_ready(&m->bootstrap, status);
    if (status != TUTTI_OK && m->table == NULL) return status;
    TUTTI_TRY(share(m, status));
    count_cores(m);
    tutti_timing_over(TUTTI_TIMING_LOCAL);
    store_times(tutti_shm_segment_member(m->bootstrap.segment, m->bootstrap.local_rank));
    TUTTI_TRY(m->end(m->comm));
    tutti_shm_segment_close_fd(m->bootstrap.segment);
    tutti_timing_over(TUTTI_TIMING_MEETING);
    if (m->comm->rank == 0)
        log_times(m->comm->name, m->comm->nranks, m->place.nhosts, m->bootstrap.segment, m->place.neighbours);
    return TUTTI_OK;
}

tutti_status tutti_init_from_store(tutti_comm *comm, const tutti_store *store, const char *prefix,
                                   tutti_status (*end)(tutti_comm *comm)) {
    meeting m = {.comm = comm, .local = comm, .store = store, .prefix = prefix, .end = end};
    m.deadline = tutti_deadline_after_ms(comm->connect_timeout_ms);
    m.bootstrap = (tutti_local_bootstrap){.place = &m.place,
                                          .rank = comm->rank,
                                          .nranks = comm->nranks,
                                          .prefix = prefix,
                                          .deadline = &m.deadline,
                                          .listen_fd = -1,
                                          .connection = -1};
    tutti_timing_over(TUTTI_TIMING_MEMORY);
    tutti_status status = fill_info(comm->rank, comm->nranks, &m.own);
    if (status == TUTTI_OK) status = tutti_local_bootstrap_listen(m.own.socket_name, &m.bootstrap.listen_fd);
    if (status == TUTTI_OK) status = tutti_peer_table_exchange(store, prefix, &m.own, &m.deadline, &m.place, &m.table);
    tutti_timing_over(TUTTI_TIMING_PEER_TABLE);
    if (status == TUTTI_OK) status = check_hosts(&m);
    if (status == TUTTI_OK && m.table == NULL) { /* another rank leads */
        close(m.bootstrap.listen_fd);
        m.bootstrap.listen_fd = -1;
    } else if (status == TUTTI_OK) { /* this rank knows its own listener better than the store */
        memcpy(m.place.socket_name, m.own.socket_name, sizeof m.place.socket_name);
    }
    if (status == TUTTI_OK) status = meet(&m);
    tutti_local_bootstrap_close(&m.bootstrap);
    tutti_shm_segment_release(m.bootstrap.segment);
    free(m.table);
    return status;
}
