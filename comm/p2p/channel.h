/*
 * Channels: two rings between this process and another process of the host, one for each direction, shared by all
 * communicators and all ranks of the two.
 *
 *        our heap (we write)                                the peer's heap (it writes)
 *        channel directory: generation, {peer id -> block}  channel directory: generation, {our id -> block}
 *        block: ring  -- records -------------------------> polls for the next record, takes it,
 *               tail  -- how far we have read its ring      and publishes its position in its tail
 *
 * The line after the last record begins with 0. The peer polls that word, so that a short message crosses in one
 * line. The writer reads the peer's other words (tail, matched) only when the values it has seen no longer suffice.
 *
 *   1. The first record for a process makes our block and enters it in our channel directory.
 *   2. We count ourselves among the callers in the peer's channel directory. The peer then checks the generation of our
 *      directory and finds the entry with its id. It maps nothing more, because it has our heap.
 *   3. The peer makes its own block, in which it publishes how far it has read, and enters it in its channel directory.
 *
 * A block outlives the mapping of the peer: when the two processes meet again, both continue where they stopped.
 * After the peer has ended, the block is reused for another process.
 *
 * Invariant: a process writes only its own block and channel directory, except for the count of callers and the
 * bell. Values read from a peer are checked; an impossible value breaks the channel. A channel is used under the
 * lock of p2p.
 */
#ifndef TUTTI_CHANNEL_H
#define TUTTI_CHANNEL_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "comm/shm/heap.h"
#include "comm/shm/peer.h"

/* Bytes of a ring to another host, and of the smallest ring between two processes. No payload is larger. */
#define TUTTI_CHANNEL_RING_BYTES  ((size_t)256 << 10)
#define TUTTI_LARGEST_EAGER_BYTES (TUTTI_CHANNEL_RING_BYTES / 2)
/* Bytes of the rings to the first processes of this host: twice a core's own cache, so that a line has left the
 * reader's cache when it is written again. Taking a line back from that cache takes 3 times as long as writing it. */
#define TUTTI_CHANNEL_LARGE_RING_BYTES ((size_t)2 << 20)
/* Bytes that only answers (CLEAR, DONE) may use, so that they hardly ever wait. */
#define TUTTI_CHANNEL_RESERVE_BYTES ((size_t)4 << 10)
#define TUTTI_RECORD_TINY_BYTES     32

typedef enum tutti_record_kind {
    TUTTI_RECORD_EAGER = 1, /* a message with its bytes */
    TUTTI_RECORD_ANNOUNCE,  /* a message with its first bytes, or none; the receiver pulls or requests the rest */
    TUTTI_RECORD_CLEAR,     /* answer: stream the first `bytes` bytes of `transfer`, from `from` on, to `answer` */
    TUTTI_RECORD_FRAGMENT,  /* bytes of a stream, starting at offset `bytes`, for `transfer` */
    TUTTI_RECORD_DONE,      /* answer: `transfer` has been taken (bytes: 0), or will never be taken (1) */
    TUTTI_RECORD_BROKEN, /* between hosts: the communicator is broken; bytes: the negated status; payload: the reason */
    TUTTI_RECORD_LEFT,   /* between hosts: `source` has destroyed the communicator */
    TUTTI_RECORD_END
} tutti_record_kind;

/* In a ring, added to the kind: TUTTI_GAP_BYTES of the ring after the record stay unused. */
#define TUTTI_RECORD_GAP (UINT32_C(1) << 8)

/*
 * One line in a ring. The payload follows in whole lines, except for an eager message that fits into `tiny`. Larger
 * eager messages come in parts, so that the reader can begin before the writer has finished. Each part after the
 * first is preceded by a line whose `kind` marks the part as present:
 *
 *   | record | part 0 | line | part 1 | ... | line | last part | gap |
 *
 * The gap (TUTTI_GAP_BYTES) is there if `kind` contains TUTTI_RECORD_GAP.
 */
