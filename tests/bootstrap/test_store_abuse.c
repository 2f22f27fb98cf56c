/*
 * What a server on an open port must survive: garbage, wrong lengths, clients that neither send nor read, forks; and
 * how it starts and stops.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/store/store.h"
#include "tests/support/stores/wire.h"

#define TALK(fd, request, reply)                                                                                       \
    cr_assert(wire_talk(fd, BYTES(request), BYTES(reply)), "line %d: not the reply of the protocol", __LINE__)

TestSuite(store_abuse, .init = wire_server_start, .fini = wire_server_stop, .timeout = 60);

typedef struct insult {
    const char *what;
    const char *request;
    size_t request_bytes;
} insult;

static const insult broken[] = {
    {"no magic first", BYTES("\7")},
    {"wrong magic", BYTES("\0\xCE\xF7\x85\x3D")},
    {"magic twice", BYTES(VALIDATE VALIDATE)},
    {"unknown request", BYTES(VALIDATE "\23")},
    {"request 255", BYTES(VALIDATE "\377")},
    {"a key of 8193 bytes", BYTES(VALIDATE "\3\1\40\0\0\0\0\0\0")},
    {"a key of 2^63 bytes", BYTES(VALIDATE "\3\0\0\0\0\0\0\0\200")},
    {"a value of 8 MiB and one byte", BYTES(VALIDATE "\1" U64("\1") "k"
                                                                    "\1\0\200\0\0\0\0\0")},
    {"a value of 2^64 - 1 bytes", BYTES(VALIDATE "\1" U64("\1") "k"
                                                                "\377\377\377\377\377\377\377\377")},
    {"131073 keys", BYTES(VALIDATE "\6\1\0\2\0\0\0\0\0")},
    {"2^64 - 1 keys", BYTES(VALIDATE "\13\377\377\377\377\377\377\377\377")},
    {"add to a value that is not a number", BYTES(VALIDATE "\1" U64("\1") "k" U64("\1") "x"
                                                                                        "\4" U64("\1") "k" U64("\1"))},
    {"a wait within a wait", BYTES(VALIDATE "\6" U64("\1") U64("\1") "m"
                                                                     "\6" U64("\1") U64("\1") "n")},
    {"an HTTP request", BYTES("GET / HTTP/1.1\r\nHost: store\r\n\r\n")},
};

Test(store_abuse, a_client_that_breaks_the_protocol_is_cut_off_and_the_others_are_not) {
    int other = wire_join();
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        int fd = wire_connect(wire_port);
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

Test(store_abuse, slow_and_half_open_clients_hold_up_no_other_client) {
    enum { NSLOW = 50 };
    int slow[NSLOW], other = wire_join();
    for (int i = 0; i < NSLOW; i++) {
        slow[i] = i % 2 == 0 ? wire_connect(wire_port) : wire_join(); /* half of them send nothing at all */
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

Test(store_abuse, a_client_that_does_not_read_its_replies_holds_up_no_other_client) {
    static char value[1 << 20];
    int greedy = wire_join(), other = wire_join();
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
    /* and the greedy client gets them when it reads at last */
    for (int i = 0; i < 20; i++) {
        char head[8];
        cr_assert(wire_receive(greedy, head, sizeof head));
        cr_assert_arr_eq(head, "\0\0\20\0\0\0\0\0", 8);
        cr_assert(wire_receive(greedy, value, sizeof value));
    }
    close(greedy);
    close(other);
}

/* Random bytes, half of them after a valid beginning so that they reach the fields. Some connections stay open, since
 * the server drops a connection that is closed before it is accepted. */
Test(store_abuse, random_bytes_do_not_bring_it_down) {
    enum { OPEN = 32 };
    unsigned seed = 20261121;
    int other = wire_join(), open[OPEN];
    for (int i = 0; i < OPEN; i++) open[i] = -1;
    for (int round = 0; round < 2000; round++) {
        char bytes[256] = VALIDATE;
        size_t from = round % 2 == 0 ? sizeof VALIDATE - 1 : 0, count = (size_t)(rand_r(&seed) % 200);
        for (size_t i = from; i < from + count; i++) {
            bool small = rand_r(&seed) % 3 != 0;
            bytes[i] = (char)(small ? rand_r(&seed) % 20 : rand_r(&seed));
        }
        int fd = wire_connect(wire_port);
        cr_assert(fd >= 0);
        (void)wire_send(fd, bytes, from + count);
        if (open[round % OPEN] >= 0) close(open[round % OPEN]);
        open[round % OPEN] = fd;
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
    for (int i = 0; i < OPEN; i++) close(open[i]);
    close(other);
}

/* The child holds copies of all sockets; the server must neither keep getting events for them nor leave them open. */
Test(store_abuse, a_fork_meanwhile_changes_nothing) {
    int fd = wire_join(), other = wire_join();
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
    wire_server_stop();
    int late = wire_connect(wire_port);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cr_assert(closed, "the child keeps the connection open");
    cr_assert(answers);
    cr_assert_eq(late, -1, "the child keeps the port open");
    close(fd);
    close(other);
}

Test(store_abuse, it_stops_with_clients_in_the_middle_of_something) {
    tutti_store_server *brief;
    cr_assert_eq(tutti_store_server_start(NULL, 0, NULL, &brief), TUTTI_OK, "%s", tutti_last_error());
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

Test(store_abuse, a_port_in_use_is_named_with_its_owner) {
    tutti_store_server *second = NULL;
    char number[32];
    cr_assert_eq(tutti_store_server_start("127.0.0.1", wire_port, NULL, &second), TUTTI_ERR_CONFIG);
    cr_assert_null(second);
    snprintf(number, sizeof number, "port %d is in use", wire_port);
    cr_assert(strstr(tutti_last_error(), number) != NULL, "%s", tutti_last_error());
    snprintf(number, sizeof number, "pid %d", (int)getpid());
    cr_assert(strstr(tutti_last_error(), number) != NULL, "%s", tutti_last_error());
}

Test(store_abuse, it_adopts_a_socket_that_listens_already) {
    int adopted_port, fd = wire_listen(&adopted_port);
    tutti_store_server *adopted;
    cr_assert(fd >= 0);
    cr_assert_eq(tutti_store_server_adopt(fd, NULL, &adopted), TUTTI_OK, "%s", tutti_last_error());
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
