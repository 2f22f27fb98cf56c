/*
 * Encryption between hosts (TUTTI_ENCRYPT): results are right, no data shows on the wire, and no rank can be made to
 * skip encryption: not by other ranks' settings, not by forged values in the store.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/hmac.h"
#include "bootstrap/base/settings.h"
#include "comm/init/address_exchange.h"
#include "tests/support/hosts/hosts.h"
#include "tests/support/sweep.h"

#define LAYOUT(...) ((const int[]){__VA_ARGS__, 0})
#define PATTERN     "not readable on the net: 0123456789"
#define SECRET      "the word that all hosts know"

static const char *const encrypted[] = {"TUTTI_ENCRYPT=1", "TUTTI_SECRET=" SECRET, NULL};
static const char *const plain[] = {"TUTTI_TRANSPORT=tcp", "TUTTI_SECRET=" SECRET, NULL};

static void need_tls(void) {
    HOSTS_NEED(0);
    if (tutti_tls_transport.check() != TUTTI_OK) cr_skip_test("%s", tutti_last_error());
}

TestSuite(hosts_tls, .init = need_tls, .timeout = 150);

static void run(const hosts_options *options, ranks_body body) {
    const char *failure = hosts_run(options, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------ results */

static tutti_status sweep_kinds(ranks_context *context) {
    for (int i = 0; i < CALL_KINDS; i++) {
        call_kind kind = (call_kind)i;
        context->argument = &kind;
        TUTTI_TRY(sweep_rank(context));
    }
    return TUTTI_OK;
}

Test(hosts_tls, all_kinds_equal_the_reference) {
    run(&(hosts_options){.ranks_per_host = LAYOUT(1, 2), .environment = encrypted, .timeout_s = 140}, sweep_kinds);
}

/* A connection is there once both sides have done their part. If a rank computes for longer than the connect timeout,
 * ranks that send to it or wait for it are delayed, but their calls do not fail. */
static tutti_status come_late(ranks_context *context) {
    static int values[300000];
    int value = 7, last = context->nranks - 1;
    bool late = context->rank == last;
    if (late) sleep(3);
    if (context->rank == 0) TUTTI_TRY(tutti_send(context->comm, &value, 1, TUTTI_INT32, last, 1, NULL));
    if (late) TUTTI_TRY(tutti_recv(context->comm, &value, 1, TUTTI_INT32, 0, 1, NULL));
    if (late) TUTTI_TRY(tutti_send(context->comm, &value, 1, TUTTI_INT32, 1, 2, NULL));
    if (context->rank == 1) TUTTI_TRY(tutti_recv(context->comm, &value, 1, TUTTI_INT32, last, 2, NULL));
    RANKS_CHECK(value == 7, "%d came", value);
    if (late) sleep(3);
    TUTTI_TRY(tutti_all_reduce(context->comm, values, values, 300000, TUTTI_INT32, TUTTI_SUM, NULL));
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_tls, a_rank_that_computes_for_longer_than_the_connect_timeout_fails_no_call) {
    static const char *const hasty[] = {"TUTTI_ENCRYPT=1", "TUTTI_SECRET=" SECRET, "TUTTI_CONNECT_TIMEOUT_MS=1500",
                                        NULL};
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .environment = hasty}, come_late);
}

/* ------------------------------------------------------------------------------------------------ secrecy */

/* Looks at every packet of this host's eth0, both ways. */
typedef struct wiretap {
    int socket;
    atomic_bool stop;
    size_t packets, lost, patterns, secrets;
    pthread_t thread;
} wiretap;

static void *listen_in(void *argument) {
    wiretap *tap = argument;
    static unsigned char packet[1 << 17];
    struct tpacket_stats lost = {0};
    socklen_t bytes = sizeof lost;
    bool stop = false;
    while (!stop) {
        struct pollfd waited = {.fd = tap->socket, .events = POLLIN};
        stop = atomic_load(&tap->stop); /* and then reads the remaining packets */
        if (poll(&waited, 1, 20) <= 0) continue;
        for (ssize_t got; (got = recv(tap->socket, packet, sizeof packet, MSG_DONTWAIT)) > 0; tap->packets++) {
            tap->patterns += memmem(packet, (size_t)got, PATTERN, strlen(PATTERN)) != NULL;
            tap->secrets += memmem(packet, (size_t)got, SECRET, strlen(SECRET)) != NULL;
        }
    }
    if (getsockopt(tap->socket, SOL_PACKET, PACKET_STATISTICS, &lost, &bytes) == 0) tap->lost = lost.tp_drops;
    close(tap->socket);
    return NULL;
}

