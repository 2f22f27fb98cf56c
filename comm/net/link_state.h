/*
 * Shared by the files of links: the state of a link, and the record that precedes each transfer.
 *
 *   bytes of one direction:   record, data | record, data | ... | record (broken), reason
 *
 * Receiving has stages. A short transfer is received together with its record; the data of a longer one is received
 * straight into its destination once the record has arrived; data to be reduced goes through pieces that stay in
 * the cache. While nothing is to be received, a link may listen for the next record, to learn at once that the
 * other side has given up.
 *
 * If two ranks exchange small messages over one socket, a packet that arrives while this rank is in its send call
 * waits in the socket until the call ends, and is processed then. Two connections, one for each direction, avoid
 * this, but then neither carries data backwards to which acknowledgements could be attached, and these become
 * packets of their own. So sockets come in pairs, and the directions are swapped with each exchange: a rank sends
 * on the socket on which the other rank sent last time.
 *
 *   exchange       0      1      2      3         (lower rank: -> ; higher: <-)
 *   first link     ->     <-     ->     <-
 *   its twin       <-     ->     <-     ->
 *
 * Both sides count the exchanges. One-way transfers use only the first link.
 */
#ifndef TUTTI_LINK_STATE_H
#define TUTTI_LINK_STATE_H

#include "comm/net/async_connect.h"
#include "comm/net/link.h"
#include "comm/net/transport/transport.h"

#define TUTTI_LINK_SHORT_BYTES ((size_t)32768) /* copying is cheaper than a second system call */
#define TUTTI_LINK_TINY_BYTES  ((size_t)4096)  /* the same for RDMA, where there is no system call to save */
/* In each direction. Exchanges of 1 MiB were up to twice as slow with two connections under BBR, those of 64 to 512 KiB
 * 5 to 20 % faster, and all_reduce of 1 MiB between 4 hosts took 0.65 of the time; with reno both were equal. */
#define TUTTI_LINK_TWIN_BYTES  ((size_t)512 << 10)
#define TUTTI_LINK_PIECE_BYTES ((size_t)128 << 10)

/* Sent over the network; fixed size. */
typedef struct tutti_link_record {
    uint32_t magic;
    uint32_t reason_bytes; /* broken: bytes of the text that follows */
    uint64_t signature;    /* of the operation, or TUTTI_SIGNATURE_BROKEN */
    uint64_t bytes;        /* bytes of the transfer that follows */
    tutti_call call;
    int32_t status;   /* broken: the error */
    uint32_t goodbye; /* broken: 1 if the sender has left; an error only for ranks that still need data from it */
} tutti_link_record;

_Static_assert(sizeof(tutti_link_record) == 64, "one line");

typedef enum tutti_link_stage {
    TUTTI_LINK_IDLE,     /* no receive is under way in the pipe */
    TUTTI_LINK_RECORD,   /* the record alone; may be complete */
    TUTTI_LINK_SHORT,    /* record and data, into `buffer` */
    TUTTI_LINK_STRAIGHT, /* data, straight into its destination */
    TUTTI_LINK_PIECES,   /* data, into pieces, to be reduced */
    TUTTI_LINK_REASON,   /* the text of a record that says "broken" */
} tutti_link_stage;

typedef struct tutti_link_in {
    tutti_link_stage stage;
    bool wanted;  /* a transfer is under way */
    bool checked; /* SHORT: the record has been checked */
    char *dst;    /* reduction: the accumulator */
    size_t bytes, done;
    bool folds;
    tutti_fold fold;
    size_t posted;                         /* PIECES: bytes requested from the pipe so far */
    size_t piece_bytes[2], piece_start[2]; /* within the transfer */
    int receiving, folding;                /* index of the piece */
    TUTTI_ALIGNED_LINE char buffer[sizeof(tutti_link_record) + TUTTI_LINK_SHORT_BYTES];
} tutti_link_in;

typedef struct tutti_link_out {
    bool wanted;
    bool ended; /* the final record has been sent */
    tutti_link_record record;
} tutti_link_out;

enum { TUTTI_LINK_SENDS = 1, TUTTI_LINK_RECEIVES = 2, TUTTI_LINK_EXCHANGES = 3, TUTTI_LINK_LONG = 4 };

typedef struct tutti_link {
    int rank; /* in the communicator */
    bool is_twin;
    tutti_pipe *pipe;             /* NULL: not open yet */
    tutti_async_connect *attempt; /* the running connection attempt; NULL: none */
    bool busy;                    /* in the list of busy links */
    unsigned ways;                /* first link only: TUTTI_LINK_SENDS, _RECEIVES in the call that begins */
    uint64_t exchanges;           /* first link only: exchanges so far */
    tutti_link_out out;
    tutti_link_in in;
} tutti_link;

/* All links of a communicator; used only by the thread that runs its operations. */
typedef struct tutti_links {
    tutti_link *awaited;    /* the link that is being opened and waited for */
    uint64_t arrivals_seen; /* tutti_listener_count at the last check */
    int nbusy;
    tutti_link **busy; /* 2 * nranks entries; links with transfers under way */
    char *pieces;      /* two, or NULL */
    tutti_link *all[]; /* 2 * nranks: by rank, then their twins; NULL until first use */
} tutti_links;

static inline tutti_link *tutti_link_first(const tutti_comm *comm, int rank) {
    return comm->net.links->all[rank];
}
/* NULL: there is no twin. */
static inline tutti_link *tutti_link_twin(const tutti_comm *comm, int rank) {
    return comm->net.links->all[comm->nranks + rank];
}

/* link_receive.c: the record of a transfer. */
tutti_link_record tutti_link_record_of(const tutti_op *op, size_t bytes);
/* Starts to receive; processes what has arrived; listens. */
tutti_status tutti_link_receive(const tutti_rail *rail, tutti_link *link, void *dst, size_t bytes,
                                const tutti_fold *fold);
tutti_status tutti_link_receive_advance(tutti_comm *comm, const tutti_op *op, tutti_link *link);
tutti_status tutti_link_listen(tutti_link *link);
/* Checks a record that came while the link listened: the other side may be in another call, which uses another link. */
tutti_status tutti_link_receive_unasked(tutti_comm *comm, const tutti_op *op, const tutti_link *link);

/* link_wait.c: waiting for links. */
/* Creates the link to a rank of the rail, if there is none, and, for an exchange, its twin. Waits. */
tutti_status tutti_link_make(const tutti_rail *rail, int rank, bool exchanges);
/* Drives all busy links until their transfers are complete, and does the work (NULL: none). */
tutti_status tutti_link_drive(const tutti_rail *rail, const tutti_link_work *work);
/* Handles the error `status` of a link: breaks the communicator if the pipe has failed. */
tutti_status tutti_link_lost(tutti_comm *comm, const tutti_op *op, tutti_link *link, tutti_status status);

#endif
