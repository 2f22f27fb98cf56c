/*
 * Tests that end in every possible way, for tests/scripts/test_criterion_shim.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void enter(void) {
    fprintf(stderr, "enter\n");
}

static void leave(void) {
    fprintf(stderr, "leave\n");
}

static void never_enter(void) {
    cr_skip("nothing to do for %d", 7);
}

TestSuite(good, .init = enter, .fini = leave, .timeout = 50);
TestSuite(idle, .init = never_enter);
TestSuite(off, .disabled = true);

Test(good, all_kinds_of_checks_pass) {
    int numbers[] = {1, 2}, same[] = {1, 2};
    cr_assert(numbers[0] == 1);
    cr_assert(1, "with a message: %d", 3);
    cr_assert_not(numbers[0] == 2, "no");
    cr_assert_eq(numbers[0] + 1, numbers[1], "%d", numbers[0]);
    cr_assert_neq(numbers[0], numbers[1]);
    cr_assert_lt(1, 2);
    cr_assert_leq(2, 2);
    cr_assert_gt(2, 1);
    cr_assert_geq(2, 2);
    cr_assert_null(NULL);
    cr_assert_not_null(numbers);
    cr_assert_str_eq("a b", "a b");
    cr_assert_float_eq(1.0, 1.05, 0.1);
    cr_assert_arr_eq(numbers, same, sizeof same);
    cr_expect_eq(numbers[1], 2);
    cr_log_info("said %d", 42);
}

Test(good, a_forked_child_may_end_by_itself) {
    int status = 0;
    if (fork() == 0) _exit(5);
    wait(&status);
    cr_assert_eq(WEXITSTATUS(status), 5);
}

Test(bad, an_assertion_ends_it, .fini = leave) {
    cr_assert_eq(1, 2, "words %s", "here");
    fprintf(stderr, "went on\n");
}

Test(bad, an_expectation_is_noted_and_it_goes_on) {
    cr_expect(false);
    fprintf(stderr, "went on\n");
}

Test(bad, a_signal) {
    raise(SIGSEGV);
}

Test(bad, an_exit) {
    _exit(3);
}

Test(bad, too_long, .timeout = 0.2) {
    pause();
}

Test(bad, an_assertion_in_a_child) {
    int status = 0;
    if (fork() == 0) cr_assert(false, "in the child");
    wait(&status);
    cr_assert_eq(status, 0, "the child ended with %d", WEXITSTATUS(status));
}

Test(idle, skipped_by_its_suite) {
    cr_assert(false);
}

Test(good, skipped) {
    cr_skip_test("not today");
}

Test(off, not_run) {
    cr_assert(false);
}
