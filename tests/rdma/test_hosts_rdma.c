/*
 * tutti_comm_init_rdma: a host without an adapter, or with one that does not reach the others, is named on all ranks,
 * and the communicator stays as it was; after a success only verbs carries data. The adapters are stand-ins
 * (support/standins/standin_verbs.c); on Soft-RoCE it is tested by test_hosts_vm.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/net/hosts.h"
#include "comm/net/link.h"
#include "comm/net/transport/transport.h"
#include "comm/p2p/remote_channel.h"
#include "tests/support/hosts/hosts.h"

#define LAYOUT(...) ((const int[]){__VA_ARGS__, 0})

/* Why a rank has no RDMA path, from the start or later. */
enum { WHOLE, NO_ADAPTER, FORBIDDEN, OTHER_NETWORK };

typedef struct play {
    int odd_host, lack; /* what that host lacks; other hosts lack nothing */
    bool asks;          /* calls tutti_comm_init_rdma */
} play;

static tutti_status make_world(const ranks_context *context, tutti_comm **comm_out) {
    const play *p = context->argument;
    int lack = hosts_of(context->rank) == p->odd_host ? p->lack : WHOLE;
    setenv("STANDIN_VERBS", lack == NO_ADAPTER ? "none" : "", 1);
    setenv("STANDIN_NETWORK", lack == OTHER_NETWORK ? "elsewhere" : "here", 1);
    if (lack == FORBIDDEN) setenv("TUTTI_TRANSPORT", "tcp", 1);
    tutti_settings_reload();
    return tutti_comm_create_world(comm_out);
}

/* A sum that is long enough for several pieces, with its closed form. */
static tutti_status sum(tutti_comm *comm) {
    enum { COUNT = 300001 };
    static float values[COUNT];
    int n = tutti_comm_size(comm);
    for (int i = 0; i < COUNT; i++) values[i] = (float)(tutti_comm_rank(comm) + i % 100);
    TUTTI_TRY(tutti_all_reduce(comm, values, values, COUNT, TUTTI_FLOAT32, TUTTI_SUM, NULL));
    for (int i = 0; i < COUNT; i++) {
        float expected = (float)(n * (n - 1) / 2 + n * (i % 100));
        RANKS_CHECK(values[i] == expected, "element %d is %g, not %g", i, (double)values[i], (double)expected);
    }
    return TUTTI_OK;
}

/* Sends to the rank with the same local number on the next host, in two sizes. */
static tutti_status send_on(tutti_comm *comm, int to, int from) {
    static char out[200000], in[200000];
    for (size_t bytes = 8; bytes <= sizeof out; bytes = bytes == 8 ? sizeof out : bytes + 1) {
        tutti_work *work = NULL;
        memset(out, tutti_comm_rank(comm) + 1, bytes);
        TUTTI_TRY(tutti_send(comm, out, bytes, TUTTI_UINT8, to, 3, &TUTTI_OPTIONS(.work = &work)));
        tutti_status status = tutti_recv(comm, in, bytes, TUTTI_UINT8, from, 3, NULL);
        if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
        tutti_work_free(work);
        TUTTI_TRY(status);
        RANKS_CHECK(in[0] == from + 1 && in[bytes - 1] == from + 1, "%d came from rank %d", in[0], from);
    }
    return TUTTI_OK;
}

/* Counts the connections of links and messages to other hosts; all must use that transport. */
static tutti_status count_ways(const tutti_comm *comm, const tutti_transport *transport, int *links, int *messages) {
    *links = *messages = 0;
    for (int rank = 0; rank < comm->nranks; rank++) {
        const tutti_peer *process = comm->members[rank].process;
        if (!process->remote) continue;
        const tutti_pipe *pipe = tutti_link_pipe(comm, rank);
        RANKS_CHECK(pipe == NULL || pipe->transport == transport, "the link to rank %d is of %s", rank,
                    pipe->transport->name);
        *links += pipe != NULL && pipe->bytes_out > 0;
        if (process->channels == NULL || !tutti_remote_is_open(process->channels)) continue;
        RANKS_CHECK(tutti_remote_not_by(process->channels, transport) == NULL, "messages to rank %d go another way",
                    rank);
        ++*messages;
    }
    return TUTTI_OK;
}

