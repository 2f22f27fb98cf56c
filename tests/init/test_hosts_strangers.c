/*
 * Processes that do not belong to the job: hosts with another secret, and strangers that connect to the ports on
 * which ranks listen, with garbage or in silence, while ranks work or still look for each other.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/net/listener_state.h"
#include "comm/shm/peer.h"
#include "tests/support/hosts/scene.h"
#include "tests/support/reference.h"

/* ---------------------------------------------------------------------------------------------- secrets */

static tutti_status join_with_secret(ranks_context *context) {
    const char *const *secrets = context->argument;
    tutti_comm *comm = NULL;
    setenv("TUTTI_SECRET", secrets[hosts_of(context->rank)], 1);
    tutti_settings_reload();
    tutti_status status = tutti_comm_create_world(&comm);
    bool equal = strcmp(secrets[0], secrets[1]) == 0;
    if (status == TUTTI_OK) {
        status = tutti_barrier(comm, NULL); /* so that links are made at first use */
        char text[512];
        snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
        tutti_comm_destroy(comm);
        if (status != TUTTI_OK) tutti_fail(status, "%s", text);
    }
    if (equal) return status;
    RANKS_CHECK(status != TUTTI_OK, "strangers work together");
    const char *text = tutti_last_error();
    if (strstr(text, "secret") != NULL) atomic_fetch_add(&scene_now()->flag, 1); /* the refused rank gets the reason */
    RANKS_CHECK(strstr(text, secrets[0]) == NULL && strstr(text, secrets[1]) == NULL, "reveals a secret: %s", text);
    return TUTTI_OK;
}

Test(hosts_strangers, hosts_with_one_secret_work_together) {
    HOSTS_NEED(0);
    scene_set(0, 1);
    static const char *const secrets[] = {"our word", "our word"};
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .no_comm = true, .argument = (void *)secrets},
              join_with_secret);
}

Test(hosts_strangers, hosts_with_different_secrets_do_not) {
    HOSTS_NEED(0);
    scene_set(0, 1);
    static const char *const secrets[] = {"our word", "their word"};
    static const char *const impatient[] = {"TUTTI_CONNECT_TIMEOUT_MS=5000", NULL};
    scene_run(
        &(hosts_options){
            .ranks_per_host = LAYOUT(1, 2), .no_comm = true, .environment = impatient, .argument = (void *)secrets},
        join_with_secret);
}

/* ------------------------------------------------------------------------------------------ without secrets */

/* Creates the world, a part of it whose rank 0 is another rank, and the world again. */
static tutti_status make_three(ranks_context *context) {
    tutti_comm *made[3] = {NULL};
    static const int part[] = {1, 2};
    TUTTI_TRY(tutti_comm_create(context->rank, 3, context->store, "first", NULL, &made[0]));
    if (context->rank > 0) {
        int rank = context->rank == part[0] ? 0 : 1;
        TUTTI_TRY(tutti_comm_create(rank, 2, context->store, "second", NULL, &made[1]));
    }
    TUTTI_TRY(tutti_comm_create(context->rank, 3, context->store, "third", NULL, &made[2]));
    for (int i = 0; i < 3; i++)
        if (made[i] != NULL) TUTTI_TRY(tutti_comm_destroy(made[i]));
    return TUTTI_OK;
}

/* Counts how often ranks log these words. */
static int count_words(const hosts_options *options, ranks_body body, const char *words) {
    static char log[65536];
    char path[] = "/tmp/tutti-log-XXXXXX";
    int fd = mkstemp(path), before = dup(2), count = 0;
    unlink(path);
    dup2(fd, 2);
    const char *failure = hosts_run(options, body);
    dup2(before, 2);
    ssize_t bytes = pread(fd, log, sizeof log - 1, 0);
    log[bytes > 0 ? bytes : 0] = '\0';
    close(before);
    close(fd);
    cr_assert(failure == NULL, "%s\n%s", failure, log);
    for (const char *at = log; (at = strstr(at, words)) != NULL; at++) count++;
    return count;
}

static int count_warnings(const int *layout, const char *const *environment) {
    const hosts_options options = {.ranks_per_host = layout, .no_comm = true, .environment = environment};
    return count_words(&options, make_three, "on 2 hosts without a secret");
}

