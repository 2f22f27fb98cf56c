/*
 * Jobs on two hosts (network namespaces, netns.h), started by the launchers for several hosts: tuttirun on each, Open
 * MPI's mpirun and MPICH's mpiexec from one. The tests pass no address: what MPI's launchers know must be enough.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/hosts/hosts.h"
#include "tests/support/programs/shell.h"

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

/* It sets five variables, the hosts not among them: the ranks find these when they meet. */
LAUNCHERS_TEST(oneflows_launcher_on_both) {
    run_on_both("sh -c 'export WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500; LOCAL_RANK=1 RANK=$((2 * H + 1)) "
                "$P reduce & LOCAL_RANK=0 RANK=$((2 * H)) $P reduce; wait $!'");
    HAS_NOT("assuming");
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

/* Each host has a second interface, data0 at 10.78.0.<host + 1>, to which the devices' addresses or names belong. */
static void add_interfaces(void) {
    for (int host = 0; host < 2; host++)
        cr_assert_eq(
            netns_shell(net, host,
                        "ip link add data0 link eth0 type macvlan mode bridge && ip addr add 10.78.0.%d/24 dev "
                        "data0 && ip link set data0 up",
                        host + 1),
            TUTTI_OK, "%s", tutti_last_error());
}

static void write_table(const char *members, const char *networks) {
    cr_assert_eq(
        shell_run(
            "for h in 1 2; do for d in 0 1; do echo '{\"devices\": [{\"device_id\": \"'$d'\", \"device_ip\": "
            "\"%s.'$((h + 2 * d))'\"}], \"rank_id\": \"'$((2 * h - 2 + d))'\", \"server_id\": \"10.77.0.'$h'\"},'; "
            "done; done >instances\n"
            "{ echo '{\"deploy_mode\": \"lab\", %s \"group_count\": \"1\", \"group_list\": [{\"device_num\": \"4\", "
            "\"group_name\": \"\", \"instance_count\": \"4\", \"instance_list\": ['; cat instances; echo ']}], "
            "\"status\": \"completed\"}'; } >table.json",
            networks, members),
        0, "%s", shell_output);
}

#define WITH_TABLE                                                                                                     \
    "sh -c 'export TUTTI_LOG=info RANK_TABLE_FILE=table.json; DEVICE_ID=1 $P reduce & DEVICE_ID=0 $P reduce; wait $!'"

LAUNCHERS_TEST(a_rank_tables_device_ip_chooses_the_interface) {
    NEED_MODULE("json");
    add_interfaces();
    for (int host = 0; host < 2; host++) /* of the second devices, on the same interface */
        cr_assert_eq(netns_shell(net, host, "ip addr add 10.78.0.%d/24 dev data0", host + 3), TUTTI_OK);
    write_table("", "10.78.0");
    run_on_both(WITH_TABLE);
    HAS("rank table: device_ip chooses data0 between hosts");
    HAS("is reached at 10.78.0.1 on data0");
    HAS_NOT(" on eth0");
    run_on_both("env TUTTI_LOG=info $TUTTI_BUILD/bin/tuttirun --rank-table table.json $P reduce");
    HAS("rank table: device_ip chooses data0 between hosts");
    HAS("is reached at 10.78.0.1 on data0");
    HAS_NOT(" on eth0");
    setenv("TUTTI_SOCKET_IFNAME", "=eth0", 1);
    run_on_both(WITH_TABLE);
    unsetenv("TUTTI_SOCKET_IFNAME");
    HAS("is reached at 10.77.0.1 on eth0");
    HAS_NOT(" on data0");
}

LAUNCHERS_TEST(a_rank_tables_names_of_nics_choose_the_interface) {
    NEED_MODULE("json");
    add_interfaces();
    write_table("\"para_plane_nic_location\": \"device\", \"para_plane_nic_num\": \"2\", \"para_plane_nic_name\": "
                "[\"data0\", \"data1\"],",
                "192.1.1");
    run_on_both(WITH_TABLE);
    HAS("rank table: para_plane_nic_name chooses data0 between hosts");
    HAS("is reached at 10.78.0.1 on data0");
    HAS_NOT(" on eth0");
    write_table("", "192.1.1");
    run_on_both(WITH_TABLE);
    HAS("device_ip 192.1.1.1 of rank 0 is not an address of this host, which uses all its networks");
    HAS(" on data0");
    HAS("10.77.0.1 on eth0");
}

/* A container on each host, as Docker makes them: at 172.17.0.2 on both, with the store's port and `ports` mapped by
 * the host, which passes the others' packets on to it. Commands go there by nsenter --net=$C<host>. */
static void make_containers(const char *ports) {
    for (int host = 0; host < 2; host++) {
        cr_assert_eq(
            netns_shell(
                net, host,
                "unshare --net sleep 100 >/dev/null 2>&1 & echo $! >holder%d; sleep 0.2; "
                "C=/proc/$(cat holder%d)/ns/net; "
                "until [ $(readlink $C) != $(readlink /proc/self/ns/net) ]; do sleep 0.1; done; "
                "ip link add c0 type veth peer name eth0 netns $(cat holder%d) && ip addr add 172.17.0.1/24 dev c0 "
                "&& ip link set c0 up && nsenter --net=$C sh -c 'ip link set lo up; ip addr add 172.17.0.2/24 dev "
                "eth0 && ip link set eth0 up && ip route add default via 172.17.0.1' && "
                "nsenter --net=/proc/self/ns/net sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' && "
                "nft 'table ip nat { chain in { type nat hook prerouting priority -100; ip daddr 10.77.0.%d tcp "
                "dport { 9988, %s } dnat to 172.17.0.2; }; chain out { type nat hook postrouting priority 100; "
                "ip saddr 172.17.0.0/24 masquerade; }; }'",
                host, host, host, host + 1, ports),
            TUTTI_OK, "%s", tutti_last_error());
    }
}

#define IN_CONTAINER                                                                                                   \
    "sh -c 'export TUTTI_ADVERTISE=10.77.0.$((H + 1)) TUTTI_PORTS=20000-20001; exec nsenter --net=/proc/$(cat "        \
    "holder$H)/ns/net "

/* OneFlow's FAQ: containers with -p instead of --net=host. */
LAUNCHERS_TEST(containers_whose_ports_are_mapped) {
    need("command -v nft", "no nft");
    make_containers("20000-20001");
    run_on_both(IN_CONTAINER
                "$TUTTI_BUILD/bin/tuttirun --nodes 10.77.0.1,10.77.0.2 --ctrl_port 9988 --device_num 2 $P reduce'");
}

LAUNCHERS_TEST(containers_whose_ports_are_mapped_with_tls_over_several_sockets) {
    NEED_MODULE("tls");
    need("command -v nft", "no nft");
    make_containers("20000-20001");
    setenv("TUTTI_SECRET", "mapped", 1);
    setenv("TUTTI_ENCRYPT", "1", 1);
    setenv("TUTTI_TCP_SOCKETS", "2", 1);
    run_on_both(IN_CONTAINER
                "$TUTTI_BUILD/bin/tuttirun --nodes 10.77.0.1,10.77.0.2 --ctrl_port 9988 --device_num 2 $P reduce'");
}

/* Runs two ranks in each container, with settings that do not suffice; what all print is in shell_output. */
static void run_in_vain(const char *settings) {
    for (int host = 1; host >= 0; host--)
        netns_shell(net, host,
                    "H=%d; env TUTTI_CONNECT_TIMEOUT_MS=5000 %s timeout 40 nsenter --net=/proc/$(cat holder%d)/ns/net "
                    "$TUTTI_BUILD/bin/tuttirun --nnodes 2 --node-rank %d --master-addr 10.77.0.1 --master-port 9988 "
                    "--device_num 2 $P reduce >out%d 2>&1 %s true",
                    host, settings, host, host, host, host > 0 ? "&" : ";");
    shell_run("cat out0 out1");
    HAS_NOT("summed");
}

LAUNCHERS_TEST(containers_that_say_too_little) {
    need("command -v nft", "no nft");
    make_containers("20000-20001");
    run_in_vain("TUTTI_PORTS=20000");
    HAS("TUTTI_PORTS=20000: all 1 ports are in use on this host; give at least one for each of its ranks");
    run_in_vain("TUTTI_PORTS=20001-20000");
    HAS("TUTTI_PORTS=20001-20000: expected two ports from 1 to 65535, the first and the last, such as 20000-20031");
    run_in_vain("TUTTI_PORTS=20000-20001 TUTTI_ADVERTISE=host0");
    HAS("TUTTI_ADVERTISE=host0 is not an address: expected the IPv4 or IPv6 address at which other hosts reach this "
        "one");
    run_in_vain("TUTTI_PORTS=20000-20001"); /* the others are sent to 172.17.0.2, which is their own */
    HAS("another process than the intended one listens there");
}

/* UCX listens at ports of its own, which are not mapped. */
LAUNCHERS_TEST(containers_with_a_transport_that_does_not_use_the_mapped_ports) {
    NEED_MODULE("ucx");
    need("command -v nft", "no nft");
    make_containers("20000-20001");
    run_in_vain("TUTTI_TRANSPORT=ucx UCX_TLS=tcp,self TUTTI_PORTS=20000-20001 TUTTI_ADVERTISE=10.77.0.$((H + 1))");
    HAS("UCX's sockets do not use TUTTI_PORTS and TUTTI_ADVERTISE: where ports are mapped, use the transport tcp");
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
