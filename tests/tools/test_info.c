/*
 * How tutti-info and the log describe the transports: a row for each, with its state and the reason, and the effect
 * of TUTTI_TRANSPORT. The tests do not depend on which transports this machine has: tcp and shm are everywhere.
 */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/support/programs/shell.h"

TestSuite(info, .timeout = 60);
#define INFO_TEST(name) Test(info, name, .init = shell_enter_folder, .fini = shell_leave_folder)
#define TUTTI_INFO      "$TUTTI_BUILD/bin/tutti-info"

static void info(const char *environment) {
    cr_assert_eq(shell_run("%s " TUTTI_INFO, environment), 0, "%s", shell_output);
}

INFO_TEST(the_version_is_one_line) {
    cr_assert_eq(shell_run(TUTTI_INFO " --version | grep -qE '^tutti-info [0-9]+\\.[0-9]+\\.[0-9]+$'"), 0);
    cr_assert_eq(shell_run(TUTTI_INFO " -V | wc -l"), 0);
    HAS("1\n");
    cr_assert_eq(shell_run(TUTTI_INFO " --versio"), 2);
    HAS("usage: tutti-info [--version");
}

INFO_TEST(each_transport_has_a_row_with_its_state) {
    static const char *const others[] = {"verbs", "ucx"};
    info("");
    HAS("\n* shm        yes: ranks of one host");
    HAS("\n* tcp        yes: ");
    for (int i = 0; i < 2; i++) {
        char pattern[64];
        snprintf(pattern, sizeof pattern, "grep -Eq '^[ *] %s +(yes|no): .' rows", others[i]);
        cr_assert_eq(shell_run(TUTTI_INFO " >rows; %s", pattern), 0, "no row of %s", others[i]);
    }
}

INFO_TEST(several_sockets_per_peer_are_listed) {
    info("");
    HAS("TUTTI_TCP_SOCKETS");
    HAS_NOT("sockets per peer");
    info("TUTTI_TCP_SOCKETS=4");
    HAS("; 4 sockets per peer");
    info("TUTTI_TCP_SOCKETS=0");
    HAS("! TUTTI_TCP_SOCKETS=0: must be a whole number from 1 to 16");
}

INFO_TEST(transports_excluded_by_the_setting_are_not_used) {
    info("TUTTI_TRANSPORT=shm,tcp");
    HAS("\n* shm        yes: ");
    HAS("\n* tcp        yes: ");
    info("TUTTI_TRANSPORT=shm");
    HAS("\n* shm        yes: ");
    HAS("\n  tcp        yes: ");
    HAS("; TUTTI_TRANSPORT does not name it");
    HAS_NOT("\n!");
    if (shell_run("test -e $TUTTI_BUILD/lib/libtutti_tls.so") == 0) {
        info("TUTTI_ENCRYPT=1");
        HAS("\n* tls        yes: ");
        HAS("; TUTTI_ENCRYPT=1 forbids it");
    }
    info("TUTTI_TRANSPORT=pigeon");
    HAS("! TUTTI_TRANSPORT names \"pigeon\"");
}

INFO_TEST(without_shared_memory_the_row_has_the_reason) {
    if (shell_run("(ulimit -v 200000; " TUTTI_INFO ")") != 0) cr_skip_test("it does not start in so little memory");
    HAS("\n  shm        no: cannot map a shared heap");
}

/* Ranks of one host need no other transport; two hosts (here two by TUTTI_HOST_ID) do, and the error reports it. */
INFO_TEST(shm_alone_works_only_within_one_host) {
    const char *run = "$TUTTI_BUILD/bin/tuttirun --standalone --device_num 2 timeout 30 sh -c";
    cr_assert_eq(shell_run("TUTTI_TRANSPORT=shm %s 'exec $TUTTI_BUILD/tests/world_probe reduce'", run), 0, "%s",
                 shell_output);
    cr_assert_eq(shell_count("summed"), 2, "%s", shell_output);
    cr_assert_neq(shell_run("TUTTI_TRANSPORT=shm %s "
                            "'TUTTI_HOST_ID=$LOCAL_RANK exec $TUTTI_BUILD/tests/world_probe reduce'",
                            run),
                  0, "%s", shell_output);
    HAS("TUTTI_TRANSPORT names shared memory only");
}

