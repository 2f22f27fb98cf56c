/*
 * Diagnosis: which rank is missing or died, and whose call differs. See monitor.h.
 *
 * All ranks read the same pages, so they all report the same failure. The reason of a broken communicator is
 * written once, in the page of the rank that found it; the other ranks copy it and add the rank that found it.
 */
#include "comm/health/monitor.h"

#include <stdio.h>
#include <string.h>

#include "comm/shm/flags.h"
#include "comm/shm/peer.h"

const char *tutti_monitor_process_state(const tutti_comm *comm, int rank) {
    tutti_peer *peer = comm->members[rank].process;
    if (peer->self) return "is a thread of this process";
    if (tutti_peer_ended(peer)) return "has ended";
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)peer->pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return "lives";
    bool read_it = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    const char *after_name = read_it ? strrchr(line, ')') : NULL;
    char state = after_name != NULL && after_name[1] == ' ' ? after_name[2] : '?';
    return state == 'T' || state == 't' ? "is stopped" : state == 'Z' ? "has ended" : "lives";
}

/* True if `rank` has done everything that op needs from it. */
static bool finished(const tutti_comm *comm, const tutti_op *op, int rank) {
    uint64_t step = atomic_load_explicit(&comm->members[rank].page->step, memory_order_acquire);
    return step >= tutti_progress_at(op->sequence, TUTTI_STEP_DONE);
}

static bool has_departed(const tutti_comm *comm, int rank) {
    const tutti_page *page = comm->members[rank].page;
    uint64_t page_id = atomic_load_explicit(&page->comm_id, memory_order_relaxed);
    return atomic_load_explicit(&page->departed, memory_order_acquire) != 0 ||
           (page_id != comm->id && !tutti_page_is_unborn(comm, page_id));
}

/* A rank that op needs and that has died without destroying its communicator, or -1. */
static int dead_rank(const tutti_comm *comm, const tutti_op *op) {
    for (int rank = 0; rank < comm->nranks; rank++)
        if (rank != comm->rank && !finished(comm, op, rank) && !has_departed(comm, rank) &&
            tutti_peer_ended(comm->members[rank].process))
            return rank;
    return -1;
}

static tutti_status look_at(tutti_comm *comm, const tutti_op *op, int rank, bool deaths) {
    if (finished(comm, op, rank)) return TUTTI_OK; /* later failures of that rank do not affect this call */
    tutti_broken broken;
    if (tutti_broken_read(comm, rank, &broken)) return tutti_broken_adopt(comm, rank, broken.status, broken.text);
    bool dead = deaths && tutti_peer_ended(comm->members[rank].process);
    bool departed = has_departed(comm, rank);
    /* Check again: the last thing that the rank did may have been to finish op. */
    if ((!dead && !departed) || finished(comm, op, rank)) return TUTTI_OK;
    char call[160];
    tutti_call record = tutti_call_of(op);
    tutti_call_describe(&record, call, sizeof call);
    /* It may have left because another rank died, and may have reclaimed the page that said so. */
    int first = departed ? dead_rank(comm, op) : rank;
    if (first >= 0) return tutti_comm_break(comm, tutti_peer_fail_died(comm, first, call));
    tutti_fail(TUTTI_ERR_BROKEN, "rank %d has destroyed communicator \"%s\" and does not take part in %s",
               tutti_comm_shown(comm, rank), comm->name, call);
    return tutti_comm_break(comm, TUTTI_ERR_BROKEN);
}

/* Checks whether `rank` has made this same call on CUDA memory, which is not posted. Then it will never arrive here. */
static tutti_status look_at_stream(tutti_comm *comm, const tutti_op *op, int rank) {
    const tutti_page *page = comm->members[rank].page;
    uint64_t theirs = atomic_load_explicit(&page->stream_call, memory_order_acquire);
    uint64_t ours = atomic_load_explicit(&comm->page->stream_call, memory_order_relaxed);
    tutti_call own = tutti_call_of(op), other = own;
    other.shown = theirs >> TUTTI_STREAM_CALL_BITS;
    other.cuda = 1;
    bool further = (theirs >> TUTTI_STREAM_CALL_BITS) > (ours >> TUTTI_STREAM_CALL_BITS);
    if (TUTTI_LIKELY(!further) || own.cuda != 0 || tutti_call_pack(&other) != theirs) return TUTTI_OK;
    const tutti_post *post = &page->posts[op->sequence % TUTTI_POSTS];
    if (atomic_load_explicit(&post->sequence, memory_order_acquire) >= op->sequence) return TUTTI_OK;
    return tutti_calls_differ(comm, &own, rank, &other, "");
}

tutti_status tutti_monitor_look(tutti_comm *comm, const tutti_op *op, bool deaths) {
    TUTTI_TRY(tutti_comm_check(comm));
    for (int rank = 0; rank < comm->nranks; rank++)
        if (rank != comm->rank) {
            TUTTI_TRY(look_at(comm, op, rank, deaths));
            TUTTI_TRY(look_at_stream(comm, op, rank));
        }
    return TUTTI_OK;
}

/* The newest of a rank's posts. */
static const tutti_post *last_post(const tutti_comm *comm, int rank) {
    const tutti_post *posts = comm->members[rank].page->posts;
    uint64_t newest = 0;
    for (int i = 0; i < TUTTI_POSTS; i++) {
        uint64_t sequence = atomic_load_explicit(&posts[i].sequence, memory_order_acquire);
        if (sequence > newest) newest = sequence;
    }
    return &posts[newest % TUTTI_POSTS];
}

