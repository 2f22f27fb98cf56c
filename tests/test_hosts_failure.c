/*
 * What goes wrong between hosts: a host vanishes, a rank dies, a cable is pulled for good or for a while, packets get lost,
 * secrets differ, strangers knock.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "tests/support/call.h"
#include "tests/support/hosts.h"
#include "tests/support/reference.h"

#define LAYOUT(...)  ((const int[]){__VA_ARGS__, 0})
#define PEER_MS      3000
#define PEER_SETTING "TUTTI_PEER_TIMEOUT_MS=3000"
#define KNOWN_MS     (PEER_MS + 1500) /* from the event to the error, on a machine whose cores are shared */

static const char *const attentive[] = {PEER_SETTING, NULL};

static void run(const hosts_options *options, ranks_body body) {
    const char *failure = hosts_run(options, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* Shared by the ranks of a run. */
typedef struct scene {
    atomic_llong event_ns; /* when it happened; 0: not yet */
    int victim;            /* host, or rank */
    size_t count;          /* elements of the operations meanwhile */
    _Atomic int flag;
} scene;

static scene *stage;

static void set_stage(int victim, size_t count) {
    if (stage == NULL) stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(stage, MAP_FAILED);
    memset(stage, 0, sizeof *stage);
    stage->victim = victim;
    stage->count = count;
}

/* Sums until an error or until the time is over; each result is checked. */
static tutti_status keep_summing(ranks_context *context, int64_t limit_ms, int *rounds_out) {
    int64_t start_ns = tutti_now_ns();
    int *values = malloc(stage->count * sizeof *values), n = context->nranks;
    tutti_status status = values != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_MEMORY, "no memory");
    for (*rounds_out = 0; status == TUTTI_OK; ++*rounds_out) {
        values[0] = tutti_now_ns() - start_ns > limit_ms * 1000000; /* all go on until each wants to end */
        for (size_t i = 1; i < stage->count; i++) values[i] = context->rank + (int)i;
        status = tutti_all_reduce(context->comm, values, values, stage->count, TUTTI_INT32, TUTTI_SUM, NULL);
        for (size_t i = 1; i < stage->count && status == TUTTI_OK; i++)
            if (values[i] != n * (n - 1) / 2 + n * (int)i)
                status = tutti_fail(TUTTI_ERR_DATA, "round %d, element %zu is %d", *rounds_out, i, values[i]);
        if (status == TUTTI_OK && values[0] == n) break;
    }
    free(values);
    return status;
}

/* Takes the error that ended keep_summing: that one, in time, with a name in it; and later calls answer at once. */
static tutti_status check_told(ranks_context *context, tutti_status status, const char *name, int64_t within_ms) {
    char text[1024];
    int64_t after_ms = (tutti_now_ns() - atomic_load(&stage->event_ns)) / 1000000;
    snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "'%s' (%s)", tutti_status_name(status), text);
    RANKS_CHECK(atomic_load(&stage->event_ns) != 0, "told before it happened: %s", text);
    RANKS_CHECK(after_ms <= within_ms, "told after %lld ms: %s", (long long)after_ms, text);
    RANKS_CHECK(name == NULL || strstr(text, name) != NULL, "'%s' is not named: %s", name, text);
    int64_t start_ns = tutti_now_ns();
    int value = 0;
    for (int i = 0; i < 5; i++)
        RANKS_CHECK(tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL) != TUTTI_OK,
                    "a later call succeeded");
    RANKS_CHECK(tutti_now_ns() - start_ns < 500000000, "later calls do not answer at once");
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- vanishing */

