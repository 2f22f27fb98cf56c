/*
 * The nodes of one job. One thread makes all requests to the store; `lock` guards the data that it shares with the
 * launcher's loop: `news`, written by the thread, and `wants`, written by the loop.
 */
#include "tools/tuttirun/launch_nodes.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/thread.h"
#include "tools/tuttirun/launch_nodes_state.h"

enum { PROMPT_MS = 1000 };

/* ------------------------------------------------------------------------------------------------ events */

/* The number is drawn first and the event written after that: readers wait for it. */
static tutti_status post(tutti_launch_nodes *nodes, const char *event) {
    int64_t number;
    char name[40];
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "events"), 1, &number));
    snprintf(name, sizeof name, "event/%lld", (long long)number);
    return tutti_launch_set(nodes, tutti_launch_attempt_key(nodes, name), event);
}

static tutti_status post_failure(tutti_launch_nodes *nodes, tutti_launch_failure failure, int node, int exit_code,
                                 const char *text) {
    char event[TUTTI_LAUNCH_EVENT_BYTES];
    int64_t number;
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "failures"), 1, &number));
    if (failure == TUTTI_LAUNCH_FAILED_FINALLY)
        TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "final"), 1, &number));
    snprintf(event, sizeof event, "failed %d %d %s", node, exit_code, text);
    return post(nodes, event);
}

/* A node reports its failures before the end of its ranks, so the last node to end knows the result of the attempt. */
static tutti_status count_ended(tutti_launch_nodes *nodes, int node) {
    int64_t ended, failures, final;
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_node_key(nodes, "over", node), 1, &ended));
    if (ended != 1) return TUTTI_OK; /* it was killed, and both its keeper and node 0 report that */
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "ended"), 1, &ended));
    if (ended != nodes->options.nnodes) return TUTTI_OK;
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "failures"), 0, &failures));
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "final"), 0, &final));
    bool again = failures > 0 && final == 0 && nodes->attempt < nodes->options.max_restarts;
    if (again) TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_key_of(nodes, "generation"), 1, &final));
    return post(nodes, again ? "again" : "done");
}

/* ------------------------------------------------------------------------------------------------ thread */

static void notify_loop(tutti_launch_nodes *nodes) {
    eventfd_write(nodes->event_fd, 1);
}

static void conclude(tutti_launch_nodes *nodes, tutti_launch_verdict verdict) {
    pthread_mutex_lock(&nodes->lock);
    nodes->news.verdict = verdict;
    pthread_mutex_unlock(&nodes->lock);
    nodes->open = false;
    notify_loop(nodes);
}

static void take_event(tutti_launch_nodes *nodes, const char *event) {
    int node, exit_code, used = 0;
    if (sscanf(event, "failed %d %d %n", &node, &exit_code, &used) != 2 || used == 0) {
        conclude(nodes, strcmp(event, "again") == 0 ? TUTTI_LAUNCH_AGAIN : TUTTI_LAUNCH_DONE);
        return;
    }
    pthread_mutex_lock(&nodes->lock);
    if (nodes->news.failed_node < 0) {
        nodes->news.failed_node = node;
        nodes->news.exit_code = exit_code > 0 && exit_code < 256 ? exit_code : 1;
        snprintf(nodes->news.text, sizeof nodes->news.text, "%.599s", event + used);
    }
    pthread_mutex_unlock(&nodes->lock);
    notify_loop(nodes);
}

/* Waits a short time for the next event. */
static tutti_status listen(tutti_launch_nodes *nodes) {
    char name[40], event[TUTTI_LAUNCH_EVENT_BYTES + 1];
    if (!nodes->open) {
        tutti_nap(TUTTI_LAUNCH_LISTEN_MS * TUTTI_NS_PER_MS / 10);
        return TUTTI_OK;
    }
    snprintf(name, sizeof name, "event/%d", nodes->nevents + 1);
    tutti_status status =
        tutti_launch_get(nodes, tutti_launch_attempt_key(nodes, name), event, sizeof event, TUTTI_LAUNCH_LISTEN_MS);
    if (status == TUTTI_NOT_YET) return TUTTI_OK;
    TUTTI_TRY(status);
    nodes->nevents++;
    take_event(nodes, event);
    return TUTTI_OK;
}

