/*
 * What launchers provide to a process, each in its own format: torchrun, rank tables, Open MPI, MPICH, MVAPICH2,
 * Slurm, PMIx.
 *
 *     launcher_variables.c   launchers that set environment variables: a table with one row each
 *     rank_table.c           a file (RANK_TABLE_FILE)
 *     pmix.c                 queries to the launcher's server on this host
 *     world.c                uses the first source that is present, completes and checks its values
 *     configure.c            starts the ranks from inside the program
 *     meeting.c              the address at which the ranks of the job meet, from that launcher's values
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCHER_H
#define TUTTI_BOOTSTRAP_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>

#include <tutti/tutti.h>

typedef enum tutti_launcher {
    TUTTI_LAUNCHER_NONE,
    TUTTI_LAUNCHER_TORCHRUN,
    TUTTI_LAUNCHER_RANK_TABLE,
    TUTTI_LAUNCHER_OPEN_MPI,
    TUTTI_LAUNCHER_MVAPICH,
    TUTTI_LAUNCHER_MPICH,
    TUTTI_LAUNCHER_SLURM,
    TUTTI_LAUNCHER_PMIX
} tutti_launcher;

/* The numbers of a process; TUTTI_NOT_GIVEN where the launcher does not provide one. */
typedef enum tutti_given {
    TUTTI_GIVEN_RANK,
    TUTTI_GIVEN_SIZE,
    TUTTI_GIVEN_LOCAL_RANK,
    TUTTI_GIVEN_LOCAL_SIZE,
    TUTTI_GIVEN_NODE,
    TUTTI_GIVEN_NODES,
    TUTTI_GIVEN_RESTART,
    TUTTI_GIVEN_COUNT
} tutti_given;

enum { TUTTI_NOT_GIVEN = -1, TUTTI_MOST_RANKS = 1 << 20 };

/* A launcher that sets environment variables. */
typedef struct tutti_launcher_row {
    tutti_launcher launcher;
    const char *label;                    /* "Open MPI" */
    const char *names[TUTTI_GIVEN_COUNT]; /* names of its variables; NULL: it sets none for that number */
    const char *needs;                    /* a variable that must be set for the row to count; NULL: none */
    const char *advice;                   /* what to do when the variables are wrong */
} tutti_launcher_row;

/* Returns the row whose variables are set, or NULL. */
const tutti_launcher_row *tutti_launcher_row_present(void);
/* Reads the numbers from the row's variables. */
tutti_status tutti_launcher_row_read(const tutti_launcher_row *row, int values_out[TUTTI_GIVEN_COUNT]);
/* Fails with TUTTI_ERR_CONFIG; the error gives the problem, all variables of the launcher with their values, and
 * what to do. */
tutti_status tutti_launcher_row_fail(const tutti_launcher_row *row, const char *problem);

/* The result of tutti_world_get, and the launcher that provided it. */
tutti_status tutti_world_read(tutti_world *world_out, tutti_launcher *launcher_out);

/* Returns the variable's text; NULL when it is unset or empty. */
const char *tutti_launcher_variable(const char *name);

#endif
