/*
 * The processes that this one has to do with, itself included. The heap of a peer of this host is mapped once, at first
 * contact, however many communicators there are; the mapping goes with the last of them. A far peer is a process of another
 * host: nothing of it is mapped.
 */
#ifndef TUTTI_PEER_H
#define TUTTI_PEER_H

#include <stdatomic.h>
#include <sys/types.h>

#include "bootstrap/base/common.h"

#define TUTTI_PROCESS_ID_BYTES 16

struct tutti_channels; /* p2p's state towards this process, made at first use; p2p.c */

struct tutti_listener_info;
struct tutti_shm_segment;

typedef struct tutti_peer {
    uint8_t id[TUTTI_PROCESS_ID_BYTES]; /* random; a forked child has another one */
    pid_t pid;
    bool pid_counts; /* here, too, the pid means that process */
    char host[64];
    bool self, remote;
    char *base; /* its heap, mapped here (self: the heap itself) */
    size_t bytes;
    uint64_t remote_base;             /* address of its heap in its own process */
    struct tutti_shm_segment *segment;          /* one reference; tells whether the process lives; NULL: self */
    int seat;                         /* there; far: none */
    atomic_bool verbs_only;           /* far: by RDMA or not at all; verbs_only.h */
    atomic_bool dead;                 /* seen to have ended */
    _Atomic uint64_t death_turn;      /* how many this process had seen end before it, and itself; set before `dead` */
    bool death_told;                  /* tutti_peer_new_deaths has given it */
    _Atomic uint64_t obituaries_read; /* of its channel directory; heartbeat.h */
    int references;                   /* communicators that contain a rank of it; under the lock of peer.c */
    const struct tutti_listener_info *listener; /* far: where it can be reached; in the segment */
    struct tutti_peer *next;
    struct tutti_channels *channels; /* owned by p2p.c; NULL until the first message */
} tutti_peer;

/* This process. */
tutti_status tutti_peer_self(tutti_peer **self_out);

/* What a process tells of itself; the descriptors travel beside it. */
typedef struct tutti_peer_card {
    uint8_t id[TUTTI_PROCESS_ID_BYTES];
    uint64_t heap_base, heap_bytes;
    int64_t pid;
    char host[64];
} tutti_peer_card;

/* Finds the process of that seat in the table or maps it (takes over the descriptor in any case), and counts a reference. */
tutti_status tutti_peer_admit(struct tutti_shm_segment *segment, int seat, int heap_fd, tutti_peer **peer_out);
/* Finds a process of another host in the table or adds it, and counts a reference. Of the card only id, pid and host count;
 * the listener is in the segment. */
tutti_status tutti_peer_admit_remote(const tutti_peer_card *card, struct tutti_shm_segment *segment,
                                  const struct tutti_listener_info *listener, tutti_peer **peer_out);
/* Counts one more reference to a known peer. */
void tutti_peer_retain(tutti_peer *peer);
/* Counts one reference less; the last one unmaps. */
void tutti_peer_release(tutti_peer *peer);
/* Has its process ended? Asks the system now and then (segment.h), remembers a yes. Of a far one: has that been heard? */
bool tutti_peer_ended(tutti_peer *peer);

/* Orders the deaths that this process knows of: who was the first? UINT64_MAX: not dead. */
uint64_t tutti_peer_death_turn(const tutti_peer *peer);

/* The process has died, as another host says. False: it is not known here, or known to be dead. */
bool tutti_peer_mark_dead(const uint8_t id[TUTTI_PROCESS_ID_BYTES]);
/* Processes of this host that have died and were not given before; their number. Who has left all communicators over
 * several hosts before he ended is none of them. */
int tutti_peer_new_deaths(uint8_t ids[][TUTTI_PROCESS_ID_BYTES], int capacity);
/* Has tutti_peer_new_deaths given it, or would not? */
bool tutti_peer_death_is_published(const tutti_peer *peer);

/* An address in the peer's process as an address here; NULL when outside of its heap. */
static inline void *tutti_peer_translate(const tutti_peer *peer, uint64_t address, size_t bytes) {
    if (peer->self) return (void *)(uintptr_t)address;
    uint64_t offset = address - peer->remote_base;
    if (offset >= peer->bytes || bytes > peer->bytes - offset) return NULL;
    return peer->base + offset;
}

#endif
