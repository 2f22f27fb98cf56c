/*
 * Rank tables: both layouts as MindSpore's documents and tools write them, and everything that can be wrong with them.
 */
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/meeting.h"
#include "bootstrap/launcher/rank_table.h"
#include "bootstrap/launcher/world.h"
#include "tests/support/programs/shell.h"
#include "tests/support/programs/variables.h"

TestSuite(rank_table, .timeout = 60);
#define TABLE_TEST(name) Test(rank_table, name, .init = enter, .fini = shell_leave_folder)

static void enter(void) {
    static const char *const names[] = {
        "RANK",     "WORLD_SIZE",  "LOCAL_RANK",      "LOCAL_WORLD_SIZE",           "GROUP_RANK",
        "RANK_ID",  "RANK_SIZE",   "DEVICE_ID",       "MINDSPORE_HCCL_CONFIG_PATH", "MASTER_ADDR",
        "PMI_RANK", "MASTER_PORT", "GROUP_WORLD_SIZE"};
    const tutti_module_calls *calls;
    if (tutti_module_open("json", "", &calls) != TUTTI_OK) cr_skip_test("no module json: %s", tutti_last_error());
    shell_enter_folder();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    setenv("RANK_TABLE_FILE", "table.json", 1);
    setenv("TUTTI_CONNECT_TIMEOUT_MS", "5000", 1);
    tutti_settings_reload();
}

static void write_file(const char *name, const char *text) {
    FILE *file = fopen(name, "w");
    cr_assert_not_null(file);
    cr_assert(fputs(text, file) >= 0);
    cr_assert_eq(fclose(file), 0);
}

/* The example of MindSpore r0.2's documents, with its comma too many, and a second server. */
static const char old_layout[] =
    "{\"board_id\": \"0x0000\", \"chip_info\": \"910\", \"deploy_mode\": \"lab\", \"group_count\": \"1\",\n"
    " \"group_list\": [{\"device_num\": \"4\", \"server_num\": \"2\", \"group_name\": \"\", \"instance_count\": "
    "\"4\",\n"
    "  \"instance_list\": [\n"
    "   {\"devices\": [{\"device_id\": \"0\", \"device_ip\": \"192.1.27.6\"}], \"rank_id\": \"0\", \"server_id\": "
    "\"10.155.111.140\"},\n"
    "   {\"devices\": [{\"device_id\": \"1\", \"device_ip\": \"192.2.27.6\"}], \"rank_id\": \"1\", \"server_id\": "
    "\"10.155.111.140\"},\n"
    "   {\"devices\": [{\"device_id\": \"5\", \"device_ip\": \"192.1.27.7\"}], \"rank_id\": \"3\", \"server_id\": "
    "\"10.155.111.141\"},\n"
    "   {\"devices\": [{\"device_id\": \"4\", \"device_ip\": \"192.2.27.7\"}], \"rank_id\": \"2\", \"server_id\": "
    "\"10.155.111.141\"},\n"
    "  ]}],\n"
    " \"para_plane_nic_location\": \"device\", \"para_plane_nic_name\": [\"eth0\", \"eth1\"], \"para_plane_nic_num\": "
    "\"2\",\n"
    " \"status\": \"completed\"}\n";

static const char cloud_layout[] = "{\"group_count\": \"1\", \"group_list\": [{\"device_count\": \"3\", "
                                   "\"group_name\": \"g\", \"instance_count\": \"2\","
                                   " \"instance_list\": ["
                                   "  {\"devices\": [{\"device_id\": \"1\", \"device_ip\": \"192.1.1.4\"}, "
                                   "{\"device_id\": \"0\", \"device_ip\": \"192.1.1.3\"}],"
                                   "   \"pod_name\": \"pod-b\", \"server_id\": \"10.0.0.2\"},"
                                   "  {\"devices\": [{\"device_id\": \"3\", \"device_ip\": \"192.1.1.5\"}], "
                                   "\"pod_name\": \"pod-a\", \"server_id\": \"10.0.0.1\"}]}],"
                                   " \"status\": \"completed\"}";

