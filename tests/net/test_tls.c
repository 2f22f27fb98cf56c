/*
 * What is specific to TLS pipes; what they share with all pipes is in test_transport.c. Here an attacker stands
 * between the two sides, reads all bytes, and changes some; or is one of the two sides, without the key.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/net/transport/transport.h"
#include "tests/support/links/mesh.h"
#include "tests/support/ranks.h"

#define PATIENCE_MS 20000
#define LOG_BYTES   (1 << 20)
#define PATTERN     "this must be hidden! "

static const tutti_transport *const tls = &tutti_tls_transport;

static void need_tls(void) {
    if (tls->check() != TUTTI_OK) cr_skip_test("%s", tutti_last_error());
}

TestSuite(tls, .init = need_tls, .timeout = 60);

/* ------------------------------------------------------------------------------------------- in the middle */

typedef enum mischief { NONE, FLIP, DROP, REPEAT, INJECT, END } mischief;

/* Passes bytes from a to b and back, and reads them. */
typedef struct middle {
    int a, b; /* its ends of both connections */
    mischief does;
    _Atomic size_t at; /* the byte of a's stream to act on */
    _Atomic size_t seen;
    unsigned char *log; /* the first LOG_BYTES of a's */
    pthread_t thread;
} middle;

static void hand_on(int to, const unsigned char *data, size_t bytes) {
    if (send(to, data, bytes, MSG_NOSIGNAL) < 0) return; /* that side has gone; the other side notices soon */
}

/* Passes on bytes from a; changes them once. */
static void meddle(middle *m, unsigned char *data, size_t bytes) {
    size_t before = atomic_load(&m->seen), at = atomic_load(&m->at);
    if (before < LOG_BYTES) memcpy(m->log + before, data, tutti_min_size(bytes, LOG_BYTES - before));
    atomic_store(&m->seen, before + bytes);
    if (m->does == NONE || at < before || at >= before + bytes) {
        hand_on(m->b, data, bytes);
        return;
    }
    size_t first = at - before;
    if (m->does == FLIP) data[first] ^= 0x10;
    hand_on(m->b, data, first);
    if (m->does == REPEAT) hand_on(m->b, data, first > 0 ? first : 1);
    if (m->does == INJECT)
        hand_on(m->b, (const unsigned char *)"\x17\x03\x03\x00\x20 what comes in here was not sent ", 38);
    if (m->does == END) shutdown(m->b, SHUT_RDWR);
    else hand_on(m->b, data + first + (m->does == DROP), bytes - first - (m->does == DROP));
}

static void *stand_between(void *argument) {
    middle *m = argument;
    unsigned char data[30000];
    for (;;) {
        struct pollfd waited[2] = {{.fd = m->a, .events = POLLIN}, {.fd = m->b, .events = POLLIN}};
        poll(waited, 2, -1);
        for (int i = 0; i < 2; i++) {
            if (waited[i].revents == 0) continue;
            ssize_t got = recv(waited[i].fd, data, sizeof data, MSG_DONTWAIT);
            if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            if (got <= 0) {
                shutdown(m->a, SHUT_RDWR);
                shutdown(m->b, SHUT_RDWR);
                return NULL;
            }
            if (i == 0) meddle(m, data, (size_t)got);
            else hand_on(m->a, data, (size_t)got);
        }
    }
}

typedef struct side {
    const tutti_transport *transport;
    tutti_connection connection;
    int64_t timeout_ms;
    tutti_pipe *pipe;
    tutti_status status;
    char error[1024];
} side;

static void *open_side(void *argument) {
    side *s = argument;
    tutti_deadline deadline = tutti_deadline_after_ms(s->timeout_ms != 0 ? s->timeout_ms : PATIENCE_MS);
    s->status = s->transport->open(&s->connection, &deadline, &s->pipe);
    if (s->status != TUTTI_OK) snprintf(s->error, sizeof s->error, "%s", tutti_last_error());
    return NULL;
}

static void open_both(side *a, side *b) {
    pthread_t other;
    cr_assert_eq(pthread_create(&other, NULL, open_side, b), 0);
    open_side(a);
    pthread_join(other, NULL);
}

