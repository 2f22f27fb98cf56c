/*
 * Streams and events of the stand-in for CUDA. A stream is a thread with a queue of tasks; NULL is a stream of each
 * GPU, TUTTI_STREAM_OF_THREAD a stream of each thread, made when first used. As with CUDA's, a thread that enqueues
 * into a full stream waits until it has room. A wait for an event waits for its last record so far, whatever happens
 * to the event later.
 *
 * Invariant: a task's number is higher than those of all tasks enqueued before it, on any stream.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "tests/support/standins/standin_cuda.h"

typedef struct task {
    struct task *next;
    uint64_t number;
    void (*function)(void *context);
    void *context;
} task;

/* All protected by standin_lock. */
struct standin_stream {
    standin_stream *next;
    task *first, **last; /* the first one is running, or the next to run */
    int held;            /* tasks in it */
    int gpu;             /* GPU that was current when it was made */
    bool closing, captures;
    unsigned random;
};

/* One record of an event, shared by its owner and the tasks that wait for it. */
typedef struct mark {
    bool reached;
    int holders;
} mark;

struct tutti_event_ {
    mark *last;    /* NULL: it was never recorded */
    int gpu;       /* GPU that was current when it was made */
    bool captured; /* its last record went into a graph; `last` is then the previous one */
};

static standin_stream *streams, *defaults[STANDIN_MOST_GPUS];
static uint64_t task_numbers;
static _Thread_local __attribute__((tls_model("initial-exec"))) bool is_stream_thread;
static _Thread_local __attribute__((tls_model("initial-exec"))) standin_stream *of_thread[STANDIN_MOST_GPUS];

/* ------------------------------------------------------------------------------------------------ streams */

static void run_task(const task *t, unsigned *random) {
    int delay_us = standin_delay_us();
    if (delay_us > 0) usleep((unsigned)rand_r(random) % (unsigned)(delay_us + 1));
    if (standin_fails("task")) standin_break("an illegal memory access was encountered");
    t->function(t->context);
}

static void forget(standin_stream *gone) {
    standin_stream **at = &streams;
    while (*at != gone) at = &(*at)->next;
    *at = gone->next;
    free(gone);
}

/* Under the lock: whether the stream, or any stream, has a task with at most this number. */
static bool is_behind(const standin_stream *only, uint64_t number) {
    for (const standin_stream *s = streams; s != NULL; s = s->next)
        if ((only == NULL || s == only) && s->first != NULL && s->first->number <= number) return true;
    return false;
}

static void *stream_thread(void *argument) {
    standin_stream *s = argument;
    is_stream_thread = true;
    pthread_mutex_lock(&standin_lock);
    while (s->first != NULL || !s->closing) {
        task *t = s->first;
        if (t == NULL || (standin_in_order() && is_behind(NULL, t->number - 1))) {
            pthread_cond_wait(&standin_changed, &standin_lock);
            continue;
        }
        pthread_mutex_unlock(&standin_lock);
        run_task(t, &s->random);
        pthread_mutex_lock(&standin_lock);
        s->first = t->next;
        s->held--;
        if (s->first == NULL) s->last = &s->first;
        free(t);
        pthread_cond_broadcast(&standin_changed);
    }
    forget(s);
    pthread_mutex_unlock(&standin_lock);
    return NULL;
}

/* Under the lock. */
static standin_stream *create_locked(void) {
    pthread_t thread;
    standin_stream *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->last = &s->first;
    s->gpu = standin_current();
    s->random = (unsigned)getpid() + (unsigned)task_numbers;
    s->next = streams;
    streams = s;
    if (pthread_create(&thread, NULL, stream_thread, s) == 0) {
        pthread_detach(thread);
        return s;
    }
    forget(s);
    return NULL;
}

/* Under the lock. */
static standin_stream *stream_of(void *stream) {
    bool of_this_thread = (uintptr_t)stream == TUTTI_STREAM_OF_THREAD;
    if (stream != NULL && !of_this_thread) return stream;
    standin_stream **own = &(of_this_thread ? of_thread : defaults)[standin_current()];
    if (*own == NULL) *own = create_locked();
    if (*own == NULL) abort(); /* cannot start a thread: the test cannot continue */
    return *own;
}

