/*
 * What goes wrong on the way between hosts: a cable is pulled for good or for a while, packets get lost or are late,
 * an interface reaches no host. Hosts and ranks that end are in test_hosts_failure.c.
 */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/call.h"
#include "tests/support/hosts/scene.h"

static tutti_status pull_cable_for_good(ranks_context *context) {
    int rounds = 0;
    TUTTI_TRY(scene_warm_up(context, &rounds));
    if (context->rank == 0) {
        atomic_store(&scene_now()->event_ns, tutti_now_ns());
        TUTTI_TRY(netns_set_link(hosts_network(), scene_now()->victim, false));
    }
    tutti_status status = scene_keep_summing(context, 30000, &rounds);
    return scene_check_told(context, status, NULL, SCENE_KNOWN_MS);
}

Test(hosts_network, both_sides_of_a_cut_get_an_error_within_the_timeout_for_silent_peers) {
    HOSTS_NEED(0);
    scene_set(1, 100);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2, 1), .environment = scene_attentive}, pull_cable_for_good);
}

/* Rank 0 pulls the cable for 3 s, while all go on summing. */
static tutti_status pull_cable_for_a_while(ranks_context *context) {
    int rounds = 0, more = 0;
    TUTTI_TRY(scene_warm_up(context, &rounds));
    if (context->rank == 0) {
        TUTTI_TRY(netns_set_link(hosts_network(), scene_now()->victim, false));
        TUTTI_TRY(netns_shell(hosts_network(), NETNS_SWITCH, "(sleep 3; ip link set port%d up) >/dev/null 2>&1 &",
                              scene_now()->victim));
    }
    int64_t start_ns = tutti_now_ns();
    TUTTI_TRY(scene_keep_summing(context, 8000, &more));
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(more > rounds / 4, "%d rounds in %lld ms after %d in 200 ms", more, (long long)took_ms, rounds);
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_network, sums_go_on_after_a_link_was_down_for_three_seconds) {
    HOSTS_NEED(0);
    scene_set(1, 30000);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 2)}, pull_cable_for_a_while);
}

static const tutti_type types[] = {TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_INT64, TUTTI_UINT8,
                                   TUTTI_FLOAT64, TUTTI_FLOAT16,  TUTTI_INT32};
enum { TYPES = sizeof types / sizeof *types };

/* Runs each kind in each class of sizes, with another type each time. */
static tutti_status call_all_kinds(ranks_context *context) {
    for (int turn = 0; turn < 3 * CALL_KINDS; turn++) {
        call c = {.kind = (call_kind)(turn % CALL_KINDS),
                  .type = types[(turn + turn / CALL_KINDS) % TYPES],
                  .count = turn % 3 == 0   ? 5
                           : turn % 3 == 1 ? 3001
                                           : 50021,
                  .root = turn % context->nranks,
                  .seed = (uint64_t)turn};
        TUTTI_TRY(call_run(&c, context->comm));
    }
    return TUTTI_OK;
}

Test(hosts_network, lost_packets_change_no_result) {
    HOSTS_NEED(.loss = 0.01);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .network = {.loss = 0.01}, .timeout_s = 100},
              call_all_kinds);
}

/* A distant host: not a failure, but code with timeouts for short distances would fail. */
static tutti_status call_all_kinds_twice(ranks_context *context) {
    for (int turn = 0; turn < 2 * CALL_KINDS; turn++) {
        call c = {.kind = (call_kind)(turn % CALL_KINDS),
                  .type = types[turn % TYPES],
                  .count = turn < CALL_KINDS ? 9 : 70001,
                  .root = turn % context->nranks,
                  .seed = 4};
        TUTTI_TRY(call_run(&c, context->comm));
    }
    return TUTTI_OK;
}

Test(hosts_network, packets_that_are_50_ms_late_change_no_result) {
    HOSTS_NEED(.delay_ms = 50);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 1, 2), .network = {.delay_ms = 50}, .timeout_s = 100},
              call_all_kinds_twice);
}

/* Each rank of host 0 sends its last message and ends at once; the other side receives it long after that. */
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

Test(hosts_network, what_a_rank_sent_before_it_left_arrives) {
    HOSTS_NEED(.delay_ms = 50);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .network = {.delay_ms = 50}}, send_and_leave);
}

Test(hosts_network, interfaces_that_reach_no_host_do_no_harm) {
    HOSTS_NEED(.decoys = true);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 2, 1), .network = {.decoys = true}}, call_all_kinds);
}
