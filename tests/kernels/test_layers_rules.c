/*
 * Random numbers and optimizers, compiled in double: known answers, moments, closed forms.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/optimizer.h"
#include "kernels/random.h"

/* ---------------------------------------------------------------------------------------------- random */

Test(random, philox_gives_the_known_answers_of_random123) {
    static const struct {
        uint64_t seed, stream, index;
        uint32_t words[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {UINT64_C(0x299f31d0a4093822),
         UINT64_C(0x0370734413198a2e),
         UINT64_C(0x85a308d3243f6a88),
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t words[4];
        tutti_random_block(known[i].seed, known[i].stream, known[i].index, words);
        for (int w = 0; w < 4; w++) cr_assert_eq(words[w], known[i].words[w], "case %zu word %d: %08x", i, w, words[w]);
    }
}

Test(random, truncated_normal_has_its_moments_and_bounds) {
    enum { COUNT = 200000 };
    const double stddev = 0.1, inside = 0.87962566103423978; /* of the unit normal truncated at two */
    double *data = malloc(COUNT * sizeof *data);
    tutti_random_truncated_normal(3, tutti_random_stream(TUTTI_RANDOM_INITIALIZER, 1, 0), stddev, COUNT, data);
    double sum = 0, squares = 0, beyond_one = 0;
    for (int i = 0; i < COUNT; i++) {
        cr_assert(fabs(data[i]) <= 2 * stddev);
        sum += data[i];
        squares += data[i] * data[i];
        beyond_one += fabs(data[i]) > stddev;
    }
    double deviation = stddev * inside;
    cr_assert(fabs(sum / COUNT) < 5 * deviation / sqrt(COUNT), "mean %g", sum / COUNT);
    cr_assert(fabs(sqrt(squares / COUNT) - deviation) < 0.005 * deviation, "deviation %g", sqrt(squares / COUNT));
    /* P(1 < |z| < 2) / P(|z| < 2) */
    cr_assert(fabs(beyond_one / COUNT - 0.284737) < 0.006, "share beyond one deviation: %g", beyond_one / COUNT);
    free(data);
}

Test(random, streams_and_seeds_differ_and_repeat) {
    double a[8], b[8], c[8], d[8];
    tutti_random_truncated_normal(1, 5, 1, 8, a);
    tutti_random_truncated_normal(1, 5, 1, 8, b);
    tutti_random_truncated_normal(1, 6, 1, 8, c);
    tutti_random_truncated_normal(2, 5, 1, 8, d);
    cr_assert_arr_eq(a, b, sizeof a);
    for (int i = 0; i < 8; i++) cr_assert(a[i] != c[i] && a[i] != d[i]);
}

/* ------------------------------------------------------------------------------------------ optimizers */

/* Constant gradient g, no decay: after n steps velocity is g (1 - m^n) / (1 - m), and the parameter has moved by
 * -lr g (n - m (1 - m^n) / (1 - m)) / (1 - m). */
Test(sgd, momentum_follows_its_closed_form) {
    double gradient[3] = {1, -0.5, 0}, velocity[3] = {0, 0, 0}, parameter[3] = {2, 3, 4};
    tutti_sgd rule = {.lr = 0.01, .momentum = 0.9};
    const int n = 50;
    for (int i = 0; i < n; i++) tutti_optimizer_sgd(&rule, 3, gradient, velocity, parameter);
    double power = pow(0.9, n), start[3] = {2, 3, 4};
    for (int i = 0; i < 3; i++) {
        double moved = -0.01 * gradient[i] * (n - 0.9 * (1 - power) / 0.1) / 0.1;
        cr_assert(fabs(velocity[i] - gradient[i] * (1 - power) / 0.1) < 1e-12);
        cr_assert(fabs(parameter[i] - (start[i] + moved)) < 1e-12, "%.15g", parameter[i]);
    }
}

/* Nesterov: like a velocity that looks one step ahead. The document's form: lr g + m lr v, with v including this
 * step's gradient. */
Test(sgd, nesterov_adds_the_gradient_once_more) {
    double gradient[2] = {1, -0.5}, velocity[2] = {0, 0}, parameter[2] = {2, 3}, v[2] = {0, 0}, expected[2] = {2, 3};
    tutti_sgd rule = {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
    for (int i = 0; i < 20; i++) {
        tutti_optimizer_sgd(&rule, 2, gradient, velocity, parameter);
        for (int e = 0; e < 2; e++) {
            double g = gradient[e] + 0.1 * expected[e];
            v[e] = 0.9 * v[e] + g;
            expected[e] -= 0.01 * g + 0.9 * 0.01 * v[e];
        }
    }
    for (int e = 0; e < 2; e++) cr_assert(fabs(parameter[e] - expected[e]) < 1e-12 && fabs(velocity[e] - v[e]) < 1e-12);
}

Test(sgd, weight_decay_shrinks_parameters_geometrically) {
    double gradient[2] = {0, 0}, parameter[2] = {2, -3};
    tutti_sgd rule = {.lr = 0.1, .weight_decay = 0.5};
    for (int i = 0; i < 10; i++) tutti_optimizer_sgd(&rule, 2, gradient, NULL, parameter);
    cr_assert(fabs(parameter[0] - 2 * pow(0.95, 10)) < 1e-14 && fabs(parameter[1] + 3 * pow(0.95, 10)) < 1e-14);
}

/* The paper's algorithm for one scalar. */
static double reference_adam(const tutti_adam *rule, const double *gradients, int steps, double parameter) {
    double mean = 0, square = 0;
    for (int t = 1; t <= steps; t++) {
        double g = gradients[t - 1];
        if (rule->decoupled) parameter -= rule->lr * rule->weight_decay * parameter;
        else g += rule->weight_decay * parameter;
        mean = rule->beta_1 * mean + (1 - rule->beta_1) * g;
        square = rule->beta_2 * square + (1 - rule->beta_2) * g * g;
        double mean_hat = mean / (1 - pow(rule->beta_1, t)), square_hat = square / (1 - pow(rule->beta_2, t));
        parameter -= rule->lr * mean_hat / (sqrt(square_hat) + rule->epsilon);
    }
    return parameter;
}

Test(adam, steps_equal_the_papers_algorithm_with_and_without_decoupled_decay) {
    enum { STEPS = 30 };
    double gradients[STEPS];
    for (int i = 0; i < STEPS; i++) gradients[i] = tutti_random_uniform(1, 2, (uint64_t)i) - 0.4;
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        tutti_adam rule = {
            .lr = 0.01, .beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.05, .decoupled = decoupled};
        double parameter = 1.5, mean = 0, square = 0;
        for (int t = 1; t <= STEPS; t++) {
            rule.step = t;
            tutti_optimizer_adam(&rule, 1, &gradients[t - 1], &mean, &square, &parameter);
        }
        double expected = reference_adam(&rule, gradients, STEPS, 1.5);
        cr_assert(fabs(parameter - expected) < 1e-12, "%.15g, expected %.15g", parameter, expected);
    }
}

Test(adam, the_first_step_moves_by_the_learning_rate) {
    double gradient[2] = {1e-3, -40}, mean[2] = {0, 0}, square[2] = {0, 0}, parameter[2] = {0, 0};
    tutti_adam rule = {.lr = 0.01, .beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-12, .step = 1};
    tutti_optimizer_adam(&rule, 2, gradient, mean, square, parameter);
    cr_assert(fabs(parameter[0] + 0.01) < 1e-9 && fabs(parameter[1] - 0.01) < 1e-9);
}
