/*
 * Graphs of the stand-in for CUDA. Tasks that are enqueued in a captured stream are kept in a list; each launch of
 * the graph runs the list as one task.
 *
 * As in CUDA, a stream that waits for an event of a captured stream is captured as well from there on, and its work
 * must be joined before the capture ends. Any number of streams may be captured at a time, each into a graph of its
 * own. The calls for tests have the signatures of the driver's.
 *
 * As in CUDA, a capture in the mode STANDIN_GLOBAL forbids potentially unsafe calls to all threads, one in
 * STANDIN_THREAD_LOCAL to the thread that began it, and one in STANDIN_RELAXED to none. Other threads escape it in
 * the mode STANDIN_THREAD_LOCAL, every thread in STANDIN_RELAXED. A forbidden call invalidates the capture, whose end
 * then fails.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/standins/standin_cuda.h"

typedef struct call {
    struct call *next;
    void (*run)(void *context);
    void (*forget)(void *context);
    void *context;
} call;

enum { BRANCHES = 4, MARKS = 64 };

/* A stream of a capture; the capture began with the first one. */
typedef struct branch {
    void *stream;
    size_t last;           /* number of its last call, or of its fork */
    size_t seen[BRANCHES]; /* how far it has waited for each stream, directly or through another stream */
} branch;

/* An event that was recorded in one of these streams. */
typedef struct mark {
    const void *event;
    size_t seen[BRANCHES]; /* the stream's, at that time; its own last call among them */
} mark;

typedef struct graph {
    struct graph *next; /* in the list of graphs that are being captured */
    call *first, **last;
    size_t count;
    branch branches[BRANCHES];
    int nbranches;
    mark marks[MARKS]; /* a ring: no stream waits for old ones any more */
    size_t nmarks;
    int holders;      /* its owners, and launches in progress */
    int mode;         /* mode of the capture */
    pthread_t thread; /* thread that began it */
    bool invalid;     /* a call that is not allowed was made during the capture */
} graph;

enum { INVALIDATED = 901 }; /* cudaErrorStreamCaptureInvalidated */

static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;
static graph *under_way; /* protected by the lock, as are holders, and all graphs until they are complete */
static _Thread_local __attribute__((tls_model("initial-exec"))) int mode_of_thread; /* STANDIN_GLOBAL */

/* -------------------------------------------------------------------------------------------------- capturing */

/* Under the lock. */
static branch *find_branch(const void *stream, graph **graph_out) {
    for (graph *g = under_way; g != NULL; g = g->next)
        for (int i = 0; i < g->nbranches; i++) {
            if (g->branches[i].stream != stream) continue;
            *graph_out = g;
            return &g->branches[i];
        }
    return NULL;
}

bool standin_record(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context) {
    graph *g;
    pthread_mutex_lock(&graphs_lock);
    branch *into = find_branch(stream, &g);
    if (into != NULL) {
        call *made = malloc(sizeof *made);
        if (made == NULL) abort();
        *made = (call){NULL, run, forget, context};
        *g->last = made;
        g->last = &made->next;
        into->last = ++g->count;
    }
    pthread_mutex_unlock(&graphs_lock);
    return into != NULL;
}

static void run_once(void *context) {
    call *once = context;
    if (!standin_is_broken()) once->run(once->context);
    once->forget(once->context);
    free(once);
}

void standin_submit(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context) {
    if (standin_record(stream, run, forget, context)) return;
    call *made = malloc(sizeof *made);
    if (made == NULL) abort();
    *made = (call){NULL, run, forget, context};
    standin_enqueue(stream, run_once, made);
}

/* Under the lock. The newest record of that event; NULL: no capture has one. */
static const mark *find_mark(const void *event, graph **graph_out) {
    for (graph *g = under_way; g != NULL; g = g->next)
        for (size_t n = g->nmarks; n > 0 && g->nmarks - n < MARKS; n--) {
            if (g->marks[(n - 1) % MARKS].event != event) continue;
            *graph_out = g;
            return &g->marks[(n - 1) % MARKS];
        }
    return NULL;
}

/* Under the lock. The event's record in a capture is no longer its last one. */
static void forget_marks(const void *event) {
    for (graph *g = under_way; g != NULL; g = g->next)
        for (int i = 0; i < MARKS; i++)
            if (g->marks[i].event == event) g->marks[i].event = NULL;
}

int standin_exchange_mode(int *mode) {
    int before = mode_of_thread;
    mode_of_thread = *mode;
    *mode = before;
    return 0;
}

