/*
 * The inside of a bundle, shared by multi_socket.c (which bytes go over which lane) and multi_socket_end.c (how
 * lanes fail, and bundles end).
 */
#ifndef TUTTI_MULTI_SOCKET_STATE_H
#define TUTTI_MULTI_SOCKET_STATE_H

#include "comm/net/transport/multi_socket.h"
#include "comm/net/transport/socket.h"

/* One direction. Positions are those of the stream, from its opening. */
typedef struct tutti_multi_socket_way {
    uint64_t start, end;           /* of the transfer under way, or of the last one */
    uint64_t moved;                /* bytes moved of it, on all lanes */
    int first, count;              /* its lanes: first, first + 1, ..., modulo nlanes */
    uint64_t at[TUTTI_LANES_MOST]; /* by lane: position of the piece under way; `end` or more: the lane has none left */
} tutti_multi_socket_way;

typedef struct tutti_multi_socket {
    tutti_pipe pipe; /* first */
    int nlanes;
    tutti_pipe *lanes[TUTTI_LANES_MOST]; /* NULL: not open yet, or closed after a failure */
    tutti_multi_socket_way out, in;
    struct iovec parts[TUTTI_SOCKET_PARTS]; /* parts of the send */
    int nparts;
    char *dst;                       /* destination of the receive's first byte */
    int failed;                      /* the first lane that failed; -1: none */
    int64_t quiet_ns;                /* after a failure: when bytes last arrived, or the failure was noticed */
    uint64_t heard;                  /* bytes_in at that time */
    int epoll_fd;                    /* for sleeping on several lanes; -1: not needed yet */
    short watched[TUTTI_LANES_MOST]; /* poll events watched by it; 0: none */
    int fds[TUTTI_LANES_MOST];       /* descriptors of the lanes that were ever watched */
} tutti_multi_socket;

/* The lane of that position of the stream. */
static inline int tutti_multi_socket_lane_at(const tutti_multi_socket *b, uint64_t position) {
    return (int)(position / TUTTI_MULTI_SOCKET_BLOCK_BYTES % (uint64_t)b->nlanes);
}
/* A bit mask of the lanes that still have something to do in that direction. */
uint32_t tutti_multi_socket_busy(const tutti_multi_socket *b, const tutti_multi_socket_way *way);

/* multi_socket_end.c */
/* A lane has failed: decides whether the bundle fails now. `receives`: the caller had a receive under way when it
 * called. */
tutti_status tutti_multi_socket_judge(tutti_multi_socket *b, bool receives);
int tutti_multi_socket_sleep_on(tutti_pipe *pipe, short *events_out);
void tutti_multi_socket_cancel(tutti_pipe *pipe);
void tutti_multi_socket_close(tutti_pipe *pipe);

#endif
