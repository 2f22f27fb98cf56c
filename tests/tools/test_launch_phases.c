/*
 * Starts with a missing or dying process, phase by phase: the messages, and the time until every process has ended.
 * Nodes are tuttiruns on this machine; test_launch_phases_hosts.c tests hosts that vanish and links that are cut.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/store/store.h"
#include "tests/support/programs/phases.h"
#include "tests/support/programs/shell.h"
#include "tests/support/stores/served_store.h"
#include "tests/support/stores/wire.h"

TestSuite(launch_phases, .timeout = 60);
#define PHASES_TEST(name) Test(launch_phases, name, .init = enter, .fini = shell_leave_folder)

static void enter(void) {
    shell_enter_folder();
    phases_set_times(2500, 3000);
}

/* ------------------------------------------------------------------------------------------------- joining */

PHASES_TEST(the_wait_for_a_missing_node_0_is_logged_and_limited) {
    phases_run("node 1 --nodes 127.0.0.1,127.0.0.2 --node-rank 1 --ctrl_port $PORT sleep 30");
    phases_expect(1, 1, 2400, 4500);
    HAS("tuttirun: waits for node 0's tuttirun at 127.0.0.1:");
    HAS(" (Connection refused so far), for up to 2.5 s\n");
    HAS("tuttirun: node 0's tuttirun was not there at 127.0.0.1:");
    HAS(" within 2.5 s (TUTTI_CONNECT_TIMEOUT_MS; last: Connection refused): start it with --node-rank 0");
    cr_assert_eq(shell_count("\n"), 3, "%s", shell_output);
}

PHASES_TEST(a_stranger_at_the_port_is_not_node_0) {
    int port, fd = wire_listen(&port);
    cr_assert(fd >= 0);
    phases_run("node 1 --nnodes 2 --node-rank 1 --master-port %d sleep 30", port);
    close(fd);
    phases_expect(1, 1, 2400, 4500);
    HAS(" (no answer so far), for up to 2.5 s\n");
    HAS("last: no answer): ");
}

PHASES_TEST(a_node_that_waits_for_node_0_ends_at_once_on_a_signal) {
    phases_run("node 1 --nnodes 2 --node-rank 1 --master-port $PORT sleep 30 & kill -TERM $(sleep 0.5; pid 1); wait");
    phases_expect(1, 143, 400, 1500);
}

/* ----------------------------------------------------------------------------------------------- gathering */

PHASES_TEST(missing_nodes_are_named_on_all_nodes) {
    phases_run("O='--nodes 127.0.0.1,127.0.0.2,127.0.0.3 --ctrl_port '$PORT\n"
               "node 0 $O --node-rank 0 touch started & node 1 $O --node-rank 1 touch started & wait");
    for (int node = 0; node < 2; node++) {
        phases_expect(node, 1, 2400, 4500);
        HAS("tuttirun: node 2 (127.0.0.3) did not join within 2.5 s (TUTTI_CONNECT_TIMEOUT_MS; expected: 3 nodes): "
            "start tuttirun there with its --node-rank, and check that it can reach 127.0.0.1:");
        if (node == 0) HAS("tuttirun: waits for node 2 (127.0.0.3) to join, for up to 2.5 s\n");
        else HAS("tuttirun: waits for 1 of 3 nodes to join, for up to 2.5 s\n");
    }
    cr_assert_neq(access("started", F_OK), 0, "ranks were started");
}

PHASES_TEST(two_nodes_with_one_number_are_an_error_on_all) {
    phases_run("O=\"--nnodes 3 --master-port $PORT\"\n"
               "node 0 $O touch started & node 1 $O --node-rank 1 touch started & sleep 0.3\n"
               "node 2 $O --node-rank 1 touch started; wait");
    for (int node = 0; node < 3; node++) {
        phases_expect(node, 1, 0, 2000);
        HAS("tuttirun: node number 1 is taken twice: by tuttirun on host ");
        HAS("; give each node a --node-rank of its own\n");
    }
    cr_assert_neq(access("started", F_OK), 0, "ranks were started");
}

