/*
 * How the ranks of a host find each other among strangers: other processes of the host read and write the store, find
 * the socket of the host's first rank, relay messages, keep silent, fill queues or flood. No stranger may get a
 * descriptor of a rank's memory, hold up the start, or fill the log.
 *
 * Rank 1's own store callbacks play the stranger's changes to the store: they return another socket's name.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/ranks.h"

TestSuite(local_bootstrap_strangers, .timeout = 120);

enum { NAME_BYTES = 38, NOBODY = 65534, SILENT = 12, SOON_MS = 1500 };

typedef struct scene {
    atomic_int ready;            /* the stranger has done its part, and the start may go on */
    atomic_int is_known;         /* leader is set */
    atomic_int descriptors;      /* descriptors that passed through the stranger */
    char leader[NAME_BYTES + 1]; /* the name of the socket of this host's first rank */
    char own[NAME_BYTES + 1];    /* the name of the stranger's socket, of the same length */
} scene;

typedef void (*stranger)(scene *s);

typedef struct attack {
    stranger stranger;
    bool other_user, redirects; /* the stranger is of another user; rank 1 is redirected to its socket */
    bool spoils, counts;        /* rank 1 first reads another "peer_table"; its counter was changed before */
    bool strays;                /* rank 1 creates another communicator, and reads the values of rank 0's */
    tutti_status expected;      /* of rank 1's creation */
    int64_t most_ms;            /* its longest time */
    const char *words;          /* words of its error */
} attack;

static scene *shared;

/* ------------------------------------------------------------------------------------------------- strangers */

static socklen_t address_of(const char *name, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name, NAME_BYTES);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + NAME_BYTES);
}

static int listen_as(const char *name, int backlog) {
    struct sockaddr_un address;
    socklen_t bytes = address_of(name, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, backlog) != 0) _exit(3);
    return fd;
}

static int call(const char *name, int flags) {
    struct sockaddr_un address;
    socklen_t bytes = address_of(name, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | flags, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, bytes) == 0) return fd;
    close(fd);
    return -1;
}

static void await_name(scene *s) {
    while (!atomic_load(&s->is_known)) usleep(200);
}

/* Passes one message on, with its descriptors; returns false at the end. */
static bool pass_on(scene *s, int from, int to) {
    char data[4096], beside[CMSG_SPACE(64 * sizeof(int))];
    struct iovec part = {.iov_base = data, .iov_len = sizeof data};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof beside};
    ssize_t got = recvmsg(from, &message, 0);
    if (got <= 0) return false;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h != NULL; h = CMSG_NXTHDR(&message, h))
        if (h->cmsg_type == SCM_RIGHTS)
            atomic_fetch_add(&s->descriptors, (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int)));
    part.iov_len = (size_t)got;
    message.msg_flags = 0;
    return sendmsg(to, &message, MSG_NOSIGNAL) == got;
}

static void relay(scene *s) {
    int listener = listen_as(s->own, 8);
    atomic_store(&s->ready, 1);
    await_name(s);
    int rank = accept(listener, NULL, NULL), leader = call(s->leader, 0);
    struct pollfd waited[] = {{.fd = rank, .events = POLLIN}, {.fd = leader, .events = POLLIN}};
    while (rank >= 0 && leader >= 0 && poll(waited, 2, 10000) > 0) {
        if (waited[0].revents != 0 && !pass_on(s, rank, leader)) break;
        if (waited[1].revents != 0 && !pass_on(s, leader, rank)) break;
    }
}

static void be_silent(scene *s) {
    await_name(s);
    for (int i = 0; i < SILENT; i++) call(s->leader, 0);
    atomic_store(&s->ready, 1);
    pause();
}

static void fill_queue(scene *s) {
    int listener = listen_as(s->own, 0);
    while (call(s->own, SOCK_NONBLOCK) >= 0) {}
    atomic_store(&s->ready, 1);
    while (listener >= 0) pause();
}

static void flood(scene *s) {
    await_name(s);
    atomic_store(&s->ready, 1);
    for (;;) close(call(s->leader, SOCK_NONBLOCK));
}

/* Rank 1's store plays its part. */
static void come_first(scene *s) {
    atomic_store(&s->ready, 1);
    pause();
}

static pid_t start_stranger(const attack *a) {
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (a->other_user && (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)) _exit(2);
    if (a->other_user) prctl(PR_SET_PDEATHSIG, SIGKILL); /* changing the user has cleared it */
    a->stranger(shared);
    _exit(0);
}

/* --------------------------------------------------------------------------------------------- rank 1's store */

typedef struct changed_store {
    const tutti_store *inner;
    const attack *attack;
    pid_t stranger;
    bool has_spoiled;
} changed_store;

