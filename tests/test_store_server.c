/*
 * The store's server, byte by byte: each request of PyTorch's protocol and its reply, over raw sockets; then what a
 * server must survive: fragments, garbage, lengths that lie, clients that neither send nor read.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/store.h"
#include "bootstrap/store_wire.h"
#include "tests/support/wire.h"

#define BYTES(literal) literal, sizeof(literal) - 1
#define TALK(fd, request, reply)                                                                                       \
    cr_assert(wire_talk(fd, BYTES(request), BYTES(reply)), "line %d: not the reply of the protocol", __LINE__)

static tutti_store_server *server;
static int port;

static void start(void) {
    cr_assert_eq(tutti_store_server_start("127.0.0.1", 0, &server), TUTTI_OK, "%s", tutti_last_error());
    port = tutti_store_server_port(server);
}

static void stop(void) {
    tutti_store_server_stop(server);
}

static int join(void) {
    int fd = wire_connect(port);
    cr_assert(fd >= 0);
    cr_assert(wire_send(fd, BYTES(VALIDATE)));
    return fd;
}

TestSuite(store_server, .init = start, .fini = stop, .timeout = 60);

typedef struct exchange {
    const char *what;
    const char *request;
    size_t request_bytes;
    const char *reply;
    size_t reply_bytes;
} exchange;

/* In this order, on one connection. */
static const exchange exchanges[] = {
    {"ping gives the nonce back", BYTES("\15\x78\x56\x34\x12"), BYTES("\x78\x56\x34\x12")},
    {"no keys at first", BYTES("\7"), BYTES(U64("\0"))},
    {"set has no reply; get gives the value",
     BYTES("\1" U64("\2") "/a" U64("\5") "hello"
                                         "\3" U64("\2") "/a"),
     BYTES(U64("\5") "hello")},
    {"get of a missing key gives nothing", BYTES("\3" U64("\2") "/z"), BYTES(U64("\0"))},
    {"set replaces",
     BYTES("\1" U64("\2") "/a" U64("\1") "x"
                                         "\3" U64("\2") "/a"),
     BYTES(U64("\1") "x")},
    {"append goes behind",
     BYTES("\11" U64("\2") "/a" U64("\2") "yz"
                                          "\3" U64("\2") "/a"),
     BYTES(U64("\3") "xyz")},
    {"append makes a key",
     BYTES("\11" U64("\2") "/b" U64("\1") "q"
                                          "\3" U64("\2") "/b"),
     BYTES(U64("\1") "q")},
    {"add makes a counter", BYTES("\4" U64("\2") "/n" U64("\5")), BYTES(U64("\5"))},
    {"add of a negative number",
     BYTES("\4" U64("\2") "/n"
                          "\xF9\xFF\xFF\xFF\xFF\xFF\xFF\xFF"),
     BYTES("\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF")},
    {"a counter is decimal text", BYTES("\3" U64("\2") "/n"), BYTES(U64("\2") "-2")},
    {"compare_set: equal, stores", BYTES("\2" U64("\2") "/a" U64("\3") "xyz" U64("\1") "w"), BYTES(U64("\1") "w")},
    {"compare_set: differs, keeps", BYTES("\2" U64("\2") "/a" U64("\1") "v" U64("\1") "u"), BYTES(U64("\1") "w")},
    {"compare_set: missing, expected empty, stores", BYTES("\2" U64("\2") "/c" U64("\0") U64("\1") "k"),
     BYTES(U64("\1") "k")},
    {"compare_set: missing, expected something, gives it back", BYTES("\2" U64("\2") "/y" U64("\1") "e" U64("\1") "d"),
     BYTES(U64("\1") "e")},
    {"and has stored nothing", BYTES("\5" U64("\1") U64("\2") "/y"), BYTES("\1")},
    {"check of two that are there", BYTES("\5" U64("\2") U64("\2") "/a" U64("\2") "/b"), BYTES("\0")},
    {"check of one that is not", BYTES("\5" U64("\2") U64("\2") "/a" U64("\2") "/z"), BYTES("\1")},
    {"check of none", BYTES("\5" U64("\0")), BYTES("\0")},
    {"wait for what is there", BYTES("\6" U64("\2") U64("\2") "/a" U64("\2") "/b"), BYTES("\0")},
    {"wait, taken back",
     BYTES("\6" U64("\1") U64("\2") "/z"
                                    "\14"),
     BYTES("\1")},
    {"take back without a wait", BYTES("\14"), BYTES("\1")},
    {"four keys", BYTES("\7"), BYTES(U64("\4"))},
    {"delete", BYTES("\10" U64("\2") "/b"), BYTES(U64("\1"))},
    {"delete again", BYTES("\10" U64("\2") "/b"), BYTES(U64("\0"))},
    {"multi_set, multi_get",
     BYTES("\13" U64("\2") U64("\2") "/p" U64("\1") "1" U64("\2") "/q" U64("\2") "22"
                                                                                 "\12" U64("\3") U64("\2") "/q" U64(
                                                                                     "\2") "/z" U64("\2") "/p"),
     BYTES(U64("\2") "22" U64("\0") U64("\1") "1")},
    {"an empty queue", BYTES("\20" U64("\2") "/Q"), BYTES(U64("\0"))},
    {"pop of an empty queue", BYTES("\17" U64("\2") "/Q"), BYTES(U64("\0"))},
    {"push twice; the length",
     BYTES("\16" U64("\2") "/Q" U64("\1") "a"
                                          "\16" U64("\2") "/Q" U64("\2") "bc"
                                                                         "\20" U64("\2") "/Q"),
     BYTES(U64("\2"))},
    {"a queue satisfies a wait", BYTES("\6" U64("\1") U64("\2") "/Q"), BYTES("\0")},
    {"pop gives the length and the oldest", BYTES("\17" U64("\2") "/Q"), BYTES(U64("\2") U64("\1") "a")},
    {"and then the next", BYTES("\17" U64("\2") "/Q"), BYTES(U64("\1") U64("\2") "bc")},
    {"a queue is no key", BYTES("\3" U64("\2") "/Q"), BYTES(U64("\0"))},
    {"a barrier of one", BYTES("\22" U64("\2") "/B" U64("\1")), BYTES("\0")},
};

