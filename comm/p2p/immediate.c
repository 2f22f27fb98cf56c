/*
 * The short path of blocking sends and receives: a small message goes straight into the ring, and straight from the
 * ring into the buffer of a waiting caller, without a work or a request.
 *
 * It is taken only when nothing else is queued: no send waits for the same process, no receive is posted, no
 * matching message has been kept. The order is therefore the same as by the long path. A receiver polls, without
 * the lock, the place where the next record of that process will appear. If that record is not its message, the
 * receiver leaves it to the long path.
 *
 * Invariant: while a thread polls without the lock, the port is pinned, so that the channel stays.
 */
#include <sched.h>

#include "bootstrap/base/lock.h"
#include "comm/base/backoff.h"
#include "comm/base/cacheline.h"
#include "comm/base/spread.h"
#include "comm/p2p/p2p.h"
#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"

#define LOOKS_PER_SERVICE  32              /* polls of one place, between two rounds of progress for everything else */
#define SERVICES           32              /* then the long path, with its deadline */
#define MOST_SERVICES      (64 * SERVICES) /* while the message is arriving */
#define YIELDS             64              /* the same where ranks share cores */
#define YIELDS_PER_SERVICE 4
#define LOOKS_BEFORE_YIELD 64 /* about as long as a switch to another thread */
#define BETWEEN_POLLS_NS   500
/* While a message of 1 to 4 KiB is awaited: with a constant 500 ns, 2 KiB between near cores took 1.04 times as long.
 * Shorter ones between near cores, and those of 8 and 32 KiB between distant ones, are 1 to 4 % faster with it. */
#define LEAST_BETWEEN_POLLS_NS 250
#define VARIES_ABOVE_BYTES     ((size_t)1 << 10)
#define VARIES_TO_BYTES        ((size_t)4 << 10)
/* If both ranks of a pair gave up at the same time, two cores would go on to run ranks of different pairs. */
#define MORE_LOOKS 4 /* times as many, on the higher rank of a pair */

/* Returns the channel to the process of a rank; NULL: there is none. */
static tutti_channels *channel_to(const tutti_comm *comm, int peer) {
    return comm->members[peer].process->channels; /* self: NULL */
}

static bool send_is_next(const tutti_port *port, const tutti_channels *channel, int peer) {
    return port != NULL && channel->own != NULL && TAILQ_EMPTY(&channel->waiting) && !channel->broken &&
           !atomic_load_explicit(&channel->peer->dead, memory_order_relaxed) && !tutti_p2p_has_left(port, peer);
}

tutti_status tutti_p2p_send_now(tutti_comm *comm, const void *src, size_t bytes, int peer, int64_t tag) {
    if (tutti_forked()) return TUTTI_NOT_YET;
    tutti_lock(TUTTI_LOCK_P2P);
    tutti_port *port = tutti_p2p_port(comm->id, comm->rank);
    tutti_channels *channel = channel_to(comm, peer);
    bool sent = channel != NULL && send_is_next(port, channel, peer) &&
                tutti_transfer_is_eager(channel, port, src, bytes, /* waits */ true) &&
                tutti_transfer_put_eager(channel, port, peer, tag, src, bytes);
    tutti_unlock(TUTTI_LOCK_P2P);
    if (sent) tutti_queue_serve_rest(comm);
    return sent ? TUTTI_OK : TUTTI_NOT_YET;
}

/* ------------------------------------------------------------------------------------------- receiving */

/* Takes the next record if it is the awaited message, even while it is being written. Returns false if no
 * record has come, the record is another one, or its writer has stopped. */
static bool take(tutti_waiter *r) {
    tutti_record record;
    tutti_channels *channel = r->channel;
    if (!tutti_channel_peek(channel, &record) || !tutti_waiter_fits(r, &record)) return false;
    if (!tutti_channel_copy(channel, &record, r->dst, record.payload_bytes)) return false;
    tutti_channel_skip(channel, &record);
    channel->came += tutti_channel_cost(record.payload_bytes);
    tutti_channel_give_credit(channel, record.payload_bytes);
    tutti_waiter_take(r, &record);
    return true;
}

