/*
 * Transports: how bytes move between two processes. A pipe is one connection of a transport: a reliable, ordered
 * stream of bytes in both directions, without message boundaries. Links (link.h) and point to point put their own
 * frames on it.
 *
 *   listener.c        a TCP connection on which both sides have proved that they know the job's secret
 *     |
 *   open()            turns it into a pipe: tcp sends on it; verbs and ucx exchange their addresses on it, and
 *                     keep it to detect that the other side has ended
 *
 * A pipe has at most one send and one receive under way. Both are started, then driven with progress() until `sent`
 * and `received` have reached the bytes requested; both may be read while they grow.
 *
 * Invariant: a pipe is used by one thread at a time. Once `status` is not TUTTI_OK it stays so: nothing moves any
 * more, and no buffer of the user is touched.
 */
#ifndef TUTTI_TRANSPORT_H
#define TUTTI_TRANSPORT_H

#include <stdbool.h>
#include <sys/uio.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "comm/shm/peer.h"

typedef struct tutti_transport tutti_transport;

#define TUTTI_CONNECTION_KEY_BYTES 32
#define TUTTI_LANES_MOST           16 /* connections under one pipe (multi_socket.h) */

/* A connection on which both sides have proved that they know the job's key (listener.h). */
typedef struct tutti_connection {
    int socket;                              /* blocking */
    bool called;                             /* this side connected; the other side accepted */
    bool lane;                               /* one of several under one pipe (multi_socket.h) */
    uint8_t key[TUTTI_CONNECTION_KEY_BYTES]; /* known only to the two sides of this connection */
} tutti_connection;

/* The first member of every pipe; a transport's own state follows. */
typedef struct tutti_pipe {
    const tutti_transport *transport;
    size_t to_send, sent;         /* bytes of the send under way; equal: there is none */
    size_t to_receive, received;  /* bytes of the receive under way */
    uint64_t bytes_out, bytes_in; /* since the pipe was opened */
    /* send and recv may be called while a transfer is under way, with the same number of bytes: bytes that have not
     * moved yet are read from, or written to, the new buffer, and the former buffer is free when the call returns. */
    bool movable;
    /* Set by its user: it carries messages, most of them one at a time and in one direction, rather than exchanges. */
    bool messages;
    /* A lane of a multi-socket pipe, which decides what a failed send means: the lane only sets send_error. */
    bool lane;
    int send_error;      /* of a lane: errno after which it can only receive; 0: none */
    tutti_status status; /* TUTTI_OK, or why the pipe has failed */
    /* The message of that status. With TUTTI_OK: why the pipe uses no better transport, "" where none was tried. */
    char error[256];
} tutti_pipe;

/* What sets a transport apart; code outside of this folder asks for that, not for a transport. */
enum {
    TUTTI_TRANSPORT_EVERYWHERE = 1, /* works between any two hosts: what comes after it in the list must be named */
    TUTTI_TRANSPORT_ENCRYPTS = 2,
    TUTTI_TRANSPORT_SOCKETS = 4, /* byte streams of the kernel, of which several can make one pipe (multi_socket.h) */
    TUTTI_TRANSPORT_ADAPTER = 8, /* an adapter moves the bytes: looking for them takes no system call */
    TUTTI_TRANSPORT_VERBS = 16,  /* RDMA as tutti_comm_init_rdma() promises it */
};

/*
 * The table of a transport. Calls return at once unless stated otherwise; a failure also sets pipe->status and
 * pipe->error.
 */