Test(store_server, every_request_has_the_reply_of_the_protocol) {
    int fd = join();
    for (size_t i = 0; i < sizeof exchanges / sizeof *exchanges; i++) {
        const exchange *e = &exchanges[i];
        cr_assert(wire_talk(fd, e->request, e->request_bytes, e->reply, e->reply_bytes), "%s", e->what);
    }
    cr_assert(wire_silent(fd, 50), "nothing more than the replies");
    close(fd);
}

Test(store_server, a_request_may_come_byte_by_byte) {
    int fd = join();
    for (size_t i = 0; i < sizeof exchanges / sizeof *exchanges; i++) {
        const exchange *e = &exchanges[i];
        for (size_t j = 0; j + 1 < e->request_bytes; j++) cr_assert(wire_send(fd, e->request + j, 1));
        cr_assert(wire_talk(fd, e->request + e->request_bytes - 1, 1, e->reply, e->reply_bytes), "%s", e->what);
    }
    close(fd);
}

Test(store_server, all_requests_may_come_at_once) {
    static char requests[8192], replies[8192], got[8192];
    size_t nrequests = 0, nreplies = 0;
    for (size_t i = 0; i < sizeof exchanges / sizeof *exchanges; i++) {
        memcpy(requests + nrequests, exchanges[i].request, exchanges[i].request_bytes);
        memcpy(replies + nreplies, exchanges[i].reply, exchanges[i].reply_bytes);
        nrequests += exchanges[i].request_bytes;
        nreplies += exchanges[i].reply_bytes;
    }
    int fd = join();
    cr_assert(wire_send(fd, requests, nrequests));
    cr_assert(wire_receive(fd, got, nreplies));
    cr_assert_arr_eq(got, replies, nreplies);
    close(fd);
}

Test(store_server, list_keys_gives_all_of_them_raw) {
    char got[8 + 2 * (8 + 5)];
    int fd = join();
    cr_assert(wire_send(fd, BYTES("\1" U64("\5") "init/" U64("\1") "1"
                                                                   "\1" U64("\5") "/keys" U64("\0") "\21")));
    cr_assert(wire_receive(fd, got, sizeof got));
    cr_assert_arr_eq(got, U64("\2"), 8);
    bool first = memcmp(got + 8, U64("\5") "init/", 13) == 0;
    cr_assert_arr_eq(got + 8 + (first ? 0 : 13), U64("\5") "init/", 13);
    cr_assert_arr_eq(got + 8 + (first ? 13 : 0), U64("\5") "/keys", 13);
    close(fd);
}

