/*
 * What the files of heartbeats share: heartbeat.c (whom this process watches, and its thread) and heartbeat_wire.c (what goes over one
 * connection). A heartbeat's connection is the thread's alone.
 */
#ifndef TUTTI_HEARTBEAT_STATE_H
#define TUTTI_HEARTBEAT_STATE_H

#include "comm/health/heartbeat.h"
#include "comm/net/frame_mac.h"
#include "comm/net/listener.h"

/* What the end of the connection would mean. */
typedef enum tutti_heartbeat_state {
    TUTTI_HEARTBEAT_MEMBER,  /* the sender's death */
    TUTTI_HEARTBEAT_GOODBYE, /* nothing: the sender closes it, and lives on */
    TUTTI_HEARTBEAT_LEFT,    /* nothing: the sender has left, and heartbeats for others of its host */
} tutti_heartbeat_state;

typedef struct tutti_heartbeat_frame {
    uint32_t magic, state;                /* state: tutti_heartbeat_state */
    uint8_t died[TUTTI_PROCESS_ID_BYTES]; /* a process of the sender's host; 0: none */
} tutti_heartbeat_frame;

/* What goes over the connection. */
typedef struct tutti_heartbeat_signed {
    tutti_heartbeat_frame frame;
    uint8_t seal[TUTTI_FRAME_MAC_BYTES];
} tutti_heartbeat_signed;

typedef struct tutti_heartbeat {
    tutti_peer *peer;                   /* one reference */
    atomic_int watchers, watchers_left; /* communicators; those that this process has left; changed under the lock */
    atomic_int said;                    /* tutti_heartbeat_state: what the other side knows, if there is a connection */
    bool has_left;                      /* the other side: TUTTI_HEARTBEAT_LEFT */
    tutti_connection connection;        /* its socket is -1: not connected */
    uint64_t nsent, nheard;             /* frames on this connection */
    tutti_deadline connect;
    bool heard;    /* something has come over the socket */
    bool over;     /* the peer has said goodbye, or is dead */
    uint64_t told; /* of our obituaries */
    tutti_heartbeat_signed in;
    size_t in_bytes; /* of it that have come */
    struct tutti_heartbeat *next;
} tutti_heartbeat;

/* What the end of our connection would mean. */
tutti_heartbeat_state tutti_heartbeat_state_of(const tutti_heartbeat *b);

/* Processes of this host that have ended are to be told. */
void tutti_heartbeat_note_deaths(void);
/* Moves what can be moved, connects if need be; tells what is new, and heartbeats where that is due. */
void tutti_heartbeat_go_on(tutti_heartbeat *b, bool due);
/* The last deaths, goodbye, and the end of the connection. */
void tutti_heartbeat_end(tutti_heartbeat *b);

#endif