INFO_TEST(gpus_are_listed_or_the_reason_is_printed) {
    cr_assert_eq(
        shell_run(TUTTI_INFO " >rows; grep -Eq '^  CUDA +(yes: CUDA [0-9.]+, driver for [0-9.]+, [1-9]|no: .)' rows"),
        0);
    info("STANDIN_GPUS=3 TUTTI_CUDA_MODULE=$TUTTI_BUILD/lib/libstandin_cuda.so");
    HAS("yes: a stand-in without a GPU, 3 GPUs\n    GPU 0 ");
    HAS("\n    GPU 2                    stand-in, 1.0 GiB, 2 processors, compute capability 9.0, PCI 0000:03:00.0\n");
    info("STANDIN_GPUS=0 TUTTI_CUDA_MODULE=$TUTTI_BUILD/lib/libstandin_cuda.so");
    HAS("no: stand-in: no CUDA-capable device is detected");
    info("TUTTI_CUDA_MODULE=/no/such/file.so");
    HAS("no: cannot load /no/such/file.so");
}

INFO_TEST(the_log_has_the_transport_to_another_host) {
    cr_assert_eq(shell_run("TUTTI_TRANSPORT=tcp TUTTI_LOG=debug $TUTTI_BUILD/bin/tuttirun --standalone --device_num 2 "
                           "timeout 30 sh -c 'TUTTI_HOST_ID=$LOCAL_RANK exec $TUTTI_BUILD/tests/world_probe reduce'"),
                 0, "%s", shell_output);
    HAS("2 ranks on 2 hosts");
    HAS(": tcp, not verbs (");
    HAS(" is reached at ");
    HAS("link of ranks ");
    HAS(": tcp, ");
}

INFO_TEST(the_log_has_the_times_of_the_phases_of_a_start) {
    static const char *const phases[] = {"; store ",           "; memory ",    "; peer table ",
                                         "; local bootstrap ", "; addresses ", "; meeting "};
    cr_assert_eq(shell_run("TUTTI_LOG=info $TUTTI_BUILD/bin/tuttirun --standalone --device_num 2 timeout 30 sh -c "
                           "'TUTTI_HOST_ID=$LOCAL_RANK exec $TUTTI_BUILD/tests/world_probe reduce' 2>&1 | "
                           "grep 'of 2 ranks on 2 hosts is ready after [0-9.]* ms'"),
                 0, "%s", shell_output);
    cr_assert_eq(shell_count("\n"), 1, "only rank 0 tells it: %s", shell_output);
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) HAS(phases[i]);
}

/* Two ranks on two hosts (by TUTTI_HOST_ID) need the threads that talk to other hosts. */
INFO_TEST(the_threads_and_locks_of_a_process_are_listed) {
    cr_assert_eq(shell_run(TUTTI_INFO " --process"), 0, "%s", shell_output);
    HAS("with a communicator of 1 rank\n");
    HAS("\n  tutti-listener   0  ");
    HAS("\n  heap           comm/shm/heap.c ");
    cr_assert_eq(shell_run("TUTTI_TRANSPORT=tcp $TUTTI_BUILD/bin/tuttirun --standalone --device_num 2 timeout 30 sh -c "
                           "'TUTTI_HOST_ID=$LOCAL_RANK exec " TUTTI_INFO " --process'"),
                 0, "%s", shell_output);
    HAS("with a communicator of 2 ranks\n");
    HAS("tutti-listener   1  ");
    HAS("tutti-heartbeat  1  ");
    cr_assert_eq(shell_count("Locks; "), 1, "only rank 0 prints: %s", shell_output);
}

/* ------------------------------------------------------------------------------------------- algorithms */

INFO_TEST(the_choices_between_hosts_are_explained) {
    cr_assert_eq(shell_run(TUTTI_INFO " --algorithms"), 0, "%s", shell_output);
    HAS("\nBetween 4 hosts, ");
    HAS("an ordinary network");
    HAS("hierarchical");
    cr_assert_eq(shell_run(TUTTI_INFO " --algorithms 8"), 0, "%s", shell_output);
    HAS("\nBetween 8 hosts, floats, where a message takes 25 us and a link carries 1.2 GB/s");
}

INFO_TEST(an_invalid_number_of_hosts_is_an_error) {
    static const char *const wrong[] = {"1", "x", "8x", "-4", "99999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(shell_run(TUTTI_INFO " --algorithms %s", wrong[i]), 2, "%s: %s", wrong[i], shell_output);
        HAS("must be a whole number from 2 to");
        cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
    }
}
