/*
 * Ranks of other hosts that leave in order: they destroy the communicator and end, which is not a failure for ranks
 * that need nothing from them, also where these wait for any rank. Also failures on a host whose first rank has left
 * in this way.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/hosts/scene.h"

/* Four ranks on two hosts: rank `scene.victim` leaves, if `scene.flag` is set after a message to the ranks of the
 * other host; rank `from` of the same host sends to them long after that. */
static tutti_status leave_and_wait(ranks_context *context) {
    int leaver = scene_now()->victim, from = leaver == 2 ? 3 : 2, value = 0, before = 0;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    for (int to = 0; to < 2 && scene_now()->flag != 0; to++) {
        if (context->rank == leaver) TUTTI_TRY(tutti_send(context->comm, &to, 1, TUTTI_INT32, to, 4, NULL));
        if (context->rank == to) TUTTI_TRY(tutti_recv(context->comm, &before, 1, TUTTI_INT32, leaver, 4, NULL));
    }
    if (context->rank == leaver) return TUTTI_OK; /* the communicator is destroyed then, and the process ends */
    if (context->rank != from) {
        TUTTI_TRY(tutti_recv(context->comm, &value, 1, TUTTI_INT32, TUTTI_ANY_SOURCE, 5, NULL));
        RANKS_CHECK(value == 77, "%d came", value);
        return TUTTI_OK;
    }
    usleep(2500000); /* longer than a rank tries to connect when no process accepts */
    value = 77;
    for (int to = 0; to < 2; to++) TUTTI_TRY(tutti_send(context->comm, &value, 1, TUTTI_INT32, to, 5, NULL));
    return TUTTI_OK;
}

static void leave_first(int leaver, int talks) {
    scene_set(leaver, 1);
    scene_now()->flag = talks;
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .environment = scene_attentive}, leave_and_wait);
}

Test(hosts_leave, a_rank_that_waits_for_any_goes_on_when_a_remote_one_has_left) {
    HOSTS_NEED(0);
    leave_first(/* leaver */ 3, /* talks */ 0);
}

Test(hosts_leave, a_rank_that_waits_for_any_goes_on_when_a_remote_hosts_first_has_left) {
    HOSTS_NEED(0);
    leave_first(/* leaver */ 2, /* talks */ 0);
}

Test(hosts_leave, a_connection_that_ends_with_its_process_is_no_failure_for_a_rank_that_waits_for_any) {
    HOSTS_NEED(0);
    for (int leaver = 2; leaver <= 3; leaver++) leave_first(leaver, /* talks */ 1);
}

/* Host 1's first rank has left; the second one, from which all others receive, dies before or after they wait. */
static tutti_status lose_second(ranks_context *context) {
    int first = hosts_first(1), second = first + 1, value = 0;
    bool before = scene_now()->flag != 0;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == first) return TUTTI_OK;
    usleep(1000000); /* heartbeats pass */
    if (context->rank == second) {
        if (!before) usleep(400000);
        atomic_store(&scene_now()->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    if (before) usleep(300000);
    tutti_status status = tutti_recv(context->comm, &value, 1, TUTTI_INT32, second, 5, NULL);
    return scene_check_told(context, status, "rank 3 (host ", before ? 3500 : 2000);
}

Test(hosts_leave, ranks_that_wait_for_a_dead_rank_get_an_error_after_the_hosts_first_has_left) {
    HOSTS_NEED(0);
    for (int before = 0; before < 2; before++) {
        scene_set(0, 1);
        scene_now()->flag = before;
        scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2, 1), .environment = scene_attentive}, lose_second);
    }
}

/* Host 1's first rank destroys the communicator and lives on. A rank without any connection dies: the ranks of the
 * other host that wait for any rank get the error, whichever host the dead rank is on. */
static tutti_status lose_behind_the_first(ranks_context *context) {
    int first = hosts_first(1), victim = scene_now()->victim, value = 0;
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, "left early", NULL, &context->comm));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == first) {
        int64_t start_ns = tutti_now_ns();
        TUTTI_TRY(tutti_comm_destroy(context->comm));
        context->comm = NULL;
        RANKS_CHECK(tutti_now_ns() - start_ns < 1000000000, "the destroy waited");
        while (atomic_load(&scene_now()->flag) == 0) usleep(1000); /* a rank that fails ends all ranks */
        return TUTTI_OK;
    }
    usleep(1200000); /* heartbeats pass */
    if (context->rank == victim) {
        usleep(300000);
        atomic_store(&scene_now()->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    if (hosts_of(context->rank) == hosts_of(victim)) {
        while (atomic_load(&scene_now()->flag) == 0) usleep(1000);
        return TUTTI_OK;
    }
    tutti_status status = tutti_recv(context->comm, &value, 1, TUTTI_INT32, TUTTI_ANY_SOURCE, 5, NULL);
    status = scene_check_told(context, status, victim == 1 ? "rank 1 (host " : "rank 3 (host ", 2500);
    atomic_store(&scene_now()->flag, 1);
    return status;
}

Test(hosts_leave, deaths_are_reported_to_and_from_a_host_whose_first_rank_has_left) {
    HOSTS_NEED(0);
    for (int victim = 1; victim <= 3; victim += 2) {
        scene_set(victim, 1);
        scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 2), .no_comm = true, .environment = scene_attentive},
                  lose_behind_the_first);
    }
}
