/*
 * Launchers that set environment variables: a table of their variables, and its reader.
 *
 * A row counts as present when both its rank and its size are set, so that half of one launcher's variables, which
 * some programs set for themselves, does not hide another launcher. torchrun's row comes first: if torchrun is
 * started inside a Slurm or MPI job, torchrun's variables are meant.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/launcher/launcher.h"

enum { TORCHRUN_ROW = 0 };

static const tutti_launcher_row rows[] = {
    [TORCHRUN_ROW] = {.launcher = TUTTI_LAUNCHER_TORCHRUN,
                      .label = "launcher",
                      .names = {[TUTTI_GIVEN_RANK] = "RANK",
                                [TUTTI_GIVEN_SIZE] = "WORLD_SIZE",
                                [TUTTI_GIVEN_LOCAL_RANK] = "LOCAL_RANK",
                                [TUTTI_GIVEN_LOCAL_SIZE] = "LOCAL_WORLD_SIZE",
                                [TUTTI_GIVEN_NODE] = "GROUP_RANK",
                                [TUTTI_GIVEN_NODES] = "GROUP_WORLD_SIZE",
                                [TUTTI_GIVEN_RESTART] = "TORCHELASTIC_RESTART_COUNT"},
                      .advice = "start with tuttirun or torchrun, or set these variables"},
    {.launcher = TUTTI_LAUNCHER_OPEN_MPI,
     .label = "Open MPI's",
     .names = {[TUTTI_GIVEN_RANK] = "OMPI_COMM_WORLD_RANK",
               [TUTTI_GIVEN_SIZE] = "OMPI_COMM_WORLD_SIZE",
               [TUTTI_GIVEN_LOCAL_RANK] = "OMPI_COMM_WORLD_LOCAL_RANK",
               [TUTTI_GIVEN_LOCAL_SIZE] = "OMPI_COMM_WORLD_LOCAL_SIZE"},
     .advice = "start with mpirun, or set RANK and WORLD_SIZE, which take precedence"},
    {.launcher = TUTTI_LAUNCHER_MVAPICH,
     .label = "MVAPICH2's",
     .names = {[TUTTI_GIVEN_RANK] = "MV2_COMM_WORLD_RANK",
               [TUTTI_GIVEN_SIZE] = "MV2_COMM_WORLD_SIZE",
               [TUTTI_GIVEN_LOCAL_RANK] = "MV2_COMM_WORLD_LOCAL_RANK",
               [TUTTI_GIVEN_LOCAL_SIZE] = "MV2_COMM_WORLD_LOCAL_SIZE"},
     .advice = "start with mpirun, or set RANK and WORLD_SIZE, which take precedence"},
    {.launcher = TUTTI_LAUNCHER_MPICH,
     .label = "MPICH's",
     .names = {[TUTTI_GIVEN_RANK] = "PMI_RANK",
               [TUTTI_GIVEN_SIZE] = "PMI_SIZE",
               [TUTTI_GIVEN_LOCAL_RANK] = "MPI_LOCALRANKID",
               [TUTTI_GIVEN_LOCAL_SIZE] = "MPI_LOCALNRANKS"},
     .needs = "MPI_LOCALRANKID", /* Slurm sets the others, too */
     .advice = "start with mpiexec, or set RANK and WORLD_SIZE, which take precedence"},
    {.launcher = TUTTI_LAUNCHER_SLURM,
     .label = "Slurm's",
     .names = {[TUTTI_GIVEN_RANK] = "SLURM_PROCID",
               [TUTTI_GIVEN_SIZE] = "SLURM_STEP_NUM_TASKS",
               [TUTTI_GIVEN_LOCAL_RANK] = "SLURM_LOCALID",
               [TUTTI_GIVEN_NODE] = "SLURM_NODEID",
               [TUTTI_GIVEN_NODES] = "SLURM_STEP_NUM_NODES"},
     .advice = "start with srun, or set RANK and WORLD_SIZE, which take precedence"},
    {.launcher = TUTTI_LAUNCHER_SLURM, /* the same, for environments that pass on only the commonly documented names */
     .label = "Slurm's",
     .names = {[TUTTI_GIVEN_RANK] = "SLURM_PROCID",
               [TUTTI_GIVEN_SIZE] = "SLURM_NTASKS",
               [TUTTI_GIVEN_LOCAL_RANK] = "SLURM_LOCALID",
               [TUTTI_GIVEN_NODE] = "SLURM_NODEID",
               [TUTTI_GIVEN_NODES] = "SLURM_NNODES"},
     .needs = "SLURM_STEP_NODELIST", /* not set in a batch script, which is always one process */
     .advice = "start with srun, or set RANK and WORLD_SIZE, which take precedence"},
    {.launcher = TUTTI_LAUNCHER_MPICH, /* another process manager, which sets only the variables of PMI */
     .label = "PMI's",
     .names = {[TUTTI_GIVEN_RANK] = "PMI_RANK", [TUTTI_GIVEN_SIZE] = "PMI_SIZE"},
     .advice = "start with mpiexec, or set RANK and WORLD_SIZE, which take precedence"},
};