static const char new_layout[] =
    "{\"version\": \"1.0\", \"server_count\": \"2\", \"server_list\": [\n"
    " {\"server_id\": \"host-a\", \"device\": [\n"
    "  {\"device_id\": \"0\", \"device_ip\": \"192.1.27.6\", \"rank_id\": \"0\"},\n"
    "  {\"device_id\": \"1\", \"device_ip\": \"192.2.27.6\", \"rank_id\": \"2\"}], \"host_nic_ip\": \"reserve\"},\n"
    " {\"server_id\": \"host-b\", \"device\": [\n"
    "  {\"device_id\": \"0\", \"device_ip\": \"192.1.27.7\", \"rank_id\": \"1\"},\n"
    "  {\"device_id\": \"1\", \"device_ip\": \"192.2.27.7\", \"rank_id\": \"3\"}], \"host_nic_ip\": \"reserve\"}],\n"
    " \"status\": \"completed\"}\n";

static tutti_world world_of(const char *rank) {
    tutti_world world;
    setenv("RANK_ID", rank, 1);
    cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "rank %s: %s", rank, tutti_last_error());
    return world;
}

static void expect_world(const char *rank, int size, int local_rank, int local_size, int node, int nodes) {
    tutti_world world = world_of(rank);
    cr_assert(world.rank == atoi(rank) && world.size == size && world.local_rank == local_rank &&
                  world.local_size == local_size && world.node == node && world.nodes == nodes,
              "rank %d of %d, local %d of %d, node %d of %d", world.rank, world.size, world.local_rank,
              world.local_size, world.node, world.nodes);
}

static tutti_meeting meeting_of(const char *rank) {
    tutti_world world = world_of(rank);
    tutti_meeting meeting;
    cr_assert_eq(tutti_meeting_find(&world, &meeting), TUTTI_OK, "%s", tutti_last_error());
    return meeting;
}

TABLE_TEST(the_old_layout_is_read_with_its_comma_too_many) {
    write_file("table.json", old_layout);
    expect_world("0", 4, 0, 2, 0, 2);
    expect_world("1", 4, 1, 2, 0, 2);
    expect_world("2", 4, 0, 2, 1, 2); /* device 4 is the first of its server */
    expect_world("3", 4, 1, 2, 1, 2);
    cr_assert_eq(world_of("2").device, 4);
    cr_assert_eq(world_of("3").device, 5);
    cr_assert_str_eq(meeting_of("3").host, "10.155.111.140");
}

TABLE_TEST(in_cloud_mode_the_order_of_servers_and_devices_makes_the_ranks) {
    write_file("table.json", cloud_layout);
    expect_world("0", 3, 0, 1, 0, 2); /* 10.0.0.1, device 3 */
    expect_world("1", 3, 0, 2, 1, 2);
    expect_world("2", 3, 1, 2, 1, 2);
    cr_assert_str_eq(meeting_of("1").host, "10.0.0.1");
}

TABLE_TEST(version_1_is_read) {
    write_file("table.json", new_layout);
    expect_world("0", 4, 0, 2, 0, 2);
    expect_world("2", 4, 1, 2, 0, 2);
    expect_world("3", 4, 1, 2, 1, 2);
    cr_assert_str_eq(meeting_of("3").host, "192.1.27.6", "server_id is not an address, so the device's is taken");
}