static const char *run_play(const int *layout, ranks_body body, play p, const char *const *environment) {
    return hosts_run(
        &(hosts_options){
            .ranks_per_host = layout, .no_comm = true, .argument = &p, .environment = environment, .timeout_s = 60},
        body);
}

/* ------------------------------------------------------------------------------------------------------ it succeeds */

static tutti_status go_by_verbs(ranks_context *context) {
    tutti_comm *comm, *half;
    int links, messages, n = context->nranks, next = (context->rank + hosts_first(1)) % n;
    TUTTI_TRY(make_world(context, &comm));
    TUTTI_TRY(tutti_comm_init_rdma(comm));
    RANKS_CHECK(tutti_rdma_is_initialized() == 1, "the adapters are not open");
    TUTTI_TRY(sum(comm));
    TUTTI_TRY(send_on(comm, next, (context->rank + n - hosts_first(1)) % n));
    TUTTI_TRY(count_ways(comm, &tutti_verbs_transport, &links, &messages));
    RANKS_CHECK(links > 0 && messages > 0, "%d links, %d messages", links, messages);
    TUTTI_TRY(tutti_comm_split(comm, 0, -context->rank, NULL, &half));
    TUTTI_TRY(sum(half));
    TUTTI_TRY(count_ways(half, &tutti_verbs_transport, &links, &messages));
    if (context->rank == 0) TUTTI_TRY(tutti_comm_init_rdma(comm)); /* again: this needs no other rank */
    tutti_comm_destroy(half);
    tutti_comm_destroy(comm);
    return TUTTI_OK;
}

Test(hosts_rdma, collectives_and_messages_go_by_verbs_where_all_hosts_reach_each_other) {
    HOSTS_NEED(0);
    const char *failed = run_play(LAYOUT(1, 1), go_by_verbs, (play){.odd_host = -1}, NULL);
    cr_assert_null(failed, "%s", failed);
    failed = run_play(LAYOUT(1, 1, 1), go_by_verbs, (play){.odd_host = -1}, NULL);
    cr_assert_null(failed, "%s", failed);
    failed = run_play(LAYOUT(2, 2), go_by_verbs, (play){.odd_host = -1}, NULL);
    cr_assert_null(failed, "%s", failed);
}

/* -------------------------------------------------------------------------------------------------------- it fails */

static tutti_status be_refused(ranks_context *context) {
    static const char *const reasons[] = {[NO_ADAPTER] = "no RDMA adapter",
                                          [FORBIDDEN] = "TUTTI_TRANSPORT does not name it",
                                          [OTHER_NETWORK] = "does not reach network"};
    const play *p = context->argument;
    tutti_comm *comm;
    char host[64] = "", odd[64];
    int links, messages, odd_rank = hosts_first(p->odd_host);
    TUTTI_TRY(make_world(context, &comm));
    gethostname(host, sizeof host - 1);
    snprintf(odd, sizeof odd, "(rank %d)", odd_rank);
    for (int turn = 0; turn < 2; turn++) { /* it may be tried again, and the communicator still works */
        tutti_status status = tutti_comm_init_rdma(comm), expected = TUTTI_ERR_UNSUPPORTED;
        if (p->lack == FORBIDDEN) expected = TUTTI_ERR_CONFIG;
        RANKS_CHECK(status == expected, "'%s': %s", tutti_status_name(status), tutti_last_error());
        const char *text = tutti_last_error();
        RANKS_CHECK(strstr(text, reasons[p->lack]) != NULL && strstr(text, odd) != NULL && strstr(text, host) != NULL,
                    "the error does not name %s %s with its reason: %s", host, odd, text);
        RANKS_CHECK((strstr(text, "does not reach host") != NULL) == (p->lack == OTHER_NETWORK), "%s", text);
        TUTTI_TRY(tutti_comm_error(comm));
        TUTTI_TRY(sum(comm));
    }
    if (hosts_of(context->rank) == p->odd_host) TUTTI_TRY(count_ways(comm, &tutti_tcp_transport, &links, &messages));
    return tutti_comm_destroy(comm);
}

