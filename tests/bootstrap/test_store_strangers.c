/*
 * The store among strangers: many connections from other hosts that read no replies, finish no requests, keep silent,
 * wait for all keys or fill the table. The memory of the process that serves stays small, it keeps descriptors free,
 * and honest clients are served meanwhile.
 *
 * The server runs in the test's process, so that its memory can be measured.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/store/store_connection.h"
#include "bootstrap/store/store_crowd.h"
#include "tests/support/stores/store_clients.h"
#include "tests/support/stores/wire.h"

TestSuite(store_strangers, .timeout = 100);

enum { CROWD = 20, MANY = 400, FEW_DESCRIPTORS = 256, VALUE_BYTES = 8 << 20 };

#define MIB    ((size_t)1 << 20)
#define BOTTOM ((size_t)96 * MIB) /* memory that the process may use beyond what the store counts */

static size_t resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    if (file != NULL) fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* For `ms`, or until the child has ended, the process must not use `most` bytes more than `first`. */
static void watch_memory(size_t first, size_t most, int ms, pid_t until) {
    int64_t begun_ns = tutti_now_ns();
    size_t peak = 0;
    siginfo_t ended = {0};
    while (tutti_now_ns() - begun_ns < ms * INT64_C(1000000) && ended.si_pid == 0) {
        size_t now = resident();
        if (now > peak) peak = now;
        if (until > 0) waitid(P_PID, (id_t)until, &ended, WEXITED | WNOHANG | WNOWAIT);
        usleep(5000);
    }
    if (CLIENTS_MEASURES) cr_assert_leq(peak, first + most, "%zu MiB more", (peak - first) / MIB);
}

static void put_u64(char **at, uint64_t value) {
    memcpy(*at, &value, sizeof value);
    *at += sizeof value;
}

/* Sends a SET of the key with a value of `bytes`, and waits until it is carried out. */
static bool set_value(int fd, char key, size_t bytes) {
    static char value[VALUE_BYTES];
    char head[32], *at = head;
    *at++ = 1;
    put_u64(&at, 1);
    *at++ = key;
    put_u64(&at, bytes);
    memset(value, key, bytes);
    return wire_send(fd, head, (size_t)(at - head)) && wire_send(fd, value, bytes) && clients_ping(fd);
}

static bool ask_many(int fd, char key, int count) {
    char request[1 + 8 + 128 * 9], *at = request;
    *at++ = 10;
    put_u64(&at, (uint64_t)count);
    for (int i = 0; i < count; i++) {
        put_u64(&at, 1);
        *at++ = key;
    }
    return wire_send(fd, request, (size_t)(at - request));
}

static int mean_well_elsewhere(void) {
    int result = clients_mean_well(clients_join());
    clients_say_ready();
    return result;
}

static void check_that_others_are_served(void) {
    wire_port = clients_port;
    cr_assert_eq(clients_mean_well(wire_join()), 0, "a process of this user is not served");
    cr_assert_eq(clients_end(clients_begin(2, mean_well_elsewhere)), 0, "a process on another host is not served");
}

/* ------------------------------------------------------------------------------------------------ their memory */

/* Asks for 2.3 GiB of replies and reads none. */
static int take_no_replies(void) {
    int fds[CROWD];
    for (int i = 0; i < CROWD; i++) {
        fds[i] = clients_join();
        if (fds[i] < 0 || (i == 0 && !set_value(fds[0], 'v', VALUE_BYTES)) || !ask_many(fds[i], 'v', 15)) return 1;
    }
    clients_say_ready();
    pause();
    return 0;
}

Test(store_strangers, replies_that_are_never_read_take_little_memory) {
    clients_serve_on_hosts(3);
    size_t before = resident();
    pid_t attacker = clients_begin(1, take_no_replies);
    watch_memory(before, 184 * MIB, 1500, 0);
    check_that_others_are_served();
    clients_stop(attacker);
    tutti_store_server_stop(clients_server);
}