Test(store_server, a_wait_ends_when_the_last_key_comes) {
    int waiter = join(), setter = join();
    cr_assert(wire_send(waiter, BYTES("\6" U64("\2") U64("\2") "/a" U64("\2") "/b")));
    cr_assert(wire_silent(waiter, 50));
    TALK(setter, "\1" U64("\2") "/a" U64("\0") "\7", U64("\1"));
    cr_assert(wire_silent(waiter, 50));
    TALK(setter, "\4" U64("\2") "/b" U64("\1"), U64("\1"));
    TALK(waiter, "", "\0");
    TALK(waiter, "\14", "\1"); /* the end of a wait and its taking back cross: both are answered */
    close(waiter);
    close(setter);
}

Test(store_server, a_wait_that_was_taken_back_is_not_answered) {
    int waiter = join(), setter = join();
    TALK(waiter,
         "\6" U64("\1") U64("\2") "/a"
                                  "\14",
         "\1");
    TALK(setter, "\1" U64("\2") "/a" U64("\0") "\7", U64("\1"));
    cr_assert(wire_silent(waiter, 50));
    close(waiter);
    close(setter);
}

Test(store_server, a_queued_value_wakes_one_waiter) {
    int first = join(), second = join(), pusher = join();
    TALK(first,
         "\15"
         "1234"
         "\6" U64("\1") U64("\2") "/Q",
         "1234");
    TALK(second,
         "\15"
         "5678"
         "\6" U64("\1") U64("\2") "/Q",
         "5678");
    TALK(pusher,
         "\16" U64("\2") "/Q" U64("\1") "v"
                                        "\7",
         U64("\0"));
    TALK(first, "", "\0");
    cr_assert(wire_silent(second, 50));
    TALK(first, "\17" U64("\2") "/Q", U64("\1") U64("\1") "v");
    TALK(pusher,
         "\16" U64("\2") "/Q" U64("\1") "w"
                                        "\7",
         U64("\0"));
    TALK(second, "", "\0");
    close(first);
    close(second);
    close(pusher);
}

Test(store_server, a_barrier_lets_all_go_when_the_last_arrives) {
    int first = join(), second = join(), third = join();
    TALK(first,
         "\15"
         "1234"
         "\22" U64("\2") "/B" U64("\3"),
         "1234");
    TALK(second,
         "\15"
         "1234"
         "\22" U64("\2") "/B" U64("\3"),
         "1234");
    cr_assert(wire_silent(first, 50));
    TALK(third, "\3" U64("\2") "/B", U64("\1") "2");
    TALK(third, "\22" U64("\2") "/B" U64("\3"), "\0");
    TALK(first, "", "\0");
    TALK(second, "", "\0");
    close(first);
    close(second);
    close(third);
}

Test(store_server, a_waiter_that_goes_away_is_forgotten) {
    int waiter = join(), setter = join();
    TALK(waiter,
         "\15"
         "1234"
         "\6" U64("\2") U64("\2") "/a" U64("\2") "/b",
         "1234");
    close(waiter);
    TALK(setter,
         "\1" U64("\2") "/a" U64("\1") "x"
                                       "\1" U64("\2") "/b" U64("\1") "y"
                                                                     "\7",
         U64("\2"));
    close(setter);
}

static const exchange broken[] = {
    {"no magic first", BYTES("\7"), NULL, 0},
    {"wrong magic", BYTES("\0\xCE\xF7\x85\x3D"), NULL, 0},
    {"magic twice", BYTES(VALIDATE VALIDATE), NULL, 0},
    {"unknown request", BYTES(VALIDATE "\23"), NULL, 0},
    {"request 255", BYTES(VALIDATE "\377"), NULL, 0},
    {"a key of 8193 bytes", BYTES(VALIDATE "\3\1\40\0\0\0\0\0\0"), NULL, 0},
    {"a key of 2^63 bytes", BYTES(VALIDATE "\3\0\0\0\0\0\0\0\200"), NULL, 0},
    {"a value of 8 MiB and one byte",
     BYTES(VALIDATE "\1" U64("\1") "k"
                                   "\1\0\200\0\0\0\0\0"),
     NULL, 0},
    {"a value of 2^64 - 1 bytes",
     BYTES(VALIDATE "\1" U64("\1") "k"
                                   "\377\377\377\377\377\377\377\377"),
     NULL, 0},
    {"131073 keys", BYTES(VALIDATE "\6\1\0\2\0\0\0\0\0"), NULL, 0},
    {"2^64 - 1 keys", BYTES(VALIDATE "\13\377\377\377\377\377\377\377\377"), NULL, 0},
    {"add to what is no number",
     BYTES(VALIDATE "\1" U64("\1") "k" U64("\1") "x"
                                                 "\4" U64("\1") "k" U64("\1")),
     NULL, 0},
    {"a wait within a wait",
     BYTES(VALIDATE "\6" U64("\1") U64("\1") "m"
                                             "\6" U64("\1") U64("\1") "n"),
     NULL, 0},
    {"an HTTP request", BYTES("GET / HTTP/1.1\r\nHost: store\r\n\r\n"), NULL, 0},
};

