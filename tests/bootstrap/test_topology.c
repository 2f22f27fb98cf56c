/*
 * The machine's topology, and which of its cores each rank gets. Machines are described in this file, to hwloc
 * (HWLOC_SYNTHETIC), and as files like those of /sys; all three must give the same topology, and the same rules must
 * hold on each.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/machine/topology.h"
#include "tests/support/programs/shell.h"
#include "tools/tuttirun/launch.h"

TestSuite(topology, .timeout = 60);

/* How many packages there are, nodes in each, caches in each of those, and so on. */
typedef struct machine {
    int packages, nodes, caches, cores, threads;
} machine;

static const machine machines[] = {
    {1, 1, 1, 2, 1}, {1, 1, 1, 8, 2}, {1, 1, 4, 4, 2}, {2, 1, 1, 8, 2},
    {2, 2, 2, 4, 2}, {2, 4, 3, 8, 1}, {2, 1, 8, 8, 2},
};
enum { MACHINES = sizeof machines / sizeof *machines };

static int cores_of(const machine *m) {
    return m->packages * m->nodes * m->caches * m->cores;
}

/* Second threads are numbered behind all first ones, as Linux does it on x86, or beside them, as hwloc does it here. */
static tutti_topology make(const machine *m, bool threads_last) {
    tutti_topology topology = {.cache_level = 3};
    int ncores = cores_of(m);
    topology.cpus = calloc((size_t)(ncores * m->threads), sizeof *topology.cpus);
    for (int core = 0; core < ncores; core++)
        for (int thread = 0; thread < m->threads; thread++)
            topology.cpus[topology.ncpus++] =
                (tutti_topology_cpu){.cpu = threads_last ? core + thread * ncores : core * m->threads + thread,
                                     .core = core,
                                     .cache = core / m->cores,
                                     .node = core / m->cores / m->caches,
                                     .package = core / m->cores / m->caches / m->nodes};
    topology.ncores = ncores;
    topology.ncaches = ncores / m->cores;
    topology.nnodes = m->packages * m->nodes;
    topology.npackages = m->packages;
    return topology;
}

/* The numbers of cores, caches and packages are arbitrary, but must be equal exactly where those of the other
 * topology are. */
static void expect_same(const tutti_topology *got, const tutti_topology *wanted, const char *what) {
    cr_assert_eq(got->ncpus, wanted->ncpus, "%s: %d CPUs, not %d", what, got->ncpus, wanted->ncpus);
    for (int i = 0; i < got->ncpus; i++) {
        const tutti_topology_cpu *a = &got->cpus[i], *b = &wanted->cpus[i];
        cr_assert(a->cpu == b->cpu && a->node == b->node, "%s: at %d CPU %d of node %d, not CPU %d of node %d", what, i,
                  a->cpu, a->node, b->cpu, b->node);
        if (i == 0) continue;
        cr_assert_eq(a->core == a[-1].core, b->core == b[-1].core, "%s: core of CPU %d", what, a->cpu);
        cr_assert_eq(a->cache == a[-1].cache, b->cache == b[-1].cache, "%s: cache of CPU %d", what, a->cpu);
        cr_assert_eq(a->package == a[-1].package, b->package == b[-1].package, "%s: package of CPU %d", what, a->cpu);
    }
    cr_assert_eq(got->cache_level, wanted->cache_level, "%s: L%d", what, got->cache_level);
}

/* -------------------------------------------------------------------------------------------- reading */

static bool have_hwloc(void) {
    tutti_topology topology;
    cr_assert_eq(tutti_topology_read(&topology), TUTTI_OK, "%s", tutti_last_error());
    bool have = topology.no_hwloc[0] == '\0';
    tutti_topology_free(&topology);
    return have;
}