typedef struct tutti_record {
    uint32_t kind; /* in a ring: written last, release; pairs with tutti_channel_peek */
    uint32_t payload_bytes;
    uint64_t comm_id; /* messages: communicator, ranks and tag */
    int32_t source, destination;
    int64_t tag;
    union {
        uint8_t tiny[TUTTI_RECORD_TINY_BYTES]; /* an eager message's bytes, if there are not more than this */
        struct {
            uint64_t bytes;    /* of the message; FRAGMENT, DONE, BROKEN: see the kinds */
            uint64_t transfer; /* the id that the reader of this record gave the transfer; ANNOUNCE: the writer's id */
            uint64_t answer;   /* CLEAR: the id that the receiver gave the transfer */
            union {
                uint64_t address; /* ANNOUNCE: address of the bytes in the writer's process */
                uint64_t from;    /* CLEAR: bytes that the receiver has copied by itself */
            };
        };
    };
} tutti_record;

_Static_assert(sizeof(tutti_record) == TUTTI_CACHE_LINE, "a record's header is one line");

#define TUTTI_CHANNEL_MAGIC UINT64_C(0x54757474694c6e33)

/* The data that one process shows the other. Only the owner writes it. */
typedef struct tutti_channel_block {
    uint64_t magic, ring_bytes;     /* a power of two */
    uint64_t head, sent, tail_seen; /* the owner's state while the channel is closed */
    /* bytes of the peer's ring that have been read; release, pairs with has_room */
    TUTTI_ALIGNED_LINE _Atomic uint64_t tail;
    _Atomic uint64_t matched;          /* cost of the peer's eager messages that have matched a receive */
    TUTTI_ALIGNED_LINE uint8_t ring[]; /* ring_bytes */
} tutti_channel_block;

TAILQ_HEAD(tutti_requests, tutti_request);
STAILQ_HEAD(tutti_notes, tutti_note);

typedef struct tutti_channels {
    tutti_peer *peer;
    TAILQ_ENTRY(tutti_channels) link;
    tutti_channel_block *own;          /* NULL until something is sent or received */
    const tutti_channel_block *theirs; /* NULL until found */
    size_t own_bytes, their_bytes;     /* bytes of the two rings */
    uint64_t generation;               /* of the peer's channel directory, at the last check */
    uint64_t head, tail_seen;          /* our ring: bytes written; bytes read by the peer, at the last check */
    uint64_t tail;                     /* the peer's ring: bytes read */
    size_t next_bytes; /* of the ring: the record at tail, which tutti_channel_peek has read, and the gap after it */
    /* cost of eager messages to the peer: all; matched with a receive, at the last check */
    uint64_t sent, matched_seen;
    uint64_t came, matched;              /* cost of eager messages from the peer: all; matched with a receive */
    bool distant;                        /* the peer's caches were distant at the last check; channel_ring.c */
    bool doubted;                        /* the last check found the other distance, once */
    unsigned streamed;                   /* payloads written past the caches because the peer is distant */
    int slow_looks;                      /* looks at the peer's tail in a row that found its caches distant */
    struct tutti_remote_channel *remote; /* to a process of another host: its pipes; remote_channel.h */
    int64_t dead_since_ns;               /* remote: when the peer was found to have ended; 0: it has not ended */
    bool busy;                           /* remote: counted as pending, because it has data to send */
    bool broken, gone;                   /* reason in `error`; the peer has ended and all data it sent has been read */
    char error[256];

    /* Kept by p2p. */
    int users;                       /* ranks of this process's open communicators that are in the peer's process */
    struct tutti_requests waiting;   /* sends that are not in the ring yet, in order */
    struct tutti_requests announced; /* sends whose ANNOUNCE is in the ring */
    struct tutti_requests streaming; /* sends with a CLEAR, taking turns */
    struct tutti_requests receiving; /* receives whose stream is arriving */
    struct tutti_notes notes;        /* answers that the ring had no room for */
} tutti_channels;

/* Opens a channel to the peer; writes nothing yet. */
tutti_status tutti_channel_open(tutti_peer *peer, tutti_channels **channel_out);
/* Leaves the block resting and frees the channel. NULL is allowed. */
void tutti_channel_close(tutti_channels *channel);

