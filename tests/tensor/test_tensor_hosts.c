/*
 * Global tensors on ranks of two and three hosts: random redistributions against the model in numpy, on every route.
 *
 * Sums of floats are left out where the order counts, which between hosts is not the model's. Each rank of the hosts becomes
 * model_probe, which finds the launcher's variables as under tuttirun.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/hosts.h"

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
        execl(probe, probe, cases, (char *)NULL);
        _exit(127);
    }
    RANKS_CHECK(child > 0 && waitpid(child, &status, 0) == child, "the probe was not started");
    RANKS_CHECK(status == 0, "model_probe ended with %#x (its words are above)", (unsigned)status);
    return TUTTI_OK;
}

static void run_routes(const int *layout) {
    static const char *const plans[] = {"TUTTI_PLAN=", "TUTTI_PLAN=all_reduce,pieces,messages",
                                        "TUTTI_PLAN=reduce_scatter,pieces,all_to_all", "TUTTI_PLAN=all_reduce,shares",
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
