/*
 * What the files of heartbeats share: beat.c (whom this process watches, and its thread) and beat_wire.c (what goes over one
 * connection). A beat's connection is the thread's alone.
 */
#ifndef TUTTI_BEAT_STATE_H
#define TUTTI_BEAT_STATE_H

#include "comm/beat.h"
#include "comm/door.h"
#include "comm/seal.h"

/* What the end of the connection would mean. */
typedef enum tutti_beat_state {
    TUTTI_BEAT_MEMBER,  /* the sender's death */
    TUTTI_BEAT_GOODBYE, /* nothing: the sender closes it, and lives on */
    TUTTI_BEAT_LEFT,    /* nothing: the sender has left, and beats for others of its host */
} tutti_beat_state;

typedef struct tutti_beat_frame {
    uint32_t magic, state;                /* state: tutti_beat_state */
    uint8_t died[TUTTI_PROCESS_ID_BYTES]; /* a process of the sender's host; 0: none */
} tutti_beat_frame;

/* What goes over the connection. */
typedef struct tutti_beat_sealed {
    tutti_beat_frame frame;
    uint8_t seal[TUTTI_SEAL_BYTES];
} tutti_beat_sealed;

typedef struct tutti_beat {
    tutti_peer *peer;                   /* one reference */
    atomic_int watchers, watchers_left; /* communicators; those that this process has left; changed under the lock */
    atomic_int said;                    /* tutti_beat_state: what the other side knows, if there is a connection */
    bool has_left;                      /* the other side: TUTTI_BEAT_LEFT */
    tutti_connection connection;        /* its socket is -1: not connected */
    uint64_t nsent, nheard;             /* frames on this connection */
    tutti_deadline connect;
    bool heard;    /* something has come over the socket */
    bool over;     /* the peer has said goodbye, or is dead */
    uint64_t told; /* of our obituaries */
    tutti_beat_sealed in;
    size_t in_bytes; /* of it that have come */
    struct tutti_beat *next;
} tutti_beat;

/* What the end of our connection would mean. */
tutti_beat_state tutti_beat_state_of(const tutti_beat *b);

/* Processes of this host that have ended are to be told. */
void tutti_beat_note_deaths(void);
/* Moves what can be moved, connects if need be; tells what is new, and beats where that is due. */
void tutti_beat_go_on(tutti_beat *b, bool due);
/* The last deaths, goodbye, and the end of the connection. */
void tutti_beat_part(tutti_beat *b);

#endif
