/*
 * Who am I, and where do we meet: launchers' variables in all their combinations, node lists, and the secret. Criterion runs each test in a process of
 * its own, so the variables that a test sets are its own.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/meeting.h"
#include "bootstrap/secret.h"
#include "bootstrap/slurm.h"
#include "bootstrap/world.h"

static const char *const launcher_variables[] = {"RANK",
                                                 "WORLD_SIZE",
                                                 "LOCAL_RANK",
                                                 "LOCAL_WORLD_SIZE",
                                                 "GROUP_RANK",
                                                 "GROUP_WORLD_SIZE",
                                                 "MASTER_ADDR",
                                                 "MASTER_PORT",
                                                 "OMPI_COMM_WORLD_RANK",
                                                 "OMPI_COMM_WORLD_SIZE",
                                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                 "OMPI_MCA_ess_base_jobid",
                                                 "MV2_COMM_WORLD_RANK",
                                                 "MV2_COMM_WORLD_SIZE",
                                                 "MV2_COMM_WORLD_LOCAL_RANK",
                                                 "MV2_COMM_WORLD_LOCAL_SIZE",
                                                 "PMI_FD",
                                                 "PMI_RANK",
                                                 "PMI_SIZE",
                                                 "MPI_LOCALRANKID",
                                                 "MPI_LOCALNRANKS",
                                                 "PMIX_RANK",
                                                 "PMIX_NAMESPACE",
                                                 "SLURM_JOB_ID",
                                                 "SLURM_JOB_NODELIST",
                                                 "SLURM_LOCALID",
                                                 "SLURM_NNODES",
                                                 "SLURM_NODEID",
                                                 "SLURM_NTASKS",
                                                 "SLURM_PROCID",
                                                 "SLURM_STEP_ID",
                                                 "SLURM_STEP_NODELIST",
                                                 "SLURM_STEP_NUM_NODES",
                                                 "SLURM_STEP_NUM_TASKS",
                                                 "SLURM_STEP_TASKS_PER_NODE",
                                                 "RANK_TABLE_FILE",
                                                 "MINDSPORE_HCCL_CONFIG_PATH",
                                                 "RANK_ID",
                                                 "RANK_SIZE",
                                                 "DEVICE_ID",
                                                 "TORCHELASTIC_RESTART_COUNT",
                                                 "TORCHELASTIC_USE_AGENT_STORE",
                                                 "TORCHELASTIC_RUN_ID"};

/* Only these: "RANK=1 WORLD_SIZE=2". */
static void set_variables(const char *list) {
    char copy[1024], *rest = copy;
    for (size_t i = 0; i < sizeof launcher_variables / sizeof *launcher_variables; i++) unsetenv(launcher_variables[i]);
    snprintf(copy, sizeof copy, "%s", list);
    for (char *item; (item = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(item, '=');
        if (value == NULL) continue;
        *value = '\0';
        setenv(item, value + 1, 1);
    }
}

TestSuite(world, .timeout = 60);

typedef struct good {
    const char *variables;
    tutti_world world;
} good;

static const good goods[] = {
    {"", {0, 1, 0, 1, 0, 1, 0}},
    {"RANK= WORLD_SIZE=", {0, 1, 0, 1, 0, 1, 0}},
    {"RANK=0 WORLD_SIZE=1", {0, 1, 0, 1, 0, 1, 0}},
    {"RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 GROUP_WORLD_SIZE=1", {2, 4, 2, 4, 0, 1, 0}},
    {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=3",
     {5, 8, 1, 4, 1, 2, 3}},
    /* nodes of different sizes: what the launcher says counts */
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=1 GROUP_WORLD_SIZE=2", {3, 4, 0, 1, 1, 2, 0}},
    /* OneFlow's launcher says no more than this */
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", {1, 2, 1, 2, 0, 1, 0}},
    {"RANK=1 WORLD_SIZE=3", {1, 3, 1, 3, 0, 1, 0}},
    {"RANK=5 WORLD_SIZE=6 LOCAL_WORLD_SIZE=2", {5, 6, 1, 2, 2, 3, 0}},
    {"RANK=5 WORLD_SIZE=6 GROUP_WORLD_SIZE=2", {5, 6, 2, 3, 1, 2, 0}},
    {"RANK=4 WORLD_SIZE=5 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", {4, 5, 0, 2, 2, 3, 0}},
    /* MPI */
    {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     {3, 4, 1, 2, 1, 2, 0}},
    /* the same on two nodes by turns */
    {"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     {2, 4, 1, 2, 0, 2, 0}},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     {1, 4, 0, 2, 1, 2, 0}},
    {"MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=0 MV2_COMM_WORLD_LOCAL_SIZE=1",
     {1, 2, 0, 1, 1, 2, 0}},
    {"PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3", {1, 3, 1, 3, 0, 1, 0}},
    {"PMI_RANK=1 PMI_SIZE=3", {1, 3, 1, 3, 0, 1, 0}},
    /* Slurm, with as many tasks on all nodes, and not */
    {"SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 "
     "SLURM_STEP_TASKS_PER_NODE=4(x2)",
     {5, 8, 1, 4, 1, 2, 0}},
    {"SLURM_PROCID=6 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_NUM_NODES=3 "
     "SLURM_STEP_TASKS_PER_NODE=3(x2),1",
     {6, 7, 0, 1, 2, 3, 0}},
    {"SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_STEP_NODELIST=n[1-2]",
     {2, 4, 0, 2, 1, 2, 0}},
    /* who sets torchrun's variables inside of an MPI or Slurm job means these */
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 SLURM_PROCID=0 "
     "SLURM_STEP_NUM_TASKS=1",
     {1, 2, 1, 2, 0, 1, 0}},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", {1, 2, 1, 2, 0, 1, 0}},
    {"PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 "
     "SLURM_NODEID=1",
     {1, 2, 0, 1, 1, 2, 0}},
    {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
     {1, 2, 1, 2, 0, 1, 0}},
    /* half of what torchrun says hides nobody */
    {"LOCAL_RANK=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", {1, 2, 1, 2, 0, 1, 0}},
    /* a batch script is one process, and so is what was started beside the launcher */
    {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_LOCALID=0", {0, 1, 0, 1, 0, 1, 0}},
    {"OMPI_COMM_WORLD_SIZE=4", {0, 1, 0, 1, 0, 1, 0}},
};

Test(world, is_what_the_launcher_says) {
    for (size_t i = 0; i < sizeof goods / sizeof *goods; i++) {
        tutti_world world;
        set_variables(goods[i].variables);
        cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "'%s': %s", goods[i].variables, tutti_last_error());
        const tutti_world *want = &goods[i].world;
        cr_assert(world.rank == want->rank && world.size == want->size, "'%s'", goods[i].variables);
        cr_assert(world.local_rank == want->local_rank && world.local_size == want->local_size, "'%s': local %d of %d",
                  goods[i].variables, world.local_rank, world.local_size);
        cr_assert(world.node == want->node && world.nodes == want->nodes, "'%s': node %d of %d", goods[i].variables,
                  world.node, world.nodes);
        cr_assert_eq(world.restart, want->restart);
    }
}

static const char *const bads[][2] = {
    /* variables, what the error must say */
    {"RANK=0", "WORLD_SIZE is missing"},
    {"WORLD_SIZE=2", "RANK is missing"},
    {"LOCAL_RANK=0", "RANK is missing"},
    {"RANK=2 WORLD_SIZE=2", "RANK=2 must be less than WORLD_SIZE=2"},
    {"RANK=0 WORLD_SIZE=0", "RANK=0 must be less than WORLD_SIZE=0"},
    {"RANK=-1 WORLD_SIZE=2", "RANK=-1 is not a whole number"},
    {"RANK=one WORLD_SIZE=2", "RANK=one is not a whole number"},
    {"RANK=0x1 WORLD_SIZE=2", "RANK=0x1 is not a whole number"},
    {"RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE=99999999999999999999 is not"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=2 must be less than LOCAL_WORLD_SIZE=2"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE is more than WORLD_SIZE"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=0", "LOCAL_WORLD_SIZE must be at least 1"},
    {"RANK=0 WORLD_SIZE=2 GROUP_WORLD_SIZE=0", "GROUP_WORLD_SIZE must be at least 1"},
    {"RANK=0 WORLD_SIZE=2 GROUP_RANK=2 GROUP_WORLD_SIZE=2", "GROUP_RANK=2 must be less than GROUP_WORLD_SIZE=2"},
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1", "LOCAL_WORLD_SIZE is needed"},
    {"RANK=0 WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=x", "TORCHELASTIC_RESTART_COUNT=x is not"},
};

Test(world, contradictions_are_one_line_with_all_that_was_found) {
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        tutti_world world = {.rank = 77};
        set_variables(bads[i][0]);
        cr_assert_eq(tutti_world_get(&world), TUTTI_ERR_CONFIG, "'%s' was taken", bads[i][0]);
        cr_assert_eq(world.rank, 77, "written only on success");
        cr_assert(strstr(tutti_last_error(), bads[i][1]) != NULL, "'%s': %s", bads[i][0], tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "GROUP_WORLD_SIZE") != NULL, "lists: %s", tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "tuttirun") != NULL, "says what to do: %s", tutti_last_error());
        cr_assert_null(strchr(tutti_last_error(), '\n'));
    }
    cr_assert_eq(tutti_world_get(NULL), TUTTI_ERR_ARGUMENT);
}