/* Makes our block if it does not exist yet. */
tutti_status tutti_channel_make(tutti_channels *channel);
/* Searches for the peer's block; returns true if it is found (now or before). Makes our block then. */
bool tutti_channel_find(tutti_channels *channel);
/* Grows when a peer has made its block for this process: a cheap check before tutti_channel_find. */
uint64_t tutti_channel_callers(void);

/* For a thread of this process that has nothing to do until a peer writes, reads or gives credit, or until
 * tutti_channel_ring_own is called. From _begin on, each of these events rings the bell. _sleep takes *bell_out and
 * returns when the bell has rung since _begin, or after most_ns; between the two calls the thread must check once
 * more for the event that it waits for. A peer's change may be missed until tutti_page_order has been called after
 * _begin. */
void tutti_channel_sleep_begin(uint32_t *bell_out);
void tutti_channel_sleep(uint32_t bell, int64_t most_ns);
void tutti_channel_sleep_end(void);
/* Wakes threads of this process. */
void tutti_channel_ring_own(void);
/* Wakes the peer's sleeping threads. Must be called after a change that they may wait for. */
void tutti_channel_ring_bell(tutti_channel_directory *directory);
static inline void tutti_channel_ring(const tutti_channels *channel) {
    tutti_channel_directory *theirs = (tutti_channel_directory *)channel->peer->base;
    atomic_signal_fence(memory_order_seq_cst); /* the processor's part is the sleeper's barrier */
    if (TUTTI_UNLIKELY(atomic_load_explicit(&theirs->sleepers, memory_order_relaxed) > 0))
        tutti_channel_ring_bell(theirs);
}

/* Returns true if there is room for a record of this payload besides reserve_bytes. Needs tutti_channel_make. */
bool tutti_channel_has_room(tutti_channels *channel, const tutti_record *record, size_t reserve_bytes);
/* Writes the record and its payload. There must be room. */
void tutti_channel_write(tutti_channels *channel, const tutti_record *record, const void *payload);

/* The word that becomes nonzero once the next record has come, for a check without the lock. Needs _find. */
const _Atomic uint32_t *tutti_channel_next(const tutti_channels *channel);
/* Copies out the next record's header. Returns false if no record has come or the channel is broken. */
bool tutti_channel_peek(tutti_channels *channel, tutti_record *record_out);
/* Returns true if the whole payload has come. */
bool tutti_channel_is_whole(const tutti_channels *channel, const tutti_record *record);
/* Copies the first bytes of the current record's payload, waiting for parts under way; false: they took too long. */
bool tutti_channel_copy(const tutti_channels *channel, const tutti_record *record, void *dst, size_t bytes);
/* Copies a fragment's payload, past the caches. */
void tutti_channel_copy_past(const tutti_channels *channel, const tutti_record *fragment, void *dst);
/* Bytes of the peer's ring have been read. */
void tutti_channel_pass(tutti_channels *channel, size_t bytes);
/* Takes the current record. */
void tutti_channel_skip(tutti_channels *channel, const tutti_record *record);

/* Looks at the peer. Returns true if the last looks found the caches of its core distant from this one's. */
bool tutti_channel_is_distant(tutti_channels *channel);

/* The cost of an eager message against the backlog. */
static inline uint64_t tutti_channel_cost(uint64_t bytes) {
    return bytes + TUTTI_CACHE_LINE;
}
/* Returns true if an eager message of that size can be sent within the bound of what the peer keeps for us. */
bool tutti_channel_has_credit(tutti_channels *channel, uint64_t bytes);
/* An eager message from the peer has matched its receive, or no receive will ever ask for it. */
void tutti_channel_give_credit(tutti_channels *channel, uint64_t bytes);

/* Returns true if a thread of the peer waits in the library now, and can therefore stream. */
bool tutti_channel_is_attended(const tutti_channels *channel);
/* A thread of this process begins (1) or ends (-1) its wait. */
void tutti_channel_attend(int threads);

/* The peer broke the protocol: nothing more is read from it. */
void tutti_channel_break(tutti_channels *channel, const char *format, ...) TUTTI_PRINTF(2, 3);

#endif
