/*
 * What the ranks of one host share of a communicator that was made through a store: one memfd, made by the host's leader.
 *
 *    | head | seats: one per rank of the host | pages: likewise | roll of all ranks | doors of all ranks (several hosts) |
 *
 * So what grows with the number of ranks is there once per host, and each rank needs one descriptor to know of the others'
 * deaths: the process of seat i holds a lock on byte i of the memfd for as long as it lives (fcntl(2): the lock belongs to
 * the process, and no forked child keeps it). Whoever wants to know asks the system for that lock; the answer is left in the
 * seat for the others.
 *
 * A process keeps a hall as long as somebody asks there whether it lives: who left too early would be taken for dead.
 *
 * Invariant: a rank writes only its own seat and page, but for what the seat marks as anybody's.
 */
#ifndef TUTTI_HALL_H
#define TUTTI_HALL_H

#include "comm/card.h"
#include "comm/door.h"
#include "comm/peer.h"
#include "comm/roll.h"

/* Where the time goes until a communicator is there; start.h. */
#define TUTTI_HALL_PHASES 8

typedef struct tutti_seat {
    TUTTI_ALIGNED_LINE tutti_peer_card card;
    uint64_t pid_space;
    int64_t phase_ns[TUTTI_HALL_PHASES];          /* how long the rank's phases of the start were */
    _Atomic uint32_t left;                        /* its process uses the hall no more */
    TUTTI_ALIGNED_LINE _Atomic uint32_t watchers; /* anybody's: processes that ask here whether it lives */
    _Atomic int64_t asked_ns; /* anybody's: when the system was last asked whether the process lives */
    _Atomic uint32_t dead;    /* anybody's: it does not */
} tutti_seat;

typedef struct tutti_hall tutti_hall;

/* The leader of `host` makes the hall, with room for its ranks and a copy of the roll. One reference. */
tutti_status tutti_hall_create(const tutti_roll *roll, int host, tutti_hall **hall_out);
/* Maps what the leader has sent, or finds it in the table of this process's halls; takes the descriptor in any case. The ranks
 * of a world of nranks, `neighbours` of which are on this host. One reference. */
tutti_status tutti_hall_join(int fd, int nranks, int neighbours, tutti_hall **hall_out);
/* Takes a seat: makes sure that the page's memory is there, and holds the lock from now on. Once per rank. */
tutti_status tutti_hall_sit(tutti_hall *hall, int seat);
/* All have met. Where all know each other from an earlier hall already, this one's descriptor is of no more use. */
void tutti_hall_settle(tutti_hall *hall);
void tutti_hall_retain(tutti_hall *hall);
/* NULL is allowed. */
void tutti_hall_release(tutti_hall *hall);

int tutti_hall_fd(const tutti_hall *hall);
tutti_seat *tutti_hall_seat(const tutti_hall *hall, int seat);
tutti_page *tutti_hall_page(const tutti_hall *hall, int seat);
const tutti_roll *tutti_hall_roll(const tutti_hall *hall);
/* By rank of the world; NULL on a single host. Written by the ranks (their own) and the leader (other hosts'). */
tutti_door_card *tutti_hall_doors(const tutti_hall *hall);

/* Is the page one of this hall's? NULL is allowed. */
bool tutti_hall_holds(const tutti_hall *hall, const tutti_page *page);

/* From now on this process asks in that seat whether the seat's process lives; counts a reference. Before the first meeting. */
void tutti_hall_watch(tutti_hall *hall, int seat);
/* The other way; gives the reference back. */
void tutti_hall_unwatch(tutti_hall *hall, int seat);
/* Has the process of that seat ended? At most some system calls a second, however many ask. */
bool tutti_hall_has_ended(tutti_hall *hall, int seat);

#endif