/* Rank 0 kills all ranks of the victim, as a machine that loses its power does. */
static tutti_status lose_host(ranks_context *context) {
    int rounds = 0;
    TUTTI_TRY(keep_summing(context, 200, &rounds));
    if (context->rank == 0) {
        atomic_store(&stage->event_ns, tutti_now_ns());
        for (int rank = hosts_first(stage->victim); rank < hosts_first(stage->victim + 1); rank++) {
            ranks_forgive(context, rank);
            kill(ranks_pid(context, rank), SIGKILL);
        }
    }
    tutti_status status = keep_summing(context, 30000, &rounds);
    return check_told(context, status, NULL, KNOWN_MS);
}

Test(hosts_failure, all_are_told_when_a_host_of_two_vanishes) {
    HOSTS_NEED(0);
    set_stage(1, 10);
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .environment = attentive}, lose_host);
}

Test(hosts_failure, all_are_told_when_a_host_of_three_vanishes_within_a_large_operation) {
    HOSTS_NEED(0);
    set_stage(2, 2000000);
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 1, 2), .environment = attentive}, lose_host);
}

static tutti_status lose_rank(ranks_context *context) {
    char name[32];
    int rounds = 0;
    TUTTI_TRY(keep_summing(context, 200, &rounds));
    if (context->rank == stage->victim) {
        atomic_store(&stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    tutti_status status = keep_summing(context, 30000, &rounds);
    snprintf(name, sizeof name, "rank %d", stage->victim);
    return check_told(context, status, name, 2500);
}

Test(hosts_failure, the_death_of_one_rank_is_told_on_all_hosts_with_its_name) {
    HOSTS_NEED(0);
    for (int victim = 2; victim <= 4; victim++) { /* a host's first rank, one in the middle, the last one */
        set_stage(victim, 1000);
        run(&(hosts_options){.ranks_per_host = LAYOUT(2, 3), .environment = attentive}, lose_rank);
    }
}

/* A data loader's worker, say, lives on for a while, and would keep the connections of its parent. */
static tutti_status lose_parent(ranks_context *context) {
    int rounds = 0;
    TUTTI_TRY(keep_summing(context, 200, &rounds));
    if (context->rank == stage->victim) {
        if (fork() == 0) {
            sleep(6);
            _exit(0);
        }
        atomic_store(&stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    tutti_status status = keep_summing(context, 30000, &rounds);
    return check_told(context, status, NULL, 2500);
}

Test(hosts_failure, a_forked_child_does_not_hide_the_death_of_its_parent) {
    HOSTS_NEED(0);
    set_stage(1, 1000);
    run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .environment = attentive}, lose_parent);
}

/* A rank that waits for nobody in particular and one that waits for the dead one are both told. */
static tutti_status lose_sender(ranks_context *context) {
    static int buffer[1000];
    int last = context->nranks - 1;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == last) {
        usleep(200000);
        atomic_store(&stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    int from = context->rank == 0 ? last : TUTTI_ANY_SOURCE;
    tutti_status status = tutti_recv(context->comm, buffer, 1000, TUTTI_INT32, from, 5, NULL);
    return check_told(context, status, NULL, 2500);
}

Test(hosts_failure, receives_are_told_when_the_sender_on_another_host_dies) {
    HOSTS_NEED(0);
    set_stage(0, 1);
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .environment = attentive}, lose_sender);
}

/* Heartbeats of communicators that are gone must neither be taken for those of the next one, nor for a death. */
static tutti_status lose_sender_of_the_last(ranks_context *context) {
    enum { TIMES = 6 };
    for (int i = 0; i < TIMES; i++) {
        char prefix[16];
        snprintf(prefix, sizeof prefix, "time-%d", i);
        TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, prefix, NULL, &context->comm));
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
        if (i == TIMES - 1) break;
        if (i % 2 == 1) usleep(1000 * (useconds_t)(300 * context->rank % 700)); /* some leave late */
        TUTTI_TRY(tutti_comm_destroy(context->comm));
        context->comm = NULL;
    }
    usleep(1500000); /* beats pass */
    return lose_sender(context);
}

Test(hosts_failure, a_death_is_told_on_a_communicator_made_after_others_have_gone) {
    HOSTS_NEED(0);
    set_stage(0, 1);
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .no_comm = true, .environment = attentive},
        lose_sender_of_the_last);
}

