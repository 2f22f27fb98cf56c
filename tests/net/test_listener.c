/*
 * The listener: a process that knows the key gets in; other processes neither get in nor keep it out.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/net/frame_mac.h"
#include "comm/net/listener.h"
#include "comm/net/listener_state.h"
#include "tests/support/links/at_listener.h"

#define KEY "the job's key"

static tutti_listener_key key, wrong_key;

static void open_listener(void) {
    key = (tutti_listener_key){.bytes = sizeof KEY, .key = KEY};
    wrong_key = (tutti_listener_key){.bytes = 5, .key = "wrong"};
    setenv("TUTTI_LOG", "error", 1); /* refusals are what is tested */
    cr_assert_eq(tutti_listener_add_key(key.key, key.bytes), TUTTI_OK);
    cr_assert_eq(tutti_listener_open(&own_listener), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_neq(own_listener.port, 0, "%s", own_listener.why);
}

TestSuite(listener, .init = open_listener, .timeout = 60);

/* --------------------------------------------------------------------------------------- MACs of frames */

Test(listener, gives_each_connection_a_key_of_its_own) {
    tutti_conn_id conn_id = conn_id_of(30);
    tutti_listener_hello hello;
    tutti_listener_reply reply;
    tutti_listener_proof proof;
    uint8_t keys[2][TUTTI_CONNECTION_KEY_BYTES];
    cr_assert_eq(tutti_listener_make_hello(&conn_id, &key, 1, &hello), TUTTI_OK);
    for (int i = 0; i < 2; i++) /* even the same hello, replayed, gives another */
        cr_assert_eq(tutti_listener_answer(&hello, own_listener.process, &hello.called, &reply, &proof, keys[i]),
                     TUTTI_OK);
    cr_assert_arr_neq(keys[0], keys[1], sizeof keys[0]);
    cr_assert_arr_neq(keys[1], reply.mac, sizeof keys[1]); /* nor is it sent over the network */
    cr_assert_arr_neq(keys[1], proof.mac, sizeof keys[1]);
}

Test(listener, seals_hold_for_one_frame_of_one_side_of_one_connection) {
    tutti_connection caller = {.called = true, .key = "some key"}, taker = {.key = "some key"}, other = {.key = "not"};
    uint8_t mac[TUTTI_FRAME_MAC_BYTES], changed[TUTTI_FRAME_MAC_BYTES];
    tutti_frame_mac_make(&caller, /* ours */ true, 7, "frame", 5, mac);
    cr_assert(tutti_frame_mac_check(&taker, 7, "frame", 5, mac));
    cr_assert_not(tutti_frame_mac_check(&caller, 7, "frame", 5, mac), "turned back");
    cr_assert_not(tutti_frame_mac_check(&taker, 8, "frame", 5, mac), "repeated");
    cr_assert_not(tutti_frame_mac_check(&taker, 6, "frame", 5, mac), "ahead of its turn");
    cr_assert_not(tutti_frame_mac_check(&taker, 7, "grave", 5, mac), "changed");
    cr_assert_not(tutti_frame_mac_check(&taker, 7, "frame", 4, mac), "cut");
    cr_assert_not(tutti_frame_mac_check(&other, 7, "frame", 5, mac), "of another connection");
    for (size_t bit = 0; bit < 8 * sizeof mac; bit++) {
        memcpy(changed, mac, sizeof mac);
        changed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_not(tutti_frame_mac_check(&taker, 7, "frame", 5, changed), "bit %zu", bit);
    }
}

/* -------------------------------------------------------------------------------------------- strangers */

static int knock_raw(void) {
    struct sockaddr_storage name;
    unsigned bytes = tutti_listener_sockaddr(&own_listener.addresses[0], own_listener.port, &name);
    int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    cr_assert_eq(connect(fd, (struct sockaddr *)&name, bytes), 0);
    return fd;
}

/* Sends a hello for the address that the connection has connected to. */
static void say(int fd, tutti_listener_hello *hello) {
    hello->called = tutti_listener_called(fd, /* by_this_side */ true);
    cr_assert_eq(send(fd, hello, sizeof *hello, 0), sizeof *hello);
}

