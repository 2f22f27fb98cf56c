/*
 * The nodes of one job: how they gather, what they report to each other, and the loop's calls. See launch_nodes.h.
 *
 * One thread makes all requests to the store; `lock` guards the data that it shares with the launcher's loop: `news`,
 * written by the thread, and `wants`, written by the loop.
 *
 * Each node compares itself only with node 0, so two other nodes need not compare with each other. The verdict is given
 * once: the node that draws the first number writes it, and all others follow it. The store is untrusted: values read
 * from it are bounded and checked.
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
#include "tools/tuttirun/launch.h"
#include "tools/tuttirun/launch_nodes_state.h"

enum { RECORD_BYTES = 400, VERDICT_MS = 2000, PROMPT_MS = 1000 };

/* ------------------------------------------------------------------------------------------------- reaching */

static void say_late(void *context, int64_t waited_ns, const char *reason) {
    tutti_launch_nodes *nodes = context;
    const tutti_launch_nodes_options *options = &nodes->options;
    char limit[32];
    snprintf(nodes->reason, sizeof nodes->reason, "%.159s", reason);
    if (!tutti_notice_due(&nodes->notice, waited_ns)) return;
    tutti_launch_say("waits for node 0's tuttirun at %s:%d (%s so far), for up to %s", options->host, options->port,
                     nodes->reason, tutti_launch_seconds(options->join_ms, limit));
}

static tutti_status fail_reach(const tutti_launch_nodes *nodes) {
    const tutti_launch_nodes_options *options = &nodes->options;
    char limit[32];
    return tutti_fail(
        TUTTI_ERR_TIMEOUT,
        "node 0's tuttirun was not there at %s:%d within %s (TUTTI_CONNECT_TIMEOUT_MS; last: %s): start it "
        "with --node-rank 0 on that host, or correct --master-addr and --master-port",
        options->host, options->port, tutti_launch_seconds(options->join_ms, limit), nodes->reason);
}

static tutti_status reach(tutti_launch_nodes *nodes) {
    const tutti_launch_nodes_options *options = &nodes->options;
    const tutti_store_client_options wanted = {.secret = options->secret,
                                               .connect_ms = options->join_ms,
                                               .answer_ms = options->silent_ms,
                                               .late = say_late,
                                               .context = nodes};
    int64_t generation = 0, count;
    snprintf(nodes->reason, sizeof nodes->reason, "no answer");
    tutti_status status = tutti_store_client_reach(options->host, options->port, &wanted, &nodes->client);
    if (status == TUTTI_ERR_TIMEOUT) return fail_reach(nodes);
    TUTTI_TRY(status);
    nodes->store = tutti_store_client_callbacks(nodes->client);
    nodes->heartbeat_ns = tutti_now_ns();
    char name[40];
    snprintf(name, sizeof name, "beat/%d", options->node);
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_key_of(nodes, name), 1, &count));
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_key_of(nodes, "generation"), 0, &generation));
    if (generation < 0 || generation > options->max_restarts)
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "the job at %s:%d is at attempt %lld, but --max-restarts is %d here; set the same on all nodes",
            options->host, options->port, (long long)generation + 1, options->max_restarts);
    pthread_mutex_lock(&nodes->lock);
    nodes->attempt = nodes->news.attempt = nodes->wants.attempt = (int)generation;
    pthread_mutex_unlock(&nodes->lock);
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------------- verdict */

static tutti_status take_verdict(tutti_launch_nodes *nodes, const char *text) {
    if (strcmp(text, "all") == 0) return TUTTI_OK;
    nodes->apart = true;
    return tutti_fail(TUTTI_ERR_ABORTED, "%s", text);
}

/* Reads the verdict. TUTTI_NOT_YET: there is none so far; TUTTI_ERR_ABORTED: the nodes cannot start together. */
static tutti_status read_verdict(tutti_launch_nodes *nodes, int64_t wait_ms) {
    char text[TUTTI_LAUNCH_EVENT_BYTES];
    TUTTI_TRY(tutti_launch_get(nodes, tutti_launch_attempt_key(nodes, "gathered"), text, sizeof text, wait_ms));
    return take_verdict(nodes, text);
}

/* Publishes "all" or the reason why the nodes cannot start together, unless another node was first. Returns what
 * `gather` returns for the text that was published first. The node that gives the verdict does not read it back: node 0
 * may stop the store as soon as all others have read it. */
static tutti_status give_verdict(tutti_launch_nodes *nodes, const char *text) {
    int64_t number;
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "verdict"), 1, &number));
    if (number == 1) {
        TUTTI_TRY(tutti_launch_set(nodes, tutti_launch_attempt_key(nodes, "gathered"), text));
        return take_verdict(nodes, text);
    }
    tutti_status status = read_verdict(nodes, VERDICT_MS);
    if (status != TUTTI_NOT_YET) return status;
    nodes->apart = true;
    return tutti_fail(TUTTI_ERR_ABORTED,
                      "the node that decides whether all nodes have joined has ended before it published its verdict");
}

/* -------------------------------------------------------------------------------------------------- records */