Test(hosts_rdma, a_host_without_an_adapter_is_named_on_all_ranks) {
    HOSTS_NEED(0);
    const char *failed = run_play(LAYOUT(1, 1), be_refused, (play){.odd_host = 1, .lack = NO_ADAPTER}, NULL);
    cr_assert_null(failed, "%s", failed);
    failed = run_play(LAYOUT(2, 1), be_refused, (play){.odd_host = 0, .lack = NO_ADAPTER}, NULL);
    cr_assert_null(failed, "%s", failed);
    failed = run_play(LAYOUT(1, 2), be_refused, (play){.odd_host = 1, .lack = FORBIDDEN}, NULL);
    cr_assert_null(failed, "%s", failed);
}

Test(hosts_rdma, adapters_that_do_not_reach_each_other_are_named_on_all_ranks) {
    HOSTS_NEED(0);
    static const char *const quiet[] = {"TUTTI_LOG=error", NULL};
    const char *failed = run_play(LAYOUT(1, 1), be_refused, (play){.odd_host = 1, .lack = OTHER_NETWORK}, quiet);
    cr_assert_null(failed, "%s", failed);
    failed = run_play(LAYOUT(1, 1, 1), be_refused, (play){.odd_host = 2, .lack = OTHER_NETWORK}, quiet);
    cr_assert_null(failed, "%s", failed);
    failed = run_play(LAYOUT(2, 1), be_refused, (play){.odd_host = 1, .lack = OTHER_NETWORK}, quiet);
    cr_assert_null(failed, "%s", failed);
}

/* One rank never calls it. */
static tutti_status wait_for_last(ranks_context *context) {
    tutti_comm *comm;
    char last[32];
    TUTTI_TRY(make_world(context, &comm));
    if (context->rank == context->nranks - 1) ranks_strike(context, SIGSTOP); /* the run ends without this rank */
    tutti_status status = tutti_comm_init_rdma(comm);
    snprintf(last, sizeof last, "rank %d", context->nranks - 1);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT && strstr(tutti_last_error(), last) != NULL, "'%s': %s",
                tutti_status_name(status), status != TUTTI_OK ? tutti_last_error() : "");
    return tutti_comm_destroy(comm);
}

Test(hosts_rdma, a_rank_that_does_not_call_it_is_named_by_the_timeout) {
    HOSTS_NEED(0);
    static const char *const impatient[] = {"TUTTI_LOG=error", "TUTTI_STALL_MS=500", "TUTTI_TIMEOUT_MS=1500", NULL};
    const char *failed = run_play(LAYOUT(1, 1), wait_for_last, (play){.odd_host = -1}, impatient);
    cr_assert_null(failed, "%s", failed);
    failed = run_play(LAYOUT(1, 1, 1), wait_for_last, (play){.odd_host = -1}, impatient);
    cr_assert_null(failed, "%s", failed);
}

/* ------------------------------------------------------------------------------------------- afterwards, never TCP */

/* The last host's adapter moves to another network: no new connection can use verbs. Without `asks` they use TCP. */
static tutti_status connect_anew(ranks_context *context) {
    const play *p = context->argument;
    tutti_comm *comm, *other = NULL;
    TUTTI_TRY(make_world(context, &comm));
    if (p->asks) TUTTI_TRY(tutti_comm_init_rdma(comm));
    TUTTI_TRY(tutti_barrier(comm, NULL));
    if (hosts_of(context->rank) == 1) setenv("STANDIN_NETWORK", "lost", 1);
    TUTTI_TRY(tutti_barrier(comm, NULL));
    tutti_status status = tutti_comm_split(comm, 0, 0, NULL, &other);
    if (!p->asks) {
        TUTTI_TRY(status);
        TUTTI_TRY(sum(other));
        TUTTI_TRY(send_on(comm, 1 - context->rank, 1 - context->rank));
        tutti_comm_destroy(other);
        return tutti_comm_destroy(comm);
    }
    RANKS_CHECK(status != TUTTI_OK && strstr(tutti_last_error(), "does not reach network") != NULL, "'%s': %s",
                tutti_status_name(status), status != TUTTI_OK ? tutti_last_error() : "");
    status = send_on(comm, 1 - context->rank, 1 - context->rank);
    RANKS_CHECK(status != TUTTI_OK && strstr(tutti_last_error(), "does not reach network") != NULL, "'%s': %s",
                tutti_status_name(status), status != TUTTI_OK ? tutti_last_error() : "");
    return tutti_comm_destroy(comm);
}

