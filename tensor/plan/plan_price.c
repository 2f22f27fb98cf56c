/*
 * Prices plans: goes through the steps that plan_steps.c would take for a pair; each step costs the time of its
 * slowest rank.
 *
 * All of it follows from the layouts and from costs that are equal on all ranks, in one order of computation, so
 * every rank gets the same prices, to the bit, and makes the same choice. Nothing is sent.
 */
#include "tensor/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"

enum { FEW = 64 };

/* The work of one rank in a step. */
typedef struct load {
    double bytes[TUTTI_COST_KINDS];
    double rows;  /* of strided copies */
    double fresh; /* bytes of other ranks that were written in this run, by a copy or by the step before */
    double givers, takers;
    double read; /* bytes read from the source */
} load;

/* The price of one plan for one pair. */
typedef struct bill {
    const tutti_pricing *pricing;
    const tutti_route *route;
    const tutti_plan_wish *wish;
    double touched; /* bytes of memory touched by the rank that touches the most */
    tutti_plan_price price;
} bill;

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double bytes_of(const bill *b, int64_t elements) {
    return (double)elements * (double)b->route->element_bytes;
}

static double largest_bytes(const bill *b, const tutti_tiling *tiling) {
    return bytes_of(b, tutti_tiling_largest(tiling));
}

/* ------------------------------------------------------------------------------------------------- hosts */

static int host_of(const bill *b, int rank) {
    const tutti_costs *costs = b->pricing->costs;
    int low = 0, high = b->pricing->nranks - 1;
    if (costs->nhosts == 1) return 0;
    while (low < high) {
        int middle = (low + high) / 2;
        if (b->pricing->ranks[middle] < rank) low = middle + 1;
        else high = middle;
    }
    return costs->host_of[low];
}

/* True when ranks that differ only on these axes are on different hosts. */
static bool spans_hosts(const bill *b, const tutti_placement *placement, unsigned axes) {
    for (int i = 0; i < placement->nranks && b->pricing->costs->nhosts > 1; i++) {
        int coordinates[TUTTI_MOST_AXES];
        tutti_placement_locate(placement, i, coordinates);
        for (int axis = 0; axis < placement->naxes; axis++)
            if ((axes >> axis & 1) != 0) coordinates[axis] = 0;
        int first = tutti_placement_index(placement, coordinates);
        if (host_of(b, placement->ranks[i]) != host_of(b, placement->ranks[first])) return true;
    }
    return false;
}

/* --------------------------------------------------------------------------------------------- one step */

static void add_copy(load *l, double bytes, double row_bytes) {
    if (bytes <= 0) return;
    if (row_bytes >= bytes) {
        l->bytes[TUTTI_COST_COPY] += bytes;
        return;
    }
    l->bytes[TUTTI_COST_STRIDED] += bytes;
    l->rows += bytes / row_bytes;
}

/* Adds the extra cost of reading bytes from another rank's shard row by row, over a copy of whole pages. */
static void add_rows(load *l, double bytes, double row_bytes) {
    if (row_bytes >= bytes) return;
    add_copy(l, bytes, row_bytes);
    l->bytes[TUTTI_COST_COPY] -= bytes;
}

/* True when a step will read (plan_reads.c); steps over several hosts, or on GPUs, do not. */
static bool is_read(const bill *b, int nranks, bool all_meet) {
    double bytes = bytes_of(b, b->route->dst->nelements) + b->pricing->touched_more / 2 * nranks;
    const tutti_costs *costs = b->pricing->costs;
    return costs->nhosts == 1 && !costs->on_gpu && tutti_reads_pay_for((uint64_t)bytes, nranks, all_meet, b->wish);
}

static double local_us(const load *l, const double *ns, double row_ns) {
    double copied = l->bytes[TUTTI_COST_COPY] * ns[TUTTI_COST_COPY], strided = l->bytes[TUTTI_COST_STRIDED];
    double rows = strided / TUTTI_COST_ROW_BYTES, more_ns = larger(ns[TUTTI_COST_STRIDED] - ns[TUTTI_COST_COPY], 0);
    double whole_ns = strided * ns[TUTTI_COST_COPY];
    if (l->rows <= rows) whole_ns += l->rows * more_ns * TUTTI_COST_ROW_BYTES; /* longer rows: fewer jumps */
    else whole_ns += strided * more_ns + (l->rows - rows) * row_ns;
    return (copied + whole_ns) * 1e-3;
}

