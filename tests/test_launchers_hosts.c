/*
 * Jobs on two hosts (network namespaces, netns.h), started by the launchers for several hosts: tuttirun on each, Open
 * MPI's mpirun and MPICH's mpiexec from one. The tests pass no address: what MPI's launchers know must be enough.
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

/* Skips the test unless the shell's condition holds; nothing is left behind. */
static void need(const char *condition, const char *what) {
    if (shell_run("%s", condition) == 0) return;
    leave();
    cr_skip_test("%s", what);
}

#define NEED_PROGRAM(program) need("command -v " program, "no " program)
#define NEED_MODULE(name)     need("test -e $TUTTI_BUILD/lib/libtutti_" name ".so", "no module " name " in this build")

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

/* The command on both hosts at once; in it, $H is the host's number. */
static void run_on_both(const char *command) {
    char one[1024], other[1024];
    snprintf(one, sizeof one, "env H=0 %s", command);
    snprintf(other, sizeof other, "H=1 timeout 60 %s >out1 2>&1 & true", command);
    cr_assert_eq(netns_shell(net, 1, "%s", other), TUTTI_OK, "%s", tutti_last_error());
    tutti_status status = run_on(0, one);
    for (int i = 0; i < 50 && shell_run("[ $(grep -c summed out1) = 2 ]") != 0; i++) usleep(100000);
    shell_run("cat out0 out1");
    cr_assert_eq(status, TUTTI_OK, "%s", shell_output);
    expect_sum();
}

LAUNCHERS_TEST(tuttirun_with_the_same_command_on_both) {
    run_on_both("$TUTTI_BUILD/bin/tuttirun --nodes 10.77.0.1,10.77.0.2 --ctrl_port 9988 --device_num 2 $P reduce");
}

LAUNCHERS_TEST(torchrun_on_both) {
    need("test -n \"$TUTTI_TEST_PYTHON\"", "no PyTorch (TUTTI_TEST_PYTHON)");
    run_on_both(
        "sh -c 'OMP_NUM_THREADS=1 exec $TUTTI_TEST_PYTHON -m torch.distributed.run --nnodes 2 --nproc-per-node 2 "
        "--node-rank $H --master-addr 10.77.0.1 --master-port 29500 --no-python $P reduce'");
}

/* Without RANK_ID: each finds its server by its address. */
LAUNCHERS_TEST(a_rank_table_that_names_both) {
    NEED_MODULE("json");
    cr_assert_eq(
        shell_run("for h in 1 2; do echo '{\"server_id\": \"10.77.0.'$h'\", \"device\": [' >server$h\n"
                  "for d in 0 1; do echo '{\"device_id\": \"'$d'\", \"device_ip\": \"192.1.'$d'.'$h'\", "
                  "\"rank_id\": \"'$((2 * h - 2 + d))'\"},'; done >>server$h; echo ']},' >>server$h; done\n"
                  "{ echo '{\"version\": \"1.0\", \"status\": \"completed\", \"server_list\": ['; cat server1 server2; "
                  "echo ']}'; } >table.json"),
        0);
    run_on_both("sh -c 'export RANK_TABLE_FILE=table.json; DEVICE_ID=1 $P reduce & DEVICE_ID=0 $P reduce; wait $!'");
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
    NEED_PROGRAM("mpirun.openmpi");
    NEED_MODULE("pmix");
    write_agent();
    tutti_status status =
        run_on(0, "mpirun.openmpi --allow-run-as-root --oversubscribe --mca plm_rsh_agent $HOME/agent "
                  "--mca plm_rsh_no_tree_spawn 1 --host 10.77.0.1:2,10.77.0.2:2 -n 4 $P reduce");
    shell_run("cat out0");
    cr_assert_eq(status, TUTTI_OK, "%s", shell_output);
    expect_sum();
}

/* Then rank 0's store listens there, and at no other address. */
LAUNCHERS_TEST(mpiexec_where_one_interface_is_allowed) {
    NEED_PROGRAM("mpiexec.mpich");
    write_agent();
    tutti_status status =
        run_on(0, "env TUTTI_SOCKET_IFNAME==eth0 mpiexec.mpich -launcher ssh -launcher-exec $HOME/agent "
                  "-hosts 10.77.0.1,10.77.0.2 -ppn 2 -n 4 $P reduce");
    shell_run("cat out0");
    cr_assert_eq(status, TUTTI_OK, "%s", shell_output);
    expect_sum();
}

LAUNCHERS_TEST(mpichs_mpiexec_from_one_of_them) {
    NEED_PROGRAM("mpiexec.mpich");
    write_agent();
    tutti_status status = run_on(0, "mpiexec.mpich -launcher ssh -launcher-exec $HOME/agent -hosts 10.77.0.1,10.77.0.2 "
                                    "-ppn 2 -n 4 $P reduce");
    shell_run("cat out0");
    cr_assert_eq(status, TUTTI_OK, "%s", shell_output);
    expect_sum();
}