/* Returns the key to ask the store for. */
static const char *led(const changed_store *c, const char *key, char text[256]) {
    if (!c->attack->strays) return key;
    snprintf(text, 256, "start%s", strchr(key, '/'));
    return text;
}

/* The value of this host names the leader's socket: passes that name to the stranger, waits until the stranger has
 * acted, and returns the stranger's socket instead. */
static tutti_status changed_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                                int64_t timeout_ms) {
    changed_store *c = context;
    char text[256];
    tutti_status status = c->inner->get(c->inner->context, led(c, key, text), value, capacity, bytes_out, timeout_ms);
    if (status == TUTTI_OK && c->attack->spoils && !c->has_spoiled && strstr(key, "/peer_table") != NULL) {
        ((char *)value)[*bytes_out / 2] ^= 1;
        c->has_spoiled = true;
    }
    char *name = status == TUTTI_OK && strstr(key, "/host/") != NULL ? memmem(value, *bytes_out, "tutti-", 6) : NULL;
    if (name == NULL) return status;
    memcpy(shared->leader, name, NAME_BYTES);
    atomic_store(&shared->is_known, 1);
    while (!atomic_load(&shared->ready)) {
        usleep(200);
        RANKS_CHECK(waitpid(c->stranger, NULL, WNOHANG) == 0, "the stranger has ended before it did anything");
    }
    if (c->attack->redirects) memcpy(name, shared->own, NAME_BYTES);
    return status;
}

static tutti_status changed_set(void *context, const char *key, const void *value, size_t bytes) {
    const changed_store *c = context;
    char text[256];
    return c->inner->set(c->inner->context, led(c, key, text), value, bytes);
}

static tutti_status changed_add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    const changed_store *c = context;
    char text[256];
    return c->inner->add(c->inner->context, led(c, key, text), amount, value_out);
}

static tutti_status changed_check(void *context, const char *key, int *exists_out) {
    const changed_store *c = context;
    char text[256];
    return c->inner->check(c->inner->context, led(c, key, text), exists_out);
}

/* ------------------------------------------------------------------------------------------------------ ranks */

/* Creates a communicator, which must then work. Rank 1's creation must end as expected, rank 0's in the same way or
 * with an error of its own. */
static tutti_status create(const ranks_context *context, const tutti_store *store, const attack *a) {
    tutti_comm *comm = NULL;
    const char *words = context->rank == 1 ? a->words : "",
               *prefix = a->strays && context->rank == 1 ? "other" : "start";
    int64_t sum = context->rank, start_ns = tutti_now_ns();
    tutti_status status = tutti_comm_create(context->rank, context->nranks, store, prefix, NULL, &comm);
    int64_t ms = (tutti_now_ns() - start_ns) / 1000000;
    const char *text = status == TUTTI_OK ? "" : tutti_last_error();
    bool as_expected = context->rank == 1 ? status == a->expected : (status == TUTTI_OK) == (a->expected == TUTTI_OK);
    RANKS_CHECK(as_expected, "'%s' (%s)", tutti_status_name(status), text);
    RANKS_CHECK(ms <= a->most_ms, "it took %lld ms: %s", (long long)ms, text);
    RANKS_CHECK(strstr(text, words) != NULL, "no \"%s\" in: %s", words, text);
    if (status != TUTTI_OK) return TUTTI_OK;
    TUTTI_TRY(tutti_all_reduce(comm, &sum, &sum, 1, TUTTI_INT64, TUTTI_SUM, NULL));
    RANKS_CHECK(sum == 1, "the sum is %lld", (long long)sum);
    return tutti_comm_destroy(comm);
}

static tutti_status be_attacked(ranks_context *context) {
    const attack *a = context->argument;
    if (context->rank == 0) return create(context, context->store, a);
    changed_store changed = {.inner = context->store, .attack = a, .stranger = start_stranger(a)};
    const tutti_store store = {.struct_bytes = sizeof store,
                               .context = &changed,
                               .set = changed_set,
                               .get = changed_get,
                               .add = changed_add,
                               .check = changed_check};
    int64_t sum;
    if (a->counts) TUTTI_TRY(context->store->add(context->store->context, "start/count/1", 2, &sum));
    tutti_status status = create(context, &store, a);
    kill(changed.stranger, SIGKILL);
    waitpid(changed.stranger, NULL, 0);
    TUTTI_TRY(status);
    RANKS_CHECK(atomic_load(&shared->descriptors) == 0, "%d descriptors went through a stranger's hands",
                atomic_load(&shared->descriptors));
    return TUTTI_OK;
}

