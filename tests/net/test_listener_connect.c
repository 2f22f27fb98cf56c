/*
 * The side that connects to a listener: it proves nothing to strangers, and its error says for each address why it
 * does not reach the listener.
 */
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/net/listener.h"
#include "comm/net/listener_state.h"
#include "tests/support/links/at_listener.h"

#define KEY "the job's key"

static void open_listener(void) {
    setenv("TUTTI_LOG", "error", 1); /* refusals are what is tested */
    cr_assert_eq(tutti_listener_add_key(KEY, sizeof KEY), TUTTI_OK);
    cr_assert_eq(tutti_listener_open(&own_listener), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_neq(own_listener.port, 0, "%s", own_listener.why);
}

TestSuite(listener_connect, .init = open_listener, .timeout = 60);

static bool receive(int fd, void *data, size_t bytes) {
    return recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* A listener that does not belong to the job, on the loopback interface. */
typedef struct false_listener {
    int fd;
    enum { SAYS_NOTHING, SAYS_GARBAGE, KNOWS_NOTHING, CLOSES } manner;
    bool saw_proof;
    tutti_listener_info info;
    pthread_t thread;
} false_listener;

static void *be_false(void *argument) {
    false_listener *listener = argument;
    for (int fd; (fd = accept(listener->fd, NULL, NULL)) >= 0; close(fd)) {
        struct timeval limit = {.tv_sec = 2};
        tutti_listener_hello hello;
        tutti_listener_proof proof;
        tutti_listener_reply reply = {.magic = TUTTI_LISTENER_MAGIC, .verdict = TUTTI_LISTENER_ACCEPTED};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (listener->manner == CLOSES || !receive(fd, &hello, sizeof hello)) continue;
        if (listener->manner == SAYS_GARBAGE) memset(&reply, 'G', sizeof reply);
        if (listener->manner != SAYS_NOTHING) (void)!send(fd, &reply, sizeof reply, MSG_NOSIGNAL);
        if (receive(fd, &proof, sizeof proof)) listener->saw_proof = true;
    }
    return NULL;
}

static void stand_false(false_listener *listener) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof name;
    listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener->fd, (struct sockaddr *)&name, bytes), 0);
    cr_assert_eq(listen(listener->fd, 10), 0);
    getsockname(listener->fd, (struct sockaddr *)&name, &bytes);
    listener->info = own_listener;
    listener->info.naddresses = 1;
    listener->info.port = ntohs(name.sin_port);
    listener->info.addresses[0] =
        (tutti_listener_address){.bytes = {[10] = 0xff, 0xff, 127, 0, 0, 1}, .interface = "lo"};
    cr_assert_eq(pthread_create(&listener->thread, NULL, be_false, listener), 0);
}

static tutti_status knock_at(false_listener *listener, int64_t timeout_ms) {
    tutti_conn_id conn_id = conn_id_of(20);
    tutti_deadline deadline = tutti_deadline_after_ms(timeout_ms);
    tutti_connection got = {.socket = -1};
    stand_false(listener);
    tutti_status status = tutti_listener_connect(&listener->info, &conn_id, &deadline, &got);
    shutdown(listener->fd, SHUT_RDWR);
    pthread_join(listener->thread, NULL);
    close(listener->fd);
    cr_assert_lt(got.socket, 0);
    return status;
}

Test(listener_connect, proves_nothing_to_a_process_without_the_key) {
    false_listener listener = {.manner = KNOWS_NOTHING};
    cr_assert_eq(knock_at(&listener, 5000), TUTTI_ERR_REFUSED);
    cr_assert(strstr(tutti_last_error(), "127.0.0.1") && strstr(tutti_last_error(), "secret"), "%s",
              tutti_last_error());
    cr_assert_not(listener.saw_proof);
}

Test(listener_connect, says_for_every_address_why_it_does_not_reach_the_listener) {
    false_listener garbage = {.manner = SAYS_GARBAGE}, silent = {.manner = SAYS_NOTHING}, closing = {.manner = CLOSES};
    cr_assert_eq(knock_at(&garbage, 5000), TUTTI_ERR_SYSTEM);
    cr_assert(strstr(tutti_last_error(), "not a process of this version"), "%s", tutti_last_error());
    cr_assert_eq(knock_at(&silent, 500), TUTTI_ERR_TIMEOUT);
    cr_assert(strstr(tutti_last_error(), "sends nothing"), "%s", tutti_last_error());
    cr_assert_eq(knock_at(&closing, 1000), TUTTI_ERR_TIMEOUT);
    cr_assert(strstr(tutti_last_error(), "closed the connection"), "%s", tutti_last_error());
    cr_assert_not(garbage.saw_proof || silent.saw_proof || closing.saw_proof);
    tutti_listener_info nowhere = {.why = "no network"};
    tutti_conn_id conn_id = conn_id_of(21);
    tutti_deadline deadline = tutti_deadline_after_ms(1000);
    tutti_connection got;
    cr_assert_eq(tutti_listener_connect(&nowhere, &conn_id, &deadline, &got), TUTTI_ERR_UNSUPPORTED);
    cr_assert(strstr(tutti_last_error(), "no network"));
}

Test(listener_connect, lists_all_addresses_where_none_reaches_the_listener) {
    tutti_listener_info many = own_listener;
    many.addresses[0] =
        (tutti_listener_address){.bytes = {[10] = 0xff, 0xff, 192, 0, 2, 1}, .interface = "far"}; /* RFC 5737 */
    many.addresses[1] = (tutti_listener_address){.bytes = {[10] = 0xff, 0xff, 127, 0, 0, 9}, .interface = "near"};
    many.naddresses = 2;
    many.port = 1; /* no process listens there */
    tutti_conn_id conn_id = conn_id_of(23);
    tutti_deadline deadline = tutti_deadline_after_ms(500);
    tutti_connection got = {.socket = -1};
    cr_assert_neq(tutti_listener_connect(&many, &conn_id, &deadline, &got), TUTTI_OK);
    const char *error = tutti_last_error();
    cr_assert(strstr(error, "\n  192.0.2.1 port 1 (its far): ") != NULL, "%s", error);
    cr_assert(strstr(error, "\n  127.0.0.9 port 1 (its near): connection refused") != NULL, "%s", error);
    cr_assert(strstr(error, "; on each host, this address leads to that host itself") != NULL, "%s", error);
    cr_assert(strstr(error, "TUTTI_SOCKET_IFNAME") != NULL, "%s", error);
}

Test(listener_connect, finds_the_right_address_among_wrong_ones) {
    tutti_listener_info many = own_listener;
    /* No host has the first address (RFC 5737), another process may listen at the second, the third is right. */
    many.addresses[0] = (tutti_listener_address){.bytes = {[10] = 0xff, 0xff, 192, 0, 2, 1}, .interface = "far"};
    many.addresses[1] = (tutti_listener_address){.bytes = {[10] = 0xff, 0xff, 127, 0, 0, 9}, .interface = "lo"};
    many.addresses[2] = own_listener.addresses[0];
    many.naddresses = 3;
    tutti_conn_id conn_id = conn_id_of(22);
    tutti_deadline deadline = tutti_deadline_after_ms(10000);
    tutti_connection got = {.socket = -1};
    int64_t start_ns = tutti_now_ns();
    cr_assert_eq(tutti_listener_connect(&many, &conn_id, &deadline, &got), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_lt(tutti_now_ns() - start_ns, 2 * TUTTI_NS_PER_S);
    cr_assert_geq(take(&conn_id, 5000), 0);
}
