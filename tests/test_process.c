/*
 * The table of threads that the library starts.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/thread.h"
#include "tests/support/ranks.h"

TestSuite(process, .timeout = 60);

/* Runs the body in a child, with a limit of time. Returns its signal, or its exit status. */
static int in_child(int (*body)(void)) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(body());
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

/* --------------------------------------------------------------------------------------------- threads */

static pthread_barrier_t begun, over;

static int count_lookups(void) {
    return tutti_thread_count(TUTTI_THREAD_LOOKUP);
}

static void *wait_for_end(void *argument) {
    pthread_getname_np(pthread_self(), argument, 16);
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&over);
    return argument;
}

Test(process, threads_are_named_and_counted_while_they_live) {
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    char names[THREADS][16];
    void *result;
    pthread_barrier_init(&begun, NULL, THREADS + 1);
    pthread_barrier_init(&over, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(tutti_thread_start(TUTTI_THREAD_LOOKUP, wait_for_end, names[i], &threads[i]), 0);
    pthread_barrier_wait(&begun);
    cr_assert_eq(count_lookups(), THREADS);
    cr_assert_eq(tutti_thread_count(TUTTI_THREAD_QUEUE), 0);
    if (ranks_have_processes()) cr_assert_eq(in_child(count_lookups), 0, "a forked child has none of its parent's");
    pthread_barrier_wait(&over);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &result);
        cr_assert_eq(result, (void *)names[i]);
        cr_assert_str_eq(names[i], tutti_threads[TUTTI_THREAD_LOOKUP].name);
    }
    cr_assert_eq(count_lookups(), 0);
}

static void *fork_inside(void *argument) {
    *(int *)argument = in_child(count_lookups);
    return NULL;
}

Test(process, a_thread_of_the_library_that_forks_is_the_only_one_of_the_child) {
    pthread_t thread;
    int counted = -1;
    if (!ranks_have_processes()) return;
    cr_assert_eq(tutti_thread_start(TUTTI_THREAD_LOOKUP, fork_inside, &counted, &thread), 0);
    pthread_join(thread, NULL);
    cr_assert_eq(counted, 1);
}
