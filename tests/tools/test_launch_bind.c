/*
 * Which cores ranks get from tuttirun, as the ranks report them; and the case of a missing hwloc module.
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "bootstrap/machine/topology.h"
#include "tests/support/programs/shell.h"

TestSuite(launch_bind, .timeout = 90);
#define BIND_TEST(name) Test(launch_bind, name, .init = enter, .fini = shell_leave_folder)

static tutti_topology here;

static void enter(void) {
    shell_enter_folder();
    cr_assert_eq(tutti_topology_read(&here), TUTTI_OK, "%s", tutti_last_error());
}

/* CPUs of cores [first..first + count), as a list. */
static const char *cores(int first, int count) {
    static char text[4096];
    int core = 0, begin = -1, end = 0;
    for (int i = 0; i < here.ncpus; i++) {
        core += i > 0 && here.cpus[i].core != here.cpus[i - 1].core;
        if (core >= first && begin < 0) begin = i;
        if (core < first + count) end = i + 1;
    }
    tutti_topology_list(&here.cpus[begin], end - begin, text, sizeof text);
    return text;
}

/* Each rank prints "rank <n>: <list>". */
static void run_ranks(const char *before, const char *options, int nranks) {
    cr_assert_eq(shell_run("%s $T --standalone --nproc-per-node %d %s sh -c 'echo \"rank $RANK: $(grep "
                           "Cpus_allowed_list /proc/self/status | cut -f 2),\"'",
                           before, nranks, options),
                 0, "%s", shell_output);
}

static void expect_rank(int rank, const char *list) {
    char line[4200];
    snprintf(line, sizeof line, "rank %d: %s,\n", rank, list);
    HAS(line);
}

BIND_TEST(ranks_share_the_cores_and_one_alone_has_all) {
    run_ranks("", "", 1);
    expect_rank(0, cores(0, here.ncores));
    run_ranks("", "", here.ncores);
    for (int rank = 0; rank < here.ncores; rank++) expect_rank(rank, cores(rank, 1));
    run_ranks("", "--bind=auto", here.ncores);
    for (int rank = 0; rank < here.ncores; rank++) expect_rank(rank, cores(rank, 1));
}

BIND_TEST(more_ranks_than_cores_are_not_bound) {
    run_ranks("TUTTI_LOG=info", "", here.ncores + 1);
    for (int rank = 0; rank <= here.ncores; rank++) expect_rank(rank, cores(0, here.ncores));
    HAS("ranks are not bound to cores:");
}

BIND_TEST(none_core_and_whole_domains) {
    run_ranks("", "--bind none", here.ncores);
    expect_rank(0, cores(0, here.ncores));
    run_ranks("PET_BIND=none", "", here.ncores);
    expect_rank(0, cores(0, here.ncores));
    run_ranks("", "--bind=core", here.ncores + 1);
    for (int rank = 0; rank <= here.ncores; rank++) expect_rank(rank, cores(rank % here.ncores, 1));
    static const char *const whole[] = {"--bind l3",           "--bind numa",           "--bind socket",
                                        "--numa-binding node", "--numa_binding=socket", "--numa-binding core-complex"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole && here.ncaches == 1 && here.nnodes == 1; i++) {
        run_ranks("", whole[i], here.ncores + 1);
        for (int rank = 0; rank <= here.ncores; rank++) expect_rank(rank, cores(0, here.ncores));
    }
    run_ranks("", "--numa-binding exclusive", here.ncores);
    for (int rank = 0; rank < here.ncores && here.nnodes == 1; rank++) expect_rank(rank, cores(rank, 1));
}

BIND_TEST(only_cores_that_tuttirun_may_use_are_given) {
    char before[64], last[32];
    snprintf(last, sizeof last, "%d", here.cpus[here.ncpus - 1].cpu);
    snprintf(before, sizeof before, "taskset -c %s env TUTTI_LOG=info", last);
    run_ranks(before, "", 2);
    expect_rank(0, last);
    expect_rank(1, last);
    HAS("2 ranks, 1 cores");
    run_ranks(before, "--bind socket", 2);
    expect_rank(1, last);
}

BIND_TEST(the_log_has_the_cores_of_each_rank) {
    run_ranks("TUTTI_LOG=info", "--bind core", here.ncores);
    for (int rank = 0; rank < here.ncores; rank++) {
        char line[4200];
        snprintf(line, sizeof line, "tutti info rank %d runs on CPUs %s (", rank, cores(rank, 1));
        HAS(line);
    }
    run_ranks("", "--bind core", here.ncores);
    HAS_NOT("runs on CPUs");
}

