/*
 * Queries to the launcher's server on this host, by PMIx (Open MPI, PRRTE, Slurm with --mpi=pmix) or by its
 * predecessor PMI-1 (MPICH's mpiexec).
 *
 * They serve one purpose: rank 0 publishes the address of its store to all other ranks, so that MASTER_ADDR is not
 * needed. PMIx is a module (modules/pmix.c); PMI-1 is a few lines of text on a socket that mpiexec has left open.
 * With both, MPI may use the same server in the same process, before and after; therefore the library finalizes its
 * session only when the process ends.
 */
#ifndef TUTTI_BOOTSTRAP_PMIX_H
#define TUTTI_BOOTSTRAP_PMIX_H

#include <stdbool.h>
#include <stddef.h>

#include <tutti/tutti.h>

#include "bootstrap/machine/module.h"

/* Longest text that rank 0 can publish, including the final NUL. */
enum { TUTTI_PMIX_TEXT_BYTES = 900 };

/* The function table of the module `pmix`. */
typedef struct tutti_pmix_module {
    tutti_module_calls head;
    /* Reads the server's values for this process; -1 for values that it does not provide; `restart` is not written. */
    tutti_status (*read_world)(tutti_world *world_out);
    /* Collective. Rank 0 passes its text in `mine`, the others pass NULL; all receive rank 0's text. */
    tutti_status (*exchange)(const char *mine, int timeout_s, char text_out[TUTTI_PMIX_TEXT_BYTES]);
} tutti_pmix_module;

/* Returns true when such a server has started this process. */
bool tutti_pmix_present(void);
tutti_status tutti_pmix_world(tutti_world *world_out);
/* Fails with TUTTI_ERR_UNSUPPORTED and the reason when no usable module is available. */
tutti_status tutti_pmix_check(void);
tutti_status tutti_pmix_exchange(const char *mine, char text_out[TUTTI_PMIX_TEXT_BYTES]);

bool tutti_pmi_present(void);
tutti_status tutti_pmi_exchange(const char *mine, char text_out[TUTTI_PMIX_TEXT_BYTES]);

#endif