static void open_with_middle(const tutti_transport *transport, middle *m, tutti_pipe **a_out, tutti_pipe **b_out) {
    int first[2], second[2];
    cr_assert(mesh_pair(MESH_TCP, first) == TUTTI_OK && mesh_pair(MESH_TCP, second) == TUTTI_OK);
    m->a = first[1];
    m->b = second[0];
    m->log = calloc(1, LOG_BYTES);
    atomic_store(&m->at, SIZE_MAX);
    cr_assert_eq(pthread_create(&m->thread, NULL, stand_between, m), 0);
    side a = {.transport = transport, .connection = {.socket = first[0], .called = true, .key = "a key"}};
    side b = {.transport = transport, .connection = {.socket = second[1], .key = "a key"}};
    open_both(&a, &b);
    cr_assert(a.status == TUTTI_OK && b.status == TUTTI_OK, "%s %s", a.error, b.error);
    *a_out = a.pipe;
    *b_out = b.pipe;
}

static void close_with_middle(middle *m, tutti_pipe *a, tutti_pipe *b) {
    const tutti_transport *transport = a->transport;
    transport->close(a);
    pthread_join(m->thread, NULL);
    transport->close(b);
    close(m->a);
    close(m->b);
    free(m->log);
}

/* Drives both until the receive of `b` is complete, or one of the two has failed; returns b's status. */
static tutti_status drive(tutti_pipe *a, tutti_pipe *b) {
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    while (!tutti_pipe_has_received(b) && b->status == TUTTI_OK) {
        a->transport->progress(a);
        b->transport->progress(b);
        cr_assert(!tutti_deadline_passed(&deadline), "stuck at %zu of %zu", b->received, b->to_receive);
    }
    return b->status;
}

static void send_all(tutti_pipe *pipe, const void *data, size_t bytes) {
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    cr_assert_eq(pipe->transport->send(pipe, &part, 1), TUTTI_OK, "%s", tutti_last_error());
}

static unsigned char value(size_t i) {
    return (unsigned char)(i * 7 + i / 251);
}

/* ------------------------------------------------------------------------------------------------- secrecy */

/* Returns whether an attacker that reads all bytes finds the pattern. */
static bool shows(const tutti_transport *transport) {
    enum { BYTES = 100000 };
    middle m = {.does = NONE};
    tutti_pipe *a, *b;
    char *src = malloc(BYTES), *dst = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) src[i] = PATTERN[i % strlen(PATTERN)];
    open_with_middle(transport, &m, &a, &b);
    cr_assert_eq(transport->recv(b, dst, BYTES), TUTTI_OK);
    struct iovec parts[3] = {{src, 40}, {src + 40, 300}, {src + 340, BYTES - 340}};
    cr_assert_eq(transport->send(a, parts, 3), TUTTI_OK);
    cr_assert_eq(drive(a, b), TUTTI_OK, "%s", b->error);
    cr_assert_eq(memcmp(src, dst, BYTES), 0);
    size_t seen = atomic_load(&m.seen);
    bool found = memmem(m.log, tutti_min_size(seen, LOG_BYTES), PATTERN, strlen(PATTERN)) != NULL;
    cr_assert_geq(seen, BYTES, "the attacker in between has seen %zu bytes only", seen);
    close_with_middle(&m, a, b);
    free(src);
    free(dst);
    return found;
}

Test(tls, shows_nothing_of_what_it_carries) {
    cr_assert(shows(&tutti_tcp_transport), "the test does not find the pattern in plain text");
    cr_assert_not(shows(tls));
}

/* ----------------------------------------------------------------------------------------------- integrity */

/* The bytes that arrive are a prefix of those sent, and then comes the error. */
static void check_mischief(mischief does, size_t at, tutti_status expected) {
    enum { BYTES = 300000, MORE = 50000 }; /* more follows, so that a side that misses a byte does not hang */
    middle m = {.does = does};
    tutti_pipe *a, *b;
    unsigned char *src = malloc(BYTES + MORE), *dst = malloc(BYTES);
    for (size_t i = 0; i < BYTES + MORE; i++) src[i] = value(i);
    open_with_middle(tls, &m, &a, &b);
    /* A record goes first, so that the handshake is over. */
    cr_assert_eq(tls->recv(b, dst, 1), TUTTI_OK);
    send_all(a, src, 1);
    cr_assert_eq(drive(a, b), TUTTI_OK);
    memset(dst, 0xee, BYTES);
    atomic_store(&m.at, atomic_load(&m.seen) + at);
    cr_assert_eq(tls->recv(b, dst, BYTES), TUTTI_OK);
    send_all(a, src, BYTES + MORE);
    tutti_status status = drive(a, b);
    cr_assert_eq(status, expected, "mischief %d at %zu: %s (%s)", does, at, tutti_status_name(status), b->error);
    cr_assert_lt(b->received, BYTES);
    cr_assert_eq(memcmp(src, dst, b->received), 0, "mischief %d at %zu: wrong bytes arrived", does, at);
    for (size_t i = b->received; i < BYTES; i++) cr_assert_eq(dst[i], 0xee, "byte %zu was touched", i);
    cr_assert_eq(tls->progress(b), expected);
    close_with_middle(&m, a, b);
    free(src);
    free(dst);
}

