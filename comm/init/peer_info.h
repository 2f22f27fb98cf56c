/*
 * What a rank tells of itself when a communicator is made through a store.
 */
#ifndef TUTTI_PEER_INFO_H
#define TUTTI_PEER_INFO_H

#include "comm/base/comm.h"
#include "comm/base/cpus.h"

#define TUTTI_SOCKET_NAME_BYTES 48

typedef struct tutti_peer_info {
    int rank, nranks;
    int64_t pid;
    uint64_t pid_space; /* in which the pid counts: the process ids of two containers may mean different processes */
    char version[32];
    char settings[320]; /* all that must be equal, as text */
    char host_id[64];
    uint64_t machine; /* which runs this host, and others: containers, say; 0: not to be had */
    char host[64];
    char socket_name[TUTTI_SOCKET_NAME_BYTES]; /* where the rank listens until it knows who leads its host; local_bootstrap.h */
    tutti_core_mask cores;
    int32_t most_cores; /* of its cgroup */
} tutti_peer_info;

/* The space in which this process's id counts. */
uint64_t tutti_peer_info_pid_space(void);
/* Fills this rank's card, but for the socket's name. */
tutti_status tutti_peer_info_fill(int rank, int nranks, tutti_peer_info *card_out);

#endif
