/*
 * libstandin_training.so: the stand-in for CUDA with kernels for training: those of kernels/cuda, run on the host in stream
 * order. What is enqueued while a step is recorded is kept in a list, and replayed as one task.
 *
 * As in CUDA, a stream that waits for an event of the recorded one is recorded as well from there on, and its work must be
 * waited for before the recording ends. One recording at a time in a process.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/compute.h"
#include "tests/support/emulated/enqueue.h"
#include "tests/support/standin_cuda.h"

void standin_training_start(const tutti_module_host *host, const tutti_device *device);

const tutti_module_host *tutti_cuda_host;
const tutti_device *tutti_cuda_device;

typedef struct call {
    struct call *next;
    void (*run)(void *context);
    void (*forget)(void *context);
    void *context;
} call;

/* A stream of a recording; the first one is the recorded one. */
typedef struct branch {
    void *stream;
    size_t last;   /* number of its last call, or of its fork */
    size_t joined; /* as far as the first stream has waited for it */
} branch;

/* An event that was recorded in one of them. */
typedef struct mark {
    const void *event;
    int branch;
    size_t last; /* of the branch, then */
} mark;

enum { BRANCHES = 4, MARKS = 64 };

struct tutti_recording {
    void *stream;
    call *first, **last;
    size_t count;
    branch branches[BRANCHES];
    int nbranches;
    mark marks[MARKS]; /* a ring: old ones are not waited for any more */
    size_t nmarks;
};

static pthread_mutex_t under_way_lock = PTHREAD_MUTEX_INITIALIZER;
static tutti_recording *under_way; /* under the lock */
static tutti_device recordable;    /* the stand-in's, whose copies are recorded as well */

/* ---------------------------------------------------------------------------------------------- in the stream */

void *emulated_reach(const void *address) {
    void *reached = address != NULL ? standin_reach_as_gpu(address, 1) : NULL;
    if (address != NULL && reached == NULL) {
        fprintf(stderr, "emulation: a kernel was given %p, which is no address of the GPU's\n", address);
        abort();
    }
    return reached;
}

static void run_once(void *context) {
    call *once = context;
    if (!standin_is_broken()) once->run(once->context);
    once->forget(once->context);
    free(once);
}

/* Under the lock. */
static branch *find_branch(const void *stream) {
    for (int i = 0; under_way != NULL && i < under_way->nbranches; i++)
        if (under_way->branches[i].stream == stream) return &under_way->branches[i];
    return NULL;
}

static bool is_recording(void) {
    pthread_mutex_lock(&under_way_lock);
    bool is = under_way != NULL;
    pthread_mutex_unlock(&under_way_lock);
    return is;
}

bool standin_record(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context) {
    pthread_mutex_lock(&under_way_lock);
    branch *into = find_branch(stream);
    if (into != NULL) {
        call *made = malloc(sizeof *made);
        *made = (call){NULL, run, forget, context};
        *under_way->last = made;
        under_way->last = &made->next;
        into->last = ++under_way->count;
    }
    pthread_mutex_unlock(&under_way_lock);
    return into != NULL;
}

void emulated_enqueue(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context) {
    if (standin_record(stream, run, forget, context)) return;
    call *made = malloc(sizeof *made);
    *made = (call){NULL, run, forget, context};
    standin_enqueue(stream, run_once, made);
}

/* Under the lock. The newest one of that event; NULL: it is outside of the recording. */
static const mark *find_mark(const void *event) {
    for (size_t n = under_way->nmarks; n > 0 && under_way->nmarks - n < MARKS; n--)
        if (under_way->marks[(n - 1) % MARKS].event == event) return &under_way->marks[(n - 1) % MARKS];
    return NULL;
}

/* Under the lock. The stream waits for an event of the recording. */
static void wait_for_mark(branch *waits, const mark *at, void *stream) {
    if (waits == NULL) {
        if (under_way->nbranches == BRANCHES) abort();
        waits = &under_way->branches[under_way->nbranches++];
        *waits = (branch){.stream = stream, .last = ++under_way->count};
        standin_capture(stream, true);
    }
    if (waits == &under_way->branches[0] && under_way->branches[at->branch].joined < at->last)
        under_way->branches[at->branch].joined = at->last;
}

