/*
 * The internals of a channel to another host, for remote_*.c and the test that plays the other host.
 */
#ifndef TUTTI_REMOTE_STATE_H
#define TUTTI_REMOTE_STATE_H

#include "comm/net/async_connect.h"
#include "comm/net/listener.h"
#include "comm/net/transport/transport.h"
#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"

#define TUTTI_REMOTE_FRAME_MAGIC UINT32_C(0x74746672)

/* The header of a frame. It contains a line of the ring, so that a short message comes in one piece. A frame of no
 * bytes carries only the acknowledgement. */
typedef struct tutti_remote_frame {
    /* of the ring: from where the last frame ended, with the lead; of a stream: without the lead */
    uint32_t magic, bytes;
    uint64_t transfer, offset;      /* stream: as in TUTTI_RECORD_FRAGMENT; ring: 0 */
    uint64_t tail, matched;         /* the acknowledgement: as in tutti_channel_block */
    uint8_t lead[TUTTI_CACHE_LINE]; /* ring: its first line; else unused */
} tutti_remote_frame;

typedef enum tutti_remote_maker { TUTTI_REMOTE_OURS, TUTTI_REMOTE_THEIRS } tutti_remote_maker;

struct tutti_remote_channel {
    tutti_channel_block *copy; /* of the peer's block; its tail and matched come with acknowledgements */
    tutti_conn_id conn_ids[2]; /* ids of the connections: by tutti_remote_maker */
    tutti_async_connect *attempts[2];
    tutti_pipe *made[2];
    uint64_t arrivals_seen; /* tutti_listener_count at the last check */
    tutti_pipe *out, *in; /* the connections that we send on, and that the peer sends on; NULL: nothing has been sent */
    tutti_remote_frame out_frame;
    struct {
        uint8_t padding[TUTTI_CACHE_LINE]; /* of the frame before */
        tutti_remote_frame frame;
    } in_frames[2];
    uint64_t sent;       /* bytes of our ring given to `out` */
    uint64_t came;       /* bytes of the peer's ring copied */
    bool in_body;        /* the header of a frame has come, its bytes are still to come */
    size_t in_put;       /* bytes of the ring in that frame that have come or have been requested */
    bool in_straight;    /* the frame is one eager message, received into its receive's buffer or `body` */
    bool in_dropped;     /* that receive has ended: no other one gets the message */
    char *body, *stream; /* of a frame: the incoming one, the outgoing one of a stream */
    /* the receive whose buffer the frame's bytes are received into, the request whose buffer a stream is sent from */
    tutti_request *out_request, *in_request;
    tutti_waiter *in_waiter;
    size_t in_bytes;                  /* of that receive's part of the frame */
    uint64_t polled_at;               /* while a long body arrives: ticks at the last poll */
    unsigned looks;                   /* checks of an `out` that nothing is read from */
    uint64_t sent_tail, sent_matched; /* the tail and matched that the peer knows */
};

/* The frame that is being read. */
static inline tutti_remote_frame *tutti_remote_in_frame(struct tutti_remote_channel *remote) {
    bool theirs = remote->in == remote->made[TUTTI_REMOTE_THEIRS];
    return &remote->in_frames[theirs ? TUTTI_REMOTE_THEIRS : TUTTI_REMOTE_OURS].frame;
}

/* Connects if that is needed, and sends what can be sent now; returns true if something moved. */
bool tutti_remote_drive_out(tutti_channels *channel);
/* Bytes that still have to be given to the pipe count as pending: a thread must come back for them. */
void tutti_remote_count_busy(tutti_channels *channel);
/* The channel is `gone` if its connections have failed and all data that came has been read. */
void tutti_remote_note_failures(tutti_channels *channel);

#endif
