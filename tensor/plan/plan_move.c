/*
 * Moves boxes: by all_gather and broadcast where they fit, else by an exchange, in which each rank gets each piece
 * that it lacks from the rank that owns the piece for it.
 *
 * An exchange handles all pairs of a plan: where more than half of the pairs of ranks of its communicator exchange
 * data it is an all_to_all_v, else messages.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "tensor/plan/plan.h"

/* ------------------------------------------------------------------------------------------------- all_gather */

/* The axes that cut `fine` inside of the boxes of `coarse`; 0: there are none, or nothing differs. Both have one
 * placement. */
unsigned tutti_move_gathered_axes(const tutti_tiling *fine, const tutti_tiling *coarse) {
    unsigned axes = 0;
    if (!tutti_placement_is_alike(fine->placement, coarse->placement) || fine->ndims != coarse->ndims) return 0;
    for (int d = 0; d < fine->ndims; d++) {
        if (fine->shape[d] != coarse->shape[d] || fine->nsplits[d] < coarse->nsplits[d]) return 0;
        for (int i = 0; i < fine->nsplits[d]; i++) {
            if (i >= coarse->nsplits[d]) axes |= 1u << fine->axes[d][i];
            else if (fine->axes[d][i] != coarse->axes[d][i]) return 0;
        }
        int finer = fine->nparts[d] / coarse->nparts[d];
        for (int part = 1; part < coarse->nparts[d]; part++)
            if (coarse->offsets[d][part] != fine->offsets[d][part * finer]) return 0;
    }
    return axes;
}

bool tutti_move_is_strided(const tutti_tiling *fine, const tutti_tiling *coarse) {
    bool has_rows = false;
    for (int d = 0; d < fine->ndims; d++) {
        if (has_rows && fine->nsplits[d] > coarse->nsplits[d]) return true;
        has_rows = has_rows || coarse->shape[d] > coarse->nparts[d];
    }
    return false;
}

/* Lists where this rank reads the boxes of the others; it copies its own box. */
static tutti_status list_box_lookups(tutti_plan *plan, size_t pair, tutti_plan_step *step, unsigned axes,
                                     const tutti_transfer *transfer) {
    const tutti_placement *placement = transfer->dst->placement;
    int peer = 0;
    TUTTI_TRY(tutti_reads_begin(plan, step));
    TUTTI_TRY(tutti_calloc(1, sizeof *step->locals, &step->locals));
    for (int i = 0; i < placement->nranks; i++) {
        if (!tutti_placement_is_mate(placement, axes, i)) continue;
        tutti_plan_message *lookup = &step->lookups[step->nlookups];
        lookup->peer = peer++;
        if (i == placement->me) {
            step->locals[step->nlocals++].pair = pair;
            TUTTI_TRY(tutti_shards_list_pieces(transfer, i, i, TUTTI_PIECE_LOCAL, 0, &step->locals->blocks));
            continue;
        }
        step->nlookups++;
        TUTTI_TRY(tutti_calloc(1, sizeof *lookup->parts, &lookup->parts));
        TUTTI_TRY(tutti_reads_add(transfer, pair, i, placement->me, lookup));
        if (lookup->bytes == 0) lookup->nparts = 0;
    }
    if (plan->routes[pair].stages[step->from].bytes > 0) step->shown[step->nshown++] = pair;
    tutti_reads_end(step);
    return TUTTI_OK;
}