static const char *const foreign_bads[][3] = {
    /* variables, what the error must say, and of whom */
    {"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=2 must be less than OMPI_COMM_WORLD_SIZE=2",
     "Open MPI's variables: "},
    {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=3",
     "OMPI_COMM_WORLD_LOCAL_SIZE is more than OMPI_COMM_WORLD_SIZE", "Open MPI's variables: "},
    {"PMI_RANK=x PMI_SIZE=2", "PMI_RANK=x is not a whole number", "PMI's variables: "},
    {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_NUM_NODES=3 "
     "SLURM_STEP_TASKS_PER_NODE=2(x2)",
     "SLURM_STEP_TASKS_PER_NODE=2(x2) has nothing for node 2", "Slurm's variables: "},
    {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2",
     "SLURM_LOCALID differs from SLURM_PROCID", "Slurm's variables: "},
    {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=2 SLURM_STEP_NUM_NODES=2",
     "SLURM_LOCALID=2 must be less than", "Slurm's variables: "},
};

Test(world, contradictions_name_the_launcher) {
    for (size_t i = 0; i < sizeof foreign_bads / sizeof *foreign_bads; i++) {
        tutti_world world = {.rank = 77};
        set_variables(foreign_bads[i][0]);
        cr_assert_eq(tutti_world_get(&world), TUTTI_ERR_CONFIG, "'%s' was taken", foreign_bads[i][0]);
        cr_assert_eq(world.rank, 77, "written only on success");
        cr_assert(strstr(tutti_last_error(), foreign_bads[i][1]) != NULL, "%s", tutti_last_error());
        cr_assert(strstr(tutti_last_error(), foreign_bads[i][2]) != NULL, "%s", tutti_last_error());
    }
}