Test(hosts_strangers, a_missing_secret_is_reported_once) {
    HOSTS_NEED(0);
    cr_assert_eq(count_warnings(LAYOUT(2, 1), NULL), 1);
}

Test(hosts_strangers, a_missing_secret_is_not_reported_where_it_is_intended) {
    HOSTS_NEED(0);
    static const char *const known[] = {"TUTTI_SECRET_REQUIRED=0", NULL}, *const quiet[] = {"TUTTI_LOG=error", NULL},
                             *const secret_word[] = {"TUTTI_SECRET=our word", NULL};
    cr_assert_eq(count_warnings(LAYOUT(2, 1), known), 0);
    cr_assert_eq(count_warnings(LAYOUT(2, 1), quiet), 0);
    cr_assert_eq(count_warnings(LAYOUT(2, 1), secret_word), 0);
    cr_assert_eq(count_warnings(LAYOUT(3), NULL), 0);
}

/* According to the launcher all ranks are on one host, and according to the store they are not: a process has joined
 * from another host. */
static tutti_status meet_an_uninvited(ranks_context *context) {
    tutti_comm *comm;
    if (context->rank == 0) setenv("LOCAL_WORLD_SIZE", "2", 1);
    tutti_status status = tutti_comm_create(context->rank, 2, context->store, "pair", NULL, &comm);
    bool refused = context->argument != NULL;
    RANKS_CHECK((status == TUTTI_OK) != refused, "'%s'", tutti_status_name(status));
    if (refused && context->rank == 0)
        RANKS_CHECK(strstr(tutti_last_error(), "has started all 2 on this one") != NULL, "%s", tutti_last_error());
    return refused ? TUTTI_OK : tutti_comm_destroy(comm);
}

Test(hosts_strangers, without_a_secret_no_process_joins_from_another_host_where_the_launcher_knows_one) {
    HOSTS_NEED(0);
    static const char *const impatient[] = {"TUTTI_CONNECT_TIMEOUT_MS=3000", NULL}, *const with_secret[] = {
                                                                                        "TUTTI_SECRET=our word", NULL};
    scene_set(0, 1);
    scene_run(
        &(hosts_options){.ranks_per_host = LAYOUT(1, 1), .no_comm = true, .environment = impatient, .argument = ""},
        meet_an_uninvited);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .no_comm = true, .environment = with_secret},
              meet_an_uninvited);
}

/* Writes what a host without the secret may leave in the store before the ranks join. */
static tutti_status leave_forgeries(ranks_context *context) {
    static const char *const keys[] = {"claim/1", "peer_info/1", "peer_table", "ranks", "addresses/1", "addresses"};
    static const size_t sizes[] = {8, 31, 32, 33, 0, 5000};
    static char value[5000] = "a forgery";
    const tutti_store *store = context->store;
    int64_t sum;
    char key[64];
    TUTTI_TRY(store->add(store->context, "pair/count/1", 3, &sum));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        snprintf(key, sizeof key, "pair/%s", keys[i]);
        TUTTI_TRY(store->set(store->context, key, value, sizes[i]));
    }
    atomic_fetch_add(&scene_now()->flag, 1);
    while (atomic_load(&scene_now()->flag) < 3) usleep(1000);
    return TUTTI_OK;
}

static tutti_status join_among_forgeries(ranks_context *context) {
    int64_t sum = context->rank;
    if (context->rank == 2) return leave_forgeries(context);
    while (atomic_load(&scene_now()->flag) < 1) usleep(1000);
    tutti_status status = tutti_comm_create(context->rank, 2, context->store, "pair", NULL, &context->comm);
    if (status == TUTTI_OK) status = tutti_all_reduce(context->comm, &sum, &sum, 1, TUTTI_INT64, TUTTI_SUM, NULL);
    atomic_fetch_add(&scene_now()->flag, 1);
    TUTTI_TRY(status);
    RANKS_CHECK(sum == 1, "the sum is %lld", (long long)sum);
    return TUTTI_OK;
}

/* Six forged values and a counter may be reported; the true "ranks" has replaced the forgery before any rank reads
 * it, and "addresses" usually, too. */
