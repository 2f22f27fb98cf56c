/*
 * The inside of a channel to another host: between far.c (what goes over its connections) and far_open.c (how these come and
 * go).
 */
#ifndef TUTTI_FAR_STATE_H
#define TUTTI_FAR_STATE_H

#include "comm/door.h"
#include "comm/far.h"
#include "comm/opener.h"
#include "comm/p2p_state.h"
#include "comm/transports/transport.h"

/* What a frame begins with: with a line of the ring, so that a short message comes in one piece. */
typedef struct tutti_far_frame {
    uint32_t magic, bytes; /* of the ring, from where the last frame ended, with the lead; or of a stream, without */
    uint64_t transfer, offset;      /* stream: as in TUTTI_RECORD_FRAGMENT; ring: 0 */
    uint8_t lead[TUTTI_CACHE_LINE]; /* ring: its first line; stream: nothing */
} tutti_far_frame;

typedef struct tutti_far_news {
    uint64_t tail, matched; /* as in tutti_channel_block */
} tutti_far_news;

struct tutti_far {
    tutti_channel_block *copy; /* of the peer's block; its tail and matched come with the news */
    tutti_ticket out_ticket, in_ticket;
    tutti_opener *out_opener, *in_opener;
    uint64_t door_seen; /* tutti_door_count at the last look */
    tutti_pipe *out, *in;
    int64_t cut_since_ns; /* `out` has failed, while `in` has not; 0: no */
    tutti_far_frame out_frame, in_frame;
    uint64_t sent;       /* of our ring: given to `out` */
    uint64_t came;       /* of the peer's ring: copied */
    bool in_body;        /* the header of a frame has come, its bytes are on their way */
    char *body, *stream; /* of a frame that comes in; of one that goes out */
    tutti_request *out_request,
        *in_request;              /* whose buffer a frame of a stream is sent from, or received into, just now */
    unsigned looks;               /* at news */
    tutti_far_news out_news;      /* being received on `out` */
    tutti_far_news in_news, told; /* being sent on `in`; what the peer knows */
};

/* The peer has ended, or can no longer be reached. Whether it has died its host tells (beat.h). */
void tutti_far_lose(tutti_channels *channel, const char *why);
/* Begins to connect; what goes out takes that connection. */
void tutti_far_start_out(tutti_channels *channel);
/* Has the peer connected? Then that is what comes in. */
void tutti_far_look_for_in(tutti_channels *channel);
/* The pipe that has been opened; NULL: not yet, or never (the channel is gone or broken then). */
tutti_pipe *tutti_far_take_pipe(tutti_channels *channel, tutti_opener **opener_at);

#endif
