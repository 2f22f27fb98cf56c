/*
 * The table of locks, and the check of their order. See lock.h.
 */
#include "bootstrap/base/lock.h"

#include <stdio.h>
#include <stdlib.h>

#define ROW(kind, at_fork, name, file, protects)                                                                       \
    [TUTTI_LOCK_##kind] = {PTHREAD_MUTEX_INITIALIZER, name, file, TUTTI_AT_FORK_##at_fork, protects}

tutti_lock_row tutti_locks[TUTTI_LOCK_KINDS] = {
    ROW(RENDEZVOUS, UNUSED, "rendezvous", "bootstrap/launcher/rendezvous.c", "whether rank 0 has published its store"),
    ROW(OWN_STORE, UNUSED, "own_store", "bootstrap/launcher/rendezvous.c", "the store that this process serves"),
    ROW(GPU_MAKING, UNUSED, "gpu_making", "comm/gpu/stream_comm.c", "the creation of comm->cuda.streams"),
    ROW(STREAM_ORDER, STRUCT, "stream_order", "comm/gpu/stream.c", "the order of a communicator's calls in streams"),
    ROW(WATCHDOG, UNUSED, "watchdog", "comm/gpu/inflight.c", "the list of communicators with calls in streams"),
    ROW(INFLIGHT, STRUCT, "inflight", "comm/gpu/inflight.c", "a communicator's calls in flight in streams"),
    ROW(NCCL_MEMORY, UNUSED, "nccl_memory", "comm/gpu/nccl/nccl_memory.c", "the blocks registered with NCCL"),
    ROW(NCCL, STRUCT, "nccl", "comm/gpu/nccl/nccl.c", "an NCCL communicator"),
    ROW(NCCL_LIBRARY, LEFT, "nccl_library", "comm/gpu/nccl/nccl_library.c", "the search for the NCCL library"),
    ROW(STAGED, UNUSED, "staged", "comm/gpu/staged/staged.c", "which calls are in which streams"),
    ROW(SAME_GPU, UNUSED, "same_gpu", "comm/gpu/same_gpu/same_gpu_memory.c",
        "counters, slots and mappings kept for reuse"),
    ROW(QUEUE, STRUCT, "queue", "comm/queue/queue.c", "a communicator's queue and the state of its worker"),
    ROW(P2P, UNUSED, "p2p", "comm/p2p/p2p.c", "all of point to point: ports, requests, messages, channels"),
    ROW(WORK, STRUCT, "work", "comm/queue/work.c", "a work's status and callback"),
    ROW(CALLBACKS, UNUSED, "callbacks", "comm/queue/work.c", "callbacks that are due, and the number of idle threads"),
    ROW(LISTENER, UNUSED, "listener", "comm/net/listener.c",
        "the listener's addresses, and connections that are not taken yet"),
    ROW(PROXIES, UNUSED, "proxies", "comm/health/heartbeat.c", "communicators that this process watches for its host"),
    ROW(HEARTBEAT, UNUSED, "heartbeat", "comm/health/heartbeat.c", "the list of heartbeats, and their thread's state"),
    ROW(RETIRED, UNUSED, "retired", "comm/shm/retire.c", "pages and slots that slower ranks may still read"),
    ROW(PEERS, UNUSED, "peers", "comm/shm/peer.c", "the processes that this one communicates with"),
    ROW(SEGMENTS, UNUSED, "segments", "comm/shm/segment.c", "the segments of communicators"),
    ROW(SLOTS, UNUSED, "slots", "comm/shm/slots.c", "the list of communicators and the bytes that they have leased"),
    ROW(HEAP, UNUSED, "heap", "comm/shm/heap.c", "pieces of the shared heap"),
    ROW(REGISTRY, HELD, "registry", "comm/shm/heap.c", "ranges registered by the program"),
    ROW(DEVICE_MEMORY, UNUSED, "device_memory", "comm/gpu/device_memory.c", "blocks of CUDA memory"),
    ROW(PINNED, UNUSED, "pinned", "comm/gpu/pinned.c", "pinned blocks kept for reuse"),
    ROW(EVENTS, UNUSED, "events", "comm/gpu/event.c", "marks in streams"),
    ROW(ERROR_POLL, UNUSED, "error_poll", "comm/gpu/event.c", "the list of GPUs whose failures are looked for"),
    ROW(VERBS, LEFT, "verbs", "comm/net/transport/verbs.c", "the module rdma"),
    ROW(UCX, LEFT, "ucx", "comm/net/transport/ucx/ucx.c", "the module ucx"),
    ROW(TLS, LEFT, "tls", "comm/net/transport/tls.c", "the module tls"),
    ROW(KEYS, UNUSED, "keys", "comm/net/connect.c", "keys of jobs whose processes may connect"),
    ROW(DEVICE, LEFT, "device", "kernels/device.c", "the module cuda"),
    ROW(ASYNC_CALL, STRUCT, "async_call", "bootstrap/machine/async_call.c", "a call on a thread of its own"),
    ROW(SOCKETS, HELD, "sockets", "comm/base/fork.c", "the sockets that a forked child closes"),
    ROW(INTERFACES, HELD, "interfaces", "bootstrap/machine/interfaces.c", "the preferred network interfaces"),
    ROW(WORLD, HELD, "world", "bootstrap/launcher/world.c", "what the ranks of the world have found when they met"),
    ROW(SETTINGS, HELD, "settings", "bootstrap/base/settings.c", "the reading of settings"),
};

void tutti_cond_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool tutti_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t until_ns) {
    const struct timespec until = {.tv_sec = until_ns / TUTTI_NS_PER_S, .tv_nsec = until_ns % TUTTI_NS_PER_S};
    return pthread_cond_timedwait(condition, mutex, &until) == 0;
}

/* --------------------------------------------------------------------------------------------- order */

#define MOST_HELD 16

static _Thread_local struct {
    tutti_lock_kind kinds[MOST_HELD];
    int count;
} held;

void tutti_lock_taken(tutti_lock_kind kind, bool waits) {
    for (int i = 0; i < held.count && waits; i++) {
        if (held.kinds[i] < kind) continue;
        fprintf(stderr, "tutti: order of locks: a thread takes \"%s\" while it holds \"%s\" (bootstrap/base/lock.h)\n",
                tutti_locks[kind].name, tutti_locks[held.kinds[i]].name);
        abort();
    }
    if (held.count == MOST_HELD) abort();
    held.kinds[held.count++] = kind;
}

void tutti_lock_dropped(tutti_lock_kind kind) {
    int i = held.count - 1;
    while (i >= 0 && held.kinds[i] != kind) i--;
    if (i < 0) abort(); /* this thread does not hold it */
    held.kinds[i] = held.kinds[--held.count];
}
