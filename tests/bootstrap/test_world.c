/*
 * The rank's place in the job: launchers' variables in all their combinations, and Slurm's lists. Criterion
 * runs each test in a process of its own, so the variables that a test sets are its own.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap/launcher/launcher.h"
#include "bootstrap/launcher/world.h"
#include "tests/support/programs/variables.h"

TestSuite(world, .timeout = 60);

typedef struct good {
    const char *variables;
    tutti_world world;
} good;

static const good goods[] = {
    {"", {0, 1, 0, 1, 0, 1, 0, -1}},
    {"RANK= WORLD_SIZE=", {0, 1, 0, 1, 0, 1, 0, -1}},
    {"RANK=0 WORLD_SIZE=1", {0, 1, 0, 1, 0, 1, 0, -1}},
    {"RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 GROUP_WORLD_SIZE=1", {2, 4, 2, 4, 0, 1, 0, -1}},
    {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=3",
     {5, 8, 1, 4, 1, 2, 3, -1}},
    /* nodes of different sizes: the launcher's values count */
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=1 GROUP_WORLD_SIZE=2", {3, 4, 0, 1, 1, 2, 0, -1}},
    /* OneFlow's launcher sets only these */
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", {1, 2, 1, 2, 0, 1, 0, -1}},
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500", {1, 2, 1, 2, 0, 1, 0, -1}},
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=localhost MASTER_PORT=29500", {1, 2, 1, 2, 0, 1, 0, -1}},
    /* also with several nodes, whose hosts are unknown until the ranks meet */
    {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500", {1, 4, 1, -1, -1, -1, 0, -1}},
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500", {3, 4, 1, -1, -1, -1, 0, -1}},
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1", {3, 4, 1, -1, -1, -1, 0, -1}},
    {"RANK=3 WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29500", {3, 4, -1, -1, -1, -1, 0, -1}},
    {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=node0 MASTER_PORT=29500", {0, 1, 0, 1, 0, 1, 0, -1}},
    {"RANK=1 WORLD_SIZE=3", {1, 3, 1, 3, 0, 1, 0, -1}},
    {"RANK=5 WORLD_SIZE=6 LOCAL_WORLD_SIZE=2", {5, 6, 1, 2, 2, 3, 0, -1}},
    {"RANK=5 WORLD_SIZE=6 GROUP_WORLD_SIZE=2", {5, 6, 2, 3, 1, 2, 0, -1}},
    {"RANK=4 WORLD_SIZE=5 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", {4, 5, 0, 2, 2, 3, 0, -1}},
    /* MPI */
    {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     {3, 4, 1, 2, 1, 2, 0, -1}},
    /* the same, ranks dealt to two nodes in turn */
    {"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     {2, 4, 1, 2, 0, 2, 0, -1}},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     {1, 4, 0, 2, 1, 2, 0, -1}},
    {"MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=0 MV2_COMM_WORLD_LOCAL_SIZE=1",
     {1, 2, 0, 1, 1, 2, 0, -1}},
    {"PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3", {1, 3, 1, 3, 0, 1, 0, -1}},
    {"PMI_RANK=1 PMI_SIZE=3", {1, 3, 1, 3, 0, 1, 0, -1}},
    /* Slurm, with equal and with different numbers of tasks on the nodes */
    {"SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 "
     "SLURM_STEP_TASKS_PER_NODE=4(x2)",
     {5, 8, 1, 4, 1, 2, 0, -1}},
    {"SLURM_PROCID=6 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_NUM_NODES=3 "
     "SLURM_STEP_TASKS_PER_NODE=3(x2),1",
     {6, 7, 0, 1, 2, 3, 0, -1}},
    {"SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_STEP_NODELIST=n[1-2]",
     {2, 4, 0, 2, 1, 2, 0, -1}},
    /* torchrun's variables take precedence inside of an MPI or Slurm job */
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 SLURM_PROCID=0 "
     "SLURM_STEP_NUM_TASKS=1",
     {1, 2, 1, 2, 0, 1, 0, -1}},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", {1, 2, 1, 2, 0, 1, 0, -1}},
    {"PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 "
     "SLURM_NODEID=1",
     {1, 2, 0, 1, 1, 2, 0, -1}},
    {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
     {1, 2, 1, 2, 0, 1, 0, -1}},
    /* an incomplete set of torchrun's variables does not hide another launcher's */
    {"LOCAL_RANK=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", {1, 2, 1, 2, 0, 1, 0, -1}},
    /* a batch script is one process, and so is what was started beside the launcher */
    {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_LOCALID=0", {0, 1, 0, 1, 0, 1, 0, -1}},
    {"OMPI_COMM_WORLD_SIZE=4", {0, 1, 0, 1, 0, 1, 0, -1}},
};

Test(world, follows_the_launchers_variables) {
    for (size_t i = 0; i < sizeof goods / sizeof *goods; i++) {
        tutti_world world;
        variables_set(goods[i].variables);
        cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "'%s': %s", goods[i].variables, tutti_last_error());
        const tutti_world *want = &goods[i].world;
        cr_assert(world.rank == want->rank && world.size == want->size, "'%s'", goods[i].variables);
        cr_assert(world.local_rank == want->local_rank && world.local_size == want->local_size, "'%s': local %d of %d",
                  goods[i].variables, world.local_rank, world.local_size);
        cr_assert(world.node == want->node && world.nodes == want->nodes, "'%s': node %d of %d", goods[i].variables,
                  world.node, world.nodes);
        cr_assert_eq(world.restart, want->restart);
        cr_assert_eq(world.device, want->device, "'%s': device %d", goods[i].variables, world.device);
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
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=4", "LOCAL_RANK=4 must be less than WORLD_SIZE=4"},
    {"RANK=0 WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=x", "TORCHELASTIC_RESTART_COUNT=x is not"},
};

Test(world, contradictions_are_one_line_with_all_that_was_found) {
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        tutti_world world = {.rank = 77};
        variables_set(bads[i][0]);
        cr_assert_eq(tutti_world_get(&world), TUTTI_ERR_CONFIG, "'%s' was taken", bads[i][0]);
        cr_assert_eq(world.rank, 77, "written on failure");
        cr_assert(strstr(tutti_last_error(), bads[i][1]) != NULL, "'%s': %s", bads[i][0], tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "GROUP_WORLD_SIZE") != NULL, "the error does not list it: %s",
                  tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "tuttirun") != NULL, "the error does not say what to do: %s",
                  tutti_last_error());
        cr_assert_null(strchr(tutti_last_error(), '\n'));
    }
    cr_assert_eq(tutti_world_get(NULL), TUTTI_ERR_ARGUMENT);
}

