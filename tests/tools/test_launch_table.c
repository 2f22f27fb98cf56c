/*
 * tuttirun with rank tables: the ranks of this server, of one or of several servers; and what is wrong with a table.
 * The servers are all this machine, each with a node's number.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/machine/module.h"
#include "tests/support/programs/shell.h"
#include "tests/support/stores/wire.h"

TestSuite(launch_table, .timeout = 90);
#define TABLE_TEST(name) Test(launch_table, name, .init = enter, .fini = shell_leave_folder)

/* Two servers with two devices and one; the ranks do not follow their order. */
static const char uneven[] =
    "{\"version\": \"1.0\", \"status\": \"completed\", \"server_count\": \"2\", \"server_list\": [\n"
    " {\"server_id\": \"10.9.9.9\", \"host_ip\": \"10.9.9.9\", \"device\": [\n"
    "  {\"device_id\": \"0\", \"device_ip\": \"192.168.1.20\", \"rank_id\": \"1\"}]},\n"
    " {\"server_id\": \"here\", \"host_ip\": \"127.0.0.1\", \"device\": [\n"
    "  {\"device_id\": \"5\", \"device_ip\": \"192.168.1.11\", \"rank_id\": \"0\"},\n"
    "  {\"device_id\": \"4\", \"device_ip\": \"192.168.1.10\", \"rank_id\": \"2\"}]}]}\n";

static const char one_server[] =
    "{\"version\": \"1.0\", \"status\": \"completed\", \"server_list\": [{\"server_id\": \"any\", \"device\": [\n"
    " {\"device_id\": \"7\", \"rank_id\": \"1\"}, {\"device_id\": \"4\", \"rank_id\": \"2\"},\n"
    " {\"device_id\": \"6\", \"rank_id\": \"0\"}]}]}";

static void write_file(const char *name, const char *text) {
    FILE *file = fopen(name, "w");
    cr_assert_not_null(file);
    cr_assert(fputs(text, file) >= 0);
    cr_assert_eq(fclose(file), 0);
}

/* The table with one piece of it replaced. */
static void write_changed(const char *name, const char *piece, const char *by) {
    char changed[2048];
    const char *at = strstr(uneven, piece);
    cr_assert_not_null(at, "'%s'", piece);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - uneven), uneven, by, at + strlen(piece));
    write_file(name, changed);
}

static void enter(void) {
    const tutti_module_calls *calls;
    if (tutti_module_open("json", "", &calls) != TUTTI_OK) cr_skip_test("no module json: %s", tutti_last_error());
    shell_enter_folder();
    write_file("uneven.json", uneven);
}

TABLE_TEST(the_ranks_of_one_server_are_started_in_any_folder) {
    write_file("one.json", one_server);
    cr_assert_eq(
        shell_run("$T --rank_table one.json --rank-dirs sub/r sh -c 'echo $RANK of $WORLD_SIZE, $LOCAL_RANK of "
                  "$LOCAL_WORLD_SIZE, $RANK_ID of $RANK_SIZE on $DEVICE_ID; $TUTTI_BUILD/tests/world_probe; "
                  "[ \"$RANK_TABLE_FILE\" -ef ../../one.json ] || echo other table' && cat sub/r?/log?"),
        0, "%s", shell_output);
    HAS("0 of 3, 1 of 3, 0 of 3 on 6\n");
    HAS("1 of 3, 2 of 3, 1 of 3 on 7\n");
    HAS("2 of 3, 0 of 3, 2 of 3 on 4\n");
    HAS("rank 1 of 3, local 2 of 3, node 0 of 1: met\n");
    HAS_NOT("other table");
}

TABLE_TEST(the_name_of_the_table_may_be_long) {
    write_file("one.json", one_server);
    cr_assert_eq(
        shell_run("p=$PWD; for i in 1 2 3 4 5 6; do p=$p/$(printf %%0200d $i); done; mkdir -p $p && cp one.json $p &&\n"
                  "$T --rank-table $p/one.json --log-dir $p/logs sh -c '[ -f \"$RANK_TABLE_FILE\" ] && "
                  "[ -d ${TORCHELASTIC_ERROR_FILE%%%%/error.json} ] && echo found'"),
        0, "%s", shell_output);
    cr_assert_eq(shell_count("found\n"), 3, "%s", shell_output);
}

