/*
 * Plans of single tensors by their layouts, kept as long as their communicator has placements: a table of lists by
 * the hash of both layouts. Entries are added at the front of their list and stay, so threads look them up without a
 * lock.
 *
 * No plan is dropped earlier: a plan is created by all of its ranks together, and ranks that have created different
 * numbers of plans would drop different ones.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/hash.h"
#include "tensor/plan/plan.h"

enum { LISTS = 1024 };

typedef struct cached {
    struct cached *next;
    tutti_plan *plan;
    uint64_t hash;
    /* Serials of the layouts that last found this plan, which saves comparing them. */
    _Atomic uint64_t src_serial, dst_serial;
} cached;

typedef struct table {
    tutti_kept_plans head;        /* first */
    cached *_Atomic lists[LISTS]; /* release, after the entry is filled in */
} table;

static void destroy(tutti_kept_plans *head) {
    table *t = (table *)head;
    for (int i = 0; i < LISTS; i++)
        for (cached *c = atomic_load_explicit(&t->lists[i], memory_order_acquire); c != NULL;) {
            cached *next = c->next;
            tutti_plan_destroy(c->plan);
            free(c);
            c = next;
        }
    free(t);
}

static tutti_status table_of(tutti_rank_groups *groups, table **table_out) {
    table *made;
    *table_out = (table *)tutti_rank_groups_plans(groups, NULL);
    if (TUTTI_LIKELY(*table_out != NULL)) return TUTTI_OK;
    TUTTI_TRY(tutti_calloc(1, sizeof *made, &made));
    made->head.destroy = destroy;
    *table_out = (table *)tutti_rank_groups_plans(groups, &made->head);
    if (*table_out != made) free(made); /* another thread was first */
    return TUTTI_OK;
}

static uint64_t hash_of(const tutti_kept_layout *src, const tutti_kept_layout *dst) {
    return tutti_hash_add(src->hash, dst->hash << 1 ^ dst->hash >> 63);
}

static tutti_plan *find(const table *t, uint64_t hash, const tutti_kept_layout *src, const tutti_kept_layout *dst) {
    cached *c = atomic_load_explicit(&t->lists[hash % LISTS], memory_order_acquire);
    for (; c != NULL; c = c->next) {
        if (c->hash != hash) continue;
        if (atomic_load_explicit(&c->src_serial, memory_order_relaxed) == src->serial &&
            atomic_load_explicit(&c->dst_serial, memory_order_relaxed) == dst->serial)
            return c->plan;
        const tutti_route *route = &c->plan->routes[0];
        if (!tutti_layout_fits(route->src, src) || !tutti_layout_fits(route->dst, dst)) continue;
        atomic_store_explicit(&c->src_serial, src->serial, memory_order_relaxed);
        atomic_store_explicit(&c->dst_serial, dst->serial, memory_order_relaxed);
        return c->plan;
    }
    return NULL;
}

static tutti_status make(const tutti_kept_layout *src, const tutti_kept_layout *dst, tutti_plan **plan_out) {
    tutti_kept_layout *own_src, *own_dst = NULL;
    TUTTI_TRY(tutti_layout_shadow(src, &own_src));
    tutti_status status = tutti_layout_shadow(dst, &own_dst);
    if (status == TUTTI_OK) status = tutti_plan_of(&own_src, &own_dst, 1, plan_out);
    if (status == TUTTI_OK) (*plan_out)->is_cached = true;
    tutti_layout_release(own_src);
    tutti_layout_release(own_dst);
    return status;
}

tutti_status tutti_plan_find(const tutti_kept_layout *src, const tutti_kept_layout *dst, tutti_plan **plan_out) {
    table *t;
    cached *made;
    uint64_t hash = hash_of(src, dst);
    TUTTI_TRY(table_of(src->view.placement->groups, &t));
    *plan_out = find(t, hash, src, dst);
    if (TUTTI_LIKELY(*plan_out != NULL)) return TUTTI_OK;
    TUTTI_TRY(tutti_calloc(1, sizeof *made, &made));
    made->hash = hash;
    atomic_init(&made->src_serial, src->serial);
    atomic_init(&made->dst_serial, dst->serial);
    tutti_status status = make(src, dst, &made->plan);
    if (status != TUTTI_OK) {
        free(made);
        return status;
    }
    *plan_out = made->plan;
    made->next = atomic_load_explicit(&t->lists[hash % LISTS], memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&t->lists[hash % LISTS], &made->next, made, memory_order_release,
                                                  memory_order_relaxed)) {}
    return TUTTI_OK;
}