/* Carries out the requests of the loop. */
static tutti_status carry_out(tutti_launch_nodes *nodes, const tutti_launch_wishes *wants) {
    pthread_mutex_lock(&nodes->lock);
    if (wants->report) nodes->wants.report = false;
    if (wants->ended) nodes->wants.ended = false;
    pthread_mutex_unlock(&nodes->lock);
    if (wants->report)
        TUTTI_TRY(post_failure(nodes, wants->failure, nodes->options.node, wants->exit_code, wants->text));
    if (!wants->ended) return TUTTI_OK;
    nodes->ended = true;
    nodes->notice = (tutti_notice){0};
    nodes->ending = tutti_deadline_after_ms(-1);
    return count_ended(nodes, nodes->options.node);
}

/* Starts an attempt: gathers all nodes for it. */
static tutti_status begin(tutti_launch_nodes *nodes, int attempt) {
    nodes->attempt = attempt;
    nodes->nevents = 0;
    nodes->ended = false;
    TUTTI_TRY(tutti_launch_nodes_gather(nodes));
    nodes->met = nodes->open = true;
    pthread_mutex_lock(&nodes->lock);
    nodes->news.joined = true;
    nodes->news.attempt = attempt;
    pthread_mutex_unlock(&nodes->lock);
    notify_loop(nodes);
    return TUTTI_OK;
}

/* Checks the other nodes while the attempt runs. */
static tutti_status watch(tutti_launch_nodes *nodes) {
    char text[160];
    int silent = -1;
    bool enough = false;
    TUTTI_TRY(tutti_launch_show_life(nodes, &silent, text, sizeof text));
    if (silent >= 0 && nodes->open) {
        TUTTI_TRY(post_failure(nodes, TUTTI_LAUNCH_FAILED, silent, 1, text));
        TUTTI_TRY(count_ended(nodes, silent));
    }
    if (nodes->open && nodes->ended) {
        pthread_mutex_lock(&nodes->lock);
        bool failed = nodes->news.failed_node >= 0;
        pthread_mutex_unlock(&nodes->lock);
        TUTTI_TRY(tutti_launch_mind_ending(nodes, failed, &enough));
    }
    if (enough) conclude(nodes, TUTTI_LAUNCH_DONE);
    return listen(nodes);
}

static tutti_status take_part(tutti_launch_nodes *nodes) {
    TUTTI_TRY(tutti_launch_nodes_reach(nodes));
    for (;;) {
        tutti_launch_wishes wants = tutti_launch_wishes_of(nodes);
        if (!nodes->met || wants.attempt != nodes->attempt) TUTTI_TRY(begin(nodes, wants.attempt));
        wants = tutti_launch_wishes_of(nodes);
        TUTTI_TRY(carry_out(nodes, &wants));
        if (wants.close) return TUTTI_OK;
        TUTTI_TRY(watch(nodes));
    }
}

/* Reports to the loop that the store cannot be reached any longer, or that the nodes did not come together. */
static void tell_lost(tutti_launch_nodes *nodes, tutti_status status) {
    char silent[32];
    pthread_mutex_lock(&nodes->lock);
    nodes->news.verdict = TUTTI_LAUNCH_LOST;
    if (status == TUTTI_ERR_TIMEOUT && nodes->client != NULL)
        snprintf(nodes->news.text, sizeof nodes->news.text,
                 "no answer from %.200s:%d for %s (TUTTI_PEER_TIMEOUT_MS): node 0's host is down or hangs, or the "
                 "network in between is cut",
                 nodes->options.host, nodes->options.port, tutti_launch_seconds(nodes->options.silent_ms, silent));
    else snprintf(nodes->news.text, sizeof nodes->news.text, "%.599s", tutti_last_error());
    pthread_mutex_unlock(&nodes->lock);
    notify_loop(nodes);
}

