/*
 * Runs of plans after the call has returned (options.work).
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

typedef struct started {
    tutti_plan *plan;
    atomic_int *works; /* of the communicator */
    tutti_options options;
    void *shards[]; /* of the sources, then of the targets */
} started;

static tutti_status run(void *context) {
    started *s = context;
    return tutti_plan_run_now(s->plan, s->shards, s->shards + s->plan->npairs, &s->options);
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

tutti_status tutti_plan_start(tutti_plan *plan, void *const *srcs, void *const *dsts, const tutti_options *options) {
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
    return tutti_plan_fail_context(plan, status, tutti_step_name(step->kind), step->comm);
}

tutti_status tutti_plan_await_works(const tutti_plan *plan) {
    for (int i = 0; i < plan->nsteps; i++) {
        const tutti_plan_step *step = &plan->steps[i];
        if (step->works == NULL) continue;
        tutti_status status = tutti_works_await(step->comm, step->works);
        if (status != TUTTI_OK) return tutti_plan_fail_context(plan, status, tutti_step_name(step->kind), step->comm);
    }
    return TUTTI_OK;
}

void tutti_plan_lock(tutti_plan *plan) {
    pthread_mutex_lock(&plan->lock);
    while (TUTTI_UNLIKELY(atomic_load_explicit(&plan->works, memory_order_acquire) > 0))
        pthread_cond_wait(&plan->unused, &plan->lock);
}
