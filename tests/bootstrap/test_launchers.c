/*
 * Ranks that launchers start: Open MPI's mpirun and MPICH's mpiexec as they are installed here, rank tables, and
 * MPI's variables without any MPI. Each test starts world_probe, in which the ranks meet and create a communicator.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/programs/shell.h"

TestSuite(launchers, .timeout = 120);
#define LAUNCHERS_TEST(name) Test(launchers, name, .init = enter, .fini = shell_leave_folder)

/* Programs by the names that Debian gives them. $P is the probe. */
#define OPEN_MPI "mpirun.openmpi --oversubscribe --allow-run-as-root -n 4 "
#define MPICH    "mpiexec.mpich -n 4 "

static void enter(void) {
    static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};
    char probe[512];
    shell_enter_folder();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    snprintf(probe, sizeof probe, "%s/tests/world_probe", getenv("TUTTI_BUILD"));
    setenv("P", probe, 1);
}

/* Skips the test unless the shell's condition holds; removes the test's folder first. */
static void need(const char *condition, const char *what) {
    if (shell_run("%s", condition) == 0) return;
    shell_leave_folder();
    cr_skip_test("%s", what);
}

#define NEED_PROGRAM(program) need("command -v " program, "no " program)
#define NEED_MODULE(name)     need("test -e $TUTTI_BUILD/lib/libtutti_" name ".so", "no module " name " in this build")

/* Checks that all four ranks have printed their line, each with the same end. */
static void expect_ranks(const char *what) {
    for (int i = 0; i < 4; i++) {
        char line[128];
        snprintf(line, sizeof line, "rank %d of 4, local %d of 4, node 0 of 1: %s\n", i, i, what);
        HAS(line);
    }
    cr_assert_eq(shell_count("\n"), 4, "expected nothing else:\n%s", shell_output);
}

LAUNCHERS_TEST(open_mpis_mpirun_needs_no_address) {
    NEED_PROGRAM("mpirun.openmpi");
    cr_assert_eq(shell_run("timeout 60 " OPEN_MPI "$P"), 0, "%s", shell_output);
    expect_ranks("met");
    cr_assert_eq(shell_run("timeout 60 " OPEN_MPI "$P reduce"), 0, "%s", shell_output);
    expect_ranks("summed");
}

/* Without PMIX_RANK, as with an Open MPI that has another PMIx, or without the module. */
LAUNCHERS_TEST(on_one_host_open_mpis_variables_are_enough) {
    NEED_PROGRAM("mpirun.openmpi");
    cr_assert_eq(shell_run("timeout 60 " OPEN_MPI "env -u PMIX_RANK $P"), 0, "%s", shell_output);
    expect_ranks("met");
}

/* Without Open MPI's variables: only PMIx gives the ranks, as under PRRTE. */
LAUNCHERS_TEST(pmix_alone_is_enough) {
    NEED_PROGRAM("mpirun.openmpi");
    NEED_MODULE("pmix");
    cr_assert_eq(shell_run("timeout 60 " OPEN_MPI "env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE $P"), 0, "%s",
                 shell_output);
    expect_ranks("met");
}

/* Two ranks run the shell line, in which $PPID is mpirun and their server; each writes its output and exit code to a
 * file. */
static void meet_at_pmix(const char *line) {
    NEED_PROGRAM("mpirun.openmpi");
    NEED_MODULE("pmix");
    setenv("TUTTI_CONNECT_TIMEOUT_MS", "3000", 1);
    shell_run("mpirun.openmpi --oversubscribe --allow-run-as-root -n 2 sh -c '%s; "
              "$P >said-$PMIX_RANK 2>&1; echo exit code $? after $(ps -o etimes= -p $$) s >>said-$PMIX_RANK; "
              "mv said-$PMIX_RANK ended-$PMIX_RANK' >/dev/null 2>&1 & job=$!\n"
              "for i in $(seq 300); do [ -e ended-0 ] && [ -e ended-1 ] && break; sleep 0.1; done\n"
              "kill -9 $job; cat ended-0 ended-1",
              line);
    HAS_NOT("met");
    for (const char *at = shell_output; (at = strstr(at, "exit code 1 after ")) != NULL;)
        cr_assert_leq(atoi(at += strlen("exit code 1 after ")), 10, "%s", shell_output);
}