/* ----------------------------------------------------------------------------------------------- cables */

static tutti_status pull_cable_for_good(ranks_context *context) {
    int rounds = 0;
    TUTTI_TRY(keep_summing(context, 200, &rounds));
    if (context->rank == 0) {
        atomic_store(&stage->event_ns, tutti_now_ns());
        TUTTI_TRY(netns_set_link(hosts_network(), stage->victim, false));
    }
    tutti_status status = keep_summing(context, 30000, &rounds);
    return check_told(context, status, NULL, KNOWN_MS);
}

Test(hosts_failure, both_sides_of_a_cut_are_told_within_the_time_for_silent_peers) {
    HOSTS_NEED(0);
    set_stage(1, 100);
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2, 1), .environment = attentive}, pull_cable_for_good);
}

/* Rank 0 pulls the cable for 3 s, while all go on summing. */
static tutti_status pull_cable_for_a_while(ranks_context *context) {
    int rounds = 0, more = 0;
    TUTTI_TRY(keep_summing(context, 200, &rounds));
    if (context->rank == 0) {
        TUTTI_TRY(netns_set_link(hosts_network(), stage->victim, false));
        TUTTI_TRY(netns_shell(hosts_network(), NETNS_SWITCH, "(sleep 3; ip link set port%d up) >/dev/null 2>&1 &",
                              stage->victim));
    }
    int64_t start_ns = tutti_now_ns();
    TUTTI_TRY(keep_summing(context, 8000, &more));
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(more > rounds / 4, "%d rounds in %lld ms after %d in 200 ms", more, (long long)took_ms, rounds);
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_failure, sums_go_on_after_a_link_was_down_for_three_seconds) {
    HOSTS_NEED(0);
    set_stage(1, 30000);
    run(&(hosts_options){.ranks_per_host = LAYOUT(1, 2)}, pull_cable_for_a_while);
}

static tutti_status call_all_kinds(ranks_context *context) {
    for (int turn = 0; turn < 3 * CALL_KINDS; turn++) {
        call c = {.kind = (call_kind)(turn % CALL_KINDS),
                  .type = TUTTI_FLOAT32,
                  .count = turn % 3 == 0   ? 5
                           : turn % 3 == 1 ? 3001
                                           : 50021,
                  .root = turn % context->nranks,
                  .seed = (uint64_t)turn};
        TUTTI_TRY(call_run(&c, context->comm));
    }
    return TUTTI_OK;
}

Test(hosts_failure, lost_packets_change_no_result) {
    HOSTS_NEED(.loss = 0.01);
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .network = {.loss = 0.01}, .timeout_s = 100}, call_all_kinds);
}

/* A distant host: not a failure, but what is written for short ways would time out. */
static tutti_status call_all_kinds_once(ranks_context *context) {
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        call c = {.kind = (call_kind)kind, .type = TUTTI_FLOAT32, .count = kind % 2 == 0 ? 9 : 70001, .seed = 4};
        TUTTI_TRY(call_run(&c, context->comm));
    }
    return TUTTI_OK;
}

Test(hosts_failure, packets_that_are_50_ms_late_change_no_result) {
    HOSTS_NEED(.delay_ms = 50);
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 1, 2), .network = {.delay_ms = 50}, .timeout_s = 100},
        call_all_kinds_once);
}