static void describe_missing(const tutti_comm *comm, const tutti_op *op, int rank, char *text, size_t capacity) {
    const tutti_peer *peer = comm->members[rank].process;
    const tutti_post *post = last_post(comm, rank);
    tutti_call call = post->call;
    char last[256] = "it has made no call yet", name[160];
    uint64_t step = atomic_load_explicit(&comm->members[rank].page->step, memory_order_acquire);
    if (call.sequence != 0) {
        double ago_s = (double)(tutti_now_ns() - atomic_load_explicit(&post->begun_ns, memory_order_relaxed)) / 1e9;
        bool over = step >= tutti_progress_at(call.sequence, TUTTI_STEP_DONE);
        tutti_call_describe(&call, name, sizeof name);
        snprintf(last, sizeof last, "%s %s, begun %.1f s ago",
                 call.sequence == op->sequence ? "it is inside"
                 : over                        ? "it last finished"
                                               : "it is inside",
                 name, ago_s);
    }
    char job[40];
    snprintf(text, capacity, "rank %d (host %s, pid %d%s, %s; %s)", tutti_comm_shown(comm, rank), peer->host,
             (int)peer->pid, tutti_comm_job_rank(comm, rank, job), tutti_monitor_process_state(comm, rank), last);
}

void tutti_monitor_missing(tutti_comm *comm, const tutti_op *op, char *text, size_t capacity) {
    size_t used = 0;
    int missing = 0;
    text[0] = '\0';
    for (int rank = 0; rank < comm->nranks && used + 1 < capacity; rank++) {
        if (rank == comm->rank || finished(comm, op, rank)) continue;
        bool arrived = atomic_load_explicit(&comm->members[rank].page->posts[op->sequence % TUTTI_POSTS].sequence,
                                            memory_order_acquire) >= op->sequence;
        const tutti_peer *peer = comm->members[rank].process;
        bool quiet = arrived && !peer->self && strcmp(tutti_monitor_process_state(comm, rank), "lives") == 0;
        if (quiet) continue; /* it waits as we do */
        char one[600];
        describe_missing(comm, op, rank, one, sizeof one);
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", missing++ > 0 ? ", " : "", one);
    }
    if (missing == 0) snprintf(text, capacity, "none: all ranks are inside the call");
}

static int arrived_count(const tutti_comm *comm, const tutti_op *op) {
    int arrived = 0;
    for (int rank = 0; rank < comm->nranks; rank++)
        arrived += atomic_load_explicit(&comm->members[rank].page->posts[op->sequence % TUTTI_POSTS].sequence,
                                        memory_order_acquire) >= op->sequence;
    return arrived;
}

void tutti_monitor_report(tutti_comm *comm, const tutti_op *op, int64_t waited_ms, const char *reason) {
    char call[160], missing[3000];
    tutti_call record = tutti_call_of(op);
    tutti_call_describe(&record, call, sizeof call);
    if (reason != NULL) {
        tutti_log(TUTTI_LOG_WARN,
                  "stalled: rank %d has waited for %lld ms in %s of communicator \"%s\" (%zu bytes); missing: %s",
                  comm->rank, (long long)waited_ms, call, comm->name, op->count * tutti_type_bytes(op->type), reason);
        return;
    }
    tutti_monitor_missing(comm, op, missing, sizeof missing);
    tutti_log(TUTTI_LOG_WARN,
              "stalled: rank %d has waited for %lld ms in %s of communicator \"%s\" (%zu bytes); %d of %d "
              "ranks have arrived; missing: %s",
              tutti_comm_shown(comm, comm->rank), (long long)waited_ms, call, comm->name,
              op->count * tutti_type_bytes(op->type), arrived_count(comm, op), comm->nranks, missing);
}

/* The first of the last calls up to op that differs from the call of the other rank: in a loose call the difference
 * may not have been noticed. */
static void find_difference(const tutti_comm *comm, const tutti_op *op, const tutti_post *posts, tutti_call *own_out,
                            tutti_call *other_out) {
    for (uint64_t ago = TUTTI_POSTS - 1; ago > 0; ago--) {
        if (op->sequence <= ago) continue;
        uint64_t sequence = op->sequence - ago;
        tutti_call own = comm->page->posts[sequence % TUTTI_POSTS].call, other = posts[sequence % TUTTI_POSTS].call;
        bool differ = own.kind != other.kind || own.type != other.type || own.reduction != other.reduction ||
                      own.root != other.root || own.count != other.count || own.cuda != other.cuda;
        if (own.sequence != sequence || other.sequence != sequence || !differ) continue;
        *own_out = own;
        *other_out = other;
        return;
    }
}

tutti_status tutti_monitor_mismatch(tutti_comm *comm, const tutti_op *op, int rank, const tutti_post *post) {
    if (atomic_load_explicit(&post->signature, memory_order_acquire) == TUTTI_SIGNATURE_BROKEN) {
        tutti_broken broken;
        if (tutti_broken_read(comm, rank, &broken)) return tutti_broken_adopt(comm, rank, broken.status, broken.text);
        tutti_fail(TUTTI_ERR_BROKEN, "rank %d gave up communicator \"%s\", and its reason is no longer available",
                   tutti_comm_shown(comm, rank), comm->name);
        return tutti_comm_break(comm, TUTTI_ERR_BROKEN);
    }
    tutti_call own = tutti_call_of(op), other = post->call;
    find_difference(comm, op, comm->members[rank].page->posts, &own, &other);
    return tutti_calls_differ(comm, &own, rank, &other, " (their counts per rank differ)");
}