/* Adds a step to the bill. `kind`: of its call; TUTTI_COST_KINDS: no call. `far_bytes`: of the host that receives
 * the most. */
static void add_step(bill *b, tutti_cost_kind kind, const load *loads, int count, bool far, double far_bytes) {
    const tutti_costs *costs = b->pricing->costs;
    double ns[TUTTI_COST_KINDS], most_us = 0, calls = 1;
    bool talks = kind != TUTTI_COST_KINDS;
    for (int i = 0; i < TUTTI_COST_KINDS; i++) ns[i] = tutti_costs_byte_ns(costs, (tutti_cost_kind)i, b->touched);
    /* An impossible order of costs was measured by chance, while other work used the cores: message and pull are
     * both one copy from another rank's memory, and a reduce_scatter is a part of an all_reduce. */
    ns[TUTTI_COST_MESSAGE] = larger(ns[TUTTI_COST_MESSAGE], ns[TUTTI_COST_PULL]);
    ns[TUTTI_COST_REDUCE] = larger(ns[TUTTI_COST_REDUCE], ns[TUTTI_COST_SCATTER]);
    for (int i = 0; i < count; i++) {
        const load *l = &loads[i];
        /* Where ranks meet, the ranks of one core copy one after the other until all have arrived. */
        double us = local_us(l, ns, costs->row_ns) * (talks ? costs->crowd : 1);
        /* On a GPU the cost of a short copy is mostly the launch of its kernel. */
        if (costs->on_gpu && l->bytes[TUTTI_COST_COPY] + l->bytes[TUTTI_COST_STRIDED] > 0)
            us += costs->base_us[TUTTI_COST_COPY];
        for (int k = 0; k < TUTTI_COST_KINDS; k++)
            if (k != TUTTI_COST_COPY && k != TUTTI_COST_STRIDED) us += l->bytes[k] * ns[k] * 1e-3;
        us += l->fresh * larger(ns[TUTTI_COST_FRESH] - ns[TUTTI_COST_PULL], 0) * 1e-3;
        most_us = larger(most_us, us);
        calls = larger(calls, larger(l->givers, l->takers));
    }
    b->price.us += most_us;
    if (!talks) return;
    b->price.steps++;
    /* Each further message costs about half of the first. */
    double base_us = costs->base_us[kind];
    if (kind == TUTTI_COST_REDUCE) base_us = larger(base_us, costs->base_us[TUTTI_COST_SCATTER]);
    b->price.call_us = base_us * (kind == TUTTI_COST_MESSAGE ? 0.5 + 0.5 * calls : 1);
    b->price.us += b->price.call_us;
    if (kind == TUTTI_COST_REDUCE) b->price.reduces = true;
    if (kind == TUTTI_COST_SCATTER) b->price.scatters = true;
    if (far) b->price.us += costs->far_us + far_bytes * costs->far_byte_ns * 1e-3;
}

/* ------------------------------------------------------------------------------------------------ reducing */

/* The longest run of a region's elements that is contiguous in a shard. */
static int64_t run_in(const tutti_region *region, const tutti_region *shard) {
    int64_t run = 1;
    for (int d = region->ndims - 1; d >= 0; d--) {
        run *= region->end[d] - region->first[d];
        if (region->end[d] - region->first[d] != shard->end[d] - shard->first[d]) break;
    }
    return run;
}

/* The regions of the first rank whose parts are not empty: all ranks' parts are similar. */
static void typical_regions(const tutti_tiling *fine, const tutti_tiling *coarse, tutti_region *part_out,
                            tutti_region *box_out) {
    int nranks = fine->placement->nranks;
    for (int i = 0; i < nranks; i++) {
        tutti_tiling_region(fine, i, part_out);
        if (tutti_region_elements(part_out) > 0 || i == nranks - 1) {
            tutti_tiling_region(coarse, i, box_out);
            return;
        }
    }
}

/* Bytes that reach a host, over all groups of `group` ranks, where each rank of a group outputs `bytes`. */
static double far_bytes_of(const bill *b, const tutti_placement *placement, int group, double bytes) {
    double hosts = b->pricing->costs->nhosts;
    return bytes * placement->nranks / group * (1 - 1 / hosts);
}

