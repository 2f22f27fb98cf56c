/*
 * The nodes of one job. All requests to the store are made by one thread; `lock` guards what it shares with the launcher's
 * loop: `news`, written by the thread, and `wants`, written by the loop.
 */
#include "bootstrap/launch_nodes.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/store.h"

enum { LISTEN_MS = 200, BEAT_MS = 1000, LEAST_SILENT_MS = 3000, TRY_MS = 500, EVENT_BYTES = 700 };

/* What the loop wants to have told. */
typedef struct wishes {
    int attempt;
    bool report, ended, close;
    tutti_launch_failure failure;
    int exit_code;
    char text[600];
} wishes;

/* One node's sign of life, as node 0 sees it. */
typedef struct beat {
    int64_t count, seen_ns;
    bool silent;
} beat;

struct tutti_launch_nodes {
    tutti_launch_nodes_options options;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    tutti_launch_news news;
    wishes wants;
    /* The rest belongs to the thread. */
    tutti_store_client *client;
    tutti_store store;
    int attempt, nevents; /* of which attempt, and how many of its events are read */
    bool open;            /* no verdict on it yet */
    int64_t beat_ns;
    beat *beats; /* on node 0: by node */
};

/* ------------------------------------------------------------------------------------------------ store */

typedef struct key {
    char text[320];
} key;

static key key_of(const tutti_launch_nodes *nodes, const char *name) {
    key made;
    snprintf(made.text, sizeof made.text, "tuttirun/%.200s/%s", nodes->options.run_id, name);
    return made;
}

static key attempt_key(const tutti_launch_nodes *nodes, const char *name) {
    key made;
    snprintf(made.text, sizeof made.text, "tuttirun/%.200s/%d/%s", nodes->options.run_id, nodes->attempt, name);
    return made;
}

static tutti_status add(tutti_launch_nodes *nodes, key at, int64_t amount, int64_t *value_out) {
    return nodes->store.add(nodes->store.context, at.text, amount, value_out);
}

/* The number is drawn first and the event written then: readers wait for it. */
static tutti_status post(tutti_launch_nodes *nodes, const char *event) {
    int64_t number;
    char name[40];
    TUTTI_TRY(add(nodes, attempt_key(nodes, "events"), 1, &number));
    snprintf(name, sizeof name, "event/%lld", (long long)number);
    return nodes->store.set(nodes->store.context, attempt_key(nodes, name).text, event, strlen(event));
}

static tutti_status post_failure(tutti_launch_nodes *nodes, tutti_launch_failure failure, int node, int exit_code,
                                 const char *text) {
    char event[EVENT_BYTES];
    int64_t number;
    TUTTI_TRY(add(nodes, attempt_key(nodes, "failures"), 1, &number));
    if (failure == TUTTI_LAUNCH_FAILED_FINALLY) TUTTI_TRY(add(nodes, attempt_key(nodes, "final"), 1, &number));
    snprintf(event, sizeof event, "failed %d %d %s", node, exit_code, text);
    return post(nodes, event);
}

/* A node whose ranks have ended has told of their failures before. So the last one knows how the attempt went. */
static tutti_status count_ended(tutti_launch_nodes *nodes) {
    int64_t ended, failures, final;
    TUTTI_TRY(add(nodes, attempt_key(nodes, "ended"), 1, &ended));
    if (ended != nodes->options.nnodes) return TUTTI_OK;
    TUTTI_TRY(add(nodes, attempt_key(nodes, "failures"), 0, &failures));
    TUTTI_TRY(add(nodes, attempt_key(nodes, "final"), 0, &final));
    bool again = failures > 0 && final == 0 && nodes->attempt < nodes->options.max_restarts;
    if (again) TUTTI_TRY(add(nodes, key_of(nodes, "generation"), 1, &final));
    return post(nodes, again ? "again" : "done");
}

/* ------------------------------------------------------------------------------------------- signs of life */

