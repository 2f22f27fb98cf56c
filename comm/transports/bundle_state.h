/*
 * The inside of a bundle: between bundle.c (what goes over which lane) and bundle_end.c (how lanes fail, and bundles end).
 */
#ifndef TUTTI_BUNDLE_STATE_H
#define TUTTI_BUNDLE_STATE_H

#include "comm/transports/bundle.h"
#include "comm/transports/socket.h"

/* One direction. Positions are those of the stream, since it was opened. */
typedef struct tutti_bundle_way {
    uint64_t start, end; /* of the transfer that is under way, or of the last one */
    uint64_t moved;      /* bytes of it, on whatever lane */
    int first, count;    /* its lanes: first, first + 1, ..., round */
    uint64_t
        at[TUTTI_LANES_MOST]; /* of these: where the piece begins that is under way; from `end` on: there are no more */
} tutti_bundle_way;

typedef struct tutti_bundle {
    tutti_pipe pipe; /* first */
    int nlanes;
    tutti_pipe *lanes[TUTTI_LANES_MOST]; /* NULL: not open yet, or closed after a failure */
    tutti_bundle_way out, in;
    struct iovec parts[TUTTI_SOCKET_PARTS]; /* of the send */
    int nparts;
    char *dst;                       /* of the receive: its first byte goes there */
    int failed;                      /* the first lane that has failed; -1: none */
    int64_t quiet_ns;                /* after a failure: when something came last, or it was noticed */
    uint64_t heard;                  /* bytes_in by then */
    int epoll_fd;                    /* to sleep on several lanes; -1: not needed yet */
    short watched[TUTTI_LANES_MOST]; /* by it: poll events; 0: not at all */
    int fds[TUTTI_LANES_MOST];       /* of the lanes that were ever watched */
} tutti_bundle;

/* The lane on which the stream is at that position. */
static inline int tutti_bundle_lane_at(const tutti_bundle *b, uint64_t position) {
    return (int)(position / TUTTI_BUNDLE_BLOCK_BYTES % (uint64_t)b->nlanes);
}
/* Bit by bit, the lanes that still have something to do in that direction. */
uint32_t tutti_bundle_busy(const tutti_bundle *b, const tutti_bundle_way *way);

/* bundle_end.c */
/* A lane has failed: what that means now, for the whole, to which who calls came with something to be received, or not. */
tutti_status tutti_bundle_judge(tutti_bundle *b, bool receives);
int tutti_bundle_sleep_on(tutti_pipe *pipe, short *events_out);
void tutti_bundle_cancel(tutti_pipe *pipe);
void tutti_bundle_close(tutti_pipe *pipe);

#endif