PHASES_TEST(nodes_with_different_options_are_an_error_on_all) {
    static const char *const different[][2] = {{"--nnodes 3", "--nnodes 3, node 0 (host "},
                                               {"--nproc-per-node 2", "--nproc-per-node 2, node 0 (host "},
                                               {"--max-restarts 1", "--max-restarts 1, node 0 (host "}};
    for (size_t i = 0; i < sizeof different / sizeof *different; i++) {
        phases_run("O=\"--nnodes 2 --master-port $PORT\"\n"
                   "node 0 $O touch started & node 1 $O --node-rank 1 %s touch started & wait",
                   different[i][0]);
        for (int node = 0; node < 2; node++) {
            phases_expect(node, 1, 0, 2000);
            HAS("tuttirun: node 1 (host ");
            HAS(different[i][1]);
            HAS(": all nodes must be started with the same\n");
        }
    }
    cr_assert_neq(access("started", F_OK), 0, "ranks were started");
}

PHASES_TEST(a_node_that_gets_sigterm_while_others_are_missing_ends_all) {
    phases_set_times(20000, 3000);
    for (int victim = 0; victim < 2; victim++) {
        char line[64];
        phases_run("O=\"--nnodes 3 --master-port $PORT\"\n"
                   "node 0 $O sleep 30 & node 1 $O --node-rank 1 sleep 30 & kill -TERM $(sleep 1; pid %d); wait",
                   victim);
        phases_expect(victim, 143, 0, 3000);
        phases_expect(1 - victim, 1, 0, 3000);
        snprintf(line, sizeof line, "tuttirun: node %d: tuttirun on host ", victim);
        HAS(line);
        HAS(" was asked to end by SIGTERM\n");
    }
}

PHASES_TEST(a_node_that_is_killed_while_others_are_missing_ends_all) {
    phases_set_times(20000, 10000);
    phases_run("O=\"--nnodes 3 --master-port $PORT\"\n"
               "node 0 $O sleep 30 & node 1 $O --node-rank 1 sleep 30 & kill -KILL $(sleep 1; pid 1); wait");
    phases_expect(0, 1, 500, 3000);
    HAS("tuttirun: node 1: tuttirun on host ");
    HAS(" was killed or has crashed\n");
}

PHASES_TEST(a_node_that_stops_while_others_are_missing_is_detected) {
    phases_set_times(20000, 3000);
    phases_run("O=\"--nnodes 3 --master-port $PORT\"\n"
               "node 0 $O sleep 30 & node 1 $O --node-rank 1 sleep 30 & kill -STOP $(sleep 1; pid 1)\n"
               "await 0 exit; kill -KILL $(pid 1); wait");
    phases_expect(0, 1, 3000, 7000);
    HAS("tuttirun: waits for node 2 to join, for up to 20 s\n");
    HAS("tuttirun: node 1: its tuttirun has sent no heartbeat for 3 s\n");
}

PHASES_TEST(a_node_0_that_is_killed_while_others_are_missing_ends_all) {
    phases_set_times(20000, 3000);
    phases_run("O=\"--nnodes 3 --master-port $PORT\"\n"
               "node 0 $O sleep 30 & node 1 $O --node-rank 1 sleep 30 & kill -KILL $(sleep 1; pid 0); wait");
    phases_expect(1, 1, 0, 3000);
    HAS("tuttirun: lost the store at 127.0.0.1:");
}

/* ------------------------------------------------------------------------------------- false records in the store */

/* A store to which a stranger has written before; checks the message of a node that joins it. */
static void join_false_store(const char *key, const char *value) {
    tutti_store_server *server;
    tutti_store_client *client;
    cr_assert_eq(tutti_store_server_start("127.0.0.1", 0, NULL, &server), TUTTI_OK, "%s", tutti_last_error());
    int port = tutti_store_server_port(server);
    cr_assert_eq(
        tutti_store_client_reach("127.0.0.1", port, &(tutti_store_client_options){.connect_ms = 5000}, &client),
        TUTTI_OK, "%s", tutti_last_error());
    tutti_store store = tutti_store_client_callbacks(client);
    cr_assert_eq(store.set(store.context, key, value, strlen(value)), TUTTI_OK);
    phases_run("node 1 --nnodes 2 --node-rank 1 --master-port %d touch started", port);
    tutti_store_client_close(client);
    tutti_store_server_stop(server);
    phases_expect(1, 1, 0, 6000);
    cr_assert_neq(access("started", F_OK), 0, "a rank was started");
}

