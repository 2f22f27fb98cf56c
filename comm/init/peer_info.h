/*
 * What a rank publishes about itself when a communicator is created through a store.
 */
#ifndef TUTTI_PEER_INFO_H
#define TUTTI_PEER_INFO_H

#include "comm/base/comm.h"
#include "comm/base/cpus.h"

#define TUTTI_SOCKET_NAME_BYTES 48

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

#endif
