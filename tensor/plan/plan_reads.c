/*
 * Steps that read: the data that this rank reads from others, and that others read from it. run_steps.c runs them.
 *
 * One copy, from shard to shard, replaces packing, sending and unpacking, but all ranks of the step meet twice for
 * it. Therefore it is used for ranks of one host whose tensors are not tiny. That is known when a plan is made, and
 * equal on all ranks; whether all shards can be read is known only when they are there, so such a step also has its
 * messages.
 */
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "tensor/plan/plan.h"

/* From this number of bytes of the tensors, per rank of the step, ranks read from each other's shards (measured;
 * the meeting of all ranks costs little more than an all_to_all of two ranks, but more with more ranks); and from
 * this number of bytes that one rank copies, the copies are written past the caches. */
enum { LEAST_READ = 8 << 10, LEAST_STREAMED = 4 << 20 };

bool tutti_reads_pay_for(uint64_t bytes, int nranks, bool all_meet, const tutti_plan_wish *wish) {
    uint64_t least = (uint64_t)LEAST_READ * (all_meet ? (uint64_t)nranks - 1 : 1);
    return wish->reads || (!wish->all_to_all && !wish->messages && bytes / (uint64_t)nranks >= least);
}

tutti_status tutti_reads_pay(const tutti_plan *plan, const tutti_plan_step *step, const tutti_plan_wish *wish,
                             bool *reads_out) {
    tutti_comm_details place;
    uint64_t bytes = 0;
    TUTTI_TRY(tutti_comm_get(step->comm, &place));
    for (size_t i = 0; i < plan->npairs; i++) {
        const tutti_route *route = &plan->routes[i];
        bytes += (uint64_t)route->dst->nelements * route->element_bytes;
    }
    bool pays = tutti_reads_pay_for(bytes, step->nranks, step->kind != TUTTI_STEP_MESSAGES, wish);
    *reads_out = pays && plan->place == TUTTI_PLAN_HOST && place.hosts == 1;
    return TUTTI_OK;
}

tutti_status tutti_reads_add(const tutti_transfer *transfer, size_t pair, int src_index, int dst_index,
                             tutti_plan_message *lookup) {
    tutti_plan_part *part = &lookup->parts[lookup->nparts++];
    tutti_region region;
    tutti_tiling_region(transfer->src, src_index, &region);
    part->pair = pair;
    part->whole_bytes = (size_t)tutti_region_elements(&region) * transfer->element_bytes;
    TUTTI_TRY(tutti_shards_list_pieces(transfer, src_index, dst_index, TUTTI_PIECE_LOCAL, 0, &part->blocks));
    lookup->bytes += part->blocks.bytes;
    return TUTTI_OK;
}

tutti_status tutti_reads_begin(tutti_plan *plan, tutti_plan_step *step) {
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->lookups, &step->lookups));
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->tables, &step->tables));
    TUTTI_TRY(tutti_calloc(plan->npairs, sizeof *step->shown, &step->shown));
    step->table_offset = tutti_plan_take_scratch(plan, (plan->npairs + (size_t)step->nranks) * sizeof *step->tables);
    return TUTTI_OK;
}

size_t tutti_plan_take_room(tutti_plan *plan, const tutti_plan_step *step, size_t bytes) {
    if (!step->reads) return tutti_plan_take_scratch(plan, bytes);
    size_t kept = plan->scratch_bytes;
    plan->scratch_bytes = plan->packed_bytes;
    size_t offset = tutti_plan_take_scratch(plan, bytes);
    plan->packed_bytes = plan->scratch_bytes;
    plan->scratch_bytes = kept;
    return offset;
}

void tutti_reads_end(tutti_plan_step *step) {
    size_t bytes = 0;
    for (int i = 0; i < step->nlookups; i++) bytes += step->lookups[i].bytes;
    for (size_t i = 0; i < step->nlocals; i++) bytes += step->locals[i].blocks.bytes;
    step->streams = bytes >= LEAST_STREAMED;
}

/* Lists the data that others read from this rank. Where they cannot read it, and it is large, it is packed at once,
 * unless that takes much more memory than messages do. For smaller data, messages are as fast, or faster: their
 * ranks meet less often. */
tutti_status tutti_reads_show(tutti_plan *plan, tutti_plan_step *step, const tutti_plan_wish *wish) {
    enum { MUCH = 2 << 20, MUCH_MEMORY = 32 << 20 };
    size_t bytes = 0;
    bool *listed;
    TUTTI_TRY(tutti_calloc(plan->npairs, sizeof *listed, &listed));
    for (int i = 0; i < step->nsends; i++) {
        bytes += tutti_align_up(step->sends[i].bytes, TUTTI_CACHE_LINE);
        for (size_t k = 0; k < step->sends[i].nparts; k++) {
            size_t pair = step->sends[i].parts[k].pair;
            if (!listed[pair]) step->shown[step->nshown++] = pair;
            listed[pair] = true;
        }
    }
    free(listed);
    step->packs = (bytes >= MUCH || wish->reads) && bytes <= tutti_max_size(plan->packed_bytes, MUCH_MEMORY);
    if (step->packs) plan->packed_bytes = tutti_max_size(plan->packed_bytes, bytes);
    return TUTTI_OK;
}
