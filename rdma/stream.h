/*
 * A pipe's inside: the state that pipe.c (records), direct.c (pieces) and connect.c (handshakes) work on.
 *
 * The bytes of a direction are counted from the opening on: a byte's *position*. Each goes one of two ways:
 *
 *   by a record in the ring     small parts of a send, at once; and what the receiver has asked for by the ring
 *   by a piece                  the receiver has *granted* a buffer for a range of positions; the sender writes there
 *
 * A receive of more than `direct_bytes` grants its buffer at once. A send of a part as large waits for a grant that covers its
 * position; if none comes, it says so (waiting_at), and a receiver with a small buffer answers with a grant "by the ring".
 * Records and pieces are put in order by their positions.
 *
 * Invariant: in_position and out_position only rise; nobody writes below the position that the receiver has reached.
 */
#ifndef TUTTI_RDMA_STREAM_H
#define TUTTI_RDMA_STREAM_H

#include "rdma/lane.h"
#include "rdma/memory.h"
#include "rdma/rdma.h"
#include "rdma/ring.h"

enum { TUTTI_RDMA_STREAM_PIECES = 8 }; /* posted and not yet complete, at most */
#define TUTTI_RDMA_STREAM_NOWHERE UINT64_MAX

/* What the peer writes; and, as a copy, what this side has written there. */
typedef struct tutti_rdma_region {
    tutti_rdma_ring_line ring[TUTTI_RDMA_RING_ALL_LINES];
    tutti_rdma_ring_state state;
    tutti_rdma_ring_line probe; /* written once, to see whether writes arrive */
} tutti_rdma_region;

/* Part of a large message, striped over the first nlanes lanes. */
typedef struct tutti_rdma_piece {
    const char *from;
    uint32_t bytes;
    int nlanes;
    uint64_t to;
    uint32_t keys[TUTTI_RDMA_DEVICES_PORTS];
    uint64_t numbers[TUTTI_RDMA_DEVICES_PORTS]; /* of its last write on each lane; 0: complete */
} tutti_rdma_piece;

/* A message on the socket: all kinds have the same form. */
typedef enum tutti_rdma_note_kind {
    TUTTI_RDMA_NOTE_HELLO = 1, /* how to reach this side; also, with a higher round, after a fault */
    TUTTI_RDMA_NOTE_READY,     /* connected: may be written to */
    TUTTI_RDMA_NOTE_PROBED,    /* has written to the other side, and that worked */
    TUTTI_RDMA_NOTE_BYE,       /* closes the pipe; with a status that is not 0: has failed, and why */
} tutti_rdma_note_kind;

typedef struct tutti_rdma_note {
    char magic[4];
    uint32_t version, kind, round;
    int32_t status;
    uint32_t nlanes;
    uint64_t region;    /* address of what the other side may write */
    uint32_t pieces_in; /* have come, since the opening; in hello and bye */
    uint32_t pid;
    char host[64];
    char text[240];
    tutti_rdma_lane_address lanes[TUTTI_RDMA_DEVICES_PORTS];
} tutti_rdma_note;

typedef enum tutti_rdma_phase {
    TUTTI_RDMA_PHASE_BROKEN, /* its lanes are down; says hello soon */
    TUTTI_RDMA_PHASE_HELLO,  /* has said hello; waits for the other's */
    TUTTI_RDMA_PHASE_READY,  /* has said ready; waits for the other's */
    TUTTI_RDMA_PHASE_UP,
    TUTTI_RDMA_PHASE_GONE /* the other side has closed the pipe; what it sent before may still be taken */
} tutti_rdma_phase;

typedef struct tutti_rdma_stream {
    tutti_rdma_pipe pipe; /* what the caller sees; first */
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
    uint64_t ring_until;              /* up to here, the peer asked for bytes by the ring */
    tutti_rdma_ring_state peer_state; /* as last read */
    int looks;                        /* for a grant */
    uint32_t woken;                   /* which of the peer's sleeps was ended last */
    tutti_rdma_memory_use source;     /* of the part that goes in pieces */
    tutti_rdma_piece pieces[TUTTI_RDMA_STREAM_PIECES];
    uint32_t pieces_done, pieces_posted; /* since the opening; what is between them is in `pieces` */

    /* Receiving. */
    char *dst; /* where byte `received` goes is dst + received */
    uint64_t in_position, in_line, told_line;
    size_t in_offset; /* bytes of the record at in_line that were taken */
    uint32_t pieces_in;
    tutti_rdma_memory_use target; /* granted */
    bool untold;                  /* a state could not be written: no room */
    int bells;                    /* epoll: those of all lanes, and the socket */
    bool announced;               /* that this side sleeps; */
    uint64_t wakes;               /* of lane 0 until then */

    /* The connection. */
    int socket;
    tutti_rdma_phase phase;
    uint32_t round;
    int64_t round_ns; /* when it began */
    bool peer_probed;
    tutti_rdma_note note; /* being read */
    size_t note_bytes;
    char peer[96];      /* in words */
    int64_t broken_ns;  /* since when its lanes are broken; 0: they are not */
    uint64_t replayed;  /* number of the write on lane 0 that proves that they are up again */
    unsigned idle;      /* times that progress found nothing to do */
    int64_t checked_ns; /* when the socket was looked at */
    int64_t ended_ns;   /* when the other side was found to have ended; 0: it has not */
} tutti_rdma_stream;

