/*
 * The transport "verbs": RDMA, by the module libtutti_verbs.so (rdma/rdma.h), opened at first use.
 *
 * The module does not depend on transports, so its pipes have a state of their own, which is copied after each
 * call: counters and a status, a few words.
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "comm/base/fork.h"
#include "comm/net/transport/verbs.h"
#include "comm/shm/heap.h"

typedef struct verbs_pipe {
    tutti_pipe pipe;
    tutti_rdma_pipe *rdma;
    int socket; /* the module's; closed here in forked children */
} verbs_pipe;

static const tutti_rdma_module *_Atomic module; /* NULL: not opened; release pairs with the acquire in get_module */
static atomic_bool initialized;                 /* the module's adapters are open */

static tutti_status open_module(void) {
    const tutti_module_calls *calls;
    TUTTI_TRY(tutti_module_open("verbs", TUTTI_VERBS_LEFT_OUT, &calls));
    const tutti_rdma_module *opened = (const tutti_rdma_module *)calls;
    opened->ask(tutti_heap_find_lasting);
    tutti_heap_watch(opened->forget_memory);
    atomic_store_explicit(&module, opened, memory_order_release);
    return TUTTI_OK;
}

static tutti_status get_module(const tutti_rdma_module **module_out) {
    tutti_status status = TUTTI_OK;
    if (atomic_load_explicit(&module, memory_order_acquire) == NULL) {
        tutti_lock(TUTTI_LOCK_VERBS);
        if (atomic_load_explicit(&module, memory_order_relaxed) == NULL) status = open_module();
        tutti_unlock(TUTTI_LOCK_VERBS);
    }
    if (status == TUTTI_OK) *module_out = atomic_load_explicit(&module, memory_order_acquire);
    return status;
}

/* The module's table. A pipe exists, so the module is open. */
static const tutti_rdma_module *calls(void) {
    return atomic_load_explicit(&module, memory_order_relaxed);
}

static tutti_status check(void) {
    const tutti_rdma_module *opened;
    TUTTI_TRY(get_module(&opened));
    TUTTI_TRY(opened->check());
    atomic_store_explicit(&initialized, true, memory_order_release);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------------- pipes */

static tutti_status copy_state(tutti_pipe *pipe) {
    const tutti_rdma_pipe *rdma = ((verbs_pipe *)pipe)->rdma;
    pipe->sent = rdma->sent;
    pipe->received = rdma->received;
    pipe->bytes_out = rdma->bytes_out;
    pipe->bytes_in = rdma->bytes_in;
    if (TUTTI_LIKELY(rdma->status == TUTTI_OK)) return TUTTI_OK;
    return tutti_pipe_fail(pipe, rdma->status, "%s", rdma->error);
}

static tutti_status verbs_open(const tutti_connection *connection, tutti_deadline *deadline, tutti_pipe **pipe_out) {
    int socket = connection->socket;
    verbs_pipe *pipe = NULL;
    const tutti_rdma_module *opened;
    tutti_status status = tutti_calloc(1, sizeof *pipe, &pipe);
    if (status == TUTTI_OK) status = get_module(&opened);
    if (status != TUTTI_OK) { /* the other side sees the connection end */
        close(socket);
        free(pipe);
        return status;
    }
    pipe->pipe.transport = &tutti_verbs_transport;
    status = opened->open(socket, deadline, &pipe->rdma); /* without an adapter, it notifies the other side */
    if (status != TUTTI_OK) {
        free(pipe);
        return status;
    }
    atomic_store_explicit(&initialized, true, memory_order_release);
    pipe->socket = socket;
    tutti_fork_closes(socket);
    *pipe_out = &pipe->pipe;
    return TUTTI_OK;
}

static tutti_status verbs_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    tutti_rdma_pipe *rdma = ((verbs_pipe *)pipe)->rdma;
    calls()->send(rdma, parts, nparts);
    pipe->to_send = rdma->to_send;
    return copy_state(pipe);
}

static tutti_status verbs_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    pipe->to_receive = bytes;
    calls()->recv(((verbs_pipe *)pipe)->rdma, dst, bytes);
    return copy_state(pipe);
}

static tutti_status verbs_progress(tutti_pipe *pipe) {
    calls()->progress(((verbs_pipe *)pipe)->rdma);
    return copy_state(pipe);
}

static int sleep_on(tutti_pipe *pipe, short *events_out) {
    *events_out = POLLIN;
    return calls()->sleep_on(((verbs_pipe *)pipe)->rdma);
}

static void verbs_cancel(tutti_pipe *pipe) {
    if (pipe == NULL) return;
    calls()->cancel(((verbs_pipe *)pipe)->rdma);
    copy_state(pipe);
    pipe->to_send = pipe->sent;
    pipe->to_receive = pipe->received;
}

static void verbs_close(tutti_pipe *pipe) {
    if (pipe == NULL) return;
    tutti_fork_forget(((verbs_pipe *)pipe)->socket);
    calls()->close(((verbs_pipe *)pipe)->rdma);
    free(pipe);
}

const tutti_rdma_counters *tutti_verbs_counters(const tutti_pipe *pipe) {
    return &((const verbs_pipe *)pipe)->rdma->counters;
}

static void describe(char *text, size_t capacity) {
    const tutti_rdma_module *opened;
    if (get_module(&opened) == TUTTI_OK) opened->describe(text, capacity);
    else snprintf(text, capacity, "%s", tutti_last_error());
}

const tutti_transport tutti_verbs_transport = {
    .name = "verbs",
    .capabilities = TUTTI_TRANSPORT_ADAPTER | TUTTI_TRANSPORT_VERBS,
    .check = check,
    .open = verbs_open,
    .send = verbs_send,
    .recv = verbs_recv,
    .progress = verbs_progress,
    .sleep_on = sleep_on,
    .cancel = verbs_cancel,
    .close = verbs_close,
    .describe = describe,
};

/* -------------------------------------------------------------------------------------------------- public API */

tutti_status tutti_init_rdma(void) {
    return check();
}

int tutti_rdma_is_initialized(void) {
    return atomic_load_explicit(&initialized, memory_order_acquire);
}
