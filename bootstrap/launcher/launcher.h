/*
 * What launchers tell a process, each in its own words: torchrun, rank tables, Open MPI, MPICH, MVAPICH2, Slurm, PMIx.
 *
 *     launcher_variables.c   those that tell it by environment variables: a table, one row each
 *     rank_table.c           by a file (RANK_TABLE_FILE)
 *     pmix.c                 by a server on this host that is asked
 *     world.c                takes the first that says anything, completes and checks what it says
 *     meeting.c              where the ranks of the job meet, in that launcher's terms
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

/* The numbers of a process; TUTTI_UNTOLD for what the launcher does not say. */
typedef enum tutti_told {
    TUTTI_TOLD_RANK,
    TUTTI_TOLD_SIZE,
    TUTTI_TOLD_LOCAL_RANK,
    TUTTI_TOLD_LOCAL_SIZE,
    TUTTI_TOLD_NODE,
    TUTTI_TOLD_NODES,
    TUTTI_TOLD_RESTART,
    TUTTI_TOLD_COUNT
} tutti_told;

enum { TUTTI_UNTOLD = -1, TUTTI_MOST_RANKS = 1 << 20 };

/* A launcher that speaks by environment variables. */
typedef struct tutti_launcher_row {
    tutti_launcher launcher;
    const char *label;                   /* "Open MPI" */
    const char *names[TUTTI_TOLD_COUNT]; /* of its variables; NULL: it has none for that */
    const char *needs;                   /* a variable without which the row does not count; NULL: none */
    const char *advice;                  /* what to do when they are wrong */
} tutti_launcher_row;

/* The row whose variables are set, or NULL. */
const tutti_launcher_row *tutti_launcher_row_present(void);
/* The numbers that they hold. */
tutti_status tutti_launcher_row_read(const tutti_launcher_row *row, int values_out[TUTTI_TOLD_COUNT]);
/* TUTTI_ERR_CONFIG: the problem, all variables of the launcher as they are, and what to do. */
tutti_status tutti_launcher_row_fail(const tutti_launcher_row *row, const char *problem);

/* What tutti_world_get gives, and who said it. */
tutti_status tutti_world_read(tutti_world *world_out, tutti_launcher *launcher_out);

/* The variable's text; NULL when it is not set, or empty. */
const char *tutti_launcher_variable(const char *name);

#endif