Test(hosts_strangers, with_a_secret_values_forged_in_the_store_are_named_and_ignored) {
    HOSTS_NEED(0);
    static const char *const with_secret[] = {"TUTTI_SECRET=our word", NULL};
    const hosts_options options = {.ranks_per_host = LAYOUT(1, 1, 1), .no_comm = true, .environment = with_secret};
    scene_set(0, 1);
    int count = count_words(&options, join_among_forgeries, " is ignored: ");
    cr_assert(count >= 3 && count <= 7, "%d lines", count);
}

/* -------------------------------------------------------------------------------------------- strangers */

/* Finds the ports on which the processes of a host listen, from /proc; returns their number. */
static int listening_ports(int pid, int *ports, int most) {
    char line[512];
    int n = 0;
    for (int version = 4; version <= 6; version += 2) {
        snprintf(line, sizeof line, "/proc/%d/net/tcp%s", pid, version == 6 ? "6" : "");
        FILE *file = fopen(line, "re");
        while (file != NULL && n < most && fgets(line, sizeof line, file) != NULL) {
            unsigned port, state;
            if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &port, &state) != 2 || state != 0x0A) continue;
            ports[n++] = (int)port;
        }
        if (file != NULL) fclose(file);
    }
    return n;
}

static int knock(int host, int port) {
    char address[16];
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, netns_address(host, address), &place.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (connect(fd, (void *)&place, sizeof place) != 0 && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 100);
    return fd;
}

/* Disturbs the listeners with garbage, half requests, silence and floods, until the others are done. No secret may
 * come back. */
static tutti_status disturb(ranks_context *context) {
    enum { KEPT = 200 };
    static int kept[KEPT];
    unsigned char garbage[300], answer[4096];
    int ports[16], knocks = 0;
    while (atomic_load(&scene_now()->flag) < 2) usleep(1000); /* both ranks have a communicator */
    for (uint64_t turn = 0; atomic_load(&scene_now()->flag) < 4; turn++) {
        int host = (int)(turn % 2), nports = listening_ports(ranks_pid(context, host), ports, 16);
        if (nports == 0 && atomic_load(&scene_now()->flag) == 2)
            return tutti_fail(TUTTI_ERR_DATA, "host %d listens nowhere", host);
        if (nports == 0) continue; /* one of the ranks has ended */
        int fd = knock(host, ports[turn / 2 % (uint64_t)nports]);
        if (fd < 0) continue;
        knocks++;
        for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (unsigned char)reference_hash(turn, i, 1);
        size_t bytes = turn % 5 == 0 ? 0 : 1 + (size_t)(reference_hash(turn, 0, 2) % sizeof garbage);
        ssize_t sent = send(fd, garbage, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        ssize_t got = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
        (void)sent;
        RANKS_CHECK(got <= 256, "a stranger got %zd bytes", got);
        if (kept[turn % KEPT] > 0) close(kept[turn % KEPT]); /* half open for a while */
        kept[turn % KEPT] = fd;
    }
    RANKS_CHECK(knocks > 10, "only %d knocks", knocks);
    return TUTTI_OK;
}

static tutti_status work_on(ranks_context *context) {
    if (context->rank == 2) return disturb(context);
    int rounds;
    context->nranks = 2;
    TUTTI_TRY(tutti_comm_create(context->rank, 2, context->store, "pair", NULL, &context->comm));
    atomic_fetch_add(&scene_now()->flag, 1);
    tutti_status status = scene_keep_summing(context, 4000, &rounds);
    atomic_fetch_add(&scene_now()->flag, 1);
    if (status == TUTTI_OK && rounds < 10) status = tutti_fail(TUTTI_ERR_DATA, "only %d rounds in 4 s", rounds);
    return status;
}

Test(hosts_strangers, strangers_that_connect_to_every_port_disturb_no_rank) {
    HOSTS_NEED(0);
    scene_set(0, 20000);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1, 1), .no_comm = true}, work_on);
}

/* ---------------------------------------------------------------------------------------------- replays */

static const char secret[] = "our word";
static uint8_t (*processes)[16]; /* ids of ranks 0 and 1, in shared memory */

