/*
 * Several tuttiruns that start one job, as on several nodes; here all on this machine, each with a node's number.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/programs/shell.h"
#include "tests/support/stores/wire.h"

TestSuite(launch_nodes, .timeout = 110);
#define NODES_TEST(name) Test(launch_nodes, name, .init = shell_enter_folder, .fini = shell_leave_folder)

/* Runs `program` (for sh) with two ranks on each of nnodes nodes, later nodes first; the output of node k is in the
 * file node<k>, followed by its exit code. Returns nothing: tests read the files. */
static void run_nodes(int nnodes, const char *options, const char *program) {
    int port = wire_free_port();
    cr_assert_gt(port, 0);
    FILE *file = fopen("program.sh", "w");
    cr_assert_not_null(file);
    fputs(program, file);
    fclose(file);
    cr_assert_eq(
        shell_run("for n in $(seq %d -1 0); do\n"
                  "{ $T --nnodes %d --node-rank $n --nproc-per-node 2 --master-addr 127.0.0.1 --master-port %d "
                  "--no-prefix %s sh program.sh >node$n 2>&1; echo exit $? >>node$n; } &\n"
                  "[ $n = 0 ] || echo $! >pid$n; done; wait",
                  nnodes - 1, nnodes, port, options),
        0, "%s", shell_output);
}

static void show(int node) {
    shell_run("cat node%d", node);
}

NODES_TEST(ranks_count_on_from_node_to_node_and_meet) {
    run_nodes(3, "",
              "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE\n"
              "$TUTTI_BUILD/tests/world_probe\n");
    for (int node = 0; node < 3; node++) {
        show(node);
        for (int i = 0; i < 2; i++) {
            char line[128];
            snprintf(line, sizeof line, "%d/6 %d/2 %d/3\n", 2 * node + i, i, node);
            HAS(line);
            snprintf(line, sizeof line, "rank %d of 6, local %d of 2, node %d of 3: met\n", 2 * node + i, i, node);
            HAS(line);
        }
        HAS("exit 0\n");
        HAS_NOT("tuttirun:");
    }
}

NODES_TEST(a_failure_on_one_node_ends_the_ranks_of_all_with_its_reason_and_code) {
    run_nodes(2, "",
              "if [ $RANK = 3 ]; then sleep 0.5; exit 7; fi\n"
              "trap 'echo rank $RANK asked; exit 5' TERM; echo here $RANK\n"
              "i=0; while [ $i -lt 300 ]; do sleep 0.1; i=$((i+1)); done\n");
    show(1);
    HAS("tuttirun: rank 3 (local rank 1, host ");
    HAS(") ended with exit code 7; the other gets 2 s to end by itself\n");
    HAS("rank 2 asked\n");
    HAS("exit 7\n");
    show(0);
    HAS("tuttirun: node 1: rank 3 (local rank 1, host ");
    HAS(") ended with exit code 7; the 2 here get 2 s to end by themselves\n");
    HAS("rank 0 asked\n");
    HAS("rank 1 asked\n");
    HAS("tuttirun: after node 1: rank 0 ended with exit code 5, rank 1 ended with exit code 5\n");
    HAS("exit 7\n");
}

NODES_TEST(a_node_whose_ranks_have_ended_well_still_fails_with_the_others) {
    run_nodes(2, "", "if [ $GROUP_RANK = 1 ]; then exit 0; fi; sleep 1; exit $((3 * (RANK == 0)))\n");
    show(1);
    HAS("tuttirun: node 0: rank 0 (local rank 0, host ");
    HAS("exit 3\n");
    show(0);
    HAS("exit 3\n");
}

NODES_TEST(all_nodes_start_again_together) {
    run_nodes(2, "--max-restarts 3",
              "echo rank $RANK try $TORCHELASTIC_RESTART_COUNT\n"
              "if [ $GROUP_RANK = $((TORCHELASTIC_RESTART_COUNT % 2)) ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then "
              "exit 4; fi\n"
              "exec $TUTTI_BUILD/tests/world_probe\n");
    for (int node = 0; node < 2; node++) {
        char line[64];
        show(node);
        for (int attempt = 0; attempt < 3; attempt++) {
            snprintf(line, sizeof line, "rank %d try %d\n", 2 * node + 1, attempt);
            HAS(line);
        }
        HAS_NOT("try 3");
        HAS("tuttirun: starts all ranks again (restart 1 of 3)\n");
        HAS("tuttirun: starts all ranks again (restart 2 of 3)\n");
        snprintf(line, sizeof line, "rank %d of 4, local 1 of 2, node %d of 2: met\n", 2 * node + 1, node);
        HAS(line);
        HAS("exit 0\n");
    }
}

