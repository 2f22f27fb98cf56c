/*
 * The tests' own hosts: network namespaces that reach each other, with the limits that were asked for, and leave
 * nothing.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/hosts/hosts.h"

#define PORT 4000
#define MB   1000000

static void run(const hosts_options *options, ranks_body body) {
    const char *failure = hosts_run(options, body);
    cr_assert(failure == NULL, "%s", failure);
}

static struct sockaddr_in place_of(const char *address) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, address, &place.sin_addr);
    return place;
}

/* As each communicator has found it: of all ranks, and of those with odd numbers. */
static tutti_status ask_details(ranks_context *context) {
    tutti_comm_details details;
    tutti_comm *half;
    int host = hosts_of(context->rank);
    TUTTI_TRY(tutti_comm_get(context->comm, &details));
    RANKS_CHECK(details.hosts == hosts_count() && details.host == host, "host %d of %d", details.host, details.hosts);
    RANKS_CHECK(details.local_rank == context->rank - hosts_first(host) &&
                    details.local_size == hosts_first(host + 1) - hosts_first(host),
                "rank %d of %d on host %d", details.local_rank, details.local_size, host);
    TUTTI_TRY(tutti_comm_split(context->comm, context->rank % 2, 0, NULL, &half));
    TUTTI_TRY(tutti_comm_get(half, &details));
    tutti_comm_destroy(half);
    bool right = context->rank % 2 == 0 ? details.hosts == 2 && details.local_size == 1 && details.host == (host > 0)
                                        : details.hosts == 1 && details.local_size == 1 && details.host == 0;
    RANKS_CHECK(right, "of half: host %d of %d, %d ranks on it", details.host, details.hosts, details.local_size);
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_get(NULL, &details));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_get(context->comm, NULL));
    return TUTTI_OK;
}

Test(hosts, a_communicator_tells_how_its_ranks_lie_on_them) {
    HOSTS_NEED(0);
    run(&(hosts_options){.ranks_per_host = (const int[]){2, 1, 0}}, ask_details);
}

/* Rank 2, of another host than rank 0, cannot take part: rank 0 learns that at once. */
static tutti_status split_with_wrong_options(ranks_context *context) {
    tutti_comm *comm;
    const bool wrong = context->rank == 2;
    const tutti_comm_options options = TUTTI_COMM_OPTIONS(.timeout_ms = wrong ? -1 : 0);
    RANKS_EXPECT(wrong ? TUTTI_ERR_ARGUMENT : TUTTI_ERR_ABORTED,
                 tutti_comm_split(context->comm, 0, 0, &options, &comm));
    RANKS_CHECK(wrong || strstr(tutti_last_error(), "rank 2 failed") != NULL, "%s", tutti_last_error());
    return tutti_barrier(context->comm, NULL);
}

Test(hosts, wrong_options_of_a_split_are_an_error_on_all) {
    HOSTS_NEED(0);
    run(&(hosts_options){.ranks_per_host = (const int[]){2, 1, 0}}, split_with_wrong_options);
}

/* Memory can be read by ranks of the same host only, wherever its owner allocated it. */
static tutti_status read_across_hosts(ranks_context *context) {
    void *own;
    const void *here;
    uint64_t addresses[3];
    TUTTI_TRY(tutti_mem_alloc(sizeof(int), &own));
    *(int *)own = 100 + context->rank;
    uint64_t address = (uint64_t)(uintptr_t)own;
    TUTTI_TRY(tutti_all_gather(context->comm, &address, addresses, 1, TUTTI_UINT64, NULL));
    for (int rank = 0; rank < context->nranks; rank++) {
        bool near = hosts_of(rank) == hosts_of(context->rank);
        TUTTI_TRY(tutti_mem_peer(context->comm, rank, (const void *)(uintptr_t)addresses[rank], sizeof(int), &here));
        RANKS_CHECK((here != NULL) == near, "rank %d, of host %d, can%s be read", rank, hosts_of(rank),
                    near ? "not" : "");
        RANKS_CHECK(!near || *(const int *)here == 100 + rank, "rank %d has %d", rank, *(const int *)here);
    }
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    return tutti_mem_free(own);
}

Test(hosts, memory_is_read_by_ranks_of_its_own_host) {
    HOSTS_NEED(0);
    run(&(hosts_options){.ranks_per_host = (const int[]){2, 1, 0}}, read_across_hosts);
}

/* A connected socket: rank 0 is called, rank 1 calls. */
static tutti_status meet(int rank, int *socket_out) {
    char address[16];
    struct sockaddr_in place = place_of(netns_address(0, address));
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (rank == 0) {
        RANKS_CHECK(bind(fd, (void *)&place, sizeof place) == 0 && listen(fd, 8) == 0, "bind: %s", strerror(errno));
        *socket_out = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        RANKS_CHECK(*socket_out >= 0, "accept: %s", strerror(errno));
        close(fd);
        return TUTTI_OK;
    }
    for (int tries = 0; connect(fd, (void *)&place, sizeof place) != 0; tries++, usleep(10000))
        RANKS_CHECK(tries < 500 && errno == ECONNREFUSED, "connect: %s", strerror(errno));
    *socket_out = fd;
    return TUTTI_OK;
}