/* Each rank of host 0 sends its last message and ends at once; the other side takes it when that has long happened. */
static tutti_status send_and_leave(ranks_context *context) {
    enum { COUNT = 60000 };
    static int values[COUNT];
    int other = (context->rank + 2) % 4;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    for (int i = 0; i < COUNT; i++) values[i] = hosts_of(context->rank) == 0 ? i + context->rank : 0;
    if (hosts_of(context->rank) == 0) {
        TUTTI_TRY(tutti_send(context->comm, values, 10, TUTTI_INT32, other, 1, NULL));
        return tutti_send(context->comm, values, COUNT, TUTTI_INT32, other, 2, NULL);
    }
    TUTTI_TRY(tutti_recv(context->comm, values, COUNT, TUTTI_INT32, other, 2, NULL));
    for (int i = 0; i < COUNT; i++) RANKS_CHECK(values[i] == i + other, "element %d is %d", i, values[i]);
    usleep(1500000);
    TUTTI_TRY(tutti_recv(context->comm, values, 10, TUTTI_INT32, other, 1, NULL));
    for (int i = 0; i < 10; i++) RANKS_CHECK(values[i] == i + other, "element %d is %d", i, values[i]);
    return TUTTI_OK;
}

Test(hosts_failure, what_a_rank_sent_before_it_left_arrives) {
    HOSTS_NEED(.delay_ms = 50);
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .network = {.delay_ms = 50}}, send_and_leave);
}

Test(hosts_failure, interfaces_that_lead_nowhere_do_no_harm) {
    HOSTS_NEED(.decoys = true);
    run(&(hosts_options){.ranks_per_host = LAYOUT(1, 2, 1), .network = {.decoys = true}}, call_all_kinds);
}

/* ---------------------------------------------------------------------------------------------- secrets */

static tutti_status join_with_secret(ranks_context *context) {
    const char *const *secrets = context->argument;
    tutti_comm *comm = NULL;
    setenv("TUTTI_SECRET", secrets[hosts_of(context->rank)], 1);
    tutti_settings_reload();
    tutti_status status = tutti_comm_create_world(&comm);
    bool equal = strcmp(secrets[0], secrets[1]) == 0;
    if (status == TUTTI_OK) {
        status = tutti_barrier(comm, NULL); /* where links are made at first use */
        char text[512];
        snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
        tutti_comm_destroy(comm);
        if (status != TUTTI_OK) tutti_fail(status, "%s", text);
    }
    if (equal) return status;
    RANKS_CHECK(status != TUTTI_OK, "strangers work together");
    const char *text = tutti_last_error();
    if (strstr(text, "secret") != NULL) atomic_fetch_add(&stage->flag, 1); /* who was refused knows why */
    RANKS_CHECK(strstr(text, secrets[0]) == NULL && strstr(text, secrets[1]) == NULL, "tells a secret: %s", text);
    return TUTTI_OK;
}

Test(hosts_failure, hosts_with_one_secret_work_together) {
    HOSTS_NEED(0);
    set_stage(0, 1);
    static const char *const secrets[] = {"our word", "our word"};
    run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .no_comm = true, .argument = (void *)secrets},
        join_with_secret);
}

Test(hosts_failure, hosts_with_different_secrets_do_not) {
    HOSTS_NEED(0);
    set_stage(0, 1);
    static const char *const secrets[] = {"our word", "their word"};
    static const char *const impatient[] = {"TUTTI_CONNECT_TIMEOUT_MS=5000", NULL};
    run(
        &(hosts_options){
            .ranks_per_host = LAYOUT(1, 2), .no_comm = true, .environment = impatient, .argument = (void *)secrets},
        join_with_secret);
}

/* -------------------------------------------------------------------------------------------- strangers */

/* Ports on which the processes of a host listen, as the system tells; gives their number. */
static int listening_ports(int pid, int *ports, int most) {
    char line[512];
    int n = 0;
    for (int version = 4; version <= 6; version += 2) {
        snprintf(line, sizeof line, "/proc/%d/net/tcp%s", pid, version == 6 ? "6" : "");
        FILE *file = fopen(line, "re");
        while (file != NULL && n < most && fgets(line, sizeof line, file) != NULL) {
            unsigned port, state;
            if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &port, &state) != 2 || state != 0x0A) continue;
            ports[n++] = (int)port;
        }
        if (file != NULL) fclose(file);
    }
    return n;
}

