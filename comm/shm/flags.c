/*
 * Flags between ranks of one host. See flags.h.
 *
 * How publishers and sleepers are ordered: page.h. What a wait calls of higher folders: hooks.h.
 */
#include "comm/shm/flags.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "comm/base/backoff.h"
#include "comm/base/cacheline.h"
#include "comm/base/hooks.h"
#include "comm/base/page.h"
#include "comm/base/spread.h"

/* about the time that a line is on its way; without pauses, since one pause takes as long */
#define FIRST_LOOKS       24
#define SPINS_PER_SERVICE 64 /* flag checks between two point-to-point progress calls */
#define YIELDS_BEFORE_NAP 200
#define YIELDS_PER_LOOK   32 /* yields between two checks for broken peers */
#define SHORTEST_NAP_NS   INT64_C(200000)
#define LONGEST_NAP_NS    INT64_C(20000000)
#define SERVING_NAP_NS    INT64_C(500000) /* maximum nap while messages are pending */
#define FEW_RANKS         4               /* up to this number each rank reads all steps itself */
#define DEATHS_EVERY_NS   INT64_C(100000000)

/* ------------------------------------------------------------------------------------------- publishing */

static void publish(tutti_page *page, _Atomic uint64_t *flag, uint64_t value) {
    if (TUTTI_LIKELY(atomic_load_explicit(&page->fenced, memory_order_relaxed) == 0)) {
        atomic_store_explicit(flag, value, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst); /* the hardware ordering comes from the sleeper's barrier */
    } else {
        atomic_exchange_explicit(flag, value, memory_order_seq_cst);
    }
    if (TUTTI_UNLIKELY(atomic_load_explicit(&page->sleepers, memory_order_relaxed) > 0)) tutti_page_wake_flag(flag);
}

/* Call k is the (k + TUTTI_POSTS - 1) / TUTTI_POSTS th one that uses its arrivals. */
static tutti_arrivals *arrivals_of(const tutti_comm *comm, uint64_t sequence) {
    return &comm->members[0].page->arrivals[sequence % TUTTI_POSTS];
}

static uint64_t count_of_all(const tutti_comm *comm, uint64_t sequence) {
    return (sequence + TUTTI_POSTS - 1) / TUTTI_POSTS * (uint64_t)comm->nranks;
}

static void wake_arrivals(tutti_comm *comm, _Atomic uint64_t *flag) {
    if (TUTTI_UNLIKELY(atomic_load_explicit(&comm->members[0].page->sleepers, memory_order_seq_cst) > 0))
        tutti_page_wake_flag(flag);
}

/* The last rank wakes the others. */
static void arrive(tutti_comm *comm, const tutti_op *op) {
    tutti_arrivals *arrivals = arrivals_of(comm, op->sequence);
    comm->shm.signatures[op->sequence % TUTTI_POSTS] += op->signature;
    atomic_fetch_add_explicit(&arrivals->signatures, op->signature, memory_order_relaxed);
    uint64_t count = atomic_fetch_add_explicit(&arrivals->count, 1, memory_order_seq_cst) + 1;
    if (count == count_of_all(comm, op->sequence)) wake_arrivals(comm, &arrivals->count);
}

void tutti_post_publish(tutti_comm *comm, const tutti_op *op) {
    tutti_post *post = tutti_post_own(comm, op);
    post->call = tutti_call_of(op);
    atomic_store_explicit(&post->begun_ns, op->begun_ns, memory_order_relaxed);
    /* Last, and without other stores in between: waiters poll this line and would take it back. */
    atomic_store_explicit(&post->signature, op->signature, memory_order_relaxed);
    post->factor = op->factor;
    publish(comm->page, &post->sequence, op->sequence);
    tutti_core_publish(comm);
    if (comm->counts) arrive(comm, op);
}

void tutti_post_spoil(tutti_comm *comm, const tutti_op *op) {
    tutti_post *post = tutti_post_own(comm, op);
    bool posted = atomic_load_explicit(&post->sequence, memory_order_relaxed) == op->sequence;
    if (!posted) return;
    atomic_store_explicit(&post->signature, TUTTI_SIGNATURE_BROKEN, memory_order_release);
    if (comm->counts) atomic_fetch_add_explicit(&arrivals_of(comm, op->sequence)->signatures, 1, memory_order_release);
}

void tutti_progress_publish(tutti_comm *comm, const tutti_op *op, uint64_t progress) {
    publish(comm->page, &comm->page->step, tutti_progress_at(op->sequence, progress));
}