/* Sends 100 MiB of a MULTI_SET without its end on each connection, until the server reads from none of them. */
static int leave_requests_half_done(void) {
    static char part[VALUE_BYTES + 17];
    struct pollfd fds[CROWD];
    size_t sent[CROWD] = {0}, most = 12 * sizeof part + 100;
    char *at = part;
    put_u64(&at, 1);
    *at++ = 'k';
    put_u64(&at, VALUE_BYTES);
    for (int i = 0; i < CROWD; i++) {
        fds[i] = (struct pollfd){.fd = clients_join(), .events = POLLOUT};
        if (fds[i].fd < 0 || !wire_send(fds[i].fd, BYTES("\13" U64("\15")))) return 1;
    }
    while (poll(fds, CROWD, 500) > 0) {
        for (int i = 0; i < CROWD; i++) {
            size_t from = sent[i] % sizeof part;
            if (fds[i].revents == 0) continue;
            ssize_t got = send(fds[i].fd, part + from, sizeof part - from, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (got > 0) sent[i] += (size_t)got;
            if ((got < 0 && errno != EAGAIN) || sent[i] >= most) fds[i].fd = -1 - fds[i].fd;
        }
    }
    clients_say_ready();
    pause();
    return 0;
}

Test(store_strangers, half_requests_take_little_memory) {
    clients_serve_on_hosts(3);
    size_t before = resident();
    pid_t attacker = clients_begin(1, leave_requests_half_done);
    watch_memory(before, 256 * MIB + BOTTOM, 200, 0);
    check_that_others_are_served();
    clients_stop(attacker);
    tutti_store_server_stop(clients_server);
}

/* Waits for the most keys that a request may name, on twice as many connections: 200 MiB of waits. Some name keys of
 * their own. */
static int wait_for_everything(void) {
    enum { KEYS = CLIENTS_MEASURES ? 128 << 10 : 8 << 10 };
    static char request[9 + KEYS * 12];
    for (int i = 0; i < 2 * CROWD; i++) {
        char *at = request;
        int fd = clients_join();
        *at++ = 6;
        put_u64(&at, KEYS);
        for (uint32_t key = 0; key < KEYS; key++) {
            uint32_t number = i % 10 == 1 ? (uint32_t)i << 20 | key : 0;
            put_u64(&at, sizeof number);
            memcpy(at, &number, sizeof number);
            at += sizeof number;
        }
        if (fd < 0 || !wire_send(fd, request, sizeof request)) return 1;
    }
    clients_say_ready();
    pause();
    return 0;
}

Test(store_strangers, waits_for_everything_take_little_memory) {
    clients_serve_on_hosts(3);
    size_t before = resident();
    pid_t attacker = clients_begin(1, wait_for_everything);
    watch_memory(before, 232 * MIB, 300, 0); /* 128 MiB of waits, and 72 MiB of keys */
    check_that_others_are_served();
    clients_stop(attacker);
    tutti_store_server_stop(clients_server);
}

/* Sets large values until the server closes the connection. */
static int fill_the_table(void) {
    int fd = clients_join();
    char key = 1;
    while (fd >= 0 && set_value(fd, key++, VALUE_BYTES) && key < 127) {}
    clients_say_ready();
    return 0;
}

Test(store_strangers, the_table_has_room_for_this_user_whatever_others_store) {
    clients_serve_on_hosts(3);
    size_t before = resident();
    cr_assert_eq(clients_end(clients_begin(1, fill_the_table)), 0);
    watch_memory(before, 256 * MIB + BOTTOM, 1, 0);
    wire_port = clients_port;
    int own = wire_join();
    for (int i = 0; i < 16; i++)
        cr_assert(set_value(own, (char)(-1 - i), VALUE_BYTES), "this user can store nothing more");
    close(own);
    tutti_store_server_stop(clients_server);
}

/* ---------------------------------------------------------------------------------------------- descriptors */

static int keep_silent(void) {
    for (int i = 0; i < MANY; i++) {
        int fd = i % 2 == 0 ? clients_join() : clients_call("10.77.0.1", clients_port);
        if (fd < 0) return 1;
        if (i % 8 == 0) usleep(1000);
    }
    clients_say_ready();
    pause();
    return 0;
}

Test(store_strangers, silent_connections_leave_descriptors_to_the_process) {
    struct rlimit limit = {.rlim_cur = FEW_DESCRIPTORS, .rlim_max = FEW_DESCRIPTORS};
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    limit.rlim_max = before.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    clients_serve_on_hosts(3);
    wire_port = clients_port;
    int own = wire_join(), fds[48];
    setrlimit(RLIMIT_NOFILE, &before); /* the attacker's limit; the server has read its own already */
    limit = before;
    pid_t attacker = clients_begin(1, keep_silent);
    limit.rlim_cur = FEW_DESCRIPTORS;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 48; i++) {
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        cr_assert(fds[i] >= 0, "no descriptor for the process itself, after %d", i);
    }
    for (int i = 0; i < 48; i++) close(fds[i]);
    cr_assert_eq(clients_mean_well(own), 0, "a process of this user that was there before is not served");
    check_that_others_are_served();
    clients_stop(attacker);
    tutti_store_server_stop(clients_server);
}

