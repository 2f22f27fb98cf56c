/*
 * Starts on two hosts (network namespaces, netns.h) whose network fails: links that are cut, hosts that do not exist,
 * name servers that do not answer. Checks the messages, and the time until every process has ended.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/hosts/hosts.h"
#include "tests/support/programs/phases.h"
#include "tests/support/programs/shell.h"

TestSuite(launch_phases_hosts, .timeout = 60);
#define PHASES_TEST(name) Test(launch_phases_hosts, name, .init = enter, .fini = leave)

enum { PORT = 29500 }; /* free: the namespaces are new */

/* The program of ranks that run until a signal ends them. */
#define RUNS "sh -c 'echo runs; exec sleep 30'"

static netns *net;

static void enter(void) {
    HOSTS_NEED(.decoys = false);
    shell_enter_folder();
    phases_set_times(2500, 3000);
    cr_assert_eq(netns_create(&(netns_options){.nhosts = 2}, &net), TUTTI_OK, "%s", tutti_last_error());
    /* An address that no host has: packets to it are sent without an error, and get no answer. */
    for (int host = 0; host < 2; host++)
        cr_assert_eq(netns_shell(net, host, "ip neigh add 10.77.0.99 lladdr 02:00:00:00:00:99 dev eth0"), TUTTI_OK,
                     "%s", tutti_last_error());
}

static void leave(void) {
    netns_destroy(net);
    net = NULL;
    shell_leave_folder();
}

/* Starts a script on the host, in the background. */
static void begin(int host, const char *script) {
    static int count;
    char path[32];
    snprintf(path, sizeof path, "scene%d.sh", count++);
    phases_write_script(path, PORT, script);
    cr_assert_eq(netns_shell(net, host, "timeout -k 1 50 sh %s >/dev/null 2>&1 & true", path), TUTTI_OK, "%s",
                 tutti_last_error());
}

/* Waits until the text is in the node's output. */
static void await(int node, const char *words) {
    cr_assert_eq(
        shell_run("for i in $(seq 400); do grep -q '%s' node%d 2>/dev/null && exit 0; sleep 0.05; done; exit 1", words,
                  node),
        0, "node %d has not printed '%s'", node, words);
}

static void cut(void) {
    cr_assert_eq(netns_set_link(net, 1, false), TUTTI_OK, "%s", tutti_last_error());
}

/* -------------------------------------------------------------------------------------------------- links */

PHASES_TEST(a_link_that_is_cut_ends_both_sides_in_time) {
    begin(0, "node 0 --nodes 10.77.0.1,10.77.0.2 --ctrl_port $PORT " RUNS);
    begin(1, "node 1 --nodes 10.77.0.1,10.77.0.2 --ctrl_port $PORT " RUNS);
    await(0, "runs");
    await(1, "runs");
    cut();
    for (int node = 0; node < 2; node++) {
        await(node, "^exit ");
        phases_expect(node, 1, 3000, 9000);
        if (node == 0) HAS("tuttirun: node 1: its tuttirun has sent no heartbeat for 3 s; the one here gets 2 s");
        else
            HAS("tuttirun: the store on node 0 is lost (no answer from 10.77.0.1:29500 for 3 s "
                "(TUTTI_PEER_TIMEOUT_MS): "
                "node 0's host is down or hangs, or the network in between is cut); the one here gets 2 s");
    }
}

PHASES_TEST(a_link_that_is_cut_while_others_are_missing_ends_both_sides_in_time) {
    phases_set_times(20000, 3000);
    begin(0, "node 0 --nnodes 3 --node-rank 0 --master-addr 10.77.0.1 " RUNS);
    begin(1, "node 1 --nnodes 3 --node-rank 1 --master-addr 10.77.0.1 " RUNS);
    await(1, "waits for 1 of 3 nodes to join, for up to 20 s");
    cut();
    for (int node = 0; node < 2; node++) {
        await(node, "^exit ");
        phases_expect(node, 1, 3000, 8000);
        HAS_NOT("runs");
        if (node == 0) HAS("tuttirun: node 1: its tuttirun has sent no heartbeat for 3 s\n");
        else HAS("tuttirun: no answer from 10.77.0.1:29500 for 3 s (TUTTI_PEER_TIMEOUT_MS): ");
    }
}

PHASES_TEST(a_link_that_is_cut_in_the_start_of_ranks_names_the_phase) {
    begin(0, "node 0 --nodes 10.77.0.1,10.77.0.2 --ctrl_port $PORT sh -c 'echo runs; sleep 1; exec $0 reduce' $P");
    begin(1, "node 1 --nodes 10.77.0.1,10.77.0.2 --ctrl_port $PORT sh -c 'echo runs; sleep 1; exec $0 reduce' $P");
    await(0, "runs");
    await(1, "runs");
    cut();
    for (int node = 0; node < 2; node++) {
        await(node, "^exit ");
        phases_expect(node, 1, 2400, 8000);
        if (node == 0) HAS("the start has waited 2 s for ranks that have not joined, of 2: 1; waits until");
        else
            HAS("the start has waited 2 s for the store at 10.77.0.1:29500, where the ranks meet (no answer so far); "
                "the "
                "launcher on node 0 serves it");
    }
}

/* -------------------------------------------------------------------------------------------------- hosts */

