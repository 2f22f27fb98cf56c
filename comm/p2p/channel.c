/*
 * Channels to other processes of a host, and the channel directory where they find each other. See channel.h for
 * the drawing, channel_ring.c for the records that go through them.
 *
 * `blocks` is this process's private list of its blocks; its entry i corresponds to entry i of the channel
 * directory. A block is in one of three states: open (a tutti_channels uses it), resting (its peer may come back),
 * or spare (its peer has ended; the next new peer gets it).
 */
#include "comm/p2p/channel.h"

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/base/comm.h"
#include "comm/p2p/remote_channel.h"
#include "comm/shm/heap.h"

typedef struct own_block {
    uint8_t id[TUTTI_PROCESS_ID_BYTES];
    tutti_channel_block *block;
    size_t ring_bytes;
    bool open, spare;
    int pidfd; /* resting: becomes readable when the peer has ended; -1: its end cannot be detected */
} own_block;

static own_block blocks[TUTTI_CHANNEL_DIRECTORY_ENTRIES];
static size_t nblocks;
static int large_rings;

/* Limit of large rings of a process: with many ranks on a host, each process has many peers. */
#define MOST_LARGE_RINGS 8

/* ------------------------------------------------------------------------------------------ directory */

static void load_id(uint64_t words[2], const uint8_t id[TUTTI_PROCESS_ID_BYTES]) {
    memcpy(words, id, TUTTI_PROCESS_ID_BYTES);
}

/* Enters block i in the channel directory, or withdraws the entry's id before it is rewritten. */
static void publish_entry(size_t i) {
    tutti_channel_directory *own = (tutti_channel_directory *)tutti_heap_base();
    tutti_channel_directory_entry *entry = &own->entries[i];
    uint64_t id[2];
    load_id(id, blocks[i].id);
    atomic_store_explicit(&entry->offset, 0, memory_order_relaxed);
    /* Release: a reader that sees the new id sees no old offset; pairs with find_block. */
    atomic_store_explicit(&entry->id[0], id[0], memory_order_release);
    atomic_store_explicit(&entry->id[1], id[1], memory_order_release);
    uint64_t offset = (uint64_t)((char *)blocks[i].block - tutti_heap_base());
    atomic_store_explicit(&entry->offset, offset, memory_order_release);
    atomic_store_explicit(&own->count, nblocks, memory_order_relaxed);
    atomic_fetch_add_explicit(&own->generation, 1, memory_order_release);
}

static own_block *known_entry(const uint8_t id[TUTTI_PROCESS_ID_BYTES]) {
    for (size_t i = 0; i < nblocks; i++)
        if (!blocks[i].spare && memcmp(blocks[i].id, id, TUTTI_PROCESS_ID_BYTES) == 0) return &blocks[i];
    return NULL;
}

static bool has_ended(own_block *entry) {
    struct pollfd poller = {.fd = entry->pidfd, .events = POLLIN};
    if (entry->open || entry->pidfd < 0 || poll(&poller, 1, 0) <= 0) return false;
    close(entry->pidfd);
    entry->pidfd = -1;
    return true;
}

/* Makes a new entry. Its block gets a large ring as long as there are few of them and the heap has room. */
static own_block *new_entry(void) {
    void *memory = NULL;
    if (nblocks == TUTTI_CHANNEL_DIRECTORY_ENTRIES) {
        tutti_fail(TUTTI_ERR_MEMORY,
                   "too many peers: this process can send messages to at most %zu processes of this host", nblocks);
        return NULL;
    }
    size_t ring_bytes = large_rings < MOST_LARGE_RINGS ? TUTTI_CHANNEL_LARGE_RING_BYTES : TUTTI_CHANNEL_RING_BYTES;
    tutti_status status = tutti_heap_alloc(TUTTI_HEAP_CONTROL, sizeof(tutti_channel_block) + ring_bytes, &memory);
    if (status != TUTTI_OK && ring_bytes > TUTTI_CHANNEL_RING_BYTES) {
        ring_bytes = TUTTI_CHANNEL_RING_BYTES;
        status = tutti_heap_alloc(TUTTI_HEAP_CONTROL, sizeof(tutti_channel_block) + ring_bytes, &memory);
    }
    if (status != TUTTI_OK) return NULL;
    large_rings += ring_bytes > TUTTI_CHANNEL_RING_BYTES;
    own_block *entry = &blocks[nblocks++];
    *entry = (own_block){.block = memory, .ring_bytes = ring_bytes, .pidfd = -1};
    return entry;
}