static int gpu_of(void *stream) {
    pthread_mutex_lock(&standin_lock);
    int gpu = stream_of(stream)->gpu;
    pthread_mutex_unlock(&standin_lock);
    return gpu;
}

tutti_status standin_check_launch(void *stream) {
    int gpu = gpu_of(stream);
    if (gpu == standin_current()) return TUTTI_OK;
    return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: a kernel for a stream of GPU %d while %d is current", gpu,
                              standin_current());
}

void standin_enqueue(void *stream, void (*function)(void *context), void *context) {
    task *t = calloc(1, sizeof *t);
    if (t == NULL) abort();
    *t = (task){.function = function, .context = context};
    pthread_mutex_lock(&standin_lock);
    standin_stream *s = stream_of(stream);
    while (s->held >= standin_depth()) pthread_cond_wait(&standin_changed, &standin_lock);
    t->number = ++task_numbers;
    *s->last = t;
    s->last = &t->next;
    s->held++;
    pthread_cond_broadcast(&standin_changed);
    pthread_mutex_unlock(&standin_lock);
}

tutti_status standin_stream_create(tutti_stream *stream_out) {
    STANDIN_BEGIN("stream_create");
    standin_make_context();
    pthread_mutex_lock(&standin_lock);
    standin_stream *made = create_locked();
    pthread_mutex_unlock(&standin_lock);
    if (made == NULL) return standin_host->fail(TUTTI_ERR_MEMORY, "stand-in: cannot start a thread for a stream");
    *stream_out = made;
    return TUTTI_OK;
}

/* Returns at once; what is enqueued still runs. */
tutti_status standin_stream_destroy(tutti_stream stream) {
    STANDIN_BEGIN("stream_destroy");
    pthread_mutex_lock(&standin_lock);
    ((standin_stream *)stream)->closing = true;
    pthread_cond_broadcast(&standin_changed);
    pthread_mutex_unlock(&standin_lock);
    return TUTTI_OK;
}

static void wait_for_streams(const standin_stream *only) {
    uint64_t number = task_numbers;
    while (is_behind(only, number)) pthread_cond_wait(&standin_changed, &standin_lock);
}

bool standin_in_stream(void) {
    return is_stream_thread;
}

void standin_sync(tutti_stream stream) {
    pthread_mutex_lock(&standin_lock);
    wait_for_streams(stream_of(stream));
    pthread_mutex_unlock(&standin_lock);
}

void standin_sync_all(void) {
    pthread_mutex_lock(&standin_lock);
    wait_for_streams(NULL);
    pthread_mutex_unlock(&standin_lock);
}

tutti_status standin_stream_sync(tutti_stream stream) {
    STANDIN_BEGIN("stream_sync");
    standin_sync(stream);
    return standin_begin("stream_sync ended"); /* a task in it may have failed */
}

tutti_status standin_device_sync(void) {
    STANDIN_BEGIN("sync");
    if (standin_graph_invalidates())
        return standin_host->fail(TUTTI_ERR_SYSTEM,
                                  "stand-in: the GPU was waited for while a stream was being captured "
                                  "(cudaErrorStreamCaptureUnsupported)");
    standin_sync_alone(STANDIN_ALL_STREAMS);
    return standin_begin("sync ended");
}

tutti_status standin_stream_captures(tutti_stream stream, bool *captures_out) {
    STANDIN_BEGIN("stream_captures");
    pthread_mutex_lock(&standin_lock);
    *captures_out = stream != NULL && stream_of(stream)->captures;
    pthread_mutex_unlock(&standin_lock);
    return TUTTI_OK;
}

void standin_capture(void *stream, bool captures) {
    pthread_mutex_lock(&standin_lock);
    ((standin_stream *)stream)->captures = captures;
    pthread_mutex_unlock(&standin_lock);
}

