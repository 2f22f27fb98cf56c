/*
 * A process between two hosts that accepts their connections and passes bytes on: host 2, through which hosts 0 and 1
 * send their traffic to each other (the test sets the routes). It changes bytes in long runs of zeros, or nothing.
 *
 * With TUTTI_ENCRYPT=1 no changed byte is accepted as data. Without it, a host on the way can change data: that is
 * documented, and shown here, so that the test with encryption means something. A proxy that changes nothing does no
 * harm; nor does a translation of the address from which a host connects. An address that leads to another endpoint
 * is refused.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/netfilter_ipv4.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "comm/init/address_exchange.h"
#include "comm/net/transport/transport.h"
#include "tests/support/hosts/scene.h"

TestSuite(hosts_proxy, .timeout = 150);

#define SECRET "TUTTI_SECRET=the word that all hosts know"
enum { PORT = 9000, ZEROS = 4096, MOST_PASSES = 64 };

static const char *const plain[] = {"TUTTI_TRANSPORT=tcp", SECRET, "TUTTI_TIMEOUT_MS=8000",
                                    "TUTTI_CONNECT_TIMEOUT_MS=4000", NULL};
static const char *const open_to_all[] = {"TUTTI_TRANSPORT=tcp", "TUTTI_TIMEOUT_MS=8000",
                                          "TUTTI_CONNECT_TIMEOUT_MS=4000", NULL};
static const char *const encrypted[] = {"TUTTI_ENCRYPT=1", SECRET, "TUTTI_TIMEOUT_MS=8000",
                                        "TUTTI_CONNECT_TIMEOUT_MS=4000", NULL};

typedef struct play {
    bool changes;         /* the proxy changes bytes */
    bool expects_changed; /* ranks may get changed bytes */
    bool in_the_store;    /* false addresses in the store lead to the proxy, not routes */
    const char *error;    /* words in the error of a rank; NULL: there is none */
} play;

/* ------------------------------------------------------------------------------------------------ the proxy */

typedef struct pass {
    int rank, listener; /* sockets: to the rank that connected, and to the one it connects to */
    bool changes;
} pass;

/* Returns true if bytes were passed on. Only the middle of a run of zeros is changed, so that messages stay well
 * formed. */
static bool pass_on(int from, int to, bool changes) {
    static _Thread_local char data[1 << 16];
    static const char zeros[ZEROS];
    ssize_t got = recv(from, data, sizeof data, 0);
    if (got <= 0) return false;
    char *place = changes ? memmem(data, (size_t)got, zeros, sizeof zeros) : NULL;
    if (place != NULL) place[sizeof zeros / 2] = 1;
    /* Encrypted data has no runs of zeros. */
    if (changes && place == NULL && got > 2 * ZEROS) data[got / 2] ^= 1;
    for (ssize_t done = 0, now; done < got; done += now)
        if ((now = send(to, data + done, (size_t)(got - done), MSG_NOSIGNAL)) <= 0) return false;
    return true;
}

static void *pass_both_ways(void *argument) {
    pass *p = argument;
    struct pollfd waited[] = {{.fd = p->rank, .events = POLLIN}, {.fd = p->listener, .events = POLLIN}};
    while (poll(waited, 2, -1) > 0) {
        if (waited[0].revents != 0 && !pass_on(p->rank, p->listener, p->changes)) break;
        if (waited[1].revents != 0 && !pass_on(p->listener, p->rank, p->changes)) break;
    }
    close(p->rank);
    close(p->listener);
    free(p);
    return NULL;
}

/* Finds the address that the rank connects to; where that is host 2 itself, the other one of hosts 0 and 1. */
static bool find_meant(int rank, struct sockaddr_in *meant) {
    struct sockaddr_in from, third = {.sin_family = AF_INET};
    socklen_t bytes = sizeof *meant, from_bytes = sizeof from;
    if (getsockopt(rank, IPPROTO_IP, SO_ORIGINAL_DST, meant, &bytes) != 0) return false;
    if (getpeername(rank, (struct sockaddr *)&from, &from_bytes) != 0) return false;
    inet_pton(AF_INET, "10.77.0.3", &third.sin_addr);
    if (meant->sin_addr.s_addr != third.sin_addr.s_addr) return true;
    inet_pton(AF_INET, "10.77.0.1", &meant->sin_addr);
    if (from.sin_addr.s_addr == meant->sin_addr.s_addr) inet_pton(AF_INET, "10.77.0.2", &meant->sin_addr);
    return true;
}

