/*
 * The DDP engine: gradients of all ranks are averaged, whatever the buckets, the order of ready calls and the mode.
 *
 * Every test runs twice: with buckets that travel during backward, and with buckets reduced inside finish.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <tutti/ddp.h>

#include "tests/support/modes.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

#define NPARAMETERS 9
static const size_t counts[NPARAMETERS] = {3, 0, 1, 17, 64, 1000, 5, 129, 0};
static const int worlds[] = {1, 2, 3, 4, 0};

/* One rank's model: parameters of the counts above. */
typedef struct model {
    char names[NPARAMETERS][16];
    float data[NPARAMETERS][1000];
    tutti_ddp_parameter parameters[NPARAMETERS];
} model;

static model *model_create(int rank) {
    model *made = calloc(1, sizeof *made);
    for (size_t i = 0; i < NPARAMETERS; i++) {
        snprintf(made->names[i], sizeof made->names[i], "layer%zu", i);
        for (size_t k = 0; k < counts[i]; k++) made->data[i][k] = (float)(rank * 1000 + (int)i);
        made->parameters[i] = (tutti_ddp_parameter){made->names[i], made->data[i], counts[i], TUTTI_FLOAT32};
    }
    return made;
}

/* A permutation of the parameters that depends on all arguments. */
static void shuffle(size_t *order, uint64_t seed, int rank, int step) {
    for (size_t i = 0; i < NPARAMETERS; i++) {
        size_t other = reference_hash(seed, (uint64_t)(rank * 100 + step), i) % (i + 1);
        order[i] = order[other];
        order[other] = i;
    }
}

/* A gradient that rounds when it is summed: its bits show the order of the sum. */
static float gradient_value(int rank, int step, size_t parameter, size_t k) {
    return (float)(reference_hash((uint64_t)step, (uint64_t)rank * 16 + parameter, k) % 100003) / 3.0f;
}

static void expected_average(float *expected, int nranks, int step, size_t parameter) {
    for (size_t k = 0; k < counts[parameter]; k++) {
        float sum = gradient_value(0, step, parameter, k);
        for (int rank = 1; rank < nranks; rank++) sum += gradient_value(rank, step, parameter, k);
        expected[k] = sum / (float)nranks;
    }
}

/* Runs one step with its own order of ready calls, checked bit by bit. */
static tutti_status run_step(ranks_context *context, tutti_ddp *ddp, uint64_t seed, int step) {
    size_t order[NPARAMETERS];
    float expected[1000];
    shuffle(order, seed, context->rank, step);
    for (size_t i = 0; i < NPARAMETERS; i++) {
        float *view = tutti_ddp_gradient(ddp, order[i]);
        RANKS_CHECK(view && (uintptr_t)view % sizeof(float) == 0, "view of %zu is %p", order[i], (void *)view);
        for (size_t k = 0; k < counts[order[i]]; k++) view[k] = gradient_value(context->rank, step, order[i], k);
        TUTTI_TRY(tutti_ddp_ready(ddp, order[i]));
    }
    TUTTI_TRY(tutti_ddp_finish(ddp));
    for (size_t i = 0; i < NPARAMETERS; i++) {
        expected_average(expected, context->nranks, step, i);
        RANKS_CHECK(memcmp(tutti_ddp_gradient(ddp, i), expected, counts[i] * sizeof(float)) == 0,
                    "step %d: parameter %zu is not the average", step, i);
    }
    return TUTTI_OK;
}