/* --------------------------------------------------------------------------------------------- meeting */

Test(world, a_place_to_meet_is_needed_and_checked) {
    static const char *const places[] = {
        "",
        "MASTER_ADDR=127.0.0.1",
        "MASTER_PORT=29500",
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=x",
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=0",
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=70000",
        "RANK=0 WORLD_SIZE=2 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=a", /* torchrun's say who we are, not where */
        "PMI_RANK=0 PMI_SIZE=2", /* on one host, but nothing tells this job from another */
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1",
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        tutti_rendezvous *rendezvous;
        tutti_world world;
        set_variables(places[i]);
        cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "'%s': %s", places[i], tutti_last_error());
        if (world.size == 1) world.size = 2;
        cr_assert_eq(tutti_rendezvous_open(&world, &rendezvous), TUTTI_ERR_CONFIG, "'%s' was taken", places[i]);
        cr_assert(strstr(tutti_last_error(), "MASTER_ADDR") != NULL, "%s", tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "MASTER_PORT") != NULL, "%s", tutti_last_error());
    }
    tutti_rendezvous_close(NULL);
}

#define SLURM_STEP "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 "
#define ONE_HOST                                                                                                       \
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "

static tutti_meeting find_meeting(const char *variables) {
    tutti_world world;
    tutti_meeting meeting;
    set_variables(variables);
    cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "'%s': %s", variables, tutti_last_error());
    cr_assert_eq(tutti_meeting_find(&world, &meeting), TUTTI_OK, "'%s': %s", variables, tutti_last_error());
    return meeting;
}

