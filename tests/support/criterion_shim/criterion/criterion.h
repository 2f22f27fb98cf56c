/*
 * The part of Criterion that Tutti's tests use, for machines without Criterion: the same tests build and run.
 *
 * Each test runs in a process of its own, forked from the runner (runner.c), within its time limit. A failed
 * cr_assert_* ends the test by a jump out of it, so that .fini still runs; a failed cr_expect_* is noted, and the
 * test goes on.
 *
 * Invariant: a test has the same meaning here and with Criterion; only the output differs.
 */
#ifndef TUTTI_CRITERION_SHIM_H
#define TUTTI_CRITERION_SHIM_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct shim_options {
    const char *unused; /* so that a list of options may be empty */
    void (*init)(void), (*fini)(void);
    double timeout; /* seconds; 0: the suite's, else SHIM_TIMEOUT_S */
    bool disabled;
} shim_options;

typedef struct shim_test {
    const char *suite, *name; /* name NULL: options for the suite */
    void (*run)(void);
    const shim_options *options;
    struct shim_test *next; /* in the list that shim_register keeps */
} shim_test;

void shim_register(shim_test *test);

#define SHIM_ENTER(id, suite_, name_, run_, ...)                                                                       \
    __attribute__((constructor)) static void id##_register(void) {                                                     \
        static const shim_options options = {.unused = NULL, __VA_ARGS__};                                             \
        static shim_test test = {suite_, name_, run_, &options, NULL};                                                 \
        shim_register(&test);                                                                                          \
    }