static tutti_status average_in_any_order(ranks_context *context) {
    static const size_t caps[] = {1, 256, 4096, 0};
    for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
        model *m = model_create(context->rank);
        tutti_ddp *ddp;
        tutti_ddp_statistics statistics;
        TUTTI_TRY(tutti_ddp_create(context->comm, m->parameters, NPARAMETERS,
                                   &TUTTI_DDP_OPTIONS(.bucket_bytes = caps[c]), &ddp));
        for (int step = 0; step < 6; step++) TUTTI_TRY(run_step(context, ddp, c, step));
        TUTTI_TRY(tutti_ddp_get_statistics(ddp, &statistics));
        RANKS_CHECK(statistics.steps == 6 && statistics.rebuilt, "%d steps, rebuilt %d", (int)statistics.steps,
                    statistics.rebuilt);
        RANKS_CHECK(statistics.bytes == 1219 * sizeof(float), "%zu bytes", statistics.bytes);
        /* A byte holds no gradient: each has a bucket of its own, and the empty ones share with a neighbour. */
        RANKS_CHECK(c != 0 || statistics.buckets >= 7, "%zu buckets of one byte", statistics.buckets);
        RANKS_CHECK(c != 3 || statistics.buckets == 1, "%zu buckets of 25 MiB", statistics.buckets);
        tutti_ddp_destroy(ddp);
        free(m);
    }
    return TUTTI_OK;
}

Test(ddp, gradients_are_averaged_in_whatever_order_ranks_have_them_ready) {
    run_modes(worlds, RANKS_THREADS, average_in_any_order, NULL);
}

/* Hash of all gradients of 40 steps; `seed` decides the order in which gradients become ready on each rank. */
static tutti_status hash_run(ranks_context *context, uint64_t seed, uint64_t *hash_out) {
    model *m = model_create(context->rank);
    uint64_t hash = 0;
    tutti_ddp *ddp;
    TUTTI_TRY(
        tutti_ddp_create(context->comm, m->parameters, NPARAMETERS, &TUTTI_DDP_OPTIONS(.bucket_bytes = 512), &ddp));
    for (int step = 0; step < 40; step++) {
        TUTTI_TRY(run_step(context, ddp, seed, step));
        for (size_t i = 0; i < NPARAMETERS; i++)
            for (size_t k = 0; k < counts[i]; k++) {
                uint32_t bits;
                memcpy(&bits, (float *)tutti_ddp_gradient(ddp, i) + k, sizeof bits);
                hash = reference_hash(hash, bits, k);
            }
    }
    tutti_ddp_destroy(ddp);
    free(m);
    *hash_out = hash;
    return TUTTI_OK;
}

/* The first run sets the hash that every other must give: on each rank, in each mode, as process and as thread. */
static tutti_status compare_hashes(ranks_context *context) {
    _Atomic uint64_t *common = context->argument;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        uint64_t hash, expected = 0;
        TUTTI_TRY(hash_run(context, seed, &hash));
        if (!atomic_compare_exchange_strong(common, &expected, hash))
            RANKS_CHECK(hash == expected, "run %d gives different bits", (int)seed);
    }
    return TUTTI_OK;
}

Test(ddp, many_steps_give_the_same_bits_in_every_run_and_on_every_rank) {
    static const int three[] = {3, 0};
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run_modes(three, RANKS_THREADS, compare_hashes, shared);
    munmap(shared, 4096);
}

static tutti_status check_rebuilt_order(ranks_context *context) {
    size_t order[NPARAMETERS];
    model *m = model_create(context->rank);
    tutti_ddp *ddp;
    TUTTI_TRY(tutti_ddp_create(context->comm, m->parameters, NPARAMETERS, NULL, &ddp));
    for (size_t i = 0; i + 1 < NPARAMETERS; i++) /* at first in the reverse order of parameters */
        RANKS_CHECK((char *)tutti_ddp_gradient(ddp, i) >= (char *)tutti_ddp_gradient(ddp, i + 1), "%zu is not behind",
                    i);
    TUTTI_TRY(run_step(context, ddp, 5, 0));
    shuffle(order, 5, 0, 0); /* rank 0's */
    for (size_t i = 0; i + 1 < NPARAMETERS; i++)
        RANKS_CHECK((char *)tutti_ddp_gradient(ddp, order[i]) <= (char *)tutti_ddp_gradient(ddp, order[i + 1]),
                    "%zu is not before %zu", order[i], order[i + 1]);
    void *before = tutti_ddp_gradient(ddp, 5);
    TUTTI_TRY(run_step(context, ddp, 6, 1));
    RANKS_CHECK(tutti_ddp_gradient(ddp, 5) == before, "laid out more than once");
    tutti_ddp_destroy(ddp);
    free(m);
    return TUTTI_OK;
}