Test(world, the_place_to_meet_follows_from_the_launchers_variables) {
    tutti_meeting meeting =
        find_meeting("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_RUN_ID=job");
    cr_assert(strcmp(meeting.host, "h") == 0 && meeting.port == 1 && strcmp(meeting.run, "job") == 0 && !meeting.agent);
    meeting = find_meeting(SLURM_STEP "SLURM_STEP_NODELIST=node[07-09],x SLURM_JOB_ID=12 SLURM_STEP_ID=3");
    cr_assert_str_eq(meeting.host, "node07");
    cr_assert_str_eq(meeting.run, "slurm-12.3");
    cr_assert(meeting.port >= 20000 && meeting.port < 30000, "%d", meeting.port);
    tutti_meeting other = find_meeting(SLURM_STEP "SLURM_STEP_NODELIST=node[07-09],x SLURM_JOB_ID=12 SLURM_STEP_ID=4");
    cr_assert_neq(other.port, meeting.port, "another step, another port");
    other = find_meeting(SLURM_STEP "SLURM_STEP_NODELIST=a SLURM_JOB_ID=12 MASTER_ADDR=b MASTER_PORT=5");
    cr_assert(strcmp(other.host, "b") == 0 && other.port == 5, "MASTER_ADDR and MASTER_PORT count first");
    meeting = find_meeting(ONE_HOST "OMPI_MCA_ess_base_jobid=17");
    cr_assert_str_eq(meeting.host, "127.0.0.1");
    cr_assert(meeting.port >= 20000 && strcmp(meeting.run, "mpi-17") == 0 && !meeting.exchange);
    meeting = find_meeting(ONE_HOST "MASTER_PORT=77");
    cr_assert(strcmp(meeting.host, "127.0.0.1") == 0 && meeting.port == 77);
    setenv("TUTTI_STORE_PORT", "12345", 1);
    tutti_settings_reload();
    cr_assert_eq(find_meeting(ONE_HOST).port, 12345);
}

Test(world, the_store_listens_where_its_address_leads) {
    cr_assert_str_eq(tutti_meeting_listen_address("localhost"), "127.0.0.1");
    cr_assert_str_eq(tutti_meeting_listen_address("127.0.0.1"), "127.0.0.1");
    cr_assert_null(tutti_meeting_listen_address("node1"), "a name may mean another address elsewhere");
    cr_assert_null(tutti_meeting_listen_address("203.0.113.77"), "not an address of this host");
    cr_assert(tutti_meeting_is_loopback("::1") && tutti_meeting_is_loopback("127.3.2.1"));
    cr_assert_not(tutti_meeting_is_loopback("10.0.0.1"));
}

/* -------------------------------------------------------------------------------------------- node lists */

static const char *const lists[][2] = {
    {"n1", "n1"},
    {"node[01-03,7],x", "node01 node02 node03 node7 x"},
    {"a,b-2,c.d", "a b-2 c.d"},
    {"n[098-101]", "n098 n099 n100 n101"},
    {"r[1-2]n[1,3]-ib", "r1n1-ib r1n3-ib r2n1-ib r2n3-ib"},
    {"[1-2]", "1 2"},
};