Test(topology, hwlocs_machines_are_read_as_they_are) {
    if (!have_hwloc()) cr_skip_test("no hwloc in this build");
    for (int i = 0; i < MACHINES; i++) {
        const machine *m = &machines[i];
        char text[128];
        tutti_topology wanted = make(m, false), got;
        snprintf(text, sizeof text, "pack:%d numa:%d l3:%d core:%d pu:%d", m->packages, m->nodes, m->caches, m->cores,
                 m->threads);
        setenv("HWLOC_SYNTHETIC", text, 1);
        cr_assert_eq(tutti_topology_read(&got), TUTTI_OK, "%s", tutti_last_error());
        cr_assert(got.foreign, "another machine than this");
        expect_same(&got, &wanted, text);
        cr_assert(got.ncores == wanted.ncores && got.ncaches == wanted.ncaches && got.nnodes == wanted.nnodes &&
                      got.npackages == wanted.npackages,
                  "%s: %d, %d, %d, %d", text, got.npackages, got.nnodes, got.ncaches, got.ncores);
        tutti_topology_free(&got);
        tutti_topology_free(&wanted);
    }
}

Test(topology, nodes_within_a_cache_and_no_cache_are_read) {
    if (!have_hwloc()) cr_skip_test("no hwloc in this build");
    tutti_topology got;
    setenv("HWLOC_SYNTHETIC", "pack:1 l3:1 numa:2 core:4 pu:1", 1);
    cr_assert_eq(tutti_topology_read(&got), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(got.nnodes == 2 && got.ncaches == 1 && got.cache_level == 3, "%d, %d", got.nnodes, got.ncaches);
    tutti_topology_free(&got);
    setenv("HWLOC_SYNTHETIC", "pack:2 core:4 pu:1", 1);
    cr_assert_eq(tutti_topology_read(&got), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(got.nnodes == 1 && got.npackages == 2 && got.ncaches == 1 && got.cache_level == 0);
    tutti_topology_free(&got);
}

/* Writes files like the kernel's, below the working folder. */
static void write_sys(const tutti_topology *t) {
    FILE *script = fopen("make", "w");
    cr_assert_not_null(script);
    for (int i = 0; i < t->ncpus; i++) {
        const tutti_topology_cpu *c = &t->cpus[i];
        int first = i, end = i;
        char threads[256], sharing[1024];
        while (first > 0 && t->cpus[first - 1].core == c->core) first--;
        while (end < t->ncpus && t->cpus[end].core == c->core) end++;
        tutti_topology_list(&t->cpus[first], end - first, threads, sizeof threads);
        for (first = i; first > 0 && t->cpus[first - 1].cache == c->cache;) first--;
        for (end = i; end < t->ncpus && t->cpus[end].cache == c->cache;) end++;
        tutti_topology_list(&t->cpus[first], end - first, sharing, sizeof sharing);
        fprintf(script,
                "d=sys/devices/system/cpu/cpu%d; mkdir -p $d/topology $d/node%d $d/cache/index0 $d/cache/index1\n",
                c->cpu, c->node);
        fprintf(script, "echo %d >$d/topology/physical_package_id; echo %s >$d/topology/thread_siblings_list\n",
                c->package, threads);
        fprintf(script,
                "echo Unified >$d/cache/index1/type; echo 3 >$d/cache/index1/level; echo %s >$d/cache/index1/"
                "shared_cpu_list\n",
                sharing);
        fprintf(script, "echo Instruction >$d/cache/index0/type; echo 4 >$d/cache/index0/level\n");
    }
    fclose(script);
    cr_assert_eq(shell_run("rm -rf sys; sh ./make"), 0, "%s", shell_output);
}

Test(topology, sys_gives_the_same_without_hwloc, .init = shell_enter_folder, .fini = shell_leave_folder) {
    for (int i = 0; i < 5; i++) {
        tutti_topology wanted = make(&machines[i], true), got = {0};
        tutti_topology_mask all;
        tutti_topology_mask_of(wanted.cpus, wanted.ncpus, &all);
        write_sys(&wanted);
        cr_assert_eq(tutti_topology_read_sys(".", &all, &got), TUTTI_OK, "%s", tutti_last_error());
        expect_same(&got, &wanted, "/sys");
        tutti_topology_free(&got);
        tutti_topology_free(&wanted);
    }
}

Test(topology, an_empty_sys_leaves_cores_by_their_numbers) {
    const tutti_topology_cpu some[] = {{.cpu = 1}, {.cpu = 2}, {.cpu = 7}};
    tutti_topology_mask mask;
    tutti_topology got = {0};
    tutti_topology_mask_of(some, 3, &mask);
    cr_assert_eq(tutti_topology_read_sys("/nowhere", &mask, &got), TUTTI_OK);
    cr_assert_eq(got.ncpus, 3);
    for (int i = 0; i < 3; i++)
        cr_assert(got.cpus[i].cpu == some[i].cpu && got.cpus[i].core == some[i].cpu && got.cpus[i].node == 0);
    cr_assert_eq(got.cache_level, 0);
    tutti_topology_free(&got);
}

Test(topology, hwloc_and_sys_agree_on_this_machine_cut_to_the_affinity_mask) {
    tutti_topology got, sys = {0};
    tutti_topology_mask allowed;
    cr_assert_eq(sched_getaffinity(0, sizeof allowed, allowed.sets), 0);
    cr_assert_eq(tutti_topology_read(&got), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(tutti_topology_read_sys("", &allowed, &sys), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(got.ncpus, CPU_COUNT_S(sizeof allowed, allowed.sets));
    expect_same(&sys, &got, "this machine");
    tutti_topology_mask_of(&got.cpus[got.ncpus - 1], 1, &allowed);
    int last = got.cpus[got.ncpus - 1].cpu;
    cr_assert_eq(sched_setaffinity(0, sizeof allowed, allowed.sets), 0);
    tutti_topology_free(&got);
    tutti_topology_free(&sys);
    cr_assert_eq(tutti_topology_read(&got), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(got.ncpus == 1 && got.cpus[0].cpu == last && got.ncores == 1 && got.npackages == 1);
    tutti_topology_free(&got);
}

Test(topology, lists_are_written_as_ranges) {
    const tutti_topology_cpu some[] = {{.cpu = 8}, {.cpu = 0}, {.cpu = 1}, {.cpu = 2}, {.cpu = 5000}};
    char text[64];
    tutti_topology_list(some, 5, text, sizeof text);
    cr_assert_str_eq(text, "0-2,8,5000");
    tutti_topology_list(some, 1, text, sizeof text);
    cr_assert_str_eq(text, "8");
    tutti_topology_list(some, 0, text, sizeof text);
    cr_assert_str_eq(text, "");
}

/* --------------------------------------------------------------------------------------------- shares */

enum { MOST_RANKS = 300 };
static tutti_place_range ranges[MOST_RANKS];

static void place(const tutti_topology *topology, tutti_launch_place where, int nranks) {
    cr_assert_eq(tutti_place_ranks(topology, where, nranks, NULL, ranges), TUTTI_OK, "%s", tutti_last_error());
}

/* Returns the CPUs of each rank, such as "0-3 4-7". */
static const char *placed(const tutti_topology *topology, int nranks) {
    static char text[1024];
    text[0] = '\0';
    for (int rank = 0; rank < nranks; rank++) {
        char list[128];
        tutti_topology_list(&topology->cpus[ranges[rank].first], ranges[rank].count, list, sizeof list);
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s", rank > 0 ? " " : "", list);
    }
    return text;
}

static void expect_placed(const machine *m, tutti_launch_place where, int nranks, const char *wanted) {
    tutti_topology topology = make(m, false);
    place(&topology, where, nranks);
    cr_assert_str_eq(placed(&topology, nranks), wanted, "%d ranks: %s, not %s", nranks, placed(&topology, nranks),
                     wanted);
    tutti_topology_free(&topology);
}

/* Returns whether the range has only a part of a domain of domain_cpus CPUs, and CPUs of another domain. */
static bool tears(tutti_place_range range, int domain_cpus) {
    int end = range.first + range.count;
    bool several = range.first / domain_cpus != (end - 1) / domain_cpus;
    return several && (range.first % domain_cpus != 0 || end % domain_cpus != 0);
}

Test(topology, shares_are_whole_cores_disjoint_complete_in_order_and_fair) {
    for (int i = 0; i < MACHINES; i++) {
        const machine *m = &machines[i];
        tutti_topology topology = make(m, true);
        for (int nranks = 1; nranks <= topology.ncores; nranks++) {
            int next = 0, share = topology.ncores / nranks;
            place(&topology, TUTTI_PLACE_AUTO, nranks);
            for (int rank = 0; rank < nranks; rank++) {
                int cores = ranges[rank].count / m->threads;
                cr_assert_eq(ranges[rank].first, next, "machine %d, rank %d of %d", i, rank, nranks);
                cr_assert_eq(ranges[rank].count % m->threads, 0, "machine %d, rank %d of %d", i, rank, nranks);
                cr_assert(cores >= share && cores <= 2 * share + 1, "machine %d, rank %d of %d has %d cores", i, rank,
                          nranks, cores);
                next += ranges[rank].count;
            }
            cr_assert_eq(next, topology.ncpus, "machine %d, %d ranks", i, nranks);
        }
        tutti_topology_free(&topology);
    }
}

/* Splitting can be avoided when shares of cores / ranks fit into the domains, or consist of whole ones. */
Test(topology, shares_do_not_split_domains_where_that_can_be_avoided) {
    for (int i = 0; i < MACHINES; i++) {
        const machine *m = &machines[i];
        tutti_topology topology = make(m, true);
        int cache_cores = m->cores, node_cores = m->cores * m->caches;
        const int domains[] = {cache_cores, node_cores, node_cores * m->nodes};
        for (int nranks = 1; nranks <= topology.ncores; nranks++) {
            int share = topology.ncores / nranks;
            place(&topology, TUTTI_PLACE_AUTO, nranks);
            for (int d = 0; d < 3; d++) {
                int ndomains = topology.ncores / domains[d];
                bool fit = domains[d] / share * ndomains >= nranks, whole = ndomains % nranks == 0;
                if (!fit && !whole) continue;
                for (int rank = 0; rank < nranks; rank++)
                    cr_assert_not(tears(ranges[rank], domains[d] * m->threads), "machine %d, %d ranks, rank %d: %s", i,
                                  nranks, rank, placed(&topology, nranks));
            }
        }
        tutti_topology_free(&topology);
    }
}

Test(topology, shares_are_as_expected) {
    const machine two_caches = {1, 1, 2, 8, 1}, small = {2, 2, 2, 4, 2};
    expect_placed(&two_caches, TUTTI_PLACE_AUTO, 1, "0-15");
    expect_placed(&two_caches, TUTTI_PLACE_AUTO, 2, "0-7 8-15");
    expect_placed(&two_caches, TUTTI_PLACE_AUTO, 4, "0-3 4-7 8-11 12-15");
    expect_placed(&two_caches, TUTTI_PLACE_AUTO, 6, "0-2 3-5 6-7 8-10 11-13 14-15");
    expect_placed(&two_caches, TUTTI_PLACE_AUTO, 3, "0-5 6-10 11-15");
    expect_placed(&small, TUTTI_PLACE_AUTO, 4, "0-15 16-31 32-47 48-63");
    expect_placed(&small, TUTTI_PLACE_AUTO, 8, "0-7 8-15 16-23 24-31 32-39 40-47 48-55 56-63");
    expect_placed(&machines[0], TUTTI_PLACE_AUTO, 2, "0 1");
    expect_placed(&machines[0], TUTTI_PLACE_AUTO, 3, "  "); /* more ranks than cores: no rank is bound */
    expect_placed(&machines[1], TUTTI_PLACE_AUTO, 9, "        ");
    expect_placed(&two_caches, TUTTI_PLACE_NONE, 2, " ");
}

Test(topology, shares_of_an_uneven_rest_keep_to_their_caches) {
    const machine m = {1, 1, 2, 4, 1};
    tutti_topology topology = make(&m, false);
    topology.cpus[3] = topology.cpus[4]; /* the affinity mask lacks CPUs 3 and 7 */
    topology.cpus[4] = topology.cpus[5];
    topology.cpus[5] = topology.cpus[6];
    topology.ncpus = topology.ncores = 6;
    place(&topology, TUTTI_PLACE_AUTO, 2);
    cr_assert_str_eq(placed(&topology, 2), "0-2 4-6");
    place(&topology, TUTTI_PLACE_AUTO, 4); /* 1 1 2 2 would be as fair, but no rank may have parts of both */
    cr_assert_eq(tears(ranges[0], 3) + tears(ranges[1], 3) + tears(ranges[2], 3) + tears(ranges[3], 3), 0, "%s",
                 placed(&topology, 4));
    tutti_topology_free(&topology);
}

/* ------------------------------------------------------------------------------------------- whole domains */

Test(topology, whole_domains_are_where_the_shares_begin) {
    const machine m = {2, 2, 2, 4, 1};
    expect_placed(&m, TUTTI_PLACE_CORE, 3, "0 1 2");
    expect_placed(&machines[0], TUTTI_PLACE_CORE, 5, "0 1 0 1 0");
    expect_placed(&m, TUTTI_PLACE_CACHE, 4, "0-3 8-11 16-19 24-27");
    expect_placed(&m, TUTTI_PLACE_NODE, 4, "0-7 8-15 16-23 24-31");
    expect_placed(&m, TUTTI_PLACE_NODE, 3, "0-7 8-15 16-23");
    expect_placed(&m, TUTTI_PLACE_PACKAGE, 4, "0-15 0-15 16-31 16-31");
    expect_placed(&m, TUTTI_PLACE_EXCLUSIVE, 8, "0-3 4-7 8-11 12-15 16-19 20-23 24-27 28-31");
    expect_placed(&m, TUTTI_PLACE_COMPLEX, 8, "0-3 4-7 8-11 12-15 16-19 20-23 24-27 28-31");
    expect_placed(&m, TUTTI_PLACE_COMPLEX, 4, "0-3 8-11 16-19 24-27");
    expect_placed(&machines[0], TUTTI_PLACE_CACHE, 64 / 16, "0-1 0-1 0-1 0-1");
}

/* The results of torch.numa.binding for four GPUs, two near each node, and for an uneven number of cores. */
Test(topology, numa_binding_follows_the_gpus) {
    const machine m = {2, 1, 2, 5, 1};
    const int nodes[] = {1, 0, 1, 1};
    tutti_topology topology = make(&m, false);
    static const struct {
        tutti_launch_place place;
        const char *wanted;
    } cases[] = {{TUTTI_PLACE_NODE, "10-19 0-9 10-19 10-19"},
                 {TUTTI_PLACE_PACKAGE, "10-19 0-9 10-19 10-19"},
                 {TUTTI_PLACE_EXCLUSIVE, "10-13 0-9 14-16 17-19"},
                 {TUTTI_PLACE_COMPLEX, "10-14 0-4 15-19 10-14"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(tutti_place_ranks(&topology, cases[i].place, 4, nodes, ranges), TUTTI_OK);
        cr_assert_str_eq(placed(&topology, 4), cases[i].wanted, "%s", placed(&topology, 4));
    }
    for (int i = 9; i < 19; i++) topology.cpus[i] = topology.cpus[i + 1]; /* CPU 9 is not ours: 6-8 are only three */
    topology.ncpus--;
    const int last[] = {0, 0};
    cr_assert_eq(tutti_place_ranks(&topology, TUTTI_PLACE_COMPLEX, 2, last, ranges), TUTTI_OK);
    cr_assert_str_eq(placed(&topology, 2), "0-4 5-8", "%s", placed(&topology, 2));
    const int far[] = {2};
    cr_assert_eq(tutti_place_ranks(&topology, TUTTI_PLACE_NODE, 1, far, ranges), TUTTI_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tutti_last_error(), "near NUMA node 2"), "%s", tutti_last_error());
    tutti_topology_free(&topology);
}

Test(topology, exclusive_cores_must_be_enough) {
    tutti_topology topology = make(&machines[0], false);
    cr_assert_eq(tutti_place_ranks(&topology, TUTTI_PLACE_EXCLUSIVE, 3, NULL, ranges), TUTTI_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tutti_last_error(), "has 2 for 3 ranks"), "%s", tutti_last_error());
    tutti_topology_free(&topology);
}

Test(topology, caches_with_most_cpus_come_first_and_are_cut_to_their_node) {
    const machine m = {1, 1, 3, 2, 1};
    tutti_topology topology = make(&m, false);
    for (int i = 0; i < 5; i++) topology.cpus[i] = topology.cpus[i + 1]; /* CPU 0 is not ours */
    topology.ncpus = 5;
    place(&topology, TUTTI_PLACE_COMPLEX, 4);
    cr_assert_str_eq(placed(&topology, 4), "2-3 4-5 1 2-3", "%s", placed(&topology, 4));
    for (int i = 0; i < 5; i++) {
        topology.cpus[i].cache = 0;
        topology.cpus[i].node = i / 3;
    }
    place(&topology, TUTTI_PLACE_COMPLEX, 2);
    cr_assert_str_eq(placed(&topology, 2), "1-3 1-3", "%s", placed(&topology, 2));
    place(&topology, TUTTI_PLACE_CACHE, 2);
    cr_assert_str_eq(placed(&topology, 2), "1-5 1-5", "%s", placed(&topology, 2));
    tutti_topology_free(&topology);
}

/* ------------------------------------------------------------------------------------------------- GPUs */

Test(topology, gpus_name_their_nodes, .init = shell_enter_folder, .fini = shell_leave_folder) {
    int nodes[4] = {-7, -7, -7, -7};
    cr_assert_not(tutti_launch_gpu_nodes(".", NULL, 1, nodes), "no GPUs have nodes");
    cr_assert_eq(shell_run("for a in 0000:07:00.0,1 0000:0b:00.0,0 0000:48:00.0,-1; do\n"
                           "mkdir -p proc/driver/nvidia/gpus/${a%%,*} sys/bus/pci/devices/${a%%,*}\n"
                           "echo ${a#*,} >sys/bus/pci/devices/${a%%,*}/numa_node; done"),
                 0, "%s", shell_output);
    cr_assert(tutti_launch_gpu_nodes(".", NULL, 3, nodes));
    cr_assert(nodes[0] == 1 && nodes[1] == 0 && nodes[2] == 0);
    cr_assert(tutti_launch_gpu_nodes(".", "2,0", 2, nodes));
    cr_assert(nodes[0] == 0 && nodes[1] == 1);
    cr_assert_not(tutti_launch_gpu_nodes(".", NULL, 4, nodes), "three GPUs, four ranks");
    cr_assert_not(tutti_launch_gpu_nodes(".", "0", 2, nodes), "one GPU, two ranks");
    cr_assert_not(tutti_launch_gpu_nodes(".", "GPU-8a,GPU-8b", 2, nodes), "GPUs without numbers have nodes");
    cr_assert_not(tutti_launch_gpu_nodes(".", "", 1, nodes), "no GPU is visible, yet there are nodes");
}