Test(ddp, buckets_are_laid_out_once_in_the_order_of_rank_0) {
    run_modes(worlds, RANKS_THREADS, check_rebuilt_order, NULL);
}

/* Adds `amount` to every gradient and finishes the step. */
static tutti_status add_step(tutti_ddp *ddp, float amount) {
    for (size_t i = NPARAMETERS; i-- > 0;) {
        float *view = tutti_ddp_gradient(ddp, i);
        for (size_t k = 0; k < counts[i]; k++) view[k] += amount;
        TUTTI_TRY(tutti_ddp_ready(ddp, i));
    }
    return tutti_ddp_finish(ddp);
}

static tutti_status expect_everywhere(tutti_ddp *ddp, float value) {
    for (size_t i = 0; i < NPARAMETERS; i++)
        for (size_t k = 0; k < counts[i]; k++) {
            float got = ((float *)tutti_ddp_gradient(ddp, i))[k];
            RANKS_CHECK(got == value, "parameter %zu [%zu] is %g, not %g", i, k, (double)got, (double)value);
        }
    return TUTTI_OK;
}

static tutti_status accumulate(ranks_context *context) {
    const float own = (float)(1 << context->rank), sum = (float)((1 << context->nranks) - 1);
    model *m = model_create(context->rank);
    tutti_ddp_statistics statistics;
    tutti_ddp *ddp;
    tutti_ddp_options options = TUTTI_DDP_OPTIONS(.bucket_bytes = 300, .sums = 1);
    TUTTI_TRY(tutti_ddp_create(context->comm, m->parameters, NPARAMETERS, &options, &ddp));
    TUTTI_TRY(expect_everywhere(ddp, 0));
    for (int round = 0; round < 3; round++) { /* the first step lays buckets out anew */
        TUTTI_TRY(tutti_ddp_set_sync(ddp, 0));
        TUTTI_TRY(add_step(ddp, own));
        TUTTI_TRY(expect_everywhere(ddp, own));
        TUTTI_TRY(add_step(ddp, own));
        TUTTI_TRY(tutti_ddp_set_sync(ddp, 1));
        TUTTI_TRY(add_step(ddp, own));
        TUTTI_TRY(expect_everywhere(ddp, 3 * sum));
        TUTTI_TRY(tutti_ddp_zero(ddp));
        TUTTI_TRY(expect_everywhere(ddp, 0));
    }
    TUTTI_TRY(tutti_ddp_get_statistics(ddp, &statistics));
    RANKS_CHECK(statistics.steps == 3, "%d steps", (int)statistics.steps);
    tutti_ddp_destroy(ddp);
    free(m);
    return TUTTI_OK;
}

Test(ddp, steps_without_sync_accumulate_and_the_next_sums_them_up) {
    run_modes(worlds, RANKS_THREADS, accumulate, NULL);
}

/* Half of a model's gradients, made ready by a thread of its own. */
typedef struct half {
    tutti_ddp *ddp;
    size_t first;
    tutti_status status;
} half;

static void *ready_half(void *argument) {
    half *mine = argument;
    for (size_t i = mine->first; i < NPARAMETERS && mine->status == TUTTI_OK; i += 2) {
        float *view = tutti_ddp_gradient(mine->ddp, i);
        for (size_t k = 0; k < counts[i]; k++) view[k] = (float)i;
        mine->status = tutti_ddp_ready(mine->ddp, i);
    }
    return NULL;
}

