/*
 * Training with the DDP engine: n ranks train like one rank on the whole batch, and the statistics report what
 * happened.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tutti/ddp.h>

#include "tests/support/modes.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

static const int worlds[] = {1, 2, 3, 4, 0};

/* y = W x + b, mean squared error over a batch of 12 samples; a rank takes every nranks-th. */
enum { INPUTS = 7, OUTPUTS = 5, BATCH = 12, STEPS = 8 };

typedef struct linear {
    float weight[OUTPUTS * INPUTS], bias[OUTPUTS];
} linear;

static float sample_value(int step, int sample, int k) {
    return (float)(reference_hash((uint64_t)step, (uint64_t)sample, (uint64_t)k) % 2001) / 1000.0f - 1.0f;
}

/* The gradient's mean over samples first, first + stride, ... */
static void linear_gradient(const linear *at, int step, int first, int stride, float *weight, float *bias) {
    memset(weight, 0, sizeof at->weight);
    memset(bias, 0, sizeof at->bias);
    const float share = (float)stride / BATCH;
    for (int sample = first; sample < BATCH; sample += stride)
        for (int o = 0; o < OUTPUTS; o++) {
            float error = at->bias[o] - sample_value(step, sample, 100 + o);
            for (int i = 0; i < INPUTS; i++) error += at->weight[o * INPUTS + i] * sample_value(step, sample, i);
            for (int i = 0; i < INPUTS; i++) weight[o * INPUTS + i] += share * error * sample_value(step, sample, i);
            bias[o] += share * error;
        }
}

static void linear_update(linear *at, const float *weight, const float *bias) {
    for (int k = 0; k < OUTPUTS * INPUTS; k++) at->weight[k] -= 0.1f * weight[k];
    for (int k = 0; k < OUTPUTS; k++) at->bias[k] -= 0.1f * bias[k];
}

static tutti_status follow_one_rank(ranks_context *context) {
    linear here = {.weight = {0}}, alone = {.weight = {0}}, gradient;
    for (int k = 0; k < OUTPUTS * INPUTS; k++) alone.weight[k] = sample_value(99, 0, k);
    if (context->rank == 0) here = alone; /* other ranks get it from rank 0 */
    const tutti_ddp_parameter parameters[] = {{"weight", here.weight, OUTPUTS * INPUTS, TUTTI_FLOAT32},
                                              {"bias", here.bias, OUTPUTS, TUTTI_FLOAT32}};
    tutti_ddp *ddp;
    TUTTI_TRY(tutti_ddp_create(context->comm, parameters, 2, NULL, &ddp));
    RANKS_CHECK(memcmp(&here, &alone, sizeof here) == 0, "the parameters are not those of rank 0");
    for (int step = 0; step < STEPS; step++) {
        float *weight = tutti_ddp_gradient(ddp, 0), *bias = tutti_ddp_gradient(ddp, 1);
        linear_gradient(&here, step, context->rank, context->nranks, weight, bias);
        TUTTI_TRY(tutti_ddp_ready(ddp, 1));
        TUTTI_TRY(tutti_ddp_ready(ddp, 0));
        TUTTI_TRY(tutti_ddp_finish(ddp));
        linear_update(&here, tutti_ddp_gradient(ddp, 0), tutti_ddp_gradient(ddp, 1));
        linear_gradient(&alone, step, 0, 1, gradient.weight, gradient.bias);
        linear_update(&alone, gradient.weight, gradient.bias);
    }
    for (int k = 0; k < OUTPUTS * INPUTS; k++)
        RANKS_CHECK(fabsf(here.weight[k] - alone.weight[k]) < 1e-5f, "weight %d: %g, alone %g", k,
                    (double)here.weight[k], (double)alone.weight[k]);
    tutti_ddp_destroy(ddp);
    return TUTTI_OK;
}

Test(ddp_training, n_ranks_train_like_one_rank_on_the_whole_batch) {
    run_modes(worlds, RANKS_THREADS, follow_one_rank, NULL);
}

static tutti_status look_at_statistics(ranks_context *context) {
    enum { COUNT = 300000, ROUNDS = 4 };
    float *data[2] = {calloc(COUNT, sizeof(float)), calloc(COUNT, sizeof(float))};
    const tutti_ddp_parameter parameters[] = {{"a", data[0], COUNT, TUTTI_FLOAT32},
                                              {"b", data[1], COUNT, TUTTI_FLOAT32}};
    tutti_ddp *ddp;
    tutti_ddp_statistics s;
    TUTTI_TRY(tutti_ddp_create(context->comm, parameters, 2, NULL, &ddp));
    for (int step = 0; step < ROUNDS; step++) {
        TUTTI_TRY(tutti_ddp_ready(ddp, 1));
        usleep(20000);
        TUTTI_TRY(tutti_ddp_ready(ddp, 0));
        TUTTI_TRY(tutti_ddp_finish(ddp));
    }
    TUTTI_TRY(tutti_ddp_get_statistics(ddp, &s));
    /* A first bucket of 1 MiB cannot hold 1.2 MB and anything else. */
    RANKS_CHECK(s.buckets == 2 && s.bytes == 2 * COUNT * sizeof(float), "%zu buckets, %zu bytes", s.buckets, s.bytes);
    RANKS_CHECK(s.compute_ns >= ROUNDS * INT64_C(20000000), "compute took %lld ns", (long long)s.compute_ns);
    RANKS_CHECK(s.communication_ns > 0 && s.exposed_ns > 0, "communication %lld ns, exposed %lld ns",
                (long long)s.communication_ns, (long long)s.exposed_ns);
    RANKS_CHECK(s.overlapped == (context->nranks > 1 && strcmp(getenv("TUTTI_CPUS"), "64") == 0), "overlapped: %d",
                s.overlapped);
    /* Inside finish, the time of finish contains all communication. */
    RANKS_CHECK(s.overlapped || s.exposed_ns >= s.communication_ns, "exposed %lld ns of %lld", (long long)s.exposed_ns,
                (long long)s.communication_ns);
    tutti_ddp_destroy(ddp);
    free(data[0]), free(data[1]);
    return TUTTI_OK;
}

Test(ddp_training, statistics_report_what_happened) {
    static const int sizes[] = {1, 2, 0};
    run_modes(sizes, RANKS_THREADS, look_at_statistics, NULL);
}