/* ------------------------------------------------------------------------------------------- honest clients */

enum { SLOW = CLIENTS_MEASURES ? 20 : 5 };

static int slow_values;

/* Each connection asks for slow_values values at once and reads them slowly: it gets all of them and nothing else. */
static int read_slowly(void) {
    enum { PIECE = 256 << 10 };
    static char piece[PIECE];
    struct pollfd fds[SLOW];
    size_t got[SLOW] = {0}, reply = (size_t)slow_values * (8 + (size_t)VALUE_BYTES);
    int left = SLOW, buffer = PIECE;
    for (int i = 0; i < SLOW; i++) {
        fds[i] = (struct pollfd){.fd = clients_network != NULL ? clients_join() : wire_join(), .events = POLLIN};
        setsockopt(fds[i].fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
        if (fds[i].fd < 0 || !ask_many(fds[i].fd, 'v', slow_values)) return 1;
    }
    clients_say_ready();
    while (left > 0) {
        if (poll(fds, SLOW, 20000) <= 0) return 2;
        for (int i = 0; i < SLOW; i++) {
            if (fds[i].revents == 0) continue;
            ssize_t bytes = recv(fds[i].fd, piece, sizeof piece, 0);
            if (bytes <= 0) return 3;
            for (ssize_t j = 0; j < bytes; j += 509) {
                size_t at = (got[i] + (size_t)j) % (8 + (size_t)VALUE_BYTES);
                uint64_t length = VALUE_BYTES;
                if (piece[j] != (at < 8 ? ((char *)&length)[at] : 'v')) return 4;
            }
            got[i] += (size_t)bytes;
            if (got[i] < reply) continue;
            if (got[i] > reply || !clients_ping(fds[i].fd)) return 5;
            close(fds[i].fd);
            fds[i].fd = -1;
            left--;
        }
    }
    return 0;
}

static void check_slow_readers(void) {
    wire_port = clients_port;
    int own = wire_join();
    cr_assert(set_value(own, 'v', VALUE_BYTES));
    size_t before = resident();
    pid_t readers = clients_begin(1, read_slowly);
    watch_memory(before, 256 * MIB + BOTTOM, 40000, readers);
    cr_assert_eq(clients_end(readers), 0, "not all have got their replies");
    cr_assert_eq(clients_mean_well(own), 0);
    tutti_store_server_stop(clients_server);
}

Test(store_strangers, slow_readers_of_much_wait_their_turn_and_get_all_of_it) {
    clients_serve();
    slow_values = 8; /* 64 MiB */
    check_slow_readers();
}

Test(store_strangers, slow_readers_on_another_host_wait_their_turn_and_get_all_of_it) {
    clients_serve_on_hosts(2);
    slow_values = 5; /* more than one address may hold */
    check_slow_readers();
}

/* All connections send 40 MiB at once. */
static int send_much(void) {
    static char part[VALUE_BYTES + 17];
    struct pollfd fds[8];
    size_t sent[8] = {0}, most = 5 * sizeof part;
    int left = 8;
    char *at = part;
    put_u64(&at, 1);
    *at++ = 'k';
    put_u64(&at, VALUE_BYTES);
    for (int i = 0; i < 8; i++) {
        fds[i] = (struct pollfd){.fd = clients_join(), .events = POLLOUT};
        if (fds[i].fd < 0 || !wire_send(fds[i].fd, BYTES("\13" U64("\5")))) return 1;
    }
    clients_say_ready();
    while (left > 0) {
        if (poll(fds, 8, 20000) <= 0) return 2;
        for (int i = 0; i < 8; i++) {
            if (fds[i].revents == 0) continue;
            size_t from = sent[i] % sizeof part, rest = most - sent[i];
            if (rest > sizeof part - from) rest = sizeof part - from;
            ssize_t bytes = send(fds[i].fd, part + from, rest, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (bytes < 0 && errno != EAGAIN) return 3;
            if (bytes > 0) sent[i] += (size_t)bytes;
            if (sent[i] < most) continue;
            fds[i].fd = -1 - fds[i].fd; /* poll ignores it */
            left--;
        }
    }
    for (int i = 0; i < 8; i++)
        if (!clients_ping(-1 - fds[i].fd)) return 4;
    return 0;
}

Test(store_strangers, long_requests_wait_their_turn_and_are_carried_out) {
    clients_serve_on_hosts(2);
    size_t before = resident();
    pid_t senders = clients_begin(1, send_much);
    watch_memory(before, 256 * MIB + BOTTOM, 40000, senders);
    cr_assert_eq(clients_end(senders), 0, "not all have been heard to their end");
    tutti_store_server_stop(clients_server);
}

/* Connects like the ranks of many hosts when a job starts. */
static int connect_all_at_once(void) {
    enum { RANKS = 1000 };
    static struct pollfd fds[RANKS];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)clients_port)};
    int left = RANKS;
    inet_pton(AF_INET, "10.77.0.1", &to.sin_addr);
    for (int i = 0; i < RANKS; i++) {
        fds[i] = (struct pollfd){.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), .events = POLLOUT};
        if (connect(fds[i].fd, (struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS) return 1;
    }
    clients_say_ready();
    while (left > 0) {
        if (poll(fds, RANKS, 10000) <= 0) return 2;
        for (int i = 0; i < RANKS; i++) {
            if (fds[i].revents == 0) continue;
            if (fds[i].events == POLLIN && !wire_talk(fds[i].fd, "", 0, BYTES("ping"))) return 3;
            if (fds[i].events == POLLOUT && !wire_send(fds[i].fd, BYTES(VALIDATE "\15"
                                                                                 "ping")))
                return 4;
            left -= fds[i].events == POLLIN;
            if (fds[i].events == POLLIN) fds[i].fd = -1;
            fds[i].events = POLLIN;
        }
    }
    return 0;
}

