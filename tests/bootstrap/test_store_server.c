/*
 * The store's server, byte by byte: each request of PyTorch's protocol and its reply, over raw sockets, whole and in
 * fragments.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/store/store_wire.h"
#include "tests/support/stores/wire.h"

#define TALK(fd, request, reply)                                                                                       \
    cr_assert(wire_talk(fd, BYTES(request), BYTES(reply)), "line %d: not the reply of the protocol", __LINE__)

TestSuite(store_server, .init = wire_server_start, .fini = wire_server_stop, .timeout = 60);

typedef struct exchange {
    const char *what;
    const char *request;
    size_t request_bytes;
    const char *reply;
    size_t reply_bytes;
} exchange;

/* Sent in this order, on one connection. */
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
    {"a queue is not a key", BYTES("\3" U64("\2") "/Q"), BYTES(U64("\0"))},
    {"a barrier of one", BYTES("\22" U64("\2") "/B" U64("\1")), BYTES("\0")},
};

Test(store_server, every_request_has_the_reply_of_the_protocol) {
    int fd = wire_join();
    for (size_t i = 0; i < sizeof exchanges / sizeof *exchanges; i++) {
        const exchange *e = &exchanges[i];
        cr_assert(wire_talk(fd, e->request, e->request_bytes, e->reply, e->reply_bytes), "%s", e->what);
    }
    cr_assert(wire_silent(fd, 50), "more than the replies");
    close(fd);
}

Test(store_server, a_request_may_come_byte_by_byte) {
    int fd = wire_join();
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
    int fd = wire_join();
    cr_assert(wire_send(fd, requests, nrequests));
    cr_assert(wire_receive(fd, got, nreplies));
    cr_assert_arr_eq(got, replies, nreplies);
    close(fd);
}

Test(store_server, list_keys_gives_all_of_them_raw) {
    char got[8 + 2 * (8 + 5)];
    int fd = wire_join();
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
    int waiter = wire_join(), setter = wire_join();
    cr_assert(wire_send(waiter, BYTES("\6" U64("\2") U64("\2") "/a" U64("\2") "/b")));
    cr_assert(wire_silent(waiter, 50));
    TALK(setter, "\1" U64("\2") "/a" U64("\0") "\7", U64("\1"));
    cr_assert(wire_silent(waiter, 50));
    TALK(setter, "\4" U64("\2") "/b" U64("\1"), U64("\1"));
    TALK(waiter, "", "\0");
    TALK(waiter, "\14", "\1"); /* the reply to a wait and its cancellation cross: both are answered */
    close(waiter);
    close(setter);
}

Test(store_server, a_cancelled_wait_is_not_answered) {
    int waiter = wire_join(), setter = wire_join();
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
    int first = wire_join(), second = wire_join(), pusher = wire_join();
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
    int first = wire_join(), second = wire_join(), third = wire_join();
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
    int waiter = wire_join(), setter = wire_join();
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

Test(store_server, a_truncated_request_changes_nothing) {
    int other = wire_join();
    for (size_t i = 0; i < sizeof exchanges / sizeof *exchanges; i++) {
        int fd = wire_join();
        TALK(fd,
             "\15"
             "ping",
             "ping");
        cr_assert(wire_send(fd, "\1" U64("\1") "k" U64("\2") "v", 19));
        close(fd);
    }
    TALK(other, "\5" U64("\1") U64("\1") "k", "\1");
    close(other);
}

Test(store_server, the_biggest_value_comes_back_whole) {
    size_t bytes = TUTTI_STORE_MOST_VALUE_BYTES;
    char *value = malloc(bytes), *got = malloc(bytes), head[8];
    for (size_t i = 0; i < bytes; i++) value[i] = (char)(i * 31 >> 3);
    int fd = wire_join();
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

Test(store_server, many_keys_are_all_found_again) {
    int fd = wire_join();
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
