/*
 * The memory that the ranks of one host share for a communicator created through a store: one memfd, created by the
 * host's leader.
 *
 *    | head | members: one per rank of the host | pages: likewise | peer table of all ranks | listeners of all ranks |
 *                                                                                             (several hosts only)
 *
 * So data that grows with the number of ranks exists once per host, and each rank needs one descriptor to detect the
 * deaths of the others: the process of local rank i holds a lock on byte i of the memfd as long as it lives (fcntl(2):
 * the lock belongs to the process, and no forked child inherits it). A process that checks another one asks the system
 * for that lock and stores the answer in the member for the other processes.
 *
 * A process keeps a segment as long as another process checks there whether it lives: if it left too early, it would be
 * taken for dead.
 *
 * A local rank is the index of a rank among the ranks of its host, in ascending order; 0 is the leader.
 *
 * Invariant: a rank writes only its own member and page, except for the fields of a member marked "any process".
 */
#ifndef TUTTI_SHM_SEGMENT_H
#define TUTTI_SHM_SEGMENT_H

#include "comm/base/comm.h"
#include "comm/shm/peer.h"

/* Phases of the creation of a communicator, for their times; init.h. */
#define TUTTI_SHM_SEGMENT_PHASES 8

typedef struct tutti_shm_member {
    TUTTI_ALIGNED_LINE tutti_process_info info;
    uint64_t pid_space;
    int64_t phase_ns[TUTTI_SHM_SEGMENT_PHASES]; /* durations of the rank's start phases */
    _Atomic uint32_t left;                      /* its process no longer uses the segment */
    /* any process: number of processes that check here whether it lives */
    TUTTI_ALIGNED_LINE _Atomic uint32_t watchers;
    _Atomic int64_t asked_ns; /* any process: time of the last query whether the process lives */
    _Atomic uint32_t dead;    /* any process: it has died */
} tutti_shm_member;

typedef struct tutti_shm_segment tutti_shm_segment;

/* The leader of a host creates the segment, with members for `neighbours` of the nranks ranks, a copy of the peer
 * table, and room for the listeners (listeners_bytes: 0 on a single host). One reference. */
tutti_status tutti_shm_segment_create(int nranks, int neighbours, const void *table, size_t table_bytes,
                                      size_t listeners_bytes, tutti_shm_segment **segment_out);

/* What the segment of another process must fit. */
typedef struct tutti_shm_segment_limits {
    int nranks, neighbours; /* size of the world, and number of its ranks on this host */
    size_t least_table_bytes, most_table_bytes;
    size_t listeners_bytes; /* if there are listeners */
    tutti_status (*check_table)(const void *table, size_t bytes, int nranks);
} tutti_shm_segment_limits;

/* Maps the memfd from the leader, or finds it among this process's segments; always owns it. One reference. */
tutti_status tutti_shm_segment_join(int fd, const tutti_shm_segment_limits *limits, tutti_shm_segment **segment_out);
/* Commits the page's memory, and holds the lock from now on. Once per rank. */
tutti_status tutti_shm_segment_enter(tutti_shm_segment *segment, int local_rank);
/* Called after all ranks have met. Closes the descriptor if all processes check each other elsewhere already. */
void tutti_shm_segment_close_fd(tutti_shm_segment *segment);
void tutti_shm_segment_retain(tutti_shm_segment *segment);
/* NULL is allowed. */
void tutti_shm_segment_release(tutti_shm_segment *segment);

int tutti_shm_segment_fd(const tutti_shm_segment *segment);
tutti_shm_member *tutti_shm_segment_member(const tutti_shm_segment *segment, int local_rank);
tutti_page *tutti_shm_segment_page(const tutti_shm_segment *segment, int local_rank);
/* A tutti_peer_table (comm/init/peer_table.h). */
const void *tutti_shm_segment_peer_table(const tutti_shm_segment *segment);
/* A table of tutti_listener_info (comm/net/listener.h), indexed by rank of the world; NULL on a single host. Each rank
 * writes its own entry, the leader those of other hosts. */
void *tutti_shm_segment_listeners(const tutti_shm_segment *segment);

/* True if the page belongs to this segment. NULL is allowed. */
bool tutti_shm_segment_holds(const tutti_shm_segment *segment, const tutti_page *page);

/* From now on this process checks there whether that process lives; takes a reference. Before the first meeting. */
void tutti_shm_segment_watch(tutti_shm_segment *segment, int local_rank);
/* Ends the check and drops the reference. */
void tutti_shm_segment_unwatch(tutti_shm_segment *segment, int local_rank);
/* True if the process of that local rank has ended. A few system calls per second at most, however many ask. */
bool tutti_shm_segment_has_ended(tutti_shm_segment *segment, int local_rank);

/* ----------------------------------------------------------------------------------------------- retire.c */

/* Takes over the page, the lease and the references to processes of a communicator that has departed. Frees them
 * once every other rank has departed or died; each call checks all retired communicators. */
void tutti_retire_comm(tutti_comm *comm);

/* Memory that peers of this communicator may read: released together with the page. At most three per communicator. */
void tutti_retire_memory(tutti_comm *comm, void *memory, void (*give_back)(void *memory));

#endif
