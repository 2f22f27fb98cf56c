/*
 * RDMA: reliable pipes over ibverbs, and memory that adapters know. Nothing here knows of communicators.
 *
 *   comm/net/transport/verbs.c  --opens-->  libtutti_verbs.so:  module.c   the table below
 *                                                            connect.c  pairs come up, and come up again after a fault
 *                                                            pipe.c     small messages: records in the peer's ring
 *                                                            direct.c   large ones: straight into the peer's buffer
 *                                                            sleep.c    waiting without looking
 *                                                            lane.c     one queue pair; all calls that post and poll
 *                                                            memory.c   registrations
 *                                                            devices.c  which adapters, ports and addresses
 *
 * A pipe is a stream of bytes in both directions; its calls are those of a transport (comm/net/transport/transport.h).
 * Invariant: a pipe is used by one thread at a time. Once `status` is not TUTTI_OK its queue pairs are gone, so that
 * nobody reads or writes the user's buffers any more.
 */
#ifndef TUTTI_RDMA_H
#define TUTTI_RDMA_H

#include <sys/uio.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/machine/module.h"

/* Since the pipe was opened; the opening itself does not count. */
typedef struct tutti_rdma_counters {
    uint64_t records;       /* small messages, or parts of staged ones; each is one work request */
    uint64_t pieces;        /* written straight into the receiver's memory */
    uint64_t states;        /* lines that told the peer of room in the ring, or of a buffer */
    uint64_t work_requests; /* posted for sending: records, states, and each lane's share of the pieces */
    uint64_t receives;      /* posted: one for each lane's share of a piece that came, and for each wake */
    uint64_t sleeps;        /* announced to the peer; each is a state */
    uint64_t wakes;         /* of this side, by a record or state that answered a sleep */
    uint64_t registrations; /* of buffers, for one transfer */
    uint64_t cache_hits;    /* transfers whose buffer was known already */
    uint64_t repairs;       /* times that queue pairs were made anew */
} tutti_rdma_counters;

/* What the caller sees of a pipe; only the module writes it. */
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
    /* Opens the adapters, at first use. TUTTI_ERR_UNSUPPORTED with the reason where there is none to use. */
    tutti_status (*check)(void);
    /* Both sides call it at about the same time; proves the way with a real write. Takes the socket over, also when it
     * fails; it stays open, to see that the other side has ended, and to bring queue pairs up again. TUTTI_ERR_UNSUPPORTED: no
     * way leads to the other side, which knows it, too. */
    tutti_status (*open)(int socket, tutti_deadline *deadline, tutti_rdma_pipe **pipe_out);
    tutti_status (*send)(tutti_rdma_pipe *pipe, const struct iovec *parts, int nparts); /* at most 4 parts */
    tutti_status (*recv)(tutti_rdma_pipe *pipe, void *dst, size_t bytes);
    tutti_status (*progress)(tutti_rdma_pipe *pipe);
    /* A descriptor that becomes readable when something comes; -1: something has, or only looking tells. */
    int (*sleep_on)(tutti_rdma_pipe *pipe);
    void (*cancel)(tutti_rdma_pipe *pipe);
    void (*close)(tutti_rdma_pipe *pipe);
    /* The memory must stay mapped, with the same pages, until it is given back. It is registered at first use. */
    tutti_status (*register_memory)(void *memory, size_t bytes, void **registration_out);
    /* GPU memory by its dma-buf, at once. `memory` is the address that transfers will name. TUTTI_ERR_UNSUPPORTED where
     * the adapter, its driver or this build cannot. */
    tutti_status (*register_dmabuf)(int file, uint64_t offset, void *memory, size_t bytes, void **registration_out);
    void (*deregister_memory)(void *registration);
    /* `find` is asked for memory that was not registered: is it in a range whose pages stay until forget_memory names the
     * range's beginning? It is called without locks of the module. */
    void (*ask)(bool (*find)(const void *memory, void **start_out, size_t *bytes_out));
    void (*forget_memory)(void *start);
    void (*describe)(char *text, size_t capacity);
} tutti_rdma_module;

#endif