struct tutti_transport {
    const char *name;      /* as in TUTTI_TRANSPORT */
    unsigned capabilities; /* TUTTI_TRANSPORT_* */
    /* TUTTI_ERR_UNSUPPORTED with the reason: this process does not have the transport. May open a module. */
    tutti_status (*check)(void);
    /* Turns a proved connection into a pipe; both sides call it at about the same time. May exchange bytes on the
     * connection until the deadline. Takes over the socket, also on failure. TUTTI_ERR_UNSUPPORTED: this transport
     * cannot reach the other side, which gets the same error, so both try another transport. */
    tutti_status (*open)(const tutti_connection *connection, tutti_deadline *deadline, tutti_pipe **pipe_out);
    /* Starts to send the parts (at most 4), which must not change until sent == to_send. Small ones are on their
     * way when it returns. */
    tutti_status (*send)(tutti_pipe *pipe, const struct iovec *parts, int nparts);
    /* Starts to receive exactly `bytes` bytes. */
    tutti_status (*recv)(tutti_pipe *pipe, void *dst, size_t bytes);
    /* Moves what can move now. */
    tutti_status (*progress)(tutti_pipe *pipe);
    /* A descriptor to poll(2) for events_out when nothing has moved for a while; -1: none, call progress() soon. */
    int (*sleep_on)(tutti_pipe *pipe, short *events_out);
    /* Ends both transfers: no byte of a buffer is read or written after it returns. If it interrupts a transfer
     * that has begun, the pipe fails. May be called on half-open pipes. */
    void (*cancel)(tutti_pipe *pipe);
    /* Cancels, and frees the pipe. Bytes sent before still arrive, if the process lives on for a moment. */
    void (*close)(tutti_pipe *pipe);
    /* For tutti-info: devices, ports, or why the transport is not available. */
    void (*describe)(char *text, size_t capacity);
};

/* All transports, best first; NULL at the end. Those after tcp are loaded only where TUTTI_TRANSPORT names them. */
extern const tutti_transport *const tutti_transports[];
static inline bool tutti_transport_can(const tutti_transport *transport, unsigned capabilities) {
    return (transport->capabilities & capabilities) != 0;
}

/* Bit i: tutti_transports[i] is available here, and TUTTI_TRANSPORT and TUTTI_ENCRYPT allow it. TUTTI_ERR_CONFIG
 * where a name is unknown or the two settings contradict each other; TUTTI_ERR_UNSUPPORTED with the reasons where
 * no transport is left, but 0 and TUTTI_OK where TUTTI_TRANSPORT names only "shm". */
tutti_status tutti_transports_available(uint32_t *mask_out);
/* The last check before a pipe is opened, independent of what was read about the other side and where:
 * TUTTI_ERR_REFUSED where TUTTI_ENCRYPT is set and the transport does not encrypt. */
tutti_status tutti_transport_permit(const tutti_transport *transport);
/* Why tutti_transports_available leaves out a transport whose check() succeeds. */
const char *tutti_transport_left_out(const tutti_transport *transport);
/* Index of the best transport in both masks; -1: they have none in common. */
int tutti_transport_common(uint32_t one, uint32_t other);
extern const tutti_transport tutti_verbs_transport, tutti_tcp_transport, tutti_ucx_transport, tutti_tls_transport;

static inline bool tutti_pipe_has_sent(const tutti_pipe *pipe) {
    return pipe->sent == pipe->to_send;
}
static inline bool tutti_pipe_has_received(const tutti_pipe *pipe) {
    return pipe->received == pipe->to_receive;
}
/* Marks the pipe as failed and sets this thread's error; returns the status. */
tutti_status tutti_pipe_fail(tutti_pipe *pipe, tutti_status status, const char *format, ...) TUTTI_PRINTF(3, 4);

/* --------------------------------------------------------------------------------------------- only by RDMA
 * Enforces RDMA or an error: the effect of tutti_comm_init_rdma (comm/api/rdma.c) on connections that are made later.
 * The setting belongs to pairs of processes (tutti_peer.verbs_only), not to communicators: messages of all
 * communicators of two processes share one connection, and communicators that are split off or created later must
 * be as safe as this one. Both processes of a pair know the setting, since the call is collective.
 *
 * Invariant: once it is set, only connections over verbs are taken into use between the two processes.
 */

/* The bit of the transport over verbs, as in tutti_transports; 0: there is none. */
uint32_t tutti_verbs_only_bit(void);
/* Transports that may be used to that process: bits as in tutti_transports. NULL: any process. */
uint32_t tutti_verbs_only_mask(const tutti_peer *peer);
/* Checks whether this new pipe may be used; it may have been started before the setting. Closes the pipe if not. */
tutti_status tutti_verbs_only_admit(const tutti_peer *peer, tutti_pipe *pipe);

#endif