/* Ends all waits of the thread when the loop has requested to close long enough ago. */
static int wants_out(void *context) {
    tutti_launch_nodes *nodes = context;
    tutti_launch_wishes wants = tutti_launch_wishes_of(nodes);
    if (!wants.close) return 0;
    if (nodes->client == NULL) return 1; /* no other node waits for a message from this one */
    int64_t most_ms = wants.leave == TUTTI_LAUNCH_LEAVE_PROMPTLY ? PROMPT_MS : 2 * nodes->options.silent_ms;
    return tutti_now_ns() - wants.close_ns > most_ms * TUTTI_NS_PER_MS;
}

static void *talk(void *argument) {
    tutti_launch_nodes *nodes = argument;
    tutti_interrupt_set(wants_out, nodes);
    tutti_status status = take_part(nodes);
    if (status != TUTTI_OK) tell_lost(nodes, status);
    if ((status == TUTTI_OK || nodes->apart) && !nodes->is_twin) tutti_launch_say_goodbye(nodes);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- keeper */

/* Publishes the death of this tuttirun: a verdict while the nodes gather, a failure while ranks run, and only a
 * goodbye at the end. */
static tutti_status testify(tutti_launch_nodes *nodes, const char *text) {
    char verdict[TUTTI_LAUNCH_EVENT_BYTES];
    int node = nodes->options.node, there = 0;
    bool here;
    int64_t generation = 0, count;
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_key_of(nodes, "generation"), 0, &generation));
    nodes->attempt = (int)generation;
    TUTTI_TRY(tutti_launch_is_here(nodes, &here));
    if (!here) return TUTTI_OK; /* it had not joined; the others wait for it as for any missing node */
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_node_key(nodes, "left", node), 1, &count));
    snprintf(verdict, sizeof verdict, "node %d: %.600s", node, text);
    tutti_status status = tutti_launch_give_verdict(nodes, verdict);
    TUTTI_TRY(status);
    TUTTI_TRY(nodes->store.check(nodes->store.context, tutti_launch_node_key(nodes, "over", node).text, &there));
    if (there) return TUTTI_OK;
    TUTTI_TRY(post_failure(nodes, TUTTI_LAUNCH_FAILED, node, 128 + SIGKILL, text));
    return count_ended(nodes, node);
}

void tutti_launch_nodes_testify(const tutti_launch_nodes_options *options) {
    static tutti_launch_nodes nodes = {.event_fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};
    const tutti_store_client_options wanted = {
        .secret = options->secret, .connect_ms = options->silent_ms, .answer_ms = options->silent_ms};
    char text[400];
    nodes.options = *options;
    snprintf(text, sizeof text, "tuttirun on host %.256s was killed or has crashed", options->own_host);
    if (tutti_store_client_reach(options->host, options->port, &wanted, &nodes.client) != TUTTI_OK) return;
    nodes.store = tutti_store_client_callbacks(nodes.client);
    (void)testify(&nodes, text);
    tutti_store_client_close(nodes.client);
}

/* ----------------------------------------------------------------------------------------- launcher's loop */

static tutti_status start(tutti_launch_nodes *nodes) {
    nodes->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (nodes->event_fd < 0) return tutti_fail_errno(errno, "eventfd");
    if (nodes->options.node == 0)
        TUTTI_TRY(tutti_calloc((size_t)nodes->options.nnodes, sizeof *nodes->heartbeats, &nodes->heartbeats));
    int error = tutti_thread_start(TUTTI_THREAD_NODES, talk, nodes, &nodes->thread);
    return error == 0 ? TUTTI_OK : tutti_fail_errno(error, "cannot start a thread");
}

static void destroy(tutti_launch_nodes *nodes) {
    tutti_store_client_close(nodes->client);
    if (nodes->event_fd >= 0) close(nodes->event_fd);
    pthread_mutex_destroy(&nodes->lock);
    free(nodes->heartbeats);
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
    nodes->news.failed_node = -1;
    nodes->news.joined = false;
    nodes->wants.attempt = attempt;
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

void tutti_launch_nodes_close(tutti_launch_nodes *nodes, tutti_launch_leave leave) {
    if (nodes == NULL) return;
    pthread_mutex_lock(&nodes->lock);
    nodes->wants.close = true;
    nodes->wants.leave = leave;
    nodes->wants.close_ns = tutti_now_ns();
    pthread_mutex_unlock(&nodes->lock);
    pthread_join(nodes->thread, NULL);
    destroy(nodes);
}
