/*
 * Global tensors on ranks of two and three hosts: random redistributions against the model in numpy, on every route;
 * and checks that predictions of plans are equal on all ranks, and depend on hosts.
 *
 * Excludes sums of floats whose result depends on the order, because between hosts it differs from the model's. Each
 * rank of the hosts executes model_probe, which reads the launcher's variables as under tuttirun.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/tensor.h>

#include "tests/support/hosts/hosts.h"

enum { SKIPPED = 77 };

static char cases[64], probe[512];

static void write_cases(void) {
    char command[1024];
    const char *build = getenv("TUTTI_BUILD"), *source = getenv("TUTTI_SOURCE");
    cr_assert(build != NULL && source != NULL, "run it by ctest, or set TUTTI_BUILD and TUTTI_SOURCE");
    snprintf(probe, sizeof probe, "%s/tests/model_probe", build);
    snprintf(cases, sizeof cases, "/tmp/tutti-cases-XXXXXX");
    int file = mkstemp(cases);
    cr_assert_geq(file, 0);
    close(file);
    snprintf(
        command, sizeof command,
        "'%s/tests/support/with_numpy' '%s/tests/tensor/model.py' cases --any-order --world 4 --seed 4 --count 400 >%s",
        source, source, cases);
    int status = system(command);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) cr_skip_test("no numpy");
    cr_assert_eq(status, 0, "the cases could not be written");
}

static void remove_cases(void) {
    unlink(cases);
}

static tutti_status become_probe(ranks_context *context) {
    int status;
    (void)context;
    pid_t child = fork();
    if (child == 0) {
        execl(probe, probe, cases, "works", (char *)NULL);
        _exit(127);
    }
    RANKS_CHECK(child > 0 && waitpid(child, &status, 0) == child, "the probe was not started");
    RANKS_CHECK(status == 0, "model_probe ended with %#x (its words are above)", (unsigned)status);
    return TUTTI_OK;
}

static void run_routes(const int *layout) {
    static const char *const plans[] = {"TUTTI_PLAN=",
                                        "TUTTI_PLAN=pieces,reads",
                                        "TUTTI_PLAN=all_reduce,pieces,messages",
                                        "TUTTI_PLAN=reduce_scatter,pieces,all_to_all",
                                        "TUTTI_PLAN=all_reduce,shares",
                                        "TUTTI_PLAN=reduce_scatter,shares,messages"};
    HOSTS_NEED(0);
    write_cases();
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        const char *environment[] = {plans[i], NULL};
        const char *failure = hosts_run(
            &(hosts_options){.ranks_per_host = layout, .no_comm = true, .timeout_s = 100, .environment = environment},
            become_probe);
        cr_assert(failure == NULL, "%s: %s", plans[i], failure);
    }
}

TestSuite(tensor_hosts, .timeout = 600, .fini = remove_cases);

Test(tensor_hosts, two_ranks_on_each_of_two_hosts) {
    run_routes((const int[]){2, 2, 0});
}

Test(tensor_hosts, one_rank_on_one_host_and_three_on_another) {
    run_routes((const int[]){1, 3, 0});
}

Test(tensor_hosts, three_hosts) {
    run_routes((const int[]){1, 2, 1, 0});
}

/* --------------------------------------------------------------------------------------------- predictions */

/* Checks that the predictions of plan and layouts are the same on all ranks. */
static tutti_status predict(ranks_context *context, tutti_placement *placement, const char *from, const char *to,
                            double *us_out) {
    tutti_sbp sbp[2][2];
    tutti_plan *plan;
    tutti_plan_details details;
    int naxes;
    double us[2], least[2], most[2];
    int64_t shape[2] = {1024, 256};
    TUTTI_TRY(tutti_sbp_parse(from, sbp[0], 2, &naxes));
    TUTTI_TRY(tutti_sbp_parse(to, sbp[1], 2, &naxes));
    tutti_layout src = TUTTI_LAYOUT(.placement = placement, .sbp = sbp[0], .type = TUTTI_FLOAT32, .ndims = 2,
                                    .shape = shape),
                 dst = src;
    dst.sbp = sbp[1];
    TUTTI_TRY(tutti_plan_create(&src, &dst, 1, &plan));
    TUTTI_TRY(tutti_plan_get(plan, &details));
    tutti_plan_destroy(plan);
    us[0] = details.predicted_us;
    TUTTI_TRY(tutti_layout_predict(&src, &dst, &us[1]));
    TUTTI_TRY(tutti_all_reduce(context->comm, us, least, 2, TUTTI_FLOAT64, TUTTI_MIN, NULL));
    TUTTI_TRY(tutti_all_reduce(context->comm, us, most, 2, TUTTI_FLOAT64, TUTTI_MAX, NULL));
    RANKS_CHECK(memcmp(least, most, sizeof least) == 0 && least[0] == least[1], "%s to %s: %g to %g us, %g to %g us",
                from, to, least[0], most[0], least[1], most[1]);
    *us_out = us[0];
    return TUTTI_OK;
}

/* Axis 0 is the hosts, axis 1 the ranks of one host. */
static tutti_status compare_hosts(ranks_context *context) {
    static const char *const pairs[][2] = {
        {"S0,S1", "S1,S0"}, {"S0,S1", "B,B"}, {"P(sum),P(sum)", "B,B"}, {"P(sum),S0", "S0,B"}, {"B,P(sum)", "S0,S1"}};
    tutti_placement *grid;
    double near, far, us = 0;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){2, 2}, 2, &grid));
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        TUTTI_TRY(predict(context, grid, pairs[i][0], pairs[i][1], &us));
        RANKS_CHECK(us > 0, "%s to %s takes nothing", pairs[i][0], pairs[i][1]);
    }
    TUTTI_TRY(predict(context, grid, "B,S0", "B,B", &near));
    TUTTI_TRY(predict(context, grid, "S0,B", "B,B", &far));
    RANKS_CHECK(near < far, "an all_gather within hosts is predicted to take %g us, between them %g", near, far);
    TUTTI_TRY(predict(context, grid, "S0,B", "S1,B", &far));
    TUTTI_TRY(predict(context, grid, "B,S0", "B,S1", &near));
    RANKS_CHECK(near < far, "an exchange within hosts is predicted to take %g us, between them %g", near, far);
    tutti_placement_destroy(grid);
    return TUTTI_OK;
}

Test(tensor_hosts, predictions_are_equal_on_all_ranks_and_depend_on_hosts) {
    HOSTS_NEED(0);
    const char *failure = hosts_run(&(hosts_options){.ranks_per_host = (const int[]){2, 2, 0}}, compare_hosts);
    cr_assert(failure == NULL, "%s", failure);
}