static void begin_pass(int rank, bool changes) {
    struct sockaddr_in meant;
    pass *p = malloc(sizeof *p);
    pthread_t thread;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p != NULL && find_meant(rank, &meant) && connect(listener, (struct sockaddr *)&meant, sizeof meant) == 0) {
        *p = (pass){.rank = rank, .listener = listener, .changes = changes};
        if (pthread_create(&thread, NULL, pass_both_ways, p) == 0) {
            pthread_detach(thread);
            return;
        }
    }
    free(p);
    close(rank);
    close(listener);
}

/* Runs the proxy until the other ranks are done. */
static tutti_status be_between(const play *p) {
    const struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int one = 1, passes = 0, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    RANKS_CHECK(bind(listener, (const struct sockaddr *)&place, sizeof place) == 0 && listen(listener, 64) == 0,
                "cannot listen: %s", strerror(errno));
    TUTTI_TRY(netns_shell(hosts_network(), 2,
                          "nft add table ip between && "
                          "nft add chain ip between in '{ type nat hook prerouting priority -100; }' && "
                          "nft add rule ip between in iifname eth0 ip protocol tcp redirect to :%d",
                          PORT));
    for (int host = 0; host < 2 && !p->in_the_store; host++)
        TUTTI_TRY(netns_shell(hosts_network(), host, "ip route add 10.77.0.%d/32 via 10.77.0.3", 2 - host));
    atomic_fetch_add(&scene_now()->flag, 1);
    while (atomic_load(&scene_now()->flag) < 3) {
        poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 10);
        int rank = accept(listener, NULL, NULL);
        if (rank < 0) continue;
        passes++;
        begin_pass(rank, p->changes);
    }
    RANKS_CHECK(passes > (p->in_the_store ? -1 : 1), "only %d connections came this way", passes);
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------------- ranks */

/* Zeros go from rank 0 to rank 1, and sums of zeros both ways; gives the number of bytes that arrived changed. */
static tutti_status exchange_zeros(const ranks_context *context, tutti_comm *comm, size_t *changed_out) {
    enum { BYTES = 1 << 20 };
    static char data[BYTES];
    for (int turn = 0; turn < 8; turn++) {
        memset(data, 0, sizeof data);
        if (turn % 2 == 0) TUTTI_TRY(tutti_all_reduce(comm, data, data, BYTES / 8, TUTTI_INT64, TUTTI_SUM, NULL));
        else if (context->rank == 0) TUTTI_TRY(tutti_send(comm, data, BYTES, TUTTI_UINT8, 1, 1, NULL));
        else TUTTI_TRY(tutti_recv(comm, data, BYTES, TUTTI_UINT8, 0, 1, NULL));
        for (size_t i = 0; i < BYTES; i++) *changed_out += data[i] != 0;
    }
    return TUTTI_OK;
}

/* A store with forged values: they say that the other host's listeners are at host 2. */
static tutti_status lie(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                        int64_t timeout_ms) {
    const ranks_context *own = context;
    const char truth[] = {10, 77, 0, (char)(2 - own->rank)};
    tutti_status status = own->store->get(own->store->context, key, value, capacity, bytes_out, timeout_ms);
    char *place = value, *end = place + (status == TUTTI_OK ? *bytes_out : 0);
    if (strstr(key, "/addresses") == NULL) return status;
    while ((place = memmem(place, (size_t)(end - place), truth, sizeof truth)) != NULL) place[3] = 3;
    return status;
}

static tutti_status lie_set(void *context, const char *key, const void *value, size_t bytes) {
    const tutti_store *store = ((const ranks_context *)context)->store;
    return store->set(store->context, key, value, bytes);
}

static tutti_status lie_add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    const tutti_store *store = ((const ranks_context *)context)->store;
    return store->add(store->context, key, amount, value_out);
}

static tutti_status lie_check(void *context, const char *key, int *exists_out) {
    const tutti_store *store = ((const ranks_context *)context)->store;
    return store->check(store->context, key, exists_out);
}