static tutti_status tap_wire(wiretap *tap) {
    int room = 64 << 20;
    struct sockaddr_ll place = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex("eth0")};
    *tap = (wiretap){.socket = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)};
    RANKS_CHECK(tap->socket >= 0, "no packet socket: %s", strerror(errno));
    if (setsockopt(tap->socket, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) != 0)
        setsockopt(tap->socket, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    RANKS_CHECK(bind(tap->socket, (struct sockaddr *)&place, sizeof place) == 0, "bind: %s", strerror(errno));
    RANKS_CHECK(pthread_create(&tap->thread, NULL, listen_in, tap) == 0, "no thread");
    return TUTTI_OK;
}

static void fill(char *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) data[i] = PATTERN[i % strlen(PATTERN)];
}

static tutti_status check(const char *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        RANKS_CHECK(data[i] == PATTERN[i % strlen(PATTERN)], "byte %zu of %zu is wrong", i, bytes);
    return TUTTI_OK;
}

/* Runs short and long collectives and messages that consist of the pattern. */
static tutti_status exchange_patterns(ranks_context *context, tutti_comm *comm) {
    static const size_t sizes[] = {48, 3000, 200000};
    static char src[200000], dst[400000];
    for (size_t i = 0; i < TUTTI_COUNT_OF(sizes); i++) {
        size_t bytes = sizes[i];
        memset(dst, 0, sizeof dst);
        fill(src, bytes);
        TUTTI_TRY(tutti_all_gather(comm, src, dst, bytes, TUTTI_UINT8, NULL));
        TUTTI_TRY(check(dst, bytes));
        TUTTI_TRY(check(dst + bytes, bytes));
        memset(dst, 0, sizeof dst);
        if (context->rank == 0) TUTTI_TRY(tutti_send(comm, src, bytes, TUTTI_UINT8, 1, 7, NULL));
        else TUTTI_TRY(tutti_recv(comm, dst, bytes, TUTTI_UINT8, 0, 7, NULL));
        if (context->rank == 1) TUTTI_TRY(check(dst, bytes));
    }
    return TUTTI_OK;
}

static tutti_status work_on_a_tapped_wire(ranks_context *context) {
    static wiretap tap;
    bool hidden = *(const bool *)context->argument;
    tutti_comm *comm = NULL;
    if (context->rank == 1) TUTTI_TRY(tap_wire(&tap));
    tutti_status status = tutti_comm_create_world(&comm);
    if (status == TUTTI_OK) status = exchange_patterns(context, comm);
    if (status == TUTTI_OK) usleep(1200000); /* heartbeats pass */
    tutti_comm_destroy(comm);
    if (context->rank != 1) return status;
    atomic_store(&tap.stop, true);
    pthread_join(tap.thread, NULL);
    TUTTI_TRY(status);
    RANKS_CHECK(tap.packets > 50 && tap.lost == 0, "saw %zu packets, missed %zu", tap.packets, tap.lost);
    RANKS_CHECK(tap.secrets == 0, "%zu packets show the secret", tap.secrets);
    RANKS_CHECK((tap.patterns == 0) == hidden, "%zu of %zu packets show what was sent", tap.patterns, tap.packets);
    return TUTTI_OK;
}

static void tap_while(bool hidden, const char *const *environment) {
    run(
        &(hosts_options){
            .ranks_per_host = LAYOUT(1, 1), .no_comm = true, .environment = environment, .argument = &hidden},
        work_on_a_tapped_wire);
}

Test(hosts_tls, nothing_of_the_data_shows_on_the_wire) {
    tap_while(/* hidden */ true, encrypted);
}

/* Otherwise the test above would prove nothing. */
Test(hosts_tls, without_encryption_the_data_shows_on_the_wire) {
    tap_while(/* hidden */ false, plain);
}

/* ------------------------------------------------------------------------------------------------ failure */

static tutti_status lose_rank(ranks_context *context) {
    int value = 1;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == 2) ranks_strike(context, SIGKILL);
    ranks_forgive(context, 2);
    int64_t start_ns = tutti_now_ns();
    tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK)
        status = tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_MAX, NULL);
    int64_t took_ms = (tutti_now_ns() - start_ns) / TUTTI_NS_PER_MS;
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED && took_ms < 2500, "'%s' after %lld ms: %s", tutti_status_name(status),
                (long long)took_ms, tutti_last_error());
    return TUTTI_OK;
}

Test(hosts_tls, a_death_is_reported_as_without_encryption) {
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .environment = encrypted}, lose_rank);
}

/* ------------------------------------------------------------------------------------------ doing without */

/* Creation must fail on all ranks, with this status and these words. */
typedef struct expectation {
    const char *of_host[2][2]; /* name and value of a setting */
    tutti_status status;
    const char *words[3];
} expectation;