/* Returns an entry whose block no process reads any more, or a new one; NULL: no memory or no entry (the error). */
static own_block *free_entry(void) {
    for (size_t i = 0; i < nblocks; i++) {
        own_block *entry = &blocks[i];
        if (!entry->spare && !has_ended(entry)) continue;
        memset(entry->block, 0, offsetof(tutti_channel_block, ring) + TUTTI_CACHE_LINE);
        return entry;
    }
    return new_entry();
}

tutti_status tutti_channel_make(tutti_channels *channel) {
    if (TUTTI_LIKELY(channel->own != NULL)) return TUTTI_OK;
    if (channel->remote != NULL) return tutti_remote_equip(channel);
    own_block *entry = free_entry();
    if (entry == NULL) return TUTTI_ERR_MEMORY;
    memcpy(entry->id, channel->peer->id, sizeof entry->id);
    entry->spare = false;
    entry->open = true;
    entry->block->magic = TUTTI_CHANNEL_MAGIC;
    entry->block->ring_bytes = entry->ring_bytes;
    channel->own = entry->block;
    channel->own_bytes = entry->ring_bytes;
    publish_entry((size_t)(entry - blocks));
    tutti_channel_directory *theirs = (tutti_channel_directory *)channel->peer->base;
    atomic_fetch_add_explicit(&theirs->callers, 1, memory_order_release); /* pairs with tutti_channel_callers */
    tutti_channel_ring(channel);
    return TUTTI_OK;
}

/* Continues with the block that an earlier channel to this process has left. */
static void resume(tutti_channels *channel, own_block *entry) {
    tutti_channel_block *block = entry->block;
    entry->open = true;
    if (entry->pidfd >= 0) close(entry->pidfd);
    entry->pidfd = -1;
    channel->own = block;
    channel->own_bytes = entry->ring_bytes;
    channel->tail = atomic_load_explicit(&block->tail, memory_order_relaxed); /* own values: any order */
    channel->came = channel->matched = atomic_load_explicit(&block->matched, memory_order_relaxed);
    channel->head = block->head;
    channel->sent = block->sent;
    channel->tail_seen = block->tail_seen;
}

tutti_status tutti_channel_open(tutti_peer *peer, tutti_channels **channel_out) {
    tutti_channels *channel;
    TUTTI_TRY(tutti_calloc(1, sizeof *channel, &channel));
    channel->peer = peer;
    TAILQ_INIT(&channel->waiting);
    TAILQ_INIT(&channel->announced);
    TAILQ_INIT(&channel->streaming);
    TAILQ_INIT(&channel->receiving);
    STAILQ_INIT(&channel->notes);
    if (peer->remote) {
        tutti_status status = tutti_remote_open(channel);
        if (status != TUTTI_OK) {
            tutti_channel_close(channel);
            return status;
        }
    }
    own_block *entry = peer->remote ? NULL : known_entry(peer->id);
    if (entry != NULL) resume(channel, entry);
    *channel_out = channel;
    return TUTTI_OK;
}

void tutti_channel_close(tutti_channels *channel) {
    if (channel == NULL) return;
    tutti_remote_close(channel);
    own_block *entry = channel->own != NULL ? known_entry(channel->peer->id) : NULL;
    if (entry != NULL) {
        entry->open = false;
        entry->block->head = channel->head;
        entry->block->sent = channel->sent;
        entry->block->tail_seen = channel->tail_seen;
        if (tutti_peer_ended(channel->peer)) entry->spare = true;
        else if (channel->peer->pid_counts) entry->pidfd = (int)syscall(SYS_pidfd_open, channel->peer->pid, 0);
    }
    free(channel);
}

/* ----------------------------------------------------------------------------------------- their channel directory */

/* Offset of the block that the peer has made for us; 0: none. */
static uint64_t find_block(const tutti_channel_directory *theirs, const uint64_t own_id[2]) {
    uint64_t count = atomic_load_explicit(&theirs->count, memory_order_relaxed);
    for (uint64_t i = 0; i < count && i < TUTTI_CHANNEL_DIRECTORY_ENTRIES; i++) {
        const tutti_channel_directory_entry *entry = &theirs->entries[i];
        uint64_t offset = atomic_load_explicit(&entry->offset, memory_order_acquire);
        uint64_t first = atomic_load_explicit(&entry->id[0], memory_order_acquire);
        uint64_t second = atomic_load_explicit(&entry->id[1], memory_order_acquire);
        if (offset == 0 || first != own_id[0] || second != own_id[1]) continue;
        /* Checks that the entry was not given to another process while its id was read. */
        if (atomic_load_explicit(&entry->offset, memory_order_relaxed) == offset) return offset;
    }
    return 0;
}

