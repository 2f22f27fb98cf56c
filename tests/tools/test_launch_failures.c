/*
 * tuttirun when ranks fail, stop or leave processes behind, and when tuttirun itself gets a signal or is killed.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/programs/shell.h"

TestSuite(launch_failures, .timeout = 90);
#define LAUNCH_TEST(name) Test(launch_failures, name, .init = shell_enter_folder, .fini = shell_leave_folder)

/* --------------------------------------------------------------------------------------------- failures */

LAUNCH_TEST(the_first_failure_is_named_and_its_exit_code_returned) {
    char host[256], text[512];
    gethostname(host, sizeof host);
    cr_assert_eq(
        shell_run(
            "$T --standalone --nproc-per-node 3 sh -c 'if [ $RANK = 1 ]; then echo $$ >pid; exit 7; fi; sleep 0.5; "
            "echo rank $RANK gives up; exit 1'; code=$?; echo pid $(cat pid); exit $code"),
        7);
    const char *pid = strstr(shell_output, "\npid ");
    cr_assert_not_null(pid);
    snprintf(text, sizeof text,
             "tuttirun: rank 1 (local rank 1, host %s, pid %d) ended with exit code 7; the other 2 get 2 s", host,
             atoi(pid + 5));
    HAS(text);
    HAS("rank 0 gives up\n"); /* the ranks' own messages */
    HAS("rank 2 gives up\n");
    HAS("tuttirun: after rank 1: rank 0 ended with exit code 1, rank 2 ended with exit code 1\n");
}

LAUNCH_TEST(a_death_by_signal_is_named_and_counts_128_more) {
    cr_assert_eq(
        shell_run("$T --standalone --nproc-per-node 2 sh -c 'if [ $RANK = 0 ]; then kill -9 $$; fi; sleep 0.3'"), 137);
    HAS("was killed by SIGKILL (signal 9); the other gets 2 s");
    cr_assert_eq(shell_run("$T --standalone sh -c 'kill -SEGV $$'"), 139);
    HAS("tuttirun: rank 0 (local rank 0, ");
    HAS("was killed by SIGSEGV (signal 11)\n");
}

LAUNCH_TEST(a_rank_that_does_not_end_gets_sigterm_and_then_sigkill) {
    int64_t begin_ns = tutti_now_ns();
    cr_assert_eq(
        shell_run("$T --standalone --nproc-per-node 3 sh -c 'if [ $RANK = 0 ]; then exit 3; fi; if [ $RANK = 1 ]; then "
                  "trap \"echo rank 1 asked; exit 0\" TERM; fi; if [ $RANK = 2 ]; then trap \"\" TERM; fi; "
                  "while true; do sleep 0.1; done'"),
        3);
    int64_t took_ms = (tutti_now_ns() - begin_ns) / 1000000;
    cr_assert(took_ms >= 6900 && took_ms < 20000, "took %lld ms", (long long)took_ms);
    HAS("tuttirun: stops the ranks that still run: rank 1 (pid ");
    HAS("rank 1 asked\n");
    HAS("tuttirun: kills the ranks that do not end: rank 2 (pid ");
    HAS("tuttirun: after rank 0: rank 2 was killed by SIGKILL");
}

LAUNCH_TEST(a_stopped_rank_is_named_and_ended) {
    cr_assert_eq(
        shell_run(
            "$T --standalone --nproc-per-node 2 sh -c 'if [ $RANK = 1 ]; then kill -STOP $$; fi; sleep 1; exit 4'"),
        4);
    HAS("tuttirun: rank 1 (local rank 1, ");
    HAS("was stopped by SIGSTOP; 'kill -CONT ");
    HAS(", stopped by SIGSTOP ");
}

