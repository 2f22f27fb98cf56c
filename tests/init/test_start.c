/*
 * The cost of a start: requests, bytes and depth at the store; descriptors, page tables and private memory of each
 * rank; time. Run it with --verbose -j1 to see the numbers.
 */
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/store/store.h"
#include "comm/init/address_exchange.h"
#include "comm/init/peer_table.h"
#include "tests/support/ranks.h"
#include "tests/support/stores/counting_store.h"
#include "tests/support/stores/hashed_store.h"
#include "tests/support/stores/served_store.h"

TestSuite(start, .timeout = 120);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURES = 0 }; /* a sanitizer distorts memory and times */
#else
enum { MEASURES = 1 };
#endif

enum { TRIES = 3, LIMIT_MS = 5000 };

/* What a rank holds once it is a member of a communicator. */
typedef struct holdings {
    int descriptors, maps;
    long page_tables_kib, private_kib;
    double create_ms;
} holdings;

/* Shared by the test and its ranks. */
typedef struct account {
    int port, nhosts;
    store_counts counts;
    holdings ranks[];
} account;

static int count_descriptors(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (directory == NULL) return -1;
    while (readdir(directory) != NULL) count++;
    closedir(directory);
    return count - 3; /* ".", "..", the directory itself */
}

/* Sums up the numbers behind `label` at the beginning of lines. */
static long sum_lines(const char *path, const char *label) {
    char line[256];
    long sum = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, label, strlen(label)) == 0) sum += atol(line + strlen(label));
    fclose(file);
    return sum;
}

static int count_lines(const char *path) {
    int count = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    for (int c; (c = fgetc(file)) != EOF;) count += c == '\n';
    fclose(file);
    return count;
}

static holdings take_stock(void) {
    return (holdings){.descriptors = count_descriptors(),
                      .maps = count_lines("/proc/self/maps"),
                      .page_tables_kib = sum_lines("/proc/self/status", "VmPTE:"),
                      .private_kib = sum_lines("/proc/self/smaps_rollup", "Private_Clean:") +
                                     sum_lines("/proc/self/smaps_rollup", "Private_Dirty:")};
}

/* Creates a communicator over a real store, measures before and after, and leaves. */
static tutti_status meet_and_leave(ranks_context *context) {
    account *a = context->argument;
    tutti_store_client *client;
    counting_store counting;
    char host[32];
    snprintf(host, sizeof host, "host-%d", context->rank * a->nhosts / context->nranks);
    setenv("TUTTI_HOST_ID", a->nhosts > 1 ? host : "", 1);
    tutti_settings_reload();
    TUTTI_TRY(
        tutti_store_client_reach("127.0.0.1", a->port, &(tutti_store_client_options){.connect_ms = 30000}, &client));
    tutti_store inner = tutti_store_client_callbacks(client);
    tutti_store store = counting_store_over(&inner, &a->counts, &counting);
    tutti_comm *comm;
    holdings before = take_stock();
    int64_t start_ns = tutti_now_ns();
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, &store, "start", NULL, &comm));
    int64_t end_ns = tutti_now_ns();
    holdings after = take_stock();
    a->ranks[context->rank] = (holdings){.descriptors = after.descriptors - before.descriptors,
                                         .maps = after.maps - before.maps,
                                         .page_tables_kib = after.page_tables_kib - before.page_tables_kib,
                                         .private_kib = after.private_kib - before.private_kib,
                                         .create_ms = (double)(end_ns - start_ns) / 1e6};
    TUTTI_TRY(tutti_barrier(comm, NULL));
    TUTTI_TRY(tutti_comm_destroy(comm));
    tutti_store_client_close(client);
    return TUTTI_OK;
}

/* The maximum of each over the ranks, without the first rank of each host. */
static holdings most_of_members(const account *a, int nranks) {
    holdings most = {0};
    for (int rank = 0; rank < nranks; rank++) {
        bool first = rank == 0 || rank * a->nhosts / nranks != (rank - 1) * a->nhosts / nranks;
        const holdings *one = &a->ranks[rank];
        if (one->create_ms > most.create_ms) most.create_ms = one->create_ms;
        if (first) continue;
        if (one->descriptors > most.descriptors) most.descriptors = one->descriptors;
        if (one->maps > most.maps) most.maps = one->maps;
        if (one->page_tables_kib > most.page_tables_kib) most.page_tables_kib = one->page_tables_kib;
        if (one->private_kib > most.private_kib) most.private_kib = one->private_kib;
    }
    return most;
}

static int log2_up(int n) {
    int log = 0;
    while (1 << log < n) log++;
    return log;
}