Test(hosts_rdma, a_connection_that_verbs_cannot_make_is_an_error_and_does_not_use_tcp) {
    HOSTS_NEED(0);
    static const char *const quiet[] = {"TUTTI_LOG=error", NULL};
    const char *failed = run_play(LAYOUT(1, 1), connect_anew, (play){.odd_host = -1, .asks = true}, quiet);
    cr_assert_null(failed, "%s", failed);
    failed = run_play(LAYOUT(1, 1), connect_anew, (play){.odd_host = -1}, quiet);
    cr_assert_null(failed, "%s", failed);
}

static tutti_status lose_adapter(ranks_context *context) {
    tutti_comm *comm;
    TUTTI_TRY(make_world(context, &comm));
    TUTTI_TRY(tutti_comm_init_rdma(comm));
    TUTTI_TRY(sum(comm));
    TUTTI_TRY(tutti_barrier(comm, NULL));
    if (hosts_of(context->rank) == 1) setenv("STANDIN_BROKEN", "1", 1);
    tutti_status status = sum(comm);
    RANKS_CHECK(status != TUTTI_OK, "sums go on");
    bool knows_why =
        strstr(tutti_last_error(), "the stand-in's adapter has failed") != NULL; /* its peer sees the end only */
    RANKS_CHECK(knows_why || hosts_of(context->rank) != 1, "'%s': %s", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(tutti_comm_error(comm) != TUTTI_OK, "the communicator is whole");
    RANKS_CHECK(tutti_comm_init_rdma(comm) != TUTTI_OK, "a broken communicator can be asked for RDMA");
    return tutti_comm_destroy(comm);
}

Test(hosts_rdma, an_adapter_that_fails_later_is_an_error_on_all_ranks) {
    HOSTS_NEED(0);
    const char *failed = run_play(LAYOUT(1, 1), lose_adapter, (play){.odd_host = -1}, NULL);
    cr_assert_null(failed, "%s", failed);
    failed = run_play(LAYOUT(1, 2), lose_adapter, (play){.odd_host = -1}, NULL);
    cr_assert_null(failed, "%s", failed);
}

/* -------------------------------------------------------------------------------------------------------- one host */

/* Runs in a child, which reports only by its exit code. */
static tutti_status ask_forked(tutti_comm *comm) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(tutti_comm_init_rdma(comm) == TUTTI_ERR_FORKED ? 0 : 1);
    RANKS_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
                "a forked child may call it");
    return TUTTI_OK;
}

static tutti_status ask_on_one_host(ranks_context *context) {
    tutti_comm *comm = context->comm;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_init_rdma(NULL));
    TUTTI_TRY(tutti_group_begin(comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_init_rdma(comm));
    TUTTI_TRY(tutti_group_cancel(comm));
    if (context->rank == context->nranks - 1) setenv("STANDIN_VERBS", "none", 1);
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, tutti_comm_init_rdma(comm));
    RANKS_CHECK(strstr(tutti_last_error(), "no RDMA adapter") != NULL && strstr(tutti_last_error(), host) != NULL, "%s",
                tutti_last_error());
    unsetenv("STANDIN_VERBS");
    TUTTI_TRY(sum(comm));
    TUTTI_TRY(tutti_comm_init_rdma(comm));
    TUTTI_TRY(sum(comm));
    tutti_comm_details details = {.hosts = 0};
    TUTTI_TRY(tutti_comm_get(comm, &details));
    RANKS_CHECK(details.hosts == 1 && details.host == 0 && details.local_rank == context->rank &&
                    details.local_size == context->nranks,
                "rank %d of %d on host %d of %d", details.local_rank, details.local_size, details.host, details.hosts);
    return ask_forked(comm);
}

Test(hosts_rdma, one_host_needs_an_adapter_too) {
    for (int nranks = 2; nranks <= 3; nranks++) {
        const char *failed = ranks_run(&(ranks_options){.kind = RANKS_PROCESSES, .nranks = nranks}, ask_on_one_host);
        cr_assert_null(failed, "%d ranks: %s", nranks, failed);
    }
}
