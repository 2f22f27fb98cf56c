/*
 * The inside of a pipe: the state that pieces.c, connect.c (handshakes), direct.c (large messages) and pipe.c
 * (records, sleeping) work on; each calls only those before it.
 *
 * The bytes of a direction are counted from the opening on: a byte's *position*. Each byte travels in one of two
 * ways:
 *
 *   in a record in the ring     small parts of a send, at once; and bytes that the receiver has requested by the ring
 *   in a piece                  the receiver has *granted* a buffer for a range of positions; the sender writes there
 *
 * A receive of more than `direct_bytes` grants its buffer at once. A send of a part that large waits for a grant
 * that covers its position; if none arrives, it announces that (waiting_at), and a receiver with a small buffer
 * answers with a grant "by the ring". Records and pieces are ordered by their positions.
 *
 * Invariant: in_position and out_position only rise; no byte is written below the position that the receiver has
 * reached.
 */
#ifndef TUTTI_RDMA_STREAM_H
#define TUTTI_RDMA_STREAM_H

#include "bootstrap/base/common.h"
#include "rdma/lane.h"
#include "rdma/memory.h"
#include "rdma/rdma.h"
#include "rdma/ring.h"

enum { TUTTI_RDMA_STREAM_PIECES = 8 }; /* posted and not yet complete, at most */
#define TUTTI_RDMA_STREAM_NOWHERE UINT64_MAX

/* The memory that the peer writes; and, as a copy, what this side has written to the peer. */
typedef struct tutti_rdma_region {
    tutti_rdma_ring_line ring[TUTTI_RDMA_RING_ALL_LINES];
    tutti_rdma_ring_state state;
    tutti_rdma_ring_line probe; /* written once, to verify that writes arrive */
} tutti_rdma_region;

/* Part of a large message, striped over the first nlanes lanes. */
typedef struct tutti_rdma_piece {
    const char *from;
    uint32_t bytes;
    int nlanes;
    uint64_t to;
    uint32_t keys[TUTTI_RDMA_DEVICES_PORTS];
    uint64_t numbers[TUTTI_RDMA_DEVICES_PORTS]; /* number of its last write on each lane; 0: complete */
} tutti_rdma_piece;

/* A message on the socket: all kinds have the same form. */
typedef enum tutti_rdma_note_kind {
    TUTTI_RDMA_NOTE_HELLO = 1, /* the addresses of this side; also, with a higher round, after a fault */
    TUTTI_RDMA_NOTE_READY,     /* this side is connected: the peer may write to it */
    TUTTI_RDMA_NOTE_PROBED,    /* this side has written to the peer, and that worked */
    TUTTI_RDMA_NOTE_BYE,       /* this side closes the pipe; with a status other than 0: it has failed, and why */
} tutti_rdma_note_kind;

typedef struct tutti_rdma_note {
    char magic[4];
    uint32_t version, kind, round;
    int32_t status;
    uint32_t nlanes;
    uint64_t region;    /* address of the region that the other side may write */
    uint32_t pieces_in; /* pieces received since the opening; in hello and bye */
    uint32_t pid;
    char host[64];
    char text[240];
    tutti_rdma_lane_address lanes[TUTTI_RDMA_DEVICES_PORTS];
} tutti_rdma_note;

typedef enum tutti_rdma_phase {
    TUTTI_RDMA_PHASE_BROKEN, /* the lanes are down; this side sends a hello soon */
    TUTTI_RDMA_PHASE_HELLO,  /* hello sent; waits for the peer's */
    TUTTI_RDMA_PHASE_READY,  /* ready sent; waits for the peer's */
    TUTTI_RDMA_PHASE_UP,
    TUTTI_RDMA_PHASE_GONE /* the peer has closed the pipe; bytes that it sent before may still be taken */
} tutti_rdma_phase;

typedef struct tutti_rdma_stream {
    tutti_rdma_pipe pipe; /* the part that the caller sees; must be first */
    int nlanes;
    tutti_rdma_lane lanes[TUTTI_RDMA_DEVICES_PORTS];
    const tutti_rdma_port *ports[TUTTI_RDMA_DEVICES_PORTS];
    tutti_rdma_region *in, *out;
    uint64_t remote; /* address of the peer's `in` */
    size_t direct_bytes, piece_bytes;

    /* Sending. */
    tutti_rdma_parts parts;
    uint64_t out_position, out_line;
    uint64_t out_consumed;            /* lines that the peer has read */
    uint64_t ring_until;              /* position up to which the peer requested bytes by the ring */
    tutti_rdma_ring_state peer_state; /* as last read */
    int looks;                        /* times that a send has looked for a grant */
    uint32_t woken;                   /* number of the peer's sleep that this side ended last */
    tutti_rdma_memory_use source;     /* registration of the part that is sent in pieces */
    tutti_rdma_piece pieces[TUTTI_RDMA_STREAM_PIECES];
    uint32_t pieces_done, pieces_posted; /* since the opening; the pieces between the two are in `pieces` */

    /* Receiving. */
    char *dst; /* byte `received` goes to dst + received */
    uint64_t in_position, in_line, reported_line;
    size_t in_offset; /* bytes taken from the record at in_line */
    uint32_t pieces_in;
    tutti_rdma_memory_use target; /* registration of the granted buffer */
    bool unreported;              /* a state is still to be written: there was no room */
    int bells;                    /* epoll descriptor over the bells of all lanes and the socket */
    bool announced;               /* this side has announced a sleep */
    uint64_t wakes;               /* wakes of lane 0 at that time */

    /* The connection. */
    int socket;
    tutti_rdma_phase phase;
    uint32_t round;
    int64_t round_ns; /* when the round began */
    bool peer_probed;
    tutti_rdma_note note; /* the note that is being read */
    size_t note_bytes;
    char peer[96];      /* name of the peer for messages */
    int64_t broken_ns;  /* when the lanes broke; 0: they are up */
    uint64_t replayed;  /* number of the write on lane 0 whose completion proves that the lanes are up again */
    unsigned idle;      /* times that progress found nothing to do */
    int64_t checked_ns; /* when the socket was last checked */
    int64_t ended_ns;   /* when this side detected that the peer has ended; 0: it has not */
} tutti_rdma_stream;