NODES_TEST(restarts_end_on_all_nodes_at_once) {
    run_nodes(2, "--max-restarts 1", "echo try; [ $RANK != 0 ] || exit 6; sleep 30\n");
    for (int node = 0; node < 2; node++) {
        show(node);
        cr_assert_eq(shell_count("try\n"), 4, "%s", shell_output);
        cr_assert_eq(shell_count("starts all ranks again"), 1, "%s", shell_output);
        HAS("exit 6\n");
    }
}

NODES_TEST(a_signal_for_one_tuttirun_ends_all_without_a_restart) {
    run_nodes(2, "--max-restarts 3",
              "[ $RANK != 2 ] || { sleep 0.5; kill -TERM $PPID; }\n"
              "trap 'exit 0' TERM; i=0; while [ $i -lt 300 ]; do sleep 0.1; i=$((i+1)); done\n");
    show(1);
    HAS("tuttirun: SIGTERM: passes it on to 2 ranks\n");
    show(0);
    HAS("tuttirun: node 1: tuttirun on host ");
    HAS(" was asked to end by SIGTERM; ");
    HAS_NOT("again");
    HAS("exit 143\n");
}

NODES_TEST(the_loss_of_a_node_is_detected) {
    run_nodes(2, "",
              "[ $RANK != 2 ] || { sleep 0.5; kill -KILL $PPID; }\n"
              "i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done\n");
    show(1);
    HAS("exit 137\n");
    show(0);
    HAS("tuttirun: node 1: tuttirun on host ");
    HAS(" was killed or has crashed; the 2 here get 2 s to end by themselves\n");
    HAS("exit 137\n");
}

NODES_TEST(a_lost_node_0_ends_the_others) {
    run_nodes(2, "",
              "[ $RANK != 0 ] || { sleep 0.5; kill -KILL $PPID; }\n"
              "i=0; while [ $i -lt 300 ]; do sleep 0.1; i=$((i+1)); done\n");
    show(1);
    HAS("tuttirun: the store on node 0 is lost (lost the store at 127.0.0.1:");
    HAS("; the 2 here get 2 s to end by themselves\n");
    HAS("exit 1\n");
}

NODES_TEST(a_node_that_waits_for_node_0_can_be_ended_by_a_signal) {
    cr_assert_eq(
        shell_run("timeout -s TERM 1 $TUTTI_BUILD/bin/tuttirun --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 "
                  "--master-port 1 sh -c 'echo started'"),
        124, "%s", shell_output);
    cr_assert_str_eq(shell_output, "");
}

/* --------------------------------------------------------------------------------------- lists of nodes */

NODES_TEST(a_list_of_nodes_is_enough) {
    int port = wire_free_port();
    cr_assert_gt(port, 0);
    cr_assert_eq(
        shell_run("O='--nodes 127.0.0.1,127.0.0.2 --ctrl_port %d --device_num 2'\n"
                  "$T $O --node_rank 1 $TUTTI_BUILD/tests/world_probe & $T $O $TUTTI_BUILD/tests/world_probe; wait",
                  port),
        0, "%s", shell_output);
    for (int rank = 0; rank < 4; rank++) {
        char line[128];
        snprintf(line, sizeof line, "rank %d of 4, local %d of 2, node %d of 2: met\n", rank, rank % 2, rank / 2);
        HAS(line);
    }
    cr_assert_eq(shell_run("$T --nodes $(hostname) --ctrl_port %d --device_num 2 --master-addr 127.0.0.1 "
                           "sh -c 'echo $RANK/$WORLD_SIZE'",
                           port),
                 0, "%s", shell_output);
    HAS("1/2\n");
}

