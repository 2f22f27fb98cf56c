/*
 * One watched process: the connection to it, what is sent over it, and the deaths that processes of a host publish.
 *
 * Heartbeats are signed (frame_mac.h): an attacker who can modify network traffic can cut a connection, but cannot
 * report a death. Only the heartbeat thread (heartbeat.c) calls these functions, except _read, _make and _state.
 */
#ifndef TUTTI_HEARTBEAT_CONNECTION_H
#define TUTTI_HEARTBEAT_CONNECTION_H

#include <stdatomic.h>

#include "bootstrap/base/deadline.h"
#include "comm/net/frame_mac.h"
#include "comm/net/listener.h"
#include "comm/shm/peer.h"

/* Meaning of an end of the connection. */
typedef enum tutti_heartbeat_stage {
    TUTTI_HEARTBEAT_MEMBER,  /* the sender's death */
    TUTTI_HEARTBEAT_GOODBYE, /* nothing: the sender closes it and lives on */
    TUTTI_HEARTBEAT_LEFT,    /* nothing: the sender has left, and sends heartbeats on behalf of others of its host */
} tutti_heartbeat_stage;

typedef struct tutti_heartbeat_frame {
    uint32_t magic, state;                /* state: tutti_heartbeat_stage */
    uint8_t died[TUTTI_PROCESS_ID_BYTES]; /* a dead process of the sender's host; 0: none */
} tutti_heartbeat_frame;

/* What is sent over the connection. */
typedef struct tutti_heartbeat_signed {
    tutti_heartbeat_frame frame;
    uint8_t mac[TUTTI_FRAME_MAC_BYTES];
} tutti_heartbeat_signed;

typedef struct tutti_heartbeat {
    tutti_peer *peer; /* one reference */
    /* communicators that this process is in, and those that it has left but watches for; changed under the lock */
    atomic_int watchers, watchers_left;
    atomic_int said; /* tutti_heartbeat_stage: the last one sent to the other side, if there is a connection */
    bool has_left;   /* the other side has sent TUTTI_HEARTBEAT_LEFT */
    tutti_connection connection; /* socket -1: not connected */
    uint64_t nsent, nheard;      /* frames on this connection */
    tutti_deadline connect;
    bool heard;           /* data has been received over the socket */
    bool over;            /* the peer has said goodbye, or is dead */
    uint64_t deaths_sent; /* of those that this host's processes have published */
    tutti_heartbeat_signed in;
    size_t in_bytes; /* bytes of it received so far */
    struct tutti_heartbeat *next;
} tutti_heartbeat;

/* Makes the state of a connection, watched once; the thread connects. */
tutti_status tutti_heartbeat_make(tutti_peer *remote, tutti_heartbeat **heartbeat_out);
/* The state that the other side should know. */
tutti_heartbeat_stage tutti_heartbeat_state(const tutti_heartbeat *b);
/* Connects, receives, and sends what is new; a heartbeat if it is due. */
void tutti_heartbeat_go_on(tutti_heartbeat *b, bool due);
/* Says goodbye, closes the connection, and frees the state. */
void tutti_heartbeat_free(tutti_heartbeat *b);
/* Publishes ended processes of this host: they are sent to the other hosts and, if this process is the first of its
 * host, recorded for the other processes here. */
void tutti_heartbeat_note_deaths(void);
/* Reads the deaths that the first process of this host has learned of. Cheap if there are none. */
void tutti_heartbeat_read(tutti_peer *first);

#endif
