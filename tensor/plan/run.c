/*
 * Runs plans, and starts runs that end after the call has returned (options.work).
 *
 * A plan in which this rank has one step that exchanges data runs as one task of that step's communicator
 * (tutti_submit): packing, the step, unpacking and local copies. The communicator's queue runs the tasks in the
 * order of their calls, which is the same on all ranks, one at a time. So a plan may be started again while it runs,
 * and its scratch memory and the arguments in its steps serve one run after the other.
 *
 * A call that runs a plan itself first waits for all works on the communicators that it uses: its messages are not
 * queued, and would match those of the works. It waits for them before it takes the plan's lock, which no task
 * takes while it runs.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "tensor/plan/plan.h"

/* ------------------------------------------------------------------------------------------------------------ a run */

static tutti_status run_all(tutti_plan *plan, void *const *srcs, void *const *dsts, const tutti_options *options) {
    if (plan->place == TUTTI_PLAN_CUDA) return tutti_plan_run_on_gpu(plan, srcs, dsts, options);
    if (plan->scratch_bytes > 0 && plan->scratch == NULL)
        TUTTI_TRY(tutti_mem_alloc(plan->scratch_bytes, &plan->scratch));
    if (plan->place == TUTTI_PLAN_STAGED) return tutti_plan_run_staged(plan, srcs, dsts, options);
    return tutti_plan_run_steps(
        &(tutti_run){.plan = plan, .srcs = srcs, .dsts = dsts, .scratch = plan->scratch, .options = options});
}

static tutti_status run_now(tutti_plan *plan, void *const *srcs, void *const *dsts, const tutti_options *options) {
    enum { KEPT_BYTES = 64 << 10 };
    tutti_status status = run_all(plan, srcs, dsts, options);
    if (plan->is_cached && plan->scratch_bytes > KEPT_BYTES) {
        (void)tutti_mem_free(plan->scratch);
        plan->scratch = NULL;
    }
    if (plan->is_cached && plan->packed_bytes > KEPT_BYTES) {
        (void)tutti_mem_free(plan->packed);
        plan->packed = NULL;
    }
    return status;
}

/* -------------------------------------------------------------------------------------------------- runs with works */

typedef struct started {
    tutti_plan *plan;
    atomic_int *works; /* of the communicator */
    tutti_options options;
    void *shards[]; /* of the sources, then of the targets */
} started;

static tutti_status run(void *context) {
    started *s = context;
    return run_now(s->plan, s->shards, s->shards + s->plan->npairs, &s->options);
}

/* The last access to the plan, which may be freed as soon as it is unlocked, and its communicators with it. */
static void leave(tutti_plan *plan, atomic_int *works) {
    pthread_mutex_lock(&plan->lock);
    atomic_fetch_sub_explicit(works, 1, memory_order_release);
    if (atomic_fetch_sub_explicit(&plan->works, 1, memory_order_release) == 1) pthread_cond_broadcast(&plan->unused);
    pthread_mutex_unlock(&plan->lock);
}

static void release(void *context) {
    started *s = context;
    leave(s->plan, s->works);
    free(s);
}

static const tutti_plan_step *talking_step(const tutti_plan *plan) {
    const tutti_plan_step *step = plan->steps;
    while (step->kind == TUTTI_STEP_LOCAL) step++;
    return step;
}

static tutti_status start(tutti_plan *plan, void *const *srcs, void *const *dsts, const tutti_options *options) {
    const tutti_plan_step *step = talking_step(plan);
    size_t bytes = plan->npairs * sizeof(void *);
    started *s = malloc(sizeof *s + 2 * bytes);
    if (s == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a work of %zu tensors", plan->npairs);
    s->plan = plan;
    s->works = step->works;
    s->options = *options;
    s->options.work = NULL;
    memcpy(s->shards, srcs, bytes);
    memcpy(s->shards + plan->npairs, dsts, bytes);
    pthread_mutex_lock(&plan->lock); /* against a call of another thread that runs the plan */
    atomic_fetch_add_explicit(&plan->works, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(s->works, 1, memory_order_relaxed);
    pthread_mutex_unlock(&plan->lock);
    tutti_status status = tutti_submit(step->comm, run, release, s, &TUTTI_OPTIONS(.work = options->work));
    if (status == TUTTI_OK) return TUTTI_OK;
    release(s);
    return tutti_plan_fail_context(plan, status, tutti_plan_step_name(step->kind), step->comm);
}

tutti_status tutti_plan_await_works(const tutti_plan *plan) {
    for (int i = 0; i < plan->nsteps; i++) {
        const tutti_plan_step *step = &plan->steps[i];
        if (step->works == NULL) continue;
        tutti_status status = tutti_works_await(step->comm, step->works);
        if (status != TUTTI_OK)
            return tutti_plan_fail_context(plan, status, tutti_plan_step_name(step->kind), step->comm);
    }
    return TUTTI_OK;
}

void tutti_plan_lock(tutti_plan *plan) {
    pthread_mutex_lock(&plan->lock);
    while (TUTTI_UNLIKELY(atomic_load_explicit(&plan->works, memory_order_acquire) > 0))
        pthread_cond_wait(&plan->unused, &plan->lock);
}

/* ------------------------------------------------------------------------------------------------------------ calls */

static tutti_status check_work(const tutti_plan *plan, const tutti_options *options) {
    char text[200];
    if (options->work == NULL || plan->takes_work) return TUTTI_OK;
    if (plan->place == TUTTI_PLAN_CUDA)
        (void)tutti_fail(TUTTI_ERR_UNSUPPORTED,
                         "options.work is for tensors in host memory: leave it NULL; with CUDA memory the call only "
                         "enqueues in options.stream, where an event reports its end");
    else if (plan->place == TUTTI_PLAN_STAGED)
        (void)tutti_fail(
            TUTTI_ERR_UNSUPPORTED,
            "options.work is for tensors in host memory, and between host and CUDA memory the call waits "
            "for its end: leave options.work NULL, and make the call on a separate thread to do other work "
            "meanwhile");
    else {
        TUTTI_TRY(tutti_plan_describe(plan, text, sizeof text));
        (void)tutti_fail(
            TUTTI_ERR_UNSUPPORTED,
            "options.work is for plans in which no rank has more than one step that exchanges data, and "
            "this plan is, on this rank, %s: leave options.work NULL, and make the call on a separate thread to "
            "do other work meanwhile",
            text);
    }
    return tutti_plan_fail_context(plan, TUTTI_ERR_UNSUPPORTED, "redistribution", NULL);
}

tutti_status tutti_plan_carry_out(tutti_plan *plan, void *const *srcs, void *const *dsts,
                                  const tutti_options *options) {
    tutti_options own = options != NULL ? *options : TUTTI_OPTIONS(.work = NULL);
    own.memory = plan->place == TUTTI_PLAN_CUDA ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_HOST;
    TUTTI_TRY(check_work(plan, &own));
    if (own.work != NULL && !plan->is_one_collective && tutti_plan_talks(plan) > 0)
        return start(plan, srcs, dsts, &own);
    if (own.work == NULL) TUTTI_TRY(tutti_plan_await_works(plan));
    tutti_plan_lock(plan);
    tutti_status status = run_now(plan, srcs, dsts, &own);
    pthread_mutex_unlock(&plan->lock);
    return status;
}