bool standin_record_event(tutti_event_handle event, bool records, tutti_stream stream) {
    pthread_mutex_lock(&under_way_lock);
    branch *of = find_branch(stream);
    const mark *at = under_way != NULL && !records ? find_mark(event) : NULL;
    if (of != NULL && records) {
        int index = (int)(of - under_way->branches);
        under_way->marks[under_way->nmarks++ % MARKS] = (mark){.event = event, .branch = index, .last = of->last};
    } else if (at != NULL) {
        wait_for_mark(of, at, stream);
    } else if (of != NULL) {
        fprintf(stderr, "emulation: a stream that is recorded waits for an event outside of the recording\n");
        abort();
    }
    bool taken = of != NULL || at != NULL;
    pthread_mutex_unlock(&under_way_lock);
    return taken;
}

/* ------------------------------------------------------------------------------------------- copies and fills */

typedef struct move {
    void *dst;
    const void *src; /* NULL: bytes of `value` */
    size_t bytes;
    int value;
} move;

static void run_move(void *context) {
    const move *m = context;
    if (m->src != NULL) memmove(emulated_reach(m->dst), emulated_reach(m->src), m->bytes);
    else memset(emulated_reach(m->dst), m->value, m->bytes);
}

static void record_move(move what, tutti_stream stream) {
    move *made = malloc(sizeof *made);
    *made = what;
    emulated_enqueue(stream, run_move, free, made);
}

static tutti_status copy(void *dst, const void *src, size_t bytes, tutti_stream stream) {
    if (!is_recording()) return standin_copy(dst, src, bytes, stream);
    record_move((move){.dst = dst, .src = src, .bytes = bytes}, stream);
    return TUTTI_OK;
}

static tutti_status fill(void *dst, int value, size_t bytes, tutti_stream stream) {
    if (!is_recording()) return standin_fill(dst, value, bytes, stream);
    record_move((move){.dst = dst, .bytes = bytes, .value = value}, stream);
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------------- recording */

static void forget_calls(tutti_recording *recording) {
    while (recording->first != NULL) {
        call *first = recording->first;
        recording->first = first->next;
        first->forget(first->context);
        free(first);
    }
    free(recording);
}

tutti_status tutti_recording_begin(tutti_compute *compute) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    tutti_recording *made = calloc(1, sizeof *made);
    made->stream = cuda->stream;
    made->last = &made->first;
    made->branches[made->nbranches++].stream = cuda->stream;
    pthread_mutex_lock(&under_way_lock);
    under_way = made;
    pthread_mutex_unlock(&under_way_lock);
    cuda->recording = true;
    standin_capture(cuda->stream, true);
    return TUTTI_OK;
}

/* Is all that other streams were given waited for? */
static tutti_status check_joined(const tutti_recording *made) {
    for (int i = 1; i < made->nbranches; i++)
        if (made->branches[i].joined < made->branches[i].last)
            return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM,
                                         "stand-in: recording ended with a stream that nothing waits for");
    return TUTTI_OK;
}

tutti_status tutti_recording_end(tutti_compute *compute, tutti_recording **recording_out) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    pthread_mutex_lock(&under_way_lock);
    tutti_recording *made = under_way;
    under_way = NULL;
    pthread_mutex_unlock(&under_way_lock);
    cuda->recording = false;
    for (int i = 0; i < made->nbranches; i++) standin_capture(made->branches[i].stream, false);
    tutti_status status = compute->kernels->check(compute);
    if (status == TUTTI_OK) status = check_joined(made);
    if (status == TUTTI_OK) *recording_out = made;
    else forget_calls(made);
    return status;
}

static void run_recording(void *context) {
    const tutti_recording *recording = context;
    for (const call *next = recording->first; next != NULL && !standin_is_broken(); next = next->next)
        next->run(next->context);
}

tutti_status tutti_recording_replay(tutti_compute *compute, tutti_recording *recording) {
    (void)compute;
    if (standin_is_broken()) return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM, "stand-in: replay after a failure");
    standin_enqueue(recording->stream, run_recording, recording);
    return TUTTI_OK;
}

void tutti_recording_forget(tutti_compute *compute, tutti_recording *recording) {
    if (recording == NULL) return;
    (void)compute->kernels->wait(compute);
    forget_calls(recording);
}

void standin_training_start(const tutti_module_host *host, const tutti_device *device) {
    recordable = *device;
    recordable.copy = copy;
    recordable.fill = fill;
    tutti_cuda_host = host;
    tutti_cuda_device = &recordable;
}
