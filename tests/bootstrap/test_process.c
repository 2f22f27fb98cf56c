/*
 * The tables of what a process has: its threads, and its locks with their order and what a fork does with them.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
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

/* ----------------------------------------------------------------------------------------------- locks */

static int take_in_order(void) {
    tutti_lock_taken(TUTTI_LOCK_PEERS, true);
    tutti_lock_taken(TUTTI_LOCK_HEAP, true);
    tutti_lock_taken(TUTTI_LOCK_SETTINGS, true);
    tutti_lock_dropped(TUTTI_LOCK_HEAP); /* in any order */
    tutti_lock_dropped(TUTTI_LOCK_SETTINGS);
    tutti_lock_taken(TUTTI_LOCK_HEAP, true);
    return 0;
}

static int take_against_the_order(void) {
    tutti_lock_taken(TUTTI_LOCK_HEAP, true);
    tutti_lock_taken(TUTTI_LOCK_PEERS, true);
    return 0;
}

static int take_two_of_a_kind(void) {
    tutti_lock_taken(TUTTI_LOCK_QUEUE, true);
    tutti_lock_taken(TUTTI_LOCK_QUEUE, true);
    return 0;
}

static int try_against_the_order(void) {
    tutti_lock_taken(TUTTI_LOCK_HEAP, true);
    tutti_lock_taken(TUTTI_LOCK_PEERS, false);
    return 0;
}

static int drop_what_is_not_held(void) {
    tutti_lock_dropped(TUTTI_LOCK_HEAP);
    return 0;
}

Test(process, locks_taken_against_the_order_of_the_table_end_the_process) {
    if (!ranks_have_processes()) return;
    cr_assert_eq(in_child(take_in_order), 0);
    cr_assert_eq(in_child(take_against_the_order), SIGABRT);
    cr_assert_eq(in_child(take_two_of_a_kind), SIGABRT);
    cr_assert_eq(in_child(try_against_the_order), 0, "no thread waits in a try");
    cr_assert_eq(in_child(drop_what_is_not_held), SIGABRT);
}

static atomic_bool enough;
static char range[2][64];

static void *register_often(void *argument) {
    while (!atomic_load(&enough))
        if (tutti_mem_register(range[0], sizeof range[0]) != TUTTI_OK || tutti_mem_deregister(range[0]) != TUTTI_OK)
            return "failed";
    return argument;
}

static int register_once(void) {
    return tutti_mem_register(range[1], sizeof range[1]) == TUTTI_OK ? 0 : 1;
}

/* Another thread of the parent may have been inside of the call at the fork. */
Test(process, a_forked_child_finds_the_locks_free_that_it_may_take) {
    void *block, *result;
    pthread_t thread;
    if (!ranks_have_processes()) return;
    cr_assert_eq(tutti_mem_alloc(1, &block), TUTTI_OK);
    cr_assert_eq(pthread_create(&thread, NULL, register_often, NULL), 0);
    for (int i = 0; i < 200; i++) cr_assert_eq(in_child(register_once), 0, "fork %d", i);
    atomic_store(&enough, true);
    pthread_join(thread, &result);
    cr_assert_null(result);
    cr_assert_eq(tutti_mem_free(block), TUTTI_OK);
}
