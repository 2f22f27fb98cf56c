/*
 * The table of processes that this process communicates with. See peer.h.
 */
#include "comm/shm/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "comm/base/comm.h"
#include "comm/base/hooks.h"
#include "comm/base/namespace.h"
#include "comm/shm/heap.h"
#include "comm/shm/segment.h"

static tutti_peer *peers; /* excluding this process */
static tutti_peer self;
static bool self_made;

tutti_status tutti_peer_self(tutti_peer **self_out) {
    TUTTI_TRY(tutti_heap_init());
    tutti_lock(TUTTI_LOCK_PEERS);
    tutti_status status = self_made ? TUTTI_OK : tutti_getrandom(self.id, sizeof self.id);
    if (status == TUTTI_OK && !self_made) {
        self.self = true;
        self.pid = getpid();
        self.pid_counts = true;
        self.base = tutti_heap_base();
        self.bytes = tutti_heap_bytes();
        self.remote_base = (uint64_t)(uintptr_t)self.base;
        memcpy(((tutti_channel_directory *)self.base)->owner, self.id, sizeof self.id);
        if (gethostname(self.host, sizeof self.host - 1) != 0) strcpy(self.host, "?");
        self_made = true;
    }
    tutti_unlock(TUTTI_LOCK_PEERS);
    TUTTI_TRY(status);
    *self_out = &self;
    return TUTTI_OK;
}

/* Maps the heap that the info describes, after checking that its owner cannot shrink it. */
static tutti_status map_peer(const tutti_process_info *info, int heap_fd, tutti_peer *peer) {
    struct stat status;
    if (heap_fd < 0 || fstat(heap_fd, &status) != 0)
        return tutti_fail(TUTTI_ERR_REFUSED, "process %lld sent no shared heap", (long long)info->pid);
    int seals = fcntl(heap_fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (uint64_t)status.st_size != info->heap_bytes)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "the shared heap of process %lld is not sealed, or its size differs from the announced size",
                          (long long)info->pid);
    void *base = mmap(NULL, info->heap_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, heap_fd, 0);
    if (base == MAP_FAILED)
        return tutti_fail_errno(errno, "cannot map the shared heap of process %lld (%llu MiB of address space)",
                                (long long)info->pid, (unsigned long long)info->heap_bytes >> 20);
    madvise(base, info->heap_bytes, MADV_DONTFORK);
    madvise(base, info->heap_bytes, MADV_DONTDUMP);
    peer->base = base;
    peer->bytes = info->heap_bytes;
    return TUTTI_OK;
}

static tutti_peer *find(const uint8_t id[TUTTI_PROCESS_ID_BYTES]) {
    for (tutti_peer *peer = peers; peer != NULL; peer = peer->next)
        if (memcmp(peer->id, id, TUTTI_PROCESS_ID_BYTES) == 0) return peer;
    return NULL;
}

static tutti_peer *enter(const tutti_process_info *info, tutti_peer *peer) {
    memcpy(peer->id, info->id, sizeof peer->id);
    memcpy(peer->host, info->host, sizeof peer->host);
    peer->host[sizeof peer->host - 1] = '\0';
    peer->pid = (pid_t)info->pid;
    peer->next = peers;
    peers = peer;
    return peer;
}

/* `info` is a copy: the content of the member may change at any time. */
static tutti_status admit_locked(const tutti_process_info *info, tutti_shm_segment *segment, int local_rank,
                                 int heap_fd, tutti_peer **peer_out) {
    tutti_peer *peer = memcmp(info->id, self.id, sizeof self.id) == 0 ? &self : find(info->id);
    if (peer == NULL) {
        TUTTI_TRY(tutti_calloc(1, sizeof *peer, &peer));
        tutti_status status = map_peer(info, heap_fd, peer);
        if (status != TUTTI_OK) {
            free(peer);
            return status;
        }
        enter(info, peer);
        peer->remote_base = info->heap_base;
        tutti_shm_segment_watch(segment, local_rank);
        peer->segment = segment;
        peer->local_rank = local_rank;
        peer->pid_counts = tutti_shm_segment_member(segment, local_rank)->pid_space == tutti_namespace_pid();
    }
    peer->references++;
    *peer_out = peer;
    return TUTTI_OK;
}

tutti_status tutti_peer_admit(tutti_shm_segment *segment, int local_rank, int heap_fd, tutti_peer **peer_out) {
    tutti_process_info info = tutti_shm_segment_member(segment, local_rank)->info;
    info.host[sizeof info.host - 1] = '\0';
    tutti_lock(TUTTI_LOCK_PEERS);
    tutti_status status = admit_locked(&info, segment, local_rank, heap_fd, peer_out);
    tutti_unlock(TUTTI_LOCK_PEERS);
    if (heap_fd >= 0) close(heap_fd);
    return status;
}

