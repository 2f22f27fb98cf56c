/*
 * RDMA: reliable pipes over ibverbs, and memory registered with adapters. Nothing here depends on communicators.
 *
 * comm/net/transport/verbs.c opens libtutti_verbs.so, whose files CMakeLists.txt describes; pipe.c has the table below.
 *
 * A pipe is a stream of bytes in both directions; its calls are those of a transport
 * (comm/net/transport/transport.h). Invariant: a pipe is used by one thread at a time. Once `status` is not
 * TUTTI_OK its queue pairs are down, so that no adapter reads or writes the user's buffers any more.
 */
#ifndef TUTTI_RDMA_H
#define TUTTI_RDMA_H

#include <sys/uio.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/machine/module.h"

/* Counts since the pipe was opened, without the opening itself. */
typedef struct tutti_rdma_counters {
    uint64_t records;       /* small messages, or parts of staged ones; each is one work request */
    uint64_t pieces;        /* written straight into the receiver's memory */
    uint64_t states;        /* lines that announced to the peer free ring lines or a granted buffer */
    uint64_t work_requests; /* posted for sending: records, states, and each lane's share of the pieces */
    uint64_t receives;      /* posted: one for each lane's share of a received piece, and one for each wake */
    uint64_t sleeps;        /* announced to the peer; each is a state */
    uint64_t wakes;         /* wakes of this side by a record or state that answered a sleep */
    uint64_t registrations; /* registrations of buffers for one transfer */
    uint64_t cache_hits;    /* transfers whose buffer was registered already */
    uint64_t repairs;       /* times that the queue pairs were reconnected */
} tutti_rdma_counters;

/* The part of a pipe that the caller sees; only the module writes it. */
typedef struct tutti_rdma_pipe {
    size_t to_send, sent;
    size_t to_receive, received;
    uint64_t bytes_out, bytes_in;
    tutti_status status;
    char error[512];
    tutti_rdma_counters counters;
} tutti_rdma_pipe;

/* The table of libtutti_verbs.so. */
typedef struct tutti_rdma_module {
    tutti_module_calls head;
    /* Opens the adapters, at first use. Fails with TUTTI_ERR_UNSUPPORTED and the reason where none can be used. */
    tutti_status (*check)(void);
    /* Both sides call it at about the same time; it verifies the path with a real write. Takes over the socket,
     * also on failure; the socket stays open, to detect that the other side has ended and to reconnect queue pairs.
     * TUTTI_ERR_UNSUPPORTED: the other side cannot be reached, and gets the same error. */
    tutti_status (*open)(int socket, tutti_deadline *deadline, tutti_rdma_pipe **pipe_out);
    tutti_status (*send)(tutti_rdma_pipe *pipe, const struct iovec *parts, int nparts); /* at most 4 parts */
    tutti_status (*recv)(tutti_rdma_pipe *pipe, void *dst, size_t bytes);
    tutti_status (*progress)(tutti_rdma_pipe *pipe);
    /* A descriptor that becomes readable when something arrives; -1: something has, or only polling can find out. */
    int (*sleep_on)(tutti_rdma_pipe *pipe);
    void (*cancel)(tutti_rdma_pipe *pipe);
    void (*close)(tutti_rdma_pipe *pipe);
    /* The module calls `find` for memory that it does not know: is it in a range whose pages stay until
     * forget_memory names the start of the range? It is called without locks of the module. */
    void (*ask)(bool (*find)(const void *memory, void **start_out, size_t *bytes_out));
    void (*forget_memory)(void *start);
    void (*describe)(char *text, size_t capacity);
} tutti_rdma_module;

#endif