#define TestSuite(suite, ...) SHIM_ENTER(shim_##suite, #suite, NULL, NULL, __VA_ARGS__)
#define Test(suite, name, ...)                                                                                         \
    static void suite##_##name##_run(void);                                                                            \
    SHIM_ENTER(suite##_##name, #suite, #name, suite##_##name##_run, __VA_ARGS__)                                       \
    static void suite##_##name##_run(void)

/* ---------------------------------------------------------------------------------------------- what tests call */

typedef struct shim_place {
    const char *file;
    int line;
    const char *what;
    bool fatal;
} shim_place;

/* The message begins with a blank, so that it is never empty. */
__attribute__((format(printf, 2, 3))) void shim_failed(const shim_place *place, const char *format, ...);
__attribute__((format(printf, 1, 2), noreturn)) void shim_skip(const char *format, ...);
__attribute__((format(printf, 1, 2))) void shim_say(const char *format, ...);

#define SHIM_CHECK(fatal, good, what, ...)                                                                             \
    do {                                                                                                               \
        if (!(good)) shim_failed(&(shim_place){__FILE__, __LINE__, what, fatal}, " " __VA_ARGS__);                     \
    } while (0)

/* The condition comes first, then perhaps a message: SHIM_ONE(fatal, prefix, condition, message...). */
#define SHIM_TRUE(fatal, condition, ...)   SHIM_CHECK(fatal, condition, #condition, __VA_ARGS__)
#define SHIM_FALSE(fatal, condition, ...)  SHIM_CHECK(fatal, !(condition), "!(" #condition ")", __VA_ARGS__)
#define SHIM_NULL(fatal, pointer, ...)     SHIM_CHECK(fatal, (pointer) == NULL, #pointer " == NULL", __VA_ARGS__)
#define SHIM_NOT_NULL(fatal, pointer, ...) SHIM_CHECK(fatal, (pointer) != NULL, #pointer " != NULL", __VA_ARGS__)
#define SHIM_COMPARE(fatal, a, op, b, ...) SHIM_CHECK(fatal, (a)op(b), #a " " #op " " #b, __VA_ARGS__)
#define SHIM_STRINGS(fatal, a, b, ...)     SHIM_CHECK(fatal, strcmp(a, b) == 0, #a " is " #b, __VA_ARGS__)
#define SHIM_EMPTY(fatal, a, ...)          SHIM_CHECK(fatal, (a)[0] == '\0', #a " is empty", __VA_ARGS__)
#define SHIM_NEAR(fatal, a, b, epsilon, ...)                                                                           \
    SHIM_CHECK(fatal, fabs((double)(a) - (double)(b)) <= (double)(epsilon), #a " is near " #b, __VA_ARGS__)
#define SHIM_BYTES(fatal, a, op, b, bytes, ...)                                                                        \
    SHIM_CHECK(fatal, memcmp(a, b, bytes) op 0, "bytes: " #a " " #op " " #b, __VA_ARGS__)

#define cr_assert(...)            SHIM_TRUE(true, __VA_ARGS__)
#define cr_assert_not(...)        SHIM_FALSE(true, __VA_ARGS__)
#define cr_assert_null(...)       SHIM_NULL(true, __VA_ARGS__)
#define cr_assert_not_null(...)   SHIM_NOT_NULL(true, __VA_ARGS__)
#define cr_assert_eq(a, ...)      SHIM_COMPARE(true, a, ==, __VA_ARGS__)
#define cr_assert_neq(a, ...)     SHIM_COMPARE(true, a, !=, __VA_ARGS__)
#define cr_assert_lt(a, ...)      SHIM_COMPARE(true, a, <, __VA_ARGS__)
#define cr_assert_leq(a, ...)     SHIM_COMPARE(true, a, <=, __VA_ARGS__)
#define cr_assert_gt(a, ...)      SHIM_COMPARE(true, a, >, __VA_ARGS__)
#define cr_assert_geq(a, ...)     SHIM_COMPARE(true, a, >=, __VA_ARGS__)
#define cr_assert_str_eq(...)     SHIM_STRINGS(true, __VA_ARGS__)
#define cr_assert_str_empty(...)  SHIM_EMPTY(true, __VA_ARGS__)
#define cr_assert_fail(...)       SHIM_CHECK(true, false, "this is not reached", __VA_ARGS__)
#define cr_assert_float_eq(...)   SHIM_NEAR(true, __VA_ARGS__)
#define cr_assert_arr_eq(a, ...)  SHIM_BYTES(true, a, ==, __VA_ARGS__)
#define cr_assert_arr_neq(a, ...) SHIM_BYTES(true, a, !=, __VA_ARGS__)

#define cr_expect(...)          SHIM_TRUE(false, __VA_ARGS__)
#define cr_expect_not(...)      SHIM_FALSE(false, __VA_ARGS__)
#define cr_expect_null(...)     SHIM_NULL(false, __VA_ARGS__)
#define cr_expect_not_null(...) SHIM_NOT_NULL(false, __VA_ARGS__)
#define cr_expect_eq(a, ...)    SHIM_COMPARE(false, a, ==, __VA_ARGS__)
#define cr_expect_neq(a, ...)   SHIM_COMPARE(false, a, !=, __VA_ARGS__)
#define cr_expect_lt(a, ...)    SHIM_COMPARE(false, a, <, __VA_ARGS__)
#define cr_expect_leq(a, ...)   SHIM_COMPARE(false, a, <=, __VA_ARGS__)
#define cr_expect_gt(a, ...)    SHIM_COMPARE(false, a, >, __VA_ARGS__)
#define cr_expect_geq(a, ...)   SHIM_COMPARE(false, a, >=, __VA_ARGS__)
#define cr_expect_str_eq(...)   SHIM_STRINGS(false, __VA_ARGS__)
#define cr_expect_float_eq(...) SHIM_NEAR(false, __VA_ARGS__)

#define cr_skip_test(...) shim_skip(" " __VA_ARGS__)
#define cr_skip(...)      shim_skip(" " __VA_ARGS__)
#define cr_log_info(...)  shim_say(" " __VA_ARGS__)
#define cr_log_warn(...)  shim_say(" " __VA_ARGS__)

#endif
