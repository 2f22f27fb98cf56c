/*
 * How the real module finds CUDA, with a fake driver (support/fake_driver.c): the error for a driver that is too old,
 * and that the module only checks whether the process uses CUDA, and never starts it.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/device.h"
#include "tests/support/programs/shell.h"

TestSuite(device_driver, .timeout = 60);

#define FAKE       "LD_LIBRARY_PATH=$TUTTI_BUILD/tests/fake_driver "
#define TUTTI_INFO "$TUTTI_BUILD/bin/tutti-info"

static void *load_fake(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/fake_driver/libcuda.so.1", getenv("TUTTI_BUILD"));
    void *library = dlopen(path, RTLD_NOW);
    cr_assert_not_null(library, "%s", dlerror());
    return library;
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    cr_assert_not_null(found, "%s", name);
    return found;
}

Test(device_driver, a_driver_that_is_too_old_is_named_with_the_version_needed, .init = shell_enter_folder,
     .fini = shell_leave_folder) {
    cr_assert_eq(shell_run("FAKE_DRIVER_VERSION=9020 " FAKE TUTTI_INFO), 0, "%s", shell_output);
    HAS("CUDA                       no: the driver is for CUDA 9.2, this build needs one for 1");
    HAS(".0 or later: update it, or build with an older nvcc\n");
}

Test(device_driver, a_driver_without_a_gpu_is_reported_in_its_own_words, .init = shell_enter_folder,
     .fini = shell_leave_folder) {
    cr_assert_eq(shell_run("FAKE_DRIVER_VERSION=99010 " FAKE TUTTI_INFO), 0, "%s", shell_output);
    HAS("CUDA                       no: the driver (for CUDA 99.1) reports: ");
}

Test(device_driver, a_context_made_by_other_code_is_seen_and_cuda_is_not_started) {
    void (*set_context)(bool), *library, *found;
    bool (*was_started)(void);
    tutti_device_place place;
    int on_stack = 0, ended = 0;
    for (int i = 0; i < 100; i++) cr_assert_null(tutti_device_in_use());
    library = load_fake();
    found = symbol(library, "fake_driver_context"), memcpy(&set_context, &found, sizeof found);
    found = symbol(library, "fake_driver_was_started"), memcpy(&was_started, &found, sizeof found);
    for (int i = 0; i < 10; i++, usleep(2000)) cr_assert_null(tutti_device_in_use(), "there is no context yet");
    set_context(true);
    usleep(10000); /* creating a context takes longer */
    const tutti_device *device = tutti_device_in_use();
    cr_assert_not_null(device);
    cr_assert_eq(device->locate((char *)symbol(library, "fake_driver_memory") + 100, &place), TUTTI_OK);
    cr_assert_eq(place.memory, TUTTI_MEMORY_CUDA);
    cr_assert(place.device == 1 && place.serial == 77 && place.bytes == 4096);
    cr_assert_eq(place.base, symbol(library, "fake_driver_memory"));
    cr_assert_eq(device->locate(&on_stack, &place), TUTTI_OK);
    cr_assert_eq(place.memory, TUTTI_MEMORY_HOST);
    cr_assert_not(was_started());
    pid_t child = fork();
    if (child == 0) /* it has no context: its calls on the host's memory must go on */
        _exit(device->locate(symbol(library, "fake_driver_memory"), &place) == TUTTI_OK &&
                      place.memory == TUTTI_MEMORY_HOST && device->use(0) == TUTTI_ERR_FORKED
                  ? 0
                  : 1);
    waitpid(child, &ended, 0);
    cr_assert_eq(ended, 0);
}

/* The cost of each call in a process that does not use CUDA. */
Test(device_driver, asking_costs_next_to_nothing_without_a_gpu) {
    enum { CALLS = 1000000 };
    struct timespec start, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    for (int i = 0; i < CALLS; i++) cr_assert(tutti_device_in_use() == NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    double ns = ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / CALLS;
    cr_log_info("%.1f ns", ns);
    cr_assert_lt(ns, 500);
}
