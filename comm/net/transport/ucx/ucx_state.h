/*
 * Inside the module libtutti_ucx.so: what a pipe over UCX is made of.
 *
 *   ucx_module.c   the module's table; the process' one context; what UCX has found
 *   ucx_open.c     a pipe comes (addresses over the proved socket, first words over UCX) and goes
 *   ucx_send.c     the parts of a send as messages
 *   ucx_receive.c  messages as a stream of bytes
 *   ucx_pipe.c     progress, sleeping, cancelling
 *
 * A pipe has a worker and an endpoint of its own. The stream goes as active messages that say where in the stream they
 * stand, since UCX promises no order. Up to TUTTI_UCX_EAGER_BYTES a message carries its bytes; a larger piece waits at the sender until
 * the receiver has said where it goes, and then moves straight into the receiver's buffer, by RDMA where UCX can do that.
 * (UCX's own streams would drop what nobody has asked for yet when the other side closes.)
 *
 * Invariant: messages in the user's memory are counted by sends_running and receives_running. `status` of the pipe is set
 * only after both are 0 (tutti_ucx_stop).
 */
#ifndef TUTTI_UCX_STATE_H
#define TUTTI_UCX_STATE_H

#include <time.h>
#include <ucp/api/ucp.h>

#include "comm/net/transport/ucx/ucx.h"

#define TUTTI_UCX_PARTS         4
#define TUTTI_UCX_WINDOW        4 /* pieces that are under way at once, in each direction */
#define TUTTI_UCX_STAGE_BYTES   ((size_t)8 << 10)
#define TUTTI_UCX_EAGER_BYTES   ((size_t)64 << 10)
#define TUTTI_UCX_PIECE_BYTES   ((size_t)1 << 20)
#define TUTTI_UCX_MESSAGE       1          /* the active message's number */
#define TUTTI_UCX_HELLO         UINT64_MAX /* in place of an offset: the way works */
#define TUTTI_UCX_CLOSE_WAIT_MS 50
#define TUTTI_UCX_LAST_WORDS_MS 20
#define TUTTI_UCX_STOP_WAIT_MS  1000

/* Before the bytes of a message. */
typedef struct tutti_ucx_header {
    uint64_t token;  /* the receiver's, told over the proved socket; a message without it comes from a stranger */
    uint64_t offset; /* in the stream */
} tutti_ucx_header;

typedef enum tutti_ucx_stage {
    TUTTI_UCX_OFFERED, /* the sender has it, and waits to be told where to put it */
    TUTTI_UCX_RUNNING, /* on its way, to the user's buffer or to `data` */
    TUTTI_UCX_HERE,    /* in `data` */
    TUTTI_UCX_PLACED,  /* in the user's buffer */
    TUTTI_UCX_FAILED,
} tutti_ucx_stage;

typedef struct tutti_ucx_pipe tutti_ucx_pipe;

/* A message that has come, and whose bytes the user has not got yet. */
typedef struct tutti_ucx_arrival {
    struct tutti_ucx_arrival *next; /* with a higher offset */
    tutti_ucx_pipe *pipe;
    tutti_ucx_stage stage;
    bool direct;         /* while it runs: goes into the user's buffer */
    uint64_t offset;     /* in the stream */
    size_t bytes, taken; /* taken: the first ones, which the user has got */
    void *offer;         /* UCX's descriptor of what is offered */
    unsigned char *data; /* owned; may be NULL */
} tutti_ucx_arrival;

/* A message that is being sent. */
typedef struct tutti_ucx_departure {
    tutti_ucx_pipe *pipe;
    tutti_ucx_header header;
    size_t bytes;
    bool running; /* else this place is free */
} tutti_ucx_departure;

struct tutti_ucx_pipe {
    tutti_pipe pipe; /* first */
    pid_t process;   /* that opened it; a forked child leaves UCX alone */
    int socket, epoll;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    int worker_event; /* wakes when the worker has something; -1: it has no such descriptor */
    uint64_t token, peer_token;
    bool greeted; /* the other side's first words have come over UCX */

    ucs_status_t lost;     /* what UCX says of the connection; UCS_OK: it is there */
    bool no_memory;        /* a message was dropped for want of memory */
    bool ended;            /* the socket has: the other side is gone */
    bool look;             /* at the socket, next time */
    unsigned rounds;       /* of progress in which nothing moved */
    uint64_t farewell;     /* bytes that the other side has sent in all, as it said when it closed */
    size_t farewell_bytes; /* of `farewell` that have come */

    struct iovec parts[TUTTI_UCX_PARTS]; /* not handed to UCX yet: [part, nparts) */
    int part, nparts;
    uint64_t offset_out; /* of the next message */
    tutti_ucx_departure departures[TUTTI_UCX_WINDOW];
    int sends_running;
    unsigned char stage[TUTTI_UCX_STAGE_BYTES]; /* small parts of a send, made one message */

    unsigned char *dst;
    uint64_t begin_in;           /* where in the stream the receive under way begins */
    tutti_ucx_arrival *arrivals; /* in order of the stream */
    int receives_running;
    bool refuses; /* takes no more messages: the pipe ends */
};

extern const tutti_module_host *tutti_ucx_common_host;
extern const tutti_ucx_host *tutti_ucx_own_host;

static inline int64_t tutti_ucx_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / TUTTI_NS_PER_MS;
}

/* The process' context, made at first use. */
tutti_status tutti_ucx_context(ucp_context_h *context_out);

tutti_status tutti_ucx_open(const tutti_connection *connection, tutti_deadline *deadline, tutti_pipe **pipe_out);
void tutti_ucx_close(tutti_pipe *pipe);
/* Ends the connection: after it UCX touches no memory of the user's any more. What was handed to UCX before is still sent if
 * that takes no time. The pipe is of no use after it. */
void tutti_ucx_stop(tutti_ucx_pipe *u);
/* Drives the worker until the request is done, at most so long; frees the request. False: it is not done. */
bool tutti_ucx_finish(tutti_ucx_pipe *u, ucs_status_ptr_t request, int64_t most_ms);

tutti_status tutti_ucx_send(tutti_pipe *pipe, const struct iovec *parts, int nparts);
/* Hands UCX what it may take now. */
void tutti_ucx_submit(tutti_ucx_pipe *u);
/* The first words over UCX. */
void tutti_ucx_greet(tutti_ucx_pipe *u);

tutti_status tutti_ucx_recv(tutti_pipe *pipe, void *dst, size_t bytes);
/* UCX calls it for each message. */
ucs_status_t tutti_ucx_arrive(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                              const ucp_am_recv_param_t *param);
/* Puts into the user's buffer what is there, and asks for what is offered. */
void tutti_ucx_take(tutti_ucx_pipe *u);
/* Nobody asks for what is offered, or will be, any more. */
void tutti_ucx_refuse_offers(tutti_ucx_pipe *u);
/* When nothing runs any more. */
void tutti_ucx_free_arrivals(tutti_ucx_pipe *u);
/* Looks whether the other side has closed, or is gone. */
void tutti_ucx_look(tutti_ucx_pipe *u);

tutti_status tutti_ucx_progress(tutti_pipe *pipe);
int tutti_ucx_sleep_on(tutti_pipe *pipe, short *events_out);
void tutti_ucx_cancel(tutti_pipe *pipe);

#endif
