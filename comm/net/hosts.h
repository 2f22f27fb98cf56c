/*
 * A communicator over several hosts. The ranks of one host share a communicator (`local`), which works in shared
 * memory; hosts are connected by links (link.h). If there is only one host, comm->net.hosts is NULL.
 *
 *        host 0            host 1            host 2
 *       0   2   4         1   3   5         6   7   8        ranks of the communicator
 *       |0  |1  |2        |0  |1  |2        |0  |1  |2       ranks of `local`
 *
 * A rail consists of the ranks with equal rank in `local`, one per host; there are rails if all hosts have the same
 * number of ranks. Rail 1 above is 2, 3, 7. Hosts are ordered by their lowest rank, and sums follow this order.
 *
 * Invariant: both communicators have the same id and, on each rank, the same page, so an error that breaks one
 * breaks the other.
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
    int nhosts, host; /* host: index of this rank's host */
    tutti_host *all;  /* nhosts */
    int *host_of;     /* by rank: index into `all` */
    int *local_of;    /* by rank: its rank in its host's local communicator */
    bool uniform;     /* all hosts have the same number of ranks: there are rails */
    int *rail;        /* by host: uniform: the rank with this rank's local rank; else the host's first rank */
    int *leaders;     /* by host: scratch of an algorithm: the host's leader */
    /* algorithms for calls between hosts; filled by the first operation, or from a parent communicator */
    struct tutti_rail_table *table;
    tutti_comm *local; /* communicator of this host's ranks */
    bool watches;      /* this process watches the first processes of the other hosts; heartbeat.h */
    bool counted;      /* counted in this process's memberships; peer.h */
    /* stands in for the pages of all ranks of other hosts: never posted; broken when one of them reports a failure */
    tutti_page *elsewhere;
    int reported_by;      /* elsewhere is broken: the rank that reported it */
    atomic_bool reported; /* messages: the failure of this communicator has been reported to the other hosts */
    /* by rank; set by the creator of the communicator: in the segment, or own_listeners */
    const tutti_listener_info *listeners;
    tutti_listener_info *own_listeners; /* of a communicator that was split from another; else NULL */
    char *scratch;                      /* in the heap, so that `local` can share it */
    size_t scratch_bytes;
    int *order;    /* memory of the ranks of `all` */
    int *everyone; /* 0, 1, ...: the rail of all ranks */
    /* Scratch of the algorithms, by rank: */
    const void **srcs;
    void **dsts;
    size_t *counts;                /* two for each rank */
    struct tutti_link_part *parts; /* two for each rank */
} tutti_hosts;

/* Computes the layout of the communicator over hosts: ranks with equal host_keys share a host. Creates `local`,
 * without members; its page is comm's. Takes over nothing. */
tutti_status tutti_hosts_create(tutti_comm *comm, const int *host_keys);
/* This process needs nothing of the communicator any more: its end is no death for the other hosts. */
void tutti_hosts_uncount(tutti_comm *comm);
/* Called when no operation waits any more: releases the members, and retires the page. */
void tutti_hosts_leave(tutti_comm *comm);
/* After leave. NULL is allowed. */
void tutti_hosts_free(tutti_hosts *hosts);

/* Copies the members of this host from `local` to comm. */
void tutti_hosts_adopt_local(tutti_comm *comm);
/* Makes `rank`, which is on another host, a member. Takes over a reference to the process. */
void tutti_hosts_enter_remote(tutti_comm *comm, int rank, struct tutti_peer *process);
/* Copies the members of this host from comm to `local`. */
void tutti_hosts_fill_local(tutti_comm *comm);

/* Returns at least `bytes` of memory for the running operation; grows as needed, freed with the communicator. */
tutti_status tutti_hosts_scratch(tutti_comm *comm, size_t bytes, char **memory_out);

#endif
