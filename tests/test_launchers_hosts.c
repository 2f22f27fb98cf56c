/*
 * Jobs on two hosts (network namespaces, netns.h), started by those who start jobs on several hosts: tuttirun on each, Open
 * MPI's mpirun and MPICH's mpiexec from one. Nobody is told an address: what MPI's launchers know must be enough.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/hosts.h"
#include "tests/support/shell.h"

TestSuite(launchers_hosts, .timeout = 120);
#define LAUNCHERS_TEST(name) Test(launchers_hosts, name, .init = enter, .fini = leave)

static netns *net;

static void enter(void) {
    static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};
    char probe[512];
    HOSTS_NEED(.decoys = true);
    shell_enter_folder();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    snprintf(probe, sizeof probe, "%s/tests/world_probe", getenv("TUTTI_BUILD"));
    setenv("P", probe, 1);
    cr_assert_eq(netns_create(&(netns_options){.nhosts = 2, .decoys = true}, &net), TUTTI_OK, "%s", tutti_last_error());
}

static void leave(void) {
    shell_run("kill $(cat holder0 holder1 2>/dev/null) 2>/dev/null");
    netns_destroy(net);
    net = NULL;
    shell_leave_folder();
}

static void need(const char *program) {
    if (shell_run("command -v %s", program) != 0) cr_skip_test("%s is not installed", program);
}

/* Runs the command on the host; what it prints is in the file out<host>. */
static tutti_status run_on(int host, const char *command) {
    return netns_shell(net, host, "timeout 60 %s >out%d 2>&1", command, host);
}

/* The ranks of both hosts have summed. */
static void expect_sum(void) {
    shell_run("cat out0 out1 2>/dev/null");
    for (int i = 0; i < 4; i++) {
        char line[128];
        snprintf(line, sizeof line, "rank %d of 4, local %d of 2, node %d of 2: summed\n", i, i % 2, i / 2);
        HAS(line);
    }
}

LAUNCHERS_TEST(tuttirun_with_the_same_command_on_both) {
    static const char command[] =
        "$TUTTI_BUILD/bin/tuttirun --nodes 10.77.0.1,10.77.0.2 --ctrl_port 9988 --device_num 2 "
        "$P reduce";
    char background[512];
    snprintf(background, sizeof background, "%s >out1 2>&1 & true", command);
    cr_assert_eq(netns_shell(net, 1, "timeout 60 %s", background), TUTTI_OK, "%s", tutti_last_error());
    tutti_status status = run_on(0, command);
    shell_run("cat out0 out1");
    cr_assert_eq(status, TUTTI_OK, "%s", shell_output);
    expect_sum();
}

/* An agent that does what ssh would do: "agent [options] HOST COMMAND". Each host has a name of its own there, as MPI's
 * launchers expect. */
static void write_agent(void) {
    for (int host = 0; host < 2; host++)
        cr_assert_eq(netns_shell(net, host, "sleep 100 >/dev/null 2>&1 & echo $! >holder%d", host), TUTTI_OK);
    cr_assert_eq(shell_run("cat >agent <<'EOF'\n"
                           "#!/bin/sh\n"
                           "while [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
                           "host=$((${1##*.} - 1)); shift\n"
                           "exec nsenter --net=/proc/$(cat $HOME/holder$host)/ns/net unshare --uts sh -c "
                           "'hostname node'$host'; eval \"$*\"' sh \"$@\"\n"
                           "EOF\n"
                           "chmod +x agent"),
                 0);
    char here[512];
    cr_assert_not_null(getcwd(here, sizeof here));
    setenv("HOME", here, 1);
}

LAUNCHERS_TEST(open_mpis_mpirun_from_one_of_them) {
    need("mpirun.openmpi");
    write_agent();
    tutti_status status =
        run_on(0, "mpirun.openmpi --allow-run-as-root --oversubscribe --mca plm_rsh_agent $HOME/agent "
                  "--mca plm_rsh_no_tree_spawn 1 --host 10.77.0.1:2,10.77.0.2:2 -n 4 $P reduce");
    shell_run("cat out0");
    cr_assert_eq(status, TUTTI_OK, "%s", shell_output);
    expect_sum();
}

LAUNCHERS_TEST(mpichs_mpiexec_from_one_of_them) {
    need("mpiexec.mpich");
    write_agent();
    tutti_status status = run_on(0, "mpiexec.mpich -launcher ssh -launcher-exec $HOME/agent -hosts 10.77.0.1,10.77.0.2 "
                                    "-ppn 2 -n 4 $P reduce");
    shell_run("cat out0");
    cr_assert_eq(status, TUTTI_OK, "%s", shell_output);
    expect_sum();
}
