/*
 * Runs a plan's steps: done on the host when the calls return, or enqueued in the stream of a GPU, in the same order.
 */
#include <string.h>

#include "bootstrap/base/common.h"
#include "tensor/gpu.h"
#include "tensor/placement.h"
#include "tensor/plan/plan.h"

typedef tutti_run run;

/* The memory of a stage of a pair. */
static void *memory_of(const run *r, size_t pair, int stage) {
    const tutti_route *route = &r->plan->routes[pair];
    if (stage == 0) return r->srcs[pair];
    if (stage == route->nstages - 1) return r->dsts[pair];
    return r->scratch + route->stages[stage].scratch_offset;
}

static char *at_element(void *memory, int64_t element, size_t element_bytes) {
    return (char *)memory + element * (int64_t)element_bytes;
}

static int from_of(const tutti_plan_step *step, size_t pair) {
    return step->from_stages != NULL ? step->from_stages[pair] : step->from;
}

static int to_of(const tutti_plan_step *step, size_t pair) {
    return step->to_stages != NULL ? step->to_stages[pair] : step->to;
}

/* `streams`: write past the host's caches. */
static tutti_status copy_blocks(const run *r, const tutti_plan_part *part, void *dst, const void *src, bool streams) {
    size_t element_bytes = r->plan->routes[part->pair].element_bytes;
    if (r->device != NULL)
        return tutti_gpu_run_blocks(r->device, &part->blocks, element_bytes, dst, src, r->options->stream);
    tutti_blocks_run(&part->blocks, element_bytes, dst, src, streams);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ messages */

static char *room_of(const run *r, const tutti_plan_step *step, const tutti_plan_message *message) {
    return (step->reads ? (char *)r->plan->packed : r->scratch) + message->scratch_offset;
}

/* Packs to *at, which moves on. */
static tutti_status pack_part(const run *r, const tutti_plan_step *step, const tutti_plan_part *part, char **at,
                              bool streams) {
    TUTTI_TRY(copy_blocks(r, part, *at, memory_of(r, part->pair, from_of(step, part->pair)), streams));
    *at += part->blocks.bytes;
    return TUTTI_OK;
}

static tutti_status unpack_part(const run *r, const tutti_plan_step *step, const tutti_plan_part *part, const char **at,
                                bool streams) {
    TUTTI_TRY(copy_blocks(r, part, memory_of(r, part->pair, to_of(step, part->pair)), *at, streams));
    *at += part->blocks.bytes;
    return TUTTI_OK;
}

/* Returns the address of the message to send, after packing it if needed. */
static tutti_status pack(const run *r, const tutti_plan_step *step, const tutti_plan_message *message,
                         const void **packed_out) {
    *packed_out = NULL;
    if (message->nparts == 0 || message->bytes == 0) return TUTTI_OK;
    if (message->direct) {
        const tutti_plan_part *part = &message->parts[0];
        *packed_out = at_element(memory_of(r, part->pair, from_of(step, part->pair)), part->blocks.items[0].src_first,
                                 r->plan->routes[part->pair].element_bytes);
        return TUTTI_OK;
    }
    char *at = room_of(r, step, message);
    for (size_t i = 0; i < message->nparts; i++) TUTTI_TRY(pack_part(r, step, &message->parts[i], &at, false));
    *packed_out = room_of(r, step, message);
    return TUTTI_OK;
}

/* The address at which the message is received. */
static void *landing(const run *r, const tutti_plan_step *step, const tutti_plan_message *message) {
    if (message->nparts == 0 || message->bytes == 0) return NULL;
    if (!message->direct) return room_of(r, step, message);
    const tutti_plan_part *part = &message->parts[0];
    return at_element(memory_of(r, part->pair, to_of(step, part->pair)), part->blocks.items[0].dst_first,
                      r->plan->routes[part->pair].element_bytes);
}

static tutti_status unpack(const run *r, const tutti_plan_step *step, const tutti_plan_message *message) {
    if (message->direct) return TUTTI_OK;
    const char *at = room_of(r, step, message);
    for (size_t i = 0; i < message->nparts; i++) TUTTI_TRY(unpack_part(r, step, &message->parts[i], &at, false));
    return TUTTI_OK;
}

static tutti_status copy_locals(const run *r, const tutti_plan_step *step) {
    for (size_t i = 0; i < step->nlocals; i++) {
        const tutti_plan_part *part = &step->locals[i];
        TUTTI_TRY(copy_blocks(r, part, memory_of(r, part->pair, to_of(step, part->pair)),
                              memory_of(r, part->pair, from_of(step, part->pair)), step->streams));
    }
    return TUTTI_OK;
}

static tutti_status exchange(const run *r, const tutti_plan_step *step) {
    for (int i = 0; i < step->nsends; i++) TUTTI_TRY(pack(r, step, &step->sends[i], &step->srcs[step->sends[i].peer]));
    for (int i = 0; i < step->nrecvs; i++) step->dsts[step->recvs[i].peer] = landing(r, step, &step->recvs[i]);
    TUTTI_TRY(tutti_all_to_all_v(step->comm, step->srcs, step->src_counts, step->dsts, step->dst_counts, TUTTI_UINT8,
                                 r->options));
    for (int i = 0; i < step->nrecvs; i++) TUTTI_TRY(unpack(r, step, &step->recvs[i]));
    return TUTTI_OK;
}

static tutti_status post_wave(const run *r, const tutti_plan_step *step, int wave) {
    const int64_t tag = r->device != NULL ? TUTTI_TAG_CUDA : TUTTI_TAG_HOST;
    const tutti_options plain =
        TUTTI_OPTIONS(.memory = r->options->memory, .stream = r->options->stream, .timeout_ms = r->options->timeout_ms);
    const void *packed = NULL;
    for (int i = 0; i < step->nrecvs; i++)
        if (step->recvs[i].wave == wave)
            TUTTI_TRY(tutti_recv(step->comm, landing(r, step, &step->recvs[i]), step->recvs[i].bytes, TUTTI_UINT8,
                                 step->recvs[i].peer, tag, &plain));
    for (int i = 0; i < step->nsends; i++) {
        if (step->sends[i].wave != wave) continue;
        TUTTI_TRY(pack(r, step, &step->sends[i], &packed));
        TUTTI_TRY(tutti_send(step->comm, packed, step->sends[i].bytes, TUTTI_UINT8, step->sends[i].peer, tag, &plain));
    }
    return TUTTI_OK;
}

static tutti_status send_all(const run *r, tutti_plan_step *step) {
    for (int wave = 0; wave < step->nwaves; wave++) {
        TUTTI_TRY(tutti_group_begin(step->comm));
        tutti_status status = post_wave(r, step, wave);
        if (status != TUTTI_OK) {
            (void)tutti_group_cancel(step->comm);
            return status;
        }
        TUTTI_TRY(tutti_group_end(step->comm, r->options));
        for (int i = 0; i < step->nrecvs; i++)
            if (step->recvs[i].wave == wave) TUTTI_TRY(unpack(r, step, &step->recvs[i]));
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------------- reads */

enum { IS_PACKED = 1 }; /* flag in the address of a table, which is even */

static tutti_status take_packed(const run *r) {
    if (r->plan->packed_bytes == 0 || r->plan->packed != NULL) return TUTTI_OK;
    return tutti_mem_alloc(r->plan->packed_bytes, &r->plan->packed);
}

/* Messages to one rank are consecutive. */
static tutti_status pack_all(const run *r, const tutti_plan_step *step, uint64_t *by_rank) {
    TUTTI_TRY(take_packed(r));
    char *at = r->plan->packed;
    for (int i = 0; i < step->nsends; i++) {
        const tutti_plan_message *message = &step->sends[i];
        if (i == 0 || message->peer != step->sends[i - 1].peer) by_rank[message->peer] = (uint64_t)(uintptr_t)at;
        for (size_t k = 0; k < message->nparts; k++)
            TUTTI_TRY(pack_part(r, step, &message->parts[k], &at, step->streams));
        at += -(uintptr_t)at % TUTTI_CACHE_LINE;
    }
    return TUTTI_OK;
}

/* Publishes the addresses of the data that other ranks need, and collects those of the data that this rank needs.
 * `all_out`: all of that data can be read. */
static tutti_status publish(const run *r, const tutti_plan_step *step, bool *all_out) {
    uint64_t *table = (uint64_t *)(void *)(r->scratch + step->table_offset), own = (uint64_t)(uintptr_t)table;
    bool in_place = true;
    for (size_t i = 0; i < step->nshown && in_place; i++) {
        size_t pair = step->shown[i];
        const void *shard = memory_of(r, pair, from_of(step, pair)), *here;
        size_t bytes = r->plan->routes[pair].stages[from_of(step, pair)].bytes;
        TUTTI_TRY(tutti_mem_peer(step->comm, step->me, shard, bytes, &here));
        table[pair] = (uint64_t)(uintptr_t)shard;
        in_place = here != NULL;
    }
    if (!in_place && step->packs) TUTTI_TRY(pack_all(r, step, table + r->plan->npairs));
    if (!in_place) own = step->packs ? own + IS_PACKED : 0;
    TUTTI_TRY(tutti_all_gather(step->comm, &own, step->tables, 1, TUTTI_UINT64, r->options));
    *all_out = true;
    for (int rank = 0; rank < step->nranks; rank++) *all_out = *all_out && step->tables[rank] != 0;
    return TUTTI_OK;
}

/* Maps an address that `peer` published. */
static tutti_status look_up(const tutti_plan_step *step, int peer, uint64_t address, size_t bytes,
                            const void **here_out) {
    TUTTI_TRY(tutti_mem_peer(step->comm, peer, (const void *)(uintptr_t)address, bytes, here_out));
    if (*here_out != NULL) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA,
                      "rank %d published an address outside of its memory: its process has overwritten memory", peer);
}

/* Entry `index` of the table of `peer`. */
static tutti_status look_in_table(const tutti_plan_step *step, int peer, size_t index, uint64_t *address_out) {
    const void *entry;
    uint64_t table = step->tables[peer] & ~(uint64_t)IS_PACKED;
    TUTTI_TRY(look_up(step, peer, table + index * sizeof(uint64_t), sizeof(uint64_t), &entry));
    *address_out = *(const uint64_t *)entry;
    return TUTTI_OK;
}

static tutti_status read_shards(const run *r, const tutti_plan_step *step, const tutti_plan_message *lookup) {
    uint64_t address;
    const void *shard;
    for (size_t i = 0; i < lookup->nparts; i++) {
        const tutti_plan_part *part = &lookup->parts[i];
        TUTTI_TRY(look_in_table(step, lookup->peer, part->pair, &address));
        TUTTI_TRY(look_up(step, lookup->peer, address, part->whole_bytes, &shard));
        TUTTI_TRY(copy_blocks(r, part, memory_of(r, part->pair, to_of(step, part->pair)), shard, step->streams));
    }
    return TUTTI_OK;
}

/* Messages from one rank are consecutive, and that rank has packed the same ones. */
static tutti_status read_packed(const run *r, const tutti_plan_step *step) {
    uint64_t address = 0;
    const void *here;
    for (int i = 0; i < step->nrecvs; i++) {
        const tutti_plan_message *message = &step->recvs[i];
        if ((step->tables[message->peer] & IS_PACKED) == 0) continue;
        if (i == 0 || message->peer != step->recvs[i - 1].peer)
            TUTTI_TRY(look_in_table(step, message->peer, r->plan->npairs + (size_t)step->me, &address));
        TUTTI_TRY(look_up(step, message->peer, address, message->bytes, &here));
        const char *at = here;
        for (size_t k = 0; k < message->nparts; k++)
            TUTTI_TRY(unpack_part(r, step, &message->parts[k], &at, step->streams));
        address += tutti_align_up(message->bytes, TUTTI_CACHE_LINE);
    }
    return TUTTI_OK;
}

/* Runs between two meetings: in the first, all ranks publish that the data for others is ready, and its addresses;
 * in the second, that they have read what they need. A rank whose shards others cannot read has packed it. The
 * gathered values are the addresses of the ranks' tables, with IS_PACKED, or 0 for "neither"; a table has the
 * addresses of the shards, by pair, followed by those of the packed data, by reader. The memory of a rank that dies
 * in between stays mapped as long as the communicator, so the data may be old, but the second meeting then
 * fails. */
static tutti_status read_all(const run *r, const tutti_plan_step *step) {
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < step->nlookups && status == TUTTI_OK; i++)
        if ((step->tables[step->lookups[i].peer] & IS_PACKED) == 0) status = read_shards(r, step, &step->lookups[i]);
    if (status == TUTTI_OK) status = read_packed(r, step);
    if (status == TUTTI_OK) return tutti_barrier(step->comm, r->options);
    (void)tutti_comm_abort(step->comm, tutti_last_error()); /* else the other ranks would wait at the barrier */
    return status;
}

static tutti_status gather(const run *r, const tutti_plan_step *step);

static tutti_status move_pieces(const run *r, tutti_plan_step *step) {
    bool all = false, gathers = step->kind == TUTTI_STEP_ALL_GATHER;
    if (!gathers) TUTTI_TRY(copy_locals(r, step)); /* first, so that packed data is still in a cache when it is read */
    if (step->reads) TUTTI_TRY(publish(r, step, &all));
    if (all && gathers) TUTTI_TRY(copy_locals(r, step));
    if (all) return read_all(r, step);
    if (step->reads) TUTTI_TRY(take_packed(r));
    if (gathers) return gather(r, step);
    return step->kind == TUTTI_STEP_ALL_TO_ALL ? exchange(r, step) : send_all(r, step);
}

/* --------------------------------------------------------------------------------------------- collectives */

static tutti_status reduce(const run *r, const tutti_plan_step *step) {
    const tutti_route *route = &r->plan->routes[step->pair];
    void *src = memory_of(r, step->pair, step->from), *dst = memory_of(r, step->pair, step->to);
    tutti_type type = route->src->view.type;
    if (step->kind == TUTTI_STEP_ALL_REDUCE)
        return tutti_all_reduce(step->comm, src, dst, route->stages[step->from].bytes / route->element_bytes, type,
                                step->reduction, r->options);
    for (int i = 0; i < step->nsends; i++) TUTTI_TRY(pack(r, step, &step->sends[i], &step->srcs[i]));
    if (step->even)
        return tutti_reduce_scatter(step->comm, step->srcs[0], dst, step->src_counts[0], type, step->reduction,
                                    r->options);
    return tutti_reduce_scatter_v(step->comm, step->srcs, dst, step->src_counts, type, step->reduction, r->options);
}

static tutti_status gather(const run *r, const tutti_plan_step *step) {
    const tutti_route *route = &r->plan->routes[step->pair];
    const void *src = memory_of(r, step->pair, step->from);
    tutti_type type = route->src->view.type;
    for (int i = 0; i < step->nrecvs; i++) step->dsts[i] = landing(r, step, &step->recvs[i]);
    if (step->even) TUTTI_TRY(tutti_all_gather(step->comm, src, step->dsts[0], step->dst_counts[0], type, r->options));
    else
        TUTTI_TRY(tutti_all_gather_v(step->comm, src, step->dst_counts[step->me], step->dsts, step->dst_counts, type,
                                     r->options));
    for (int i = 0; i < step->nrecvs; i++) TUTTI_TRY(unpack(r, step, &step->recvs[i]));
    return TUTTI_OK;
}

/* The root of a broadcast has the tensor in its source, as have ranks that take no part in it. */
static tutti_status broadcast(const run *r, const tutti_plan_step *step) {
    const tutti_route *route = &r->plan->routes[step->pair];
    size_t bytes = (size_t)route->dst->nelements * route->element_bytes;
    void *src = memory_of(r, step->pair, step->from), *dst = memory_of(r, step->pair, step->to);
    bool has = route->stages[step->from].bytes > 0, wants = route->stages[step->to].bytes > 0;
    if (step->kind == TUTTI_STEP_BROADCAST)
        TUTTI_TRY(tutti_broadcast(step->comm, has ? src : dst, bytes, TUTTI_UINT8, 0, r->options));
    if (!has || !wants) return TUTTI_OK;
    if (r->device != NULL) return r->device->copy(dst, src, bytes, r->options->stream);
    memcpy(dst, src, bytes);
    return TUTTI_OK;
}

static tutti_status run_step(const run *r, tutti_plan_step *step) {
    switch (step->kind) {
    case TUTTI_STEP_ALL_REDUCE:
    case TUTTI_STEP_REDUCE_SCATTER: return reduce(r, step);
    case TUTTI_STEP_BROADCAST: return broadcast(r, step);
    case TUTTI_STEP_ALL_GATHER:
    case TUTTI_STEP_ALL_TO_ALL:
    case TUTTI_STEP_MESSAGES: return move_pieces(r, step);
    case TUTTI_STEP_LOCAL: return step->from_stages == NULL ? broadcast(r, step) : copy_locals(r, step);
    }
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- identities */

/* Bits of one element that is the identity: -0.0, 1, 0. */
static uint64_t identity_of(tutti_type type, tutti_reduction reduction) {
    static const struct {
        uint64_t minus_zero, one;
    } floats[TUTTI_TYPE_COUNT] = {
        [TUTTI_FLOAT16] = {0x8000, 0x3c00},         [TUTTI_BFLOAT16] = {0x8000, 0x3f80},
        [TUTTI_FLOAT32] = {0x80000000, 0x3f800000}, [TUTTI_FLOAT64] = {UINT64_C(1) << 63, UINT64_C(0x3ff0000000000000)},
        [TUTTI_FLOAT8_E4M3] = {0x80, 0x38},         [TUTTI_FLOAT8_E5M2] = {0x80, 0x3c},
    };
    if (reduction == TUTTI_SUM) return floats[type].minus_zero;
    if (reduction == TUTTI_PROD) return floats[type].one != 0 ? floats[type].one : 1;
    return 0;
}

static tutti_status fill(const run *r, size_t pair) {
    const tutti_route *route = &r->plan->routes[pair];
    const tutti_stage *last = &route->stages[route->nstages - 1];
    uint64_t element = identity_of(route->dst->view.type, (tutti_reduction)route->filler);
    char *dst = r->dsts[pair];
    if (r->device != NULL)
        return tutti_gpu_fill(r->device, dst, element, route->element_bytes, last->bytes, r->options->stream);
    for (size_t at = 0; at < last->bytes; at += route->element_bytes) memcpy(dst + at, &element, route->element_bytes);
    return TUTTI_OK;
}

/* Fills options.work where this rank has nothing to wait for: a work that has ended. */
static tutti_status end_work(const tutti_plan *plan, const tutti_options *options) {
    for (int i = 0; i < plan->nsteps; i++)
        if (plan->steps[i].kind != TUTTI_STEP_LOCAL) return TUTTI_OK; /* the call has stored a work */
    TUTTI_TRY(tutti_group_begin(plan->comm));
    return tutti_group_end(plan->comm, options);
}

tutti_status tutti_plan_run_steps(const tutti_run *r) {
    const tutti_plan *plan = r->plan;
    for (int i = 0; i < plan->nsteps; i++) {
        tutti_plan_step *step = &plan->steps[i];
        tutti_status status = run_step(r, step);
        if (status != TUTTI_OK)
            return tutti_plan_fail_context(plan, status, tutti_plan_step_name(step->kind), step->comm);
    }
    for (size_t i = 0; i < plan->npairs; i++)
        if (plan->routes[i].filler >= 0) TUTTI_TRY(fill(r, i));
    return r->options->work != NULL ? end_work(plan, r->options) : TUTTI_OK;
}