static tutti_status join(ranks_context *context) {
    const expectation *e = context->argument;
    const char *const *setting = e->of_host[hosts_of(context->rank)];
    tutti_comm *comm = NULL;
    if (setting[0] != NULL) setenv(setting[0], setting[1], 1);
    tutti_settings_reload();
    tutti_status status = tutti_comm_create_world(&comm);
    if (status == TUTTI_OK) tutti_comm_destroy(comm);
    RANKS_CHECK(status == e->status, "'%s' (%s)", tutti_status_name(status),
                status != TUTTI_OK ? tutti_last_error() : "");
    for (int i = 0; i < 3 && e->words[i] != NULL; i++)
        RANKS_CHECK(strstr(tutti_last_error(), e->words[i]) != NULL, "no '%s' in: %s", e->words[i], tutti_last_error());
    return TUTTI_OK;
}

static void expect(const char *const *environment, expectation e) {
    run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .no_comm = true, .environment = environment, .argument = &e},
        join);
}

Test(hosts_tls, hosts_that_differ_in_it_do_not_work_together) {
    expect(plain + 1, (expectation){.of_host = {{"TUTTI_ENCRYPT", "1"}, {"TUTTI_ENCRYPT", "0"}},
                                    .status = TUTTI_ERR_CONFIG,
                                    .words = {"rank 1", "TUTTI_ENCRYPT=0", "TUTTI_ENCRYPT=1"}});
}

Test(hosts_tls, a_transport_that_does_not_encrypt_contradicts_it) {
    expect(encrypted, (expectation){.of_host = {{"TUTTI_TRANSPORT", "tcp"}, {"TUTTI_TRANSPORT", "tcp"}},
                                    .status = TUTTI_ERR_CONFIG,
                                    .words = {"TUTTI_TRANSPORT=tcp", "TUTTI_ENCRYPT=1"}});
}

Test(hosts_tls, it_needs_a_secret) {
    expect(NULL, (expectation){.of_host = {{"TUTTI_ENCRYPT", "1"}, {"TUTTI_ENCRYPT", "1"}},
                               .status = TUTTI_ERR_REFUSED,
                               .words = {"TUTTI_SECRET", "TUTTI_ENCRYPT"}});
}

/* A process that can write into the store claims for all ranks that they support only tcp. */
static const tutti_store *true_store;

static tutti_status lying_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                              int64_t timeout_ms) {
    TUTTI_TRY(true_store->get(context, key, value, capacity, bytes_out, timeout_ms));
    if (strstr(key, "/addresses") == NULL) return TUTTI_OK; /* the value of one host, and of all */
    tutti_listener_info before, listener;
    uint8_t *bytes = value;
    size_t at = 4 * sizeof(uint32_t);                                                /* behind the head */
    for (size_t took, end = *bytes_out - TUTTI_SHA256_BYTES; at < end; at += took) { /* up to the proof */
        took =
            tutti_address_exchange_unpack(bytes + at, end - at, at > 4 * sizeof(uint32_t) ? &before : NULL, &listener);
        RANKS_CHECK(took > 0, "no listeners in %s", key);
        listener.transports = UINT32_C(1) << 1;
        took = tutti_address_exchange_pack(&listener, at > 4 * sizeof(uint32_t) ? &before : NULL, bytes + at);
        before = listener;
    }
    return TUTTI_OK;
}

static tutti_status trust_the_store(ranks_context *context) {
    tutti_store store = *context->store;
    tutti_comm *comm = NULL;
    int value = 1;
    true_store = context->store;
    store.get = lying_get;
    RANKS_CHECK(tutti_transports[1] == &tutti_tcp_transport, "tcp is not the second transport any more");
    tutti_status status = tutti_comm_create(context->rank, context->nranks, &store, "lies", NULL, &comm);
    if (status == TUTTI_OK) status = tutti_all_reduce(comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL);
    char text[1024];
    snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
    tutti_comm_destroy(comm);
    RANKS_CHECK(status != TUTTI_OK, "the store was believed");
    bool names_cause = strstr(text, "not know this job's secret") != NULL ||
                       strstr(text, "addresses of its host's ranks before") != NULL;
    RANKS_CHECK(names_cause, "%s", text); /* the other rank may have given up earlier */
    return TUTTI_OK;
}

Test(hosts_tls, forged_values_in_the_store_do_not_turn_encryption_off) {
    static const char *const impatient[] = {"TUTTI_ENCRYPT=1", "TUTTI_SECRET=" SECRET, "TUTTI_CONNECT_TIMEOUT_MS=5000",
                                            "TUTTI_TIMEOUT_MS=8000", NULL};
    run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .no_comm = true, .environment = impatient}, trust_the_store);
}