TABLE_TEST(the_place_to_meet_follows_from_the_table_and_is_the_same_for_all) {
    write_file("table.json", new_layout);
    tutti_meeting first = meeting_of("0"), other = meeting_of("3");
    cr_assert(first.port == other.port && strcmp(first.run, other.run) == 0);
    cr_assert(first.port >= 20000 && first.port < 30000);
    setenv("MASTER_PORT", "4000", 1);
    cr_assert_eq(meeting_of("0").port, 4000);
    setenv("MASTER_ADDR", "elsewhere", 1);
    cr_assert_str_eq(meeting_of("0").host, "elsewhere");
    unsetenv("MASTER_PORT");
    unsetenv("MASTER_ADDR");
    write_file("table.json", old_layout);
    cr_assert_neq(meeting_of("0").port, first.port, "other devices, another port");
}

TABLE_TEST(the_host_ip_and_newer_members_are_understood) {
    write_file(
        "table.json",
        "{\"version\": \"1.2\", \"server_list\": [{\"server_id\": \"a\", \"host_ip\": \"10.1.1.1\", \"device\": ["
        "{\"device_id\": \"15\", \"super_device_id\": \"7\", \"device_ip\": \"10.2.0.1,fd00::1\", \"rank_id\": "
        "\"0\"}]},"
        "{\"server_id\": \"b\", \"host_ip\": \"10.1.1.2\", \"device\": ["
        "{\"device_id\": \"15\", \"device_ip\": \"10.2.0.2,fd00::2\", \"rank_id\": \"1\"}]}],"
        "\"super_pod_list\": [{\"super_pod_id\": \"0\", \"server_list\": [{\"server_id\": \"a\"}]}],"
        "\"status\": \"completed\"}");
    expect_world("1", 2, 0, 1, 1, 2);
    cr_assert_str_eq(meeting_of("1").host, "10.1.1.1");
}

TABLE_TEST(without_device_ip_ranks_meet_at_the_server) {
    static const char *const servers[][2] = {{"10.1.1.1", "10.1.1.2"}, {"node1", "node2"}};
    for (int i = 0; i < 2; i++) {
        char table[1024];
        snprintf(table, sizeof table,
                 "{\"version\": \"1.0\", \"status\": \"completed\", \"server_list\": [{\"server_id\": \"%s\", "
                 "\"device\": [{\"device_id\": \"0\", \"rank_id\": \"0\"}]}, {\"server_id\": \"%s\", \"device\": "
                 "[{\"device_id\": \"0\", \"rank_id\": \"1\"}]}]}",
                 servers[i][0], servers[i][1]);
        write_file("table.json", table);
        expect_world("1", 2, 0, 1, 1, 2);
        cr_assert_str_eq(meeting_of("1").host, servers[i][0]);
    }
}

TABLE_TEST(one_server_needs_no_addresses) {
    write_file("table.json",
               "{\"version\": \"1.0\", \"server_list\": [{\"server_id\": \"x\", \"device\": ["
               "{\"device_id\": \"0\", \"rank_id\": \"0\"}, {\"device_id\": \"3\", \"rank_id\": \"1\"}]}], "
               "\"status\": \"completed\"}");
    expect_world("1", 2, 1, 2, 0, 1);
    cr_assert_str_eq(meeting_of("1").host, "127.0.0.1");
}

TABLE_TEST(the_other_name_of_the_variable_works_and_torchruns_count_first) {
    write_file("other.json", old_layout);
    unsetenv("RANK_TABLE_FILE");
    setenv("MINDSPORE_HCCL_CONFIG_PATH", "other.json", 1);
    expect_world("2", 4, 0, 2, 1, 2);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    tutti_world world;
    cr_assert_eq(tutti_world_get(&world), TUTTI_OK);
    cr_assert(world.rank == 0 && world.size == 1);
}