Test(store_server, who_breaks_the_protocol_is_cut_off_and_the_others_are_not) {
    int other = join();
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        int fd = wire_connect(port);
        cr_assert(fd >= 0);
        cr_assert(wire_send(fd, broken[i].request, broken[i].request_bytes));
        cr_assert(wire_closes(fd), "%s: the connection stays open", broken[i].what);
        close(fd);
        TALK(other,
             "\15"
             "ping",
             "ping");
    }
    close(other);
}

Test(store_server, a_truncated_request_changes_nothing) {
    int other = join();
    for (size_t i = 0; i < sizeof exchanges / sizeof *exchanges; i++) {
        int fd = join();
        cr_assert(wire_send(fd, "\1" U64("\1") "k" U64("\2") "v", 19));
        close(fd);
    }
    TALK(other, "\5" U64("\1") U64("\1") "k", "\1");
    close(other);
}

Test(store_server, slow_and_half_open_clients_hold_up_nobody) {
    enum { NSLOW = 50 };
    int slow[NSLOW], other = join();
    for (int i = 0; i < NSLOW; i++) {
        slow[i] = i % 2 == 0 ? wire_connect(port) : join(); /* half of them say nothing at all */
        cr_assert(slow[i] >= 0);
        if (i % 2 == 1)
            cr_assert(wire_send(slow[i], BYTES("\1" U64("\2") "/k"
                                                              "\0\0\100\0\0\0\0\0"
                                                              "begun")));
    }
    for (int i = 0; i < 1000; i++)
        TALK(other,
             "\15"
             "ping",
             "ping");
    for (int i = 0; i < NSLOW; i++) close(slow[i]);
    close(other);
}

Test(store_server, who_does_not_read_his_replies_holds_up_nobody) {
    static char value[1 << 20];
    int greedy = join(), other = join();
    cr_assert(wire_send(greedy, BYTES("\1" U64("\2") "/v"
                                                     "\0\0\20\0\0\0\0\0")));
    cr_assert(wire_send(greedy, value, sizeof value));
    /* 4 GiB of replies are asked for; all requests fit into the sockets' buffers */
    for (int i = 0; i < 4096; i++)
        if (send(greedy, BYTES("\3" U64("\2") "/v"), MSG_DONTWAIT | MSG_NOSIGNAL) <= 0) break;
    for (int i = 0; i < 1000; i++)
        TALK(other,
             "\15"
             "ping",
             "ping");
    /* and he gets them when he reads at last */
    for (int i = 0; i < 20; i++) {
        char head[8];
        cr_assert(wire_receive(greedy, head, sizeof head));
        cr_assert_arr_eq(head, "\0\0\20\0\0\0\0\0", 8);
        cr_assert(wire_receive(greedy, value, sizeof value));
    }
    close(greedy);
    close(other);
}

Test(store_server, the_biggest_value_comes_back_whole) {
    size_t bytes = TUTTI_STORE_MOST_VALUE_BYTES;
    char *value = malloc(bytes), *got = malloc(bytes), head[8];
    for (size_t i = 0; i < bytes; i++) value[i] = (char)(i * 31 >> 3);
    int fd = join();
    cr_assert(wire_send(fd, BYTES("\1" U64("\2") "/v"
                                                 "\0\0\200\0\0\0\0\0")));
    cr_assert(wire_send(fd, value, bytes));
    cr_assert(wire_send(fd, BYTES("\3" U64("\2") "/v")));
    cr_assert(wire_receive(fd, head, sizeof head));
    cr_assert_arr_eq(head, "\0\0\200\0\0\0\0\0", 8);
    cr_assert(wire_receive(fd, got, bytes));
    cr_assert_eq(memcmp(value, got, bytes), 0);
    close(fd);
    free(value);
    free(got);
}

