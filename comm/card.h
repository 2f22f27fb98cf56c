/*
 * How the ranks of a new communicator find each other: through the store, who is there; through an abstract UNIX
 * socket, each other's memory.
 */
#ifndef TUTTI_CARD_H
#define TUTTI_CARD_H

#include "bootstrap/base/deadline.h"
#include "comm/comm.h"
#include "comm/cores.h"
#include "comm/door.h"
#include "comm/peer.h"

#define TUTTI_SOCKET_NAME_BYTES 48

/* What a rank writes on the notice board. Fixed size, checked by the reader. */
typedef struct tutti_card {
    uint64_t magic;
    int32_t rank, nranks;
    int64_t pid;
    char version[32];
    char settings[320]; /* all that must be equal, as text */
    char host_id[64];
    char host[64];
    char socket_name[TUTTI_SOCKET_NAME_BYTES]; /* abstract; unguessable */
    tutti_core_mask cores;
    int32_t most_cores; /* of its cgroup */
} tutti_card;

/* All cards, in rank order, and what rank 0 chose. */
typedef struct tutti_roll {
    uint64_t comm_id;
    uint8_t nonce[32]; /* key of the proofs where no secret is set */
    tutti_card cards[];
} tutti_roll;

/* Fills this rank's card, but for the socket's name. */
tutti_status tutti_card_fill(int rank, int nranks, tutti_card *card_out);

/* Writes the card, and gives all of them (free the roll with free()). Every rank gets the same roll, or an error: a
 * rank that is missing, there twice, of another version or with other settings. */
tutti_status tutti_card_exchange(const tutti_store *store, const char *prefix, const tutti_card *own,
                                 tutti_deadline *deadline, tutti_roll **roll_out);

/* What a rank tells the ranks of other hosts, and the first one of a host those of its own. */
typedef struct tutti_far_card {
    uint64_t magic;
    int32_t rank, unused;
    char socket_name[TUTTI_SOCKET_NAME_BYTES]; /* first rank of a host: as in its card */
    tutti_door_card door;
} tutti_far_card;

/* The same with far cards; fills far_out[nranks]. */
tutti_status tutti_far_card_exchange(const tutti_store *store, const char *prefix, int nranks, tutti_far_card *own,
                                     tutti_deadline *deadline, tutti_far_card *far_out);

/* Listens on a fresh abstract socket. */
tutti_status tutti_contact_listen(char name_out[TUTTI_SOCKET_NAME_BYTES], int *fd_out);

/* Exchanges heaps and pages among all ranks (all on this host): rank 0 listens on listen_fd, the others come to it.
 * Fills comm->members; on failure those not reached stay NULL. */
tutti_status tutti_contact_exchange(tutti_comm *comm, const tutti_roll *roll, int listen_fd, tutti_deadline *deadline);

#endif