/* As under tuttirun --rank-table. */
TABLE_TEST(a_table_that_agrees_with_torchruns_variables_gives_the_device) {
    write_file("table.json", old_layout);
    variables_set("RANK_TABLE_FILE=table.json RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 "
                  "RANK_ID=2 RANK_SIZE=4 DEVICE_ID=4");
    expect_world("2", 4, 0, 2, 1, 2);
    cr_assert_eq(world_of("2").device, 4);
    cr_assert_eq(world_of("3").device, -1, "RANK_ID is not RANK");
    static const char *const others[][2] = {{"DEVICE_ID", "0"}, {"RANK_SIZE", "8"}, {"RANK_TABLE_FILE", "none.json"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        setenv(others[i][0], others[i][1], 1);
        cr_assert_eq(world_of("2").device, -1, "%s", others[i][0]);
        setenv("DEVICE_ID", "4", 1);
        setenv("RANK_SIZE", "4", 1);
    }
}

/* -------------------------------------------------------------------------------------------- this process */

static void expect_error(const char *what) {
    tutti_world world;
    cr_assert_neq(tutti_world_get(&world), TUTTI_OK, "was taken, not '%s'", what);
    cr_assert(strstr(tutti_last_error(), what) != NULL, "no '%s' in: %s", what, tutti_last_error());
    cr_assert(strstr(tutti_last_error(), "table.json") != NULL, "names the file: %s", tutti_last_error());
    cr_assert_null(strchr(tutti_last_error(), '\n'), "one line: %s", tutti_last_error());
}

TABLE_TEST(the_variables_must_fit_the_table) {
    write_file("table.json", old_layout);
    expect_error("neither RANK_ID nor DEVICE_ID is set");
    setenv("RANK_ID", "4", 1);
    expect_error("RANK_ID=4, but it has 4 ranks");
    setenv("RANK_ID", "x", 1);
    expect_error("RANK_ID=x is not a whole number");
    setenv("RANK_ID", "2", 1);
    setenv("RANK_SIZE", "8", 1);
    expect_error("RANK_SIZE=8, but it has 4 ranks");
    setenv("RANK_SIZE", "4", 1);
    setenv("DEVICE_ID", "0", 1);
    expect_error("DEVICE_ID=0, but rank 2 has device_id 4");
    setenv("DEVICE_ID", "4", 1);
    expect_world("2", 4, 0, 2, 1, 2);
}

TABLE_TEST(without_a_rank_the_device_on_this_host_tells_it) {
    char table[2048], host[256] = "";
    tutti_world world;
    gethostname(host, sizeof host - 1);
    snprintf(table, sizeof table,
             "{\"version\": \"1.0\", \"server_list\": ["
             "{\"server_id\": \"%s\", \"device\": [{\"device_id\": \"0\", \"device_ip\": \"10.9.0.1\", \"rank_id\": "
             "\"1\"}]},"
             "{\"server_id\": \"somewhere-else\", \"device\": [{\"device_id\": \"0\", \"device_ip\": \"10.9.0.2\", "
             "\"rank_id\": \"0\"}]}], \"status\": \"completed\"}",
             host);
    write_file("table.json", table);
    setenv("DEVICE_ID", "0", 1);
    cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(world.rank == 1 && world.size == 2 && world.node == 1);
    setenv("DEVICE_ID", "1", 1);
    expect_error("there is no device 1");
    write_file("table.json", old_layout);
    setenv("DEVICE_ID", "0", 1);
    expect_error("set RANK_ID");
}

/* As in Kubernetes, where a pod's host has the pod's name. */
TABLE_TEST(in_cloud_mode_the_pod_of_this_hosts_name_tells_the_rank) {
    char table[4096], host[256] = "";
    tutti_world world;
    const char *at = strstr(cloud_layout, "pod-b");
    gethostname(host, sizeof host - 1);
    snprintf(table, sizeof table, "%.*s%s%s", (int)(at - cloud_layout), cloud_layout, host, at + strlen("pod-b"));
    write_file("table.json", table);
    setenv("DEVICE_ID", "1", 1);
    cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(world.rank == 2 && world.size == 3 && world.local_rank == 1, "rank %d", world.rank);
    setenv("DEVICE_ID", "3", 1);
    expect_error("there is no device 3");
}

/* ------------------------------------------------------------------------------------------- wrong tables */

/* The table with one piece of it replaced. */
static void write_changed(const char *table, const char *piece, const char *by) {
    char changed[8192];
    const char *at = strstr(table, piece);
    cr_assert_not_null(at, "'%s'", piece);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - table), table, by, at + strlen(piece));
    write_file("table.json", changed);
}