/* Successive round trips at the store: one to count the rank; two for each level of both trees, and for each value
 * that comes down. */
static int depth_limit(int nranks, int nhosts) {
    int table = 2 * (log2_up(nranks) + 2), listeners = nhosts > 1 ? 2 * (log2_up(nhosts) + 2) : 0;
    return 1 + table + listeners;
}

/* Runs the world and prints its cost; returns the time that it took. */
static double start(int nranks, int nhosts) {
    size_t bytes = sizeof(account) + (size_t)nranks * sizeof(holdings);
    account *a = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(a, MAP_FAILED);
    a->nhosts = nhosts;
    pid_t store = served_store_start(&a->port);
    cr_assert_gt(store, 0);
    int64_t start_ns = tutti_now_ns();
    const char *failure =
        ranks_run(&(ranks_options){.nranks = nranks, .no_comm = true, .timeout_s = 60, .argument = a}, meet_and_leave);
    double total_ms = (double)(tutti_now_ns() - start_ns) / 1e6;
    served_store_end(store);
    cr_assert(failure == NULL, "%s", failure);
    holdings most = most_of_members(a, nranks);
    cr_log_info(
        "%3d ranks, %d host%s: start and leave %.0f ms, of that creation %.0f ms; store: %lld requests, %lld bytes, "
        "%lld round trips deep; a rank holds %d descriptors (first: %d), %d maps, %ld KiB of page tables, "
        "%ld KiB private",
        nranks, nhosts, nhosts > 1 ? "s" : "", total_ms, most.create_ms, (long long)atomic_load(&a->counts.requests),
        (long long)atomic_load(&a->counts.bytes), (long long)atomic_load(&a->counts.depth), most.descriptors,
        a->ranks[0].descriptors, most.maps, most.page_tables_kib, most.private_kib);
    cr_assert_leq(most.descriptors, nhosts > 1 ? 12 : 2, "a rank of %d holds %d descriptors", nranks, most.descriptors);
    if (MEASURES)
        cr_assert_leq(most.page_tables_kib, 64, "a rank of %d has %ld KiB of page tables", nranks,
                      most.page_tables_kib);
    /* A rank that waits for long checks for the reason now and then. */
    cr_assert_leq((int)atomic_load(&a->counts.depth), 2 * depth_limit(nranks, nhosts));
    munmap(a, bytes);
    return total_ms;
}

Test(start, processes_of_one_host) {
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    start(16, 1);
    start(64, 1);
    double ms = start(256, 1);
    for (int i = 1; MEASURES && i < TRIES && ms >= LIMIT_MS; i++)
        ms = start(256, 1); /* a busy machine may take too long */
    if (MEASURES) cr_assert_lt(ms, LIMIT_MS, "256 ranks took %.0f ms", ms);
}

Test(start, processes_of_several_hosts) {
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    start(16, 2);
    start(64, 4);
}

/* ---------------------------------------------------------------------------------------------- simulated
 * The real exchanges, run by one thread for each rank, with a store within this process: counts their requests, without
 * the processes and their memory.
 */

enum { STACK_BYTES = 256 << 10, RANKS_PER_HOST = 8 };

typedef struct world {
    int nranks, nhosts;
    tutti_store store;
    store_counts counts;
    pthread_mutex_t lock;
    char failure[TUTTI_ERROR_TEXT_BYTES];
} world;

typedef struct simulated {
    world *w;
    int rank;
} simulated;

