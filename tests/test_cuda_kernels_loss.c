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
        for (size_t e = 0; e < count; e++) logits[e] = roundf(logits[e] * 20) / 2; /* equals among them */
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

typedef struct piece_arrays {
    size_t count;
    float *gradient, *states[2], *states_expected[2], *parameter, *parameter_expected;
} piece_arrays;

enum { PIECES = 70 }; /* more than one launch takes */

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
    adam.weight_decay = 0; /* of pieces that do not decay, with the factors of those that do */
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