/* ---------------------------------------------------------------------------------------------- waiting */

void tutti_wait_state_begin(tutti_comm *comm, const tutti_op *op) {
    tutti_wait_state *p = &comm->wait_state; /* the deadlines are set when the clocks start */
    p->op = op;
    p->started = false;
    p->reported = false;
    p->yields = tutti_backoff_yields || !comm->spins;
    p->crowded = !tutti_backoff_yields && !comm->spins;
}

static tutti_status timed_out(tutti_comm *comm, const tutti_op *op, tutti_awaited awaited) {
    char call[160], missing[1200];
    tutti_call record = tutti_call_of(op);
    if (awaited != NULL) awaited(comm, missing, sizeof missing);
    else tutti_hooks.monitor_missing(comm, op, missing, sizeof missing);
    tutti_fail(TUTTI_ERR_TIMEOUT, "%s of communicator \"%s\" passed its deadline of %lld ms on rank %d; missing: %s",
               tutti_call_describe(&record, call, sizeof call), comm->name,
               (long long)(op->timeout_ms > 0 ? op->timeout_ms : comm->timeout_ms), tutti_comm_shown(comm, comm->rank),
               missing);
    return tutti_comm_break(comm, TUTTI_ERR_TIMEOUT);
}

static int64_t stall_ms(const tutti_comm *comm) {
    int64_t most_ms = tutti_setting_int(TUTTI_SETTING_STALL_MS);
    return comm->reports_early ? tutti_min_i64(most_ms, TUTTI_NOTICE_MS) : most_ms;
}

tutti_status tutti_wait_state_check(tutti_comm *comm, tutti_awaited awaited) {
    tutti_wait_state *p = &comm->wait_state;
    if (!p->started) {
        p->deadline = tutti_deadline_after_ms(p->op->timeout_ms > 0 ? p->op->timeout_ms : comm->timeout_ms);
        p->stall = tutti_deadline_after_ms(stall_ms(comm));
        p->started = true;
        return TUTTI_OK;
    }
    if (!p->reported && tutti_deadline_passed(&p->stall)) {
        char text[1200];
        p->reported = true;
        if (awaited != NULL) awaited(comm, text, sizeof text);
        tutti_hooks.monitor_report(comm, p->op, p->stall.spent_ns / TUTTI_NS_PER_MS, awaited != NULL ? text : NULL);
    }
    return tutti_deadline_passed(&p->deadline) ? timed_out(comm, p->op, awaited) : TUTTI_OK;
}

/* Spins while the awaited rank is on another core. On a shared core, spinning only keeps that rank from running. On
 * cores shared with other programs, yielding instead of spinning would give those whole time slices. */
static bool spin(const tutti_page *page, _Atomic uint64_t *flag, uint64_t target) {
    uint64_t start = tutti_ticks();
    int64_t most_ns = tutti_setting_int(TUTTI_SETTING_SPIN_US) * 1000;
    while (atomic_load_explicit(&page->core, memory_order_relaxed) != sched_getcpu()) {
        for (int i = 0; i < SPINS_PER_SERVICE; i++) {
            if (tutti_flag_reached(flag, target)) return true;
            tutti_relax();
        }
        tutti_hooks.p2p_progress();
        if (tutti_ticks_to_ns(tutti_ticks() - start) >= most_ns) break;
    }
    return false;
}

static tutti_status yield(tutti_comm *comm, _Atomic uint64_t *flag, uint64_t target, bool *reached_out) {
    uint64_t start = tutti_ticks();
    int64_t most_ns = tutti_setting_int(TUTTI_SETTING_SPIN_US) * 1000;
    *reached_out = true;
    for (int i = 1;; i++) {
        if (tutti_flag_reached(flag, target)) return TUTTI_OK;
        sched_yield();
        if (tutti_flag_reached(flag, target)) return TUTTI_OK;
        tutti_hooks.p2p_progress();
        if (i % YIELDS_PER_LOOK != 0) continue;
        TUTTI_TRY(tutti_hooks.monitor_look(comm, comm->wait_state.op, /* deaths */ false));
        if (tutti_ticks_to_ns(tutti_ticks() - start) >= most_ns) break;
    }
    *reached_out = false;
    return TUTTI_OK;
}