/* One rank's part: the peer table, and on a host's leader the addresses. */
static tutti_status take_part(world *w, int rank, const tutti_store *store) {
    tutti_peer_info info = {.rank = rank, .nranks = w->nranks, .pid = 1000 + rank, .most_cores = RANKS_PER_HOST};
    tutti_deadline deadline = tutti_deadline_after_ms(60000);
    tutti_place place;
    tutti_peer_table *table;
    int host = rank / RANKS_PER_HOST;
    snprintf(info.version, sizeof info.version, "%s", tutti_version());
    snprintf(info.host_id, sizeof info.host_id, "host-%d", host);
    snprintf(info.host, sizeof info.host, "node%d", host);
    snprintf(info.socket_name, sizeof info.socket_name, "socket-%d", rank);
    info.cores.words[0] = UINT64_C(1) << rank % RANKS_PER_HOST;
    TUTTI_TRY(tutti_peer_table_exchange(store, "simulated", &info, &deadline, &place, &table));
    char expected[64];
    snprintf(expected, sizeof expected, "socket-%d", host * RANKS_PER_HOST);
    RANKS_CHECK(place.host == host && place.nhosts == w->nhosts && place.leader == host * RANKS_PER_HOST &&
                    strcmp(place.socket_name, expected) == 0 && (table != NULL) == (place.leader == rank),
                "rank %d got host %d of %d, leader %d at %s", rank, place.host, place.nhosts, place.leader,
                place.socket_name);
    if (table == NULL) return TUTTI_OK;
    RANKS_CHECK(tutti_peer_table_hosts(table)[host].cores.words[0] == (UINT64_C(1) << RANKS_PER_HOST) - 1,
                "host %d has cores %llx", host, (unsigned long long)tutti_peer_table_hosts(table)[host].cores.words[0]);
    tutti_listener_info *listeners;
    TUTTI_TRY(tutti_calloc((size_t)w->nranks, sizeof *listeners, &listeners));
    for (int i = place.leader; i < place.leader + RANKS_PER_HOST; i++)
        listeners[i] =
            (tutti_listener_info){.port = (uint16_t)(1 + i), .naddresses = 1, .addresses[0].bytes[15] = (uint8_t)host};
    tutti_status status = tutti_address_exchange(store, "simulated", table, host, &deadline, listeners);
    for (int i = 0; i < w->nranks && status == TUTTI_OK; i++)
        if (listeners[i].port != (uint16_t)(1 + i) ||
            listeners[i].addresses[0].bytes[15] != (uint8_t)(i / RANKS_PER_HOST))
            status = tutti_fail(TUTTI_ERR_DATA, "rank %d got a wrong listener of rank %d", rank, i);
    free(listeners);
    free(table);
    return status;
}

static void *simulate(void *argument) {
    simulated *s = argument;
    counting_store counting;
    tutti_store store = counting_store_over(&s->w->store, &s->w->counts, &counting);
    if (take_part(s->w, s->rank, &store) != TUTTI_OK) {
        pthread_mutex_lock(&s->w->lock);
        snprintf(s->w->failure, sizeof s->w->failure, "rank %d: %s", s->rank, tutti_last_error());
        pthread_mutex_unlock(&s->w->lock);
    }
    return NULL;
}

static void run_simulation(world *w) {
    pthread_t *threads = calloc((size_t)w->nranks, sizeof *threads);
    simulated *all = calloc((size_t)w->nranks, sizeof *all);
    pthread_attr_t attributes;
    cr_assert(threads != NULL && all != NULL);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (int i = 0; i < w->nranks; i++) {
        int rank = w->nranks - 1 - i; /* so that few have to wait */
        all[rank] = (simulated){.w = w, .rank = rank};
        cr_assert_eq(pthread_create(&threads[rank], &attributes, simulate, &all[rank]), 0);
    }
    for (int rank = 0; rank < w->nranks; rank++) pthread_join(threads[rank], NULL);
    pthread_attr_destroy(&attributes);
    free(threads);
    free(all);
}

static void simulate_world(int nranks) {
    world w = {.nranks = nranks, .nhosts = nranks / RANKS_PER_HOST, .lock = PTHREAD_MUTEX_INITIALIZER};
    hashed_store *hashed = hashed_store_create(&w.store);
    cr_assert_not_null(hashed);
    int64_t start_ns = tutti_now_ns();
    run_simulation(&w);
    double ms = (double)(tutti_now_ns() - start_ns) / 1e6;
    hashed_store_destroy(hashed);
    cr_assert(w.failure[0] == '\0', "%s", w.failure);
    long long requests = atomic_load(&w.counts.requests), bytes = atomic_load(&w.counts.bytes);
    int depth = (int)atomic_load(&w.counts.depth);
    cr_log_info("%d ranks, %d hosts, simulated: %lld requests, %.1f MB, %d round trips deep, %.0f ms", nranks, w.nhosts,
                requests, (double)bytes / 1e6, depth, ms);
    cr_assert_leq(depth, 2 * depth_limit(nranks, w.nhosts)); /* a rank that waits for long checks for the reason */
    /* A rank counts itself, passes values on, is read, and reads two values; a rank announces a host, and the host's
     * leader reads, passes on and reads. */
    cr_assert_leq(requests, 8LL * nranks + 9LL * w.nhosts);
    /* A rank's own entry goes up each level; the peer table and the listeners go to each host. */
    cr_assert_leq(bytes, (long long)nranks * (1500 + 300 * log2_up(nranks)) + (long long)w.nhosts * nranks * 120);
}

Test(start, the_store_is_asked_in_logarithmic_depth) {
    simulate_world(1024);
    if (MEASURES) simulate_world(4096);
}