Test(world, slurms_lists_of_hosts_are_expanded) {
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char all[256] = "", host[64];
        int count = tutti_hostlist_count(lists[i][0]);
        for (int k = 0; k < count; k++) {
            cr_assert(tutti_hostlist_get(lists[i][0], k, host, sizeof host));
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", k > 0 ? " " : "", host);
        }
        cr_assert_str_eq(all, lists[i][1], "'%s': %s", lists[i][0], all);
        cr_assert_not(tutti_hostlist_get(lists[i][0], count, host, sizeof host));
        cr_assert_not(tutti_hostlist_get(lists[i][0], -1, host, sizeof host));
    }
    char host[8];
    cr_assert_eq(tutti_hostlist_count("n[000000-999999]"), 1000000);
    cr_assert(tutti_hostlist_get("n[000000-999999]", 999999, host, sizeof host));
    cr_assert_str_eq(host, "n999999");
    cr_assert_not(tutti_hostlist_get("longer[1-2]x", 0, host, sizeof host), "does not fit");
}

Test(world, lists_that_cannot_be_read_are_refused) {
    static const char *const wrong[] = {"",
                                        ",",
                                        "a,",
                                        "a,,b",
                                        "n[",
                                        "n[1",
                                        "n[1-",
                                        "n[]",
                                        "n[1,]",
                                        "n[2-1]",
                                        "n[x]",
                                        "n[1-2-3]",
                                        "n1]",
                                        ",a",
                                        "n[-1]",
                                        "n[1:2]",
                                        "n[1-99999999999999999999]",
                                        "n[0-9999][0-9999]"};
    char host[64];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(tutti_hostlist_count(wrong[i]), -1, "'%s' was taken", wrong[i]);
        cr_assert_not(tutti_hostlist_get(wrong[i], 0, host, sizeof host), "'%s' was taken", wrong[i]);
    }
}

Test(world, slurms_tasks_per_node_are_read) {
    int tasks = 0;
    cr_assert(tutti_slurm_tasks_of("4", 0, &tasks) && tasks == 4);
    cr_assert(tutti_slurm_tasks_of("4(x2),3", 1, &tasks) && tasks == 4);
    cr_assert(tutti_slurm_tasks_of("4(x2),3", 2, &tasks) && tasks == 3);
    static const char *const wrong[] = {"", "x", "4(x2", "4(2)", "0", "4(x0),1", "4(x2)3", "-1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_assert_not(tutti_slurm_tasks_of(wrong[i], 0, &tasks), "'%s' was taken", wrong[i]);
    cr_assert_not(tutti_slurm_tasks_of("4(x2),3", 3, &tasks));
}

/* ------------------------------------------------------------------------------------------------ secret */

static void set_secret(const char *secret, const char *file) {
    setenv("TUTTI_SECRET", secret, 1);
    setenv("TUTTI_SECRET_FILE", file, 1);
    tutti_settings_reload();
}

static const char *secret_file(const char *content, size_t bytes) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/tutti-secret-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, content, bytes) == (ssize_t)bytes);
    close(fd);
    return path;
}

Test(world, the_secret_comes_from_its_variable_or_its_file) {
    char secret[TUTTI_SECRET_BYTES];
    bool set = true;
    set_secret("", "");
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_OK);
    cr_assert(!set && *secret == '\0');
    const char *path = secret_file("from the file \r\n\n", 17);
    set_secret("", path);
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(set);
    cr_assert_str_eq(secret, "from the file");
    set_secret("from the variable", path);
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_OK);
    cr_assert_str_eq(secret, "from the variable");
    unlink(path);
}

static void refuse_file(const char *content, size_t bytes, const char *why) {
    char secret[16];
    bool set;
    const char *path = secret_file(content, bytes);
    set_secret("", path);
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_ERR_CONFIG, "%s", why);
    cr_assert(strstr(tutti_last_error(), path) != NULL, "%s", tutti_last_error());
    cr_assert(strstr(tutti_last_error(), why) != NULL, "%s", tutti_last_error());
    unlink(path);
}

Test(world, a_secret_that_cannot_be_read_is_an_error) {
    char secret[16];
    bool set;
    set_secret("", "/nowhere/secret");
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "/nowhere/secret") != NULL, "%s", tutti_last_error());
    set_secret("", "/tmp");
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_ERR_CONFIG);
    set_secret("sixteen bytes it", "");
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_ERR_CONFIG);
    refuse_file("", 0, "empty");
    refuse_file(" \n\n", 3, "empty");
    refuse_file("a\0b", 3, "zero byte");
    refuse_file("sixteen bytes it", 16, "longer than 15 bytes");
}
