/*
 * The inside of a bundle: between multi_socket.c (what goes over which lane) and multi_socket_end.c (how lanes fail, and bundles end).
 */
#ifndef TUTTI_MULTI_SOCKET_STATE_H
#define TUTTI_MULTI_SOCKET_STATE_H

#include "comm/net/transport/multi_socket.h"
#include "comm/net/transport/socket.h"

/* One direction. Positions are those of the stream, since it was opened. */
typedef struct tutti_multi_socket_way {
    uint64_t start, end; /* of the transfer that is under way, or of the last one */
    uint64_t moved;      /* bytes of it, on whatever lane */
    int first, count;    /* its lanes: first, first + 1, ..., round */
    uint64_t
        at[TUTTI_LANES_MOST]; /* of these: where the piece begins that is under way; from `end` on: there are no more */
} tutti_multi_socket_way;

typedef struct tutti_multi_socket {
    tutti_pipe pipe; /* first */
    int nlanes;
    tutti_pipe *lanes[TUTTI_LANES_MOST]; /* NULL: not open yet, or closed after a failure */
    tutti_multi_socket_way out, in;
    struct iovec parts[TUTTI_SOCKET_PARTS]; /* of the send */
    int nparts;
    char *dst;                       /* of the receive: its first byte goes there */
    int failed;                      /* the first lane that has failed; -1: none */
    int64_t quiet_ns;                /* after a failure: when something came last, or it was noticed */
    uint64_t heard;                  /* bytes_in by then */
    int epoll_fd;                    /* to sleep on several lanes; -1: not needed yet */
    short watched[TUTTI_LANES_MOST]; /* by it: poll events; 0: not at all */
    int fds[TUTTI_LANES_MOST];       /* of the lanes that were ever watched */
} tutti_multi_socket;

/* The lane on which the stream is at that position. */
static inline int tutti_multi_socket_lane_at(const tutti_multi_socket *b, uint64_t position) {
    return (int)(position / TUTTI_MULTI_SOCKET_BLOCK_BYTES % (uint64_t)b->nlanes);
}
/* Bit by bit, the lanes that still have something to do in that direction. */
uint32_t tutti_multi_socket_busy(const tutti_multi_socket *b, const tutti_multi_socket_way *way);

/* multi_socket_end.c */
/* A lane has failed: what that means now, for the whole, to which who calls came with something to be received, or not. */
tutti_status tutti_multi_socket_judge(tutti_multi_socket *b, bool receives);
int tutti_multi_socket_sleep_on(tutti_pipe *pipe, short *events_out);
void tutti_multi_socket_cancel(tutti_pipe *pipe);
void tutti_multi_socket_close(tutti_pipe *pipe);

#endif
