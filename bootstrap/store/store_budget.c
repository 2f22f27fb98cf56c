/*
 * See store_budget.h. Only the server's thread uses this code.
 *
 * Invariant: each connection's `counted` is in exactly one sum, that of its `part`, and, unless it has the turn, in
 * the sum of its address; `changed` is set whenever the sums would let a connection in the queue continue, or no
 * connection has the turn.
 */
#include "bootstrap/store/store_budget.h"

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/store/store_connection.h"
#include "bootstrap/store/store_crowd.h"

static tutti_store_pool *pool_of(tutti_store_budget *budget, const tutti_store_connection *c) {
    return c->foreign ? &budget->foreign : &budget->own;
}

static const tutti_store_pool *its_pool(const tutti_store_budget *budget, const tutti_store_connection *c) {
    return c->foreign ? &budget->foreign : &budget->own;
}

/* -------------------------------------------------------------------------------------------- the queue */

static void enqueue(tutti_store_pool *pool, tutti_store_connection *c, size_t wanted) {
    c->share.wanted = wanted;
    if (c->share.queued) return;
    c->share.queued = true;
    c->share.next = NULL;
    c->share.previous = pool->last;
    if (pool->last != NULL) pool->last->share.next = c;
    else pool->first = c;
    pool->last = c;
    pool->changed = true;
}

static void dequeue(tutti_store_pool *pool, tutti_store_connection *c) {
    tutti_store_share *share = &c->share;
    if (!share->queued) return;
    share->queued = false;
    if (share->previous != NULL) share->previous->share.next = share->next;
    else pool->first = share->next;
    if (share->next != NULL) share->next->share.previous = share->previous;
    else pool->last = share->previous;
    share->moved = 0; /* it could not move anything while it waited */
    share->moved_ns = tutti_now_ns();
}

/* ---------------------------------------------------------------------------------------------- the sums */

static size_t counted_in(const tutti_store_connection *c, tutti_store_part part) {
    return c->share.part == part ? c->share.counted : 0;
}

static size_t counted_for_address(const tutti_store_connection *c) {
    return c->share.part == TUTTI_STORE_PART_TURN ? 0 : c->share.counted;
}

static bool fits_address(const tutti_store_connection *c, size_t held) {
    return c->address == NULL || c->address->held - counted_for_address(c) + held <= TUTTI_STORE_ADDRESS_BYTES;
}

static bool fits_small(const tutti_store_pool *pool, const tutti_store_connection *c, size_t held) {
    return held <= TUTTI_STORE_SMALL_BYTES &&
           pool->small - counted_in(c, TUTTI_STORE_PART_SMALL) + held <= TUTTI_STORE_SMALL_POOL_BYTES;
}

static bool fits_big(const tutti_store_pool *pool, const tutti_store_connection *c, size_t held) {
    return pool->big - counted_in(c, TUTTI_STORE_PART_BIG) + held <= TUTTI_STORE_BIG_POOL_BYTES;
}

static void count_off(tutti_store_pool *pool, tutti_store_connection *c) {
    pool->small -= counted_in(c, TUTTI_STORE_PART_SMALL);
    pool->big -= counted_in(c, TUTTI_STORE_PART_BIG);
    pool->waiters -= c->share.waiters;
    if (c->address != NULL) c->address->held -= counted_for_address(c);
}

static void count_on(tutti_store_pool *pool, tutti_store_connection *c) {
    pool->small += counted_in(c, TUTTI_STORE_PART_SMALL);
    pool->big += counted_in(c, TUTTI_STORE_PART_BIG);
    pool->waiters += c->share.waiters;
    if (c->address != NULL) c->address->held += counted_for_address(c);
}

static void recount(tutti_store_pool *pool, tutti_store_connection *c, size_t held, size_t waiters) {
    size_t before = c->share.counted;
    bool had_turn = pool->turn == c;
    count_off(pool, c);
    c->share.counted = 0;
    c->share.part = held == 0                   ? TUTTI_STORE_PART_NONE
                    : fits_small(pool, c, held) ? TUTTI_STORE_PART_SMALL
                    : had_turn                  ? TUTTI_STORE_PART_TURN
                                                : TUTTI_STORE_PART_BIG;
    c->share.counted = held;
    c->share.granted = 0;
    c->share.waiters = waiters;
    count_on(pool, c);
    if (had_turn && c->share.part != TUTTI_STORE_PART_TURN) pool->turn = NULL;
    if (held < before || pool->turn == NULL) pool->changed = true;
    if (before > 0 || held == 0) return;
    c->share.moved = 0;
    c->share.moved_ns = tutti_now_ns();
}

