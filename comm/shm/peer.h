/*
 * The processes that this process communicates with, itself included. The heap of a peer on this host is mapped
 * once, when first needed, for all communicators, and unmapped with the last of them. A remote peer is a process of
 * another host: none of its memory is mapped.
 */
#ifndef TUTTI_PEER_H
#define TUTTI_PEER_H

#include <stdatomic.h>
#include <sys/types.h>

#include "comm/shm/heap.h"

#define TUTTI_PROCESS_ID_BYTES 16

struct tutti_channels; /* p2p's state for this process, created at first use; p2p.c */

struct tutti_listener_info;
struct tutti_shm_segment;

/* Whether this process may read a peer's private memory. */
enum { TUTTI_PEER_UNKNOWN, TUTTI_PEER_READABLE, TUTTI_PEER_UNREADABLE };

typedef struct tutti_peer {
    uint8_t id[TUTTI_PROCESS_ID_BYTES]; /* random; a forked child has a different one */
    pid_t pid;
    bool pid_counts; /* the pid is valid in this process's pid namespace, too */
    char host[64];
    bool self, remote;
    char *base; /* its heap, as mapped here (self: the heap itself) */
    size_t bytes;
    uint64_t remote_base;              /* address of its heap in its own process */
    struct tutti_shm_segment *segment; /* one reference; tells whether the process is alive; NULL: self */
    int local_rank;                    /* in the segment; not used for a remote peer */
    atomic_bool verbs_only;            /* remote peer: reachable by RDMA only; transport.h */
    atomic_int readable;               /* TUTTI_PEER_READABLE and so on; peer_memory.c */
    atomic_bool dead;                  /* known to have ended */
    /* order of its death among those that this process has noticed, from 1; set before `dead` */
    _Atomic uint64_t death_turn;
    bool death_returned;          /* tutti_peer_new_deaths has returned it */
    _Atomic uint64_t deaths_read; /* number of deaths read from its channel directory; heartbeat.h */
    int references;               /* communicators that contain a rank of the process; under the lock of peer.c */
    const struct tutti_listener_info *listener; /* remote peer: its listener; in the segment */
    struct tutti_peer *next;
    struct tutti_channels *channels; /* owned by p2p.c; NULL until the first message */
} tutti_peer;

/* This process. */
tutti_status tutti_peer_self(tutti_peer **self_out);

/* What a process publishes about itself; the descriptors are passed separately. */
typedef struct tutti_process_info {
    uint8_t id[TUTTI_PROCESS_ID_BYTES];
    uint64_t heap_base, heap_bytes;
    int64_t pid;
    char host[64];
} tutti_process_info;

/* Finds the process of that local rank in the table, or maps it, and takes a reference. Always owns the descriptor. */
tutti_status tutti_peer_admit(struct tutti_shm_segment *segment, int local_rank, int heap_fd, tutti_peer **peer_out);
/* Finds a process of another host in the table, or adds it, and takes a reference. Of the info only id, pid and
 * host are used; the listener is in the segment. */
tutti_status tutti_peer_admit_remote(const tutti_process_info *info, struct tutti_shm_segment *segment,
                                     const struct tutti_listener_info *listener, tutti_peer **peer_out);
/* Takes one more reference to a known peer. */
void tutti_peer_retain(tutti_peer *peer);
/* Drops a reference; the last one unmaps the heap. */
void tutti_peer_release(tutti_peer *peer);
/* True if the process has ended. Asks the system now and then (segment.h) and remembers a positive answer. For a
 * remote peer: true if its death was reported. */
bool tutti_peer_ended(tutti_peer *peer);

/* Orders the deaths that this process knows of: the lowest number died first. UINT64_MAX: not dead. */
uint64_t tutti_peer_death_turn(const tutti_peer *peer);

/* Another host reports that the process has died. False: it is not known here, or its death is known already. */
bool tutti_peer_mark_dead(const uint8_t id[TUTTI_PROCESS_ID_BYTES]);
/* Returns the processes of this host that have died and were not returned before, and their number. A process that
 * left all communicators over several hosts before it ended is not included. */
int tutti_peer_new_deaths(uint8_t ids[][TUTTI_PROCESS_ID_BYTES], int capacity);
/* True if tutti_peer_new_deaths has returned the process, or has skipped it for good. */
bool tutti_peer_death_is_published(const tutti_peer *peer);

/* Translates an address of the peer's process into an address here; NULL if it is outside of the peer's heap. */
static inline void *tutti_peer_translate(const tutti_peer *peer, uint64_t address, size_t bytes) {
    if (peer->self) return (void *)(uintptr_t)address;
    uint64_t offset = address - peer->remote_base;
    if (offset >= peer->bytes || bytes > peer->bytes - offset) return NULL;
    return peer->base + offset;
}

/* True if this process may read the peer's private memory, at any address that the peer may read. Asks the system once
 * per peer. */
bool tutti_peer_can_read(tutti_peer *peer);
/* Copies from it. False: that memory cannot be read, or the peer has ended; later reads are not tried. After a read the
 * caller checks that the peer has not ended, since the peer's pid could then belong to another process. */
bool tutti_peer_read(tutti_peer *peer, uint64_t address, void *dst, size_t bytes);

/* "rank 3 (host b, pid 7)"; only the rank where its process is not known. Returns `text`. */
const char *tutti_peer_describe_rank(const tutti_comm *comm, int rank, char *text, size_t capacity);
/* Sets the error "rank 3 (host b, pid 7) died; WHAT of communicator "c" cannot go on", and returns its status. */
tutti_status tutti_peer_fail_died(const tutti_comm *comm, int rank, const char *what);

/* ------------------------------------------------------------------------------------------ directories
 * The first bytes of each heap: what a process shows all its peers on the host, whatever communicators they share.
 */

#define TUTTI_DEATHS 62

/* The latest processes to end, on this host or on others; heartbeat.h. The owner's heartbeats write it. */
typedef struct tutti_deaths {
    TUTTI_ALIGNED_LINE _Atomic uint64_t count; /* release, pairs with tutti_heartbeat_read_deaths */
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
    /* Threads of the owner that sleep until a peer has acted for them, and the word on which they sleep. A process that
     * finds sleepers after a change that they may wait for increments the word. On a line that hardly ever changes. */
    TUTTI_ALIGNED_LINE atomic_int sleepers;
    _Atomic uint32_t bell;
    uint8_t owner[TUTTI_PROCESS_ID_BYTES]; /* the process; set before peers map the heap */
    tutti_deaths deaths;
    TUTTI_ALIGNED_LINE tutti_channel_directory_entry entries[TUTTI_CHANNEL_DIRECTORY_ENTRIES];
} tutti_channel_directory;

_Static_assert(sizeof(tutti_channel_directory) <= TUTTI_HEAP_DIRECTORY_BYTES, "the channel directory fits");

#endif
