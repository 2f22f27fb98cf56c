/*
 * Several TCP connections to each peer (TUTTI_TCP_SOCKETS): results are right, a cut connection is reported like a
 * lost peer, hosts that differ in their number get an error that says so, and where each flow is limited, more
 * connections carry more. Other tests between hosts also run over several sockets: see tutti_sockets_test.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <linux/tcp.h> /* glibc's header lacks bytes_received */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "comm/net/transport/transport.h"
#include "tests/support/hosts/scene.h"
#include "tests/support/sweep.h"

#define MIB         ((size_t)1 << 20)
#define ESTABLISHED 1 /* as in the first column of /proc/net/tcp */

static const char *const three[] = {"TUTTI_TCP_SOCKETS=3", NULL};

TestSuite(hosts_sockets, .timeout = 150);

/* ------------------------------------------------------------------------------------------------ results */

/* Finds this process's TCP connections that have carried at least `bytes`, either way; returns their number. */
static int busy_sockets(uint64_t bytes, int fds[64]) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL && count < 64;) {
        struct tcp_info info = {0};
        socklen_t length = sizeof info;
        int fd = atoi(entry->d_name);
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_state != ESTABLISHED) continue;
        if (info.tcpi_bytes_acked + info.tcpi_bytes_received >= bytes) fds[count++] = fd;
    }
    if (folder != NULL) closedir(folder);
    return count;
}

static tutti_status sweep_kinds(ranks_context *context) {
    for (int i = 0; i < CALL_KINDS; i++) {
        call_kind kind = (call_kind)i;
        context->argument = &kind;
        TUTTI_TRY(sweep_rank(context));
    }
    return TUTTI_OK;
}

Test(hosts_sockets, all_kinds_equal_the_reference) {
    HOSTS_NEED(0);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 2), .environment = three, .timeout_s = 140}, sweep_kinds);
}

/* Runs a sum, and a message each way. */
static tutti_status spread(ranks_context *context) {
    int fds[64], other = 1 - context->rank;
    size_t bytes = 8 * MIB;
    char *data = calloc(1, bytes), *in = calloc(1, bytes);
    tutti_work *work = NULL;
    tutti_status status = tutti_all_reduce(context->comm, data, data, bytes, TUTTI_UINT8, TUTTI_SUM, NULL);
    int sums = busy_sockets(MIB, fds);
    if (status == TUTTI_OK)
        status = tutti_send(context->comm, data, bytes, TUTTI_UINT8, other, 1, &TUTTI_OPTIONS(.work = &work));
    if (status == TUTTI_OK) status = tutti_recv(context->comm, in, bytes, TUTTI_UINT8, other, 1, NULL);
    if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
    int all = busy_sockets(MIB, fds);
    if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL); /* no rank leaves while the other one counts */
    tutti_work_free(work);
    free(data);
    free(in);
    TUTTI_TRY(status);
    RANKS_CHECK(sums == 3 && (all == 6 || all == 9), "%d sockets were busy, then %d", sums,
                all); /* messages have their own, one each way if both sides send first at the same time */
    return TUTTI_OK;
}

Test(hosts_sockets, all_of_them_carry_their_part) {
    HOSTS_NEED(0);
    static const char *const environment[] = {"TUTTI_TCP_SOCKETS=3", "TUTTI_TRANSPORT=tcp", NULL};
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .environment = environment}, spread);
}

/* ----------------------------------------------------------------------------------------------- failures */

/* Rank 0 loses one of the connections that carry sums, which may or may not be the one whose turn it is. */
static tutti_status cut_one(ranks_context *context) {
    int rounds = 0, fds[64];
    TUTTI_TRY(scene_warm_up(context, &rounds));
    if (context->rank == 0) {
        int count = busy_sockets(MIB, fds);
        RANKS_CHECK(count == 3, "%d sockets were busy", count);
        atomic_store(&scene_now()->event_ns, tutti_now_ns());
        shutdown(fds[1], SHUT_RDWR);
    }
    tutti_status status = scene_keep_summing(context, 30000, &rounds);
    TUTTI_TRY(scene_check_told(context, status, "connection", 5000));
    RANKS_CHECK(context->rank != 0 || strstr(tutti_last_error(), "of 3") != NULL, "%s", tutti_last_error());
    return TUTTI_OK;
}

static void cut_with(const char *const *environment) {
    scene_set(0, MIB);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .environment = environment}, cut_one);
}

Test(hosts_sockets, a_cut_connection_is_an_error_on_both_sides) {
    HOSTS_NEED(0);
    cut_with(three);
}

