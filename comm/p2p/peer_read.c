/*
 * Reads a peer's private memory in one copy (process_vm_readv), where the system permits it.
 *
 * This is checked once per channel, by reading a known value: the random id with which the peer has signed its
 * block. That also detects a pid of another namespace, which belongs to another process here. The fault point
 * "peer_read" makes the check fail.
 */
#include <string.h>
#include <sys/uio.h>

#include "bootstrap/base/fault.h"
#include "comm/p2p/p2p_state.h"

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

static bool probe(const tutti_channels *channel) {
    const tutti_peer *peer = channel->peer;
    uint64_t offset = (uint64_t)(channel->theirs->owner - (const uint8_t *)peer->base);
    uint8_t owner[TUTTI_PROCESS_ID_BYTES];
    return !tutti_fault("peer_read") && read_memory(peer, peer->remote_base + offset, owner, sizeof owner) &&
           memcmp(owner, peer->id, sizeof owner) == 0;
}

bool tutti_read_is_possible(tutti_channels *channel) {
    if (!channel->probed) channel->readable = probe(channel);
    channel->probed = true;
    return channel->readable;
}

bool tutti_read_peer(tutti_channels *channel, uint64_t address, void *dst, size_t bytes) {
    if (read_memory(channel->peer, address, dst, bytes)) return true;
    channel->readable = false; /* it was permitted before: the memory is special, or the process has ended */
    return false;
}
