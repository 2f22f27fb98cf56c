/*
 * A store of a job with a secret: which connections may change the ranks' keys, what a client reports about another
 * job's store, and that repeated, reflected and made-up proofs are refused.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/store/store.h"
#include "bootstrap/store/store_proof.h"
#include "bootstrap/store/store_wire.h"
#include "tests/support/stores/wire.h"

#define SECRET "our word"
/* A key of the ranks, with its length before it; and a key of a framework. */
#define GUARDED "\xA\0\0\0\0\0\0\0/tutti/run"
#define OTHER   "\xA\0\0\0\0\0\0\0/torch/run"
#define ASK     "\5\1\0\0\0\0\0\0\0\x13\0\0\0\0\0\0\0tutti.store/proof/1"

enum { CHALLENGE_BYTES = 1 + 8 + TUTTI_STORE_NONCE_BYTES, ANSWER_BYTES = TUTTI_STORE_NONCE_BYTES + TUTTI_SHA256_BYTES };

static tutti_store_server *server;
static int port;

static void start(void) {
    cr_assert_eq(tutti_store_server_start("127.0.0.1", 0, SECRET, &server), TUTTI_OK, "%s", tutti_last_error());
    port = tutti_store_server_port(server);
}

static void stop(void) {
    tutti_store_server_stop(server);
}

TestSuite(store_proof, .init = start, .fini = stop, .timeout = 60);

static tutti_status reach(const char *secret, tutti_store_client **client_out) {
    const tutti_store_client_options patience = {.secret = secret, .connect_ms = 10000};
    return tutti_store_client_reach("127.0.0.1", port, &patience, client_out);
}

static int join(void) {
    int fd = wire_connect(port);
    cr_assert(fd >= 0 && wire_send(fd, BYTES(VALIDATE)));
    return fd;
}

/* ------------------------------------------------------------------------------------------------- rights */

typedef struct attempt {
    const char *what;
    const char *guarded; /* the request, and the same for a key that any client may change */
    size_t guarded_bytes;
    const char *other;
    size_t other_bytes;
} attempt;

#define ATTEMPT(what, op, rest) {what, BYTES(op GUARDED rest), BYTES(op OTHER rest)}

static const attempt attempts[] = {
    ATTEMPT("set", "\1", "\1\0\0\0\0\0\0\0x"),
    ATTEMPT("compare and set", "\2", "\4\0\0\0\0\0\0\0kept\1\0\0\0\0\0\0\0x"),
    ATTEMPT("add", "\4", "\1\0\0\0\0\0\0\0"),
    ATTEMPT("delete", "\x8", ""),
    ATTEMPT("append", "\x9", "\1\0\0\0\0\0\0\0x"),
    ATTEMPT("set several", "\xB\2\0\0\0\0\0\0\0" OTHER "\1\0\0\0\0\0\0\0x", "\1\0\0\0\0\0\0\0x"),
    ATTEMPT("push", "\xE", "\1\0\0\0\0\0\0\0x"),
    ATTEMPT("pop", "\xF", ""),
    ATTEMPT("barrier", "\x12", "\1\0\0\0\0\0\0\0"),
};

static void expect_kept(const tutti_store *store, const char *after) {
    char value[16] = "";
    size_t bytes = 0;
    cr_assert_eq(store->get(store->context, "tutti/run", value, sizeof value, &bytes, 1000), TUTTI_OK);
    cr_assert(bytes == 4 && memcmp(value, "kept", 4) == 0, "after '%s' the key holds '%.16s'", after, value);
}

Test(store_proof, only_proved_connections_change_the_ranks_keys) {
    tutti_store_client *client;
    int64_t sum = 0;
    cr_assert_eq(reach(SECRET, &client), TUTTI_OK, "%s", tutti_last_error());
    tutti_store store = tutti_store_client_callbacks(client);
    cr_assert_eq(store.set(store.context, "tutti/run", "kept", 4), TUTTI_OK);
    cr_assert_eq(store.add(store.context, "tuttirun/none/0/events", 1, &sum), TUTTI_OK);
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        int fd = join();
        cr_assert(wire_send(fd, attempts[i].guarded, attempts[i].guarded_bytes));
        cr_assert(wire_closes(fd), "%s: the connection stays open", attempts[i].what);
        close(fd);
        expect_kept(&store, attempts[i].what);
    }
    tutti_store_client_close(client);
}

