/*
 * Channels: two rings between this process and another of the host, one for each direction, shared by all
 * communicators and all ranks of the two.
 *
 *        our heap (we write)                               the peer's heap (it writes)
 *        channel directory: generation, {peer id -> block}             channel directory: generation, {our id -> block}
 *        block: ring  -- records ------------------------> looks at the next one, takes it,
 *               tail  -- how far we have read its ring     and says so in its tail
 *
 * The line after the last record begins with 0: that is where the peer looks, so that a short message crosses in one
 * line. What else a writer must know (tail, matched) it reads only when what it has seen of it no longer suffices.
 *
 *   1. The first record for a process makes our block and enters it in our channel directory.
 *   2. We count ourselves among the callers in the peer's channel directory. It then looks for a change of the generation of ours, finds
 *      the entry with its id and maps nothing more: it has our heap.
 *   3. It makes its own block, with which it tells how far it has read, and enters that in its channel directory.
 *
 * A block outlives the mapping of the peer: when the two meet again both go on where they stopped. It is used anew
 * for another process once the peer has ended.
 *
 * Invariant: a process writes only its own block and channel directory, but for the count of callers and the bell. What is read from a
 * peer is checked; what cannot be true breaks the channel. A channel is used under the lock of p2p.
 */
#ifndef TUTTI_CHANNEL_H
#define TUTTI_CHANNEL_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "comm/shm/heap.h"
#include "comm/shm/peer.h"

/* Of a ring to another host, and of the smallest ring of a pair of processes. No payload is larger. */
#define TUTTI_CHANNEL_RING_BYTES ((size_t)256 << 10)
/* Of the rings to the first processes of this host: twice a core's own cache, so that a line has left the reader's cache
 * when it is written again. To take it back from there takes 3 times as long as to write it. */
#define TUTTI_CHANNEL_LARGE_RING_BYTES ((size_t)2 << 20)
/* Room that only answers (CLEAR, DONE) may use, so that they hardly ever wait. */
#define TUTTI_CHANNEL_RESERVE_BYTES ((size_t)4 << 10)
#define TUTTI_RECORD_TINY_BYTES     24

typedef enum tutti_record_kind {
    TUTTI_RECORD_EAGER = 1, /* a message with its bytes */
    TUTTI_RECORD_ANNOUNCE,  /* a message whose bytes the receiver pulls or asks for */
    TUTTI_RECORD_CLEAR,     /* answer: stream the first `bytes` bytes of `transfer`, from `from` on, to `answer` */
    TUTTI_RECORD_FRAGMENT,  /* bytes of a stream, from offset `bytes` on, for `transfer` */
    TUTTI_RECORD_DONE,      /* answer: `transfer` has been taken (bytes: 0), or nobody will take it (1) */
    TUTTI_RECORD_BROKEN, /* between hosts: the communicator is broken; bytes: the status, negated; payload: the reason */
    TUTTI_RECORD_LEFT,   /* between hosts: `source` has destroyed the communicator */
    TUTTI_RECORD_END
} tutti_record_kind;

/*
 * One line in a ring; payload follows in whole lines, except for an eager message that fits into `tiny`. Larger eager
 * messages come in parts, so that the reader begins before the writer is through; in front of each part after the first
 * stands a line whose `kind` says that it is there:
 *
 *   | record | part 0 | line | part 1 | ... | line | last part |
 */
typedef struct tutti_record {
    uint32_t kind; /* in a ring: written last, release; pairs with tutti_channel_peek */
    uint32_t payload_bytes;
    uint64_t comm_id; /* messages: communicator, ranks and tag */
    int32_t source, destination;
    int64_t tag;
    uint64_t bytes;
    union {
        uint8_t tiny[TUTTI_RECORD_TINY_BYTES];
        struct {
            uint64_t transfer; /* the id that the reader of this record gave it; ANNOUNCE: the writer's */
            uint64_t answer;   /* CLEAR: the id that the receiver gave it */
            union {
                uint64_t address; /* ANNOUNCE: of the bytes in the writer's process */
                uint64_t from;    /* CLEAR: bytes that the receiver has copied himself */
            };
        };
    };
} tutti_record;

_Static_assert(sizeof(tutti_record) == TUTTI_CACHE_LINE, "a record's header is one line");

#define TUTTI_OBITUARIES 62