static bool accept_block(tutti_channels *channel, uint64_t offset) {
    const tutti_peer *peer = channel->peer;
    if (offset % TUTTI_CACHE_LINE != 0 || offset >= peer->bytes || sizeof(tutti_channel_block) > peer->bytes - offset) {
        tutti_channel_break(channel, "its channel is outside of its heap");
        return false;
    }
    const tutti_channel_block *block = (const tutti_channel_block *)(peer->base + offset);
    uint64_t ring_bytes = *(const volatile uint64_t *)&block->ring_bytes; /* read once: the peer may change it */
    bool known = ring_bytes == TUTTI_CHANNEL_RING_BYTES || ring_bytes == TUTTI_CHANNEL_LARGE_RING_BYTES;
    if (block->magic != TUTTI_CHANNEL_MAGIC || !known) {
        tutti_channel_break(channel,
                            "its channel was made by another version of the library; use one version on all ranks");
        return false;
    }
    if (ring_bytes > peer->bytes - offset - sizeof *block) {
        tutti_channel_break(channel, "its channel is outside of its heap");
        return false;
    }
    if (tutti_channel_make(channel) != TUTTI_OK) {
        tutti_channel_break(channel, "%s", tutti_last_error());
        return false;
    }
    channel->theirs = block;
    channel->their_bytes = ring_bytes;
    return true;
}

bool tutti_channel_is_attended(const tutti_channels *channel) {
    const tutti_channel_directory *theirs = (const tutti_channel_directory *)channel->peer->base;
    return atomic_load_explicit(&theirs->attending, memory_order_relaxed) > 0;
}

void tutti_channel_attend(int threads) {
    tutti_channel_directory *own = (tutti_channel_directory *)tutti_heap_base();
    atomic_fetch_add_explicit(&own->attending, threads, memory_order_relaxed);
}

/* ---------------------------------------------------------------------------------------------- sleeping */

static tutti_channel_directory *own_directory(void) {
    return (tutti_channel_directory *)tutti_heap_base();
}

void tutti_channel_sleep_begin(uint32_t *bell_out) {
    atomic_fetch_add_explicit(&own_directory()->sleepers, 1, memory_order_seq_cst);
    *bell_out = atomic_load_explicit(&own_directory()->bell, memory_order_seq_cst);
}

void tutti_channel_sleep(uint32_t bell, int64_t most_ns) {
    struct timespec most = {.tv_sec = most_ns / 1000000000, .tv_nsec = most_ns % 1000000000};
    syscall(SYS_futex, &own_directory()->bell, FUTEX_WAIT, bell, &most, NULL, 0);
}

void tutti_channel_sleep_end(void) {
    atomic_fetch_sub_explicit(&own_directory()->sleepers, 1, memory_order_relaxed);
}

void tutti_channel_ring_bell(tutti_channel_directory *directory) {
    atomic_fetch_add_explicit(&directory->bell, 1, memory_order_seq_cst);
    syscall(SYS_futex, &directory->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void tutti_channel_ring_own(void) {
    tutti_channel_directory *own = own_directory();
    if (own == NULL || tutti_forked()) return;
    if (atomic_load_explicit(&own->sleepers, memory_order_seq_cst) > 0) tutti_channel_ring_bell(own);
}

uint64_t tutti_channel_callers(void) {
    const tutti_channel_directory *own = (const tutti_channel_directory *)tutti_heap_base();
    return atomic_load_explicit(&own->callers, memory_order_acquire);
}

bool tutti_channel_find(tutti_channels *channel) {
    if (channel->theirs != NULL) return true;
    const tutti_channel_directory *theirs = (const tutti_channel_directory *)channel->peer->base;
    uint64_t generation = atomic_load_explicit(&theirs->generation, memory_order_acquire);
    if (TUTTI_LIKELY(generation == channel->generation) || channel->broken) return false;
    tutti_peer *self;
    if (tutti_peer_self(&self) != TUTTI_OK) return false;
    uint64_t id[2];
    load_id(id, self->id);
    channel->generation = generation;
    uint64_t offset = find_block(theirs, id);
    return offset != 0 && accept_block(channel, offset);
}