Test(store_proof, other_clients_share_the_store_for_keys_of_their_own) {
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        int fd = join();
        char reply[9];
        cr_assert(wire_send(fd, BYTES("\x8" OTHER))); /* removes what an earlier attempt has left */
        cr_assert(wire_receive(fd, reply, 8));
        if (strcmp(attempts[i].what, "add") == 0)
            cr_assert(wire_send(fd, BYTES("\1" OTHER "\1\0\0\0\0\0\0\0"
                                          "1")));
        cr_assert(wire_send(fd, attempts[i].other, attempts[i].other_bytes));
        cr_assert(wire_send(fd, BYTES("\xD"
                                      "ping")));
        bool there = false;
        for (size_t got = 0; !there && got < 64; got++) { /* some requests have replies, which come before the ping's */
            char byte;
            memmove(reply, reply + 1, 3);
            cr_assert(wire_receive(fd, &byte, 1), "%s: the connection is closed", attempts[i].what);
            reply[3] = byte;
            there = got >= 3 && memcmp(reply, "ping", 4) == 0;
        }
        cr_assert(there, "%s", attempts[i].what);
        close(fd);
    }
}

/* ------------------------------------------------------------------------------------------------ clients */

static void expect_refused(const char *secret, const char *words) {
    tutti_store_client *client;
    int64_t begun_ns = tutti_now_ns();
    cr_assert_eq(reach(secret, &client), TUTTI_ERR_REFUSED, "%s", tutti_last_error());
    cr_assert(strstr(tutti_last_error(), words) != NULL, "%s", tutti_last_error());
    int64_t took_ms = (tutti_now_ns() - begun_ns) / TUTTI_NS_PER_MS;
    cr_assert(took_ms < 4000, "%lld ms", (long long)took_ms);
}

Test(store_proof, a_client_with_another_secret_or_none_is_refused_soon) {
    expect_refused("another word", "the store there has another secret than this process");
    expect_refused("", "the store there belongs to a job with a secret, and none is set here");
    expect_refused(NULL, "set TUTTI_SECRET or TUTTI_SECRET_FILE");
}

Test(store_proof, a_client_with_a_secret_uses_a_store_without_one) {
    tutti_store_server *plain;
    tutti_store_client *client;
    int64_t sum = 0;
    cr_assert_eq(tutti_store_server_start("127.0.0.1", 0, NULL, &plain), TUTTI_OK, "%s", tutti_last_error());
    port = tutti_store_server_port(plain);
    cr_assert_eq(reach(SECRET, &client), TUTTI_OK, "%s", tutti_last_error());
    tutti_store store = tutti_store_client_callbacks(client);
    cr_assert_eq(store.add(store.context, "tutti/run", 2, &sum), TUTTI_OK);
    cr_assert_eq(sum, 2);
    tutti_store_client_close(client);
    tutti_store_server_stop(plain);
}

/* ------------------------------------------------------------------------------------------------- proofs */

/* Sends the challenge with the given number; the server's answer goes to answer_out. */
static void challenge(int fd, const uint8_t nonce[TUTTI_STORE_NONCE_BYTES], uint8_t answer_out[ANSWER_BYTES]) {
    uint8_t request[CHALLENGE_BYTES] = {[0] = TUTTI_STORE_CHALLENGE, [1] = TUTTI_STORE_NONCE_BYTES};
    memcpy(request + 9, nonce, TUTTI_STORE_NONCE_BYTES);
    cr_assert(wire_talk(fd, BYTES(ASK), "\0", 1), "the store does not ask for a proof");
    cr_assert(wire_send(fd, request, sizeof request) && wire_receive(fd, answer_out, ANSWER_BYTES));
}

static bool is_taken(int fd, const uint8_t mac[TUTTI_SHA256_BYTES]) {
    uint8_t request[CHALLENGE_BYTES] = {[0] = TUTTI_STORE_PROVE, [1] = TUTTI_SHA256_BYTES};
    char reply[4];
    memcpy(request + 9, mac, TUTTI_SHA256_BYTES);
    cr_assert(wire_send(fd, request, sizeof request));
    (void)wire_send(fd, BYTES("\1" GUARDED "\1\0\0\0\0\0\0\0x"));
    (void)wire_send(fd, BYTES("\xD"
                              "ping"));
    bool taken = wire_receive(fd, reply, sizeof reply);
    close(fd);
    return taken;
}

