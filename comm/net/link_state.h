/*
 * What the files of links share: the state of a link, and the record that precedes each transfer.
 *
 *   bytes of one direction:   record, data | record, data | ... | record (broken), reason
 *
 * Receiving has stages. A short transfer is taken with its record in one piece; a longer one goes straight to where it
 * belongs once the record has come; what is to be folded goes through pieces that stay in the cache. While nothing is to be
 * received, a link may listen for the next record, to hear at once that the other side has given up.
 *
 * Two ranks that send little to each other at once would meet in one socket: whose packet comes while the other one sends waits
 * in the socket until that call ends, and is worked on then. Two connections, one for each direction, avoid this, but then
 * nothing goes back on either that carries the acknowledgements, which become packets of their own. So sockets come in pairs, and
 * the directions change places with each exchange: who sends does so where the other side has sent the last time.
 *
 *   exchange       0      1      2      3         (lower rank: -> ; higher: <-)
 *   first link     ->     <-     ->     <-
 *   its twin       <-     ->     <-     ->
 *
 * Both sides count the exchanges; what goes one way only takes the first link.
 */
#ifndef TUTTI_LINK_STATE_H
#define TUTTI_LINK_STATE_H

#include "comm/net/link.h"
#include "comm/net/async_connect.h"
#include "comm/net/transport/transport.h"

#define TUTTI_LINK_SHORT_BYTES ((size_t)32768) /* copying is cheaper than a second system call */
#define TUTTI_LINK_TINY_BYTES  ((size_t)4096)  /* the same by RDMA, where there is no call to be saved */
/* Each way; above, the time that packets wait in a socket does not matter, and congestion control does better with one. */
#define TUTTI_LINK_TWIN_BYTES  ((size_t)32768)
#define TUTTI_LINK_PIECE_BYTES ((size_t)128 << 10)

/* Goes over the wire; fixed size. */
typedef struct tutti_link_record {
    uint32_t magic;
    uint32_t reason_bytes; /* broken: of the text that follows */
    uint64_t signature;    /* of the operation; TUTTI_SIGNATURE_BROKEN */
    uint64_t bytes;        /* of the transfer that follows */
    tutti_call call;
    int32_t status;   /* broken: why */
    uint32_t goodbye; /* broken: 1 where the sender has left, which matters to who wants something of him */
} tutti_link_record;

_Static_assert(sizeof(tutti_link_record) == 64, "one line");

typedef enum tutti_link_stage {
    TUTTI_LINK_IDLE,     /* no receive is under way in the pipe */
    TUTTI_LINK_RECORD,   /* the record alone; perhaps complete */
    TUTTI_LINK_SHORT,    /* record and data, into `buffer` */
    TUTTI_LINK_STRAIGHT, /* data, to where it belongs */
    TUTTI_LINK_PIECES,   /* data, into pieces, to be folded */
    TUTTI_LINK_REASON,   /* the text of a record that says "broken" */
} tutti_link_stage;

typedef struct tutti_link_in {
    tutti_link_stage stage;
    bool wanted;  /* a transfer is under way */
    bool checked; /* SHORT: the record was looked at */
    char *dst;    /* folds: the accumulator */
    size_t bytes, done;
    bool folds;
    tutti_fold fold;
    size_t posted;                         /* PIECES: bytes that have been asked of the pipe */
    size_t piece_bytes[2], piece_start[2]; /* of the transfer */
    int receiving, folding;                /* pieces */
    TUTTI_ALIGNED_LINE char buffer[sizeof(tutti_link_record) + TUTTI_LINK_SHORT_BYTES];
} tutti_link_in;

typedef struct tutti_link_out {
    bool wanted;
    bool ended; /* the last words have been said */
    tutti_link_record record;
} tutti_link_out;

enum { TUTTI_LINK_SENDS = 1, TUTTI_LINK_RECEIVES = 2, TUTTI_LINK_EXCHANGES = 3, TUTTI_LINK_LONG = 4 };

