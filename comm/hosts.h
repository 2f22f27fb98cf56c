/*
 * A communicator over several hosts. Its ranks of one host have a communicator of their own among them (`local`), which
 * works in shared memory; between hosts there are links (link.h). On one host, comm->hosts is NULL.
 *
 *        host 0            host 1            host 2
 *       0   2   4         1   3   5         6   7   8        ranks of the communicator
 *       |0  |1  |2        |0  |1  |2        |0  |1  |2       ranks of `local`
 *
 * A rail is the ranks with equal rank in `local`, one per host, where all hosts have the same number of ranks: rail 1
 * above is 2, 3, 7. Hosts are in the order of their lowest rank, and so are sums.
 */
#ifndef TUTTI_HOSTS_H
#define TUTTI_HOSTS_H

#include "comm/comm.h"
#include "comm/door.h"

/* The ranks of one host, in rank order. */
typedef struct tutti_host {
    int nranks;
    const int *ranks; /* of the communicator */
    char name[64];
} tutti_host;

typedef struct tutti_hosts {
    int nhosts, host;          /* host: this rank's */
    tutti_host *all;           /* nhosts */
    int *host_of;              /* by rank: index into `all` */
    int *local_of;             /* by rank: its rank in its host's local communicator */
    bool uniform;              /* every host has as many ranks: there are rails */
    int *rail, nrail;          /* uniform: this rank's; else the first ranks of all hosts */
    tutti_comm *local;         /* this host's ranks */
    tutti_door_card *doors;    /* by rank */
    char *scratch;             /* in the heap, so that `local` lends it; tutti_hosts_scratch */
    size_t scratch_bytes;
} tutti_hosts;

/* Memory for the running operation, at least that large; grows, and stays until the communicator goes. */
tutti_status tutti_hosts_scratch(tutti_comm *comm, size_t bytes, char **memory_out);

#endif