static void price_all_reduce(bill *b, const tutti_tiling *now, const tutti_partial_run *run) {
    const tutti_placement *placement = now->placement;
    load l = {.bytes[TUTTI_COST_REDUCE] = largest_bytes(b, now)};
    bool far = spans_hosts(b, placement, run->axes);
    b->touched += l.bytes[TUTTI_COST_REDUCE];
    b->price.received +=
        2 * l.bytes[TUTTI_COST_REDUCE] * (1 - 1.0 / run->nranks) * placement->nranks; /* counted as in the plan */
    add_step(b, TUTTI_COST_REDUCE, &l, 1, far, 2 * far_bytes_of(b, placement, run->nranks, l.bytes[TUTTI_COST_REDUCE]));
}

static void price_reduce_scatter(bill *b, const tutti_tiling *now, const tutti_tiling *cut,
                                 const tutti_partial_run *run) {
    const tutti_placement *placement = now->placement;
    tutti_region part, box;
    double bytes = largest_bytes(b, now);
    load l = {.bytes[TUTTI_COST_SCATTER] = bytes};
    typical_regions(cut, now, &part, &box);
    int64_t row = run_in(&part, &box);
    b->touched += largest_bytes(b, cut);
    if (row < tutti_region_elements(&part)) {
        add_copy(&l, bytes, bytes_of(b, row));
        l.fresh += bytes * (1 - 1.0 / run->nranks);
        b->touched += bytes;
    }
    b->price.received += largest_bytes(b, cut) * (run->nranks - 1) * placement->nranks;
    add_step(b, TUTTI_COST_SCATTER, &l, 1, spans_hosts(b, placement, run->axes),
             far_bytes_of(b, placement, run->nranks, bytes));
}

