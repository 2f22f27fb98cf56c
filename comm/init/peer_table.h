/*
 * Who is there and on which host: gathered from all ranks through the store, and handed to one rank of each host.
 *
 *   every rank   count/<rank>     counts it: a second one there is an error
 *                claim/<rank>     where the job has a secret: proves what the counter says
 *   rank r > 0   cards/<r>        a peer table of the ranks that hand on through r (kv_tree.h), or why there is none
 *   rank 0       ranks            the peer table of all
 *                host/<id>        for each host: which of its ranks leads it, and where that one listens
 *                peer table             last: the communicator's id and key; or an error, which then is every rank's
 *
 * All ranks read `peer table` and their host's line, which do not grow with the number of ranks; only leaders read the peer table of
 * all, and hand it to their host (segment.h). A host's leader is its lowest rank.
 *
 * The store is an untrusted board: what is read there is bounded and checked.
 */
#ifndef TUTTI_PEER_TABLE_H
#define TUTTI_PEER_TABLE_H

#include "bootstrap/base/deadline.h"
#include "comm/init/peer_info.h"

#define TUTTI_NONCE_BYTES 32

typedef struct tutti_peer_table_host {
    char id[64];
    char name[64];
    char socket_name[TUTTI_SOCKET_NAME_BYTES]; /* of its lowest rank */
    uint64_t machine;                          /* as in its lowest rank's card */
    tutti_core_mask cores;                     /* of all its ranks together */
    int32_t most_cores;                        /* the least of its ranks' */
    int32_t first, nranks;                     /* its lowest rank; how many it has */
    int32_t unused;
} tutti_peer_table_host;

typedef struct tutti_peer_table_rank {
    int64_t pid;
    uint64_t pid_space;
    int32_t host; /* index into the hosts */
    int32_t unused;
} tutti_peer_table_rank;

/* Followed by hosts[nhosts], in the order of their lowest ranks, and ranks[count]; or, where status is not TUTTI_OK, by a
 * text. */
typedef struct tutti_peer_table {
    uint64_t magic;
    int32_t status;
    int32_t nranks;       /* of the world, as rank `first` was told */
    int32_t first, count; /* the ranks that are listed */
    int32_t nhosts;
    int32_t unused;
    char version[32];   /* of rank `first`; checked to be equal on the others */
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

/* What every rank gets. */
typedef struct tutti_place {
    uint64_t comm_id;
    uint8_t nonce[TUTTI_NONCE_BYTES]; /* key of the proofs where no secret is set */
    int nhosts, host;                 /* host: this rank's */
    int leader, neighbours;           /* of this host: its lowest rank; how many ranks it has */
    int64_t leader_pid;
    char socket_name[TUTTI_SOCKET_NAME_BYTES]; /* of the leader */
} tutti_place;

/* Every rank gets the same, or an error: a rank that is missing, there twice, of another version or with other settings.
 * roll_out: the peer table of all on leaders (free it with free()), NULL on the others. */
tutti_status tutti_peer_table_exchange(const tutti_store *store, const char *prefix, const tutti_peer_info *own,
                                 tutti_deadline *deadline, tutti_place *place_out, tutti_peer_table **roll_out);

/* Is that a whole peer table of `nranks` ranks, of which each index leads where it should? */
tutti_status tutti_peer_table_check(const tutti_peer_table *table, size_t bytes, int nranks);

#endif