static tutti_status work_through_it(ranks_context *context) {
    const play *p = context->argument;
    const tutti_store liar = {.struct_bytes = sizeof liar,
                              .context = context,
                              .set = lie_set,
                              .get = lie,
                              .add = lie_add,
                              .check = lie_check};
    tutti_comm *comm = NULL;
    size_t changed = 0;
    char text[2048];
    if (context->rank == 2) return be_between(p);
    while (atomic_load(&scene_now()->flag) < 1) usleep(1000);
    tutti_status status =
        tutti_comm_create(context->rank, 2, p->in_the_store ? &liar : context->store, "pair", NULL, &comm);
    if (status == TUTTI_OK) status = exchange_zeros(context, comm, &changed);
    snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
    if (comm != NULL) tutti_comm_destroy(comm);
    atomic_fetch_add(&scene_now()->flag, 1);
    RANKS_CHECK((status == TUTTI_OK) == (p->error == NULL), "'%s' (%s)", tutti_status_name(status), text);
    RANKS_CHECK(p->expects_changed || changed == 0, "%zu bytes came changed (%s)", changed, text);
    bool says = p->error != NULL && strstr(text, p->error) != NULL;
    if (changed > 0 || says) atomic_fetch_add(&scene_now()->warm, 1);
    return TUTTI_OK;
}

static void need_nft(void) {
    HOSTS_NEED(0);
    if (system("PATH=$PATH:/usr/sbin:/sbin unshare --net nft list tables >/dev/null 2>&1") != 0)
        cr_skip_test("needs nft, and permission to use it");
}

static void run(play p, const char *const *environment) {
    need_nft();
    scene_set(0, 1);
    scene_run(
        &(hosts_options){
            .ranks_per_host = LAYOUT(1, 1, 1), .no_comm = true, .environment = environment, .argument = &p},
        work_through_it);
    if (p.error != NULL) cr_assert_gt(atomic_load(&scene_now()->warm), 0, "no rank says \"%s\"", p.error);
}

static void need_tls(void) {
    if (tutti_tls_transport.check() != TUTTI_OK) cr_skip_test("%s", tutti_last_error());
}

Test(hosts_proxy, a_proxy_that_changes_nothing_does_no_harm) {
    run((play){.changes = false}, plain);
}

Test(hosts_proxy, a_proxy_that_changes_nothing_does_no_harm_with_encryption) {
    need_tls();
    run((play){.changes = false}, encrypted);
}

Test(hosts_proxy, with_encryption_a_changed_byte_is_an_error) {
    need_tls();
    run((play){.changes = true, .error = "tls"}, encrypted);
}

/* Otherwise the test above would prove nothing. */
Test(hosts_proxy, without_encryption_a_changed_byte_is_accepted) {
    run((play){.changes = true, .expects_changed = true}, plain);
    cr_assert_gt(atomic_load(&scene_now()->warm), 0, "no rank got a changed byte");
}

/* ------------------------------------------------------------------------------------------ false addresses */

Test(hosts_proxy, with_a_secret_a_false_address_in_the_store_is_not_believed) {
    run((play){.in_the_store = true, .changes = true, .error = "another process has written it"}, plain);
}

Test(hosts_proxy, a_connection_that_a_false_address_relays_is_refused) {
    run((play){.in_the_store = true, .changes = true, .error = "another address or port"}, open_to_all);
}

/* ------------------------------------------------------------------------------------- translated addresses */

/* Each host connects from an address that its listener does not announce. */
static tutti_status work_behind_translation(ranks_context *context) {
    size_t changed = 0;
    tutti_comm *comm;
    TUTTI_TRY(netns_shell(hosts_network(), context->rank,
                          "ip addr add 10.77.0.%d/32 dev lo && nft add table ip away && "
                          "nft add chain ip away out '{ type nat hook postrouting priority 100; }' && "
                          "nft add rule ip away out oifname eth0 ip protocol tcp snat to 10.77.0.%d",
                          100 + context->rank, 100 + context->rank));
    TUTTI_TRY(tutti_comm_create(context->rank, 2, context->store, "pair", NULL, &comm));
    tutti_status status = exchange_zeros(context, comm, &changed);
    tutti_comm_destroy(comm);
    RANKS_CHECK(changed == 0, "%zu bytes came changed", changed);
    return status;
}

Test(hosts_proxy, a_host_that_connects_from_a_translated_address_is_let_in) {
    need_nft();
    scene_set(0, 1);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .no_comm = true, .environment = plain},
              work_behind_translation);
}