/* Checks that the processes listed in `pids` have ended. A zombie that no parent reaps counts as ended. */
static void expect_gone(int count) {
    cr_assert_eq(
        shell_run("sleep 0.5; [ $(wc -w <pids) = %d ] || echo wrong; for p in $(cat pids); do s=$(sed 's,.*) ,,' "
                  "/proc/$p/stat 2>/dev/null); "
                  "case $s in ''|Z*) ;; *) echo $p is $s;; esac; done",
                  count),
        0);
    cr_assert_str_eq(shell_output, "");
}

LAUNCH_TEST(processes_that_a_rank_leaves_behind_are_ended) {
    cr_assert_eq(shell_run("$T --standalone --nproc-per-node 2 sh -c 'sleep 1234 & echo $! >>pids; exit $RANK'"), 1);
    expect_gone(2);
}

LAUNCH_TEST(a_failed_job_starts_again_as_often_as_it_may) {
    cr_assert_eq(shell_run("$T --standalone --nproc-per-node 2 --max-restarts 3 sh -c 'echo rank $RANK try "
                           "$TORCHELASTIC_RESTART_COUNT; "
                           "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5'"),
                 0);
    HAS("rank 0 try 0\n");
    HAS("rank 1 try 2\n");
    HAS_NOT("try 3");
    HAS("tuttirun: starts all ranks again (restart 2 of 3)\n");
    cr_assert_eq(shell_run("$T --standalone --max-restarts 1 sh -c 'exit 6'"), 6);
    cr_assert_eq(shell_count("starts all ranks again"), 1);
}

/* ---------------------------------------------------------------------------------------------- signals */

/* Starts tuttirun in the background with the ranks' program, and sends it a signal when all ranks have printed
 * "ready". A background job of a shell ignores SIGINT and SIGQUIT; env restores their defaults. */
static int run_and_signal(const char *signal_name, const char *program) {
    return shell_run(
        "rm -f log; cat >program.sh <<'EOF'\n%s\nEOF\n"
        "env --default-signal=INT,QUIT ${T#*60 } --standalone --nproc-per-node 2 sh program.sh >log 2>&1 &\n"
        "for i in $(seq 100); do [ $(grep -c ready log) = 2 ] && break; sleep 0.1; done\n"
        "kill -%s $!; wait $!; code=$?; cat log; exit $code",
        program, signal_name);
}

LAUNCH_TEST(signals_are_forwarded_and_set_the_exit_code) {
    static const struct {
        const char *name;
        int number;
    } signals[] = {{"INT", SIGINT}, {"TERM", SIGTERM}, {"HUP", SIGHUP}, {"QUIT", SIGQUIT}};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char program[256], text[64];
        snprintf(program, sizeof program,
                 "trap 'echo rank $RANK got %s; exit 9' %s; echo ready; while true; do sleep 0.1; done",
                 signals[i].name, signals[i].name);
        cr_assert_eq(run_and_signal(signals[i].name, program), 128 + signals[i].number, "%s: %s", signals[i].name,
                     shell_output);
        for (int rank = 0; rank < 2; rank++) {
            snprintf(text, sizeof text, "rank %d got %s\n", rank, signals[i].name);
            HAS(text);
        }
    }
}

LAUNCH_TEST(ranks_that_exit_with_0_on_a_signal_are_not_a_failure) {
    cr_assert_eq(run_and_signal("TERM", "trap 'exit 0' TERM; echo ready; while true; do sleep 0.1; done"), 0, "%s",
                 shell_output);
}

LAUNCH_TEST(user_signals_are_forwarded_and_end_nothing) {
    cr_assert_eq(
        run_and_signal("USR1", "trap 'echo rank $RANK noted; exit 0' USR1; echo ready; while true; do sleep 0.1; done"),
        0, "%s", shell_output);
    HAS("rank 0 noted\n");
    HAS("rank 1 noted\n");
    HAS_NOT("tuttirun:");
}

LAUNCH_TEST(nothing_survives_a_killed_tuttirun) {
    cr_assert_eq(run_and_signal("KILL", "sleep 4321 & echo $$ $! >>pids; echo ready; wait"), 137, "%s", shell_output);
    expect_gone(4);
}
