/*
 * Properties of collectives besides their values: which ranks wait for which, large data with the default settings,
 * special numbers, and memory of both kinds.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/call.h"
#include "tests/support/ranks.h"

static const int worlds[] = {1, 2, 3, 4, 7, 0};

static void run(const int *sizes, void *argument, ranks_body body) {
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.argument = argument}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status arrive_and_look(ranks_context *context) {
    atomic_int *arrived = context->argument;
    for (int round = 0; round < 20; round++) {
        if (context->rank == round % context->nranks) usleep(2000);
        atomic_fetch_add(arrived, 1);
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
        int seen = atomic_load(arrived), needed = (round + 1) * context->nranks;
        RANKS_CHECK(seen >= needed, "left barrier %d when %d of %d had arrived", round, seen, needed);
    }
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == 0) atomic_store(arrived, 0);
    return tutti_barrier(context->comm, NULL);
}

Test(collectives, no_rank_leaves_a_barrier_before_all_have_entered_it) {
    atomic_int *arrived = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(arrived, MAP_FAILED);
    run(worlds, arrived, arrive_and_look);
    munmap(arrived, 4096);
}

static tutti_status move_megabytes(ranks_context *context) {
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        call c = {.kind = (call_kind)kind,
                  .type = TUTTI_FLOAT32,
                  .count = 100003,
                  .root = context->nranks - 1,
                  .in_place = (call_mode)(kind % CALL_MODES),
                  .shared = (call_mode)(kind / 3 % CALL_MODES),
                  .seed = (uint64_t)kind};
        TUTTI_TRY(call_run(&c, context->comm));
    }
    return TUTTI_OK;
}

Test(collectives, large_buffers_pass_with_the_default_settings) {
    run((const int[]){1, 2, 3, 0}, NULL, move_megabytes);
}

/* Rank r holds +-(r + 1): the sum over ranks has a closed form, whatever the reference says. */
static tutti_status sum_in_closed_form(ranks_context *context) {
    enum { COUNT = 1000 };
    static _Thread_local double values[COUNT];
    double n = context->nranks;
    for (int i = 0; i < COUNT; i++) values[i] = (i % 2 == 0 ? 1 : -1) * (context->rank + 1.0) * i;
    TUTTI_TRY(tutti_all_reduce(context->comm, values, values, COUNT, TUTTI_FLOAT64, TUTTI_SUM, NULL));
    for (int i = 0; i < COUNT; i++) {
        double expected = (i % 2 == 0 ? 1 : -1) * i * n * (n + 1) / 2;
        RANKS_CHECK(values[i] == expected, "element %d is %g instead of %g", i, values[i], expected);
    }
    return TUTTI_OK;
}

Test(collectives, sums_have_their_closed_form) {
    run(worlds, NULL, sum_in_closed_form);
}

/* 1e8 + 1 - 1e8 in float32 is 0 in rank order and 1 in others. */
static tutti_status sum_that_depends_on_order(ranks_context *context) {
    static const float inputs[] = {1e8f, 1.0f, -1e8f, 1.0f};
    float in_order = 0, result[257];
    for (int i = 0; i < context->nranks; i++) in_order += inputs[i % 4];
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 257; i++) result[i] = inputs[context->rank % 4];
        if ((context->rank + round) % 3 == 0) usleep(200);
        TUTTI_TRY(tutti_all_reduce(context->comm, result, result, 257, TUTTI_FLOAT32, TUTTI_SUM, NULL));
        for (int i = 0; i < 257; i++)
            RANKS_CHECK(result[i] == in_order, "round %d, element %d is %g, not %g", round, i, result[i], in_order);
    }
    return TUTTI_OK;
}

Test(collectives, float_sums_keep_rank_order_whichever_rank_comes_first) {
    run(worlds, NULL, sum_that_depends_on_order);
}

static tutti_status use_shared_memory(ranks_context *context) {
    int *big, *small;
    TUTTI_TRY(tutti_mem_alloc(40000 * sizeof *big, (void **)&big));
    TUTTI_TRY(tutti_mem_alloc(5, (void **)&small));
    RANKS_CHECK((uintptr_t)big % 4096 == 0 && (uintptr_t)small % 64 == 0, "blocks are not aligned");
    for (int i = 0; i < 40000; i++) big[i] = context->rank + i;
    TUTTI_TRY(tutti_all_reduce(context->comm, big, big, 40000, TUTTI_INT32, TUTTI_SUM, NULL));
    int n = context->nranks;
    for (int i = 0; i < 40000; i++) RANKS_CHECK(big[i] == n * (n - 1) / 2 + n * i, "element %d is %d", i, big[i]);
    int on_stack;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_mem_free(&on_stack));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_mem_free(big + 1));
    TUTTI_TRY(tutti_mem_free(big));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_mem_free(big));
    TUTTI_TRY(tutti_mem_free(NULL));
    return tutti_mem_free(small);
}

Test(collectives, allocated_blocks_are_aligned_usable_and_checked_when_freed) {
    run(worlds, NULL, use_shared_memory);
}

static tutti_status reuse_blocks(ranks_context *context) {
    for (int round = 0; round < 300; round++) {
        size_t count = 1 + (size_t)(round * 7919 % 5000);
        int64_t *block;
        TUTTI_TRY(tutti_mem_alloc(count * sizeof *block, (void **)&block));
        for (size_t i = 0; i < count; i++) block[i] = round;
        TUTTI_TRY(tutti_all_reduce(context->comm, block, block, count, TUTTI_INT64, TUTTI_SUM, NULL));
        for (size_t i = 0; i < count; i++)
            RANKS_CHECK(block[i] == (int64_t)round * context->nranks, "round %d: %lld", round, (long long)block[i]);
        TUTTI_TRY(tutti_mem_free(block));
    }
    return TUTTI_OK;
}

Test(collectives, a_block_may_be_freed_and_taken_again_between_calls) {
    run((const int[]){2, 4, 0}, NULL, reuse_blocks);
}

static tutti_status register_memory(ranks_context *context) {
    enum { COUNT = 70000 };
    int *values = malloc(COUNT * sizeof *values);
    RANKS_CHECK(values != NULL, "no memory");
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_mem_register(values, COUNT * sizeof *values), done);
    for (int i = 0; i < COUNT; i++) values[i] = context->rank == 1 % context->nranks ? i : -1;
    TUTTI_TRY_GOTO(status, tutti_broadcast(context->comm, values, COUNT, TUTTI_INT32, 1 % context->nranks, NULL), done);
    for (int i = 0; i < COUNT && status == TUTTI_OK; i++)
        if (values[i] != i) status = tutti_fail(TUTTI_ERR_DATA, "element %d is %d", i, values[i]);
    TUTTI_TRY_GOTO(status, status, done);
    TUTTI_TRY_GOTO(status, tutti_mem_deregister(values), done);
    if (tutti_mem_deregister(values) != TUTTI_ERR_ARGUMENT) status = tutti_fail(TUTTI_ERR_DATA, "deregistered twice");
done:
    free(values);
    return status;
}

Test(collectives, registered_memory_works_as_any_other) {
    run(worlds, NULL, register_memory);
}
