/*
 * What is specific to UCX pipes; what they share with all pipes is in test_transport.c and test_transport_end.c. By
 * default UCX's sockets are used, which every machine has; UCX_TLS chooses others.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/net/transport/transport.h"
#include "tests/support/links/mesh.h"
#include "tests/support/ranks.h"

#define PATIENCE_MS 20000

static const tutti_transport *const ucx = &tutti_ucx_transport;

static void need_ucx(void) {
    setenv("UCX_TLS", "tcp,self", 0);
    if (ucx->check() != TUTTI_OK) cr_skip_test("%s", tutti_last_error());
}

TestSuite(ucx, .init = need_ucx, .timeout = 60);

typedef struct opening {
    int socket;
    int64_t timeout_ms;
    tutti_pipe *pipe;
    tutti_status status;
    char error[512];
} opening;

static void *open_end(void *argument) {
    opening *o = argument;
    tutti_deadline deadline = tutti_deadline_after_ms(o->timeout_ms);
    o->status = ucx->open(&(tutti_connection){.socket = o->socket}, &deadline, &o->pipe);
    if (o->status != TUTTI_OK) snprintf(o->error, sizeof o->error, "%s", tutti_last_error());
    return NULL;
}

static void open_pair(tutti_pipe **a_out, tutti_pipe **b_out) {
    int sockets[2];
    pthread_t other;
    cr_assert_eq(mesh_pair(MESH_TCP, sockets), TUTTI_OK, "%s", tutti_last_error());
    opening a = {.socket = sockets[0], .timeout_ms = PATIENCE_MS},
            b = {.socket = sockets[1], .timeout_ms = PATIENCE_MS};
    cr_assert_eq(pthread_create(&other, NULL, open_end, &b), 0);
    open_end(&a);
    pthread_join(other, NULL);
    cr_assert(a.status == TUTTI_OK && b.status == TUTTI_OK, "%s %s", a.error, b.error);
    *a_out = a.pipe;
    *b_out = b.pipe;
}

static bool is_done(const tutti_pipe *pipe) {
    return tutti_pipe_has_sent(pipe) && tutti_pipe_has_received(pipe);
}

/* Drives both until nothing is under way at b. */
static void drive(tutti_pipe *a, tutti_pipe *b) {
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    while (!is_done(b)) {
        cr_assert_eq(ucx->progress(a), TUTTI_OK, "%s", tutti_last_error());
        cr_assert_eq(ucx->progress(b), TUTTI_OK, "%s", tutti_last_error());
        cr_assert(!tutti_deadline_passed(&deadline), "stuck at %zu of %zu", b->received, b->to_receive);
    }
}

static void send_bytes(tutti_pipe *pipe, const void *data, size_t bytes) {
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    cr_assert_eq(ucx->send(pipe, &part, 1), TUTTI_OK, "%s", tutti_last_error());
}

static unsigned char value(size_t i) {
    return (unsigned char)(i * 7 + i / 251);
}

static int count_words(int log, const char *words) {
    static char text[16384];
    int count = 0;
    ssize_t bytes = pread(log, text, sizeof text - 1, 0);
    text[bytes > 0 ? bytes : 0] = '\0';
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++) count++;
    return count;
}

Test(ucx, warns_once_that_its_ports_are_open_to_all) {
    char path[] = "/tmp/tutti-log-XXXXXX";
    tutti_pipe *pipes[4];
    int log = mkstemp(path), before = dup(2);
    unlink(path);
    dup2(log, 2);
    open_pair(&pipes[0], &pipes[1]);
    open_pair(&pipes[2], &pipes[3]);
    dup2(before, 2);
    for (int i = 0; i < 4; i++) ucx->close(pipes[i]);
    cr_assert_eq(count_words(log, "without authentication"), strstr(getenv("UCX_TLS"), "tcp") != NULL ? 1 : 0);
    close(before);
    close(log);
}

/* Sizes around those at which a message becomes a piece, and a piece becomes two; receives that end inside of them. */
Test(ucx, receives_may_end_anywhere_in_what_was_sent) {
    static const size_t sizes[] = {8191, 8193, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, (3 << 20) + 70001, 9 << 20};
    static const size_t cuts[] = {1, 64, 5000, 65537, 700001, 2 << 20};
    tutti_pipe *a, *b;
    unsigned char *src = malloc(10 << 20), *dst = malloc(10 << 20);
    open_pair(&a, &b);
    for (size_t i = 0; i < 10 << 20; i++) src[i] = value(i);
    for (size_t i = 0; i < TUTTI_COUNT_OF(sizes); i++) {
        size_t bytes = sizes[i], at = 0;
        memset(dst, 0xaa, bytes + 1);
        struct iovec parts[3] = {{src, 64}, {src + 64, bytes / 3}, {src + 64 + bytes / 3, bytes - 64 - bytes / 3}};
        cr_assert_eq(ucx->send(a, parts, 3), TUTTI_OK, "%s", tutti_last_error());
        for (size_t cut = 0; at < bytes; cut++) {
            size_t wanted = tutti_min_size(cuts[cut % TUTTI_COUNT_OF(cuts)], bytes - at);
            cr_assert_eq(ucx->recv(b, dst + at, wanted), TUTTI_OK);
            drive(a, b);
            at += wanted;
        }
        drive(b, a);
        cr_assert(memcmp(src, dst, bytes) == 0 && dst[bytes] == 0xaa, "%zu bytes came wrong", bytes);
    }
    ucx->close(a);
    ucx->close(b);
    free(src);
    free(dst);
}