/* Runs the attack; returns the ranks' log. */
static const char *run(attack a, const char *const *environment) {
    static char log[65536];
    char path[] = "/tmp/tutti-log-XXXXXX";
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    if (a.other_user && geteuid() != 0) cr_skip_test("needs root, to become another user");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq((void *)shared, MAP_FAILED);
    snprintf(shared->own, sizeof shared->own, "tutti-%032x", (unsigned)getpid());
    int fd = mkstemp(path), before = dup(2);
    unlink(path);
    dup2(fd, 2);
    const char *failure = ranks_run(
        &(ranks_options){.nranks = 2, .no_comm = true, .timeout_s = 60, .argument = &a, .environment = environment},
        be_attacked);
    dup2(before, 2);
    ssize_t bytes = pread(fd, log, sizeof log - 1, 0);
    log[bytes > 0 ? bytes : 0] = '\0';
    close(fd);
    cr_assert(failure == NULL, "%s\n%s", failure, log);
    return log;
}

static const char *const with_secret[] = {"TUTTI_SECRET=our word", NULL};
static const char *const hurried[] = {"TUTTI_CONNECT_TIMEOUT_MS=1500", NULL};

static int count_lines(const char *log) {
    int lines = 0;
    for (; *log != '\0'; log++) lines += *log == '\n';
    return lines;
}

/* ------------------------------------------------------------------------------------------------------ tests */

Test(local_bootstrap_strangers, a_relay_of_another_user_gets_no_memory) {
    run((attack){.stranger = relay,
                 .other_user = true,
                 .redirects = true,
                 .expected = TUTTI_ERR_REFUSED,
                 .most_ms = 20000,
                 .words = "another user"},
        NULL);
}

Test(local_bootstrap_strangers, a_relay_of_the_same_user_gets_no_memory) {
    run((attack){.stranger = relay,
                 .redirects = true,
                 .expected = TUTTI_ERR_REFUSED,
                 .most_ms = 20000,
                 .words = "does not know this job's secret"},
        NULL);
}

Test(local_bootstrap_strangers, a_rank_that_is_led_into_another_communicator_is_refused) {
    run((attack){.stranger = come_first,
                 .strays = true,
                 .expected = TUTTI_ERR_REFUSED,
                 .most_ms = 20000,
                 .words = "creating another communicator"},
        NULL);
}

Test(local_bootstrap_strangers, with_a_secret_a_rank_that_is_led_into_another_communicator_is_refused) {
    run((attack){.stranger = come_first,
                 .strays = true,
                 .expected = TUTTI_ERR_REFUSED,
                 .most_ms = 20000,
                 .words = "or another process has written it"},
        with_secret);
}

Test(local_bootstrap_strangers, with_a_secret_a_changed_value_is_refused) {
    const char *log = run((attack){.stranger = relay,
                                   .other_user = true,
                                   .redirects = true,
                                   .expected = TUTTI_ERR_REFUSED,
                                   .most_ms = 20000,
                                   .words = "or another process has written it"},
                          with_secret);
    cr_assert(strstr(log, "is not proved by this job's secret") != NULL, "%s", log);
}

Test(local_bootstrap_strangers, with_a_secret_a_value_that_comes_before_the_true_one_is_ignored) {
    const char *log =
        run((attack){.stranger = come_first, .spoils = true, .expected = TUTTI_OK, .most_ms = 20000, .words = ""},
            with_secret);
    cr_assert(strstr(log, "\"start/peer_table\" is ignored") != NULL, "%s", log);
}

Test(local_bootstrap_strangers, with_a_secret_a_changed_counter_does_no_harm) {
    const char *log =
        run((attack){.stranger = come_first, .counts = true, .expected = TUTTI_OK, .most_ms = 20000, .words = ""},
            with_secret);
    cr_assert(strstr(log, "counter of rank 1 is ignored") != NULL, "%s", log);
}

Test(local_bootstrap_strangers, silent_strangers_hold_up_nothing) {
    run((attack){.stranger = be_silent, .expected = TUTTI_OK, .most_ms = SOON_MS, .words = ""}, with_secret);
}

Test(local_bootstrap_strangers, silent_strangers_of_another_user_hold_up_nothing) {
    const char *log =
        run((attack){.stranger = be_silent, .other_user = true, .expected = TUTTI_OK, .most_ms = SOON_MS, .words = ""},
            with_secret);
    cr_assert(strstr(log, "another user") != NULL, "%s", log);
}

Test(local_bootstrap_strangers, a_full_queue_is_waited_for_no_longer_than_the_deadline) {
    run((attack){.stranger = fill_queue,
                 .redirects = true,
                 .expected = TUTTI_ERR_TIMEOUT,
                 .most_ms = 10000,
                 .words = "queue"},
        hurried);
}

Test(local_bootstrap_strangers, a_flood_of_another_user_fills_no_log) {
    const char *log =
        run((attack){.stranger = flood, .other_user = true, .expected = TUTTI_OK, .most_ms = 20000, .words = ""},
            with_secret);
    cr_assert(strstr(log, "another user") != NULL, "%s", log);
    cr_assert_leq(count_lines(log), 40, "%d lines", count_lines(log));
}