static bool spin(const _Atomic uint32_t *next, int looks) {
    for (int i = 0; i < looks; i++) {
        if (atomic_load_explicit(next, memory_order_relaxed) != 0) return true;
        tutti_relax();
    }
    return false;
}

/* Returns true if the rank was last seen on another core. */
static bool is_elsewhere(const tutti_comm *comm, int rank) {
    return tutti_core_of(comm, rank) != sched_getcpu();
}

static void pause_polls(const tutti_waiter *r) {
    bool varies = r->bytes > VARIES_ABOVE_BYTES && r->bytes <= VARIES_TO_BYTES;
    tutti_backoff_between_polls(varies ? LEAST_BETWEEN_POLLS_NS : BETWEEN_POLLS_NS, BETWEEN_POLLS_NS);
}

/* Waits for a while until a record has come; makes progress on everything else in between. */
static bool look(const tutti_comm *comm, const tutti_waiter *r, const _Atomic uint32_t *next) {
    int peer = r->peer;
    bool remote = r->channel->remote != NULL;
    int services = comm->spins ? SERVICES : YIELDS;
    /* the progress call puts records of other hosts there */
    int looks = comm->spins && !remote ? LOOKS_PER_SERVICE : 1;
    int looks_before_yield = comm->rank < peer ? LOOKS_BEFORE_YIELD : MORE_LOOKS * LOOKS_BEFORE_YIELD;
    for (int service = 1; service <= services; service++) {
        bool arrives = atomic_load_explicit(&r->claimed, memory_order_relaxed);
        if (arrives && service == services / 2 && services < MOST_SERVICES) services *= 2;
        if (!comm->spins) {
            /* A peer that runs on another core answers sooner than a yield returns. */
            if (!remote && is_elsewhere(comm, peer) && spin(next, looks_before_yield)) return true;
            sched_yield();
        }
        if (spin(next, looks)) return true;
        if (comm->spins && !remote && !is_elsewhere(comm, peer)) return false; /* it needs this core */
        if (comm->spins && r->polls_sockets) pause_polls(r);
        if (comm->spins || service % YIELDS_PER_SERVICE == 0) tutti_p2p_progress();
    }
    return false;
}

tutti_status tutti_p2p_recv_now(tutti_comm *comm, void *dst, size_t bytes, int peer, int64_t tag,
                                tutti_received *received_out) {
    if (peer == TUTTI_ANY_SOURCE || tutti_forked()) return TUTTI_NOT_YET;
    tutti_lock(TUTTI_LOCK_P2P);
    tutti_waiter r = {.port = tutti_p2p_port(comm->id, comm->rank),
                      .channel = channel_to(comm, peer),
                      .dst = dst,
                      .bytes = bytes,
                      .peer = peer,
                      .tag = tag,
                      .received_out = received_out};
    bool next = tutti_waiter_is_next(&r);
    /* An announced message from another host needs a request: its first part comes with the announcement. */
    bool announced =
        next && bytes > TUTTI_LARGEST_EAGER_BYTES && r.channel->remote != NULL && tutti_remote_is_straight(r.channel);
    if (!next || take(&r) || announced) {
        tutti_unlock(TUTTI_LOCK_P2P);
        return r.taken ? TUTTI_OK : TUTTI_NOT_YET;
    }
    const _Atomic uint32_t *place = tutti_channel_next(r.channel);
    r.port->pins++;
    bool waits = r.channel->remote != NULL && r.port->waiter == NULL;
    if (waits) r.port->waiter = &r;
    r.polls_sockets = r.channel->remote != NULL && tutti_remote_is_straight(r.channel);
    tutti_unlock(TUTTI_LOCK_P2P);
    bool came = look(comm, &r, place);
    tutti_lock(TUTTI_LOCK_P2P);
    r.port->pins--;
    if (waits) {
        r.port->waiter = NULL;
        tutti_remote_leave_waiter(&r);
    }
    if (came && !r.taken && tutti_waiter_is_next(&r)) take(&r);
    tutti_unlock(TUTTI_LOCK_P2P);
    return r.taken ? TUTTI_OK : TUTTI_NOT_YET;
}
