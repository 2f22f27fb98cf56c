/*
 * Records and compares the calls on CUDA memory of the ranks of a host. See call_log.h.
 */
#include "comm/gpu/call_log.h"

#include <stdio.h>

#include "bootstrap/base/hash.h"
#include "comm/gpu/stream.h"
#include "comm/health/monitor.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/peer.h"

/* A copy of a record. */
typedef struct entry {
    uint64_t number, signature, count, what;
} entry;

/* --------------------------------------------------------------------------------------------- records */

void tutti_call_log_add(tutti_stream_comm *gpu, const tutti_op *op) {
    tutti_page *page = gpu->comm->page;
    tutti_stream_record *record = &page->stream_records[op->sequence % TUTTI_STREAM_RECORDS];
    uint64_t what = (uint64_t)(uint32_t)op->root << 32 | (uint64_t)op->kind << 16 | (uint64_t)op->type << 8 |
                    (uint64_t)op->reduction;
    gpu->history = tutti_hash_add(gpu->history, op->signature);
    atomic_store_explicit(&record->number, 0, memory_order_relaxed);
    /* Pair with the acquires of readers: a reader that sees one of these also sees the 0; a reader that sees the
     * number sees all of them. */
    atomic_store_explicit(&record->signature, gpu->history, memory_order_release);
    atomic_store_explicit(&record->count, op->count, memory_order_release);
    atomic_store_explicit(&record->what, what, memory_order_release);
    atomic_store_explicit(&record->number, op->sequence, memory_order_release);
    atomic_store_explicit(&page->stream_number, op->sequence, memory_order_release);
}

/* False: the owner of the page has not made that call, or has overwritten its record. */
static bool read_entry(const tutti_page *page, uint64_t number, entry *entry_out) {
    const tutti_stream_record *record = &page->stream_records[number % TUTTI_STREAM_RECORDS];
    if (atomic_load_explicit(&record->number, memory_order_acquire) != number) return false;
    entry_out->number = number;
    entry_out->signature = atomic_load_explicit(&record->signature, memory_order_acquire);
    entry_out->count = atomic_load_explicit(&record->count, memory_order_acquire);
    entry_out->what = atomic_load_explicit(&record->what, memory_order_acquire);
    return atomic_load_explicit(&record->number, memory_order_relaxed) == number;
}

/* Number of the owner's newest call; 0: none. */
static uint64_t newest_of(const tutti_page *page) {
    return atomic_load_explicit(&page->stream_number, memory_order_acquire);
}

static tutti_call call_of(const entry *e) {
    return (tutti_call){.sequence = e->number,
                        .shown = e->number,
                        .count = e->count,
                        .root = (int32_t)(e->what >> 32),
                        .kind = (uint8_t)(e->what >> 16),
                        .type = (uint8_t)(e->what >> 8),
                        .reduction = (uint8_t)e->what,
                        .cuda = 1};
}

/* ------------------------------------------------------------------------------------------- comparing */

/* Calls of two ranks with the same number. */
typedef struct pair {
    entry own, other;
} pair;

static bool read_pair(const tutti_page *own, const tutti_page *other, uint64_t number, pair *pair_out) {
    return read_entry(own, number, &pair_out->own) && read_entry(other, number, &pair_out->other);
}

/* True if a call that both ranks have made differs; returns the first such call that both still have a record of. */
static bool differ(const tutti_page *own, const tutti_page *other, pair *pair_out) {
    uint64_t newest = newest_of(own), theirs = newest_of(other);
    if (theirs < newest) newest = theirs;
    if (newest == 0 || !read_pair(own, other, newest, pair_out)) return false;
    if (TUTTI_LIKELY(pair_out->own.signature == pair_out->other.signature)) return false;
    uint64_t first = newest > TUTTI_STREAM_RECORDS ? newest - TUTTI_STREAM_RECORDS + 1 : 1;
    for (uint64_t at = first; at <= newest; at++)
        if (read_pair(own, other, at, pair_out) && pair_out->own.signature != pair_out->other.signature) return true;
    return false; /* they have continued meanwhile: the next comparison finds it */
}

static tutti_status compare_with(tutti_comm *comm, int rank) {
    pair found;
    if (!differ(comm->page, comm->members[rank].page, &found)) return TUTTI_OK;
    tutti_call own = call_of(&found.own), other = call_of(&found.other);
    tutti_status status =
        tutti_calls_differ(comm, &own, rank, &other, " (their counts per rank differ, or calls before this one did)");
    return tutti_comm_give_up(comm, status);
}

/* Returns the number of ranks of this host, and the ranks; *ranks_out is NULL if this host has all ranks. */
static int own_host(const tutti_comm *comm, const int **ranks_out) {
    const tutti_host *host = comm->net.hosts != NULL ? &comm->net.hosts->all[comm->net.hosts->host] : NULL;
    *ranks_out = host != NULL ? host->ranks : NULL;
    return host != NULL ? host->nranks : comm->nranks;
}

tutti_status tutti_call_log_look(tutti_comm *comm) {
    tutti_stream_comm *gpu = atomic_load_explicit(&comm->cuda.streams, memory_order_acquire);
    /* An engine with minds_deaths uses calls on host memory, which are compared there. */
    if (gpu == NULL || gpu->engine == NULL || gpu->engine->minds_deaths) return TUTTI_OK;
    const int *ranks;
    int count = own_host(comm, &ranks), first = ranks != NULL ? ranks[0] : 0;
    if (comm->rank != first) return compare_with(comm, first);
    for (int i = 1; i < count; i++) TUTTI_TRY(compare_with(comm, ranks != NULL ? ranks[i] : i));
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------- missing ranks */

static size_t describe_missing(const tutti_comm *comm, int rank, uint64_t newest, char *text, size_t capacity) {
    const tutti_peer *peer = comm->members[rank].process;
    char last[160] = "";
    entry e = {.number = newest};
    if (newest > 0 && read_entry(comm->members[rank].page, newest, &e)) {
        tutti_call call = call_of(&e);
        tutti_call_describe(&call, last, sizeof last);
    }
    return (size_t)snprintf(text, capacity, "rank %d (host %s, pid %d, %s; %s%s)", rank, peer->host, (int)peer->pid,
                            tutti_monitor_process_state(comm, rank),
                            newest > 0 ? "its last call: " : "no call made yet", last);
}

const char *tutti_call_log_missing(const tutti_comm *comm, uint64_t number, char *text, size_t capacity) {
    const int *ranks;
    int count = own_host(comm, &ranks), made = 0;
    char missing[600] = "";
    size_t used = 0;
    text[0] = '\0';
    if (number == 0) return text;
    for (int i = 0; i < count; i++) {
        int rank = ranks != NULL ? ranks[i] : i;
        uint64_t newest = newest_of(comm->members[rank].page);
        made += newest >= number;
        if (newest >= number || used + 3 >= sizeof missing) continue;
        if (used > 0) used += (size_t)snprintf(missing + used, sizeof missing - used, ", ");
        used += describe_missing(comm, rank, newest, missing + used, sizeof missing - used);
    }
    snprintf(text, capacity, "; made by %d of the %d ranks of host %s; missing: %s", made, count,
             comm->members[comm->rank].process->host, made < count ? missing : "none of them");
    return text;
}

bool tutti_call_log_defers(const tutti_comm *comm, uint64_t number) {
    const int *ranks;
    int count = own_host(comm, &ranks);
    if (number == 0 || comm->net.hosts == NULL) return false;
    for (int i = 0; i < count; i++)
        if (newest_of(comm->members[ranks[i]].page) < number) return false;
    return true;
}