static tutti_status use_two_threads(ranks_context *context) {
    model *m = model_create(context->rank);
    tutti_ddp *ddp;
    TUTTI_TRY(
        tutti_ddp_create(context->comm, m->parameters, NPARAMETERS, &TUTTI_DDP_OPTIONS(.bucket_bytes = 256), &ddp));
    for (int step = 0; step < 20; step++) {
        half odd = {.ddp = ddp, .first = 1}, even = {.ddp = ddp, .first = 0};
        pthread_t thread;
        RANKS_CHECK(pthread_create(&thread, NULL, ready_half, &odd) == 0, "no thread");
        ready_half(&even);
        pthread_join(thread, NULL);
        RANKS_CHECK(odd.status == TUTTI_OK && even.status == TUTTI_OK, "%d, %d", odd.status, even.status);
        TUTTI_TRY(tutti_ddp_finish(ddp));
        for (size_t i = 0; i < NPARAMETERS; i++)
            for (size_t k = 0; k < counts[i]; k++)
                RANKS_CHECK(((float *)tutti_ddp_gradient(ddp, i))[k] == (float)i, "parameter %zu, step %d", i, step);
    }
    tutti_ddp_destroy(ddp);
    free(m);
    return TUTTI_OK;
}

Test(ddp, gradients_may_become_ready_on_several_threads) {
    run_modes(worlds, RANKS_THREADS, use_two_threads, NULL);
}

static tutti_status mix_types(ranks_context *context) {
    enum { COUNT = 100 };
    static const tutti_type types[] = {TUTTI_FLOAT32, TUTTI_FLOAT64, TUTTI_BFLOAT16, TUTTI_FLOAT32, TUTTI_INT32};
    double data[5][COUNT] = {{0}};
    tutti_ddp_parameter parameters[5];
    for (int i = 0; i < 5; i++) parameters[i] = (tutti_ddp_parameter){"mixed", data[i], COUNT, types[i]};
    tutti_ddp *ddp;
    tutti_ddp_statistics statistics;
    TUTTI_TRY(tutti_ddp_create(context->comm, parameters, 5, NULL, &ddp));
    TUTTI_TRY(tutti_ddp_get_statistics(ddp, &statistics));
    RANKS_CHECK(statistics.buckets == 4, "%zu buckets for four types", statistics.buckets);
    const int n = context->nranks;
    for (int step = 0; step < 3; step++) {
        for (int at = 0; at < 5; at++) {
            const size_t i = (size_t)((at * 2 + context->rank + step) % 5);
            void *view = tutti_ddp_gradient(ddp, i);
            /* The average of 2 * rank is n - 1, exact in all of these types. */
            for (int k = 0; k < COUNT; k++) {
                float value = (float)(2 * context->rank);
                uint32_t bits;
                memcpy(&bits, &value, sizeof bits);
                if (types[i] == TUTTI_FLOAT32) ((float *)view)[k] = value;
                if (types[i] == TUTTI_FLOAT64) ((double *)view)[k] = (double)value;
                if (types[i] == TUTTI_BFLOAT16) ((uint16_t *)view)[k] = (uint16_t)(bits >> 16);
                if (types[i] == TUTTI_INT32) ((int32_t *)view)[k] = 2 * context->rank;
            }
            TUTTI_TRY(tutti_ddp_ready(ddp, i));
        }
        TUTTI_TRY(tutti_ddp_finish(ddp));
        for (int k = 0; k < COUNT; k++) {
            float value = (float)(n - 1);
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            RANKS_CHECK(((float *)tutti_ddp_gradient(ddp, 3))[k] == value, "float32");
            RANKS_CHECK(((double *)tutti_ddp_gradient(ddp, 1))[k] == (double)value, "float64");
            RANKS_CHECK(((uint16_t *)tutti_ddp_gradient(ddp, 2))[k] == bits >> 16, "bfloat16");
            RANKS_CHECK(((int32_t *)tutti_ddp_gradient(ddp, 4))[k] == n - 1, "int32");
        }
    }
    tutti_ddp_destroy(ddp);
    return TUTTI_OK;
}

Test(ddp, gradients_of_several_types_share_no_bucket_and_all_arrive) {
    run_modes(worlds, RANKS_THREADS, mix_types, NULL);
}
