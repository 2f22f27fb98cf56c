/*
 * Inside the module libtutti_ucx.so: the state of a pipe over UCX.
 *
 * A pipe has a worker and an endpoint of its own. The stream is sent as active messages that carry their offset in
 * the stream, since UCX does not guarantee order. A short message carries its bytes; a larger piece waits at the sender
 * until the receiver has named a destination, and then moves directly into the receiver's buffer, by RDMA where UCX
 * supports that. (UCX's own streams would drop bytes without a posted receive when the other side closes.)
 *
 * Invariant: messages in the user's memory are counted by sends_running and receives_running. `status` of the pipe
 * is set only after both are 0 (tutti_ucx_stop).
 */
#ifndef TUTTI_UCX_STATE_H
#define TUTTI_UCX_STATE_H

#include <time.h>
#include <ucp/api/ucp.h>

#include "comm/net/transport/ucx/ucx.h"

#define TUTTI_UCX_PARTS         4
#define TUTTI_UCX_WINDOW        4 /* pieces under way at once, in each direction */
#define TUTTI_UCX_STAGE_BYTES   ((size_t)8 << 10)
#define TUTTI_UCX_MESSAGE       1 /* id of the active message */
#define TUTTI_UCX_CLOSE_WAIT_MS 50

/* The header of a message. */
typedef struct tutti_ucx_header {
    /* The receiver's token, sent over the proved socket; a message without it comes from another process. */
    uint64_t token;
    uint64_t offset; /* in the stream */
} tutti_ucx_header;

typedef enum tutti_ucx_stage {
    TUTTI_UCX_OFFERED, /* the sender holds it, and waits for a destination */
    TUTTI_UCX_RUNNING, /* under way, to the user's buffer or to `data` */
    TUTTI_UCX_HERE,    /* in `data` */
    TUTTI_UCX_PLACED,  /* in the user's buffer */
    TUTTI_UCX_FAILED,
} tutti_ucx_stage;

typedef struct tutti_ucx_pipe tutti_ucx_pipe;

/* A received message whose bytes the user has not got yet. */
typedef struct tutti_ucx_arrival {
    struct tutti_ucx_arrival *next; /* the next higher offset */
    tutti_ucx_pipe *pipe;
    tutti_ucx_stage stage;
    bool direct;         /* while it runs: its destination is the user's buffer */
    uint64_t offset;     /* in the stream */
    size_t bytes, taken; /* taken: bytes from the start that the user has got */
    void *offer;         /* UCX's descriptor of the offered message */
    unsigned char *data; /* owned; may be NULL */
} tutti_ucx_arrival;

/* A message that is being sent. */
typedef struct tutti_ucx_departure {
    tutti_ucx_pipe *pipe;
    tutti_ucx_header header;
    size_t bytes;
    bool running; /* false: this slot is free */
} tutti_ucx_departure;

struct tutti_ucx_pipe {
    tutti_pipe pipe; /* first */
    pid_t process;   /* the process that opened the pipe; a forked child does not touch UCX */
    int socket, epoll;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    int worker_event; /* readable when the worker has work; -1: it has no such descriptor */
    uint64_t token, peer_token;
    bool greeted; /* the other side's greeting has arrived over UCX */

    ucs_status_t lost;     /* UCX's status of the connection; UCS_OK: it works */
    bool no_memory;        /* a message was dropped because memory ran out */
    bool ended;            /* the socket has ended: the other side is gone */
    bool look;             /* check the socket next time */
    unsigned rounds;       /* calls of progress in which nothing moved */
    uint64_t farewell;     /* total bytes that the other side sent, as it reported when it closed */
    size_t farewell_bytes; /* bytes of `farewell` received */

    struct iovec parts[TUTTI_UCX_PARTS]; /* parts not handed to UCX yet: [part, nparts) */
    int part, nparts;
    uint64_t offset_out; /* offset of the next message */
    tutti_ucx_departure departures[TUTTI_UCX_WINDOW];
    int sends_running;
    unsigned char stage[TUTTI_UCX_STAGE_BYTES]; /* small parts of a send, packed into one message */

    unsigned char *dst;
    uint64_t begin_in;           /* offset in the stream at which the receive under way begins */
    tutti_ucx_arrival *arrivals; /* in the order of the stream */
    int receives_running;
    bool refuses; /* accepts no more messages: the pipe is ending */
};

/* Set by ucx_open.c when libtutti opens the module. */
extern const tutti_module_host *tutti_ucx_common_host;
extern const tutti_ucx_host *tutti_ucx_own_host;

static inline int64_t tutti_ucx_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / TUTTI_NS_PER_MS;
}

/* The context of the process, created at first use. */
tutti_status tutti_ucx_context(ucp_context_h *context_out);
/* Lists what UCX finds on this host, for tutti-info. */
tutti_status tutti_ucx_find(tutti_ucx_survey *survey_out);

/* Ends the connection: after it UCX touches no memory of the user. Bytes handed to UCX before are still sent if
 * that takes no time. The pipe cannot be used after it. */
void tutti_ucx_stop(tutti_ucx_pipe *u);
/* Drives the worker until the request is done, for at most most_ms; frees the request. False: it is not done. */
bool tutti_ucx_finish(tutti_ucx_pipe *u, ucs_status_ptr_t request, int64_t most_ms);

tutti_status tutti_ucx_send(tutti_pipe *pipe, const struct iovec *parts, int nparts);
/* Sends the greeting over UCX. */
void tutti_ucx_greet(tutti_ucx_pipe *u);

tutti_status tutti_ucx_recv(tutti_pipe *pipe, void *dst, size_t bytes);
/* UCX calls it for each received message. */
ucs_status_t tutti_ucx_arrive(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                              const ucp_am_recv_param_t *param);
/* Refuses offered messages, present and future. */
void tutti_ucx_refuse_offers(tutti_ucx_pipe *u);
/* Call it only when nothing is running any more. */
void tutti_ucx_free_arrivals(tutti_ucx_pipe *u);

tutti_status tutti_ucx_progress(tutti_pipe *pipe);
int tutti_ucx_sleep_on(tutti_pipe *pipe, short *events_out);
void tutti_ucx_cancel(tutti_pipe *pipe);

#endif