static const char *const foreign_bads[][3] = {
    /* variables, what the error must say, and whose variables it must name */
    {"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=2 must be less than OMPI_COMM_WORLD_SIZE=2",
     "Open MPI's variables: "},
    {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=3",
     "OMPI_COMM_WORLD_LOCAL_SIZE is more than OMPI_COMM_WORLD_SIZE", "Open MPI's variables: "},
    {"PMI_RANK=x PMI_SIZE=2", "PMI_RANK=x is not a whole number", "PMI's variables: "},
    {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_NUM_NODES=3 "
     "SLURM_STEP_TASKS_PER_NODE=2(x2)",
     "SLURM_STEP_TASKS_PER_NODE=2(x2) has no entry for node 2", "Slurm's variables: "},
    {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2",
     "SLURM_LOCALID differs from SLURM_PROCID", "Slurm's variables: "},
    {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=2 SLURM_STEP_NUM_NODES=2",
     "SLURM_LOCALID=2 must be less than", "Slurm's variables: "},
};

Test(world, contradictions_name_the_launcher) {
    for (size_t i = 0; i < sizeof foreign_bads / sizeof *foreign_bads; i++) {
        tutti_world world = {.rank = 77};
        variables_set(foreign_bads[i][0]);
        cr_assert_eq(tutti_world_get(&world), TUTTI_ERR_CONFIG, "'%s' was taken", foreign_bads[i][0]);
        cr_assert_eq(world.rank, 77, "written on failure");
        cr_assert(strstr(tutti_last_error(), foreign_bads[i][1]) != NULL, "%s", tutti_last_error());
        cr_assert(strstr(tutti_last_error(), foreign_bads[i][2]) != NULL, "%s", tutti_last_error());
    }
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