/* --------------------------------------------------------------------------------------------- pieces.c */

static inline tutti_rdma_piece *tutti_rdma_piece_at(tutti_rdma_stream *stream, uint32_t number) {
    return &stream->pieces[number % TUTTI_RDMA_STREAM_PIECES];
}
/* Posts a piece. Each lane gets its share, which may be empty: the receiver waits for its immediate data. */
void tutti_rdma_piece_post(tutti_rdma_stream *stream, tutti_rdma_piece *piece);
/* Counts pieces as sent once the peer's adapter has acknowledged them: the buffer may change. True: some were. */
bool tutti_rdma_pieces_retire(tutti_rdma_stream *stream);
/* Reads the piece at the head of the lanes; false: it has not arrived, or not on all lanes. */
bool tutti_rdma_piece_came(const tutti_rdma_stream *stream, const uint32_t heads[TUTTI_RDMA_DEVICES_PORTS],
                           uint32_t *bytes_out, int *nlanes_out);
/* After the lanes were reconnected: posts the pieces again that the peer has not received. */
void tutti_rdma_pieces_replay(tutti_rdma_stream *stream);
/* Counts the pieces that arrived whole, and discards those that arrived in part: the peer will write these again. */
uint32_t tutti_rdma_pieces_settle(tutti_rdma_stream *stream);
/* The peer has received `pieces_in` of this side's pieces. False: fewer than its adapter had acknowledged. */
bool tutti_rdma_pieces_settled(tutti_rdma_stream *stream, uint32_t pieces_in);
/* As tutti_rdma_pieces_settled, from a peer that closes the pipe: what it received counts, acknowledged or not. */
void tutti_rdma_pieces_closed(tutti_rdma_stream *stream, uint32_t pieces_in);

/* -------------------------------------------------------------------------------------------- connect.c */

tutti_status tutti_rdma_connect_open(int socket, tutti_deadline *deadline, tutti_rdma_stream **stream_out);
/* Reads the notes on the socket and handles them. */
void tutti_rdma_connect_step(tutti_rdma_stream *stream);
/* Sleeps for a moment, or until the socket has something to read. */
void tutti_rdma_connect_nap(const tutti_rdma_stream *stream);
/* Notifies the peer that this side closes the pipe, or has failed. */
void tutti_rdma_connect_bye(tutti_rdma_stream *stream, tutti_status status, const char *text);
/* Accepts half-open streams. */
void tutti_rdma_connect_close(tutti_rdma_stream *stream);

/* Fails the pipe: nothing is read or written after it. Returns the status. */
tutti_status tutti_rdma_stream_break(tutti_rdma_stream *stream, tutti_status status, const char *format, ...)
    TUTTI_PRINTF(3, 4);
/* Takes completions of all lanes. False: a lane has failed, and the failure has been handled. */
bool tutti_rdma_stream_poll(tutti_rdma_stream *stream);
/* Returns whether there is room for a write on lane 0. */
static inline bool tutti_rdma_stream_has_room(tutti_rdma_stream *stream) {
    if (TUTTI_LIKELY(tutti_rdma_lane_has_room(&stream->lanes[0], 1))) return true;
    return tutti_rdma_stream_poll(stream) && tutti_rdma_lane_has_room(&stream->lanes[0], 1);
}
/* Writes part of the copy of the peer's region to its place, in one work request, and wakes the peer. Needs room. */
void tutti_rdma_stream_write(tutti_rdma_stream *stream, const void *from, size_t bytes);
/* Writes this side's state to the peer, now or as soon as there is room. */
void tutti_rdma_stream_tell(tutti_rdma_stream *stream);
static inline void tutti_rdma_stream_note_received(tutti_rdma_stream *stream, size_t bytes) {
    stream->pipe.received += bytes;
    stream->pipe.bytes_in += bytes;
    stream->in_position += bytes;
}

/* --------------------------------------------------------------------------------------------- direct.c */

/* Sends from the current part by pieces. False: nothing to do for now. */
bool tutti_rdma_direct_send(tutti_rdma_stream *stream);
/* Requests the bytes of the receive under way from the peer, if a request is needed. */
void tutti_rdma_direct_ask(tutti_rdma_stream *stream);
/* Takes a piece that has arrived; true: it took one. */
bool tutti_rdma_direct_take(tutti_rdma_stream *stream);

#endif
