/*
 * Asking the launcher's server on this host: by PMIx (Open MPI, PRRTE, Slurm with --mpi=pmix) or by PMI-1, its forerunner
 * (MPICH's mpiexec).
 *
 * Used for one thing: rank 0 tells all others where its store is, so that nobody needs MASTER_ADDR. PMIx is a module
 * (modules/pmix.c), PMI-1 a few lines of text on a socket that mpiexec has left open. Both let MPI use the same server in the
 * same process, before and after; so they say goodbye only when the process ends.
 */
#ifndef TUTTI_BOOTSTRAP_PMIX_H
#define TUTTI_BOOTSTRAP_PMIX_H

#include <stdbool.h>
#include <stddef.h>

#include <tutti/tutti.h>

#include "bootstrap/machine/module.h"

/* Longest text that rank 0 can tell, with its end. */
enum { TUTTI_PMIX_TEXT_BYTES = 900 };

/* The table of the module `pmix`. */
typedef struct tutti_pmix_module {
    tutti_module_calls head;
    /* What the server knows of this process; -1 for what it does not tell: restart is not written. */
    tutti_status (*read_world)(tutti_world *world_out);
    /* Collective. Rank 0 gives `mine`, the others NULL; all get rank 0's text. */
    tutti_status (*exchange)(const char *mine, int timeout_s, char text_out[TUTTI_PMIX_TEXT_BYTES]);
} tutti_pmix_module;

/* Whether such a server has started this process. */
bool tutti_pmix_present(void);
tutti_status tutti_pmix_world(tutti_world *world_out);
/* TUTTI_ERR_UNSUPPORTED with the reason when there is no module that can be used. */
tutti_status tutti_pmix_check(void);
tutti_status tutti_pmix_exchange(const char *mine, char text_out[TUTTI_PMIX_TEXT_BYTES]);

bool tutti_pmi_present(void);
tutti_status tutti_pmi_exchange(const char *mine, char text_out[TUTTI_PMIX_TEXT_BYTES]);

#endif