/* ---------------------------------------------------------------------------------------------- sleep.c */

tutti_status tutti_rdma_sleep_open(tutti_rdma_stream *stream);
/* A call of a pipe; rdma.h. */
int tutti_rdma_sleep_on(tutti_rdma_pipe *pipe);
/* Does the peer sleep, and has nobody woken it yet? Then whoever asks does. */
bool tutti_rdma_sleep_ends(tutti_rdma_stream *stream);

/* ----------------------------------------------------------------------------------------------- pipe.c */

/* Makes the pipe useless: nothing is read or written any more after it. Gives the status. */
tutti_status tutti_rdma_stream_break(tutti_rdma_stream *stream, tutti_status status, const char *format, ...)
    TUTTI_PRINTF(3, 4);
/* Fills in the calls of a pipe. */
void tutti_pipe_calls(tutti_rdma_module *calls);
/* Takes completions of all lanes. False: a lane has failed, and that has been seen to. */
bool tutti_rdma_stream_poll(tutti_rdma_stream *stream);
/* Writes this side's state to the peer, now or as soon as there is room. */
void tutti_rdma_stream_tell(tutti_rdma_stream *stream);
/* Takes what has come in the ring for the receive under way; true: something. */
bool tutti_rdma_stream_take_record(tutti_rdma_stream *stream);
static inline void tutti_rdma_stream_note_received(tutti_rdma_stream *stream, size_t bytes) {
    stream->pipe.received += bytes;
    stream->pipe.bytes_in += bytes;
    stream->in_position += bytes;
}

/* --------------------------------------------------------------------------------------------- direct.c */

/* The peer's grant for the next byte to send: how many bytes, 0: none. *address_out 0: by the ring. */
size_t tutti_rdma_direct_grant(tutti_rdma_stream *stream, uint64_t *address_out);
/* Sends from the part at hand by pieces. False: nothing to do for now. */
bool tutti_rdma_direct_send(tutti_rdma_stream *stream);
/* Says that this side waits for a grant, if it has waited for a while. */
void tutti_rdma_direct_wait(tutti_rdma_stream *stream);
/* Asks the peer for the bytes of the receive under way, if it has to be asked. */
void tutti_rdma_direct_ask(tutti_rdma_stream *stream);
/* Takes a piece that has come; true: one. */
bool tutti_rdma_direct_take(tutti_rdma_stream *stream);
/* Posts again what the peer has not got, after lanes were connected anew. */
void tutti_rdma_direct_replay(tutti_rdma_stream *stream);
/* Counts the pieces that came whole, and forgets those that came in part: the peer will write these again. */
uint32_t tutti_rdma_direct_settle(tutti_rdma_stream *stream);
/* The peer has got `pieces_in` of our pieces. False: fewer than its adapter had acknowledged. */
bool tutti_rdma_direct_settled(tutti_rdma_stream *stream, uint32_t pieces_in);
/* The same from a peer that closes the pipe: these are sent, even if its adapter's word for that was lost. */
void tutti_rdma_direct_closed(tutti_rdma_stream *stream, uint32_t pieces_in);

/* -------------------------------------------------------------------------------------------- connect.c */

tutti_status tutti_rdma_connect_open(int socket, tutti_deadline *deadline, tutti_rdma_stream **stream_out);
/* A lane has failed: begins to bring all of them up again, or breaks the pipe. */
void tutti_rdma_connect_again(tutti_rdma_stream *stream);
/* Reads the socket and does what it says. */
void tutti_rdma_connect_step(tutti_rdma_stream *stream);
/* Sleeps for a moment, or until there is something to read there. */
void tutti_rdma_connect_nap(const tutti_rdma_stream *stream);
/* Tells the peer that this side closes the pipe, or has failed. */
void tutti_rdma_connect_bye(tutti_rdma_stream *stream, tutti_status status, const char *text);
/* Accepts streams half open. */
void tutti_rdma_connect_close(tutti_rdma_stream *stream);

#endif