/* How a node was started. */
typedef struct record {
    int version, nnodes, nproc, table_hash, max_restarts, pid;
    char host[256];
} record;

static const char *const record_format = "%d %d %d %d %d %d %255[^\n]";

static record own_record(const tutti_launch_nodes *nodes) {
    const tutti_launch_nodes_options *options = &nodes->options;
    record own = {.version = TUTTI_VERSION_MAJOR * 1000000 + TUTTI_VERSION_MINOR * 1000 + TUTTI_VERSION_PATCH,
                  .nnodes = options->nnodes,
                  .nproc = options->nproc,
                  .table_hash = options->table_hash,
                  .max_restarts = options->max_restarts,
                  .pid = options->pid};
    snprintf(own.host, sizeof own.host, "%s", options->own_host[0] != '\0' ? options->own_host : "?");
    return own;
}

/* TUTTI_NOT_YET: that node has not published its record. */
static tutti_status read_record(tutti_launch_nodes *nodes, int node, int64_t wait_ms, record *record_out) {
    char text[RECORD_BYTES];
    record r = {0};
    TUTTI_TRY(tutti_launch_get(nodes, tutti_launch_node_key(nodes, "join", node), text, sizeof text, wait_ms));
    if (sscanf(text, record_format, &r.version, &r.nnodes, &r.nproc, &r.table_hash, &r.max_restarts, &r.pid, r.host) !=
        7)
        return tutti_fail(TUTTI_ERR_DATA,
                          "the store at %s:%d holds '%.60s' for node %d: it is not the store of a tuttirun",
                          nodes->options.host, nodes->options.port, text, node);
    *record_out = r;
    return TUTTI_OK;
}

static tutti_status write_record(tutti_launch_nodes *nodes) {
    char text[RECORD_BYTES];
    record own = own_record(nodes);
    snprintf(text, sizeof text, "%d %d %d %d %d %d %s", own.version, own.nnodes, own.nproc, own.table_hash,
             own.max_restarts, own.pid, own.host);
    return tutti_launch_set(nodes, tutti_launch_node_key(nodes, "join", nodes->options.node), text);
}

/* Whether this tuttirun is the one that has joined with the number of this node. */
static tutti_status is_here(tutti_launch_nodes *nodes, bool *here_out) {
    record own = own_record(nodes), there;
    int exists = 0;
    *here_out = false;
    TUTTI_TRY(nodes->store.check(nodes->store.context, tutti_launch_node_key(nodes, "join", nodes->options.node).text,
                                 &exists));
    if (!exists) return TUTTI_OK;
    TUTTI_TRY(read_record(nodes, nodes->options.node, VERDICT_MS, &there));
    *here_out = there.pid == own.pid && strcmp(there.host, own.host) == 0;
    return TUTTI_OK;
}

/* Another tuttirun has this number already. A running attempt is not disturbed by that. */
static tutti_status refuse_twin(tutti_launch_nodes *nodes) {
    record other = {.host = "?"}, own = own_record(nodes);
    nodes->is_twin = true;
    char text[TUTTI_LAUNCH_EVENT_BYTES];
    (void)read_record(nodes, nodes->options.node, VERDICT_MS, &other);
    snprintf(text, sizeof text,
             "node number %d is taken twice: by tuttirun on host %.100s (pid %d) and by tuttirun on host %.100s (pid "
             "%d); give each node a --node-rank of its own",
             nodes->options.node, other.host, other.pid, own.host, own.pid);
    tutti_status status = give_verdict(nodes, text);
    if (status != TUTTI_OK) return status;
    return tutti_fail(TUTTI_ERR_CONFIG, "%s", text);
}

/* Writes "--nnodes 2 --max-restarts 3": the values of `one` that differ from those of `other`; "" if all are equal. */
static void list_different(const record *one, const record *other, char *text, size_t capacity) {
    const struct {
        const char *what;
        int one, other;
    } pairs[] = {{"--nnodes", one->nnodes, other->nnodes},
                 {"--nproc-per-node", one->nproc, other->nproc},
                 {"a --rank-table of hash", one->table_hash, other->table_hash},
                 {"--max-restarts", one->max_restarts, other->max_restarts},
                 {"Tutti of version", one->version, other->version}};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < TUTTI_COUNT_OF(pairs) && used < capacity; i++)
        if (pairs[i].one != pairs[i].other)
            used += (size_t)snprintf(text + used, capacity - used, "%s%s %d", used > 0 ? " " : "", pairs[i].what,
                                     pairs[i].one);
}

/* ------------------------------------------------------------------------------------------------ gathering */