/* A node whose counter stands still for so long has ended. */
static int64_t silent_ns(void) {
    int64_t timeout_ms = tutti_setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS);
    return (timeout_ms > LEAST_SILENT_MS ? timeout_ms : LEAST_SILENT_MS) * TUTTI_NS_PER_MS;
}

/* Node 0 looks at the others' counters. Who has not begun to count is not missed: his ranks are, by the other ranks. */
static tutti_status look_at_beats(tutti_launch_nodes *nodes, int64_t now_ns) {
    for (int i = 1; i < nodes->options.nnodes; i++) {
        beat *other = &nodes->beats[i];
        char name[40], text[160];
        int64_t count;
        snprintf(name, sizeof name, "beat/%d", i);
        TUTTI_TRY(add(nodes, key_of(nodes, name), 0, &count));
        if (count != other->count) *other = (beat){.count = count, .seen_ns = now_ns};
        if (count == 0 || other->silent || now_ns - other->seen_ns < silent_ns()) continue;
        other->silent = true;
        snprintf(text, sizeof text, "tuttirun on node %d has not been heard of for %lld s", i,
                 (long long)((now_ns - other->seen_ns) / TUTTI_NS_PER_S));
        TUTTI_TRY(post_failure(nodes, TUTTI_LAUNCH_FAILED, i, 1, text));
        TUTTI_TRY(count_ended(nodes));
    }
    return TUTTI_OK;
}

static tutti_status count_beat(tutti_launch_nodes *nodes) {
    int64_t count;
    char name[40];
    snprintf(name, sizeof name, "beat/%d", nodes->options.node);
    return add(nodes, key_of(nodes, name), 1, &count);
}

