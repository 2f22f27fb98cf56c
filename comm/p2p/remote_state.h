/*
 * The inside of a channel to another host: between remote_channel.c (what goes over its connections) and remote_open.c (how these come and
 * go).
 */
#ifndef TUTTI_REMOTE_STATE_H
#define TUTTI_REMOTE_STATE_H

#include "comm/net/listener.h"
#include "comm/p2p/remote_channel.h"
#include "comm/net/async_connect.h"
#include "comm/p2p/p2p_state.h"
#include "comm/net/transport/transport.h"

/* What a frame begins with: with a line of the ring, so that a short message comes in one piece. A frame of no bytes only tells
 * the news. */
typedef struct tutti_remote_frame {
    uint32_t magic, bytes; /* of the ring, from where the last frame ended, with the lead; or of a stream, without */
    uint64_t transfer, offset;      /* stream: as in TUTTI_RECORD_FRAGMENT; ring: 0 */
    uint64_t tail, matched;         /* the news: as in tutti_channel_block */
    uint8_t lead[TUTTI_CACHE_LINE]; /* ring: its first line; else nothing */
} tutti_remote_frame;

typedef enum tutti_remote_maker { TUTTI_REMOTE_OURS, TUTTI_REMOTE_THEIRS } tutti_remote_maker;

struct tutti_remote_channel {
    tutti_channel_block *copy; /* of the peer's block; its tail and matched come with the news */
    tutti_conn_id tickets[2];   /* of the connections: by tutti_remote_maker */
    tutti_async_connect *openers[2];
    tutti_pipe *made[2];
    uint64_t door_seen;   /* tutti_listener_count at the last look */
    tutti_pipe *out, *in; /* those of them that we send on, and that the peer sends on; NULL: nothing has been sent */
    tutti_remote_frame out_frame, in_frames[2];
    uint64_t sent;       /* of our ring: given to `out` */
    uint64_t came;       /* of the peer's ring: copied */
    bool in_body;        /* the header of a frame has come, its bytes are on their way */
    size_t in_put;       /* of the ring's bytes in that frame: those that have come, or are on their way */
    char *body, *stream; /* of a frame of a stream: that comes in, that goes out */
    tutti_request *out_request,
        *in_request;                  /* whose buffer a frame of a stream is sent from, or received into, just now */
    unsigned looks;                   /* at an `out` that is not read from */
    uint64_t told_tail, told_matched; /* what the peer knows */
};

/* The peer has ended, or can no longer be reached. Whether it has died its host tells (heartbeat.h). */
void tutti_remote_lose(tutti_channels *channel, const char *why);
/* Takes connections that have been made, and makes one if there is none for what is to be sent. */
void tutti_remote_connect(tutti_channels *channel);
/* What to send on; NULL: there is no connection yet. */
tutti_pipe *tutti_remote_choose_out(const struct tutti_remote_channel *remote);

#endif