typedef struct tutti_link {
    int rank; /* of the communicator */
    bool is_twin;
    tutti_pipe *pipe;     /* NULL: not made yet */
    tutti_async_connect *attempt; /* is being made */
    bool busy;            /* in the list */
    unsigned ways;        /* of the first one: TUTTI_LINK_SENDS, _RECEIVES, in the call that begins */
    uint64_t exchanges;   /* of the first one: so far */
    tutti_link_out out;
    tutti_link_in in;
} tutti_link;

/* All links of a communicator; its runner's only. */
typedef struct tutti_links {
    tutti_link *awaited; /* is being made, and waited for */
    uint64_t door_seen;  /* tutti_listener_count at the last look */
    int nbusy;
    tutti_link **busy; /* 2 * nranks places; those with transfers under way */
    char *pieces;      /* two, or NULL */
    tutti_link *all[]; /* 2 * nranks: by rank, then their twins; NULL until they are used */
} tutti_links;

/* link_open.c: makes the link to a rank of the rail, if there is none, and, for an exchange, its twin. Waits. */
tutti_status tutti_link_make(const tutti_rail *rail, int rank, bool exchanges);
static inline tutti_link *tutti_link_first(const tutti_comm *comm, int rank) {
    return comm->links->all[rank];
}
/* NULL: it has none. */
static inline tutti_link *tutti_link_twin(const tutti_comm *comm, int rank) {
    return comm->links->all[comm->nranks + rank];
}
/* Begins to open what others have connected for this communicator: they may wait for that, whatever we wait for. */
tutti_status tutti_link_admit(tutti_comm *comm);
/* "rank 3 (host b)" */
const char *tutti_link_peer_name(const tutti_comm *comm, int rank, char *text, size_t capacity);

/* link_record.c */
tutti_link_record tutti_link_record_of(const tutti_op *op, size_t bytes);
/* Is it one at all? Bounds what the rest may rely on. */
bool tutti_link_record_sane(const tutti_link_record *record);
/* Compares it with op and with how much is to come; a difference breaks the communicator. */
/* Of a record that nobody waits for yet: it may be of another call than the one at hand, which then breaks the communicator. */
tutti_status tutti_link_record_unasked(tutti_comm *comm, const tutti_op *op, int rank, const tutti_link_record *record);
tutti_status tutti_link_record_compare(tutti_comm *comm, const tutti_op *op, int rank, const tutti_link_record *record,
                                       size_t bytes);

/* link_receive.c: starts to receive; moves what has come on; listens. */
tutti_status tutti_link_receive(const tutti_rail *rail, tutti_link *link, void *dst, size_t bytes,
                                const tutti_fold *fold);
tutti_status tutti_link_receive_advance(tutti_comm *comm, const tutti_op *op, tutti_link *link);
tutti_status tutti_link_listen(tutti_link *link);
/* Looks at a record for which the link listened: the other side may be in another call, which sends on another link. */
tutti_status tutti_link_receive_unasked(tutti_comm *comm, const tutti_op *op, const tutti_link *link);

/* link_wait.c: how one waits for links. */
typedef struct tutti_link_wait {
    tutti_comm *comm;
    uint64_t quiet_since, looked_at; /* ticks; 0: something has just moved */
    int64_t sleep_ns;
    unsigned rounds;
} tutti_link_wait;
/* After a round in which nothing moved, or something did: spins, yields or sleeps, and looks around now and then. */
tutti_status tutti_link_pause(tutti_link_wait *wait, bool moved);
/* Drives all busy links until they are not, and does the work (NULL: none). */
tutti_status tutti_link_drive(const tutti_rail *rail, const tutti_link_work *work);
/* What `status` of a link means: breaks the communicator if the pipe failed. */
tutti_status tutti_link_lost(tutti_comm *comm, const tutti_op *op, tutti_link *link, tutti_status status);

#endif