/* hwloc can be given another topology than this machine's. */
BIND_TEST(ranks_follow_the_topology) {
    if (here.no_hwloc[0] != '\0') cr_skip_test("no hwloc in this build");
    if (here.ncpus < 2 || here.cpus[0].cpu != 0 || here.cpus[1].cpu != 1) cr_skip_test("needs CPUs 0 and 1");
    static const char two_packages[] = "HWLOC_THISSYSTEM=1 HWLOC_SYNTHETIC='pack:2 core:1 pu:1'";
    static const char one_core[] = "HWLOC_THISSYSTEM=1 HWLOC_SYNTHETIC='core:1 pu:2'";
    run_ranks(two_packages, "--bind socket", 4);
    expect_rank(0, "0");
    expect_rank(1, "0");
    expect_rank(2, "1");
    expect_rank(3, "1");
    run_ranks(one_core, "--bind core", 2);
    expect_rank(0, "0-1");
    expect_rank(1, "0-1");
}

BIND_TEST(another_machines_topology_binds_no_ranks) {
    if (here.no_hwloc[0] != '\0') cr_skip_test("no hwloc in this build");
    static const char other[] = "HWLOC_SYNTHETIC='pack:2 core:8 pu:1'";
    run_ranks(other, "", 2);
    expect_rank(1, cores(0, here.ncores));
    cr_assert_eq(shell_run("%s $T --standalone --bind core true", other), 2);
    HAS("hwloc is configured for another machine");
    cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
}

BIND_TEST(wrong_values_are_one_line_with_the_choices) {
    static const char *const wrong[][2] = {
        {"--bind cores", "--bind cores: must be auto, none, core, l3, numa or socket"},
        {"--numa-binding=l3", "--numa-binding l3: must be node, socket, exclusive or core-complex"},
        {"--bind core --numa-binding node", "--bind and --numa-binding exclude each other"},
        {"--nproc-per-node 4000 --numa-binding exclusive", "for 4000 ranks; --numa-binding node lets them share"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(shell_run("$T --standalone %s true", wrong[i][0]), 2, "%s: %s", wrong[i][0], shell_output);
        HAS(wrong[i][1]);
        cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
    }
}

/* -------------------------------------------------------------------------------------------- the module */

BIND_TEST(info_prints_the_topology_or_what_is_missing) {
    char counts[64];
    snprintf(counts, sizeof counts, "%d core%s, %d thread", here.ncores, here.ncores == 1 ? "" : "s", here.ncpus);
    cr_assert_eq(shell_run("$TUTTI_BUILD/bin/tutti-info"), 0);
    HAS(counts);
    HAS(here.no_hwloc[0] == '\0' ? "yes: hwloc" : "no: the module hwloc is not part of this build");
}

/* A copy of the programs alone has no module beside it. */
BIND_TEST(without_the_module_sysfs_is_used_and_the_reason_printed) {
    if (here.no_hwloc[0] != '\0') cr_skip_test("no hwloc in this build");
    char counts[64];
    cr_assert_eq(
        shell_run("mkdir bin lib; cp $TUTTI_BUILD/bin/tutti-info $TUTTI_BUILD/bin/tuttirun bin; bin/tutti-info"), 0);
    HAS("no: there is no libtutti_hwloc.so in ");
    HAS("(by /sys)");
    snprintf(counts, sizeof counts, "%d core%s, %d thread", here.ncores, here.ncores == 1 ? "" : "s", here.ncpus);
    HAS(counts);
    cr_assert_eq(shell_run("TUTTI_LOG=info bin/tuttirun --standalone --bind core true"), 0, "%s", shell_output);
    HAS("by /sys)");
    cr_assert_eq(shell_run("echo nonsense >lib/libtutti_hwloc.so; bin/tutti-info"), 0);
    HAS("no: cannot load ");
    cr_assert_eq(shell_run("cp $TUTTI_BUILD/lib/libtutti.so.0 lib/libtutti_hwloc.so; bin/tutti-info"), 0);
    HAS("is not a module of Tutti");
    cr_assert_eq(shell_run("cp $TUTTI_BUILD/lib/libtutti_hwloc.so lib; cd /; $OLDPWD/bin/tutti-info"), 0);
    HAS("yes: hwloc");
}

/* A program that is found by name through PATH still finds its library's folder. */
BIND_TEST(the_module_is_found_wherever_the_program_is_called_from) {
    if (here.no_hwloc[0] != '\0') cr_skip_test("no hwloc in this build");
    cr_assert_eq(shell_run("PATH=$TUTTI_BUILD/bin:$PATH tutti-info"), 0);
    HAS("yes: hwloc");
    cr_assert_eq(shell_run("ln -s $TUTTI_BUILD/bin/tutti-info elsewhere; ./elsewhere"), 0);
    HAS("yes: hwloc");
}