/* Runs tuttirun as both servers at the same time; what they print is in shell_output. */
static void run_both(const char *first_options, const char *second_options, const char *program) {
    shell_run("{ TUTTI_SECRET=x $T --no-prefix --node-rank 1 %s %s >second 2>&1; echo exit $? >>second; } &\n"
              "TUTTI_SECRET=x $T --no-prefix %s %s; echo exit $?; wait; cat second",
              second_options, program, first_options, program);
}

TABLE_TEST(two_servers_start_their_ranks_of_one_table) {
    int port = wire_free_port();
    char options[128];
    snprintf(options, sizeof options, "--rank-table uneven.json --master-port %d", port);
    run_both(options, options,
             "sh -c 'echo $RANK on $DEVICE_ID, node $GROUP_RANK; exec $TUTTI_BUILD/tests/world_probe'");
    static const char *const lines[] = {"0 on 5, node 0\n",
                                        "1 on 0, node 1\n",
                                        "2 on 4, node 0\n",
                                        "rank 0 of 3, local 1 of 2, node 0 of 2: met\n",
                                        "rank 1 of 3, local 0 of 1, node 1 of 2: met\n",
                                        "rank 2 of 3, local 0 of 2, node 0 of 2: met\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) HAS(lines[i]);
    cr_assert_eq(shell_count("exit 0\n"), 2, "%s", shell_output);
    HAS_NOT("tuttirun:");
}

TABLE_TEST(servers_with_different_tables_do_not_start) {
    int port = wire_free_port();
    char first[128], second[128];
    write_changed("other.json", "\"device_id\": \"4\"", "\"device_id\": \"3\"");
    snprintf(first, sizeof first, "--rank-table uneven.json --master-port %d", port);
    snprintf(second, sizeof second, "--rank-table other.json --master-port %d", port);
    run_both(first, second, "echo started");
    HAS("was started with a --rank-table of hash ");
    HAS("all nodes must be started with the same");
    cr_assert_eq(shell_count("exit 1\n"), 2, "%s", shell_output);
    HAS_NOT("started\n");
}

TABLE_TEST(a_missing_server_is_named) {
    cr_assert_eq(shell_run("TUTTI_CONNECT_TIMEOUT_MS=3000 $T --rank-table uneven.json --master-port %d echo started",
                           wire_free_port()),
                 1);
    HAS("node 1 (10.9.9.9) did not join");
    HAS_NOT("started\n");
}

TABLE_TEST(what_does_not_fit_is_one_line) {
    static const char *const wrong[][3] = {
        {"--rank-table none.json", "1", "rank table none.json: No such file or directory"},
        {"--rank-table uneven.json --nnodes 2", "2", "leave out --nodes, --nnodes, --nproc-per-node, -n and"},
        {"--rank-table uneven.json -n 2", "2", "leave out --nodes, --nnodes, --nproc-per-node, -n and"},
        {"--rank-table uneven.json --nodes a,b", "2", "leave out --nodes, --nnodes, --nproc-per-node, -n and"},
        {"--rank-table uneven.json --node-rank 2", "1",
         "rank table uneven.json: --node-rank 2 must be less than its 2 servers"},
        {"--rank-table far.json", "1",
         "rank table far.json: none of its servers (here, 10.9.9.9) is this host, which has the addresses "},
        {"--rank-table both.json", "1",
         "rank table both.json: its servers here and 10.9.9.9 are both this host; give --node-rank 0 or 1"},
        {"--rank-table count.json", "1", "rank table count.json: server_count is 3, but there are 2 servers"},
        {"--rank-table twice.json", "1", "the rank_id 0 to 2, but two have 1"},
        {"--rank-table gap.json", "1", "the rank_id 0 to 2, but none has 2"},
    };
    write_changed("far.json", "127.0.0.1", "10.8.8.8");
    write_changed("both.json", "\"host_ip\": \"10.9.9.9\"", "\"host_ip\": \"127.0.0.1\"");
    write_changed("count.json", "\"server_count\": \"2\"", "\"server_count\": \"3\"");
    write_changed("twice.json", "\"rank_id\": \"2\"", "\"rank_id\": \"1\"");
    write_changed("gap.json", "\"rank_id\": \"2\"", "\"rank_id\": \"3\"");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(shell_run("$T %s touch started", wrong[i][0]), atoi(wrong[i][1]), "%s: %s", wrong[i][0],
                     shell_output);
        HAS(wrong[i][2]);
        cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
        cr_assert_neq(access("started", F_OK), 0, "%s: a rank was started", wrong[i][0]);
    }
}