static void nap(tutti_page *page, _Atomic uint64_t *flag, uint64_t target, int64_t most_ns) {
    atomic_fetch_add_explicit(&page->sleepers, 1, memory_order_seq_cst);
    if (!tutti_page_order(page)) most_ns = tutti_min_i64(most_ns, SHORTEST_NAP_NS); /* a wake may be missed */
    uint64_t seen = atomic_load_explicit(flag, memory_order_seq_cst);
    if (seen < target) {
        struct timespec most = {.tv_nsec = most_ns};
        syscall(SYS_futex, tutti_flag_word(flag), FUTEX_WAIT, (uint32_t)seen, &most, NULL, 0);
    }
    atomic_fetch_sub_explicit(&page->sleepers, 1, memory_order_relaxed);
}

static tutti_status sleep_until(tutti_comm *comm, tutti_page *page, _Atomic uint64_t *flag, uint64_t target) {
    int64_t nap_ns = SHORTEST_NAP_NS, deaths_ns = 0;
    while (!tutti_flag_reached(flag, target)) {
        TUTTI_TRY(tutti_wait_state_check(comm, NULL));
        TUTTI_TRY(tutti_interrupt_check());
        int64_t now_ns = comm->wait_state.deadline.last_ns;
        bool deaths = now_ns - deaths_ns >= DEATHS_EVERY_NS;
        if (deaths) deaths_ns = now_ns;
        TUTTI_TRY(tutti_hooks.monitor_look(comm, comm->wait_state.op, deaths));
        if (tutti_hooks.p2p_progress()) continue; /* a message is being moved by this thread: no nap now */
        nap(page, flag, target, tutti_hooks.p2p_pending() ? tutti_min_i64(nap_ns, SERVING_NAP_NS) : nap_ns);
        nap_ns = tutti_min_i64(2 * nap_ns, LONGEST_NAP_NS);
    }
    /* During a long wait the other ranks may have given up. */
    return tutti_hooks.monitor_look(comm, comm->wait_state.op, /* deaths */ false);
}

/* ---------------------------------------------------------------------------------------- shared cores
 * When a host has more ranks than cores, two things take most of the time of a short call, above all in Python
 * programs, whose code fills the caches: switches between ranks of one core, and ranks that the system has placed on
 * one core while another core has fewer (spread.h).
 */

/* A rank stays for twice the time since its last wait: another core may still have to run two ranks, which need about
 * that time each. In Python that is tens of microseconds. Staying longer costs time where Linux groups processes by
 * session (kernel.sched_autogroup_enabled) and each rank has a session, as torchrun starts them. The scheduler then
 * makes the group of the rank that stayed wait until the other groups of its core have run as long, and their ranks can
 * only yield meanwhile: with a constant 50 us, a barrier of 8 such ranks on 2 cores took 80 us instead of 10. */
#define LINGERED_GAPS   2
#define LEAST_LINGER_NS INT64_C(2000)
#define MOST_LINGER_NS  INT64_C(50000)
#define MOST_LINGERING  16 /* ranks: with more, reading all their pages takes longer than the switch that it saves */
#define SPINS_PER_LOOK  16 /* flag checks between two looks at the clock */

/* What a waiting rank expects of the ranks of its own core: that value in the flag at this offset of their pages. */
typedef struct goal {
    size_t offset;
    uint64_t target;
} goal;

/* True if a rank that last ran on this core has not yet reached the goal. */
static bool needs_core(const tutti_comm *comm, const goal *all) {
    int core = sched_getcpu();
    for (int i = 0; i < comm->nranks; i++) {
        char *other = (char *)comm->members[i].page;
        if (i != comm->rank && tutti_core_of(comm, i) == core &&
            !tutti_flag_reached((_Atomic uint64_t *)(other + all->offset), all->target))
            return true;
    }
    return false;
}

/* Waits a while for *flag >= target, if all ranks of this core have already reached the goal: a switch to another of
 * them would gain nothing. A rank of this core that has not reached it can run: what it waits for is there,
 * since this rank has passed the same calls. If the ranks of the other cores arrive meanwhile, this rank starts its
 * next call before it switches, with its caches still warm. True: the flag has reached target. */
static bool linger(const tutti_comm *comm, _Atomic uint64_t *flag, uint64_t target, const goal *all) {
    if (comm->nranks > MOST_LINGERING || needs_core(comm, all)) return false;
    uint64_t start = tutti_ticks();
    int64_t most_ns = LINGERED_GAPS * tutti_ticks_to_ns(start - comm->shm.waited);
    most_ns = tutti_min_i64(most_ns > LEAST_LINGER_NS ? most_ns : LEAST_LINGER_NS, MOST_LINGER_NS);
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (tutti_flag_reached(flag, target)) return true;
            tutti_relax();
        }
        tutti_hooks.p2p_progress();
    } while (tutti_ticks_to_ns(tutti_ticks() - start) < most_ns);
    return false;
}