/* Rank 1 sends, rank 0 takes all and answers one byte. */
static tutti_status move(int rank, int fd, size_t bytes) {
    static char piece[MB];
    char answer = 0;
    for (size_t done = 0; done < bytes;) {
        size_t next = bytes - done < sizeof piece ? bytes - done : sizeof piece;
        ssize_t moved = rank == 0 ? recv(fd, piece, next, 0) : send(fd, piece, next, MSG_NOSIGNAL);
        RANKS_CHECK(moved > 0, "the connection ended: %s", strerror(errno));
        done += (size_t)moved;
    }
    ssize_t moved = rank == 0 ? send(fd, &answer, 1, MSG_NOSIGNAL) : recv(fd, &answer, 1, 0);
    RANKS_CHECK(moved == 1, "no answer: %s", strerror(errno));
    return TUTTI_OK;
}

static tutti_status move_timed(ranks_context *context, size_t bytes, double *seconds_out) {
    int fd;
    TUTTI_TRY(meet(context->rank, &fd));
    int64_t start_ns = tutti_now_ns();
    TUTTI_TRY(move(context->rank, fd, bytes));
    *seconds_out = (double)(tutti_now_ns() - start_ns) / 1e9;
    close(fd);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- reaching */

static long namespace_of_this_process(void) {
    struct stat state;
    return stat("/proc/self/ns/net", &state) == 0 ? (long)state.st_ino : -1;
}

static tutti_status count_bytes(ranks_context *context) {
    enum { BYTES = 8 * MB };
    double seconds;
    uint64_t sent;
    RANKS_CHECK(namespace_of_this_process() != *(long *)context->argument, "still in the namespace of the test");
    TUTTI_TRY(move_timed(context, BYTES, &seconds));
    TUTTI_TRY(netns_bytes_sent(hosts_network(), 1, &sent));
    RANKS_CHECK(sent > BYTES && sent < BYTES * 1.1, "%llu bytes on the wire", (unsigned long long)sent);
    return TUTTI_OK;
}

Test(hosts, two_hosts_reach_each_other_and_count_what_they_send) {
    HOSTS_NEED(0);
    long outside = namespace_of_this_process();
    run(&(hosts_options){.ranks_per_host = (const int[]){1, 1, 0}, .no_comm = true, .argument = &outside}, count_bytes);
    cr_assert_eq(namespace_of_this_process(), outside);
}

/* What a connect to an address meets: a host that refuses it (the port is closed), or no answer. */
static tutti_status expect_answer(const char *address, bool reached) {
    struct sockaddr_in place = place_of(address);
    struct timeval limit = {.tv_sec = reached ? 5 : 0, .tv_usec = reached ? 0 : 300000}; /* of a connect, too */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    int failed = connect(fd, (void *)&place, sizeof place) == 0 ? 0 : errno;
    close(fd);
    RANKS_CHECK((failed == ECONNREFUSED) == reached, "%s: %s", address, strerror(failed));
    return TUTTI_OK;
}

static tutti_status look_around_the_switch(ranks_context *context) {
    char address[16];
    (void)context;
    for (int host = 0; host < hosts_count(); host++) TUTTI_TRY(expect_answer(netns_address(host, address), true));
    return TUTTI_OK;
}

static tutti_status look_around(ranks_context *context) {
    int host = hosts_of(context->rank);
    char address[32];
    TUTTI_TRY(look_around_the_switch(context));
    snprintf(address, sizeof address, "192.168.122.%d", (host + 1) % hosts_count() + 1);
    TUTTI_TRY(expect_answer(address, false)); /* the other's tap */
    return expect_answer("172.17.0.1", true); /* its own bridge, not the other's */
}

Test(hosts, all_hosts_reach_each_other_by_eth0_and_none_by_a_decoy) {
    HOSTS_NEED(.decoys = true);
    run(&(hosts_options){.ranks_per_host = (const int[]){1, 2, 1, 0}, .network = {.decoys = true}, .no_comm = true},
        look_around);
}

/* --------------------------------------------------------------------------------------------- limits */

static tutti_status find_rate(ranks_context *context) {
    double seconds, rate;
    TUTTI_TRY(move_timed(context, 25 * MB, &seconds));
    rate = 8 * 25 / seconds;
    RANKS_CHECK(rate > 50 && rate < 210, "%.0f Mbit/s instead of 200", rate); /* less on a busy machine */
    return TUTTI_OK;
}

Test(hosts, a_rate_is_kept) {
    HOSTS_NEED(.rate = "200mbit");
    run(&(hosts_options){.ranks_per_host = (const int[]){1, 1, 0}, .network = {.rate = "200mbit"}, .no_comm = true},
        find_rate);
}

static tutti_status lose(ranks_context *context) {
    enum { BYTES = 8 * MB };
    double seconds;
    uint64_t sent;
    TUTTI_TRY(move_timed(context, BYTES, &seconds));
    TUTTI_TRY(netns_bytes_sent(hosts_network(), 1, &sent));
    double more = (double)sent / BYTES - 1; /* headers are 4.6 %, what is lost is sent twice */
    RANKS_CHECK(more > 0.08 && more < 0.30, "%.1f %% more than the data on the wire", 100 * more);
    return TUTTI_OK;
}

Test(hosts, packets_get_lost) {
    HOSTS_NEED(.loss = 0.05);
    run(&(hosts_options){.ranks_per_host = (const int[]){1, 1, 0},
                         .network = {.loss = 0.05, .congestion = "bbr"},
                         .no_comm = true},
        lose);
}

static tutti_status wait_for_answers(ranks_context *context) {
    int fd;
    TUTTI_TRY(meet(context->rank, &fd));
    TUTTI_TRY(move(context->rank, fd, 10));
    int64_t start_ns = tutti_now_ns();
    for (int i = 0; i < 5; i++) TUTTI_TRY(move(context->rank, fd, 10));
    double each_ms = (double)(tutti_now_ns() - start_ns) / 5e6;
    TUTTI_TRY(move(context->rank, fd, 2 * MB));
    close(fd);
    RANKS_CHECK(context->rank == 0 || (each_ms > 100 && each_ms < 180), "to and fro in %.1f ms", each_ms);
    return TUTTI_OK;
}

Test(hosts, packets_are_late) {
    HOSTS_NEED(.delay_ms = 50);
    run(&(hosts_options){.ranks_per_host = (const int[]){1, 1, 0}, .network = {.delay_ms = 50}, .no_comm = true},
        wait_for_answers);
    run(&(hosts_options){.ranks_per_host = (const int[]){1, 1, 1, 0}, .network = {.delay_ms = 5}, .no_comm = true},
        look_around_the_switch);
}

/* Rank 1 moves something once rank 0 has pulled the cable, which it puts back half a second later. */
static tutti_status pull_cable(ranks_context *context) {
    atomic_llong *pulled_ns = context->argument;
    int fd;
    TUTTI_TRY(meet(context->rank, &fd));
    TUTTI_TRY(move(context->rank, fd, 10));
    if (context->rank == 0) {
        TUTTI_TRY(netns_set_link(hosts_network(), 1, false));
        atomic_store(pulled_ns, tutti_now_ns());
        usleep(500000);
        TUTTI_TRY(netns_set_link(hosts_network(), 1, true));
    }
    while (atomic_load(pulled_ns) == 0) usleep(1000); /* a rank that fails ends all ranks */
    TUTTI_TRY(move(context->rank, fd, 10));
    double seconds = (double)(tutti_now_ns() - atomic_load(pulled_ns)) / 1e9;
    close(fd);
    RANKS_CHECK(seconds > 0.5 && seconds < 8, "the link was back after %.2f s", seconds);
    return TUTTI_OK;
}

Test(hosts, a_connection_outlives_a_cable_that_is_pulled_for_a_moment) {
    HOSTS_NEED(0);
    atomic_llong *pulled_ns = mmap(NULL, sizeof *pulled_ns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(pulled_ns, MAP_FAILED);
    run(&(hosts_options){.ranks_per_host = (const int[]){1, 1, 0}, .no_comm = true, .argument = pulled_ns}, pull_cable);
}

/* ------------------------------------------------------------------------------------- leaving nothing */

static tutti_status stay(ranks_context *context) {
    char byte = 1;
    if (write(*(int *)context->argument, &byte, 1) != 1) return TUTTI_ERR_SYSTEM;
    for (;;) pause();
}

Test(hosts, a_test_that_is_killed_leaves_no_rank) {
    HOSTS_NEED(0);
    int ready[2];
    char byte;
    cr_assert_eq(pipe(ready), 0);
    pid_t test = fork();
    if (test == 0) {
        hosts_run(&(hosts_options){.ranks_per_host = (const int[]){1, 1, 0}, .no_comm = true, .argument = &ready[1]},
                  stay);
        _exit(0);
    }
    close(ready[1]);
    cr_assert(read(ready[0], &byte, 1) == 1 && read(ready[0], &byte, 1) == 1);
    kill(test, SIGKILL);
    waitpid(test, NULL, 0);
    cr_assert_eq(read(ready[0], &byte, 1), 0); /* the ranks, which have the other end, are gone, and so their hosts */
    close(ready[0]);
}