void tutti_store_budget_settle(tutti_store_budget *budget, tutti_store_connection *c) {
    recount(pool_of(budget, c), c, c->in.capacity + c->out.capacity, c->nwaiters * sizeof *c->waiters);
}

void tutti_store_budget_leave(tutti_store_budget *budget, tutti_store_connection *c) {
    tutti_store_pool *pool = pool_of(budget, c);
    dequeue(pool, c);
    recount(pool, c, 0, 0);
}

/* --------------------------------------------------------------------------------------------- going on */

bool tutti_store_budget_ask(tutti_store_budget *budget, tutti_store_connection *c, size_t held) {
    tutti_store_pool *pool = pool_of(budget, c);
    if (held <= tutti_max_size(c->share.counted, c->share.granted) || pool->turn == c) return true;
    if (fits_address(c, held)) {
        if (fits_small(pool, c, held)) return true;
        if (pool->first == NULL && fits_big(pool, c, held)) return true;
    }
    enqueue(pool, c, held);
    return false;
}

/* Returns true when the client has read all its replies; until then the connection must not continue. */
static bool is_due(const tutti_store_connection *c) {
    return tutti_store_buffer_used(&c->out) == 0;
}

static tutti_store_connection *choose_fitting(const tutti_store_pool *pool) {
    for (tutti_store_connection *c = pool->first; c != NULL; c = c->share.next) {
        size_t held = c->share.wanted;
        if (is_due(c) && fits_address(c, held) && (fits_small(pool, c, held) || fits_big(pool, c, held))) return c;
    }
    return NULL;
}

static tutti_store_connection *choose_turn(tutti_store_pool *pool) {
    tutti_store_connection *chosen = NULL;
    if (pool->turn != NULL) return NULL;
    for (tutti_store_connection *c = pool->first; c != NULL; c = c->share.next) {
        if (!is_due(c)) continue;
        if (chosen == NULL) chosen = c;
        if (c->address != NULL && c->address->number == pool->turn_address) continue;
        chosen = c;
        break;
    }
    if (chosen == NULL) return NULL;
    pool->turn = chosen;
    pool->turn_address = chosen->address != NULL ? chosen->address->number : 0;
    return chosen;
}

static tutti_store_connection *next_of(tutti_store_pool *pool) {
    if (!pool->changed) return NULL;
    tutti_store_connection *c = choose_fitting(pool);
    if (c == NULL) c = choose_turn(pool);
    pool->changed = c != NULL;
    if (c == NULL) return NULL;
    dequeue(pool, c);
    c->share.granted = c->share.wanted;
    return c;
}

tutti_store_connection *tutti_store_budget_next(tutti_store_budget *budget) {
    tutti_store_connection *c = next_of(&budget->own);
    return c != NULL ? c : next_of(&budget->foreign);
}

bool tutti_store_budget_may_go_on(const tutti_store_budget *budget, const tutti_store_connection *c) {
    size_t waiting = tutti_store_buffer_used(&c->out);
    if (c->share.queued) return false;
    return waiting == 0 || (waiting < TUTTI_STORE_OUTPUT_LIMIT && its_pool(budget, c)->first == NULL);
}

/* ---------------------------------------------------------------------------------------------- standstill */

void tutti_store_budget_move(tutti_store_connection *c, size_t bytes) {
    c->active_ns = tutti_now_ns();
    c->share.moved += bytes;
    if (c->share.moved < TUTTI_STORE_LEAST_MOVED_BYTES) return;
    c->share.moved = 0;
    c->share.moved_ns = c->active_ns;
}

bool tutti_store_budget_is_stalled(const tutti_store_budget *budget, const tutti_store_connection *c, int64_t now_ns) {
    if (its_pool(budget, c)->first == NULL || c->share.counted == 0 || (c->share.queued && is_due(c))) return false;
    return now_ns - c->share.moved_ns > TUTTI_STORE_STALLED_MS * TUTTI_NS_PER_MS;
}

bool tutti_store_budget_is_short(const tutti_store_budget *budget) {
    return budget->own.first != NULL || budget->foreign.first != NULL;
}