/* ------------------------------------------------------------------------------------------------ waiting */

static tutti_status yield_or_sleep(tutti_comm *comm, tutti_page *page, _Atomic uint64_t *flag, uint64_t target) {
    bool there;
    TUTTI_TRY(yield(comm, flag, target, &there));
    return there ? TUTTI_OK : sleep_until(comm, page, flag, target);
}

/* The wait of a rank that shares its core. */
static tutti_status wait_crowded(tutti_comm *comm, tutti_page *page, _Atomic uint64_t *flag, uint64_t target,
                                 const goal *all) {
    if (!linger(comm, flag, target, all)) {
        tutti_spread(comm);
        TUTTI_TRY(yield_or_sleep(comm, page, flag, target));
    }
    comm->shm.waited = tutti_ticks();
    return TUTTI_OK;
}

/* Waits until *flag, in that page, has reached target. */
static tutti_status wait_for(tutti_comm *comm, tutti_page *page, _Atomic uint64_t *flag, uint64_t target,
                             const goal *all) {
    for (int i = 0; i < FIRST_LOOKS; i++)
        if (tutti_flag_reached(flag, target)) return TUTTI_OK;
    if (comm->wait_state.crowded) return wait_crowded(comm, page, flag, target, all);
    bool spins = !comm->wait_state.yields;
    if (spins && (spin(page, flag, target) || (tutti_spread(comm) && spin(page, flag, target)))) return TUTTI_OK;
    return yield_or_sleep(comm, page, flag, target);
}

tutti_status tutti_flag_wait(tutti_comm *comm, int rank, _Atomic uint64_t *flag, uint64_t target) {
    tutti_page *page = comm->members[rank].page;
    goal same = {.offset = (size_t)((const char *)flag - (const char *)page), .target = target};
    return wait_for(comm, page, flag, target, &same);
}

/* Waits for a flag of the arrivals at op. */
static tutti_status wait_for_arrivals(tutti_comm *comm, const tutti_op *op, _Atomic uint64_t *flag, uint64_t target) {
    if (TUTTI_LIKELY(tutti_flag_reached(flag, target))) return TUTTI_OK;
    goal posted = {.offset = offsetof(tutti_page, posts) + op->sequence % TUTTI_POSTS * sizeof(tutti_post) +
                             offsetof(tutti_post, sequence),
                   .target = op->sequence};
    return wait_for(comm, comm->members[0].page, flag, target, &posted);
}

tutti_status tutti_meet_rank(tutti_comm *comm, const tutti_op *op, int rank) {
    tutti_post *post = &comm->members[rank].page->posts[op->sequence % TUTTI_POSTS];
    if (!tutti_flag_reached(&post->sequence, op->sequence))
        TUTTI_TRY(tutti_flag_wait(comm, rank, &post->sequence, op->sequence));
    uint64_t signature = atomic_load_explicit(&post->signature, memory_order_relaxed);
    if (TUTTI_UNLIKELY(signature != op->signature)) return tutti_hooks.monitor_mismatch(comm, op, rank, post);
    /* With 2 ranks, the other one has finished all earlier calls, so tutti_post_claim need not read its step. */
    if (comm->nranks == 2) comm->finished = op->sequence - 1;
    return TUTTI_OK;
}

/* True if all ranks have posted op, as this rank has, and none of them has given it up. */
static bool all_agree(const tutti_comm *comm, const tutti_op *op) {
    uint64_t signatures = atomic_load_explicit(&arrivals_of(comm, op->sequence)->signatures, memory_order_relaxed);
    return signatures == comm->shm.signatures[op->sequence % TUTTI_POSTS] * (uint64_t)comm->nranks;
}

tutti_status tutti_meet(tutti_comm *comm, const tutti_op *op) {
    if (comm->counts) {
        TUTTI_TRY(
            wait_for_arrivals(comm, op, &arrivals_of(comm, op->sequence)->count, count_of_all(comm, op->sequence)));
        if (TUTTI_LIKELY(all_agree(comm, op))) {
            comm->finished = op->sequence - 1;
            return TUTTI_OK;
        }
    }
    for (int rank = comm->rank, i = 1; i < comm->nranks; i++) {
        if (++rank == comm->nranks) rank = 0;
        TUTTI_TRY(tutti_meet_rank(comm, op, rank));
    }
    comm->finished = op->sequence - 1;
    return TUTTI_OK;
}