Test(hosts_sockets, a_cut_connection_is_an_error_on_both_sides_also_with_encryption) {
    HOSTS_NEED(0);
    static const char *const encrypted[] = {"TUTTI_TCP_SOCKETS=3", "TUTTI_ENCRYPT=1", "TUTTI_SECRET=a word", NULL};
    if (tutti_tls_transport.check() != TUTTI_OK) cr_skip_test("%s", tutti_last_error());
    cut_with(encrypted);
}

static tutti_status differ(ranks_context *context) {
    tutti_comm *comm = NULL;
    setenv("TUTTI_TCP_SOCKETS", context->rank == 0 ? "2" : "3", 1);
    tutti_settings_reload();
    tutti_status status = tutti_comm_create_world(&comm);
    if (status == TUTTI_OK) tutti_comm_destroy(comm);
    const char *text = tutti_last_error();
    RANKS_CHECK(status == TUTTI_ERR_CONFIG, "'%s'", tutti_status_name(status));
    RANKS_CHECK(strstr(text, "TUTTI_TCP_SOCKETS=2") != NULL && strstr(text, "TUTTI_TCP_SOCKETS=3") != NULL, "%s", text);
    return TUTTI_OK;
}

Test(hosts_sockets, hosts_that_differ_in_their_number_get_an_error) {
    HOSTS_NEED(0);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .no_comm = true}, differ);
}

/* -------------------------------------------------------------------------------------------------- speed */

#define FLOW_RATE "100mbit"

/* The fastest of three sums of 4 MiB, and of three such messages: a limit is exceeded only by the burst that it
 * allows at first. */
typedef struct times {
    double sum_ms, message_ms;
} times;

static double least(const double values[3]) {
    double ab = values[0] < values[1] ? values[0] : values[1];
    return ab < values[2] ? ab : values[2];
}

static tutti_status measure(ranks_context *context) {
    times *result = context->argument; /* shared */
    size_t bytes = 4 * MIB;
    float *data = calloc(1, bytes);
    double sums[4], messages[4];
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < 4 && status == TUTTI_OK; i++) { /* the first ones connect, and use up the burst */
        status = tutti_barrier(context->comm, NULL);
        int64_t start_ns = tutti_now_ns();
        if (status == TUTTI_OK)
            status = tutti_all_reduce(context->comm, data, data, bytes / 4, TUTTI_FLOAT32, TUTTI_SUM, NULL);
        int64_t middle_ns = tutti_now_ns();
        if (status == TUTTI_OK && context->rank == 0)
            status = tutti_send(context->comm, data, bytes, TUTTI_UINT8, 1, 1, NULL);
        else if (status == TUTTI_OK) status = tutti_recv(context->comm, data, bytes, TUTTI_UINT8, 0, 1, NULL);
        sums[i] = (double)(middle_ns - start_ns) * 1e-6;
        messages[i] = (double)(tutti_now_ns() - middle_ns) * 1e-6;
    }
    free(data);
    if (context->rank == 1) *result = (times){least(sums + 1), least(messages + 1)};
    return status;
}

/* Uses one algorithm: the burst that a limit allows at first misleads a measurement of the network. */
static times measure_with(int nsockets, times *shared) {
    char setting[40];
    snprintf(setting, sizeof setting, "TUTTI_TCP_SOCKETS=%d", nsockets);
    const char *const environment[] = {setting, "TUTTI_TRANSPORT=tcp", "TUTTI_ALGORITHM=direct", NULL};
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1),
                               .network = {.flow_rate = FLOW_RATE},
                               .environment = environment,
                               .argument = shared},
              measure);
    fprintf(stderr, "%d sockets, each up to %s: 4 MiB are summed in %.1f ms, sent in %.1f ms\n", nsockets, FLOW_RATE,
            shared->sum_ms, shared->message_ms);
    return *shared;
}

Test(hosts_sockets, carry_more_where_each_flow_is_limited) {
    HOSTS_NEED(.flow_rate = FLOW_RATE);
    times *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shared, MAP_FAILED);
    times one = measure_with(1, shared), two = measure_with(2, shared), four = measure_with(4, shared);
    cr_assert(one.message_ms >= 1.6 * two.message_ms && one.message_ms >= 2.4 * four.message_ms);
    /* With one socket, the short exchanges within a sum use a second connection all the same: a message, which never
     * does, shows what one flow carries. */
    cr_assert(one.message_ms >= 1.6 * two.sum_ms && one.sum_ms >= 1.2 * two.sum_ms);
    cr_assert(one.message_ms >= 2.4 * four.sum_ms && one.sum_ms >= 2.4 * four.sum_ms);
}
