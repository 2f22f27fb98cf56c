/*
 * The ranks of a new communicator and the host of each: gathered from all ranks through the store, and handed to
 * one rank of each host.
 *
 *   every rank   count/<rank>    counts the rank; a second process with this rank is an error
 *                claim/<rank>    if the job has a secret: authenticates what the counter says
 *   rank r > 0   peer_info/<r>   peer table of the ranks in the subtree of r (kv_tree.h), or the error instead
 *   rank 0       ranks           peer table of all ranks
 *                host/<id>       for each host: its leader, and where the leader listens
 *                peer_table      last: the communicator's id and key; or an error, which every rank then returns
 *
 * All ranks read `peer_table` and the line of their host, whose sizes do not depend on the number of ranks. Only
 * leaders read the peer table of all ranks and share it with their host (segment.h). The leader of a host is its lowest
 * rank.
 *
 * The store is untrusted: values read from it are bounded and checked.
 */
#ifndef TUTTI_PEER_TABLE_H
#define TUTTI_PEER_TABLE_H

#include "bootstrap/base/deadline.h"
#include "comm/base/comm.h"
#include "comm/base/cpus.h"

#define TUTTI_NONCE_BYTES       32
#define TUTTI_SOCKET_NAME_BYTES 48

/* What a rank publishes about itself. */
typedef struct tutti_peer_info {
    int rank, nranks;
    int64_t pid;
    uint64_t pid_space; /* pid namespace of `pid`: equal pids of two containers may be different processes */
    char version[32];
    char settings[320]; /* all settings that must be equal on all ranks, as text */
    char host_id[64];
    uint64_t machine; /* machine that runs this host, and others if they are containers; 0: unknown */
    char host[64];
    /* listener of the rank until it knows the leader of its host; see local_bootstrap.h */
    char socket_name[TUTTI_SOCKET_NAME_BYTES];
    tutti_core_mask cores;
    int32_t most_cores; /* core limit of its cgroup */
} tutti_peer_info;

typedef struct tutti_peer_table_host {
    char id[64];
    char name[64];
    char socket_name[TUTTI_SOCKET_NAME_BYTES]; /* socket name of its lowest rank */
    uint64_t machine;                          /* from its lowest rank's info */
    tutti_core_mask cores;                     /* union of the cores of its ranks */
    int32_t most_cores;                        /* the smallest of its ranks */
    int32_t first, nranks;                     /* first: its lowest rank; nranks: number of its ranks */
    int32_t unused;
} tutti_peer_table_host;

typedef struct tutti_peer_table_rank {
    int64_t pid;
    uint64_t pid_space;
    int32_t host; /* index into the hosts */
    int32_t unused;
} tutti_peer_table_rank;

/* Followed by hosts[nhosts], by their lowest ranks, and ranks[count]; if status is an error, by its text instead. */
typedef struct tutti_peer_table {
    uint64_t magic;
    int32_t status;
    int32_t nranks;       /* size of the world according to rank `first` */
    int32_t first, count; /* the table lists ranks [first, first + count) */
    int32_t nhosts;
    int32_t unused;
    char version[32];   /* of rank `first`; checked against all other ranks */
    char settings[320]; /* likewise */
} tutti_peer_table;

static inline const tutti_peer_table_host *tutti_peer_table_hosts(const tutti_peer_table *table) {
    return (const tutti_peer_table_host *)(table + 1);
}

static inline const tutti_peer_table_rank *tutti_peer_table_ranks(const tutti_peer_table *table) {
    return (const tutti_peer_table_rank *)(const void *)(tutti_peer_table_hosts(table) + table->nhosts);
}

static inline size_t tutti_peer_table_bytes(const tutti_peer_table *table) {
    return sizeof *table + (size_t)table->nhosts * sizeof(tutti_peer_table_host) +
           (size_t)table->count * sizeof(tutti_peer_table_rank);
}

/* The part of the result that every rank gets. */
typedef struct tutti_place {
    uint64_t comm_id;
    uint8_t nonce[TUTTI_NONCE_BYTES]; /* key of the MACs if no secret is set */
    int nhosts, host;                 /* host: index of this rank's host */
    int leader, neighbours;           /* of this host: leader is its lowest rank, neighbours the number of its ranks */
    int64_t leader_pid;
    char socket_name[TUTTI_SOCKET_NAME_BYTES]; /* listener of the leader */
} tutti_place;

/* All ranks get the same result, or an error: a rank is missing, exists twice, or has another version or other
 * settings. table_out: the peer table of all ranks on leaders (release it with free()), NULL on the others. */
tutti_status tutti_peer_table_exchange(const tutti_store *store, const char *prefix, const tutti_peer_info *own,
                                       tutti_deadline *deadline, tutti_place *place_out, tutti_peer_table **table_out);

/* Checks that this is a complete peer table of `nranks` ranks whose indices are all in range. */
tutti_status tutti_peer_table_check(const void *table, size_t bytes, int nranks);

#endif