LAUNCHERS_TEST(the_wait_for_a_rank_that_comes_late_to_pmix_ends) {
    meet_at_pmix("if [ $PMIX_RANK = 1 ]; then sleep 6; fi");
    HAS("the start has waited 2 s for the launcher's PMIx server, at which all ranks of the job meet; waits until "
        "TUTTI_CONNECT_TIMEOUT_MS");
    HAS("PMIx: ");
    HAS("exit code 1 after ");
}

LAUNCHERS_TEST(the_wait_for_a_pmix_server_that_stands_still_ends) {
    /* mpirun must have started both ranks before it stops. */
    meet_at_pmix(
        "touch here-$PMIX_RANK; until [ -e here-0 ] && [ -e here-1 ]; do sleep 0.1; done; kill -STOP $PPID; sleep 0.3");
    cr_assert_eq(shell_count("PMIx: no answer from the launcher's server on this host within 5000 ms "
                             "(TUTTI_CONNECT_TIMEOUT_MS)"),
                 2, "%s", shell_output);
    cr_assert_eq(shell_count("exit code 1 after "), 2, "%s", shell_output);
}

LAUNCHERS_TEST(mpichs_mpiexec_needs_no_address) {
    NEED_PROGRAM("mpiexec.mpich");
    cr_assert_eq(shell_run("timeout 60 " MPICH "$P"), 0, "%s", shell_output);
    expect_ranks("met");
    cr_assert_eq(shell_run("timeout 60 " MPICH "$P reduce"), 0, "%s", shell_output);
    expect_ranks("summed");
}

LAUNCHERS_TEST(a_rank_that_fails_under_mpiexec_is_a_failure) {
    NEED_PROGRAM("mpiexec.mpich");
    cr_assert_neq(
        shell_run("timeout 60 " MPICH "sh -c '[ $PMI_RANK != 2 ] || exit 7; TUTTI_CONNECT_TIMEOUT_MS=3000 $P'"), 0,
        "%s", shell_output);
}

LAUNCHERS_TEST(master_addr_takes_precedence_over_the_launchers_server) {
    NEED_PROGRAM("mpiexec.mpich");
    cr_assert_eq(shell_run("MASTER_ADDR=127.0.0.1 MASTER_PORT=1 TUTTI_CONNECT_TIMEOUT_MS=1500 timeout 60 " MPICH
                           "sh -c '[ $PMI_RANK = 0 ] || exec $P; sleep 3'"),
                 1, "%s", shell_output);
    HAS("no store at 127.0.0.1:1 within");
}

/* A user who sets MPI's variables without a launcher must say where the ranks meet. */
LAUNCHERS_TEST(variables_alone_suffice_with_an_address) {
    cr_assert_eq(
        shell_run("export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ %% 10000)) PMI_SIZE=4\n"
                  "for r in 1 2 3 0; do PMI_RANK=$r MPI_LOCALRANKID=$r MPI_LOCALNRANKS=4 timeout 60 $P & done; wait"),
        0, "%s", shell_output);
    expect_ranks("met");
}

LAUNCHERS_TEST(several_hosts_without_an_address_are_one_clear_error) {
    cr_assert_eq(shell_run("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 timeout 60 $P"), 1);
    HAS("a world of 2 needs MASTER_ADDR and MASTER_PORT");
    cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
}

LAUNCHERS_TEST(a_rank_table_needs_no_address) {
    NEED_MODULE("json");
    cr_assert_eq(
        shell_run("d= ; for r in 0 1 2 3; do d=$d'{\"device_id\": \"'$r'\", \"rank_id\": \"'$r'\"},'; done\n"
                  "echo '{\"version\": \"1.0\", \"server_list\": [{\"server_id\": \"here-'$$'\", \"device\": ['$d']}], "
                  "\"status\": \"completed\"}' >table.json\n"
                  "export RANK_TABLE_FILE=table.json\n"
                  "for r in 1 2 3 0; do RANK_ID=$r DEVICE_ID=$r timeout 60 $P reduce & done; wait"),
        0, "%s", shell_output);
    expect_ranks("summed");
}
