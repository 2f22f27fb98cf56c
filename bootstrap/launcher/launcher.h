/*
 * What launchers provide to a process, each in its own format: torchrun, rank tables, Open MPI, MPICH, MVAPICH2,
 * Slurm, PMIx.
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
/* TUTTI_ERR_CONFIG; the error gives the problem, the launcher's variables with their values, and what to do. */
tutti_status tutti_launcher_row_fail(const tutti_launcher_row *row, const char *problem);

/* The result of tutti_world_get, and the launcher that provided it. */
tutti_status tutti_world_read(tutti_world *world_out, tutti_launcher *launcher_out);

/* Returns the variable's text; NULL when it is unset or empty. */
const char *tutti_launcher_variable(const char *name);

/* -------------------------------------------------------------------------------------------------- slurm.c
 * Slurm's compressed lists: hosts, "node[01-03,7],x", and tasks per node, "4(x2),3".
 */

/* Number of hosts in the list; -1: the list is malformed. */
int tutti_hostlist_count(const char *list);
/* Writes host number `index`, in the list's order. Returns false when it does not exist or does not fit. */
bool tutti_hostlist_get(const char *list, int index, char *host_out, size_t capacity);

/* Reads the number of tasks of node number `node`; returns false when the text does not contain it. */
bool tutti_slurm_tasks_of(const char *text, int node, int *tasks_out);

#endif