TABLE_TEST(what_is_wrong_with_the_old_layout_is_said) {
    static const char *const wrong[][3] = {
        {"\"group_count\": \"1\"", "\"group_count\": \"2\"", "group_count is 2, but there are 1 groups"},
        {"\"group_count\": \"1\"", "\"group_count\": \"0\"", "group_count is 0"},
        {"\"group_count\": \"1\",", "", "group_count is missing"},
        {"\"instance_count\": \"4\"", "\"instance_count\": \"3\"", "instance_count is 3, but there are 4 instances"},
        {"\"device_num\": \"4\"", "\"device_num\": \"8\"", "device_num is 8, but there are 4 devices"},
        {"\"server_num\": \"2\"", "\"server_num\": \"4\"", "server_num is 4, but there are 2 servers"},
        {"\"server_num\": \"2\"", "\"server_num\": \"0\"", "server_num is 0"},
        {"\"rank_id\": \"3\"", "\"rank_id\": \"4\"", "the rank_id 0 to 3, but none has 3"},
        {"\"rank_id\": \"3\"", "\"rank_id\": \"2\"", "the rank_id 0 to 3, but two have 2"},
        {"\"rank_id\": \"3\"", "\"rank_id\": \"-1\"", "rank_id is not a number"},
        {"\"rank_id\": \"3\"", "\"rank_id\": \"0x3\"", "rank_id is not a number"},
        {"192.2.27.7", "192.1.27.6", "device_ip 192.1.27.6 occurs twice"},
        {"192.2.27.7", "192.2.27", "device_ip '192.2.27' of rank 2 is not an address"},
        {"\"device_ip\": \"192.2.27.7\"", "\"x\": \"\"", "has no device_ip, which tables of several servers need"},
        {"\"device_id\": \"5\"", "\"device_id\": \"4\"", "device_id 4 of server 10.155.111.141 occurs twice"},
        {"\"device_id\": \"5\"", "\"device_id\": \"8\"", "device_id 8 of rank 3 is more than 7"},
        {"\"para_plane_nic_location\": \"device\"", "\"para_plane_nic_location\": \"host\"",
         "only 'device' is supported"},
        {"\"group_list\"", "\"groups\"", "group_list is missing"},
        {"\"instance_list\"", "\"instances\"", "instance_list is missing"},
        {"{\"board_id\"", "[\"board_id\"", "line 1 is not valid JSON"},
        {"\"status\"", "\"status", "line 10 is not valid JSON"},
    };
    setenv("RANK_ID", "0", 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_changed(old_layout, wrong[i][0], wrong[i][1]);
        expect_error(wrong[i][2]);
    }
}

/* HCCL does not compare these, so such tables are in use. */
TABLE_TEST(a_wrong_number_of_nics_is_said_once_and_the_table_is_used) {
    static const char *const doubtful[][3] = {
        {"\"para_plane_nic_num\": \"2\"", "\"para_plane_nic_num\": \"4\"",
         "rank table table.json: para_plane_nic_num is 4, but para_plane_nic_name has 2 names"},
        {"[\"eth0\", \"eth1\"], \"para_plane_nic_num\": \"2\"", "[\"eth0\"], \"para_plane_nic_num\": 1",
         "rank table table.json: para_plane_nic_num is 1, but there are 4 devices on 2 servers"},
    };
    for (size_t i = 0; i < sizeof doubtful / sizeof *doubtful; i++) {
        write_changed(old_layout, doubtful[i][0], doubtful[i][1]);
        for (int rank = 0; rank < 2; rank++) {
            shell_run("RANK_ID=%d $TUTTI_BUILD/tests/world_probe world", rank);
            cr_assert_eq(shell_count(doubtful[i][2]), rank == 0, "%s", shell_output);
        }
    }
    write_file("table.json", old_layout);
    shell_run("RANK_ID=0 $TUTTI_BUILD/tests/world_probe world");
    HAS_NOT("para_plane_nic_num");
}

