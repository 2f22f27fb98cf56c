/*
 * Transports: the ways on which bytes go between two processes. A pipe is one such way: a reliable, ordered stream of
 * bytes in both directions, without messages. Links (link.h) and point to point put their own frames on it.
 *
 *   listener.c        a TCP connection on which both sides have proved that they know the job's secret
 *     |
 *   open()        makes it a pipe: tcp sends on it; verbs and ucx tell each other their addresses on it, and keep it to
 *                 see that the other side has ended
 *
 * A pipe has at most one send and one receive under way. Both are started, then driven with progress() until `sent`
 * and `received` have come to what was asked for; both may be looked at while they grow.
 *
 * Invariant: a pipe is used by one thread at a time. Once `status` is not TUTTI_OK it stays so, nothing moves any more,
 * and nothing of the user's buffers is touched.
 */
#ifndef TUTTI_TRANSPORT_H
#define TUTTI_TRANSPORT_H

#include <stdbool.h>
#include <sys/uio.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"

typedef struct tutti_transport tutti_transport;

#define TUTTI_CONNECTION_KEY_BYTES 32
#define TUTTI_LANES_MOST           16 /* connections under one pipe (multi_socket.h) */

/* A connection of which both sides have proved that they know the job's key (listener.h). */
typedef struct tutti_connection {
    int socket;                              /* a blocking one */
    bool called;                             /* this side has made the connection; the other one has taken it */
    bool lane;                               /* one of several under one pipe (multi_socket.h) */
    uint8_t key[TUTTI_CONNECTION_KEY_BYTES]; /* of this connection alone, known to its two sides alone */
} tutti_connection;

/* What all pipes begin with; a transport's own state follows. */
typedef struct tutti_pipe {
    const tutti_transport *transport;
    size_t to_send, sent;         /* of the send under way; equal: none is */
    size_t to_receive, received;  /* of the receive under way */
    uint64_t bytes_out, bytes_in; /* since it was opened */
    /* send and recv may be called while one is under way, with as many bytes: what has not gone yet is taken from there, what
     * has not come yet goes there, and the former buffer is free when the call returns. */
    bool movable;
    bool lane;      /* of a bundle (multi_socket.h), which decides what a failed send means: it is told by send_error alone */
    int send_error; /* of a lane: nothing can be sent any more, what comes is still received; 0: it can */
    tutti_status status; /* why it is of no use any more */
    /* That in words. With TUTTI_OK: why it is not of a better transport, "" where that was not tried (async_connect.c). */
    char error[256];
} tutti_pipe;

/*
 * The table of a transport. Calls return at once unless said otherwise; what fails is told by pipe->status and
 * pipe->error, too.
 */
struct tutti_transport {
    const char *name; /* as in TUTTI_TRANSPORT */
    /* Is it to be had in this process? TUTTI_ERR_UNSUPPORTED with the reason. May open a module. */
    tutti_status (*check)(void);
    /* Makes a pipe of a proved connection; both sides call it at about the same time. May exchange bytes on it until the
     * deadline. Takes the socket over, also when it fails. TUTTI_ERR_UNSUPPORTED: no such way leads to the other side, which
     * gets the same answer: both try another transport. */
    tutti_status (*open)(const tutti_connection *connection, tutti_deadline *deadline, tutti_pipe **pipe_out);
    /* Starts to send the parts (at most 4), which stay as they are until sent == to_send. Small ones are on their way when
     * it returns. */
    tutti_status (*send)(tutti_pipe *pipe, const struct iovec *parts, int nparts);
    /* Starts to receive exactly that many bytes. */
    tutti_status (*recv)(tutti_pipe *pipe, void *dst, size_t bytes);
    /* Moves what can be moved now. */
    tutti_status (*progress)(tutti_pipe *pipe);
    /* A descriptor to poll(2) for events_out, when nothing has moved for a while; -1: there is none, look again soon. */
    int (*sleep_on)(tutti_pipe *pipe, short *events_out);
    /* Nothing is under way any more, and no byte of a buffer is read or written after it returns. What was cut off makes the
     * pipe useless. May be called on half-open pipes. */
    void (*cancel)(tutti_pipe *pipe);
    /* Cancels, and frees the pipe. What was sent before arrives, if the process lives on for a moment. */
    void (*close)(tutti_pipe *pipe);
    /* Makes memory known to the adapter for as long as it is in use; NULL where that is of no use. */
    tutti_status (*register_memory)(void *memory, size_t bytes, void **registration_out);
    void (*deregister_memory)(void *registration);
    /* For tutti-info: devices, ports, why not. */
    void (*describe)(char *text, size_t capacity);
};

/* All that there are, best first; NULL at the end. Those after tcp, which all can do with, are loaded only where
 * TUTTI_TRANSPORT names them. */
extern const tutti_transport *const tutti_transports[];
/* NULL: there is none of that name. */
const tutti_transport *tutti_transport_named(const char *name);
/* Bit i: tutti_transports[i] is to be had here, and TUTTI_TRANSPORT and TUTTI_ENCRYPT allow it. TUTTI_ERR_CONFIG where a name
 * is unknown or the two contradict each other, TUTTI_ERR_UNSUPPORTED with the reasons where nothing is left; but where
 * TUTTI_TRANSPORT names "shm" only, 0 is what was asked for. */
tutti_status tutti_transports_available(uint32_t *mask_out);
/* The last look before a pipe is opened, whatever was read about the other side, and wherever: TUTTI_ERR_REFUSED where
 * TUTTI_ENCRYPT is set and the transport does not encrypt. */
tutti_status tutti_transport_permit(const tutti_transport *transport);
/* Why it is not available though it is to be had. */
const char *tutti_transport_left_out(const tutti_transport *transport);
/* The best one of both masks: an index; -1: they have none in common. */
int tutti_transport_common(uint32_t one, uint32_t other);
extern const tutti_transport tutti_verbs_transport, tutti_tcp_transport, tutti_ucx_transport, tutti_tls_transport;

static inline bool tutti_pipe_has_sent(const tutti_pipe *pipe) {
    return pipe->sent == pipe->to_send;
}
static inline bool tutti_pipe_has_received(const tutti_pipe *pipe) {
    return pipe->received == pipe->to_receive;
}
/* Marks it as useless, with this thread's error; gives the status. */
tutti_status tutti_pipe_fail(tutti_pipe *pipe, tutti_status status, const char *format, ...) TUTTI_PRINTF(3, 4);

#endif