/* Processes that have ended, here or on other hosts, the last ones of them; heartbeat.h. Written by the owner's heartbeats. */
typedef struct tutti_obituaries {
    TUTTI_ALIGNED_LINE _Atomic uint64_t count; /* release, pairs with tutti_heartbeat_read */
    _Atomic uint64_t ids[TUTTI_OBITUARIES][2];
} tutti_obituaries;

/* An entry of the channel directory. It counts once `offset` is not 0 (release; pairs with find_block). */
typedef struct tutti_channel_directory_entry {
    _Atomic uint64_t id[2];  /* of the peer for whom the block is */
    _Atomic uint64_t offset; /* of the block in its owner's heap */
    uint64_t unused;
} tutti_channel_directory_entry;

#define TUTTI_CHANNEL_DIRECTORY_ENTRIES ((TUTTI_HEAP_DIRECTORY_BYTES - sizeof(tutti_obituaries)) / sizeof(tutti_channel_directory_entry) - 8)

/* The first bytes of each heap. Written by its owner only, but for `callers`. */
typedef struct tutti_channel_directory {
    TUTTI_ALIGNED_LINE _Atomic uint64_t generation; /* changes with each entry; release, pairs with _find */
    _Atomic uint64_t count;                         /* entries in use */
    /* Threads that wait in the library, and so would stream what they have announced. */
    TUTTI_ALIGNED_LINE atomic_int attending;
    /* Communicators over several hosts in which the owner is: whether it has left or died, when it has ended. Release;
     * pairs with tutti_peer_new_deaths. */
    atomic_int memberships;
    /* How often a process has entered a block for this one in its channel directory. Written by them: so that this one looks into their
     * lobbies only then, and the heap of a process that sends nothing is never touched. */
    TUTTI_ALIGNED_LINE _Atomic uint64_t callers;
    /* Threads of the owner that sleep until a peer has done something for them, and the word on which they sleep: whoever
     * finds sleepers after a change that they may wait for counts it up. Lies on a line that hardly ever changes. */
    TUTTI_ALIGNED_LINE atomic_int sleepers;
    _Atomic uint32_t bell;
    tutti_obituaries obituaries;
    TUTTI_ALIGNED_LINE tutti_channel_directory_entry entries[TUTTI_CHANNEL_DIRECTORY_ENTRIES];
} tutti_channel_directory;

_Static_assert(sizeof(tutti_channel_directory) <= TUTTI_HEAP_DIRECTORY_BYTES, "the lobby fits");

#define TUTTI_CHANNEL_MAGIC UINT64_C(0x54757474694c6e33)

/* What one process shows the other. Written by its owner only. */
typedef struct tutti_channel_block {
    uint64_t magic, ring_bytes; /* a power of two */
    uint8_t owner[TUTTI_PROCESS_ID_BYTES];
    uint64_t head, sent, tail_seen;           /* the owner's notes while the channel is closed */
    TUTTI_ALIGNED_LINE _Atomic uint64_t tail; /* bytes read of the peer's ring; release, pairs with has_room */
    _Atomic uint64_t matched;                 /* cost of the peer's eager messages that have found a receive */
    TUTTI_ALIGNED_LINE uint8_t ring[];        /* ring_bytes */
} tutti_channel_block;

TAILQ_HEAD(tutti_requests, tutti_request);
STAILQ_HEAD(tutti_notes, tutti_note);

typedef struct tutti_channels {
    tutti_peer *peer;
    TAILQ_ENTRY(tutti_channels) link;
    tutti_channel_block *own;          /* NULL until something is sent or received */
    const tutti_channel_block *theirs; /* NULL until found */
    size_t own_bytes, their_bytes;     /* of the rings of the two */
    uint64_t generation;               /* of their channel directory, at the last look */
    uint64_t head, tail_seen;          /* our ring: written; read by the peer, at the last look */
    uint64_t tail;                     /* their ring: read */
    uint64_t sent, matched_seen;       /* cost of eager messages to the peer: all; that found a receive, last look */
    uint64_t came, matched;            /* cost of eager messages from the peer: all; that found a receive */
    bool distant;                      /* the peer's caches were far when that was last looked at; channel_ring.c */
    bool doubted;                      /* the last look found the other distance, once */
    unsigned streamed;                 /* payloads written past the caches because of that */
    struct tutti_remote_channel *remote;             /* to a process of another host: its pipes; remote_channel.h */
    int64_t dead_since_ns;             /* far: when the peer was found to have ended; 0: it has not */
    bool busy;                         /* far: counted as pending, since it has something to send */
    bool probed, readable;             /* peer_read.c */
    bool broken, gone;                 /* reason in `error`; the peer has ended and all it sent has been read */
    char error[256];

    /* Kept by p2p. */
    int users;                       /* ranks of open communicators that this process has there */
    struct tutti_requests waiting;   /* sends that are not in the ring yet, in order */
    struct tutti_requests announced; /* sends whose ANNOUNCE is in the ring */
    struct tutti_requests streaming; /* sends with a CLEAR, taking turns */
    struct tutti_requests receiving; /* receives whose stream comes in */
    struct tutti_notes notes;        /* answers for which the ring had no room */
} tutti_channels;

