/*
 * The kernels of kernels/cuda for losses, optimizers and random numbers against the host's: see test_cuda_kernels.c.
 */
#include "tests/support/emulated/arrays.h"

Test(loss, gradients_are_the_hosts_and_sums_within_rounding) {
    static const int batches[] = {1, 2, 100, 511, 512, 513, 1500};
    for (size_t i = 0; i < COUNT_OF(batches); i++) {
        size_t count = (size_t)batches[i] * 10;
        float *logits = array(count), *got = unwritten(count), *expected = unwritten(count);
        int32_t *labels = bytes_array((size_t)batches[i] * sizeof *labels);
        for (size_t e = 0; e < count; e++) logits[e] = roundf(logits[e] * 20) / 2; /* some are equal */
        for (int b = 0; b < batches[i]; b++) labels[b] = b * 7 % 10;
        double sums[2] = {1.5, 3}, sums_expected[2] = {1.5, 3};
        tutti_softmax_loss_args args = {.batch = batches[i],
                                        .classes = 10,
                                        .logits = logits,
                                        .labels = labels,
                                        .scale = 0.25f,
                                        .dlogits = expected};
        bool adds = i % 2 == 0;
        tutti_kernels_host.softmax_loss(NULL, &args, adds, sums_expected);
        args.dlogits = got;
        tutti_gpu_softmax_loss(compute, &args, adds, sums);
        expect_same("dlogits", count, got, expected);
        cr_assert_float_eq(sums[0], sums_expected[0], tolerance_of_sums() * (1 + sums_expected[0]));
        cr_assert_eq(sums[1], sums_expected[1]);
        args.dlogits = NULL;
        tutti_gpu_softmax_loss(compute, &args, false, sums);
        FREE(logits, got, expected, labels);
    }
}

/* Some of `all` classes, for both implementations. */
typedef struct parts_case {
    int batch, classes, first, all;
    bool shares, counts; /* labels are distributions; correct answers are counted */
} parts_case;

static tutti_softmax_parts make_parts(const parts_case *c, const float *logits, const int32_t *labels,
                                      const float *shares) {
    const size_t count = (size_t)c->batch;
    return (tutti_softmax_parts){.batch = c->batch,
                                 .classes = c->classes,
                                 .first_class = c->first,
                                 .logits = logits,
                                 .labels = labels,
                                 .distributions = shares,
                                 .all_classes = c->all,
                                 .largest = bytes_array(count * sizeof(double)),
                                 .sums = bytes_array(count * sizeof(double)),
                                 .best = c->counts ? bytes_array(count * sizeof(int32_t)) : NULL};
}

/* Another rank has a larger logit for every third sample. */
static void bring_together(const parts_case *c, tutti_softmax_parts *parts) {
    for (int b = 0; b < c->batch; b += 3) parts->largest[b] += 0.5;
}

static void expect_doubles(const char *what, int count, const double *got, const double *expected) {
    for (int i = 0; i < count; i++)
        cr_assert_float_eq(got[i], expected[i], tolerance_of_sums() * (1 + fabs(expected[i])),
                           "%s[%d]: %.17g, not %.17g", what, i, got[i], expected[i]);
}

static void check_parts(const parts_case *c) {
    const size_t count = (size_t)c->batch * (size_t)c->classes, nshares = (size_t)c->batch * (size_t)c->all;
    float *logits = array(count), *got = unwritten(count), *expected = unwritten(count), *shares = array(nshares);
    int32_t *labels = bytes_array((size_t)c->batch * sizeof *labels);
    for (size_t e = 0; e < count; e++) logits[e] = roundf(logits[e] * 20) / 2; /* some are equal */
    for (size_t e = 0; e < nshares; e++) shares[e] = fmaxf(0, roundf(shares[e] * 4) / 4);
    for (int b = 0; b < c->batch; b++) labels[b] = b * 7 % c->all;
    tutti_softmax_parts on_gpu = make_parts(c, logits, labels, c->shares ? shares : NULL),
                        on_host = make_parts(c, logits, labels, c->shares ? shares : NULL);
    double sums[2] = {1.5, 3}, sums_expected[2] = {1.5, 3};
    tutti_kernels_host.softmax_largest(NULL, &on_host);
    tutti_gpu_softmax_largest(compute, &on_gpu);
    expect_doubles("largest", c->batch, on_gpu.largest, on_host.largest);
    for (int b = 0; b < c->batch && c->counts; b++) cr_assert_eq(on_gpu.best[b], on_host.best[b]);
    bring_together(c, &on_host), bring_together(c, &on_gpu);
    tutti_kernels_host.softmax_sums(NULL, &on_host);
    tutti_gpu_softmax_sums(compute, &on_gpu);
    expect_doubles("sums", c->batch, on_gpu.sums, on_host.sums);
    for (int b = 0; b < c->batch && c->counts; b++) cr_assert_eq(on_gpu.best[b], on_host.best[b]);
    tutti_kernels_host.softmax_losses(NULL, &on_host, 0.25f, expected, c->shares, sums_expected);
    tutti_gpu_softmax_losses(compute, &on_gpu, 0.25f, got, c->shares, sums);
    expect_near("dlogits", count, got, expected, 2e-6); /* the sums have another order */
    expect_doubles("losses", 1, sums, sums_expected);
    cr_assert_eq(sums[1], sums_expected[1], "%g right answers, not %g", sums[1], sums_expected[1]);
    cr_assert(!c->counts || c->batch < 100 || c->all > 20 || sums[1] > 4, "no answer is correct");
    FREE(logits, got, expected, shares, labels, on_gpu.largest, on_gpu.sums, on_host.largest, on_host.sums);
    if (c->counts) FREE(on_gpu.best, on_host.best);
}