/* OneFlow's gpu_device_num, ctrl_port and machine, called in the program. */
NODES_TEST(a_program_can_set_its_nodes_itself) {
    int port = wire_free_port();
    cr_assert_gt(port, 0);
    cr_assert_eq(shell_run("$TUTTI_BUILD/tests/world_probe configure 3 0 - reduce"), 0, "%s", shell_output);
    for (int rank = 0; rank < 3; rank++) {
        char line[128];
        snprintf(line, sizeof line, "rank %d of 3, local %d of 3, node 0 of 1: summed\n", rank, rank);
        HAS(line);
    }
    cr_assert_eq(shell_count("configures\n"), 4, "once to start them, once in each:\n%s", shell_output);
    cr_assert_eq(shell_run("$TUTTI_BUILD/tests/world_probe configure 2 %d 127.0.0.1 reduce", port), 0, "%s",
                 shell_output);
    HAS("rank 1 of 2, local 1 of 2, node 0 of 1: summed\n");
    cr_assert_eq(shell_run("$TUTTI_BUILD/tests/world_probe configure 1 0 - world"), 0, "%s", shell_output);
    cr_assert_eq(shell_count("configures\n"), 1, "one rank needs no launcher:\n%s", shell_output);
    HAS("rank 0 of 1, local 0 of 1, node 0 of 1: is there\n");
    cr_assert_eq(shell_run("$T -n 2 $TUTTI_BUILD/tests/world_probe configure 2 0 - reduce"), 0, "%s", shell_output);
    HAS("rank 1 of 2, local 1 of 2, node 0 of 1: summed\n");
    static const char *const wrong[][2] = {
        {"2 0 -",
         "tutti_world_configure: device_num is 2, but the launcher has started this rank as one of 3 on its node"},
        {"3 0 a,b", "nnodes is 2, but the launcher has started this rank as one of 1 nodes"},
        {"3 1 -", "ctrl_port is 1, but the launcher has set MASTER_PORT="},
        {"-1 0 -", "device_num is -1; expected the number of ranks on each node"},
        {"3 70000 -", "ctrl_port is 70000; expected a port from 1 to 65535"},
        {"3 0 a,", "nodes[1] is \"\"; expected the name or address of one node"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_neq(shell_run("$T -n 3 $TUTTI_BUILD/tests/world_probe configure %s world", wrong[i][0]), 0);
        HAS(wrong[i][1]);
    }
    cr_assert_eq(shell_run("$TUTTI_BUILD/tests/world_probe configure 2 0 no-such-node.test world"), 2);
    HAS("none of them is this host");
}

/* OneFlow's config.machine([{"addr": "192.168.1.12"}, {"addr": "192.168.1.11"}]), and files. */
NODES_TEST(a_list_of_nodes_has_oneflows_form_or_is_in_a_file) {
    static const char *const good[] = {
        "'[{\"addr\": \"127.0.0.1\"}]'",
        "'[ {\"addr\" :\"127.0.0.1\" } , ]'",
        "\"[{'addr': '127.0.0.1'}]\"",
        "'[\"127.0.0.1\"]'",
        "@list",
        "@lines",
    };
    cr_assert_eq(shell_run("echo '[{\"addr\": \"127.0.0.1\"}]' >list; printf '\\n 127.0.0.1\\n' >lines"), 0);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_assert_eq(
            shell_run("$T --nodes %s --ctrl_port 0 --gpu_device_num 2 sh -c 'echo $RANK/$WORLD_SIZE'", good[i]), 0,
            "%s: %s", good[i], shell_output);
        HAS("1/2\n");
    }
    /* Two nodes: the second one finds itself in the list, and then looks for the first. */
    cr_assert_eq(shell_run("printf '127.0.0.3\\n127.0.0.9,\\n' >two; TUTTI_CONNECT_TIMEOUT_MS=300 $T --nodes @two "
                           "--node-rank 2 true"),
                 2);
    HAS("--node-rank 2 must be less than --nnodes 2");
    static const char *const wrong[][2] = {
        {"'[{\"addr\": \"127.0.0.1\"'", "a list in brackets must be like [{\"addr\": \"192.168.1.12\"}"},
        {"'[{\"address\": \"127.0.0.1\"}]'", "a list in brackets must be like"},
        {"'[{\"addr\": \"\"}]'", "a list in brackets must be like"},
        {"'[{\"addr\": \"a\"}] b'", "a list in brackets must be like"},
        {"@missing", "--nodes @missing: cannot read it: No such file"},
        {"@/dev/null", "it is not a text, or empty; it must have the hosts of the job"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(shell_run("$T --nodes %s true", wrong[i][0]), 2, "%s: %s", wrong[i][0], shell_output);
        HAS(wrong[i][1]);
    }
}

NODES_TEST(errors_of_a_list_of_nodes_are_named) {
    static const char *const wrong[][2] = {
        {"--nodes 203.0.113.7,203.0.113.8", "none of them is this host, which has the addresses lo 127.0.0.1"},
        {"--nodes 127.0.0.1,::1", "nodes 0 and 1 are both this host; give --node-rank"},
        {"--nodes 127.0.0.1,,x", "must be hosts separated by commas"},
        {"--nodes 127.0.0.1 --nnodes 2", "--nodes names 1, but --nnodes is 2"},
        {"--nodes 127.0.0.1,x --node-rank 2", "--node-rank 2 must be less than --nnodes 2"},
        {"--nodes 127.0.0.1 --device_num x", "--nproc-per-node x: must be a whole number"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(shell_run("$T %s true", wrong[i][0]), 2, "%s: %s", wrong[i][0], shell_output);
        HAS(wrong[i][1]);
        cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
    }
}