/* Compares with node 0, and counts this node as joined. TUTTI_NOT_YET: node 0 has not published its record. */
static tutti_status count_in(tutti_launch_nodes *nodes) {
    record first, own = own_record(nodes);
    char ours[160], theirs[160], text[TUTTI_LAUNCH_EVENT_BYTES];
    int64_t count = 0;
    TUTTI_TRY(read_record(nodes, 0, TUTTI_LAUNCH_LISTEN_MS, &first));
    list_different(&own, &first, ours, sizeof ours);
    list_different(&first, &own, theirs, sizeof theirs);
    if (ours[0] != '\0') {
        snprintf(text, sizeof text,
                 "node %d (host %.100s) was started with %s, node 0 (host %.100s) with %s: all nodes must be started "
                 "with the same",
                 nodes->options.node, own.host, ours, first.host, theirs);
        return give_verdict(nodes, text);
    }
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "joined"), 1, &count));
    return count == nodes->options.nnodes ? give_verdict(nodes, "all") : TUTTI_OK;
}

/* Node 0 names the missing nodes, the others only count them: a thousand nodes that each query a thousand keys
 * would be too much load. */
static tutti_status list_missing(tutti_launch_nodes *nodes, char *text, size_t capacity) {
    const tutti_launch_nodes_options *options = &nodes->options;
    int64_t joined = 0;
    int missing;
    if (options->node == 0) {
        TUTTI_TRY(tutti_launch_list_absent(nodes, "here", text, capacity, &missing));
        if (missing == 0) snprintf(text, capacity, "a node that has joined and makes no progress");
        return TUTTI_OK;
    }
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "joined"), 0, &joined));
    snprintf(text, capacity, "%lld of %d nodes", (long long)(options->nnodes - joined), options->nnodes);
    return TUTTI_OK;
}

static tutti_status say_missing(tutti_launch_nodes *nodes) {
    char missing[TUTTI_LAUNCH_LINE_BYTES], limit[32];
    TUTTI_TRY(list_missing(nodes, missing, sizeof missing));
    tutti_launch_say("waits for %s to join, for up to %s", missing,
                     tutti_launch_seconds(nodes->options.join_ms, limit));
    return TUTTI_OK;
}

static tutti_status give_up(tutti_launch_nodes *nodes) {
    char missing[TUTTI_LAUNCH_LINE_BYTES], text[TUTTI_LAUNCH_EVENT_BYTES], limit[32];
    TUTTI_TRY(list_missing(nodes, missing, sizeof missing));
    snprintf(text, sizeof text,
             "%s did not join within %s (TUTTI_CONNECT_TIMEOUT_MS; expected: %d nodes): start tuttirun there with its "
             "--node-rank, and check that it can reach %.100s:%d",
             missing, tutti_launch_seconds(nodes->options.join_ms, limit), nodes->options.nnodes, nodes->options.master,
             nodes->options.port);
    return give_verdict(nodes, text);
}

/* Ends the gathering if this node itself ends or another has fallen silent. TUTTI_NOT_YET: neither is the case. */
static tutti_status mind_ends(tutti_launch_nodes *nodes) {
    char text[TUTTI_LAUNCH_EVENT_BYTES], what[600] = "its tuttirun has ended";
    int node = nodes->options.node;
    tutti_launch_wishes wants = tutti_launch_wishes_of(nodes);
    if (wants.report) snprintf(what, sizeof what, "%s", wants.text);
    else if (!wants.close) TUTTI_TRY(tutti_launch_show_life(nodes, &node, what, sizeof what));
    if (node < 0) return TUTTI_NOT_YET;
    snprintf(text, sizeof text, "node %d: %s", node, what);
    return give_verdict(nodes, text);
}

/* Returns TUTTI_OK when all nodes have joined the attempt; or fails with TUTTI_ERR_ABORTED, sets `apart` and leaves the
 * reason as the error text of the thread. */
static tutti_status gather(tutti_launch_nodes *nodes) {
    int64_t grace_ms = nodes->options.node == 0 ? 0 : VERDICT_MS; /* node 0 can name the missing nodes */
    tutti_deadline deadline = tutti_deadline_after_ms(nodes->options.join_ms + grace_ms);
    int64_t number = 0;
    bool counted = false;
    nodes->notice = (tutti_notice){0};
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_node_key(nodes, "here", nodes->options.node), 1, &number));
    if (number != 1) return refuse_twin(nodes);
    TUTTI_TRY(write_record(nodes));
    for (;;) {
        tutti_status status = counted ? TUTTI_OK : count_in(nodes);
        counted = counted || status == TUTTI_OK;
        if (status == TUTTI_OK) status = read_verdict(nodes, TUTTI_LAUNCH_LISTEN_MS);
        if (status == TUTTI_NOT_YET) status = mind_ends(nodes);
        if (status != TUTTI_NOT_YET) return status;
        if (tutti_deadline_passed(&deadline)) return give_up(nodes);
        if (tutti_notice_due(&nodes->notice, deadline.spent_ns)) TUTTI_TRY(say_missing(nodes));
    }
}

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
    TUTTI_TRY(gather(nodes));
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
    TUTTI_TRY(reach(nodes));
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
    TUTTI_TRY(is_here(nodes, &here));
    if (!here) return TUTTI_OK; /* it had not joined; the others wait for it as for any missing node */
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_node_key(nodes, "left", node), 1, &count));
    snprintf(verdict, sizeof verdict, "node %d: %.600s", node, text);
    tutti_status status = give_verdict(nodes, verdict);
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
