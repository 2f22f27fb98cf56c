/*
 * The network costs that hosts measure: the slowest host counts, whichever it is, since all wait for it. Also the
 * number of cores that hosts find.
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <unistd.h>

#include "comm/net/coll/rail.h"
#include "comm/net/hosts.h"
#include "tests/support/hosts/scene.h"

#define SLOW_GBS 0.0125 /* 100 Mbit/s */

/* Rank 0 slows the victim's link down (-1: no link) before the ranks meet. */
static tutti_status measure(ranks_context *context) {
    int victim = scene_now()->victim;
    if (context->rank == 0) {
        if (victim >= 0)
            TUTTI_TRY(netns_shell(hosts_network(), victim,
                                  "tc qdisc add dev eth0 root tbf rate 100mbit burst 32k "
                                  "latency 50ms"));
        atomic_store(&scene_now()->flag, 1);
    }
    while (atomic_load(&scene_now()->flag) == 0) usleep(1000);
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, "measured", NULL, &context->comm));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    double found_gbs = context->comm->net.hosts->table->cost.bandwidth_gbs;
    RANKS_CHECK(victim < 0 ? found_gbs > 2 * SLOW_GBS : found_gbs < 1.2 * SLOW_GBS, "%.4f GB/s were found", found_gbs);
    return TUTTI_OK;
}

static void measure_with(int victim, const int *ranks_per_host) {
    scene_set(victim, 1);
    scene_run(&(hosts_options){.ranks_per_host = ranks_per_host, .no_comm = true}, measure);
}

Test(hosts_cost, the_slowest_link_counts) {
    HOSTS_NEED(0);
    measure_with(-1, LAYOUT(1, 1, 1));
    measure_with(1, LAYOUT(1, 2));
    measure_with(2, LAYOUT(1, 1, 1)); /* its only partner is host 0, later */
    measure_with(3, LAYOUT(1, 1, 1, 2));
}

/* ------------------------------------------------------------------------------------------------ cores */

/* Binds the process to the first two of its cores. */
static int pin_to_two(void) {
    cpu_set_t allowed, two;
    int count = 0;
    CPU_ZERO(&two);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int core = 0; core < CPU_SETSIZE && count < 2; core++) {
        if (!CPU_ISSET(core, &allowed)) continue;
        CPU_SET(core, &two);
        count++;
    }
    sched_setaffinity(0, sizeof two, &two);
    return count;
}

static tutti_status share_cores(ranks_context *context) {
    int ncores = pin_to_two();
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, "crowded", NULL, &context->comm));
    RANKS_CHECK(context->comm->spins == (ncores >= context->nranks), "%d ranks on %d cores: %d are counted on %d, %s",
                context->nranks, ncores, context->comm->host_ranks, context->comm->host_cores,
                context->comm->spins ? "waiting ranks spin" : "waiting ranks yield");
    return tutti_barrier(context->comm, NULL);
}

Test(hosts_cost, hosts_that_are_one_machine_share_its_cores) {
    HOSTS_NEED(0);
    scene_set(-1, 1);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1), .no_comm = true}, share_cores);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(1, 1, 1), .no_comm = true}, share_cores);
    scene_run(&(hosts_options){.ranks_per_host = LAYOUT(2, 1, 1), .no_comm = true}, share_cores);
}
