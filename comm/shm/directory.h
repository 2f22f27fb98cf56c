/*
 * The first bytes of each heap: what a process shows all its peers on the host, whatever communicators they share.
 */
#ifndef TUTTI_DIRECTORY_H
#define TUTTI_DIRECTORY_H

#include <stdatomic.h>

#include "bootstrap/base/common.h"
#include "comm/shm/heap.h"

#define TUTTI_DEATHS 62

/* The latest processes to end, on this host or on others; heartbeat.h. The owner's heartbeats write it. */
typedef struct tutti_deaths {
    TUTTI_ALIGNED_LINE _Atomic uint64_t count; /* release, pairs with tutti_heartbeat_read */
    _Atomic uint64_t ids[TUTTI_DEATHS][2];
} tutti_deaths;

/* An entry of the channel directory. It is valid once `offset` is not 0 (release; pairs with find_block). */
typedef struct tutti_channel_directory_entry {
    _Atomic uint64_t id[2];  /* id of the peer that the block is for */
    _Atomic uint64_t offset; /* offset of the block in its owner's heap */
    uint64_t unused;
} tutti_channel_directory_entry;

#define TUTTI_CHANNEL_DIRECTORY_ENTRIES                                                                                \
    ((TUTTI_HEAP_DIRECTORY_BYTES - sizeof(tutti_deaths)) / sizeof(tutti_channel_directory_entry) - 8)

/* The first bytes of each heap. Only the owner writes them, except for `callers` and `bell`. */
typedef struct tutti_channel_directory {
    TUTTI_ALIGNED_LINE _Atomic uint64_t generation; /* changes with each entry; release, pairs with _find */
    _Atomic uint64_t count;                         /* entries in use */
    /* Threads that wait in the library and can therefore stream what they have announced. */
    TUTTI_ALIGNED_LINE atomic_int attending;
    /* Communicators over several hosts that the owner is a member of. Shows, after its end, whether the owner left
     * or died. Release; pairs with tutti_peer_new_deaths. */
    atomic_int memberships;
    /* Counts the blocks that other processes have entered for this one in their channel directories. The callers
     * increment it. This process searches their directories only after a change, and never touches the heap of a
     * process that sends nothing. */
    TUTTI_ALIGNED_LINE _Atomic uint64_t callers;
    /* Threads of the owner that sleep until a peer has acted for them, and the word on which they sleep. A process
     * that finds sleepers after a change that they may wait for increments the word. On a line that hardly ever
     * changes. */
    TUTTI_ALIGNED_LINE atomic_int sleepers;
    _Atomic uint32_t bell;
    tutti_deaths deaths;
    TUTTI_ALIGNED_LINE tutti_channel_directory_entry entries[TUTTI_CHANNEL_DIRECTORY_ENTRIES];
} tutti_channel_directory;

_Static_assert(sizeof(tutti_channel_directory) <= TUTTI_HEAP_DIRECTORY_BYTES, "the channel directory fits");

#endif