Test(store_strangers, a_thousand_ranks_of_other_hosts_may_connect_at_once) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 4096) cr_skip_test("needs 4096 descriptors (ulimit -n)");
    clients_serve_on_hosts(2);
    cr_assert_eq(clients_end(clients_begin(1, connect_all_at_once)), 0, "not all are served");
    tutti_store_server_stop(clients_server);
}

/* ------------------------------------------------------------------------------------------ what is counted */

/* Two connections ask for more than fits: one gets the turn, and the other waits until the first is done or gone. */
Test(store_strangers, a_connection_that_keeps_others_waiting_is_found) {
    tutti_store_budget budget = {.own.changed = false};
    tutti_store_connection first = {.fd = 3}, second = {.fd = 4};
    int64_t late_ns = (TUTTI_STORE_STALLED_MS + 1000) * INT64_C(1000000);
    cr_assert_not(tutti_store_budget_ask(&budget, &first, 100 * MIB));
    cr_assert_eq(tutti_store_budget_next(&budget), &first);
    cr_assert(tutti_store_budget_ask(&budget, &first, 100 * MIB));
    first.out.capacity = first.out.end = 100 * MIB;
    tutti_store_budget_settle(&budget, &first);
    cr_assert_not(tutti_store_budget_is_stalled(&budget, &first, tutti_now_ns() + late_ns), "none waits for it");
    second.in.capacity = second.in.end = 100;
    tutti_store_budget_settle(&budget, &second);
    cr_assert_not(tutti_store_budget_ask(&budget, &second, 65 * MIB));
    cr_assert_null(tutti_store_budget_next(&budget));
    cr_assert(tutti_store_budget_ask(&budget, &second, 1000), "what is little is not held up");
    cr_assert_not(tutti_store_budget_may_go_on(&budget, &second));
    cr_assert_not(tutti_store_budget_is_stalled(&budget, &first, tutti_now_ns()));
    cr_assert(tutti_store_budget_is_stalled(&budget, &first, tutti_now_ns() + late_ns));
    cr_assert_not(tutti_store_budget_is_stalled(&budget, &second, tutti_now_ns() + late_ns), "it has to wait");
    first.share.moved_ns -= late_ns;
    cr_assert(tutti_store_budget_is_stalled(&budget, &first, tutti_now_ns()));
    tutti_store_budget_move(&first, TUTTI_STORE_LEAST_MOVED_BYTES);
    cr_assert_not(tutti_store_budget_is_stalled(&budget, &first, tutti_now_ns()), "it has gone on");
    first.out.capacity = first.out.end = 0;
    tutti_store_budget_settle(&budget, &first);
    cr_assert_eq(tutti_store_budget_next(&budget), &second);
    tutti_store_budget_leave(&budget, &second);
    cr_assert_eq(budget.own.small, 0);
    cr_assert_not(tutti_store_budget_is_short(&budget));
    cr_assert_null(budget.own.turn);
}

