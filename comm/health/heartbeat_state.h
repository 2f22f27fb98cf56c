/*
 * State shared by heartbeat.c (which processes this process watches, and its thread) and heartbeat_wire.c (the
 * protocol of one connection). Only the heartbeat thread uses a heartbeat's connection.
 */
#ifndef TUTTI_HEARTBEAT_STATE_H
#define TUTTI_HEARTBEAT_STATE_H

#include "comm/health/heartbeat.h"
#include "comm/net/frame_mac.h"
#include "comm/net/listener.h"

/* Meaning of an end of the connection. */
typedef enum tutti_heartbeat_state {
    TUTTI_HEARTBEAT_MEMBER,  /* the sender's death */
    TUTTI_HEARTBEAT_GOODBYE, /* nothing: the sender closes it and lives on */
    TUTTI_HEARTBEAT_LEFT,    /* nothing: the sender has left, and sends heartbeats on behalf of others of its host */
} tutti_heartbeat_state;

typedef struct tutti_heartbeat_frame {
    uint32_t magic, state;                /* state: tutti_heartbeat_state */
    uint8_t died[TUTTI_PROCESS_ID_BYTES]; /* a dead process of the sender's host; 0: none */
} tutti_heartbeat_frame;

/* What is sent over the connection. */
typedef struct tutti_heartbeat_signed {
    tutti_heartbeat_frame frame;
    uint8_t seal[TUTTI_FRAME_MAC_BYTES];
} tutti_heartbeat_signed;

typedef struct tutti_heartbeat {
    tutti_peer *peer; /* one reference */
    /* communicators that this process is in, and those that it has left but watches for; changed under the lock */
    atomic_int watchers, watchers_left;
    atomic_int said; /* tutti_heartbeat_state: the last one sent to the other side, if there is a connection */
    bool has_left;   /* the other side has sent TUTTI_HEARTBEAT_LEFT */
    tutti_connection connection; /* socket -1: not connected */
    uint64_t nsent, nheard;      /* frames on this connection */
    tutti_deadline connect;
    bool heard;    /* data has been received over the socket */
    bool over;     /* the peer has said goodbye, or is dead */
    uint64_t told; /* number of own obituaries sent */
    tutti_heartbeat_signed in;
    size_t in_bytes; /* bytes of it received so far */
    struct tutti_heartbeat *next;
} tutti_heartbeat;

/* The meaning that an end of our connection has now. */
tutti_heartbeat_state tutti_heartbeat_state_of(const tutti_heartbeat *b);

/* Publishes processes of this host that have ended, so that they are sent. */
void tutti_heartbeat_note_deaths(void);
/* Moves pending data and connects if needed; sends new deaths, and a heartbeat if it is due. */
void tutti_heartbeat_go_on(tutti_heartbeat *b, bool due);
/* Sends the last deaths and goodbye, and closes the connection. */
void tutti_heartbeat_end(tutti_heartbeat *b);

#endif
