/*
 * The store's client: the bytes that it sends and accepts, against a scripted server that only compares bytes; what
 * it does when the server is slow, silent, wrong or gone; and many clients on our own server.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/store/store.h"
#include "tests/support/stores/wire.h"

TestSuite(store_client, .timeout = 60);

/* ----------------------------------------------------------------------------------------- a scripted server */

typedef struct step {
    const char *expect;
    size_t expect_bytes;
    const char *reply;
    size_t reply_bytes;
} step;

typedef struct script {
    int listen_fd, port;
    const step *steps;
    int nsteps;
    int failed_step; /* -1: all as in the script */
    pthread_t thread;
} script;

static bool greet(int fd) {
    static const char ask[] = "\5" U64("\1") U64("\x13") "tutti.store/proof/1";
    char hello[10 + sizeof ask - 1];
    uint32_t nonce = (uint32_t)getpid();
    return wire_receive(fd, hello, sizeof hello) && memcmp(hello, VALIDATE "\15", 6) == 0 &&
           memcmp(hello + 6, &nonce, 4) == 0 && memcmp(hello + 10, ask, sizeof ask - 1) == 0 &&
           wire_send(fd, &nonce, 4) && wire_send(fd, "\1", 1);
}

static void *play(void *argument) {
    script *s = argument;
    int fd = accept(s->listen_fd, NULL, NULL);
    s->failed_step = greet(fd) ? -1 : 0;
    for (int i = 0; i < s->nsteps && s->failed_step < 0; i++) {
        char got[256];
        if (!wire_receive(fd, got, s->steps[i].expect_bytes) ||
            memcmp(got, s->steps[i].expect, s->steps[i].expect_bytes) != 0 ||
            !wire_send(fd, s->steps[i].reply, s->steps[i].reply_bytes))
            s->failed_step = i;
    }
    close(fd);
    return NULL;
}

static tutti_store_client *start(script *s) {
    tutti_store_client *client;
    s->listen_fd = wire_listen(&s->port);
    cr_assert(s->listen_fd >= 0);
    cr_assert_eq(pthread_create(&s->thread, NULL, play, s), 0);
    cr_assert_eq(
        tutti_store_client_reach("127.0.0.1", s->port, &(tutti_store_client_options){.connect_ms = 5000}, &client),
        TUTTI_OK, "%s", tutti_last_error());
    return client;
}

static void finish(script *s, tutti_store_client *client) {
    tutti_store_client_close(client);
    pthread_join(s->thread, NULL);
    close(s->listen_fd);
    cr_assert_eq(s->failed_step, -1, "step %d of the script was not as written", s->failed_step);
}

