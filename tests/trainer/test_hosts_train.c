/*
 * tutti-train computes the same losses on ranks of two hosts as on one.
 *
 * A sum of two has only one order, so with one rank on each host all digits are equal. With four ranks the order
 * differs: it is host by host. Then the parameters after the first step differ by rounding, since the gradients that
 * are added up are the same; and so does the second loss, which is a continuous function of them. From then on
 * LeNet's losses may differ (tests/support/training/training.h), so runs of many steps use the MLP.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp/trainer/checkpoint/safetensors.h"
#include "tests/support/hosts/hosts.h"
#include "tests/support/programs/shell.h"
#include "tests/support/training/files.h"
#include "tests/support/training/training.h"

enum { MOST_LOSSES = 32 };

/* The output of tutti-train: lines with step and loss. */
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
    char command[512], output[32];
    int wait_status = 0;
    snprintf(command, sizeof command, "exec %s/bin/tutti-train %s", getenv("TUTTI_BUILD"),
             (const char *)context->argument);
    snprintf(output, sizeof output, "hosts-%d", context->rank);
    pid_t child = fork();
    if (child == 0) {
        int file = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        dup2(file, STDOUT_FILENO);
        dup2(file, STDERR_FILENO);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    RANKS_CHECK(child > 0 && waitpid(child, &wait_status, 0) == child, "cannot start tutti-train");
    RANKS_CHECK(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0, "tutti-train ended with status %#x",
                (unsigned)wait_status);
    return TUTTI_OK;
}

static void make_data(void) {
    shell_enter_folder();
    files_write_mnist(".", 300, 20);
}

TestSuite(hosts_train, .init = make_data, .fini = shell_leave_folder);

static void train_on_one_host(int nranks, const char *options, losses *found) {
    cr_assert_eq(shell_run("$T --standalone --no-prefix --nproc-per-node %d $TUTTI_BUILD/bin/tutti-train "
                           "--data . --device host --log-every 1 %s >one-host",
                           nranks, options),
                 0, "%s", shell_output);
    *found = read_losses("one-host");
}

static void train_on_two_hosts(int ranks_per_host, const char *options, losses *found) {
    char all[256];
    snprintf(all, sizeof all, "--data . --device host --log-every 1 %s", options);
    const char *failure = hosts_run(&(hosts_options){.ranks_per_host = (const int[]){ranks_per_host, ranks_per_host, 0},
                                                     .no_comm = true,
                                                     .timeout_s = 90,
                                                     .argument = all},
                                    train);
    shell_run("cat hosts-*");
    cr_assert(failure == NULL, "%s\n%s", failure, shell_output);
    *found = read_losses("hosts-0");
}

static void expect_losses(int count, const losses *one, const losses *two, double tolerance) {
    cr_assert(one->n == count && two->n == count, "%d and %d losses instead of %d", one->n, two->n, count);
    for (int i = 0; i < count; i++)
        cr_assert(one->steps[i] == i + 1 && two->steps[i] == i + 1 &&
                      fabs(one->values[i] - two->values[i]) <= tolerance * (1 + one->values[i]),
                  "step %d: %.10f on one host, %.10f on two", i + 1, one->values[i], two->values[i]);
}

Test(hosts_train, two_hosts_with_one_rank_each_have_every_digit_of_one_host) {
    const char *options = "--model lenet --batch-size 8 --steps 21";
    losses one, two;
    HOSTS_NEED(0);
    train_on_one_host(2, options, &one);
    train_on_two_hosts(1, options, &two);
    expect_losses(21, &one, &two, 0);
}

/* Largest difference of two arrays. */
static double most_difference(const tutti_safetensors_entry *a, const float *b) {
    double most = 0;
    for (size_t i = 0; i < a->count; i++) most = fmax(most, fabs((double)a->data[i] - (double)b[i]));
    return most;
}

static double most_value(const tutti_safetensors_entry *a) {
    double most = 0;
    for (size_t i = 0; i < a->count; i++) most = fmax(most, fabs((double)a->data[i]));
    return most;
}

static void read_parameters(const char *folder, tutti_safetensors *content_out) {
    char path[FILES_PATH_BYTES];
    files_join(folder, "step-00000001.safetensors", path);
    cr_assert_eq(tutti_safetensors_read(path, content_out), TUTTI_OK, "%s", tutti_last_error());
}

/* p - lr * (g0 + g1 + g2 + g3) / 4: both ways to compute it round the parameter by up to 2^-24 of it, and by up to
 * 2^-24 of lr * (|g0| + ... + |g3|) / 4 four times: in three sums and a product. The size of the latter is not known;
 * it is at most eight times the largest step in its tensor, unless gradients cancel in the whole tensor. */
static void check_parameters(void) {
    const double unit = 0x1p-24;
    tutti_safetensors before, one, two;
    int parameters = 0;
    read_parameters("before", &before);
    read_parameters("after-one", &one);
    read_parameters("after-two", &two);
    for (int i = 0; i < before.nentries; i++) {
        const tutti_safetensors_entry *entry = &before.entries[i];
        const tutti_safetensors_entry *a = tutti_safetensors_find(&one, entry->name);
        const tutti_safetensors_entry *b = tutti_safetensors_find(&two, entry->name);
        cr_assert(a != NULL && b != NULL && a->count == entry->count && b->count == entry->count, "%s", entry->name);
        if (strchr(entry->name, '/') != NULL) continue; /* the optimizer's */
        double step = most_difference(entry, a->data), bound = 2 * unit * most_value(a) + 8 * 8 * unit * step;
        cr_assert(step > 1e-4, "%s has not moved: %g", entry->name, step);
        cr_assert(most_difference(a, b->data) <= bound, "%s differs by %g after a step of %g; bound %g", entry->name,
                  most_difference(a, b->data), step, bound);
        parameters++;
    }
    cr_assert_eq(parameters, 8);
    tutti_safetensors_close(&before), tutti_safetensors_close(&one), tutti_safetensors_close(&two);
}

Test(hosts_train, two_hosts_with_two_ranks_each_make_the_first_step_of_one_host) {
    losses one, two;
    HOSTS_NEED(0);
    train_on_one_host(4, "--batch-size 8 --steps 1 --lr 0 --checkpoint-dir before", &one);
    train_on_one_host(4, "--batch-size 8 --steps 1 --checkpoint-dir after-one", &one);
    train_on_two_hosts(2, "--batch-size 8 --steps 1 --checkpoint-dir after-two", &two);
    expect_losses(1, &one, &two, 1e-10); /* the last digit printed */
    check_parameters();
    train_on_one_host(4, "--batch-size 8 --steps 2", &one);
    train_on_two_hosts(2, "--batch-size 8 --steps 2", &two);
    expect_losses(2, &one, &two, TRAINING_ROUNDING);
}

/* If a rounding moves a value of the MLP's ReLU over 0, one unit lacks one of 32 samples, and a loss changes by less
 * than 1e-4. */
Test(hosts_train, two_hosts_with_two_ranks_each_have_the_losses_of_one_host) {
    const char *options = "--model mlp --batch-size 8 --steps 21 --lr 0.01";
    losses one, two;
    HOSTS_NEED(0);
    train_on_one_host(4, options, &one);
    train_on_two_hosts(2, options, &two);
    expect_losses(21, &one, &two, 1e-4);
}