Test(ucx, a_large_transfer_that_is_cut_off_no_longer_touches_either_buffer) {
    enum { BYTES = 32 << 20 };
    tutti_pipe *a, *b;
    unsigned char *src = calloc(1, BYTES), *dst = calloc(1, BYTES);
    open_pair(&a, &b);
    cr_assert_eq(ucx->recv(b, dst, BYTES), TUTTI_OK);
    send_bytes(a, src, BYTES);
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    while (b->received < 1 << 20 && !tutti_deadline_passed(&deadline)) {
        ucx->progress(a);
        ucx->progress(b);
    }
    cr_assert(b->received >= 1 << 20 && b->received < BYTES, "%zu bytes came", b->received);
    ucx->cancel(b);
    cr_assert_eq(b->status, TUTTI_ERR_ABORTED);
    memset(dst, 0xdd, BYTES);
    tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = ucx->progress(a);
    cr_assert_eq(status, TUTTI_ERR_PEER_DIED, "%s", tutti_last_error());
    for (size_t i = 0; i < BYTES; i++) cr_assert(dst[i] == 0xdd, "byte %zu was written after the end", i);
    ucx->close(a);
    ucx->close(b);
    free(src);
    free(dst);
}

Test(ucx, an_offer_that_was_never_fetched_ends_with_the_pipe) {
    tutti_pipe *a, *b;
    unsigned char *src = calloc(1, 8 << 20), byte;
    for (int round = 0; round < 2; round++) {
        open_pair(&a, &b);
        send_bytes(a, src, 8 << 20);
        for (int i = 0; i < 2000; i++) cr_assert(ucx->progress(a) == TUTTI_OK && ucx->progress(b) == TUTTI_OK);
        cr_assert(!tutti_pipe_has_sent(a));
        ucx->close(round == 0 ? a : b);
        tutti_status status = ucx->recv(round == 0 ? b : a, &byte, 1);
        tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
        while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) status = ucx->progress(round == 0 ? b : a);
        cr_assert_eq(status, TUTTI_ERR_PEER_DIED, "%s", tutti_last_error());
        ucx->close(round == 0 ? b : a);
    }
    free(src);
}

Test(ucx, the_last_bytes_come_before_the_end) {
    tutti_pipe *a, *b;
    char words[6] = "";
    open_pair(&a, &b);
    send_bytes(a, "hello", 6);
    ucx->close(a);
    usleep(20000);
    for (int i = 0; i < 1000; i++) cr_assert_eq(ucx->progress(b), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(ucx->recv(b, words, sizeof words), TUTTI_OK);
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    while (!tutti_pipe_has_received(b) && !tutti_deadline_passed(&deadline))
        cr_assert_eq(ucx->progress(b), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_str_eq(words, "hello");
    ucx->close(b);
}

Test(ucx, a_sleeper_is_woken_when_the_other_process_is_killed) {
    int sockets[2];
    char byte;
    if (!ranks_have_processes()) cr_skip_test("needs processes");
    cr_assert_eq(mesh_pair(MESH_TCP, sockets), TUTTI_OK);
    pid_t child = fork();
    opening own = {.socket = sockets[child == 0], .timeout_ms = PATIENCE_MS};
    close(sockets[child != 0]);
    open_end(&own);
    if (child == 0) {
        for (;;) pause();
    }
    cr_assert_eq(own.status, TUTTI_OK, "%s", own.error);
    cr_assert_eq(ucx->recv(own.pipe, &byte, 1), TUTTI_OK);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    tutti_status status = TUTTI_OK;
    tutti_deadline deadline = tutti_deadline_after_ms(2000);
    while (status == TUTTI_OK && !tutti_deadline_passed(&deadline)) {
        short events;
        int fd = ucx->sleep_on(own.pipe, &events);
        if (fd >= 0) cr_assert_eq(poll(&(struct pollfd){.fd = fd, .events = events}, 1, 2000), 1, "nothing wakes");
        status = ucx->progress(own.pipe);
    }
    cr_assert_eq(status, TUTTI_ERR_PEER_DIED);
    ucx->close(own.pipe);
}

Test(ucx, a_forked_child_leaves_the_connection_alone) {
    tutti_pipe *a, *b;
    char word[5] = "";
    if (!ranks_have_processes()) cr_skip_test("needs processes");
    open_pair(&a, &b);
    pid_t child = fork();
    if (child == 0) {
        int sockets[2];
        tutti_pipe *pipe;
        tutti_deadline deadline = tutti_deadline_after_ms(1000);
        ucx->close(a);
        ucx->close(b);
        bool good = mesh_pair(MESH_UNIX, sockets) == TUTTI_OK &&
                    ucx->open(&(tutti_connection){.socket = sockets[0]}, &deadline, &pipe) == TUTTI_ERR_UNSUPPORTED &&
                    strstr(tutti_last_error(), "fork") != NULL;
        _exit(good ? 0 : 1);
    }
    int ended = -1;
    waitpid(child, &ended, 0);
    cr_assert(WIFEXITED(ended) && WEXITSTATUS(ended) == 0, "the child ended with %d", ended);
    cr_assert_eq(ucx->recv(b, word, sizeof word), TUTTI_OK);
    send_bytes(a, "fine", 5);
    drive(a, b);
    cr_assert_str_eq(word, "fine");
    ucx->close(a);
    ucx->close(b);
}

/* The introduction of a peer that is not a pipe. */
typedef struct introduction {
    uint32_t version, address_bytes;
    uint64_t token;
} introduction;

static void open_against(const void *words, size_t bytes, bool closes, tutti_status expected, const char *text) {
    int sockets[2];
    char heard[4096];
    introduction first;
    cr_assert_eq(mesh_pair(MESH_UNIX, sockets), TUTTI_OK);
    opening o = {.socket = sockets[0], .timeout_ms = 500};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, open_end, &o), 0);
    cr_assert_eq(recv(sockets[1], &first, sizeof first, MSG_WAITALL), sizeof first);
    cr_assert_gt(recv(sockets[1], heard, sizeof heard, 0), 0);
    if (bytes > 0) {
        introduction said;
        memcpy(&said, words, sizeof said);
        if (said.version == 0) said.version = first.version; /* the right version */
        cr_assert_eq(send(sockets[1], &said, bytes, 0), (ssize_t)bytes);
    }
    if (closes) close(sockets[1]);
    pthread_join(thread, NULL);
    if (!closes) close(sockets[1]);
    cr_assert(o.status == expected && strstr(o.error, text) != NULL, "%s: %s", tutti_status_name(o.status), o.error);
}