/* Receives the box of each rank of the group into this rank's box. */
static tutti_status list_boxes(tutti_plan *plan, size_t pair, tutti_plan_step *step, unsigned axes) {
    const tutti_route *route = &plan->routes[pair];
    const tutti_placement *placement = route->dst->view.placement;
    const tutti_transfer transfer = {.src = &route->stages[step->from].tiling,
                                     .dst = &route->stages[step->to].tiling,
                                     .element_bytes = route->element_bytes};
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->recvs, &step->recvs));
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->dsts, &step->dsts));
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->dst_counts, &step->dst_counts));
    for (int i = 0; i < placement->nranks; i++) {
        if (!tutti_placement_is_mate(placement, axes, i)) continue;
        tutti_plan_message *message = &step->recvs[step->nrecvs];
        TUTTI_TRY(tutti_calloc(1, sizeof *message->parts, &message->parts));
        message->nparts = 1;
        message->peer = step->nrecvs++;
        message->parts->pair = pair;
        TUTTI_TRY(
            tutti_shards_list_pieces(&transfer, i, placement->me, TUTTI_PIECE_UNPACK, 0, &message->parts->blocks));
        message->bytes = message->parts->blocks.bytes;
        message->direct = tutti_blocks_are_contiguous(&message->parts->blocks);
        if (!message->direct) message->scratch_offset = tutti_plan_take_room(plan, step, message->bytes);
        step->dst_counts[message->peer] = message->bytes / route->element_bytes;
        if (i != placement->me) plan->received_bytes += message->bytes;
    }
    step->even = tutti_messages_are_even(step->recvs, step->nrecvs, route->element_bytes, /* of_source */ false);
    plan->sent_bytes += route->stages[step->from].bytes * (size_t)(step->nranks - 1);
    return step->reads ? list_box_lookups(plan, pair, step, axes, &transfer) : TUTTI_OK;
}

static tutti_status add_all_gather(tutti_plan *plan, size_t pair, int from, unsigned axes,
                                   const tutti_plan_wish *wish) {
    tutti_placement *placement = plan->routes[pair].dst->view.placement;
    if (placement->me < 0) return TUTTI_OK;
    tutti_plan_step *step = tutti_plan_add_step(plan, TUTTI_STEP_ALL_GATHER);
    if (step == NULL) return TUTTI_ERR_MEMORY;
    step->pair = pair;
    step->from = from;
    step->to = from + 1;
    TUTTI_TRY(tutti_placement_comm(placement, axes, &step->comm));
    step->nranks = tutti_comm_size(step->comm);
    step->me = tutti_comm_rank(step->comm);
    const tutti_stage *stages = plan->routes[pair].stages;
    if (wish->reads || tutti_move_is_strided(&stages[from].tiling, &stages[from + 1].tiling))
        TUTTI_TRY(tutti_reads_pay(plan, step, wish, &step->reads));
    return list_boxes(plan, pair, step, axes);
}

/* ------------------------------------------------------------------------------------------------- broadcast */

static bool is_whole(const tutti_tiling *tiling) {
    for (int d = 0; d < tiling->ndims; d++)
        if (tiling->nparts[d] > 1) return false;
    return true;
}

bool tutti_move_broadcasts(const tutti_tiling *now, const tutti_tiling *target) {
    return is_whole(now) && is_whole(target) && tutti_tiling_elements(now) > 0 && !tutti_tiling_is_equal(now, target) &&
           now->ndims == target->ndims &&
           memcmp(now->shape, target->shape, (size_t)now->ndims * sizeof *now->shape) == 0;
}