static int knock(int host, int port) {
    char address[16];
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, netns_address(host, address), &place.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (connect(fd, (void *)&place, sizeof place) != 0 && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 100);
    return fd;
}

/* Garbage, endings in the middle, silence, floods, until the others have done. Nothing secret may come back. */
static tutti_status disturb(ranks_context *context) {
    enum { KEPT = 200 };
    static int kept[KEPT];
    unsigned char garbage[300], answer[4096];
    int ports[16], knocks = 0;
    while (atomic_load(&stage->flag) < 2) usleep(1000); /* both have a communicator */
    for (uint64_t turn = 0; atomic_load(&stage->flag) < 4; turn++) {
        int host = (int)(turn % 2), nports = listening_ports(ranks_pid(context, host), ports, 16);
        if (nports == 0) return tutti_fail(TUTTI_ERR_DATA, "host %d listens nowhere", host);
        int fd = knock(host, ports[turn / 2 % (uint64_t)nports]);
        if (fd < 0) continue;
        knocks++;
        for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (unsigned char)reference_hash(turn, i, 1);
        size_t bytes = turn % 5 == 0 ? 0 : 1 + (size_t)(reference_hash(turn, 0, 2) % sizeof garbage);
        ssize_t sent = send(fd, garbage, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        ssize_t got = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
        (void)sent;
        RANKS_CHECK(got <= 256, "a stranger got %zd bytes", got);
        if (kept[turn % KEPT] > 0) close(kept[turn % KEPT]); /* half open for a while */
        kept[turn % KEPT] = fd;
    }
    RANKS_CHECK(knocks > 100, "only %d knocks", knocks);
    return TUTTI_OK;
}

static tutti_status work_on(ranks_context *context) {
    if (context->rank == 2) return disturb(context);
    int rounds;
    context->nranks = 2;
    TUTTI_TRY(tutti_comm_create(context->rank, 2, context->store, "pair", NULL, &context->comm));
    atomic_fetch_add(&stage->flag, 1);
    tutti_status status = keep_summing(context, 4000, &rounds);
    atomic_fetch_add(&stage->flag, 1);
    if (status == TUTTI_OK && rounds < 10) status = tutti_fail(TUTTI_ERR_DATA, "only %d rounds in 4 s", rounds);
    return status;
}

Test(hosts_failure, strangers_who_knock_at_every_port_disturb_nobody) {
    HOSTS_NEED(0);
    set_stage(0, 20000);
    run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1, 1), .no_comm = true}, work_on);
}

/* Connections that come while the ranks still look for each other. */
static tutti_status meet_among_strangers(ranks_context *context) {
    if (context->rank != 2) {
        tutti_comm *comm;
        usleep(context->rank == 1 ? 500000 : 0);
        tutti_status status = tutti_comm_create(context->rank, 2, context->store, "pair", NULL, &comm);
        if (status == TUTTI_OK) status = tutti_barrier(comm, NULL);
        atomic_fetch_add(&stage->flag, 1);
        if (status == TUTTI_OK) tutti_comm_destroy(comm);
        return status;
    }
    int ports[16];
    for (uint64_t turn = 0; atomic_load(&stage->flag) < 2; turn++) {
        int nports = listening_ports(ranks_pid(context, (int)(turn % 2)), ports, 16);
        int fd = nports > 0 ? knock((int)(turn % 2), ports[turn / 2 % (uint64_t)nports]) : -1;
        if (fd >= 0 && turn % 3 != 0) close(fd); /* the others stay half open */
        if (fd >= 0 && turn > 500) usleep(1000);
        if (fd < 0) usleep(100);
    }
    return TUTTI_OK;
}

Test(hosts_failure, ranks_find_each_other_among_half_open_connections) {
    HOSTS_NEED(0);
    set_stage(0, 1);
    run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1, 1), .no_comm = true}, meet_among_strangers);
}
