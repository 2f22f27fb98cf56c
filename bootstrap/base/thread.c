/*
 * Starting threads. See thread.h.
 */
#include "bootstrap/base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "bootstrap/base/deadline.h"

const tutti_thread_row tutti_threads[TUTTI_THREAD_KINDS] = {
    [TUTTI_THREAD_QUEUE] = {"tutti-queue", "one for a communicator, while it has work that no caller runs",
                            "runs a communicator's operations in the order of their calls"},
    [TUTTI_THREAD_CALLBACK] = {"tutti-callback", "as many as callbacks run at a time, and a second longer",
                               "calls the program's callbacks of ended works"},
    [TUTTI_THREAD_LISTENER] = {"tutti-listener", "one for the process, from its first communicator of several hosts on",
                               "accepts and authenticates connections from other hosts"},
    [TUTTI_THREAD_CONNECT] = {"tutti-connect", "one for each link to another host, while it is opened",
                              "opens a link to a process of another host"},
    [TUTTI_THREAD_HEARTBEAT] = {"tutti-heartbeat", "one for the process, while it has peers on other hosts",
                                "exchanges heartbeats and news of deaths with other hosts"},
    [TUTTI_THREAD_CUDA_WATCH] = {"tutti-cuda-wait",
                                 "one for the process, while calls are in streams, and a second longer",
                                 "completes calls on CUDA memory and checks their deadlines"},
    [TUTTI_THREAD_CUDA_POLL] = {"tutti-cuda-poll", "one for the process, while GPUs are expected to answer",
                                "asks each GPU whether it has failed"},
    [TUTTI_THREAD_NCCL_END] = {"tutti-nccl-end", "one for each NCCL communicator that ends, until it has ended",
                               "destroys or aborts an NCCL communicator, which may block"},
    [TUTTI_THREAD_NCCL_STOP] = {"tutti-nccl-stop",
                                "one for a broken communicator, until its NCCL communicator is aborted",
                                "waits for a call into NCCL that blocks, then aborts the communicator"},
    [TUTTI_THREAD_GPU_FREE] = {"tutti-gpu-free", "one for a broken communicator of ranks that share a GPU",
                               "releases the streams that wait for a rank that has failed"},
    [TUTTI_THREAD_LOOKUP] = {"tutti-lookup", "one for each call, until the call returns",
                             "makes a call that may block for long: resolves a name, asks PMIx"},
    [TUTTI_THREAD_STORE] = {"tutti-store", "one for each store that the process serves",
                            "serves the store at which ranks meet"},
    [TUTTI_THREAD_NODES] = {"tuttirun-nodes", "one in tuttirun, where a job has several nodes",
                            "keeps in touch with tuttirun on the other nodes"},
};

static atomic_int living[TUTTI_THREAD_KINDS];
static _Thread_local int own_kind = -1; /* of the calling thread; -1: it is not the library's */

/* The child has one thread: a copy of the one that forked, which may be the library's if a callback forked. */
static void count_in_child(void) {
    for (int kind = 0; kind < TUTTI_THREAD_KINDS; kind++)
        atomic_store_explicit(&living[kind], kind == own_kind, memory_order_relaxed);
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, count_in_child);
}

typedef struct start {
    tutti_thread_kind kind;
    void *(*body)(void *);
    void *argument;
} start;

static void *run(void *argument) {
    const start s = *(start *)argument;
    free(argument);
    own_kind = (int)s.kind;
    pthread_setname_np(pthread_self(), tutti_threads[s.kind].name);
    void *result = s.body(s.argument);
    atomic_fetch_sub_explicit(&living[s.kind], 1, memory_order_relaxed);
    return result;
}

int tutti_thread_start(tutti_thread_kind kind, void *(*body)(void *), void *argument, pthread_t *thread_out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigset_t all, before;
    pthread_t thread;
    start *s = malloc(sizeof *s);
    if (s == NULL) return ENOMEM;
    *s = (start){.kind = kind, .body = body, .argument = argument};
    pthread_once(&once, watch_forks);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_fetch_add_explicit(&living[kind], 1, memory_order_relaxed);
    int error = pthread_create(&thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        atomic_fetch_sub_explicit(&living[kind], 1, memory_order_relaxed);
        free(s);
        return error;
    }
    if (thread_out != NULL) *thread_out = thread;
    else pthread_detach(thread);
    return 0;
}

#define IDLE_NS TUTTI_NS_PER_S

/* Takes a wake, or sleeps until there is one or the time has passed. */
static void nap(tutti_service *s, int64_t until_ns) {
    s->idle++;
    while (s->wakes == 0 && tutti_cond_wait_until(&s->wake, tutti_lock_mutex(s->lock), until_ns)) {}
    s->idle--;
    if (s->wakes > 0) s->wakes--;
}

static void *serve(void *argument) {
    tutti_service *s = argument;
    tutti_lock(s->lock);
    int64_t now_ns = tutti_now_ns(), worked_ns = now_ns, nap_ns = 0;
    while (s->wakes > 0 || now_ns - worked_ns < IDLE_NS) {
        nap(s, now_ns + nap_ns);
        bool worked = s->round(&nap_ns);
        now_ns = tutti_now_ns();
        if (worked) worked_ns = now_ns;
    }
    s->threads--;
    tutti_unlock(s->lock);
    return NULL;
}

bool tutti_service_wake(tutti_service *s) {
    if (!s->ready) tutti_cond_init(&s->wake);
    s->ready = true;
    if (s->wakes < s->most_threads) s->wakes++;
    pthread_cond_signal(&s->wake);
    if (s->wakes <= s->idle || s->threads == s->most_threads) return true;
    if (tutti_thread_start(s->thread, serve, s, NULL) != 0) return false;
    s->threads++;
    return true;
}

int tutti_thread_count(tutti_thread_kind kind) {
    return atomic_load_explicit(&living[kind], memory_order_relaxed);
}
