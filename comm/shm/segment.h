/*
 * What the ranks of one host share of a communicator that was made through a store: one memfd, made by the host's leader.
 *
 *    | head | seats: one per rank of the host | pages: likewise | peer table of all ranks | listeners of all ranks (several hosts) |
 *
 * So what grows with the number of ranks is there once per host, and each rank needs one descriptor to know of the others'
 * deaths: the process of seat i holds a lock on byte i of the memfd for as long as it lives (fcntl(2): the lock belongs to
 * the process, and no forked child keeps it). Whoever wants to know asks the system for that lock; the answer is left in the
 * seat for the others.
 *
 * A process keeps a segment as long as somebody asks there whether it lives: who left too early would be taken for dead.
 *
 * Invariant: a rank writes only its own seat and page, but for what the seat marks as anybody's.
 */
#ifndef TUTTI_SHM_SEGMENT_H
#define TUTTI_SHM_SEGMENT_H

#include "comm/init/peer_info.h"
#include "comm/net/listener.h"
#include "comm/shm/peer.h"
#include "comm/init/peer_table.h"

/* Where the time goes until a communicator is there; timing.h. */
#define TUTTI_SHM_SEGMENT_PHASES 8

typedef struct tutti_shm_member {
    TUTTI_ALIGNED_LINE tutti_peer_card card;
    uint64_t pid_space;
    int64_t phase_ns[TUTTI_SHM_SEGMENT_PHASES];          /* how long the rank's phases of the start were */
    _Atomic uint32_t left;                        /* its process uses the segment no more */
    TUTTI_ALIGNED_LINE _Atomic uint32_t watchers; /* anybody's: processes that ask here whether it lives */
    _Atomic int64_t asked_ns; /* anybody's: when the system was last asked whether the process lives */
    _Atomic uint32_t dead;    /* anybody's: it does not */
} tutti_shm_member;

typedef struct tutti_shm_segment tutti_shm_segment;

/* The leader of `host` makes the segment, with room for its ranks and a copy of the peer table. One reference. */
tutti_status tutti_shm_segment_create(const tutti_peer_table *table, int host, tutti_shm_segment **hall_out);
/* Maps what the leader has sent, or finds it in the table of this process's segments; takes the descriptor in any case. The ranks
 * of a world of nranks, `neighbours` of which are on this host. One reference. */
tutti_status tutti_shm_segment_join(int fd, int nranks, int neighbours, tutti_shm_segment **hall_out);
/* Takes a seat: makes sure that the page's memory is there, and holds the lock from now on. Once per rank. */
tutti_status tutti_shm_segment_enter(tutti_shm_segment *segment, int seat);
/* All have met. Where all know each other from an earlier segment already, this one's descriptor is of no more use. */
void tutti_shm_segment_close_fd(tutti_shm_segment *segment);
void tutti_shm_segment_retain(tutti_shm_segment *segment);
/* NULL is allowed. */
void tutti_shm_segment_release(tutti_shm_segment *segment);

int tutti_shm_segment_fd(const tutti_shm_segment *segment);
tutti_shm_member *tutti_shm_segment_member(const tutti_shm_segment *segment, int seat);
tutti_page *tutti_shm_segment_page(const tutti_shm_segment *segment, int seat);
const tutti_peer_table *tutti_shm_segment_peer_table(const tutti_shm_segment *segment);
/* By rank of the world; NULL on a single host. Written by the ranks (their own) and the leader (other hosts'). */
tutti_listener_info *tutti_shm_segment_listeners(const tutti_shm_segment *segment);

/* Is the page one of this segment's? NULL is allowed. */
bool tutti_shm_segment_holds(const tutti_shm_segment *segment, const tutti_page *page);

/* From now on this process asks in that seat whether the seat's process lives; counts a reference. Before the first meeting. */
void tutti_shm_segment_watch(tutti_shm_segment *segment, int seat);
/* The other way; gives the reference back. */
void tutti_shm_segment_unwatch(tutti_shm_segment *segment, int seat);
/* Has the process of that seat ended? At most some system calls a second, however many ask. */
bool tutti_shm_segment_has_ended(tutti_shm_segment *segment, int seat);

#endif
