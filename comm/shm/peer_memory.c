/*
 * Copies from the private memory of other processes (process_vm_readv). See peer.h.
 *
 * Whether the system permits it is checked once per peer, by reading a known value: the random id in the peer's
 * directory. That also detects a pid of another namespace, which belongs to another process here. The fault point
 * "peer_read" makes the check fail.
 */
#include <string.h>
#include <sys/uio.h>

#include "bootstrap/base/common.h"
#include "comm/shm/peer.h"

static bool read_memory(const tutti_peer *peer, uint64_t address, void *dst, size_t bytes) {
    char *to = dst;
    while (bytes > 0) {
        struct iovec local = {.iov_base = to, .iov_len = bytes};
        struct iovec remote = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
        ssize_t got = process_vm_readv(peer->pid, &local, 1, &remote, 1, 0);
        if (got <= 0) return false;
        to += got;
        address += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool probe(const tutti_peer *peer) {
    uint64_t address = peer->remote_base + offsetof(tutti_channel_directory, owner);
    uint8_t owner[TUTTI_PROCESS_ID_BYTES];
    return !tutti_fault("peer_read") && read_memory(peer, address, owner, sizeof owner) &&
           memcmp(owner, peer->id, sizeof owner) == 0;
}

bool tutti_peer_can_read(tutti_peer *peer) {
    if (peer->self) return true;
    if (peer->remote) return false;
    int known = atomic_load_explicit(&peer->readable, memory_order_relaxed);
    if (known == TUTTI_PEER_UNKNOWN) {
        known = probe(peer) ? TUTTI_PEER_READABLE : TUTTI_PEER_UNREADABLE;
        atomic_store_explicit(&peer->readable, known, memory_order_relaxed);
    }
    return known == TUTTI_PEER_READABLE;
}

bool tutti_peer_read(tutti_peer *peer, uint64_t address, void *dst, size_t bytes) {
    if (peer->self) memcpy(dst, (const void *)(uintptr_t)address, bytes);
    else if (!read_memory(peer, address, dst, bytes)) {
        /* It was permitted before: the memory is special, or the process has ended. */
        atomic_store_explicit(&peer->readable, TUTTI_PEER_UNREADABLE, memory_order_relaxed);
        return false;
    }
    return true;
}