Test(loss, parts_of_classes_give_the_hosts_sums_gradients_and_right_answers) {
    static const parts_case cases[] = {
        {1, 1, 0, 1, false, true},      {100, 5, 0, 10, false, true},  {100, 5, 5, 10, false, false},
        {129, 4, 3, 10, true, true},    {100, 3, 7, 10, true, false},  {7, 127, 0, 500, false, true},
        {7, 128, 200, 500, true, true}, {7, 129, 1, 500, false, true}, {3, 1000, 0, 1000, true, true}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) check_parts(&cases[i]);
}

typedef struct piece_arrays {
    size_t count;
    float *gradient, *states[2], *states_expected[2], *parameter, *parameter_expected;
} piece_arrays;

enum { PIECES = 70 }; /* more than one launch processes */

static void make_pieces(piece_arrays *made) {
    static const size_t sizes[] = {0, 1, 3, 4, 5, 1023, 1024, 1025, 5000};
    for (size_t i = 0; i < PIECES; i++) {
        piece_arrays *p = &made[i];
        p->count = sizes[i % COUNT_OF(sizes)];
        p->gradient = array(p->count);
        p->parameter = array(p->count);
        p->parameter_expected = copy_of(p->parameter, p->count);
        for (int s = 0; s < 2; s++) {
            p->states[s] = array(p->count);
            for (size_t e = 0; e < p->count; e++) p->states[s][e] = fabsf(p->states[s][e]);
            p->states_expected[s] = copy_of(p->states[s], p->count);
        }
    }
}

static void check_update(bool adam, const tutti_sgd *sgd_rule, const tutti_adam *adam_rule,
                         const tutti_step_values *values) {
    static piece_arrays arrays[PIECES];
    static tutti_optimizer_piece got[PIECES], expected[PIECES];
    make_pieces(arrays);
    for (int i = 0; i < PIECES; i++) {
        piece_arrays *p = &arrays[i];
        got[i] = (tutti_optimizer_piece){p->count, p->gradient, {p->states[0], p->states[1]}, p->parameter};
        expected[i] = (tutti_optimizer_piece){
            p->count, p->gradient, {p->states_expected[0], p->states_expected[1]}, p->parameter_expected};
    }
    if (adam) {
        tutti_kernels_host.adam(NULL, adam_rule, values, expected, PIECES);
        tutti_gpu_adam(compute, adam_rule, values, got, PIECES);
    } else {
        tutti_kernels_host.sgd(NULL, sgd_rule, values, expected, PIECES);
        tutti_gpu_sgd(compute, sgd_rule, values, got, PIECES);
    }
    for (int i = 0; i < PIECES; i++) {
        piece_arrays *p = &arrays[i];
        expect_same("parameter", p->count, p->parameter, p->parameter_expected);
        for (int s = 0; s < 2; s++) expect_same("state", p->count, p->states[s], p->states_expected[s]);
        FREE(p->gradient, p->parameter, p->parameter_expected, p->states[0], p->states[1], p->states_expected[0],
             p->states_expected[1]);
    }
}

Test(optimizer, all_rules_are_the_hosts_on_many_arrays_at_once) {
    tutti_adam adam = {.lr = 0.01, .beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1, .step = 3};
    tutti_step_values values = {.lr = 0.05f, .adam = tutti_optimizer_adam_factors(&adam)};
    check_update(false, &(tutti_sgd){.momentum = 0}, NULL, &values);
    check_update(false, &(tutti_sgd){.momentum = 0.9, .weight_decay = 0.01}, NULL, &values);
    check_update(false, &(tutti_sgd){.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}, NULL, &values);
    check_update(true, NULL, &adam, &values);
    adam.decoupled = true;
    values.adam = tutti_optimizer_adam_factors(&adam);
    check_update(true, NULL, &adam, &values);
    adam.weight_decay = 0; /* elements of pieces without decay, with the factors of pieces with decay */
    check_update(true, NULL, &adam, &values);
}

Test(random, truncated_normal_deviates_are_the_hosts) {
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        tutti_normal normal = {.seed = 3, .stream = tutti_random_stream(TUTTI_RANDOM_INITIALIZER, 2, 0), .stddev = 0.1};
        float *got = unwritten(counts[i]), *expected = unwritten(counts[i]);
        tutti_random_truncated_normal(normal.seed, normal.stream, normal.stddev, counts[i], expected);
        tutti_gpu_truncated_normal(compute, &normal, counts[i], got);
        expect_same("deviates", counts[i], got, expected);
        FREE(got, expected);
    }
}
