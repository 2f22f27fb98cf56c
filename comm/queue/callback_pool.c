/*
 * The callback pool. See callback_pool.h.
 */
#include "comm/queue/callback_pool.h"

#include <stdlib.h>
#include <time.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/thread.h"

typedef struct job {
    tutti_work *work; /* one reference */
    struct job *next;
} job;

static pthread_cond_t pool_wake = PTHREAD_COND_INITIALIZER;
static job *first, **last = &first;
static int idle, queued; /* threads that wait for a job, jobs that wait for a thread */

static void run(tutti_work *work) {
    work->callback(work->status, work->callback_context);
    tutti_work_free(work);
}

/* Returns the next job, or NULL after a second without any. Called and returns with the lock held. */
static job *next_job(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    int status = 0;
    idle++;
    while (first == NULL && status == 0)
        status = pthread_cond_timedwait(&pool_wake, tutti_lock_mutex(TUTTI_LOCK_CALLBACKS), &until);
    idle--;
    job *found = first;
    if (found == NULL) return NULL;
    first = found->next;
    if (first == NULL) last = &first;
    queued--;
    return found;
}

static void *serve(void *unused) {
    (void)unused;
    tutti_lock(TUTTI_LOCK_CALLBACKS);
    for (job *found; (found = next_job()) != NULL;) {
        tutti_unlock(TUTTI_LOCK_CALLBACKS);
        run(found->work);
        free(found);
        tutti_lock(TUTTI_LOCK_CALLBACKS);
    }
    tutti_unlock(TUTTI_LOCK_CALLBACKS);
    return NULL;
}

void tutti_callback_pool_run(tutti_work *work) {
    job *new = malloc(sizeof *new);
    tutti_work_retain(work);
    if (new == NULL) { /* running it late on this thread is better than never */
        tutti_log(TUTTI_LOG_WARN, "no memory to queue a callback; it runs on the completing thread");
        run(work);
        return;
    }
    *new = (job){.work = work};
    tutti_lock(TUTTI_LOCK_CALLBACKS);
    *last = new;
    last = &new->next;
    bool add_thread = ++queued > idle;
    pthread_cond_signal(&pool_wake);
    tutti_unlock(TUTTI_LOCK_CALLBACKS);
    if (add_thread && tutti_thread_start(TUTTI_THREAD_CALLBACK, serve, NULL, NULL) != 0)
        tutti_log(TUTTI_LOG_WARN, "cannot start a callback thread; callbacks wait for a running thread");
}