static bool receive(int fd, void *data, size_t bytes) {
    return recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* Returns whether the connection ends without another byte. */
static bool closes(int fd) {
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);
    close(fd);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

static tutti_listener_verdict last_verdict(int fd) {
    tutti_listener_accepted welcome = {.verdict = TUTTI_LISTENER_VERDICTS};
    return receive(fd, &welcome, sizeof welcome) ? (tutti_listener_verdict)welcome.verdict : TUTTI_LISTENER_VERDICTS;
}

static void check_that_the_real_one_gets_in(uint64_t comm_id) {
    tutti_conn_id conn_id = conn_id_of(comm_id);
    tutti_deadline deadline = tutti_deadline_after_ms(20000);
    tutti_connection called;
    tutti_status status = tutti_listener_connect(&own_listener, &conn_id, &deadline, &called);
    cr_assert_eq(status, TUTTI_OK, "%s", tutti_last_error());
    tutti_connection taken = take_connection(&conn_id, 5000);
    int out = called.socket, in = taken.socket;
    cr_assert_geq(in, 0);
    cr_assert(called.called && !taken.called);
    cr_assert_arr_eq(called.key, taken.key, sizeof taken.key);
    char there = 'x', here = 0;
    cr_assert(send(out, &there, 1, 0) == 1 && receive(in, &here, 1) && here == 'x');
    there = 'y';
    cr_assert(send(in, &there, 1, 0) == 1 && receive(out, &here, 1) && here == 'y');
    close(in);
    close(out);
}

Test(listener, lets_in_a_caller_with_the_key_and_gives_the_connection_to_the_owner_of_the_id) {
    tutti_conn_id other = conn_id_of(2);
    tutti_connection got;
    cr_assert_eq(tutti_listener_take(&other, &got), TUTTI_NOT_YET);
    check_that_the_real_one_gets_in(1);
    cr_assert_eq(tutti_listener_take(&other, &got), TUTTI_NOT_YET);
}

Test(listener, serves_several_jobs) {
    char name[16];
    for (int i = 0; i < 80; i++) {
        snprintf(name, sizeof name, "job %d", i);
        cr_assert_eq(tutti_listener_add_key(name, strlen(name)), TUTTI_OK);
    }
    tutti_conn_id conn_id = conn_id_of(3);
    tutti_listener_key known = {.bytes = 6, .key = "job 20"}, both[2] = {wrong_key, known};
    tutti_listener_hello hello;
    tutti_listener_reply reply;
    tutti_listener_proof proof, expected;
    uint8_t keys[2][TUTTI_CONNECTION_KEY_BYTES];
    cr_assert_eq(tutti_listener_make_hello(&conn_id, both, 2, &hello), TUTTI_OK);
    cr_assert_eq(tutti_listener_answer(&hello, own_listener.process, &hello.called, &reply, &expected, keys[0]),
                 TUTTI_OK);
    cr_assert_eq(reply.verdict, TUTTI_LISTENER_ACCEPTED);
    cr_assert_eq(tutti_listener_check_reply(&hello, &reply, both, 2, &proof, keys[1]), TUTTI_LISTENER_ACCEPTED);
    cr_assert_arr_eq(&proof, &expected, sizeof proof);
    cr_assert_arr_eq(keys[0], keys[1], sizeof keys[0]);
    check_that_the_real_one_gets_in(3);
}

Test(listener, closes_on_garbage_at_once) {
    char garbage[400];
    memset(garbage, 'G', sizeof garbage);
    int fd = knock_raw();
    cr_assert_gt(send(fd, garbage, sizeof garbage, MSG_NOSIGNAL), 0);
    cr_assert(closes(fd));
    check_that_the_real_one_gets_in(4);
}

Test(listener, closes_half_open_connections_after_a_few_seconds) {
    tutti_conn_id conn_id = conn_id_of(5);
    tutti_listener_hello hello;
    tutti_listener_reply reply;
    cr_assert_eq(tutti_listener_make_hello(&conn_id, &key, 1, &hello), TUTTI_OK);
    int silent = knock_raw(), half = knock_raw(), unproved = knock_raw();
    cr_assert_eq(send(half, &hello, sizeof hello / 2, 0), sizeof hello / 2);
    say(unproved, &hello);
    cr_assert(receive(unproved, &reply, sizeof reply));
    check_that_the_real_one_gets_in(6); /* meanwhile */
    cr_assert(closes(silent));
    cr_assert(closes(half));
    cr_assert(closes(unproved));
    cr_assert_lt(take(&conn_id, 0), 0);
}

Test(listener, tells_a_caller_with_another_secret_so_and_proves_nothing_to_it) {
    tutti_conn_id conn_id = conn_id_of(7);
    tutti_listener_hello hello;
    tutti_listener_reply reply;
    static const uint8_t none[sizeof reply.mac];
    cr_assert_eq(tutti_listener_make_hello(&conn_id, &wrong_key, 1, &hello), TUTTI_OK);
    int fd = knock_raw();
    say(fd, &hello);
    cr_assert(receive(fd, &reply, sizeof reply));
    cr_assert_eq(reply.verdict, TUTTI_LISTENER_UNKNOWN);
    cr_assert_arr_eq(reply.mac, none, sizeof none);
    cr_assert(closes(fd));
    cr_assert_lt(take(&conn_id, 100), 0);
}

Test(listener, takes_no_ticket_for_another_process) {
    tutti_conn_id conn_id = conn_id_of(8);
    tutti_listener_hello hello;
    tutti_listener_reply reply;
    conn_id.to[3] ^= 1;
    cr_assert_eq(tutti_listener_make_hello(&conn_id, &key, 1, &hello), TUTTI_OK);
    int fd = knock_raw();
    say(fd, &hello);
    cr_assert(receive(fd, &reply, sizeof reply));
    cr_assert_eq(reply.verdict, TUTTI_LISTENER_ELSEWHERE);
    cr_assert(closes(fd));
}

Test(listener, refuses_a_connection_that_was_passed_on) {
    tutti_conn_id conn_id = conn_id_of(17);
    tutti_listener_hello hello;
    tutti_listener_reply reply;
    cr_assert_eq(tutti_listener_make_hello(&conn_id, &key, 1, &hello), TUTTI_OK);
    int fd = knock_raw();
    hello.called = tutti_listener_called(fd, /* by_this_side */ true);
    hello.called.port ^= 1; /* what the caller connected to, if a relay has written its own port into the store */
    cr_assert_eq(send(fd, &hello, sizeof hello, 0), sizeof hello);
    cr_assert(receive(fd, &reply, sizeof reply));
    cr_assert_eq(reply.verdict, TUTTI_LISTENER_REDIRECTED);
    cr_assert(closes(fd));
    cr_assert_lt(take(&conn_id, 0), 0);
}

Test(listener, detects_a_relay_that_changes_the_address_in_a_hello) {
    tutti_conn_id conn_id = conn_id_of(18);
    tutti_listener_hello hello, changed;
    tutti_listener_reply reply;
    tutti_listener_proof proof;
    uint8_t session[TUTTI_CONNECTION_KEY_BYTES];
    cr_assert_eq(tutti_listener_make_hello(&conn_id, &key, 1, &hello), TUTTI_OK);
    int fd = knock_raw();
    changed = hello;
    hello.called = (tutti_listener_endpoint){.port = 1}; /* the relay's address */
    say(fd, &changed);
    cr_assert(receive(fd, &reply, sizeof reply));
    cr_assert_eq(tutti_listener_check_reply(&hello, &reply, &key, 1, &proof, session), TUTTI_LISTENER_UNPROVED);
    close(fd);
}

/* Sends a hello, then `proof`, or the listener's own proof, or the right one. Returns the verdict. */
static tutti_listener_verdict prove(tutti_listener_hello *hello, tutti_listener_proof *proof, bool reflect) {
    tutti_listener_reply reply;
    tutti_listener_proof right;
    uint8_t session[TUTTI_CONNECTION_KEY_BYTES];
    int fd = knock_raw();
    say(fd, hello);
    cr_assert(receive(fd, &reply, sizeof reply));
    cr_assert_eq(tutti_listener_check_reply(hello, &reply, &key, 1, &right, session), TUTTI_LISTENER_ACCEPTED);
    if (reflect) memcpy(right.mac, reply.mac, sizeof right.mac);
    else if (proof != NULL) right = *proof;
    cr_assert_eq(send(fd, &right, sizeof right, 0), sizeof right);
    tutti_listener_verdict verdict = last_verdict(fd);
    close(fd);
    return verdict;
}

Test(listener, takes_neither_a_replayed_nor_a_reflected_nor_a_made_up_proof) {
    tutti_conn_id conn_id = conn_id_of(9);
    tutti_listener_hello hello;
    tutti_listener_reply reply;
    tutti_listener_proof heard, made_up;
    uint8_t session[TUTTI_CONNECTION_KEY_BYTES];
    cr_assert_eq(tutti_listener_make_hello(&conn_id, &key, 1, &hello), TUTTI_OK);
    /* A client gets in, and its proof is overheard. */
    int fd = knock_raw();
    say(fd, &hello);
    cr_assert(receive(fd, &reply, sizeof reply));
    cr_assert_eq(tutti_listener_check_reply(&hello, &reply, &key, 1, &heard, session), TUTTI_LISTENER_ACCEPTED);
    cr_assert_eq(send(fd, &heard, sizeof heard, 0), sizeof heard);
    cr_assert_eq(last_verdict(fd), TUTTI_LISTENER_ACCEPTED);
    close(take(&conn_id, 5000));
    close(fd);
    memset(&made_up, 3, sizeof made_up);
    cr_assert_eq(prove(&hello, &heard, /* reflect */ false), TUTTI_LISTENER_UNPROVED);
    cr_assert_eq(prove(&hello, NULL, /* reflect */ true), TUTTI_LISTENER_UNPROVED);
    cr_assert_eq(prove(&hello, &made_up, /* reflect */ false), TUTTI_LISTENER_UNPROVED);
    cr_assert_lt(take(&conn_id, 100), 0);
    cr_assert_eq(prove(&hello, NULL, /* reflect */ false), TUTTI_LISTENER_ACCEPTED);
    cr_assert_geq(take(&conn_id, 5000), 0);
}

Test(listener, stays_open_in_a_flood) {
    enum { FLOOD = 1000 };
    static int fds[FLOOD];
    tutti_listener_hello hello;
    tutti_conn_id conn_id = conn_id_of(10);
    cr_assert_eq(tutti_listener_make_hello(&conn_id, &wrong_key, 1, &hello), TUTTI_OK);
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = knock_raw();
        if (i % 3 == 1) (void)!send(fds[i], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
        if (i % 3 == 2) (void)!send(fds[i], &hello, sizeof hello / 2, MSG_NOSIGNAL);
        if (i % 200 == 199) check_that_the_real_one_gets_in(11);
    }
    check_that_the_real_one_gets_in(12);
    for (int i = 0; i < FLOOD; i++) close(fds[i]);
    check_that_the_real_one_gets_in(13);
}

Test(listener, keeps_the_newest_of_two_connections_with_one_id) {
    tutti_conn_id conn_id = conn_id_of(14);
    tutti_connection first, second;
    tutti_deadline deadline = tutti_deadline_after_ms(20000);
    cr_assert_eq(tutti_listener_connect(&own_listener, &conn_id, &deadline, &first), TUTTI_OK);
    cr_assert_eq(tutti_listener_connect(&own_listener, &conn_id, &deadline, &second), TUTTI_OK);
    struct timespec moment = {.tv_nsec = 200 * TUTTI_NS_PER_MS};
    nanosleep(&moment, NULL);
    int in = take(&conn_id, 5000);
    char byte = 'z';
    cr_assert(send(in, &byte, 1, 0) == 1 && receive(second.socket, &byte, 1));
    cr_assert(closes(first.socket));
    cr_assert_lt(take(&conn_id, 0), 0);
}

Test(listener, is_not_for_forked_children) {
    tutti_conn_id conn_id = conn_id_of(15);
    pid_t child = fork();
    if (child == 0) {
        tutti_listener_info copy;
        tutti_deadline deadline = tutti_deadline_after_ms(1000);
        tutti_connection got;
        bool forked = tutti_listener_open(&copy) == TUTTI_ERR_FORKED &&
                      tutti_listener_take(&conn_id, &got) == TUTTI_ERR_FORKED &&
                      tutti_listener_connect(&own_listener, &conn_id, &deadline, &got) == TUTTI_ERR_FORKED;
        _exit(forked ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    check_that_the_real_one_gets_in(16);
}
