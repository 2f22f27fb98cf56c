/*
 * Hosts and ranks that end, and how the others learn of it: a host vanishes, a rank dies, with a child that lives on
 * or while others wait for it. What goes wrong on the way between hosts is in test_hosts_network.c.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/hosts/scene.h"

/* Rank 0 kills all ranks of the victim, as a machine that loses its power does. */
static tutti_status lose_host(ranks_context *context) {
    int rounds = 0;
    TUTTI_TRY(scene_warm_up(context, &rounds));
    if (context->rank == 0) {
        atomic_store(&scene_now()->event_ns, tutti_now_ns());
        for (int rank = hosts_first(scene_now()->victim); rank < hosts_first(scene_now()->victim + 1); rank++) {
            ranks_forgive(context, rank);
            kill(ranks_pid(context, rank), SIGKILL);
        }
    }
    tutti_status status = scene_keep_summing(context, 30000, &rounds);
    return scene_check_told(context, status, NULL, SCENE_KNOWN_MS);
}

Test(hosts_failure, all_ranks_get_an_error_when_a_host_of_two_vanishes) {
    HOSTS_NEED(0);
    scene_set(1, 10);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .environment = scene_attentive}, lose_host);
}

Test(hosts_failure, all_ranks_get_an_error_when_a_host_of_three_vanishes_within_a_large_operation) {
    HOSTS_NEED(0);
    scene_set(2, 2000000);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 1, 2), .environment = scene_attentive}, lose_host);
}

static tutti_status lose_rank(ranks_context *context) {
    char name[160], host[64] = "";
    int rounds = 0;
    gethostname(host, sizeof host - 1);
    TUTTI_TRY(scene_warm_up(context, &rounds));
    if (context->rank == scene_now()->victim) {
        atomic_store(&scene_now()->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    tutti_status status = scene_keep_summing(context, 30000, &rounds);
    snprintf(name, sizeof name, "rank %d (host %s, pid %d)", scene_now()->victim, host,
             ranks_pid(context, scene_now()->victim));
    return scene_check_told(context, status, name, 2500);
}

Test(hosts_failure, the_death_of_one_rank_is_an_error_on_all_hosts_that_names_it) {
    HOSTS_NEED(0);
    for (int victim = 2; victim <= 4; victim++) { /* a host's first rank, one in the middle, the last one */
        scene_set(victim, 1000);
        scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 3), .environment = scene_attentive}, lose_rank);
    }
}

/* In a short call the rank that waits for the dead rank detects the failure; it is passed on to all others, to some
 * indirectly. */
Test(hosts_failure, a_third_hosts_error_names_the_dead_rank_and_the_rank_that_found_it) {
    HOSTS_NEED(0);
    for (int victim = 1; victim <= 5; victim += 2) {
        scene_set(victim, victim == 5 ? 1000000 : 10);
        scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2, 2), .environment = scene_attentive}, lose_rank);
    }
}

/* For example, a launcher kills the ranks beside a dead rank, which were computing and had not noticed its death:
 * errors must name the first rank that died. */
static tutti_status lose_one_after_the_other(ranks_context *context) {
    char name[160], host[64] = "";
    int rounds = 0, last = context->nranks - 1;
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "rank %d (host %s, pid %d)", last, host, ranks_pid(context, last));
    TUTTI_TRY(scene_warm_up(context, &rounds));
    if (context->rank == last) {
        atomic_store(&scene_now()->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    if (context->rank > 0) {
        usleep(900000);
        ranks_strike(context, SIGKILL);
    }
    tutti_status status = scene_keep_summing(context, 30000, &rounds);
    return scene_check_told(context, status, name, 2500);
}

Test(hosts_failure, the_error_names_the_first_rank_that_died_not_a_later_one) {
    HOSTS_NEED(0);
    for (int turn = 0; turn < 3; turn++) {
        scene_set(0, turn == 0 ? 1 : turn == 1 ? 1000 : 300000);
        scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 2), .environment = scene_attentive},
                  lose_one_after_the_other);
    }
}

/* For example, a data loader's worker outlives its parent for a while, and would keep its connections open. */
static tutti_status lose_parent(ranks_context *context) {
    int rounds = 0;
    TUTTI_TRY(scene_warm_up(context, &rounds));
    if (context->rank == scene_now()->victim) {
        if (fork() == 0) {
            sleep(6);
            _exit(0);
        }
        atomic_store(&scene_now()->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    tutti_status status = scene_keep_summing(context, 30000, &rounds);
    return scene_check_told(context, status, NULL, 2500);
}

Test(hosts_failure, a_forked_child_does_not_hide_the_death_of_its_parent) {
    HOSTS_NEED(0);
    scene_set(1, 1000);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .environment = scene_attentive}, lose_parent);
}

/* A rank that receives from any source and one that receives from the dead rank both get the error. */
static tutti_status lose_sender(ranks_context *context) {
    static int buffer[1000];
    int last = context->nranks - 1;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == last) {
        usleep(200000);
        atomic_store(&scene_now()->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    int from = context->rank == 0 ? last : TUTTI_ANY_SOURCE;
    tutti_status status = tutti_recv(context->comm, buffer, 1000, TUTTI_INT32, from, 5, NULL);
    return scene_check_told(context, status, NULL, 2500);
}

Test(hosts_failure, receives_fail_when_the_sender_on_another_host_dies) {
    HOSTS_NEED(0);
    scene_set(0, 1);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .environment = scene_attentive}, lose_sender);
}

/* Heartbeats of destroyed communicators must be taken neither for those of the next communicator, nor for a death. */
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
    usleep(1500000); /* heartbeats pass */
    return lose_sender(context);
}

Test(hosts_failure, a_death_is_an_error_on_a_communicator_made_after_others_were_destroyed) {
    HOSTS_NEED(0);
    scene_set(0, 1);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .no_comm = true, .environment = scene_attentive},
              lose_sender_of_the_last);
}