/* Opens a channel to the peer: nothing is written yet. */
tutti_status tutti_channel_open(tutti_peer *peer, tutti_channels **channel_out);
/* Leaves the block at rest and frees the channel. NULL is allowed. */
void tutti_channel_close(tutti_channels *channel);

/* Makes our block if it is not there yet. */
tutti_status tutti_channel_make(tutti_channels *channel);
/* Looks for the peer's block; true when it is found (now or before). Makes ours then. */
bool tutti_channel_find(tutti_channels *channel);
/* Grows when a peer has made its block for this process: a look that costs nothing, before tutti_channel_find. */
uint64_t tutti_channel_callers(void);

/* A thread of this process that has nothing to do until a peer writes, reads or gives credit, or tutti_channel_ring_own is
 * called: from _begin on all that rings the bell. *bell_out is for _sleep, which returns when the bell has rung since
 * _begin, or after most_ns; between the two the thread looks once more for what it waits for. A peer's change may be missed
 * until tutti_page_order has been called after _begin. */
void tutti_channel_sleep_begin(uint32_t *bell_out);
void tutti_channel_sleep(uint32_t bell, int64_t most_ns);
void tutti_channel_sleep_end(void);
/* Wakes threads of this process. */
void tutti_channel_ring_own(void);
/* Wakes the peer's threads that sleep. After a change that they may wait for. */
void tutti_channel_ring_bell(tutti_channel_directory *directory);
static inline void tutti_channel_ring(const tutti_channels *channel) {
    tutti_channel_directory *theirs = (tutti_channel_directory *)channel->peer->base;
    atomic_signal_fence(memory_order_seq_cst); /* the processor's part is the sleeper's barrier */
    if (TUTTI_UNLIKELY(atomic_load_explicit(&theirs->sleepers, memory_order_relaxed) > 0))
        tutti_channel_ring_bell(theirs);
}

/* Is there room for a record with this payload, leaving reserve_bytes free? Needs tutti_channel_make. */
bool tutti_channel_has_room(tutti_channels *channel, const tutti_record *record, size_t reserve_bytes);
/* Writes the record and its payload. There must be room. */
void tutti_channel_write(tutti_channels *channel, const tutti_record *record, const void *payload);

/* The word that is not 0 any more once the next record has come, for a look without the lock. Needs _find. */
const _Atomic uint32_t *tutti_channel_next(const tutti_channels *channel);
/* Copies out the next record's header; false: there is none, or the channel is broken. */
bool tutti_channel_peek(tutti_channels *channel, tutti_record *record_out);
/* Is all of its payload there? */
bool tutti_channel_is_whole(const tutti_channels *channel, const tutti_record *record);
/* Copies the first bytes of the payload of the record at hand, waiting for parts that are being written; false: they
 * did not come soon. */
bool tutti_channel_copy(const tutti_channels *channel, const tutti_record *record, void *dst, size_t bytes);
/* Takes the record at hand. */
void tutti_channel_skip(tutti_channels *channel, const tutti_record *record);

/* What an eager message counts against the backlog. */
static inline uint64_t tutti_channel_cost(uint64_t bytes) {
    return bytes + TUTTI_CACHE_LINE;
}
/* May an eager message of that size be sent without passing the bound of what the peer keeps for us? */
bool tutti_channel_has_credit(tutti_channels *channel, uint64_t bytes);
/* An eager message from the peer has found its receive, or nobody will ever ask for it. */
void tutti_channel_give_credit(tutti_channels *channel, uint64_t bytes);

/* Does a thread of the peer wait in the library just now? Then it can stream. */
bool tutti_channel_is_attended(const tutti_channels *channel);
/* A thread of this process begins (1) or ends (-1) to wait. */
void tutti_channel_attend(int threads);

/* The peer broke the rules: nothing more is read from it. */
void tutti_channel_break(tutti_channels *channel, const char *format, ...) TUTTI_PRINTF(2, 3);

#endif