/* One rank that has the whole tensor sends it to the ranks that lack it; the others copy their own. */
static tutti_status add_broadcast(tutti_plan *plan, size_t pair, int from) {
    const tutti_route *route = &plan->routes[pair];
    const tutti_placement *src = route->stages[from].tiling.placement, *dst = route->dst->view.placement;
    int nmembers = 1, *members, own = tutti_comm_rank(src->comm);
    bool member = own == src->ranks[0];
    TUTTI_TRY(tutti_calloc((size_t)dst->nranks + 1, sizeof *members, &members));
    members[0] = src->ranks[0];
    for (int i = 0; i < dst->nranks; i++) {
        if (tutti_placement_find(src, dst->ranks[i]) >= 0) continue;
        member = member || dst->ranks[i] == own;
        members[nmembers++] = dst->ranks[i];
    }
    tutti_status status = TUTTI_OK;
    tutti_plan_step *step = tutti_plan_add_step(plan, nmembers > 1 && member ? TUTTI_STEP_BROADCAST : TUTTI_STEP_LOCAL);
    if (step == NULL) status = TUTTI_ERR_MEMORY;
    if (status == TUTTI_OK) {
        step->pair = pair;
        step->from = from;
        step->to = from + 1;
        step->nranks = nmembers;
        if (step->kind == TUTTI_STEP_BROADCAST)
            status = tutti_rank_groups_get(plan->groups, members, nmembers, &step->comm);
    }
    free(members);
    if (status != TUTTI_OK || step->kind != TUTTI_STEP_BROADCAST) return status;
    step->me = tutti_comm_rank(step->comm);
    size_t bytes = (size_t)route->dst->nelements * route->element_bytes;
    if (step->me > 0) plan->received_bytes += bytes;
    else plan->sent_bytes += bytes * (size_t)(nmembers - 1);
    return TUTTI_OK;
}

tutti_status tutti_plan_gather(tutti_plan *plan, size_t pair, const tutti_plan_wish *wish, bool *done_out) {
    tutti_route *route = &plan->routes[pair];
    int from = route->nstages - 1;
    const tutti_tiling *now = &route->stages[from].tiling, *target = &route->dst->tiling;
    unsigned axes = route->wants == NULL ? tutti_move_gathered_axes(now, target) : 0;
    bool broadcasts = axes == 0 && route->wants == NULL && tutti_move_broadcasts(now, target);
    *done_out = axes != 0 || broadcasts;
    if (!*done_out) return TUTTI_OK;
    tutti_tiling copy;
    TUTTI_TRY(tutti_tiling_copy(target, &copy));
    TUTTI_TRY(tutti_route_add_stage(plan, route, &copy));
    return axes != 0 ? add_all_gather(plan, pair, from, axes, wish) : add_broadcast(plan, pair, from);
}

/* -------------------------------------------------------------------------------------------------- exchange */

/* One pair in an exchange: the transfer (without a source where the pair needs none), and the index of each rank of
 * the step's communicator in its two placements. */
typedef struct leg {
    tutti_transfer transfer;
    int *src_index, *dst_index; /* by rank of the communicator; -1: not in the placement */
} leg;

static bool gives(const leg *l, int giver, int taker) {
    return l->transfer.src != NULL && l->src_index[giver] >= 0 && l->dst_index[taker] >= 0 &&
           tutti_shards_give(&l->transfer, l->src_index[giver], l->dst_index[taker]);
}

unsigned tutti_move_exchange_axes(const tutti_transfer *transfer) {
    const tutti_tiling *src = transfer->src, *dst = transfer->dst;
    unsigned axes = 0;
    if (!tutti_placement_is_alike(src->placement, dst->placement) || src->ndims != dst->ndims) return ~0u;
    for (int d = 0; d < src->ndims; d++) {
        bool same = src->shape[d] == dst->shape[d] && src->nsplits[d] == dst->nsplits[d];
        if (src->shape[d] != dst->shape[d]) return ~0u;
        for (int i = 0; same && i < src->nsplits[d]; i++) same = src->axes[d][i] == dst->axes[d][i];
        for (int part = 1; same && part < src->nparts[d]; part++) same = src->offsets[d][part] == dst->offsets[d][part];
        if (same) continue;
        for (int i = 0; i < src->nsplits[d]; i++) axes |= 1u << src->axes[d][i];
        for (int i = 0; i < dst->nsplits[d]; i++) axes |= 1u << dst->axes[d][i];
    }
    return axes;
}

