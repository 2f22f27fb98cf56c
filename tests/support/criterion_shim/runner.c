/*
 * Runs tests in place of Criterion's own runner: one after the other, each in a forked process, within its time limit.
 *
 *   test_x                        all
 *   test_x --filter 'suite/a*'    those whose suite/name matches the pattern; also --filter=...
 *   test_x --list                 names only
 *   other options                 (--jobs N, --verbose) are accepted and ignored
 *
 * A line per test: "[PASS] suite/name 0.01 s", FAIL with the failures above it, SKIP with its reason. The last line
 * is a summary like Criterion's; the exit code is 0 if nothing failed.
 */
#include <fnmatch.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "criterion/criterion.h"

#define SHIM_TIMEOUT_S 60.0 /* for a test that sets none */

enum { PASSED, FAILED = 1, SKIPPED = 77 };

static shim_test *first, **last = &first;
static struct {
    pid_t process; /* process id of the running test; its forked children must not jump */
    jmp_buf end;
    bool failed;
} now;

void shim_register(shim_test *test) {
    *last = test;
    last = &test->next;
}

/* ---------------------------------------------------------------------------------------------- inside a test */

static void __attribute__((noreturn)) leave(int how) {
    fflush(NULL);
    if (getpid() != now.process) _exit(how);
    longjmp(now.end, how);
}

void shim_failed(const shim_place *place, const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "%s:%d: not so: %s:", place->file, place->line, place->what);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    now.failed = true;
    if (place->fatal) leave(FAILED);
}

void shim_skip(const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "skipped:");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    leave(SKIPPED);
}

void shim_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
}

static const shim_options *suite_options(const shim_test *test) {
    static const shim_options none;
    for (const shim_test *other = first; other != NULL; other = other->next)
        if (other->name == NULL && strcmp(other->suite, test->suite) == 0) return other->options;
    return &none;
}

static int run_between(void (*init)(void), void (*body)(void), void (*fini)(void)) {
    volatile int how = PASSED; /* a jump comes back here */
    int jumped = setjmp(now.end);
    if (jumped == 0) {
        if (init != NULL) init();
        body();
    } else {
        how = jumped;
    }
    if (fini != NULL && setjmp(now.end) == 0) fini();
    return now.failed ? FAILED : how;
}

static void __attribute__((noreturn)) be_test(const shim_test *test, pid_t runner) {
    const shim_options *suite = suite_options(test), *own = test->options;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != runner) _exit(FAILED);
    setpgid(0, 0);
    now.process = getpid();
    int how = run_between(own->init != NULL ? own->init : suite->init, test->run,
                          own->fini != NULL ? own->fini : suite->fini);
    fflush(NULL);
    exit(how); /* like Criterion: exit handlers are part of a test */
}

/* ------------------------------------------------------------------------------------------------- the runner */

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int await(pid_t child, double timeout_s, double start_s) {
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (now_s() - start_s > timeout_s) {
            kill(-child, SIGKILL);
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            fprintf(stderr, "not done after %.0f s\n", timeout_s);
            return FAILED;
        }
        usleep(1000);
    }
    kill(-child, SIGKILL); /* processes that the test left behind */
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    fprintf(stderr, "ended by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return FAILED;
}

static int run_test(const shim_test *test) {
    const shim_options *suite = suite_options(test);
    double timeout_s = test->options->timeout > 0 ? test->options->timeout
                       : suite->timeout > 0       ? suite->timeout
                                                  : SHIM_TIMEOUT_S;
    double start_s = now_s();
    pid_t runner = getpid();
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return FAILED;
    }
    if (child == 0) be_test(test, runner);
    int how = await(child, timeout_s, start_s);
    const char *word = how == PASSED ? "PASS" : how == SKIPPED ? "SKIP" : "FAIL";
    fprintf(stderr, "[%s] %s/%s %.2f s\n", word, test->suite, test->name, now_s() - start_s);
    return how;
}

static bool is_wanted(const shim_test *test, const char *pattern) {
    char path[512];
    if (test->name == NULL) return false;
    snprintf(path, sizeof path, "%s/%s", test->suite, test->name);
    return pattern == NULL || fnmatch(pattern, path, FNM_EXTMATCH) == 0;
}

int main(int argc, char **argv) {
    const char *pattern = NULL;
    bool list = false;
    int counts[3] = {0}, tested = 0; /* passed, failed, skipped */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc) pattern = argv[++i];
        else if (strncmp(argv[i], "--filter=", 9) == 0) pattern = argv[i] + 9;
        else if (strcmp(argv[i], "--list") == 0 || strcmp(argv[i], "-l") == 0) list = true;
    }
    for (const shim_test *test = first; test != NULL; test = test->next) {
        if (!is_wanted(test, pattern)) continue;
        if (list) {
            printf("%s/%s\n", test->suite, test->name);
            continue;
        }
        int how = test->options->disabled || suite_options(test)->disabled ? SKIPPED : run_test(test);
        counts[how == PASSED ? 0 : how == SKIPPED ? 2 : 1]++;
        tested++;
    }
    if (!list)
        fprintf(stderr, "[====] Synthesis: Tested: %d | Passing: %d | Failing: %d | Skipped: %d\n", tested, counts[0],
                counts[1], counts[2]);
    return counts[1] > 0;
}