/* Connects to a listener, sends the hello and gives the reply; returns the connection, or -1 if no listener answers. */
static int say_hello(int host, int port, tutti_listener_hello *hello, tutti_listener_reply *reply_out) {
    struct timeval limit = {.tv_sec = 5};
    int fd = knock(host, port);
    if (fd < 0) return -1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    hello->called = tutti_listener_called(fd, /* by_this_side */ true);
    if (send(fd, hello, sizeof *hello, MSG_NOSIGNAL) == (ssize_t)sizeof *hello &&
        recv(fd, reply_out, sizeof *reply_out, MSG_WAITALL) == (ssize_t)sizeof *reply_out)
        return fd;
    close(fd);
    return -1;
}

/* Returns the listener's verdict on the proof; closes the connection. */
static tutti_listener_verdict judge(int fd, const tutti_listener_proof *proof) {
    tutti_listener_accepted welcome = {.verdict = TUTTI_LISTENER_VERDICTS};
    (void)!send(fd, proof, sizeof *proof, MSG_NOSIGNAL);
    (void)!recv(fd, &welcome, sizeof welcome, MSG_WAITALL);
    close(fd);
    return (tutti_listener_verdict)welcome.verdict;
}

/* A process that knows the secret gets in; a process that repeats the overheard bytes does not. */
static tutti_status replay_at(int host, int port, int *replays) {
    tutti_conn_id conn_id = {.use = TUTTI_CONN_LINK, .lanes = 1, .comm_id = 1};
    tutti_listener_key key = {.bytes = strlen(secret)};
    tutti_listener_hello hello;
    tutti_listener_reply reply;
    tutti_listener_proof heard;
    uint8_t session[TUTTI_CONNECTION_KEY_BYTES];
    memcpy(key.key, secret, key.bytes);
    memcpy(conn_id.to, processes[host], sizeof conn_id.to);
    TUTTI_TRY(tutti_listener_make_hello(&conn_id, &key, 1, &hello));
    int fd = say_hello(host, port, &hello, &reply);
    if (fd < 0) return TUTTI_OK; /* the store listens there */
    RANKS_CHECK(tutti_listener_check_reply(&hello, &reply, &key, 1, &heard, session) == TUTTI_LISTENER_ACCEPTED,
                "verdict %u", reply.verdict);
    RANKS_CHECK(judge(fd, &heard) == TUTTI_LISTENER_ACCEPTED, "a process that knows the secret does not get in");
    fd = say_hello(host, port, &hello, &reply);
    RANKS_CHECK(fd >= 0, "no answer to a repeated hello");
    RANKS_CHECK(judge(fd, &heard) == TUTTI_LISTENER_UNPROVED, "a repeated proof was taken");
    ++*replays;
    return TUTTI_OK;
}

static tutti_status replay(ranks_context *context) {
    int ports[16], replays[2] = {0, 0};
    while (atomic_load(&scene_now()->flag) < 2) usleep(1000);
    for (int turn = 0; turn < 40 && atomic_load(&scene_now()->flag) == 2; turn++) {
        int nports = listening_ports(ranks_pid(context, turn % 2), ports, 16);
        for (int i = 0; i < nports && atomic_load(&scene_now()->flag) == 2; i++)
            TUTTI_TRY(replay_at(turn % 2, ports[i], &replays[turn % 2]));
    }
    RANKS_CHECK(replays[0] > 0 && replays[1] > 0, "%d and %d replays", replays[0], replays[1]);
    return TUTTI_OK;
}

static tutti_status work_among_replays(ranks_context *context) {
    tutti_peer *self;
    if (context->rank == 2) return replay(context);
    TUTTI_TRY(tutti_peer_self(&self));
    memcpy(processes[context->rank], self->id, sizeof self->id);
    return work_on(context);
}

Test(hosts_strangers, a_repeated_proof_is_refused_and_disturbs_no_rank) {
    HOSTS_NEED(0);
    static const char *const environment[] = {"TUTTI_SECRET=our word", NULL};
    processes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq((void *)processes, MAP_FAILED);
    scene_set(0, 20000);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1, 1), .no_comm = true, .environment = environment},
              work_among_replays);
}

/* ---------------------------------------------------------------------------------------------- listening */