/* ------------------------------------------------------------------------------------------------- events */

/* Under the lock. */
static void let_go(mark *m) {
    if (m != NULL && --m->holders == 0) free(m);
}

tutti_status standin_event_create(tutti_event_handle *event_out) {
    struct tutti_event_ *made = NULL;
    STANDIN_BEGIN("event_create");
    TUTTI_TRY(standin_host->calloc(1, sizeof *made, &made));
    made->gpu = standin_current();
    *event_out = made;
    return TUTTI_OK;
}

tutti_status standin_event_destroy(tutti_event_handle event) {
    tutti_status status = standin_begin("event_destroy"); /* a GPU that has failed does not keep host memory */
    pthread_mutex_lock(&standin_lock);
    if (event != NULL) let_go(event->last);
    pthread_mutex_unlock(&standin_lock);
    free(event);
    return status;
}

static void reach_mark(void *context) {
    mark *m = context;
    pthread_mutex_lock(&standin_lock);
    m->reached = true;
    pthread_cond_broadcast(&standin_changed);
    let_go(m);
    pthread_mutex_unlock(&standin_lock);
}

static void await_mark(void *context) {
    mark *m = context;
    pthread_mutex_lock(&standin_lock);
    while (!m->reached && !standin_is_broken()) pthread_cond_wait(&standin_changed, &standin_lock);
    let_go(m);
    pthread_mutex_unlock(&standin_lock);
}

tutti_status standin_event_record(tutti_event_handle event, tutti_stream stream) {
    STANDIN_BEGIN("event_record");
    if (event->gpu != gpu_of(stream))
        return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: an event of GPU %d is recorded in a stream of GPU %d",
                                  event->gpu, gpu_of(stream));
    bool captured = standin_record_event(event, true, stream);
    mark *made = NULL;
    if (!captured) TUTTI_TRY(standin_host->calloc(1, sizeof *made, &made));
    pthread_mutex_lock(&standin_lock);
    event->captured = captured;
    if (captured) {
        pthread_mutex_unlock(&standin_lock);
        return TUTTI_OK;
    }
    made->holders = 2;
    let_go(event->last);
    event->last = made;
    pthread_mutex_unlock(&standin_lock);
    standin_enqueue(stream, reach_mark, made);
    return TUTTI_OK;
}

tutti_status standin_stream_wait_event(tutti_stream stream, tutti_event_handle event) {
    STANDIN_BEGIN("stream_wait_event");
    if (standin_record_event(event, false, stream)) return TUTTI_OK;
    pthread_mutex_lock(&standin_lock);
    mark *last = event->last; /* later records do not matter */
    if (last != NULL) last->holders++;
    pthread_mutex_unlock(&standin_lock);
    if (last != NULL) standin_enqueue(stream, await_mark, last);
    return TUTTI_OK;
}

tutti_status standin_event_query_bare(tutti_event_handle event) {
    STANDIN_BEGIN("event_query");
    pthread_mutex_lock(&standin_lock);
    bool reached = event->last == NULL || event->last->reached, captured = event->captured;
    pthread_mutex_unlock(&standin_lock);
    if (captured) {
        standin_graph_spoil(event);
        return standin_host->fail(TUTTI_ERR_SYSTEM, "stand-in: a query of an event that was last recorded in a stream "
                                                    "that was being captured (cudaErrorCapturedEvent)");
    }
    if (standin_graph_forbids())
        return standin_host->fail(TUTTI_ERR_SYSTEM, "stand-in: a query while a stream is being captured "
                                                    "(cudaErrorStreamCaptureUnsupported)");
    return reached ? TUTTI_OK : TUTTI_NOT_YET;
}

/* The query that kernels/cuda makes. */
tutti_status standin_event_query(tutti_event_handle event) {
    int mode = STANDIN_RELAXED;
    standin_exchange_mode(&mode);
    tutti_status status = standin_event_query_bare(event);
    standin_exchange_mode(&mode);
    return status;
}