/* The turn goes from address to address, however many connections one has. */
Test(store_strangers, no_address_gets_the_turn_twice_while_others_wait) {
    tutti_store_budget budget = {.own.changed = false};
    tutti_store_address addresses[2] = {{.number = 1}, {.number = 2}};
    tutti_store_connection all[6];
    static const int order[6] = {0, 4, 1, 5, 2, 3};
    for (int i = 0; i < 6; i++) {
        all[i] = (tutti_store_connection){.fd = 3 + i, .foreign = true, .address = &addresses[i / 4]};
        cr_assert_not(tutti_store_budget_ask(&budget, &all[i], 40 * MIB));
    }
    for (int i = 0; i < 6; i++) {
        tutti_store_connection *chosen = tutti_store_budget_next(&budget);
        cr_assert_eq(chosen, &all[order[i]], "turn %d", i);
        chosen->in.capacity = 40 * MIB;
        tutti_store_budget_settle(&budget, chosen);
        cr_assert_null(tutti_store_budget_next(&budget));
        cr_assert_eq(chosen->address->held, 0, "the turn is not counted for the address");
        chosen->in.capacity = 0;
        tutti_store_budget_settle(&budget, chosen);
    }
}

/* For example, it proves itself after it was foreign for a while. */
Test(store_strangers, a_connection_that_becomes_the_users_own_is_counted_as_such) {
    static tutti_store_crowd crowd;
    tutti_store_budget budget = {.own.changed = false};
    tutti_store_connection c = {.fd = 3};
    struct sockaddr_storage address = {.ss_family = AF_INET};
    cr_assert_eq(tutti_store_crowd_open(&crowd), TUTTI_OK);
    cr_assert_eq(tutti_store_crowd_join(&crowd, &c, &address), TUTTI_OK);
    c.in.capacity = 1000;
    tutti_store_budget_settle(&budget, &c);
    cr_assert_eq(budget.foreign.small, 1000);
    cr_assert_eq(c.address->held, 1000);
    c.validated = true;
    cr_assert_not(tutti_store_crowd_update(&crowd, &budget, &c));
    cr_assert(crowd.nunverified == 0 && crowd.nforeign == 1 && c.foreign);
    c.local_user = true;
    cr_assert(tutti_store_crowd_update(&crowd, &budget, &c));
    cr_assert(crowd.nforeign == 0 && !c.foreign && c.address == NULL);
    cr_assert(budget.foreign.small == 0 && budget.own.small == 1000);
    cr_assert_not(tutti_store_crowd_update(&crowd, &budget, &c));
    tutti_store_budget_leave(&budget, &c);
    tutti_store_crowd_leave(&crowd, &c);
    cr_assert_eq(budget.own.small, 0);
}