Test(store_proof, proofs_are_good_once_and_in_one_direction) {
    static const uint8_t nonce[TUTTI_STORE_NONCE_BYTES] = "a number that is not random";
    uint8_t first[ANSWER_BYTES], second[ANSWER_BYTES], mac[TUTTI_SHA256_BYTES];
    tutti_store_secret secret = tutti_store_secret_of(SECRET), wrong = tutti_store_secret_of("our wort");
    int fd = join();
    challenge(fd, nonce, first);
    tutti_store_prove(&secret, TUTTI_STORE_SERVER, nonce, first, mac);
    cr_assert(memcmp(mac, first + TUTTI_STORE_NONCE_BYTES, sizeof mac) == 0, "the server's own proof");
    tutti_store_prove(&secret, TUTTI_STORE_CLIENT, nonce, first, mac);
    cr_assert(is_taken(fd, mac));
    fd = join();
    challenge(fd, nonce, second);
    cr_assert(memcmp(first, second, TUTTI_STORE_NONCE_BYTES) != 0);
    cr_assert_not(is_taken(fd, mac), "another connection's proof");
    fd = join();
    challenge(fd, nonce, second);
    cr_assert_not(is_taken(fd, second + TUTTI_STORE_NONCE_BYTES), "the server's own proof, sent back");
    fd = join();
    challenge(fd, nonce, second);
    tutti_store_prove(&wrong, TUTTI_STORE_CLIENT, nonce, second, mac);
    cr_assert_not(is_taken(fd, mac), "with another secret");
    fd = join();
    memset(mac, 0, sizeof mac); /* the proof's value before any challenge */
    cr_assert_not(is_taken(fd, mac), "without a challenge");
}

static const struct {
    const char *what, *request;
    size_t bytes;
} broken[] = {
    {"a short challenge", BYTES("\x40\x1F\0\0\0\0\0\0\0"
                                "1234567890123456789012345678901")},
    {"a long challenge", BYTES("\x40\x21\0\0\0\0\0\0\0"
                               "123456789012345678901234567890123")},
    {"an empty challenge", BYTES("\x40\0\0\0\0\0\0\0\0")},
    {"an empty proof", BYTES("\x41\0\0\0\0\0\0\0\0")},
    {"two challenges", BYTES("\x40\x20\0\0\0\0\0\0\0"
                             "12345678901234567890123456789012"
                             "\x40\x20\0\0\0\0\0\0\0"
                             "12345678901234567890123456789012")},
    {"a request between PyTorch's and ours", BYTES("\x3F")},
    {"a request behind ours", BYTES("\x42")},
};

Test(store_proof, a_malformed_request_closes_the_connection) {
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        int fd = join();
        cr_assert(wire_send(fd, broken[i].request, broken[i].bytes));
        cr_assert(wire_closes(fd), "%s: the connection stays open", broken[i].what);
        close(fd);
    }
}

/* A store that has no secret and claims that it has one. */
Test(store_proof, a_client_refuses_a_store_that_cannot_prove_itself) {
    int false_port, listener = wire_listen(&false_port);
    const tutti_store_client_options patience = {.secret = SECRET, .connect_ms = 10000};
    tutti_store_client *client;
    pid_t impostor = fork();
    while (impostor == 0) {
        char hello[64], request[CHALLENGE_BYTES], answer[ANSWER_BYTES] = "";
        int fd = accept(listener, NULL, NULL);
        if (recv(fd, hello, sizeof hello, 0) < 10 || send(fd, hello + 6, 4, 0) != 4 || send(fd, "\0", 1, 0) != 1)
            _exit(1);
        if (recv(fd, request, sizeof request, MSG_WAITALL) == (ssize_t)sizeof request &&
            send(fd, answer, sizeof answer, 0) != (ssize_t)sizeof answer)
            _exit(1);
        while (recv(fd, hello, sizeof hello, 0) > 0) {}
        close(fd);
    }
    tutti_status status = tutti_store_client_reach("127.0.0.1", false_port, &patience, &client);
    kill(impostor, SIGKILL);
    close(listener);
    cr_assert_eq(status, TUTTI_ERR_REFUSED, "%s", tutti_last_error());
    cr_assert(strstr(tutti_last_error(), "it belongs to another job") != NULL, "%s", tutti_last_error());
}

/* --------------------------------------------------------------------------------------------------- log */

Test(store_proof, refused_attempts_are_named_and_do_not_fill_the_log) {
    enum { NTRIES = 1000, MOST_LINES = 11 };
    static char text[1 << 16];
    int log = memfd_create("log", MFD_CLOEXEC), error = dup(STDERR_FILENO), lines = 0;
    cr_assert(log >= 0 && dup2(log, STDERR_FILENO) >= 0);
    for (int i = 0; i < NTRIES; i++) {
        int fd = join();
        bool sent = wire_send(fd, attempts[0].guarded, attempts[0].guarded_bytes) && wire_closes(fd);
        close(fd);
        cr_assert(sent);
    }
    dup2(error, STDERR_FILENO);
    ssize_t bytes = pread(log, text, sizeof text - 1, 0);
    cr_assert(bytes > 0, "nothing is said");
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) lines++;
    cr_assert(lines >= 1 && lines <= MOST_LINES, "%d lines", lines);
    cr_assert(
        strstr(text, "store: a process at 127.0.0.1 has tried to change what the ranks keep there, without a proof") !=
            NULL,
        "%s", text);
}