/* Node 1 looks for node 0 at a wrong address. */
static void expect_not_there(const char *address, const char *reason) {
    char script[200], text[200];
    snprintf(script, sizeof script, "node 1 --nnodes 2 --node-rank 1 --master-addr %s sleep 30", address);
    phases_set_times(4000, 3000);
    cr_assert_eq(shell_run("rm -f node1"), 0);
    begin(1, script);
    await(1, "^exit ");
    phases_expect(1, 1, 3900, 6000);
    snprintf(text, sizeof text, "tuttirun: waits for node 0's tuttirun at %s:29500 (no answer so far), for up to 4 s\n",
             address);
    if (strcmp(reason, "no answer") == 0) HAS(text);
    snprintf(text, sizeof text, "was not there at %s:29500 within 4 s (TUTTI_CONNECT_TIMEOUT_MS; last: %s)", address,
             reason);
    HAS(text);
}

PHASES_TEST(an_absent_host_is_named_with_the_networks_reason) {
    expect_not_there("10.77.0.55", "No route to host");
    expect_not_there("10.99.0.1", "Network is unreachable");
    expect_not_there("10.77.0.99", "no answer");
}

/* -------------------------------------------------------------------------------------------------- names */

/* tuttirun reads the files `resolv` and `hosts` of this folder in place of the system's. */
static void name_by(const char *resolv) {
    char script[512];
    snprintf(
        script, sizeof script,
        "printf '%%s\\n' '%s' >resolv; echo '127.0.0.1 localhost' >hosts; cat >named <<'EOF'\n"
        "#!/bin/sh\n"
        "exec unshare --mount sh -c 'mount --bind resolv /etc/resolv.conf && mount --bind hosts /etc/hosts && exec "
        "\"$@\"' sh \"$@\"\nEOF\nchmod +x named",
        resolv);
    cr_assert_eq(shell_run("%s", script), 0, "%s", shell_output);
    if (shell_run("./named true") == 0) return;
    leave();
    cr_skip_test("cannot make a mount namespace: %s", shell_output);
}

#define NAMED "R=\"$PWD/named $R\"; "

PHASES_TEST(name_servers_that_do_not_answer_delay_no_start_beyond_its_timeout) {
    name_by("nameserver 10.77.0.99");
    begin(0, NAMED "node 0 --nnodes 2 --node-rank 0 --master-addr node0.test sleep 30");
    begin(1, NAMED "node 1 --nnodes 2 --node-rank 1 --master-addr node0.test sleep 30");
    for (int node = 0; node < 2; node++) await(node, "^exit ");
    phases_expect(0, 1, 2400, 4500);
    HAS("tuttirun: --master-addr node0.test: no name server has answered; this is node 0, so give a name or an address "
        "of");
    cr_assert_eq(shell_count("\n"), 2, "%s", shell_output);
    phases_expect(1, 1, 2400, 4500);
    HAS("tuttirun: waits for node 0's tuttirun at node0.test:29500 (no name server has answered for 'node0.test' so "
        "far), "
        "for up to 2.5 s\n");
    HAS("last: no name server has answered for 'node0.test'): start it with --node-rank 0");
}

PHASES_TEST(name_servers_that_do_not_answer_delay_neither_an_end_nor_a_list_nor_ranks) {
    name_by("nameserver 10.77.0.99");
    begin(0, NAMED
          "TUTTI_CONNECT_TIMEOUT_MS=20000; export TUTTI_CONNECT_TIMEOUT_MS\n"
          "node 0 --nnodes 2 --node-rank 1 --master-addr node0.test sleep 30 & kill -TERM $(sleep 1; pid 0); wait");
    begin(1, NAMED "node 1 --nodes node0.test,node1.test --ctrl_port $PORT sleep 30");
    begin(1, "export RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=node0.test MASTER_PORT=$PORT\n"
             "R=\"$PWD/named $P\"; node 2 reduce");
    for (int node = 0; node < 3; node++) await(node, "^exit ");
    phases_expect(0, 143, 900, 2000);
    phases_expect(1, 2, 2400, 4500);
    HAS("tuttirun: looks for this host in --nodes, for up to 2500 ms: no name server has answered for 'node0.test' so "
        "far\n");
    HAS("none of them is this host");
    HAS("(for 2 names, no name server has answered within 2500 ms)");
    phases_expect(2, 1, 2400, 4500);
    HAS("for the store at node0.test:29500, where the ranks meet (no name server has answered for 'node0.test' so "
        "far)");
}

PHASES_TEST(a_name_may_be_known_late) {
    name_by("nameserver 10.77.0.55");
    phases_set_times(10000, 3000);
    begin(1, NAMED "node 1 --nnodes 2 --node-rank 1 --master-addr node0.test $P reduce");
    await(1, "tuttirun at node0.test:29500 (");
    shell_run("cat node1");
    HAS("'node0.test'");
    cr_assert_eq(shell_run("echo '10.77.0.1 node0.test' >>hosts"), 0);
    begin(0, NAMED "node 0 --nnodes 2 --node-rank 0 --master-addr node0.test $P reduce");
    for (int node = 0; node < 2; node++) {
        await(node, "^exit ");
        phases_expect(node, 0, 0, 9000);
        HAS("of 2, local 0 of 1, node ");
        HAS(": summed\n");
    }
}