/* The name of this host's interface with that IPv6 address, as /proc/net/tcp6 writes it. */
static void name_interface(const char *address, char name[32]) {
    uint32_t words[4];
    char wanted[33], line[256], found[33], of[32];
    FILE *file = fopen("/proc/self/net/if_inet6", "re");
    snprintf(name, 32, "nothing");
    if (file == NULL || sscanf(address, "%8x%8x%8x%8x", &words[0], &words[1], &words[2], &words[3]) != 4) return;
    for (int i = 0; i < 4; i++) snprintf(wanted + 8 * i, 9, "%08x", ntohl(words[i]));
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%32s %*x %*x %*x %*x %31s", found, of) == 2 && strcmp(found, wanted) == 0) strcpy(name, of);
    fclose(file);
}

/* Checks that this host listens on the allowed interface only. */
static tutti_status look_where_we_listen(ranks_context *context) {
    tutti_comm *comm;
    char line[512], address[64], name[32];
    unsigned own, state, found = 0;
    (void)context;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    TUTTI_TRY(tutti_barrier(comm, NULL));
    for (int version = 4; version <= 6; version += 2) {
        FILE *file = fopen(version == 6 ? "/proc/self/net/tcp6" : "/proc/self/net/tcp", "re");
        while (file != NULL && fgets(line, sizeof line, file) != NULL) {
            if (sscanf(line, " %*d: %63[0-9A-F]:%*x %*[0-9A-F]:%*x %x", address, &state) != 2 || state != 0x0A)
                continue;
            name[0] = '\0';
            if (version == 6) name_interface(address, name);
            else if (sscanf(address, "%x", &own) == 1 && ntohl(own) >> 8 == 0x0a4d00)
                strcpy(name, "eth0"); /* 10.77.0.x */
            RANKS_CHECK(strcmp(name, "eth0") == 0, "listens at %s (%s)", address, name);
            found++;
        }
        if (file != NULL) fclose(file);
    }
    RANKS_CHECK(found > 0, "listens nowhere");
    TUTTI_TRY(tutti_barrier(comm, NULL));
    return tutti_comm_destroy(comm);
}

Test(hosts_strangers, ranks_listen_on_the_interfaces_that_are_allowed_and_nowhere_else) {
    HOSTS_NEED(.decoys = true);
    static const char *const only_eth0[] = {"TUTTI_SOCKET_IFNAME==eth0", NULL},
                             *const no_decoys[] = {"TUTTI_SOCKET_IFNAME=^docker,tap,lo", NULL};
    scene_set(0, 1);
    scene_run(
        &(hosts_options){
            .ranks_per_host = LAYOUT(1, 2), .network = {.decoys = true}, .no_comm = true, .environment = only_eth0},
        look_where_we_listen);
    scene_run(
        &(hosts_options){
            .ranks_per_host = LAYOUT(2, 1), .network = {.decoys = true}, .no_comm = true, .environment = no_decoys},
        look_where_we_listen);
}

/* Connections that come while the ranks still look for each other. */
static tutti_status meet_among_strangers(ranks_context *context) {
    if (context->rank != 2) {
        tutti_comm *comm;
        usleep(context->rank == 1 ? 500000 : 0);
        tutti_status status = tutti_comm_create(context->rank, 2, context->store, "pair", NULL, &comm);
        if (status == TUTTI_OK) status = tutti_barrier(comm, NULL);
        atomic_fetch_add(&scene_now()->flag, 1);
        if (status == TUTTI_OK) tutti_comm_destroy(comm);
        return status;
    }
    int ports[16];
    for (uint64_t turn = 0; atomic_load(&scene_now()->flag) < 2; turn++) {
        int nports = listening_ports(ranks_pid(context, (int)(turn % 2)), ports, 16);
        int fd = nports > 0 ? knock((int)(turn % 2), ports[turn / 2 % (uint64_t)nports]) : -1;
        if (fd >= 0 && turn % 3 != 0) close(fd); /* the other connections stay half open */
        if (fd >= 0 && turn > 500) usleep(1000);
        if (fd < 0) usleep(100);
    }
    return TUTTI_OK;
}

Test(hosts_strangers, ranks_find_each_other_among_half_open_connections) {
    HOSTS_NEED(0);
    scene_set(0, 1);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1, 1), .no_comm = true}, meet_among_strangers);
}