/* The communicator of the exchange, and its ranks as ranks of the placements' communicator. */
static tutti_status find_members(tutti_plan *plan, tutti_plan_step *step, const leg *legs, int **members_out) {
    tutti_placement *placement = plan->routes[0].dst->view.placement;
    unsigned axes = plan->npairs == 1 ? tutti_move_exchange_axes(&legs[0].transfer) : ~0u;
    int nmembers = 0, *members;
    TUTTI_TRY(tutti_calloc((size_t)plan->nranks, sizeof *members, &members));
    *members_out = members;
    if (axes == ~0u || placement->me < 0) {
        memcpy(members, plan->ranks, (size_t)plan->nranks * sizeof *members);
        step->comm = plan->comm;
        step->nranks = plan->nranks;
        step->me = tutti_comm_rank(plan->comm);
        return TUTTI_OK;
    }
    for (int i = 0; i < placement->nranks; i++) {
        if (i == placement->me) step->me = nmembers;
        if (tutti_placement_is_mate(placement, axes, i)) members[nmembers++] = placement->ranks[i];
    }
    step->nranks = nmembers;
    if (nmembers == 1) return TUTTI_OK;
    return tutti_rank_groups_get(plan->groups, members, nmembers, &step->comm);
}

static tutti_status index_ranks(leg *l, const int *members, int nmembers) {
    if (l->transfer.src == NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_calloc(2 * (size_t)nmembers, sizeof *l->src_index, &l->src_index));
    l->dst_index = l->src_index + nmembers;
    for (int i = 0; i < nmembers; i++) {
        l->src_index[i] = tutti_placement_find(l->transfer.src->placement, members[i]);
        l->dst_index[i] = tutti_placement_find(l->transfer.dst->placement, members[i]);
    }
    return TUTTI_OK;
}

enum { LEAST_ALONE = 32 << 10 };

/* The number of ordered pairs of ranks that exchange data; -1: too many ranks to count. The same on all ranks. */
static int64_t count_talks(const tutti_plan *plan, const tutti_plan_step *step, const leg *legs) {
    int64_t count = 0;
    if (step->nranks > TUTTI_MOST_COUNTED) return -1;
    for (int a = 0; a < step->nranks; a++)
        for (int b = 0; b < step->nranks; b++) {
            bool talk = false;
            for (size_t i = 0; i < plan->npairs && a != b && !talk; i++) talk = gives(&legs[i], a, b);
            count += talk;
        }
    return count;
}

/* True when a pair's piece is one contiguous copy on both sides. */
static tutti_status is_plain(const leg *l, int giver, int taker, const tutti_blocks *own, bool sends, bool *plain_out) {
    tutti_blocks other = {0};
    *plain_out = false;
    if (!tutti_blocks_are_contiguous(own)) return TUTTI_OK;
    tutti_status status = tutti_shards_list_pieces(&l->transfer, l->src_index[giver], l->dst_index[taker],
                                                   sends ? TUTTI_PIECE_UNPACK : TUTTI_PIECE_PACK, 0, &other);
    *plain_out = tutti_blocks_are_contiguous(&other);
    tutti_blocks_free(&other);
    return status;
}

static tutti_status is_packed(const tutti_plan *plan, const leg *l, int giver, int taker, bool *packed_out) {
    tutti_blocks own = {0};
    bool plain = false;
    tutti_status status =
        tutti_shards_list_pieces(&l->transfer, l->src_index[giver], l->dst_index[taker], TUTTI_PIECE_PACK, 0, &own);
    if (status == TUTTI_OK) status = is_plain(l, giver, taker, &own, true, &plain);
    *packed_out = !plain || (plan->npairs > 1 && own.bytes < LEAST_ALONE);
    tutti_blocks_free(&own);
    return status;
}

/* True when any rank packs anything. Otherwise messages copy each byte once, too, but only between ranks that
 * exchange data. The same on all ranks; true where there are too many ranks to check all. */
static tutti_status packs_any(const tutti_plan *plan, const tutti_plan_step *step, const leg *legs, bool *packs_out) {
    bool packs = step->nranks > TUTTI_MOST_COUNTED || (step->kind == TUTTI_STEP_ALL_TO_ALL && plan->npairs > 1);
    for (int a = 0; a < step->nranks && !packs; a++)
        for (int b = 0; b < step->nranks && !packs; b++)
            for (size_t i = 0; i < plan->npairs && !packs; i++)
                if (a != b && gives(&legs[i], a, b)) TUTTI_TRY(is_packed(plan, &legs[i], a, b, &packs));
    *packs_out = packs;
    return TUTTI_OK;
}

