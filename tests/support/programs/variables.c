/*
 * Launchers' variables for tests: see variables.h. All variables of launchers that Tutti reads.
 */
#include "tests/support/programs/variables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void variables_set(const char *list) {
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