Test(tls, notices_every_change_on_the_way) {
    static const size_t places[] = {0, 1, 3, 4, 5, 1000, 16000, 16404, 16405, 16406, 16410, 150000, 299000};
    for (size_t i = 0; i < TUTTI_COUNT_OF(places); i++) {
        size_t at = places[i];
        check_mischief(FLIP, at, TUTTI_ERR_DATA);
        check_mischief(DROP, at, TUTTI_ERR_DATA);
        check_mischief(INJECT, at, TUTTI_ERR_DATA);
        if (at > 0) check_mischief(END, at, TUTTI_ERR_PEER_DIED);
        if (at > 0) check_mischief(REPEAT, at, TUTTI_ERR_DATA);
    }
}

/* ------------------------------------------------------------------------------------------------- opening */

static void check_refused(const side *s) {
    cr_assert(s->status == TUTTI_ERR_REFUSED || s->status == TUTTI_ERR_PEER_DIED, "%s: %s",
              tutti_status_name(s->status), s->error);
}

Test(tls, opens_only_between_two_that_have_the_same_key) {
    for (int turn = 0; turn < 3; turn++) { /* another key; both connect; both accept */
        int sockets[2];
        cr_assert_eq(mesh_pair(MESH_UNIX, sockets), TUTTI_OK);
        side a = {.transport = tls, .timeout_ms = 500, .connection = {.socket = sockets[0], .key = "a key"}}, b = a;
        b.connection.socket = sockets[1];
        a.connection.called = turn != 2;
        b.connection.called = turn == 1;
        if (turn == 0) b.connection.key[31] = 1;
        open_both(&a, &b);
        if (turn == 2) { /* each waits for the other */
            cr_assert(a.status == TUTTI_ERR_TIMEOUT || a.status == TUTTI_ERR_PEER_DIED, "%s", a.error);
            continue;
        }
        check_refused(&a);
        check_refused(&b);
        cr_assert(a.status == TUTTI_ERR_REFUSED || b.status == TUTTI_ERR_REFUSED);
    }
}

static void open_against(const char *words, size_t bytes, bool called, bool closes, tutti_status expected) {
    int sockets[2];
    pthread_t thread;
    cr_assert_eq(mesh_pair(MESH_UNIX, sockets), TUTTI_OK);
    side s = {.transport = tls, .connection = {.socket = sockets[0], .called = called, .key = "k"}, .timeout_ms = 300};
    if (bytes > 0) cr_assert_eq(send(sockets[1], words, bytes, 0), (ssize_t)bytes);
    if (closes) shutdown(sockets[1], SHUT_WR);
    cr_assert_eq(pthread_create(&thread, NULL, open_side, &s), 0);
    pthread_join(thread, NULL);
    close(sockets[1]);
    cr_assert_eq(s.status, expected, "'%.20s': %s: %s", words, tutti_status_name(s.status), s.error);
}

Test(tls, does_not_open_against_garbage_silence_or_an_end) {
    static const char garbage[] = "GET / HTTP/1.1\r\n\r\n", huge[] = "\x16\x03\x01\xff\xff....................";
    for (int called = 0; called < 2; called++) {
        open_against(garbage, sizeof garbage, called, false, TUTTI_ERR_REFUSED);
        open_against(huge, sizeof huge, called, false, TUTTI_ERR_REFUSED);
        open_against("\x16\x03", 2, called, false, TUTTI_ERR_TIMEOUT);
        open_against("", 0, called, false, TUTTI_ERR_TIMEOUT);
        open_against("\x16\x03", 2, called, true, TUTTI_ERR_PEER_DIED);
        open_against("", 0, called, true, TUTTI_ERR_PEER_DIED);
    }
}

/* An ordinary TLS server: it does not know the key, and offers its own certificate instead. */
static void *be_certified(void *argument) {
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 1000);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC, (const unsigned char *)"me", -1,
                               -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    bool good = X509_sign(certificate, key, EVP_sha256()) > 0 && SSL_CTX_use_certificate(context, certificate) == 1 &&
                SSL_CTX_use_PrivateKey(context, key) == 1;
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, *(int *)argument);
    if (good) SSL_accept(ssl);
    SSL_free(ssl);
    X509_free(certificate);
    EVP_PKEY_free(key);
    SSL_CTX_free(context);
    return good ? argument : NULL;
}

