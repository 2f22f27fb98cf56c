/*
 * tutti-train on ranks of two hosts finds the losses that it finds on one. Sums are taken in another order there (host by
 * host), so the last digits may differ.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/hosts.h"
#include "tests/support/shell.h"

#define ARGUMENTS "--model", "lenet", "--batch-size", "8", "--steps", "21", "--log-every", "5"
#define COMMAND   "--model lenet --batch-size 8 --steps 21 --log-every 5"

enum { MOST_LOSSES = 16 };

/* What tutti-train has printed: step and loss, in lines of their own. */
typedef struct losses {
    int n, steps[MOST_LOSSES];
    double values[MOST_LOSSES];
} losses;

static losses read_losses(const char *path) {
    losses found = {0};
    char line[256], rest;
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL && found.n < MOST_LOSSES)
        if (sscanf(line, "%d %lf %c", &found.steps[found.n], &found.values[found.n], &rest) == 2) found.n++;
    if (file != NULL) fclose(file);
    return found;
}

static tutti_status train(ranks_context *context) {
    char program[512], output[32];
    int wait_status = 0;
    snprintf(program, sizeof program, "%s/bin/tutti-train", getenv("TUTTI_BUILD"));
    snprintf(output, sizeof output, "hosts-%d", context->rank);
    pid_t child = fork();
    if (child == 0) {
        int file = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        dup2(file, STDOUT_FILENO);
        dup2(file, STDERR_FILENO);
        execl(program, "tutti-train", ARGUMENTS, (char *)NULL);
        _exit(127);
    }
    RANKS_CHECK(child > 0 && waitpid(child, &wait_status, 0) == child, "no process for tutti-train");
    RANKS_CHECK(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0, "tutti-train ended with status %#x",
                (unsigned)wait_status);
    return TUTTI_OK;
}

Test(hosts_train, two_hosts_of_two_ranks_find_the_losses_of_one_host, .init = shell_enter_folder,
     .fini = shell_leave_folder) {
    HOSTS_NEED(0);
    unsetenv("TUTTI_DATA");
    cr_assert_eq(
        shell_run("$T --standalone --no-prefix --nproc-per-node 4 $TUTTI_BUILD/bin/tutti-train " COMMAND " >one-host"),
        0, "%s", shell_output);
    const char *failure =
        hosts_run(&(hosts_options){.ranks_per_host = (const int[]){2, 2, 0}, .no_comm = true, .timeout_s = 90}, train);
    shell_run("cat hosts-*");
    cr_assert(failure == NULL, "%s\n%s", failure, shell_output);
    losses one = read_losses("one-host"), two = read_losses("hosts-0");
    cr_assert(one.n >= 5 && one.n == two.n, "%d and %d losses:\n%s", one.n, two.n, shell_output);
    for (int i = 0; i < one.n; i++)
        cr_assert(one.steps[i] == two.steps[i] && fabs(one.values[i] - two.values[i]) < 1e-4 * one.values[i],
                  "step %d: %.10f on one host, %.10f on two", one.steps[i], one.values[i], two.values[i]);
}
