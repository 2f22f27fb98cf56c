/*
 * Gathering of the nodes of a job: each reaches the store on node 0, publishes how it was started, and waits until
 * all nodes have done so. launch_nodes.h lists the keys.
 *
 * Each node compares itself only with node 0, so two other nodes need not compare with each other. The verdict is
 * given once: the node that draws the first number writes it, and all others follow it. The store is untrusted:
 * values read from it are bounded and checked.
 */
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"
#include "tools/tuttirun/launch.h"
#include "tools/tuttirun/launch_nodes_state.h"

enum { RECORD_BYTES = 400, VERDICT_MS = 2000 };

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

tutti_status tutti_launch_nodes_reach(tutti_launch_nodes *nodes) {
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

/* The node that gives the verdict does not read it back: node 0 may stop the store as soon as all others have read
 * it. */
tutti_status tutti_launch_give_verdict(tutti_launch_nodes *nodes, const char *text) {
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

tutti_status tutti_launch_is_here(tutti_launch_nodes *nodes, bool *here_out) {
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
    tutti_status status = tutti_launch_give_verdict(nodes, text);
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
        return tutti_launch_give_verdict(nodes, text);
    }
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_attempt_key(nodes, "joined"), 1, &count));
    return count == nodes->options.nnodes ? tutti_launch_give_verdict(nodes, "all") : TUTTI_OK;
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
    return tutti_launch_give_verdict(nodes, text);
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
    return tutti_launch_give_verdict(nodes, text);
}

tutti_status tutti_launch_nodes_gather(tutti_launch_nodes *nodes) {
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