static tutti_status show_life(tutti_launch_nodes *nodes) {
    int64_t now_ns = tutti_now_ns();
    if (now_ns - nodes->beat_ns < BEAT_MS * TUTTI_NS_PER_MS) return TUTTI_OK;
    if (now_ns - nodes->beat_ns > silent_ns() / 2) /* we were stopped ourselves: nobody else is to blame */
        for (int i = 0; i < nodes->options.nnodes && nodes->beats != NULL; i++) nodes->beats[i].seen_ns = now_ns;
    nodes->beat_ns = now_ns;
    TUTTI_TRY(count_beat(nodes));
    return nodes->beats != NULL && nodes->open ? look_at_beats(nodes, now_ns) : TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ thread */

static void tell_loop(tutti_launch_nodes *nodes) {
    eventfd_write(nodes->event_fd, 1);
}

static void take_event(tutti_launch_nodes *nodes, const char *event) {
    int node, exit_code, used = 0;
    pthread_mutex_lock(&nodes->lock);
    if (sscanf(event, "failed %d %d %n", &node, &exit_code, &used) == 2 && used > 0) {
        if (nodes->news.failed_node < 0) {
            nodes->news.failed_node = node;
            nodes->news.exit_code = exit_code > 0 && exit_code < 256 ? exit_code : 1;
            snprintf(nodes->news.text, sizeof nodes->news.text, "%s", event + used);
            for (char *c = nodes->news.text; *c != '\0';
                 c++) /* it is for a terminal, and whoever reaches the store wrote it */
                if ((unsigned char)*c < ' ' || *c == 127) *c = ' ';
        }
    } else {
        nodes->news.verdict = strcmp(event, "again") == 0 ? TUTTI_LAUNCH_AGAIN : TUTTI_LAUNCH_DONE;
        nodes->open = false;
    }
    pthread_mutex_unlock(&nodes->lock);
    tell_loop(nodes);
}

/* Waits a moment for the next event. */
static tutti_status listen(tutti_launch_nodes *nodes) {
    char name[40], event[EVENT_BYTES + 1];
    size_t bytes = 0;
    if (!nodes->open) {
        usleep(LISTEN_MS * 100);
        return TUTTI_OK;
    }
    snprintf(name, sizeof name, "event/%d", nodes->nevents + 1);
    tutti_status status =
        nodes->store.get(nodes->store.context, attempt_key(nodes, name).text, event, EVENT_BYTES, &bytes, LISTEN_MS);
    if (status == TUTTI_ERR_TIMEOUT) return TUTTI_OK;
    TUTTI_TRY(status);
    event[bytes] = '\0';
    nodes->nevents++;
    take_event(nodes, event);
    return TUTTI_OK;
}

/* Tells what the loop wants to have told; *closed_out when that was all, for ever. */
static tutti_status carry_out(tutti_launch_nodes *nodes, bool *closed_out) {
    pthread_mutex_lock(&nodes->lock);
    wishes wants = nodes->wants;
    nodes->wants.report = nodes->wants.ended = false;
    pthread_mutex_unlock(&nodes->lock);
    if (wants.attempt != nodes->attempt) {
        nodes->attempt = wants.attempt;
        nodes->nevents = 0;
        nodes->open = true;
    }
    if (wants.report) TUTTI_TRY(post_failure(nodes, wants.failure, nodes->options.node, wants.exit_code, wants.text));
    if (wants.ended) TUTTI_TRY(count_ended(nodes));
    *closed_out = wants.close;
    return TUTTI_OK;
}

static bool wants_close(tutti_launch_nodes *nodes) {
    pthread_mutex_lock(&nodes->lock);
    bool closes = nodes->wants.close;
    pthread_mutex_unlock(&nodes->lock);
    return closes;
}

/* In short tries, so that a launcher that is asked to end meanwhile does. */
static tutti_status join(tutti_launch_nodes *nodes) {
    const tutti_launch_nodes_options *options = &nodes->options;
    tutti_deadline deadline = tutti_deadline_after_ms(options->join_ms);
    int64_t generation;
    while (tutti_store_client_connect(options->host, options->port, TRY_MS, &nodes->client) != TUTTI_OK) {
        if (wants_close(nodes)) return tutti_fail(TUTTI_ERR_ABORTED, "tuttirun ends");
        if (tutti_deadline_passed(&deadline))
            return tutti_fail(TUTTI_ERR_TIMEOUT, "node 0's tuttirun is not there at %s:%d after %lld s", options->host,
                              options->port, (long long)options->join_ms / 1000);
    }
    nodes->store = tutti_store_client_callbacks(nodes->client);
    nodes->beat_ns = tutti_now_ns();
    TUTTI_TRY(count_beat(nodes));
    TUTTI_TRY(add(nodes, key_of(nodes, "generation"), 0, &generation));
    pthread_mutex_lock(&nodes->lock);
    nodes->news.joined = true;
    nodes->news.attempt = nodes->wants.attempt = nodes->attempt = (int)generation;
    pthread_mutex_unlock(&nodes->lock);
    nodes->open = true;
    tell_loop(nodes);
    return TUTTI_OK;
}

static void *talk(void *argument) {
    tutti_launch_nodes *nodes = argument;
    bool closed = false;
    tutti_status status = join(nodes);
    while (status == TUTTI_OK && !closed) {
        status = carry_out(nodes, &closed);
        if (status == TUTTI_OK && !closed) status = show_life(nodes);
        if (status == TUTTI_OK && !closed) status = listen(nodes);
    }
    if (status != TUTTI_OK) {
        pthread_mutex_lock(&nodes->lock);
        nodes->news.verdict = TUTTI_LAUNCH_LOST;
        snprintf(nodes->news.text, sizeof nodes->news.text, "%s", tutti_last_error());
        pthread_mutex_unlock(&nodes->lock);
        tell_loop(nodes);
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------------------- the loop's */

static tutti_status start(tutti_launch_nodes *nodes) {
    sigset_t all, before; /* signals are the loop's */
    nodes->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (nodes->event_fd < 0) return tutti_fail_errno(errno, "eventfd");
    if (nodes->options.node == 0)
        TUTTI_TRY(tutti_calloc((size_t)nodes->options.nnodes, sizeof *nodes->beats, &nodes->beats));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&nodes->thread, NULL, talk, nodes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? TUTTI_OK : tutti_fail_errno(error, "cannot start a thread");
}

static void destroy(tutti_launch_nodes *nodes) {
    tutti_store_client_close(nodes->client);
    if (nodes->event_fd >= 0) close(nodes->event_fd);
    pthread_mutex_destroy(&nodes->lock);
    free(nodes->beats);
    free(nodes);
}

tutti_status tutti_launch_nodes_open(const tutti_launch_nodes_options *options, tutti_launch_nodes **nodes_out) {
    tutti_launch_nodes *nodes;
    TUTTI_TRY(tutti_calloc(1, sizeof *nodes, &nodes));
    nodes->options = *options;
    nodes->news.failed_node = nodes->event_fd = -1;
    pthread_mutex_init(&nodes->lock, NULL);
    tutti_status status = start(nodes);
    if (status == TUTTI_OK) *nodes_out = nodes;
    else destroy(nodes);
    return status;
}

int tutti_launch_nodes_fd(const tutti_launch_nodes *nodes) {
    return nodes->event_fd;
}

void tutti_launch_nodes_look(tutti_launch_nodes *nodes, tutti_launch_news *news_out) {
    eventfd_t count;
    (void)eventfd_read(nodes->event_fd, &count);
    pthread_mutex_lock(&nodes->lock);
    *news_out = nodes->news;
    pthread_mutex_unlock(&nodes->lock);
}

void tutti_launch_nodes_begin(tutti_launch_nodes *nodes, int attempt) {
    pthread_mutex_lock(&nodes->lock);
    if (nodes->news.verdict == TUTTI_LAUNCH_AGAIN) nodes->news.verdict = TUTTI_LAUNCH_OPEN;
    if (nodes->news.attempt != attempt) nodes->news.failed_node = -1;
    nodes->news.attempt = nodes->wants.attempt = attempt;
    pthread_mutex_unlock(&nodes->lock);
}

void tutti_launch_nodes_report(tutti_launch_nodes *nodes, tutti_launch_failure failure, int exit_code,
                               const char *text) {
    pthread_mutex_lock(&nodes->lock);
    nodes->wants.report = true;
    nodes->wants.failure = failure;
    nodes->wants.exit_code = exit_code;
    snprintf(nodes->wants.text, sizeof nodes->wants.text, "%s", text);
    pthread_mutex_unlock(&nodes->lock);
}

void tutti_launch_nodes_ended(tutti_launch_nodes *nodes) {
    pthread_mutex_lock(&nodes->lock);
    nodes->wants.ended = true;
    pthread_mutex_unlock(&nodes->lock);
}

/* After the thread has ended, its client is ours. */
static int say_goodbye(tutti_launch_nodes *nodes, int64_t leave_ms) {
    int64_t left = 0, leaving = 1; /* node 0 leaves for those, too, who cannot */
    size_t bytes;
    char word[8];
    for (int i = 0; i < nodes->options.nnodes && nodes->beats != NULL; i++) leaving += nodes->beats[i].silent;
    if (add(nodes, key_of(nodes, "left"), leaving, &left) != TUTTI_OK) return 0;
    if (left >= nodes->options.nnodes) {
        (void)nodes->store.set(nodes->store.context, key_of(nodes, "all_left").text, "1", 1);
        return 0;
    }
    if (nodes->options.node != 0 || leave_ms == 0) return 0;
    if (nodes->store.get(nodes->store.context, key_of(nodes, "all_left").text, word, sizeof word, &bytes, leave_ms) ==
        TUTTI_OK)
        return 0;
    if (add(nodes, key_of(nodes, "left"), 0, &left) != TUTTI_OK) return 0;
    return nodes->options.nnodes - (int)left;
}

int tutti_launch_nodes_close(tutti_launch_nodes *nodes, int64_t leave_ms) {
    int missing = 0;
    if (nodes == NULL) return 0;
    pthread_mutex_lock(&nodes->lock);
    nodes->wants.close = true;
    pthread_mutex_unlock(&nodes->lock);
    pthread_join(nodes->thread, NULL);
    if (nodes->news.joined && nodes->news.verdict != TUTTI_LAUNCH_LOST) missing = say_goodbye(nodes, leave_ms);
    destroy(nodes);
    return missing;
}