Test(ucx, does_not_open_against_a_wrong_introduction_silence_or_an_end) {
    introduction other_version = {.version = UINT32_C(9) << 24 | UINT32_C(7) << 16, .address_bytes = 100};
    introduction long_address = {.address_bytes = UINT32_C(100000000)};
    introduction no_address = {.address_bytes = 0};
    introduction half = {.address_bytes = 100};
    open_against(&other_version, sizeof other_version, false, TUTTI_ERR_UNSUPPORTED, "UCX 9.7");
    open_against(&long_address, sizeof long_address, false, TUTTI_ERR_SYSTEM, "100000000");
    open_against(&no_address, sizeof no_address, false, TUTTI_ERR_SYSTEM, "0 bytes");
    open_against(&half, sizeof half, true, TUTTI_ERR_PEER_DIED, "closed");
    open_against(&half, sizeof half, false, TUTTI_ERR_TIMEOUT, "in time");
    open_against(NULL, 0, true, TUTTI_ERR_PEER_DIED, "closed");
    open_against(NULL, 0, false, TUTTI_ERR_TIMEOUT, "in time");
}

/* ------------------------------------------------------------------------------------ before it is used */

Test(ucx_check, is_used_only_where_it_is_named) {
    uint32_t mask = 0;
    char text[600] = "";
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("TUTTI_TRANSPORT", "ucx", 1);
    tutti_settings_reload();
    if (tutti_transports_available(&mask) != TUTTI_OK) cr_skip_test("%s", tutti_last_error());
    int i = 0;
    while ((mask >> i & 1) == 0) i++;
    cr_assert(mask == UINT32_C(1) << i && tutti_transports[i] == ucx);
    ucx->describe(text, sizeof text);
    cr_assert(strncmp(text, "UCX ", 4) == 0 && strstr(text, "tcp/") != NULL, "%s", text);
    setenv("TUTTI_TRANSPORT", "", 1);
    tutti_settings_reload();
    cr_assert(tutti_transports_available(&mask) == TUTTI_OK && (mask >> i & 1) == 0);
}

Test(ucx_check, says_why_ucx_cannot_start) {
    char text[300] = "";
    setenv("UCX_TLS", "carrier_pigeon", 1);
    setenv("UCX_LOG_LEVEL", "fatal", 1);
    cr_assert_eq(ucx->check(), TUTTI_ERR_UNSUPPORTED);
    ucx->describe(text, sizeof text);
    cr_assert(text[0] != '\0' && strstr(tutti_last_error(), text) != NULL, "'%s', '%s'", text, tutti_last_error());
}

Test(ucx_check, leaves_the_handlers_of_signals_as_they_were) {
    struct sigaction before, after;
    sigaction(SIGSEGV, NULL, &before);
    ucx->check();
    sigaction(SIGSEGV, NULL, &after);
    cr_assert(before.sa_handler == after.sa_handler);
}
