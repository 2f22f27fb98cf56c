/*
 * Runs plans whose tensors are in CUDA memory.
 *
 * With all of them in CUDA memory: every step is enqueued in the caller's stream, and the call returns. Packed data
 * lies in scratch memory that the next run in this stream reuses, after this one; a run in another stream waits for
 * an event there. Runs that are captured into a graph have their own memory, since the graph may be launched at any
 * time, and events of its stream have no meaning outside of it.
 *
 * With some of them: the ranks of the others have no streams, so all work is done on the host, with copies of the
 * shards, and the call waits for it.
 */

#include "bootstrap/base/common.h"
#include "tensor/gpu.h"
#include "tensor/plan/plan.h"

/* This rank's GPU; -1: the rank is in none of the placements in CUDA memory. */
static int gpu_of(const tutti_plan *plan) {
    for (size_t i = 0; i < plan->npairs; i++) {
        if (plan->routes[i].src->view.placement->gpu >= 0) return plan->routes[i].src->view.placement->gpu;
        if (plan->routes[i].dst->view.placement->gpu >= 0) return plan->routes[i].dst->view.placement->gpu;
    }
    return -1;
}

/* ----------------------------------------------------------------------------------------------- in the stream */

static tutti_scratch_pool *pool_of(tutti_plan *plan) {
    return plan->is_cached ? tutti_rank_groups_scratch(plan->groups) : &plan->gpu_scratch;
}

/* When a run fails, a part of it may have been enqueued. */
static tutti_status run_with_scratch(tutti_run *r) {
    tutti_scratch *scratch;
    tutti_scratch_pool *pool = pool_of(r->plan);
    tutti_stream stream = r->options->stream;
    TUTTI_TRY(tutti_scratch_take(pool, r->device, r->plan->scratch_bytes, stream, &scratch));
    r->scratch = tutti_scratch_memory(scratch);
    tutti_status status = tutti_plan_run_steps(r);
    const tutti_error error = tutti_fail_save();
    tutti_status given = tutti_scratch_give(pool, r->device, scratch, stream);
    return status != TUTTI_OK ? tutti_fail_again(status, &error) : given;
}

static tutti_status run_captured(tutti_run *r) {
    tutti_plan *plan = r->plan;
    if (plan->captured == NULL)
        TUTTI_TRY(tutti_scratch_make(&plan->gpu_scratch, r->device, plan->scratch_bytes, &plan->captured));
    r->scratch = tutti_scratch_memory(plan->captured);
    return tutti_plan_run_steps(r);
}

static tutti_status run_in_stream(tutti_run *r) {
    bool captures = false;
    if (r->plan->scratch_bytes == 0) return tutti_plan_run_steps(r);
    TUTTI_TRY(r->device->stream_captures(r->options->stream, &captures));
    return captures ? run_captured(r) : run_with_scratch(r);
}

tutti_status tutti_plan_run_on_gpu(tutti_plan *plan, void *const *srcs, void *const *dsts,
                                   const tutti_options *options) {
    tutti_gpu_visit visit;
    TUTTI_TRY(tutti_gpu_enter(gpu_of(plan), &visit));
    tutti_run r = {.plan = plan, .srcs = srcs, .dsts = dsts, .options = options, .device = visit.device};
    tutti_status status = run_in_stream(&r);
    tutti_gpu_leave(&visit);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ staged */

/* Copies the shards in CUDA memory to their mirrors; `back`: from the mirrors. */
static tutti_status copy_shards(const tutti_plan *plan, const tutti_device *device, void *const *shards, bool back,
                                tutti_stream stream) {
    for (size_t i = 0; i < plan->npairs; i++) {
        const tutti_route *route = &plan->routes[i];
        const tutti_stage *stage = &route->stages[back ? route->nstages - 1 : 0];
        void *mirror = plan->mirrors[back ? plan->npairs + i : i];
        if (mirror == shards[i] || stage->bytes == 0) continue;
        TUTTI_TRY(device->copy(back ? shards[i] : mirror, back ? mirror : shards[i], stage->bytes, stream));
    }
    return device->stream_sync(stream);
}

static tutti_status visit_shards(const tutti_plan *plan, void *const *shards, bool back, tutti_stream stream) {
    tutti_gpu_visit visit;
    bool captures = false;
    if (gpu_of(plan) < 0) return TUTTI_OK;
    TUTTI_TRY(tutti_gpu_enter(gpu_of(plan), &visit));
    tutti_status status = visit.device->stream_captures(stream, &captures);
    if (captures)
        status = tutti_plan_fail_context(
            plan,
            tutti_fail(TUTTI_ERR_UNSUPPORTED,
                       "a redistribution that goes through host memory cannot be captured into a CUDA graph"),
            "redistribution", NULL);
    /* Waits first, because a copy to ordinary memory that waits in its stream may keep other threads, which are
     * ranks, out of CUDA. */
    if (status == TUTTI_OK) status = visit.device->stream_sync(stream);
    if (status == TUTTI_OK) status = copy_shards(plan, visit.device, shards, back, stream);
    tutti_gpu_leave(&visit);
    return status;
}

tutti_status tutti_plan_run_staged(tutti_plan *plan, void *const *srcs, void *const *dsts,
                                   const tutti_options *options) {
    char *scratch = plan->scratch;
    if (plan->mirrors == NULL) TUTTI_TRY(tutti_calloc(2 * plan->npairs, sizeof *plan->mirrors, &plan->mirrors));
    void **mirrors = plan->mirrors;
    for (size_t i = 0; i < plan->npairs; i++) {
        const tutti_route *route = &plan->routes[i];
        mirrors[i] = route->src->view.placement->gpu >= 0 ? scratch + route->src_mirror : srcs[i];
        mirrors[plan->npairs + i] = route->dst->view.placement->gpu >= 0 ? scratch + route->dst_mirror : dsts[i];
    }
    tutti_options host = *options;
    host.stream = NULL;
    TUTTI_TRY(visit_shards(plan, srcs, /* back */ false, options->stream));
    TUTTI_TRY(tutti_plan_run_steps(&(tutti_run){
        .plan = plan, .srcs = mirrors, .dsts = mirrors + plan->npairs, .scratch = scratch, .options = &host}));
    return visit_shards(plan, dsts, /* back */ true, options->stream);
}