/* Random bytes, half of them behind a good beginning so that they reach the fields. */
Test(store_server, random_bytes_do_not_bring_it_down) {
    unsigned seed = 20261121;
    int other = join();
    for (int round = 0; round < 2000; round++) {
        char bytes[256] = VALIDATE;
        size_t from = round % 2 == 0 ? sizeof VALIDATE - 1 : 0, count = (size_t)(rand_r(&seed) % 200);
        for (size_t i = from; i < from + count; i++) {
            bool small = rand_r(&seed) % 3 != 0;
            bytes[i] = (char)(small ? rand_r(&seed) % 20 : rand_r(&seed));
        }
        int fd = wire_connect(port);
        cr_assert(fd >= 0);
        (void)wire_send(fd, bytes, from + count);
        close(fd);
        if (round % 100 == 0)
            TALK(other,
                 "\15"
                 "ping",
                 "ping");
    }
    TALK(other,
         "\15"
         "ping",
         "ping");
    close(other);
}

Test(store_server, many_keys_are_all_found_again) {
    int fd = join();
    for (int i = 0; i < 5000; i++) {
        char request[64] = "\1" U64("\6");
        snprintf(request + 9, 7, "/%05d", i);
        memcpy(request + 15, U64("\1") "v", 9);
        cr_assert(wire_send(fd, request, 24));
    }
    TALK(fd, "\7", "\x88\x13\0\0\0\0\0\0");
    for (int i = 0; i < 5000; i++) {
        char request[64] = "\10" U64("\6");
        snprintf(request + 9, 7, "/%05d", i);
        cr_assert(wire_talk(fd, request, 15, BYTES(U64("\1"))), "key %d", i);
    }
    TALK(fd, "\7", U64("\0"));
    close(fd);
}

/* The child holds copies of all sockets; the server must neither keep hearing of them nor leave them open. */
Test(store_server, a_fork_meanwhile_changes_nothing) {
    int fd = join(), other = join();
    TALK(fd,
         "\15"
         "ping",
         "ping");
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    cr_assert(child > 0);
    cr_assert(wire_send(fd, BYTES("\377")));
    bool closed = wire_closes(fd), answers = true;
    for (int i = 0; i < 100; i++)
        answers = answers && wire_talk(other,
                                       BYTES("\15"
                                             "ping"),
                                       BYTES("ping"));
    tutti_store_server_stop(server);
    server = NULL;
    int late = wire_connect(port);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cr_assert(closed, "the child keeps the connection open");
    cr_assert(answers);
    cr_assert_eq(late, -1, "the child keeps the port open");
    close(fd);
    close(other);
}

Test(store_server, a_port_in_use_is_named_with_who_has_it) {
    tutti_store_server *second = NULL;
    char number[32];
    cr_assert_eq(tutti_store_server_start("127.0.0.1", port, &second), TUTTI_ERR_CONFIG);
    cr_assert_null(second);
    snprintf(number, sizeof number, "port %d is in use", port);
    cr_assert(strstr(tutti_last_error(), number) != NULL, "%s", tutti_last_error());
    snprintf(number, sizeof number, "pid %d", (int)getpid());
    cr_assert(strstr(tutti_last_error(), number) != NULL, "%s", tutti_last_error());
}

Test(store_server, it_adopts_a_socket_that_listens_already) {
    int adopted_port, fd = wire_listen(&adopted_port);
    tutti_store_server *adopted;
    cr_assert(fd >= 0);
    cr_assert_eq(tutti_store_server_adopt(fd, &adopted), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(tutti_store_server_port(adopted), adopted_port);
    int client = wire_connect(adopted_port);
    TALK(client,
         VALIDATE "\15"
                  "ping",
         "ping");
    tutti_store_server_stop(adopted);
    cr_assert(wire_closes(client));
    close(client);
}

Test(store_server, it_stops_with_clients_in_the_middle_of_something) {
    tutti_store_server *brief;
    cr_assert_eq(tutti_store_server_start(NULL, 0, &brief), TUTTI_OK, "%s", tutti_last_error());
    int waiter = wire_connect(tutti_store_server_port(brief)), talker = wire_connect(tutti_store_server_port(brief));
    TALK(waiter,
         VALIDATE "\15"
                  "ping"
                  "\6" U64("\1") U64("\1") "k",
         "ping");
    TALK(talker,
         VALIDATE "\15"
                  "ping"
                  "\1" U64("\1"),
         "ping");
    tutti_store_server_stop(brief);
    cr_assert(wire_closes(waiter));
    cr_assert(wire_closes(talker));
    close(waiter);
    close(talker);
    tutti_store_server_stop(NULL);
}