/* Lists all that this rank sends to or gets from `peer`, for all pairs. */
static tutti_status list_parts(const tutti_plan *plan, const tutti_plan_step *step, const leg *legs, int peer,
                               bool sends, tutti_plan_message *whole) {
    TUTTI_TRY(tutti_calloc(plan->npairs, sizeof *whole->parts, &whole->parts));
    for (size_t i = 0; i < plan->npairs; i++) {
        int giver = sends ? step->me : peer, taker = sends ? peer : step->me;
        if (!gives(&legs[i], giver, taker)) continue;
        tutti_plan_part *part = &whole->parts[whole->nparts++];
        part->pair = i;
        TUTTI_TRY(tutti_shards_list_pieces(&legs[i].transfer, legs[i].src_index[giver], legs[i].dst_index[taker],
                                           sends ? TUTTI_PIECE_PACK : TUTTI_PIECE_UNPACK, 0, &part->blocks));
        TUTTI_TRY(is_plain(&legs[i], giver, taker, &part->blocks, sends, &part->plain));
    }
    return TUTTI_OK;
}

/* Appends a message for `nparts` parts, which are moved into it. */
static tutti_status add_message(tutti_plan_message **messages, int *count, int peer, tutti_plan_part *parts,
                                size_t nparts) {
    tutti_plan_message *all = realloc(*messages, ((size_t)*count + 1) * sizeof *all), *new;
    if (all == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for %d messages", *count + 1);
    *messages = all;
    new = &all[*count];
    *new = (tutti_plan_message){.peer = peer};
    TUTTI_TRY(tutti_calloc(nparts, sizeof *new->parts, &new->parts));
    ++*count;
    for (; new->nparts < nparts; new->nparts++) {
        tutti_plan_part *part = &parts[new->nparts];
        new->parts[new->nparts] = *part;
        new->bytes += part->blocks.bytes;
        part->blocks = (tutti_blocks){0};
    }
    new->direct = nparts == 1 && tutti_blocks_are_contiguous(&new->parts[0].blocks);
    return TUTTI_OK;
}

/* Bytes packed into one message between two ranks, so that they are still in a cache when they are sent; bytes sent
 * at a time. */
enum { PACKED_BYTES = 1 << 20, WAVE_BYTES = 4 << 20 };

/* Puts all parts in one message. Where two ranks may have several messages, large parts that are contiguous on both
 * sides, and so need no packing, get their own messages, and the others are combined, up to about PACKED_BYTES.
 * Both sides compute the same messages. */
static tutti_status add_messages(const tutti_plan_step *step, const tutti_plan_message *whole,
                                 tutti_plan_message **messages, int *count) {
    size_t first = 0, bytes = 0; /* of the parts not yet in a message */
    for (size_t i = 0; i < whole->nparts; i++) {
        const tutti_plan_part *part = &whole->parts[i];
        bool several = step->kind == TUTTI_STEP_MESSAGES,
             alone = several && part->plain && part->blocks.bytes >= LEAST_ALONE;
        if (i > first && (alone || (several && bytes >= PACKED_BYTES))) {
            TUTTI_TRY(add_message(messages, count, whole->peer, whole->parts + first, i - first));
            first = i;
            bytes = 0;
        }
        bytes += part->blocks.bytes;
        if (!alone) continue;
        TUTTI_TRY(add_message(messages, count, whole->peer, whole->parts + first, 1));
        first = i + 1;
        bytes = 0;
    }
    if (first == whole->nparts) return TUTTI_OK;
    return add_message(messages, count, whole->peer, whole->parts + first, whole->nparts - first);
}

/* The waves share their scratch memory. Both sides count alike. No rank waits forever: the ranks whose wave is the
 * lowest find that the others have begun that wave or are past it. */
static void set_waves(tutti_plan_message *messages, int count, int *nwaves) {
    size_t before = 0;
    for (int i = 0; i < count; i++) {
        messages[i].wave = (int)tutti_min_size(before / WAVE_BYTES, INT32_MAX - 1);
        before += messages[i].bytes;
        if (messages[i].wave >= *nwaves) *nwaves = messages[i].wave + 1;
    }
}

/* All waves use the same space. */
static void take_scratch(tutti_plan *plan, tutti_plan_step *step) {
    size_t *bytes = step->reads ? &plan->packed_bytes : &plan->scratch_bytes, start = *bytes, most = start;
    for (int wave = 0; wave < step->nwaves; wave++) {
        *bytes = start;
        for (int i = 0; i < step->nsends + step->nrecvs; i++) {
            tutti_plan_message *m = i < step->nsends ? &step->sends[i] : &step->recvs[i - step->nsends];
            if (m->wave == wave && !m->direct) m->scratch_offset = tutti_plan_take_room(plan, step, m->bytes);
        }
        most = tutti_max_size(most, *bytes);
    }
    *bytes = most;
}

static tutti_status add_peer(tutti_plan *plan, tutti_plan_step *step, const leg *legs, int peer, bool sends,
                             tutti_plan_message **messages, int *count) {
    tutti_plan_message whole = {.peer = peer};
    int first = *count;
    uint64_t *bytes = sends ? &plan->sent_bytes : &plan->received_bytes;
    tutti_status status = list_parts(plan, step, legs, peer, sends, &whole);
    if (status == TUTTI_OK) status = add_messages(step, &whole, messages, count);
    for (int i = first; i < *count; i++) *bytes += (*messages)[i].bytes;
    set_waves(*messages + first, *count - first, &step->nwaves);
    for (size_t i = 0; i < whole.nparts; i++) tutti_blocks_free(&whole.parts[i].blocks); /* parts that were not moved */
    free(whole.parts);
    return status;
}

static tutti_status list_messages(tutti_plan *plan, tutti_plan_step *step, const leg *legs) {
    for (int peer = 0; peer < step->nranks; peer++) {
        if (peer == step->me) continue;
        TUTTI_TRY(add_peer(plan, step, legs, peer, true, &step->sends, &step->nsends));
        TUTTI_TRY(add_peer(plan, step, legs, peer, false, &step->recvs, &step->nrecvs));
    }
    take_scratch(plan, step);
    return TUTTI_OK;
}

static tutti_status list_locals(tutti_plan *plan, tutti_plan_step *step, const leg *legs) {
    TUTTI_TRY(tutti_calloc(plan->npairs, sizeof *step->locals, &step->locals));
    for (size_t i = 0; i < plan->npairs; i++) {
        if (!gives(&legs[i], step->me, step->me)) continue;
        tutti_plan_part *part = &step->locals[step->nlocals++];
        part->pair = i;
        TUTTI_TRY(tutti_shards_list_pieces(&legs[i].transfer, legs[i].src_index[step->me], legs[i].dst_index[step->me],
                                           TUTTI_PIECE_LOCAL, 0, &part->blocks));
    }
    return TUTTI_OK;
}

static tutti_status list_lookup(const tutti_plan *plan, const tutti_plan_step *step, const leg *legs, int peer,
                                tutti_plan_message *lookup) {
    lookup->peer = peer;
    TUTTI_TRY(tutti_calloc(plan->npairs, sizeof *lookup->parts, &lookup->parts));
    for (size_t i = 0; i < plan->npairs; i++) {
        if (!gives(&legs[i], peer, step->me)) continue;
        TUTTI_TRY(tutti_reads_add(&legs[i].transfer, i, legs[i].src_index[peer], legs[i].dst_index[step->me], lookup));
    }
    return TUTTI_OK;
}

/* Each rank begins with the rank after it, so that they do not all read from one. */
static tutti_status list_lookups(tutti_plan *plan, tutti_plan_step *step, const leg *legs,
                                 const tutti_plan_wish *wish) {
    TUTTI_TRY(tutti_reads_begin(plan, step));
    for (int i = 1; i < step->nranks; i++)
        TUTTI_TRY(list_lookup(plan, step, legs, (step->me + i) % step->nranks, &step->lookups[step->nlookups++]));
    tutti_reads_end(step);
    return tutti_reads_show(plan, step, wish);
}

static tutti_status fill_step(tutti_plan *plan, tutti_plan_step *step, leg *legs, const tutti_plan_wish *wish) {
    int *members = NULL;
    bool packs = false;
    tutti_status status = find_members(plan, step, legs, &members);
    for (size_t i = 0; i < plan->npairs && status == TUTTI_OK; i++)
        status = index_ranks(&legs[i], members, step->nranks);
    free(members);
    TUTTI_TRY(status);
    int64_t talks = count_talks(plan, step, legs), all = (int64_t)step->nranks * (step->nranks - 1);
    bool dense = tutti_move_is_dense(wish, talks, all);
    if (talks == 0) step->kind = TUTTI_STEP_LOCAL;
    else step->kind = dense ? TUTTI_STEP_ALL_TO_ALL : TUTTI_STEP_MESSAGES;
    TUTTI_TRY(list_locals(plan, step, legs));
    if (step->kind == TUTTI_STEP_LOCAL) return TUTTI_OK;
    if (plan->place == TUTTI_PLAN_HOST) TUTTI_TRY(packs_any(plan, step, legs, &packs));
    if (wish->reads || packs) TUTTI_TRY(tutti_reads_pay(plan, step, wish, &step->reads));
    TUTTI_TRY(list_messages(plan, step, legs));
    if (step->reads) TUTTI_TRY(list_lookups(plan, step, legs, wish));
    if (step->kind == TUTTI_STEP_MESSAGES) return TUTTI_OK;
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->srcs, &step->srcs));
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->dsts, &step->dsts));
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->src_counts, &step->src_counts));
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->dst_counts, &step->dst_counts));
    for (int i = 0; i < step->nsends; i++) step->src_counts[step->sends[i].peer] = step->sends[i].bytes;
    for (int i = 0; i < step->nrecvs; i++) step->dst_counts[step->recvs[i].peer] = step->recvs[i].bytes;
    return TUTTI_OK;
}