bool standin_graph_forbids(void) {
    bool forbidden = false;
    if (mode_of_thread == STANDIN_RELAXED) return false;
    pthread_mutex_lock(&graphs_lock);
    for (graph *g = under_way; g != NULL; g = g->next) {
        bool own = pthread_equal(g->thread, pthread_self()) != 0;
        bool by_this = own ? g->mode != STANDIN_RELAXED : g->mode == STANDIN_GLOBAL && mode_of_thread == STANDIN_GLOBAL;
        g->invalid = g->invalid || by_this;
        forbidden = forbidden || by_this;
    }
    pthread_mutex_unlock(&graphs_lock);
    return forbidden;
}

bool standin_graph_invalidates(void) {
    pthread_mutex_lock(&graphs_lock);
    for (graph *g = under_way; g != NULL; g = g->next) g->invalid = true;
    bool any = under_way != NULL;
    pthread_mutex_unlock(&graphs_lock);
    return any;
}

void standin_graph_spoil(const void *event) {
    graph *g;
    pthread_mutex_lock(&graphs_lock);
    if (find_mark(event, &g) != NULL) g->invalid = true;
    pthread_mutex_unlock(&graphs_lock);
}

/* Under the lock. The stream waits for an event of the capture. */
static void wait_for_mark(graph *g, branch *waits, const mark *at, void *stream) {
    if (waits == NULL) {
        if (g->nbranches == BRANCHES) abort();
        waits = &g->branches[g->nbranches++];
        *waits = (branch){.stream = stream, .last = ++g->count};
        standin_capture(stream, true);
    }
    for (int i = 0; i < BRANCHES; i++)
        if (waits->seen[i] < at->seen[i]) waits->seen[i] = at->seen[i];
}

bool standin_record_event(tutti_event_handle event, bool records, tutti_stream stream) {
    graph *g = NULL, *of_mark = NULL;
    pthread_mutex_lock(&graphs_lock);
    branch *of = find_branch(stream, &g);
    const mark *at = records ? NULL : find_mark(event, &of_mark);
    if (records && of == NULL) forget_marks(event);
    if (of != NULL && records) {
        mark *made = &g->marks[g->nmarks++ % MARKS];
        made->event = event;
        memcpy(made->seen, of->seen, sizeof made->seen);
        made->seen[of - g->branches] = of->last;
    } else if (at != NULL) {
        wait_for_mark(of_mark, of, at, stream);
    } else if (of != NULL) {
        fprintf(stderr, "stand-in: a stream that is captured waits for an event outside of the capture\n");
        abort();
    }
    pthread_mutex_unlock(&graphs_lock);
    return of != NULL || at != NULL;
}

int standin_graph_begin(void *stream, int mode) {
    graph *g = calloc(1, sizeof *g);
    if (g == NULL) abort();
    g->mode = mode;
    g->thread = pthread_self();
    g->last = &g->first;
    g->holders = 1;
    g->branches[g->nbranches++].stream = stream;
    pthread_mutex_lock(&graphs_lock);
    g->next = under_way;
    under_way = g;
    standin_capture(stream, true);
    pthread_mutex_unlock(&graphs_lock);
    return 0;
}

/* ----------------------------------------------------------------------------------------------------- graphs */

static void let_go(graph *g) {
    pthread_mutex_lock(&graphs_lock);
    bool last = --g->holders == 0;
    pthread_mutex_unlock(&graphs_lock);
    if (!last) return;
    while (g->first != NULL) {
        call *first = g->first;
        g->first = first->next;
        first->forget(first->context);
        free(first);
    }
    free(g);
}

/* Returns 1 if a stream has work that was not joined, or INVALIDATED; no graph is made then. */
int standin_graph_end(void *stream, void **graph_out) {
    graph *g = NULL;
    bool joined = true, invalid;
    pthread_mutex_lock(&graphs_lock);
    if (find_branch(stream, &g) == NULL) abort();
    graph **at = &under_way;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    for (int i = 0; i < g->nbranches; i++) {
        standin_capture(g->branches[i].stream, false);
        joined = joined && (i == 0 || g->branches[0].seen[i] >= g->branches[i].last);
    }
    invalid = g->invalid;
    pthread_mutex_unlock(&graphs_lock);
    if (joined && !invalid) *graph_out = g;
    else let_go(g);
    return invalid ? INVALIDATED : joined ? 0 : 1;
}

static void *hold(graph *g) {
    pthread_mutex_lock(&graphs_lock);
    g->holders++;
    pthread_mutex_unlock(&graphs_lock);
    return g;
}

int standin_graph_instantiate(void **exec_out, void *made, unsigned long long flags) {
    (void)flags;
    *exec_out = hold(made);
    return 0;
}

static void run_graph(void *context) {
    graph *g = context;
    for (const call *next = g->first; next != NULL && !standin_is_broken(); next = next->next) next->run(next->context);
    let_go(g);
}

int standin_graph_launch(void *exec, void *stream) {
    if (standin_is_broken()) return 1;
    standin_enqueue(stream, run_graph, hold(exec));
    return 0;
}

int standin_graph_forget(void *exec) {
    let_go(exec);
    return 0;
}
