/*
 * Who is there and on which host: gathered from all ranks through the store, and handed to one rank of each host.
 *
 *   every rank   count/<rank>     counts it: a second one there is an error
 *                claim/<rank>     where the job has a secret: proves what the counter says
 *   rank r > 0   cards/<r>        a roll of the ranks that hand on through r (board.h), or why there is none
 *   rank 0       ranks            the roll of all
 *                host/<id>        for each host: which of its ranks leads it, and where that one listens
 *                roll             last: the communicator's id and key; or an error, which then is every rank's
 *
 * All ranks read `roll` and their host's line, which do not grow with the number of ranks; only leaders read the roll of
 * all, and hand it to their host (hall.h). A host's leader is its lowest rank.
 *
 * The store is an untrusted board: what is read there is bounded and checked.
 */
#ifndef TUTTI_ROLL_H
#define TUTTI_ROLL_H

#include "bootstrap/base/deadline.h"
#include "comm/card.h"

#define TUTTI_NONCE_BYTES 32

typedef struct tutti_roll_host {
    char id[64];
    char name[64];
    char socket_name[TUTTI_SOCKET_NAME_BYTES]; /* of its lowest rank */
    uint64_t machine;                          /* as in its lowest rank's card */
    tutti_core_mask cores;                     /* of all its ranks together */
    int32_t most_cores;                        /* the least of its ranks' */
    int32_t first, nranks;                     /* its lowest rank; how many it has */
    int32_t unused;
} tutti_roll_host;

typedef struct tutti_roll_rank {
    int64_t pid;
    uint64_t pid_space;
    int32_t host; /* index into the hosts */
    int32_t unused;
} tutti_roll_rank;

/* Followed by hosts[nhosts], in the order of their lowest ranks, and ranks[count]; or, where status is not TUTTI_OK, by a
 * text. */
typedef struct tutti_roll {
    uint64_t magic;
    int32_t status;
    int32_t nranks;       /* of the world, as rank `first` was told */
    int32_t first, count; /* the ranks that are listed */
    int32_t nhosts;
    int32_t unused;
    char version[32];   /* of rank `first`; checked to be equal on the others */
    char settings[320]; /* likewise */
} tutti_roll;

static inline const tutti_roll_host *tutti_roll_hosts(const tutti_roll *roll) {
    return (const tutti_roll_host *)(roll + 1);
}

static inline const tutti_roll_rank *tutti_roll_ranks(const tutti_roll *roll) {
    return (const tutti_roll_rank *)(const void *)(tutti_roll_hosts(roll) + roll->nhosts);
}

static inline size_t tutti_roll_bytes(const tutti_roll *roll) {
    return sizeof *roll + (size_t)roll->nhosts * sizeof(tutti_roll_host) +
           (size_t)roll->count * sizeof(tutti_roll_rank);
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
 * roll_out: the roll of all on leaders (free it with free()), NULL on the others. */
tutti_status tutti_roll_exchange(const tutti_store *store, const char *prefix, const tutti_card *own,
                                 tutti_deadline *deadline, tutti_place *place_out, tutti_roll **roll_out);

/* Is that a whole roll of `nranks` ranks, of which each index leads where it should? */
tutti_status tutti_roll_check(const tutti_roll *roll, size_t bytes, int nranks);

#endif