tutti_status tutti_plan_exchange(tutti_plan *plan, const int *from_stages, const int *to_stages,
                                 const tutti_plan_wish *wish) {
    leg *legs;
    tutti_plan_step *step = tutti_plan_add_step(plan, TUTTI_STEP_LOCAL);
    if (step == NULL) return TUTTI_ERR_MEMORY;
    TUTTI_TRY(tutti_calloc(2 * plan->npairs, sizeof *step->from_stages, &step->from_stages));
    TUTTI_TRY(tutti_calloc(plan->npairs, sizeof *legs, &legs));
    step->to_stages = step->from_stages + plan->npairs;
    memcpy(step->from_stages, from_stages, plan->npairs * sizeof *from_stages);
    memcpy(step->to_stages, to_stages, plan->npairs * sizeof *to_stages);
    for (size_t i = 0; i < plan->npairs; i++) {
        const tutti_route *route = &plan->routes[i];
        if (from_stages[i] == to_stages[i]) continue;
        legs[i].transfer = (tutti_transfer){.src = &route->stages[from_stages[i]].tiling,
                                            .dst = &route->stages[to_stages[i]].tiling,
                                            .wants = to_stages[i] == route->nstages - 1 ? route->wants : NULL,
                                            .element_bytes = route->element_bytes};
    }
    tutti_status status = fill_step(plan, step, legs, wish);
    for (size_t i = 0; i < plan->npairs; i++) free(legs[i].src_index);
    free(legs);
    return status;
}