TABLE_TEST(two_pods_of_one_name_are_said) {
    setenv("RANK_ID", "0", 1);
    write_changed(cloud_layout, "pod-a", "pod-b");
    expect_error("two instances have the pod_name 'pod-b'");
}

TABLE_TEST(what_is_wrong_with_version_1_is_said) {
    static const char *const wrong[][3] = {
        {"\"1.0\"", "\"2.0\"", "version '2.0' is unknown"},
        {"\"server_count\": \"2\"", "\"server_count\": \"1\"", "server_count is 1, but there are 2 servers"},
        {"host-b", "host-a", "two servers have the server_id 'host-a'"},
        {"\"server_id\": \"host-b\", ", "", "server_id is missing"},
        {"\"device\": [", "\"devices\": [", "device is missing"},
        {"\"device_ip\": \"192.2.27.7\", ", "", "rank 3 has 0 device_ip, rank 0 has 1"},
        {"192.2.27.7", "192.2.27.7,192.3.27.7", "rank 3 has 2 device_ip, rank 0 has 1"},
        {"\"device_id\": \"1\"", "\"device_id\": \"16\"", "device_id 16 of rank 2 is more than 15"},
        {"\"server_id\": \"host-b\"", "\"host_ip\": \"10.0.0.1\", \"server_id\": \"host-b\"",
         "some servers have a host_ip, others do not"},
        {"host-b", "0123456789012345678901234567890123456789012345678901234567890123456789",
         "server_id is longer than 64 characters"},
    };
    setenv("RANK_ID", "0", 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_changed(new_layout, wrong[i][0], wrong[i][1]);
        expect_error(wrong[i][2]);
    }
}

TABLE_TEST(a_file_that_is_not_there_or_empty_is_said) {
    setenv("RANK_ID", "0", 1);
    expect_error("No such file");
    write_file("table.json", "");
    expect_error("not valid JSON");
    write_file("table.json", "[]");
    expect_error("it is not a JSON object");
    cr_assert_eq(shell_run("head -c 20000000 /dev/zero | tr '\\0' ' ' >table.json"), 0);
    expect_error("longer than");
}

TABLE_TEST(a_table_that_is_not_completed_is_awaited) {
    static const char half[] = "{\"version\": \"1.0\", \"server_list\": [], \"status\": \"initializing\"}";
    write_file("table.json", half);
    write_file("done.json", old_layout);
    pid_t writer = fork();
    if (writer == 0) {
        execl("/bin/sh", "sh", "-c", "sleep 0.3; head -c 300 done.json >table.json; sleep 0.3; mv done.json table.json",
              (char *)NULL);
        _exit(127);
    }
    expect_world("2", 4, 0, 2, 1, 2);
    waitpid(writer, NULL, 0);
    write_file("table.json", half);
    setenv("TUTTI_CONNECT_TIMEOUT_MS", "300", 1);
    tutti_settings_reload();
    expect_error("status is not 'completed' after 300 ms");
}

Test(rank_table, commas_are_stripped_outside_of_text_only) {
    static const char *const cases[][2] = {
        {"[1,2,]", "[1,2 ]"},       {"{\"a\": 1 ,\n }", "{\"a\": 1  \n }"},
        {"[\",]\",]", "[\",]\" ]"}, {"[\"\\\",]\",]", "[\"\\\",]\" ]"},
        {"[,,]", "[, ]"},           {"\"open,]", "\"open,]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        tutti_rank_table_strip_commas(text);
        cr_assert_str_eq(text, cases[i][1], "'%s': '%s'", cases[i][0], text);
    }
}