void tutti_claims_begin(tutti_comm *comm, const tutti_op *op, uint64_t count) {
    comm->shm.pieces[op->sequence % TUTTI_POSTS] += count;
}

bool tutti_claims_next(tutti_comm *comm, const tutti_op *op, uint64_t count, uint64_t *piece_out) {
    uint64_t end = comm->shm.pieces[op->sequence % TUTTI_POSTS];
    _Atomic uint64_t *flag = &arrivals_of(comm, op->sequence)->claimed;
    uint64_t claimed = atomic_load_explicit(flag, memory_order_relaxed);
    do {
        if (claimed >= end) return false;
    } while (!atomic_compare_exchange_weak_explicit(flag, &claimed, claimed + 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    *piece_out = claimed - (end - count);
    return true;
}

void tutti_claims_done(tutti_comm *comm, const tutti_op *op) {
    tutti_arrivals *arrivals = arrivals_of(comm, op->sequence);
    uint64_t done = atomic_fetch_add_explicit(&arrivals->done, 1, memory_order_seq_cst) + 1;
    if (done == comm->shm.pieces[op->sequence % TUTTI_POSTS]) wake_arrivals(comm, &arrivals->done);
}

tutti_status tutti_claims_wait(tutti_comm *comm, const tutti_op *op) {
    uint64_t all = comm->shm.pieces[op->sequence % TUTTI_POSTS];
    return wait_for_arrivals(comm, op, &arrivals_of(comm, op->sequence)->done, all);
}

/* Reads the steps of all ranks, and waits for those that have not finished the call. */
static tutti_status look_at_steps(tutti_comm *comm, uint64_t sequence) {
    uint64_t done = tutti_progress_at(sequence, TUTTI_STEP_DONE);
    /* Other ranks may be ahead of this one. */
    uint64_t least = atomic_load_explicit(&comm->page->step, memory_order_relaxed);
    for (int i = 1; i < comm->nranks; i++) {
        int rank = (comm->rank + i) % comm->nranks;
        _Atomic uint64_t *step = &comm->members[rank].page->step;
        if (!tutti_flag_reached(step, done)) TUTTI_TRY(tutti_flag_wait(comm, rank, step, done));
        uint64_t reached_step = atomic_load_explicit(step, memory_order_acquire);
        if (reached_step < least) least = reached_step;
    }
    /* The call of that step, or the previous one if that call is still running. */
    comm->finished = ((least + 1) >> TUTTI_STEP_BITS) - 1;
    return TUTTI_OK;
}

/* With many ranks, the first rank that reads the steps publishes the result for the others. Otherwise each rank
 * would read a line of every other rank, which takes longer than the call. (If two ranks write at the same time,
 * the older value may remain; it is also valid.) */
tutti_status tutti_finished_wait(tutti_comm *comm, uint64_t sequence) {
    if (TUTTI_LIKELY(comm->finished >= sequence)) return TUTTI_OK;
    /* A rank that has posted the next call has finished this one. */
    if (comm->counts && tutti_flag_reached(&arrivals_of(comm, sequence + 1)->count, count_of_all(comm, sequence + 1))) {
        comm->finished = sequence;
        return TUTTI_OK;
    }
    if (comm->nranks <= FEW_RANKS) return look_at_steps(comm, sequence);
    _Atomic uint64_t *known = &comm->members[0].page->finished;
    uint64_t found = atomic_load_explicit(known, memory_order_acquire);
    if (found >= sequence) {
        comm->finished = found;
        return TUTTI_OK;
    }
    TUTTI_TRY(look_at_steps(comm, sequence));
    if (comm->finished > found) atomic_store_explicit(known, comm->finished, memory_order_release);
    return TUTTI_OK;
}

tutti_status tutti_post_claim(tutti_comm *comm, const tutti_op *op) {
    return op->sequence <= TUTTI_POSTS ? TUTTI_OK : tutti_finished_wait(comm, op->sequence - TUTTI_POSTS);
}

tutti_status tutti_progress_wait_all(tutti_comm *comm, const tutti_op *op, uint64_t progress) {
    for (int i = 1; i < comm->nranks; i++)
        TUTTI_TRY(tutti_step_wait(comm, op, (comm->rank + i) % comm->nranks, progress));
    return TUTTI_OK;
}