/* Stores in *now_out the tiling of the source once nothing is partial; free it with tutti_tiling_free. */
static tutti_status price_reductions(bill *b, tutti_tiling *now_out, int *reduced_out) {
    tutti_partial_run runs[TUTTI_MOST_AXES];
    const tutti_route *route = b->route;
    bool scatters;
    tutti_tiling cut;
    int nruns = tutti_plan_reduce_list_runs(route->src, runs);
    *reduced_out = nruns;
    TUTTI_TRY(tutti_tiling_copy(&route->src->tiling, now_out));
    for (int i = nruns - 1; i > 0; i--) price_all_reduce(b, now_out, &runs[i]);
    if (nruns == 0) return TUTTI_OK;
    tutti_status status = tutti_plan_reduce_cut(route, now_out, runs[0].axes, b->wish, &cut, &scatters);
    if (status != TUTTI_OK || !scatters) {
        if (status == TUTTI_OK) price_all_reduce(b, now_out, &runs[0]);
        else tutti_tiling_free(now_out);
        return status;
    }
    price_reduce_scatter(b, now_out, &cut, &runs[0]);
    tutti_tiling_free(now_out);
    *now_out = cut;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ gathering */

static int group_size(const tutti_placement *placement, unsigned axes) {
    int size = 1;
    for (int axis = 0; axis < placement->naxes; axis++)
        if ((axes >> axis & 1) != 0) size *= placement->sizes[axis];
    return size;
}

static void price_all_gather(bill *b, const tutti_tiling *now, const tutti_tiling *target, unsigned axes) {
    const tutti_placement *placement = target->placement;
    tutti_region part, box;
    double bytes = largest_bytes(b, target), group = group_size(placement, axes);
    b->touched += bytes + (b->price.steps == 0 ? largest_bytes(b, now) : 0);
    load l = {.bytes[TUTTI_COST_GATHER] = bytes};
    typical_regions(now, target, &part, &box);
    int64_t row = run_in(&part, &box);
    bool reads = (b->wish->reads || tutti_move_is_strided(now, target)) && is_read(b, (int)group, true);
    if (reads) {
        add_rows(&l, bytes, bytes_of(b, row));
        b->price.us += b->pricing->costs->base_us[TUTTI_COST_GATHER]; /* for the second meeting */
    } else if (row < tutti_region_elements(&part)) {
        add_copy(&l, bytes, bytes_of(b, row));
        b->touched += bytes;
    }
    if (b->price.steps > 0) l.fresh += bytes * (1 - 1 / group);
    b->price.received += bytes * (1 - 1 / group) * placement->nranks;
    add_step(b, TUTTI_COST_GATHER, &l, 1, spans_hosts(b, placement, axes),
             far_bytes_of(b, placement, (int)group, bytes));
}

static void price_broadcast(bill *b, const tutti_tiling *now, const tutti_tiling *target) {
    double bytes = bytes_of(b, tutti_tiling_elements(target));
    const tutti_placement *src = now->placement, *dst = target->placement;
    load loads[2];
    int lack = 0;
    bool far = false;
    memset(loads, 0, sizeof loads);
    b->touched += bytes + (b->price.steps == 0 ? bytes : 0);
    for (int i = 0; i < dst->nranks; i++) {
        if (tutti_placement_find(src, dst->ranks[i]) >= 0) {
            loads[1].bytes[TUTTI_COST_COPY] = bytes;
            continue;
        }
        loads[0].bytes[TUTTI_COST_GATHER] = bytes;
        far = far || host_of(b, dst->ranks[i]) != host_of(b, src->ranks[0]);
        lack++;
    }
    b->price.received += bytes * lack;
    add_step(b, lack > 0 ? TUTTI_COST_GATHER : TUTTI_COST_KINDS, loads, 2, far, bytes);
}

/* ----------------------------------------------------------------------------------------------- exchanges */

/* The step of an exchange; arrays are by index in the two placements. */
typedef struct swap {
    tutti_transfer transfer;
    bool same_shape, reads;
    load *loads;           /* by index in the target's placement, then by that in the source's */
    int64_t talks;         /* ordered pairs of ranks that exchange data */
    double *far_in;        /* by host */
    double far_most, sent; /* bytes */
} swap;

/* The number of elements that rank `src` of the source has for rank `dst` of the target, and the lengths of the
 * runs on both sides. Where the shapes differ it is an estimate: the elements of boxes are assumed to be spread
 * evenly. */
static int64_t common_elements(const swap *s, int src, int dst, int64_t *src_run, int64_t *dst_run) {
    tutti_region from, to, common;
    tutti_tiling_region(s->transfer.src, src, &from);
    tutti_tiling_region(s->transfer.dst, dst, &to);
    if (s->same_shape) {
        if (!tutti_shards_give(&s->transfer, src, dst)) return 0;
        if (!tutti_region_intersect(&from, &to, &common)) return 0;
        *src_run = run_in(&common, &from);
        *dst_run = run_in(&common, &to);
        return tutti_region_elements(&common);
    }
    int64_t all = tutti_tiling_elements(s->transfer.src), parts = 1;
    if (all == 0 || (s->transfer.wants != NULL && !s->transfer.wants[dst])) return 0;
    for (int d = 0; d < s->transfer.src->ndims; d++) parts *= s->transfer.src->nparts[d];
    if (parts == 1 && src != dst % s->transfer.src->placement->nranks) return 0;
    int64_t elements = tutti_region_elements(&to) / parts;
    tutti_region whole = {.ndims = s->transfer.src->ndims};
    for (int d = 0; d < whole.ndims; d++) whole.end[d] = s->transfer.src->shape[d];
    *src_run = tutti_min_i64(run_in(&from, &whole), elements);
    whole.ndims = s->transfer.dst->ndims;
    for (int d = 0; d < whole.ndims; d++) whole.end[d] = s->transfer.dst->shape[d];
    *dst_run = tutti_min_i64(run_in(&to, &whole), elements);
    if (*dst_run < *src_run) *src_run = *dst_run;
    return elements;
}

static void add_pair(bill *b, swap *s, int src, int dst) {
    int64_t src_run = 0, dst_run = 0, elements = common_elements(s, src, dst, &src_run, &dst_run);
    const tutti_placement *from = s->transfer.src->placement, *to = s->transfer.dst->placement;
    load *taker = &s->loads[dst], *giver = &s->loads[to->nranks + src];
    double bytes = bytes_of(b, elements);
    if (elements <= 0) return;
    giver->read += bytes;
    if (from->ranks[src] == to->ranks[dst]) {
        add_copy(taker, bytes, bytes_of(b, src_run < dst_run ? src_run : dst_run));
        return;
    }
    s->talks++;
    s->sent += bytes;
    bool packs = src_run < elements && !s->reads;
    if (packs) add_copy(giver, bytes, bytes_of(b, src_run));
    if (packs || b->price.steps > 0) taker->fresh += bytes;
    if (s->reads) add_rows(taker, bytes, bytes_of(b, src_run < dst_run ? src_run : dst_run));
    else if (dst_run < elements) add_copy(taker, bytes, bytes_of(b, dst_run));
    taker->bytes[TUTTI_COST_MESSAGE] += bytes; /* removed later where the step has no messages */
    taker->givers++;
    giver->takers++;
    if (b->pricing->costs->nhosts == 1 || host_of(b, from->ranks[src]) == host_of(b, to->ranks[dst])) return;
    double *in = &s->far_in[host_of(b, to->ranks[dst])];
    *in += bytes;
    s->far_most = larger(s->far_most, *in);
}

/* Ranks that are in both placements do their work both as givers and as takers. */
static void join_loads(const swap *s) {
    const tutti_placement *from = s->transfer.src->placement, *to = s->transfer.dst->placement;
    for (int dst = 0; dst < to->nranks; dst++) {
        int src = tutti_placement_find(from, to->ranks[dst]);
        if (src < 0) continue;
        const load *giver = &s->loads[to->nranks + src];
        for (int kind = 0; kind < TUTTI_COST_KINDS; kind++) s->loads[dst].bytes[kind] += giver->bytes[kind];
        s->loads[dst].rows += giver->rows;
        s->loads[dst].fresh += giver->fresh;
        s->loads[dst].takers += giver->takers;
        s->loads[dst].read += giver->read;
    }
}

/* Bytes touched besides the target: those read from the source, unless the step before has written them, and packed
 * ones. */
static double touched_bytes(const bill *b, const swap *s, int count) {
    double most = 0;
    for (int i = 0; i < count; i++) {
        const load *l = &s->loads[i];
        double packed = s->talks > 0 && !s->reads ? l->bytes[TUTTI_COST_STRIDED] : 0;
        most = larger(most, packed + (b->price.steps == 0 ? l->read : 0));
    }
    return most;
}

/* With more ranks only this many pairs are examined, for a sample of the receivers. */
enum { MOST_PAIRS = TUTTI_MOST_COUNTED * TUTTI_MOST_COUNTED };

static void sum_pairs(bill *b, swap *s) {
    int nsrc = s->transfer.src->placement->nranks, ndst = s->transfer.dst->placement->nranks;
    int stride = 1 + (int)((int64_t)nsrc * ndst / (MOST_PAIRS + 1));
    for (int dst = 0; dst < ndst; dst += stride)
        for (int src = 0; src < nsrc; src++) add_pair(b, s, src, dst);
    s->talks *= stride;
    s->sent *= stride;
    s->far_most *= stride;
}

static void finish_exchange(bill *b, swap *s) {
    const tutti_pricing *pricing = b->pricing;
    const tutti_placement *to = s->transfer.dst->placement;
    int count = to->nranks + s->transfer.src->placement->nranks;
    unsigned axes = tutti_move_exchange_axes(&s->transfer);
    int64_t group = axes == ~0u ? pricing->nranks : group_size(to, axes);
    int64_t ngroups = axes == ~0u ? 1 : to->nranks / group, all = ngroups * group * (group - 1);
    bool dense = tutti_move_is_dense(b->wish, group > TUTTI_MOST_COUNTED ? -1 : s->talks, all);
    s->reads = s->talks > 0 && is_read(b, (int)group, dense);
    if (s->reads) { /* reading makes other copies */
        s->talks = 0;
        s->sent = 0;
        memset(s->loads, 0, (size_t)count * sizeof *s->loads);
        sum_pairs(b, s);
    }
    join_loads(s);
    b->touched += largest_bytes(b, s->transfer.dst) + touched_bytes(b, s, count);
    b->price.received += s->sent;
    b->price.exchanges = s->talks > 0;
    b->price.dense = dense;
    for (int i = 0; i < count && (dense || s->reads); i++) {
        s->loads[i].bytes[TUTTI_COST_PULL] += s->loads[i].bytes[TUTTI_COST_MESSAGE];
        s->loads[i].bytes[TUTTI_COST_MESSAGE] = 0;
    }
    bool calls = dense || s->reads;
    tutti_cost_kind kind = s->talks == 0 ? TUTTI_COST_KINDS : calls ? TUTTI_COST_GATHER : TUTTI_COST_MESSAGE;
    if (s->reads) b->price.us += b->pricing->costs->base_us[TUTTI_COST_GATHER]; /* for the second meeting */
    add_step(b, kind, s->loads, count, s->far_most > 0, s->far_most);
}

static tutti_status price_exchange(bill *b, const tutti_tiling *now, const tutti_tiling *target, const bool *wants) {
    load few[2 * FEW];
    double few_hosts[FEW];
    swap s = {.transfer = {.src = now, .dst = target, .wants = wants, .element_bytes = b->route->element_bytes}};
    size_t count = (size_t)(now->placement->nranks + target->placement->nranks),
           nhosts = (size_t)b->pricing->costs->nhosts;
    bool is_few = count <= 2 * FEW && nhosts <= FEW;
    s.same_shape =
        now->ndims == target->ndims && memcmp(now->shape, target->shape, (size_t)now->ndims * sizeof *now->shape) == 0;
    s.loads = few;
    s.far_in = few_hosts;
    if (!is_few) TUTTI_TRY(tutti_calloc(count + nhosts, sizeof *s.loads, &s.loads));
    if (!is_few) s.far_in = (double *)(void *)(s.loads + count);
    memset(s.loads, 0, count * sizeof *s.loads);
    memset(s.far_in, 0, nhosts * sizeof *s.far_in);
    sum_pairs(b, &s);
    finish_exchange(b, &s);
    if (!is_few) free(s.loads);
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- whole plans */

static tutti_status price_gathering(bill *b, const tutti_tiling *now, bool *done_out) {
    const tutti_tiling *target = &b->route->dst->tiling;
    unsigned axes = b->route->wants == NULL ? tutti_move_gathered_axes(now, target) : 0;
    bool broadcasts = axes == 0 && b->route->wants == NULL && tutti_move_broadcasts(now, target);
    *done_out = axes != 0 || broadcasts;
    if (axes != 0) price_all_gather(b, now, target, axes);
    if (broadcasts) price_broadcast(b, now, target);
    return TUTTI_OK;
}

static tutti_status price_moves(bill *b, const tutti_tiling *now) {
    const tutti_route *route = b->route;
    tutti_tiling shares;
    bool done = false;
    if (!b->wish->no_collective) TUTTI_TRY(price_gathering(b, now, &done));
    if (done) return TUTTI_OK;
    if (b->wish->shares && route->wants == NULL) {
        TUTTI_TRY(tutti_tiling_shares(&route->dst->tiling, &shares, &done));
        if (done) {
            tutti_status status = price_exchange(b, now, &shares, NULL);
            if (status == TUTTI_OK) status = price_gathering(b, &shares, &done);
            tutti_tiling_free(&shares);
            return status;
        }
    }
    return price_exchange(b, now, &route->dst->tiling, route->wants);
}

double tutti_price_touched(const tutti_route *route) {
    return (double)(tutti_tiling_largest(&route->src->tiling) + tutti_tiling_largest(&route->dst->tiling)) *
           (double)route->element_bytes;
}

tutti_status tutti_price_plan(const tutti_pricing *pricing, const tutti_route *route, const tutti_plan_wish *wish,
                              tutti_plan_price *price_out) {
    bill b = {.pricing = pricing, .route = route, .wish = wish};
    tutti_tiling now;
    int reduced;
    double source = largest_bytes(&b, &route->src->tiling);
    b.touched = pricing->touched_more;
    if (tutti_layout_is_equal(route->src, route->dst)) {
        b.touched += 2 * source;
        load l = {.bytes[TUTTI_COST_COPY] = source};
        add_step(&b, TUTTI_COST_KINDS, &l, 1, false, 0);
        *price_out = b.price;
        return TUTTI_OK;
    }
    if (tutti_layout_is_partial(route->src)) b.touched += source; /* the steps add what they write */
    TUTTI_TRY(price_reductions(&b, &now, &reduced));
    bool reached = reduced > 0 && tutti_tiling_is_equal(&now, &route->dst->tiling);
    tutti_status status = reached ? TUTTI_OK : price_moves(&b, &now);
    tutti_tiling_free(&now);
    if (status == TUTTI_OK) *price_out = b.price;
    return status;
}