PHASES_TEST(invalid_records_in_the_store_are_errors) {
    char longer[2000];
    join_false_store("tuttirun/none/0/join/0", "1 2 three");
    HAS("' for node 0: it is not the store of a tuttirun\n");
    join_false_store("tuttirun/none/0/join/0", "");
    HAS("it is not the store of a tuttirun\n");
    memset(longer, '9', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    join_false_store("tuttirun/none/0/join/0", longer);
    HAS("holds 1999 bytes in the store");
    join_false_store("tuttirun/none/beat/1", "no number");
    HAS("tuttirun: lost the store at 127.0.0.1:");
}

/* A node 0 that publishes no record: only a store. */
PHASES_TEST(the_wait_at_a_store_without_a_tuttirun_is_limited) {
    join_false_store("other", "key");
    HAS("did not join within 2.5 s");
}

/* ------------------------------------------------------------------------------------------------- running */

/* The program of ranks that run until a signal ends them. */
#define RUNS "sh -c 'echo runs; exec sleep 30'"

PHASES_TEST(a_node_0_that_stops_is_detected_by_the_others) {
    phases_run("O=\"--nnodes 2 --master-port $PORT\"\n"
               "node 0 $O " RUNS " & node 1 $O --node-rank 1 " RUNS " & await 1 runs; kill -STOP $(pid 0)\n"
               "await 1 exit; kill -CONT $(pid 0); wait");
    phases_expect(1, 1, 3000, 9000);
    HAS("tuttirun: the store on node 0 is lost (no answer from 127.0.0.1:");
    HAS(" for 3 s (TUTTI_PEER_TIMEOUT_MS): node 0's host is down or hangs, or the network in between is cut); "
        "the "
        "one here gets 2 s to end by itself\n");
    phases_expect(0, 1, 3000, 20000); /* it continues, and then detects the loss of the other node */
}

PHASES_TEST(a_node_that_stops_is_detected_by_node_0) {
    phases_run("O=\"--nnodes 2 --master-port $PORT\"\n"
               "node 0 $O " RUNS " & node 1 $O --node-rank 1 " RUNS " & await 1 runs; kill -STOP $(pid 1)\n"
               "await 0 exit; kill -KILL $(pid 1); wait");
    phases_expect(0, 1, 3000, 9000);
    HAS("tuttirun: node 1: its tuttirun has sent no heartbeat for 3 s; the one here gets 2 s");
    HAS_NOT("no goodbye within");
}

PHASES_TEST(a_node_that_is_killed_ends_all_at_once) {
    phases_set_times(2500, 10000);
    phases_run("O=\"--nnodes 2 --master-port $PORT\"\n"
               "node 0 $O " RUNS " & node 1 $O --node-rank 1 " RUNS " & await 1 runs; kill -KILL $(pid 1); wait");
    phases_expect(0, 137, 0, 4500);
    HAS("tuttirun: node 1: tuttirun on host ");
    HAS(" was killed or has crashed; the one here gets 2 s to end by itself\n");
}

PHASES_TEST(a_node_0_that_gets_sigterm_ends_the_others) {
    phases_run("O=\"--nnodes 2 --master-port $PORT\"\n"
               "node 0 $O " RUNS " & node 1 $O --node-rank 1 " RUNS " & await 1 runs; kill -TERM $(pid 0); wait");
    phases_expect(0, 143, 0, 3000);
    phases_expect(1, 143, 0, 5000);
    HAS("tuttirun: node 0: tuttirun on host ");
    HAS(" was asked to end by SIGTERM; the one here gets 2 s to end by itself\n");
}

PHASES_TEST(a_twin_that_comes_late_does_not_disturb_the_job) {
    phases_run("O=\"--nnodes 2 --master-port $PORT\"\n"
               "node 0 $O sleep 2 & node 1 $O --node-rank 1 sh -c 'echo runs; exec sleep 2' & await 1 runs\n"
               "node 2 $O --node-rank 1 touch started; wait");
    phases_expect(2, 1, 0, 2000);
    HAS("tuttirun: node number 1 is taken twice: ");
    phases_expect(0, 0, 1900, 5000);
    phases_expect(1, 0, 1900, 5000);
    cr_assert_neq(access("started", F_OK), 0, "a rank was started");
}

PHASES_TEST(a_node_that_has_ended_prints_for_which_node_it_waits) {
    phases_run("O=\"--nnodes 2 --master-port $PORT\"\n"
               "node 0 $O sleep 3.5 & node 1 $O --node-rank 1 true & wait");
    phases_expect(1, 0, 3000, 7000);
    HAS("tuttirun: the ranks here have ended; waits for those of node 0, which still run\n");
    phases_expect(0, 0, 3000, 7000);
    HAS_NOT("tuttirun:");
}

PHASES_TEST(a_lost_node_is_waited_for_before_all_start_again) {
    phases_run("O=\"--nnodes 2 --max-restarts 2 --master-port $PORT\"\n"
               "node 0 $O " RUNS " & node 1 $O --node-rank 1 " RUNS " & await 1 runs; kill -KILL $(pid 1); wait");
    phases_expect(0, 1, 4400, 9000);
    HAS("tuttirun: starts all ranks again (restart 1 of 2)\n");
    HAS("tuttirun: node 1 did not join within 2.5 s");
    cr_assert_eq(shell_count("runs\n"), 1, "%s", shell_output);
}

PHASES_TEST(a_new_tuttirun_replaces_a_lost_node) {
    phases_set_times(10000, 3000);
    phases_run("O=\"--nnodes 2 --max-restarts 2 --master-port $PORT\"\n"
               "node 0 $O sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 30' & node 1 $O --node-rank 1 " RUNS
               " & await 1 runs; kill -KILL $(pid 1); await 0 again; node 1 $O --node-rank 1 true; wait");
    phases_expect(0, 0, 2000, 8000);
    phases_expect(1, 0, 0, 3000);
}

/* -------------------------------------------------------------------- false records during a job with a secret */

/* A process without the secret that writes records of node 1 that would end the job, with each command of the store. */
static void play_stranger(int port) {
    static const char *const keys[] = {"/tuttirun/none/0/events", "/tuttirun/none/0/failures",
                                       "/tuttirun/none/0/final",  "/tuttirun/none/0/over/1",
                                       "/tuttirun/none/beat/1",   "/tuttirun/none/generation"};
    static const char event[] = "failed 1 66 all is lost";
    char request[256];
    uint64_t one = 1, key_bytes, event_bytes = sizeof event - 1;
    for (int i = 0; i < 100 && access("runs", F_OK) != 0; i++) usleep(50000);
    for (size_t i = 0; i <= sizeof keys / sizeof *keys; i++) {
        bool adds = i < sizeof keys / sizeof *keys;
        const char *key = adds ? keys[i] : "/tuttirun/none/0/event/1";
        int fd = wire_connect(port);
        cr_assert(fd >= 0 && wire_send(fd, BYTES(VALIDATE)));
        size_t used = 0;
        key_bytes = strlen(key);
        request[used++] = adds ? '\4' : '\1';
        memcpy(request + used, &key_bytes, sizeof key_bytes);
        memcpy(request + used + 8, key, key_bytes);
        used += 8 + key_bytes;
        memcpy(request + used, adds ? &one : &event_bytes, 8);
        used += 8;
        if (!adds) memcpy(request + used, event, event_bytes);
        if (!adds) used += event_bytes;
        cr_assert(wire_send(fd, request, used));
        cr_assert(wire_closes(fd), "the store has taken %s", key);
        close(fd);
    }
}

PHASES_TEST(a_stranger_ends_no_job_that_has_a_secret) {
    char script[512];
    int port = wire_free_port();
    snprintf(script, sizeof script,
             "export TUTTI_SECRET='our word'; O='--nnodes 2 --master-port %d'\n"
             "node 0 $O sh -c 'touch runs; sleep 1.5' & node 1 $O --node-rank 1 sleep 1.5 & wait",
             port);
    phases_write_script("scene.sh", port, script);
    cr_assert_eq(shell_run("timeout -k 1 50 sh scene.sh >/dev/null 2>&1 &"), 0);
    play_stranger(port);
    cr_assert_eq(
        shell_run("for i in $(seq 100); do grep -q exit node0 && grep -q exit node1 && break; sleep 0.1; done"), 0);
    phases_expect(1, 0, 1500, 6000);
    HAS_NOT("all is lost");
    phases_expect(0, 0, 1500, 6000);
    HAS_NOT("all is lost");
    HAS("store: a process at 127.0.0.1 has tried to change what the ranks keep there, without a proof of this job's "
        "secret; its connection is closed (number 1)\n");
}

PHASES_TEST(a_node_with_another_secret_or_none_does_not_join) {
    phases_run(
        "O='--nnodes 2 --master-port '$PORT\n"
        "TUTTI_SECRET=one node 0 $O touch started & TUTTI_SECRET=two node 1 $O --node-rank 1 touch started; wait");
    phases_expect(1, 1, 0, 4000);
    HAS("the store there has another secret than this process: it belongs to another job, or TUTTI_SECRET (or "
        "its file) is not equal on all ranks and nodes\n");
    phases_expect(0, 1, 2400, 4500);
    HAS("tuttirun: node 1 did not join within 2.5 s");
    cr_assert_neq(access("started", F_OK), 0, "a rank was started");
    phases_run("O='--nnodes 2 --master-port '$PORT\n"
               "TUTTI_SECRET=one node 0 $O touch started & node 1 $O --node-rank 1 touch started; wait");
    phases_expect(1, 1, 0, 4000);
    HAS("the store there belongs to a job with a secret, and none is set here; set TUTTI_SECRET or TUTTI_SECRET_FILE");
}

/* -------------------------------------------------------------------------------------------------- ending */

static int64_t add(const tutti_store *store, const char *key) {
    int64_t value = 0;
    cr_assert_eq(store->add(store->context, key, 1, &value), TUTTI_OK, "%s", tutti_last_error());
    return value;
}

/* A node 1 that joins and ends its ranks as tuttirun does, and disconnects without a goodbye. */
static void play_node_1(int port) {
    tutti_store_client *client;
    char record[300];
    size_t bytes = 0;
    cr_assert_eq(
        tutti_store_client_reach("127.0.0.1", port, &(tutti_store_client_options){.connect_ms = 5000}, &client),
        TUTTI_OK, "%s", tutti_last_error());
    tutti_store store = tutti_store_client_callbacks(client);
    cr_assert_eq(store.get(store.context, "tuttirun/none/0/join/0", record, sizeof record, &bytes, 5000), TUTTI_OK);
    add(&store, "tuttirun/none/beat/1");
    add(&store, "tuttirun/none/0/here/1");
    cr_assert_eq(store.set(store.context, "tuttirun/none/0/join/1", record, bytes), TUTTI_OK);
    if (add(&store, "tuttirun/none/0/joined") == 2) /* else node 0 is the last, and publishes it */
        cr_assert_eq(store.set(store.context, "tuttirun/none/0/gathered", "all", 3), TUTTI_OK);
    for (int i = 0; i < 100 && access("ended", F_OK) != 0; i++) usleep(50000);
    usleep(300000);
    if (add(&store, "tuttirun/none/0/ended") == 2) { /* else node 0 publishes that, too */
        add(&store, "tuttirun/none/0/events");
        cr_assert_eq(store.set(store.context, "tuttirun/none/0/event/1", "done", 4), TUTTI_OK);
    }
    tutti_store_client_close(client);
}

PHASES_TEST(the_wait_for_a_missing_goodbye_is_limited) {
    char script[512];
    int port = wire_free_port();
    snprintf(script, sizeof script, "node 0 --nnodes 2 --master-port %d touch ended", port);
    phases_write_script("scene.sh", port, script);
    cr_assert_eq(shell_run("timeout -k 1 50 sh scene.sh >/dev/null 2>&1 &"), 0);
    play_node_1(port);
    cr_assert_eq(shell_run("for i in $(seq 100); do grep -q exit node0 && break; sleep 0.1; done"), 0);
    phases_expect(0, 0, 3000, 6000);
    HAS("tuttirun: waits for node 1 to end, for up to 3 s\n");
    HAS("tuttirun: node 1: no goodbye within 3 s; stops the store\n");
}

/* --------------------------------------------------------------------------------- the ranks of a single node */

/* Two ranks of tuttirun; rank 1 runs another command. */
static void one_rank_strays(const char *what, int least_ms, int most_ms) {
    phases_run("node 0 --standalone --nproc-per-node 2 sh -c '[ $RANK = 0 ] && exec $0 reduce; %s' $P & await 0 exit\n"
               "wait",
               what);
    phases_expect(0, 1, least_ms, most_ms);
}

#define NOT_COME                                                                                                       \
    "tutti warn [rank 0] the start has waited 2 s for ranks that have not joined, of 2: 1; waits until "               \
    "TUTTI_CONNECT_TIMEOUT_MS\n"

PHASES_TEST(a_rank_that_ends_well_before_it_meets_the_others_is_named) {
    one_rank_strays("exit 0", 2400, 5000);
    HAS(NOT_COME);
    HAS("these have not joined before the deadline (TUTTI_CONNECT_TIMEOUT_MS): 1\n");
}

PHASES_TEST(a_rank_that_never_meets_the_others_is_named_and_ended) {
    one_rank_strays("exec sleep 30", 4400, 8000);
    HAS(NOT_COME);
    HAS("tuttirun: stops the ranks that still run: rank 1 (pid ");
}

PHASES_TEST(a_rank_that_is_stopped_before_it_meets_the_others_is_named_and_ended) {
    one_rank_strays("kill -STOP $$", 4400, 8000);
    HAS("tuttirun: rank 1 (local rank 1, host ");
    HAS(" was stopped by SIGSTOP; 'kill -CONT ");
    HAS(NOT_COME);
}

PHASES_TEST(a_rank_that_stops_after_it_has_joined_is_named) {
    phases_run(
        "node 0 --standalone --nproc-per-node 4 sh -c '[ $RANK = 3 ] || exec $0 reduce; exec $0 stop set peer_info/3' "
        "$P");
    phases_expect(0, 1, 4400, 8000);
    HAS("4 ranks were expected, and all have joined, but before the deadline (TUTTI_CONNECT_TIMEOUT_MS) these have "
        "ended since or made no progress: 3\n");
}

PHASES_TEST(a_rank_that_stops_in_the_local_bootstrap_is_named) {
    one_rank_strays("exec $0 stop get /peer_table", 4400, 8000);
    HAS("tutti warn [rank 0] the start has waited 2 s for ranks of this host that make no progress: rank 1 (host ");
    HAS("not all ranks of this host have connected before the deadline (TUTTI_CONNECT_TIMEOUT_MS); missing: rank 1 (");
}

PHASES_TEST(a_first_rank_that_stops_in_the_local_bootstrap_is_named) {
    phases_run("node 0 --standalone --nproc-per-node 2 sh -c '[ $RANK = 1 ] && exec $0 reduce; exec $0 stop get "
               "/peer_table' $P");
    phases_expect(0, 1, 4400, 8000);
    HAS("tutti warn [rank 1] the start has waited 2 s for rank 0 (pid ");
    HAS("), the first of this host, sent no message before the deadline (TUTTI_CONNECT_TIMEOUT_MS): it waits "
        "for ");
    HAS("), the first of this host, which waits for others or makes no progress; waits until "
        "TUTTI_CONNECT_TIMEOUT_MS\n");
}

PHASES_TEST(a_first_rank_that_does_not_publish_its_host_is_named) {
    phases_run("node 0 --standalone --nproc-per-node 2 sh -c 'export TUTTI_HOST_ID=host$RANK; [ $RANK = 0 ] && exec $0 "
               "reduce; exec $0 stop set addresses/1' $P");
    phases_expect(0, 1, 4400, 8000);
    HAS("tutti warn [rank 0] the start has waited 2 s for rank 1, the first of host ");
    HAS(" has not published the addresses of its host's ranks before the deadline (TUTTI_CONNECT_TIMEOUT_MS)");
}

PHASES_TEST(a_host_that_stops_before_the_first_barrier_is_named) {
    phases_run("node 0 --standalone --nproc-per-node 4 sh -c 'export TUTTI_HOST_ID=h$((RANK / 2))\n"
               "[ $RANK = 2 ] && exec $0 stop get addresses; exec $0 reduce' $P");
    phases_expect(0, 1, 4400, 9000);
    HAS("tutti warn [rank 0] stalled: rank 0 has waited for 2");
    HAS(" ms in barrier #1 of communicator \"world\" (0 bytes); missing: rank 2 (host ");
}

/* ------------------------------------------------------------------------------------------- without tuttirun */

PHASES_TEST(a_rank_without_a_store_prints_its_address) {
    phases_run("export RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT\n"
               "R=$P; node 1 reduce");
    phases_expect(1, 1, 2400, 5000);
    HAS("the start has waited 2 s for the store at 127.0.0.1:");
    HAS(", where the ranks meet (Connection refused so far); rank 0 serves it; waits until TUTTI_CONNECT_TIMEOUT_MS\n");
    HAS("world_probe: no store at 127.0.0.1:");
}

PHASES_TEST(a_rank_0_alone_names_the_others_and_ends) {
    phases_run("export RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT\n"
               "R=$P; node 0 reduce");
    phases_expect(0, 1, 2400, 6000);
    HAS(NOT_COME);
}

PHASES_TEST(ranks_without_rank_0_name_it) {
    int port = 0;
    pid_t served = served_store_start(&port);
    cr_assert_gt(served, 0);
    phases_run("export WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d\n"
               "R=$P; for i in 1 2 3; do RANK=$i LOCAL_RANK=$i node $i reduce & done; wait",
               port);
    served_store_end(served);
    for (int i = 1; i < 4; i++) {
        phases_expect(i, 1, 2400, 6000);
        cr_assert_eq(shell_count("the start has waited 2 s for rank 0, which has not joined; waits until"), i < 3, "%s",
                     shell_output);
        HAS("rank 0 has not gathered them before the deadline");
    }
}
