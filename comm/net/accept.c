/*
 * The listener's thread: accepts connections, authenticates each, and passes on those that succeed.
 *
 *   accept -> HELLO (its bytes arrive) -> PROOF (answer sent; its bytes arrive) -> passed on, or closed
 *
 * It waits for all of them at once, with epoll. Unauthenticated connections have a few seconds. If there are too
 * many, the oldest of those that have sent nothing is closed, so that a flood of bare connections cannot keep out a
 * process that knows the key.
 *
 * Invariant: at most MOST_STRANGERS unauthenticated connections are kept, each for STRANGER_MS at most.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/status.h"
#include "bootstrap/base/thread.h"
#include "bootstrap/machine/interfaces.h"
#include "comm/base/comm.h"
#include "comm/net/listener_state.h"

#define MOST_STRANGERS 128
#define STRANGER_MS    3000
#define PRUNE_MS       5000
#define MOST_EVENTS    32

typedef enum watched_kind { STOP, LISTENER, HELLO, PROOF } watched_kind;

/* A descriptor that epoll watches. */
typedef struct watched {
    watched_kind kind;
    int fd;
    int64_t born_ns;
    size_t got; /* bytes received of the message that is due */
    tutti_listener_hello hello;
    tutti_listener_proof proof, expected;
    uint8_t key[TUTTI_CONNECTION_KEY_BYTES]; /* of the connection, once it is authenticated */
} watched;

typedef struct server {
    int epoll_fd, stop_fd;
    uint8_t self[16];
    watched stop, listeners[TUTTI_LISTENER_ADDRESSES];
    int nlisteners;
    watched *strangers[MOST_STRANGERS];
    int nstrangers;
    uint64_t refused;
    pthread_t thread;
} server;

static _Atomic(server *) running; /* set once the thread runs, cleared after it has ended */

/* --------------------------------------------------------------------------------------------- strangers */

static void drop(server *s, int index) {
    if (s->strangers[index]->fd >= 0) close(s->strangers[index]->fd); /* removes it from epoll, too */
    explicit_bzero(s->strangers[index], sizeof *s->strangers[index]);
    free(s->strangers[index]);
    s->strangers[index] = s->strangers[--s->nstrangers];
}

static int index_of(const server *s, const watched *stranger) {
    int index = 0;
    while (s->strangers[index] != stranger) index++;
    return index;
}

/* A peer that tries all of our addresses at once closes all but one of its connections before it proves anything. */
static bool is_spare(const watched *stranger) {
    return stranger->kind == PROOF || stranger->got == 0;
}

/* Logs the refusal, but the less often the more refusals there are. */
static void refuse(server *s, watched *stranger, const char *why) {
    char peer[TUTTI_ADDRESS_TEXT_BYTES];
    uint64_t count = ++s->refused;
    if (count <= 8 || (count & (count - 1)) == 0) {
        tutti_address_of_peer(stranger->fd, peer);
        tutti_log(TUTTI_LOG_WARN, "refused connection %llu, from %s: %s", (unsigned long long)count, peer, why);
    }
    drop(s, index_of(s, stranger));
}

/* Refuses the oldest connection of those that have sent nothing, else the oldest. */
static void make_room(server *s) {
    int oldest = 0;
    for (int i = 1; i < s->nstrangers; i++) {
        const watched *a = s->strangers[i], *b = s->strangers[oldest];
        bool a_silent = a->kind == HELLO && a->got == 0, b_silent = b->kind == HELLO && b->got == 0;
        if (a_silent != b_silent ? a_silent : a->born_ns < b->born_ns) oldest = i;
    }
    refuse(s, s->strangers[oldest], "too many other connections arrived before it had authenticated itself");
}

static void accept_one(server *s, const watched *listener) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        struct timespec pause = {.tv_nsec = 10 * TUTTI_NS_PER_MS};
        if (full && s->nstrangers > 0) make_room(s);
        else if (full) nanosleep(&pause, NULL);
        return;
    }
    if (s->nstrangers == MOST_STRANGERS) make_room(s);
    watched *stranger = calloc(1, sizeof *stranger);
    if (stranger != NULL) *stranger = (watched){.kind = HELLO, .fd = fd, .born_ns = tutti_now_ns()};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = stranger};
    if (stranger == NULL || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(stranger);
        close(fd);
        return;
    }
    s->strangers[s->nstrangers++] = stranger;
}