TABLE_TEST(a_server_is_found_by_the_address_that_it_advertises) {
    write_changed("far.json", "127.0.0.1", "10.8.8.8");
    cr_assert_eq(shell_run("TUTTI_ADVERTISE=10.9.9.9 TUTTI_CONNECT_TIMEOUT_MS=500 $T --rank-table far.json true"), 1);
    HAS("10.8.8.8"); /* looks for node 0 there, so it is node 1 */
    HAS_NOT("none of its servers");
}

/* ---------------------------------------------------------------------------------------------- writing */

TABLE_TEST(a_table_is_written_that_tuttirun_reads_and_nothing_starts) {
    cr_assert_eq(shell_run("$T --nodes 10.9.9.8,10.9.9.9 --device_num 2 --write-rank-table made.json touch started"), 0,
                 "%s", shell_output);
    cr_assert_str_eq(shell_output, "");
    cr_assert_neq(access("started", F_OK), 0, "a rank was started");
    cr_assert_eq(shell_run("cat made.json"), 0);
    cr_assert_str_eq(shell_output,
                     "{\"version\": \"1.0\", \"status\": \"completed\", \"server_count\": \"2\", \"server_list\": [\n"
                     "  {\"server_id\": \"10.9.9.8\", \"device\": [\n"
                     "    {\"device_id\": \"0\", \"rank_id\": \"0\"},\n"
                     "    {\"device_id\": \"1\", \"rank_id\": \"1\"}]},\n"
                     "  {\"server_id\": \"10.9.9.9\", \"device\": [\n"
                     "    {\"device_id\": \"0\", \"rank_id\": \"2\"},\n"
                     "    {\"device_id\": \"1\", \"rank_id\": \"3\"}]}]}\n");
    char first[128], second[112];
    snprintf(second, sizeof second, "--rank-table made.json --master-addr 127.0.0.1 --master-port %d",
             wire_free_port());
    snprintf(first, sizeof first, "%s --node-rank 0", second);
    run_both(first, second, "$TUTTI_BUILD/tests/world_probe");
    cr_assert_eq(shell_count(": met\n"), 4, "%s", shell_output);
    HAS("rank 3 of 4, local 1 of 2, node 1 of 2: met\n");
}

TABLE_TEST(a_table_of_this_host_alone_is_written) {
    cr_assert_eq(
        shell_run("$T -n 3 --write_rank_table=made.json && $T --rank-table made.json $TUTTI_BUILD/tests/world_probe"),
        0, "%s", shell_output);
    cr_assert_eq(shell_count("node 0 of 1: met\n"), 3, "%s", shell_output);
}

TABLE_TEST(what_a_table_cannot_say_is_not_written) {
    static const char *const wrong[][3] = {
        {"--nnodes 2 --node-rank 0 --write-rank-table t", "2", "with --nnodes 2 needs the addresses of the nodes"},
        {"--nodes a,b --device_num 17 --write-rank-table t", "2", "has at most 16 devices, not 17"},
        {"--nodes a,b,a --write-rank-table t", "2", "--nodes names a twice"},
        {"--nodes 'a\"b' --write-rank-table t", "2", "'a\"b' cannot be a server_id"},
        {"--rank-table uneven.json --node-rank 0 --write-rank-table t", "2", "exclude each other"},
        {"--write-rank-table none/t", "1", "cannot write none/t: No such file or directory"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(shell_run("$T %s", wrong[i][0]), atoi(wrong[i][1]), "%s: %s", wrong[i][0], shell_output);
        HAS(wrong[i][2]);
        cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
        cr_assert_neq(access("t", F_OK), 0, "%s: the table was written", wrong[i][0]);
    }
}
