/*
 * Heartbeats of the nodes, and how they leave. See launch_nodes.h.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bootstrap/base/common.h"
#include "tools/tuttirun/launch.h"
#include "tools/tuttirun/launch_nodes_state.h"

/* After a failure the ranks get at most 30 s to end (launch_group.c); a node does not wait for others longer than
 * ENDING_MS. */
enum {
    HEARTBEAT_MS = 1000,
    ENDING_MS = 40000,
    FIRST_PAUSE_MS = 5,
    LAST_PAUSE_MS = 100,
    PROMPT_MS = 800,
    APART_MS = 2000
};

/* ---------------------------------------------------------------------------------------------- heartbeats */

/* Node 0 checks the counters of the others. A node whose counter is 0 has not joined yet. */
static tutti_status look_at_beats(tutti_launch_nodes *nodes, int64_t now_ns, int *silent_out, char *text,
                                  size_t capacity) {
    for (int i = 1; i < nodes->options.nnodes && *silent_out < 0; i++) {
        tutti_launch_heartbeat *other = &nodes->heartbeats[i];
        char name[40];
        int64_t count;
        snprintf(name, sizeof name, "beat/%d", i);
        TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_key_of(nodes, name), 0, &count));
        if (count != other->count) *other = (tutti_launch_heartbeat){.count = count, .seen_ns = now_ns};
        int64_t quiet_ns = now_ns - other->seen_ns;
        if (count == 0 || other->silent || quiet_ns < nodes->options.silent_ms * TUTTI_NS_PER_MS) continue;
        int here = 0; /* a node that was lost in an earlier attempt is missing in this one, not silent */
        TUTTI_TRY(nodes->store.check(nodes->store.context, tutti_launch_node_key(nodes, "here", i).text, &here));
        if (!here) continue;
        other->silent = true;
        *silent_out = i;
        snprintf(text, capacity, "its tuttirun has sent no heartbeat for %lld s",
                 (long long)(quiet_ns / TUTTI_NS_PER_S));
    }
    return TUTTI_OK;
}

tutti_status tutti_launch_show_life(tutti_launch_nodes *nodes, int *silent_out, char *text, size_t capacity) {
    int64_t now_ns = tutti_now_ns(), count;
    char name[40];
    *silent_out = -1;
    if (now_ns - nodes->heartbeat_ns < HEARTBEAT_MS * TUTTI_NS_PER_MS) return TUTTI_OK;
    if (now_ns - nodes->heartbeat_ns >
        nodes->options.silent_ms * TUTTI_NS_PER_MS / 2) /* this process itself was stopped */
        for (int i = 0; i < nodes->options.nnodes && nodes->heartbeats != NULL; i++)
            nodes->heartbeats[i].seen_ns = now_ns;
    nodes->heartbeat_ns = now_ns;
    snprintf(name, sizeof name, "beat/%d", nodes->options.node);
    TUTTI_TRY(tutti_launch_add(nodes, tutti_launch_key_of(nodes, name), 1, &count));
    return nodes->heartbeats != NULL ? look_at_beats(nodes, now_ns, silent_out, text, capacity) : TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ ending */

tutti_status tutti_launch_mind_ending(tutti_launch_nodes *nodes, bool failed, bool *enough_out) {
    char absent[TUTTI_LAUNCH_LINE_BYTES], limit[32];
    int count = 0;
    bool late = failed && nodes->ending.spent_ns >= ENDING_MS * TUTTI_NS_PER_MS;
    (void)tutti_deadline_passed(&nodes->ending);
    *enough_out = false;
    if (!late && (nodes->notice.said > 0 || !tutti_notice_due(&nodes->notice, nodes->ending.spent_ns))) return TUTTI_OK;
    TUTTI_TRY(tutti_launch_list_absent(nodes, "over", absent, sizeof absent, &count));
    *enough_out = late;
    if (count == 0) return TUTTI_OK;
    if (late)
        tutti_launch_say("the ranks of %s have not ended within %s of ours; does not wait for them any longer", absent,
                         tutti_launch_seconds(ENDING_MS, limit));
    else if (failed)
        tutti_launch_say("the ranks here have ended; waits for those of %s, for up to %s", absent,
                         tutti_launch_seconds(ENDING_MS, limit));
    else tutti_launch_say("the ranks here have ended; waits for those of %s, which still run", absent);
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- goodbye */

/* The nodes whose goodbye is missing. Silent nodes cannot send one; if the nodes did not come together, only those
 * that had joined send one. */
static tutti_status list_lingering(tutti_launch_nodes *nodes, char *text, size_t capacity, int *count_out) {
    char one[300];
    size_t used = 0;
    *count_out = 0;
    text[0] = '\0';
    for (int i = 1; i < nodes->options.nnodes; i++) {
        tutti_launch_heartbeat *other = &nodes->heartbeats[i];
        int there = 0;
        if (other->left || other->silent) continue;
        TUTTI_TRY(nodes->store.check(nodes->store.context, tutti_launch_node_key(nodes, "left", i).text, &there));
        other->left = there != 0;
        if (!other->left && nodes->apart) {
            TUTTI_TRY(nodes->store.check(nodes->store.context, tutti_launch_node_key(nodes, "here", i).text, &there));
            other->left = there == 0;
        }
        if (other->left) continue;
        ++*count_out;
        if (used < capacity)
            used += (size_t)snprintf(text + used, capacity - used, "%s%s", used > 0 ? ", " : "",
                                     tutti_launch_name_node(nodes, i, one, sizeof one));
    }
    return TUTTI_OK;
}

static int64_t grace_ms(const tutti_launch_nodes *nodes, const tutti_launch_wishes *wants) {
    if (wants->close && wants->leave == TUTTI_LAUNCH_LEAVE_PROMPTLY) return PROMPT_MS;
    return nodes->apart ? APART_MS : nodes->options.silent_ms;
}

void tutti_launch_say_goodbye(tutti_launch_nodes *nodes) {
    char lingering[TUTTI_LAUNCH_LINE_BYTES], limit[32];
    int64_t count, pause_ms = FIRST_PAUSE_MS;
    tutti_launch_wishes wants = tutti_launch_wishes_of(nodes);
    int64_t most_ms = grace_ms(nodes, &wants);
    tutti_deadline deadline = tutti_deadline_after_ms(most_ms);
    int nlingering = 0;
    nodes->notice = (tutti_notice){0};
    if (tutti_launch_add(nodes, tutti_launch_node_key(nodes, "left", nodes->options.node), 1, &count) != TUTTI_OK ||
        nodes->heartbeats == NULL)
        return;
    while (list_lingering(nodes, lingering, sizeof lingering, &nlingering) == TUTTI_OK && nlingering > 0) {
        if (tutti_deadline_passed(&deadline)) {
            if (wants.leave == TUTTI_LAUNCH_LEAVE && !nodes->apart)
                tutti_launch_say("%s: no goodbye within %s; stops the store", lingering,
                                 tutti_launch_seconds(most_ms, limit));
            return;
        }
        if (tutti_notice_due(&nodes->notice, deadline.spent_ns))
            tutti_launch_say("waits for %s to end, for up to %s", lingering, tutti_launch_seconds(most_ms, limit));
        nanosleep(&(struct timespec){.tv_nsec = pause_ms * TUTTI_NS_PER_MS}, NULL);
        pause_ms = tutti_min_i64(2 * pause_ms, LAST_PAUSE_MS);
    }
}