/* Sends the whole message: a few bytes always fit into the buffer of a new connection. */
static bool send_message(int fd, const void *message, size_t bytes) {
    return send(fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void answer_hello(server *s, watched *stranger) {
    tutti_listener_reply reply;
    const bool advertised = tutti_listener_is_advertised(&stranger->hello.called);
    const tutti_listener_endpoint here =
        advertised ? stranger->hello.called : tutti_listener_called(stranger->fd, /* by_this_side */ false);
    if (tutti_listener_answer(&stranger->hello, s->self, &here, &reply, &stranger->expected, stranger->key) !=
        TUTTI_OK) {
        refuse(s, stranger, tutti_last_error());
    } else if (!send_message(stranger->fd, &reply, sizeof reply)) {
        refuse(s, stranger, "it did not receive the answer");
    } else if (reply.verdict != TUTTI_LISTENER_ACCEPTED) {
        refuse(s, stranger, tutti_listener_verdict_text((tutti_listener_verdict)reply.verdict));
    } else {
        stranger->kind = PROOF;
        stranger->got = 0;
    }
}

static void check_proof(server *s, watched *stranger) {
    tutti_listener_accepted welcome = {.magic = TUTTI_LISTENER_MAGIC, .verdict = TUTTI_LISTENER_ACCEPTED};
    bool proved = tutti_hmac_equal(stranger->proof.mac, stranger->expected.mac, sizeof stranger->expected.mac);
    if (!proved) welcome.verdict = TUTTI_LISTENER_UNPROVED;
    bool heard = send_message(stranger->fd, &welcome, sizeof welcome);
    if (!proved || !heard) {
        refuse(s, stranger, proved ? "it closed the connection before the answer" : "its proof is wrong");
        return;
    }
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, stranger->fd, NULL);
    tutti_connection connection = {.socket = stranger->fd};
    memcpy(connection.key, stranger->key, sizeof connection.key);
    tutti_listener_arrived(&stranger->hello.ticket, &connection);
    stranger->fd = -1;
    drop(s, index_of(s, stranger));
}

static void hear(server *s, watched *stranger) {
    bool hello = stranger->kind == HELLO;
    char *message = hello ? (char *)&stranger->hello : (char *)&stranger->proof;
    size_t bytes = hello ? sizeof stranger->hello : sizeof stranger->proof;
    ssize_t got = recv(stranger->fd, message + stranger->got, bytes - stranger->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        if (got == 0 && is_spare(stranger)) drop(s, index_of(s, stranger));
        else refuse(s, stranger, "it closed the connection before it had authenticated itself");
        return;
    }
    stranger->got += (size_t)got;
    /* Garbage is refused at once. */
    bool wrong =
        hello && stranger->got >= sizeof stranger->hello.magic && stranger->hello.magic != TUTTI_LISTENER_MAGIC;
    if (wrong) refuse(s, stranger, tutti_listener_verdict_text(TUTTI_LISTENER_GARBAGE));
    else if (stranger->got == bytes && hello) answer_hello(s, stranger);
    else if (stranger->got == bytes) check_proof(s, stranger);
}

/* ------------------------------------------------------------------------------------------------ thread */

static void expire(server *s) {
    int64_t now_ns = tutti_now_ns();
    for (int i = s->nstrangers - 1; i >= 0; i--)
        if (now_ns - s->strangers[i]->born_ns > STRANGER_MS * TUTTI_NS_PER_MS)
            refuse(s, s->strangers[i], "it took too long to authenticate itself");
}

static void *serve(void *argument) {
    server *s = argument;
    struct epoll_event events[MOST_EVENTS];
    int64_t pruned_ns = tutti_now_ns();
    for (;;) {
        int count = epoll_wait(s->epoll_fd, events, MOST_EVENTS, s->nstrangers > 0 ? STRANGER_MS / 8 : PRUNE_MS);
        for (int i = 0; i < count; i++) {
            watched *w = events[i].data.ptr;
            if (w->kind == STOP) return NULL;
            if (w->kind == LISTENER) continue;
            hear(s, w);
        }
        /* Last: accepting a connection may close one of those handled above. */
        for (int i = 0; i < count; i++)
            for (int l = 0; l < s->nlisteners; l++)
                if (events[i].data.ptr == &s->listeners[l]) accept_one(s, &s->listeners[l]);
        expire(s);
        if (tutti_now_ns() - pruned_ns < PRUNE_MS * TUTTI_NS_PER_MS) continue;
        pruned_ns = tutti_now_ns();
        tutti_listener_prune();
    }
}

static void destroy(server *s) {
    while (s->nstrangers > 0) drop(s, s->nstrangers - 1);
    for (int i = 0; i < s->nlisteners; i++) close(s->listeners[i].fd);
    if (s->stop_fd >= 0) close(s->stop_fd);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    free(s);
}

static bool watch(server *s, watched *w) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = w};
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, w->fd, &event) == 0;
}

tutti_status tutti_listener_serve(const int *listeners, int nlisteners, const uint8_t self[16]) {
    server *s;
    tutti_status status = tutti_calloc(1, sizeof *s, &s);
    if (status != TUTTI_OK) {
        for (int i = 0; i < nlisteners; i++) close(listeners[i]);
        return status;
    }
    memcpy(s->self, self, sizeof s->self);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->stop = (watched){.kind = STOP, .fd = s->stop_fd};
    bool ready = s->epoll_fd >= 0 && s->stop_fd >= 0 && watch(s, &s->stop);
    for (int i = 0; i < nlisteners; i++) {
        s->listeners[s->nlisteners++] = (watched){.kind = LISTENER, .fd = listeners[i]};
        ready = ready && watch(s, &s->listeners[i]);
    }
    int error = ready ? tutti_thread_start(TUTTI_THREAD_LISTENER, serve, s, &s->thread) : errno;
    if (error != 0) {
        destroy(s);
        return tutti_fail_errno(error, "cannot start the thread that answers connections of other hosts");
    }
    running = s;
    return TUTTI_OK;
}

void tutti_listener_serve_end(void) {
    server *s = running;
    uint64_t one = 1;
    if (s == NULL || write(s->stop_fd, &one, sizeof one) != sizeof one) return;
    pthread_join(s->thread, NULL);
    running = NULL;
    destroy(s);
}