const char *tutti_launcher_variable(const char *name) {
    const char *text = name != NULL ? getenv(name) : NULL;
    return text != NULL && *text != '\0' ? text : NULL;
}

const tutti_launcher_row *tutti_launcher_row_present(void) {
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++) {
        const char *rank = tutti_launcher_variable(rows[i].names[TUTTI_GIVEN_RANK]);
        const char *size = tutti_launcher_variable(rows[i].names[TUTTI_GIVEN_SIZE]);
        if (rows[i].needs != NULL && tutti_launcher_variable(rows[i].needs) == NULL) continue;
        /* RANK alone is an error to report, not a reason to use another row. */
        if (i == TORCHRUN_ROW ? rank != NULL || size != NULL : rank != NULL && size != NULL) return &rows[i];
    }
    for (int i = 0; i < TUTTI_GIVEN_RESTART; i++)
        if (tutti_launcher_variable(rows[TORCHRUN_ROW].names[i]) != NULL) return &rows[TORCHRUN_ROW];
    return NULL;
}

/* Writes "RANK=3, WORLD_SIZE not set, ...": all of the row's variables and their values. */
static void describe(const tutti_launcher_row *row, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < TUTTI_GIVEN_RESTART && used < capacity; i++) {
        if (row->names[i] == NULL) continue;
        const char *value = tutti_launcher_variable(row->names[i]);
        used += (size_t)snprintf(text + used, capacity - used, "%s%s%s%.40s", used > 0 ? ", " : "", row->names[i],
                                 value != NULL ? "=" : " not set", value != NULL ? value : "");
    }
}

tutti_status tutti_launcher_row_fail(const tutti_launcher_row *row, const char *problem) {
    char found[512];
    describe(row, found, sizeof found);
    return tutti_fail(TUTTI_ERR_CONFIG, "%s variables: %s (%s); %s", row->label, problem, found, row->advice);
}

static tutti_status read_number(const tutti_launcher_row *row, const char *name, const char *text, int *value_out) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 0 || value > TUTTI_MOST_RANKS) {
        char problem[160];
        snprintf(problem, sizeof problem, "%s=%.40s is not a whole number from 0 to %d", name, text, TUTTI_MOST_RANKS);
        return tutti_launcher_row_fail(row, problem);
    }
    *value_out = (int)value;
    return TUTTI_OK;
}

/* Slurm sets the tasks per node in one text for all nodes: "4(x2),3". */
static tutti_status read_slurm_tasks(const tutti_launcher_row *row, int *values) {
    const char *text = tutti_launcher_variable("SLURM_STEP_TASKS_PER_NODE");
    if (text == NULL || values[TUTTI_GIVEN_NODE] == TUTTI_NOT_GIVEN) return TUTTI_OK;
    if (tutti_slurm_tasks_of(text, values[TUTTI_GIVEN_NODE], &values[TUTTI_GIVEN_LOCAL_SIZE])) return TUTTI_OK;
    char problem[160];
    snprintf(problem, sizeof problem, "SLURM_STEP_TASKS_PER_NODE=%.60s has no entry for node %d", text,
             values[TUTTI_GIVEN_NODE]);
    return tutti_launcher_row_fail(row, problem);
}

tutti_status tutti_launcher_row_read(const tutti_launcher_row *row, int values_out[TUTTI_GIVEN_COUNT]) {
    for (int i = 0; i < TUTTI_GIVEN_COUNT; i++) {
        const char *text = tutti_launcher_variable(row->names[i]);
        values_out[i] = TUTTI_NOT_GIVEN;
        if (text != NULL) TUTTI_TRY(read_number(row, row->names[i], text, &values_out[i]));
    }
    return row->launcher == TUTTI_LAUNCHER_SLURM ? read_slurm_tasks(row, values_out) : TUTTI_OK;
}
