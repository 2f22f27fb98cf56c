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
 *
 * Invariant: both communicators have one id and, on each rank, one page, so what breaks one breaks the other.
 */
#ifndef TUTTI_HOSTS_H
#define TUTTI_HOSTS_H

#include "comm/base/comm.h"
#include "comm/net/listener.h"

struct tutti_link_part;
struct tutti_rail_table;

/* The ranks of one host, in rank order. */
typedef struct tutti_host {
    int nranks;
    const int *ranks; /* of the communicator */
} tutti_host;

typedef struct tutti_hosts {
    int nhosts, host;               /* host: this rank's */
    tutti_host *all;                /* nhosts */
    int *host_of;                   /* by rank: index into `all` */
    int *local_of;                  /* by rank: its rank in its host's local communicator */
    bool uniform;                   /* every host has as many ranks: there are rails */
    int *rail;                      /* by host: uniform: the rank with our rank in `local`; else the host's first */
    int *delegates;                 /* by host: scratch of an algorithm: the rank that speaks for it */
    struct tutti_rail_table *table; /* how calls between hosts are carried out; made when the communicator is */
    tutti_comm *local;              /* this host's ranks */
    bool watches;                   /* the other hosts' first processes; heartbeat.h */
    bool counted;                   /* among this process's memberships; channel.h */
    tutti_page
        *elsewhere;   /* stands in for the pages of all ranks of other hosts: never posted; broken when one says so */
    int told_by;      /* elsewhere is broken: the rank that says so */
    atomic_bool told; /* messages: other hosts know that this communicator is broken */
    const tutti_listener_info *listeners; /* by rank; given by who makes the communicator: in the segment, or own_doors */
    tutti_listener_info *own_doors;   /* of a communicator that was split from another; NULL */
    char *scratch;                /* in the heap, so that `local` lends it */
    size_t scratch_bytes;
    int *order;    /* memory of `all`'s ranks */
    int *everyone; /* 0, 1, ...: the rail of all ranks */
    /* Scratch of the algorithms, by rank: */
    const void **srcs;
    void **dsts;
    size_t *counts;                /* two for each rank */
    struct tutti_link_part *parts; /* two for each rank */
} tutti_hosts;

/* Lays the communicator out over hosts: ranks with equal host_keys share one. Makes `local`, without members; its page is
 * comm's. Takes nothing. */
tutti_status tutti_hosts_create(tutti_comm *comm, const int *host_keys);
/* Watches the other hosts, where this rank is its host's first. */
tutti_status tutti_hosts_watch(tutti_comm *comm);
/* Reads what this host's first process has heard of others: who has died. Cheap when that is nothing. */
void tutti_hosts_read_deaths(const tutti_comm *comm);
/* Nobody waits any more: gives members back, and buries the page. */
void tutti_hosts_leave(tutti_comm *comm);
/* After leave. NULL is allowed. */
void tutti_hosts_free(tutti_hosts *hosts);

/* Copies the members of this host up from `local`. */
void tutti_hosts_adopt_local(tutti_comm *comm);
/* Makes `rank` a member that is on another host. Takes over a reference to the process. */
void tutti_hosts_enter_remote(tutti_comm *comm, int rank, struct tutti_peer *process);
/* Copies the members of this host down to `local`. */
void tutti_hosts_fill_local(tutti_comm *comm);

/* Memory for the running operation, at least that large; grows, and stays until the communicator goes. */
tutti_status tutti_hosts_scratch(tutti_comm *comm, size_t bytes, char **memory_out);

#endif