tutti_status tutti_peer_admit_remote(const tutti_process_info *info, tutti_shm_segment *segment,
                                     const struct tutti_listener_info *listener, tutti_peer **peer_out) {
    tutti_status status = TUTTI_OK;
    tutti_lock(TUTTI_LOCK_PEERS);
    tutti_peer *peer = find(info->id);
    if (peer == NULL && (status = tutti_calloc(1, sizeof *peer, &peer)) == TUTTI_OK) {
        enter(info, peer);
        tutti_shm_segment_retain(segment);
        peer->segment = segment;
        peer->listener = listener;
        peer->remote = true;
    }
    if (status == TUTTI_OK) peer->references++;
    tutti_unlock(TUTTI_LOCK_PEERS);
    TUTTI_TRY(status);
    *peer_out = peer;
    return TUTTI_OK;
}

void tutti_peer_retain(tutti_peer *peer) {
    tutti_lock(TUTTI_LOCK_PEERS);
    peer->references++;
    tutti_unlock(TUTTI_LOCK_PEERS);
}

void tutti_peer_release(tutti_peer *peer) {
    tutti_lock(TUTTI_LOCK_PEERS);
    bool last = --peer->references == 0 && !peer->self;
    if (last) {
        tutti_peer **link = &peers;
        while (*link != peer) link = &(*link)->next;
        *link = peer->next;
    }
    tutti_unlock(TUTTI_LOCK_PEERS);
    if (!last) return;
    tutti_hooks.p2p_forget(peer);
    if (!peer->remote) munmap(peer->base, peer->bytes);
    if (peer->remote) tutti_shm_segment_release(peer->segment);
    else tutti_shm_segment_unwatch(peer->segment, peer->local_rank);
    free(peer);
}

/* Returns false if the death was already known. */
static bool mark_dead(tutti_peer *peer) {
    static _Atomic uint64_t deaths;
    uint64_t none = 0;
    if (atomic_load_explicit(&peer->dead, memory_order_acquire)) return false;
    atomic_compare_exchange_strong(&peer->death_turn, &none, atomic_fetch_add(&deaths, 1) + 1);
    return !atomic_exchange_explicit(&peer->dead, true, memory_order_acq_rel);
}

bool tutti_peer_ended(tutti_peer *peer) {
    if (peer->self) return false;
    if (atomic_load_explicit(&peer->dead, memory_order_acquire)) return true;
    if (peer->remote || peer->segment == NULL || !tutti_shm_segment_has_ended(peer->segment, peer->local_rank))
        return false;
    if (mark_dead(peer)) tutti_hooks.heartbeat_now();
    return true;
}

uint64_t tutti_peer_death_turn(const tutti_peer *peer) {
    return atomic_load_explicit(&peer->dead, memory_order_acquire) ? atomic_load(&peer->death_turn) : UINT64_MAX;
}

bool tutti_peer_mark_dead(const uint8_t id[TUTTI_PROCESS_ID_BYTES]) {
    tutti_lock(TUTTI_LOCK_PEERS);
    tutti_peer *peer = find(id);
    bool news = peer != NULL && mark_dead(peer);
    tutti_unlock(TUTTI_LOCK_PEERS);
    return news;
}

int tutti_peer_new_deaths(uint8_t ids[][TUTTI_PROCESS_ID_BYTES], int capacity) {
    int count = 0;
    tutti_lock(TUTTI_LOCK_PEERS);
    for (tutti_peer *peer = peers; peer != NULL && count < capacity; peer = peer->next) {
        if (peer->remote || peer->death_returned || !tutti_peer_ended(peer)) continue;
        peer->death_returned = true;
        const tutti_channel_directory *directory = (const tutti_channel_directory *)peer->base;
        if (atomic_load_explicit(&directory->memberships, memory_order_acquire) == 0) continue;
        memcpy(ids[count++], peer->id, TUTTI_PROCESS_ID_BYTES);
    }
    tutti_unlock(TUTTI_LOCK_PEERS);
    return count;
}

bool tutti_peer_death_is_published(const tutti_peer *peer) {
    tutti_lock(TUTTI_LOCK_PEERS);
    bool returned = peer->death_returned;
    tutti_unlock(TUTTI_LOCK_PEERS);
    return returned;
}

const char *tutti_peer_describe_rank(const tutti_comm *comm, int rank, char *text, size_t capacity) {
    const tutti_peer *peer = comm->members != NULL ? comm->members[rank].process : NULL;
    char job[40];
    if (peer != NULL)
        snprintf(text, capacity, "rank %d (host %s, pid %d%s)", tutti_comm_shown(comm, rank), peer->host,
                 (int)peer->pid, tutti_comm_job_rank(comm, rank, job));
    else snprintf(text, capacity, "rank %d", tutti_comm_shown(comm, rank));
    return text;
}

tutti_status tutti_peer_fail_died(const tutti_comm *comm, int rank, const char *what) {
    char name[192];
    return tutti_fail(TUTTI_ERR_PEER_DIED, "%s died%s; %s of communicator \"%s\" cannot go on",
                      tutti_peer_describe_rank(comm, rank, name, sizeof name),
                      comm->members[rank].process->remote ? ", or its host does not answer any more" : "", what,
                      comm->name);
}