Test(tls, accepts_no_certificate_instead_of_the_key) {
    int sockets[2];
    pthread_t server;
    void *certified = NULL;
    cr_assert_eq(mesh_pair(MESH_UNIX, sockets), TUTTI_OK);
    cr_assert_eq(pthread_create(&server, NULL, be_certified, &sockets[1]), 0);
    side s = {.transport = tls, .connection = {.socket = sockets[0], .called = true, .key = "k"}};
    open_side(&s);
    pthread_join(server, &certified);
    close(sockets[1]);
    cr_assert_not_null(certified);
    cr_assert(s.status == TUTTI_ERR_REFUSED && strstr(s.error, "certificate") != NULL, "%s", s.error);
}

/* -------------------------------------------------------------------------------------------------- moving */

static void open_pair(tutti_pipe **a_out, tutti_pipe **b_out) {
    int sockets[2];
    cr_assert_eq(mesh_pair(MESH_TCP, sockets), TUTTI_OK);
    side a = {.transport = tls, .connection = {.socket = sockets[0], .called = true, .key = "a key"}};
    side b = {.transport = tls, .connection = {.socket = sockets[1], .key = "a key"}};
    open_both(&a, &b);
    cr_assert(a.status == TUTTI_OK && b.status == TUTTI_OK, "%s %s", a.error, b.error);
    *a_out = a.pipe;
    *b_out = b.pipe;
}

/* Two records come in one read of the socket: the socket does not wake a sleeper for the second one. */
Test(tls, does_not_sleep_on_what_it_has_read_already) {
    tutti_pipe *a, *b;
    char dst[8] = "";
    short events;
    open_pair(&a, &b);
    send_all(a, "first", 6);
    send_all(a, "second", 7);
    cr_assert_eq(tls->recv(b, dst, 6), TUTTI_OK);
    usleep(20000);
    cr_assert_eq(drive(a, b), TUTTI_OK);
    cr_assert_eq(tls->recv(b, dst, 7), TUTTI_OK);
    int fd = tls->sleep_on(b, &events);
    cr_assert(fd < 0 || poll(&(struct pollfd){.fd = fd, .events = events}, 1, 0) == 1, "it would sleep");
    cr_assert_eq(tls->progress(b), TUTTI_OK);
    cr_assert(tutti_pipe_has_received(b) && strcmp(dst, "second") == 0);
    /* When all has been received, it does sleep. */
    cr_assert_eq(tls->recv(b, dst, 1), TUTTI_OK);
    cr_assert_eq(tls->progress(b), TUTTI_OK);
    fd = tls->sleep_on(b, &events);
    cr_assert(fd >= 0 && events == POLLIN && poll(&(struct pollfd){.fd = fd, .events = events}, 1, 20) == 0);
    tls->close(a);
    tls->close(b);
}

/* A record that is partly sent cannot be cancelled, though none of its bytes counts as sent. */
Test(tls, cannot_be_cancelled_within_a_record) {
    tutti_pipe *a, *b;
    static unsigned char data[16384];
    open_pair(&a, &b);
    for (int i = 0; i < 10000 && tutti_pipe_has_sent(a); i++) send_all(a, data, sizeof data);
    cr_assert(a->sent == 0 && a->to_send == sizeof data);
    tls->cancel(a);
    cr_assert_eq(a->status, TUTTI_ERR_ABORTED);
    tls->close(a);
    tls->close(b);
}

Test(tls, changes_its_keys_while_both_sides_send) {
    enum { BYTES = 8 << 20 };
    tutti_pipe *a, *b;
    unsigned char *src = malloc(BYTES), *there = calloc(1, BYTES), *back = calloc(1, BYTES);
    setenv("TUTTI_FAULT", "tls_key:0:2", 1); /* after every other record */
    tutti_settings_reload();
    open_pair(&a, &b);
    for (size_t i = 0; i < BYTES; i++) src[i] = value(i);
    for (int turn = 0; turn < 2; turn++) {
        cr_assert(tls->recv(b, there, BYTES) == TUTTI_OK && tls->recv(a, back, BYTES) == TUTTI_OK);
        send_all(a, src, BYTES);
        send_all(b, src, BYTES);
        cr_assert(drive(a, b) == TUTTI_OK && drive(b, a) == TUTTI_OK, "%s %s", a->error, b->error);
        cr_assert(memcmp(src, there, BYTES) == 0 && memcmp(src, back, BYTES) == 0);
    }
    tls->close(a);
    tls->close(b);
    free(src);
    free(there);
    free(back);
}