#define SCRIPT(name, ...)                                                                                              \
    static const step name##_steps[] = {__VA_ARGS__};                                                                  \
    script name = {.steps = name##_steps, .nsteps = (int)(sizeof name##_steps / sizeof *name##_steps)}

Test(store_client, sends_the_bytes_of_the_protocol) {
    SCRIPT(server, {BYTES("\1" U64("\2") "/a" U64("\5") "hello"), BYTES("")},
           {BYTES("\1" U64("\2") "/e" U64("\0")), BYTES("")}, {BYTES("\4" U64("\2") "/n" U64("\3")), BYTES(U64("\7"))},
           {BYTES("\4" U64("\2") "/n"
                                 "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"),
            BYTES("\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF")},
           {BYTES("\5" U64("\1") U64("\2") "/a"), BYTES("\0")}, {BYTES("\5" U64("\1") U64("\2") "/z"), BYTES("\1")},
           {BYTES("\6" U64("\1") U64("\2") "/a"), BYTES("\0")}, {BYTES("\3" U64("\2") "/a"), BYTES(U64("\5") "hello")});
    tutti_store_client *client = start(&server);
    tutti_store store = tutti_store_client_callbacks(client);
    int64_t sum;
    int exists;
    char value[16];
    size_t bytes;
    cr_assert_eq(store.set(client, "a", "hello", 5), TUTTI_OK);
    cr_assert_eq(store.set(client, "e", NULL, 0), TUTTI_OK);
    cr_assert_eq(store.add(client, "n", 3, &sum), TUTTI_OK);
    cr_assert_eq(sum, 7);
    cr_assert_eq(store.add(client, "n", -1, &sum), TUTTI_OK);
    cr_assert_eq(sum, -2);
    cr_assert_eq(store.check(client, "a", &exists), TUTTI_OK);
    cr_assert_eq(exists, 1);
    cr_assert_eq(store.check(client, "z", &exists), TUTTI_OK);
    cr_assert_eq(exists, 0);
    cr_assert_eq(store.get(client, "a", value, sizeof value, &bytes, 5000), TUTTI_OK);
    cr_assert_eq(bytes, 5);
    cr_assert_arr_eq(value, "hello", 5);
    finish(&server, client);
}

Test(store_client, cancels_a_wait_when_its_time_is_up) {
    SCRIPT(server,
           {BYTES("\6" U64("\1") U64("\2") "/k"
                                           "\14"),
            BYTES("\1")},
           {BYTES("\5" U64("\1") U64("\2") "/k"), BYTES("\1")});
    tutti_store_client *client = start(&server);
    tutti_store store = tutti_store_client_callbacks(client);
    char value[8];
    size_t bytes;
    int exists;
    int64_t begin_ns = tutti_now_ns();
    cr_assert_eq(store.get(client, "k", value, sizeof value, &bytes, 200), TUTTI_ERR_TIMEOUT);
    cr_assert_geq(tutti_now_ns() - begin_ns, INT64_C(190000000));
    cr_assert(strstr(tutti_last_error(), "'k'") != NULL, "%s", tutti_last_error());
    cr_assert_eq(store.check(client, "k", &exists), TUTTI_OK, "the connection is still in step");
    finish(&server, client);
}

Test(store_client, a_key_that_comes_as_the_wait_is_cancelled_is_read) {
    SCRIPT(server,
           {BYTES("\6" U64("\1") U64("\2") "/k"
                                           "\14"),
            BYTES("\0\1")},
           {BYTES("\3" U64("\2") "/k"), BYTES(U64("\1") "v")});
    tutti_store_client *client = start(&server);
    tutti_store store = tutti_store_client_callbacks(client);
    char value[8];
    size_t bytes;
    cr_assert_eq(store.get(client, "k", value, sizeof value, &bytes, 100), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(bytes, 1);
    cr_assert_eq(value[0], 'v');
    finish(&server, client);
}

Test(store_client, a_value_that_does_not_fit_is_an_error_and_the_stream_stays_in_step) {
    SCRIPT(server, {BYTES("\6" U64("\1") U64("\2") "/k"), BYTES("\0")},
           {BYTES("\3" U64("\2") "/k"), BYTES(U64("\11") "123456789")},
           {BYTES("\5" U64("\1") U64("\2") "/k"), BYTES("\0")});
    tutti_store_client *client = start(&server);
    tutti_store store = tutti_store_client_callbacks(client);
    char value[4];
    size_t bytes;
    int exists = 0;
    cr_assert_eq(store.get(client, "k", value, sizeof value, &bytes, 5000), TUTTI_ERR_DATA);
    cr_assert_eq(store.check(client, "k", &exists), TUTTI_OK);
    cr_assert_eq(exists, 1);
    finish(&server, client);
}

Test(store_client, a_wrong_length_breaks_the_client_not_the_process) {
    SCRIPT(server, {BYTES("\6" U64("\1") U64("\2") "/k"), BYTES("\0")},
           {BYTES("\3" U64("\2") "/k"), BYTES("\377\377\377\377\377\377\377\377")});
    tutti_store_client *client = start(&server);
    tutti_store store = tutti_store_client_callbacks(client);
    char value[4];
    size_t bytes;
    cr_assert_eq(store.get(client, "k", value, sizeof value, &bytes, 5000), TUTTI_ERR_DATA);
    cr_assert_eq(store.set(client, "k", "v", 1), TUTTI_ERR_BROKEN);
    finish(&server, client);
}

Test(store_client, a_server_that_goes_away_in_a_reply_is_an_error_then_and_later) {
    SCRIPT(server, {BYTES("\4" U64("\2") "/n" U64("\1")), BYTES("\1\0\0")});
    tutti_store_client *client = start(&server);
    tutti_store store = tutti_store_client_callbacks(client);
    int64_t sum = 77;
    cr_assert_eq(store.add(client, "n", 1, &sum), TUTTI_ERR_SYSTEM);
    cr_assert(strstr(tutti_last_error(), "lost the store at 127.0.0.1") != NULL, "%s", tutti_last_error());
    cr_assert_eq(sum, 77, "written only on success");
    cr_assert_eq(store.add(client, "n", 1, &sum), TUTTI_ERR_BROKEN);
    finish(&server, client);
}

Test(store_client, answers_outside_the_protocol_are_errors) {
    SCRIPT(server, {BYTES("\5" U64("\1") U64("\2") "/k"), BYTES("\7")});
    tutti_store_client *client = start(&server);
    tutti_store store = tutti_store_client_callbacks(client);
    int exists;
    cr_assert_eq(store.check(client, "k", &exists), TUTTI_ERR_DATA);
    finish(&server, client);
}

/* ---------------------------------------------------------------------------------------------- connecting */

static void *start_late(void *argument) {
    int port = *(int *)argument;
    static tutti_store_server *late;
    usleep(400000);
    return tutti_store_server_start("127.0.0.1", port, NULL, &late) == TUTTI_OK ? late : NULL;
}

Test(store_client, tries_again_until_the_store_is_there) {
    int port = wire_free_port();
    pthread_t thread;
    tutti_store_client *client;
    void *late;
    cr_assert_eq(pthread_create(&thread, NULL, start_late, &port), 0);
    cr_assert_eq(
        tutti_store_client_reach("127.0.0.1", port, &(tutti_store_client_options){.connect_ms = 10000}, &client),
        TUTTI_OK, "%s", tutti_last_error());
    pthread_join(thread, &late);
    cr_assert_not_null(late);
    tutti_store_client_close(client);
    tutti_store_server_stop(late);
}

Test(store_client, a_port_without_a_listener_is_an_error_in_time_that_says_what_to_do) {
    int port = wire_free_port();
    tutti_store_client *client;
    int64_t begin_ns = tutti_now_ns();
    cr_assert_eq(tutti_store_client_reach("127.0.0.1", port, &(tutti_store_client_options){.connect_ms = 300}, &client),
                 TUTTI_ERR_TIMEOUT);
    cr_assert_leq(tutti_now_ns() - begin_ns, INT64_C(3000000000));
    cr_assert(strstr(tutti_last_error(), "MASTER_ADDR") != NULL, "%s", tutti_last_error());
    cr_assert(strstr(tutti_last_error(), "refused") != NULL, "%s", tutti_last_error());
}

Test(store_client, a_silent_listener_is_an_error_in_time) {
    int port, fd = wire_listen(&port);
    tutti_store_client *client;
    int64_t begin_ns = tutti_now_ns();
    cr_assert_eq(
        tutti_store_client_reach("127.0.0.1", port, &(tutti_store_client_options){.connect_ms = 1500}, &client),
        TUTTI_ERR_TIMEOUT);
    cr_assert_leq(tutti_now_ns() - begin_ns, INT64_C(4000000000));
    close(fd);
}

Test(store_client, a_host_that_does_not_exist_is_an_error) {
    tutti_store_client *client;
    cr_assert_eq(tutti_store_client_reach("no-such-host.invalid", 29500,
                                          &(tutti_store_client_options){.connect_ms = 100}, &client),
                 TUTTI_ERR_TIMEOUT);
    cr_assert(strstr(tutti_last_error(), "no-such-host.invalid") != NULL, "%s", tutti_last_error());
    cr_assert_eq(tutti_store_client_reach("127.0.0.1", 0, &(tutti_store_client_options){.connect_ms = 100}, &client),
                 TUTTI_ERR_CONFIG);
}

Test(store_client, keys_and_values_over_the_bounds_are_refused_before_they_are_sent) {
    tutti_store_server *server;
    tutti_store_client *client;
    static char key[8193], value[(8 << 20) + 1];
    memset(key, 'k', sizeof key - 1);
    cr_assert_eq(tutti_store_server_start("127.0.0.1", 0, NULL, &server), TUTTI_OK);
    cr_assert_eq(tutti_store_client_reach("127.0.0.1", tutti_store_server_port(server),
                                          &(tutti_store_client_options){.connect_ms = 5000}, &client),
                 TUTTI_OK);
    tutti_store store = tutti_store_client_callbacks(client);
    cr_assert_eq(store.set(client, key, "v", 1), TUTTI_ERR_ARGUMENT);
    cr_assert_eq(store.set(client, "k", value, sizeof value), TUTTI_ERR_ARGUMENT);
    cr_assert_eq(store.set(client, "k", value, sizeof value - 1), TUTTI_OK);
    tutti_store_client_close(client);
    tutti_store_server_stop(server);
    tutti_store_client_close(NULL);
}

/* ------------------------------------------------------------------------------------------ our own server */

enum { NCLIENTS = 8, NROUNDS = 200 };

typedef struct member {
    int port, number;
    const char *problem;
    pthread_t thread;
} member;

/* In each round, sets a key of its own, reads the neighbour's, and adds to a counter. */
static void *take_part(void *argument) {
    member *m = argument;
    tutti_store_client *client;
    if (tutti_store_client_reach("localhost", m->port, &(tutti_store_client_options){.connect_ms = 10000}, &client) !=
        TUTTI_OK) {
        m->problem = "cannot connect";
        return NULL;
    }
    tutti_store store = tutti_store_client_callbacks(client);
    for (int round = 0; round < NROUNDS && m->problem == NULL; round++) {
        char key[32], value[32];
        size_t bytes = 0;
        int64_t sum;
        snprintf(key, sizeof key, "%d/%d", round, m->number);
        if (store.set(client, key, key, strlen(key)) != TUTTI_OK) m->problem = "set";
        snprintf(key, sizeof key, "%d/%d", round, (m->number + 1) % NCLIENTS);
        if (store.get(client, key, value, sizeof value, &bytes, 10000) != TUTTI_OK) m->problem = "get";
        if (bytes != strlen(key) || memcmp(value, key, bytes) != 0) m->problem = "the neighbour's value";
        if (store.add(client, "sum", 1, &sum) != TUTTI_OK) m->problem = "add";
    }
    tutti_store_client_close(client);
    return NULL;
}

Test(store_client, many_clients_meet_on_our_own_server) {
    tutti_store_server *server;
    tutti_store_client *client;
    member members[NCLIENTS];
    int64_t sum;
    cr_assert_eq(tutti_store_server_start("127.0.0.1", 0, NULL, &server), TUTTI_OK, "%s", tutti_last_error());
    for (int i = 0; i < NCLIENTS; i++) {
        members[i] = (member){.port = tutti_store_server_port(server), .number = i};
        cr_assert_eq(pthread_create(&members[i].thread, NULL, take_part, &members[i]), 0);
    }
    for (int i = 0; i < NCLIENTS; i++) {
        pthread_join(members[i].thread, NULL);
        cr_assert_null(members[i].problem, "client %d: %s", i, members[i].problem);
    }
    cr_assert_eq(tutti_store_client_reach("127.0.0.1", tutti_store_server_port(server),
                                          &(tutti_store_client_options){.connect_ms = 5000}, &client),
                 TUTTI_OK);
    tutti_store store = tutti_store_client_callbacks(client);
    cr_assert_eq(store.add(client, "sum", 0, &sum), TUTTI_OK);
    cr_assert_eq(sum, NCLIENTS * NROUNDS);
    tutti_store_client_close(client);
    tutti_store_server_stop(server);
}
