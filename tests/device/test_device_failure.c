/*
 * What goes wrong with a GPU: in a forked child, and on the stand-in, which detects what would crash a real one or
 * worse.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/gpu/on_gpu.h"

TestSuite(device_failure, .timeout = 120);

Test(device_failure, a_forked_child_gets_an_error) {
    int ended = 0;
    open_device();
    pid_t child = fork();
    if (child == 0) {
        void *memory;
        tutti_device_place place = {.memory = TUTTI_MEMORY_CUDA};
        bool told = gpu->alloc(8, &memory) == TUTTI_ERR_FORKED && gpu->stream_sync(stream) == TUTTI_ERR_FORKED;
        bool host = gpu->locate(&ended, &place) == TUTTI_OK && place.memory == TUTTI_MEMORY_HOST;
        _exit(told && host ? 0 : 1); /* calls on host memory still work */
    }
    waitpid(child, &ended, 0);
    cr_assert_eq(ended, 0);
    GOOD(gpu->free(alloc(8))); /* the parent is not affected */
}

Test(device_failure, ordinary_code_that_touches_the_stand_ins_memory_crashes) {
    if (!is_standin()) cr_skip_test("CUDA's own addresses need not crash");
    int ended = 0;
    open_device();
    volatile char *memory = alloc(64);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(memory[0] == 1 ? 1 : 2);
    }
    waitpid(child, &ended, 0);
    cr_assert(WIFSIGNALED(ended), "it was read: %d", ended);
}

Test(device_failure, the_stand_in_fails_where_the_setting_says) {
    if (!is_standin()) cr_skip_test("only the stand-in fails on demand");
    setenv("STANDIN_FAIL", "alloc:2,task:3", 1);
    open_device();
    void *memory = alloc(64), *second = NULL;
    cr_assert_eq(gpu->alloc(64, &second), TUTTI_ERR_SYSTEM);
    cr_assert(strstr(tutti_last_error(), "alloc") != NULL, "%s", tutti_last_error());
    for (int i = 0; i < 2; i++) GOOD(gpu->fill(memory, 1, 64, stream));
    GOOD(gpu->stream_sync(stream));
    GOOD(gpu->fill(memory, 1, 64, stream));
    cr_assert_eq(gpu->stream_sync(stream), TUTTI_ERR_SYSTEM);
    cr_assert_eq(gpu->alloc(64, &second), TUTTI_ERR_SYSTEM, "nothing works after a failure in a stream");
}

Test(device_failure, kernels_and_events_for_a_stream_of_another_gpu_are_refused) {
    if (!is_standin()) cr_skip_test("there may be one GPU only");
    tutti_event_handle here = NULL, there = NULL;
    const size_t bytes = 64;
    open_device();
    GOOD(gpu->event_create(&here));
    GOOD(gpu->use(1));
    GOOD(gpu->event_create(&there));
    char *memory = alloc(2 * bytes);
    const void *src = memory;
    void *dst = memory + bytes;
    cr_assert_eq(gpu->copy_many(&dst, &src, &bytes, 1, stream), TUTTI_ERR_ARGUMENT);
    cr_assert_eq(gpu->event_record(there, stream), TUTTI_ERR_ARGUMENT);
    GOOD(gpu->event_record(here, stream));
    GOOD(gpu->stream_wait_event(NULL, here)); /* this is allowed */
    GOOD(gpu->stream_sync(NULL));
    GOOD(gpu->event_destroy(here));
    GOOD(gpu->event_destroy(there));
}

Test(device_failure, an_address_beyond_an_allocation_breaks_the_stand_in) {
    if (!is_standin()) cr_skip_test("a real GPU would have to be restarted");
    open_device();
    void *memory = alloc(64);
    GOOD(gpu->fill(memory, 1, 65, stream));
    cr_assert_eq(gpu->stream_sync(stream), TUTTI_ERR_SYSTEM);
    cr_assert(strstr(tutti_last_error(), "illegal memory access") != NULL, "%s", tutti_last_error());
}
