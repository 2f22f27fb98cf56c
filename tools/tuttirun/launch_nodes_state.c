/*
 * What the thread of the nodes uses throughout: keys and values in the store, names of nodes, and the loop's requests.
 */
#include "tools/tuttirun/launch_nodes_state.h"

#include <stdio.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/launcher/launcher.h"

enum { MOST_NAMED = 8 };

/* ------------------------------------------------------------------------------------------------ store */

tutti_launch_key tutti_launch_key_of(const tutti_launch_nodes *nodes, const char *name) {
    tutti_launch_key made;
    snprintf(made.text, sizeof made.text, "tuttirun/%.200s/%s", nodes->options.run_id, name);
    return made;
}

tutti_launch_key tutti_launch_attempt_key(const tutti_launch_nodes *nodes, const char *name) {
    tutti_launch_key made;
    snprintf(made.text, sizeof made.text, "tuttirun/%.200s/%d/%s", nodes->options.run_id, nodes->attempt, name);
    return made;
}

tutti_launch_key tutti_launch_node_key(const tutti_launch_nodes *nodes, const char *name, int node) {
    char numbered[64];
    snprintf(numbered, sizeof numbered, "%s/%d", name, node);
    return tutti_launch_attempt_key(nodes, numbered);
}

tutti_status tutti_launch_add(tutti_launch_nodes *nodes, tutti_launch_key at, int64_t amount, int64_t *value_out) {
    return nodes->store.add(nodes->store.context, at.text, amount, value_out);
}

tutti_status tutti_launch_set(tutti_launch_nodes *nodes, tutti_launch_key at, const char *text) {
    return nodes->store.set(nodes->store.context, at.text, text, strlen(text));
}

tutti_status tutti_launch_get(tutti_launch_nodes *nodes, tutti_launch_key at, char *text, size_t capacity,
                              int64_t wait_ms) {
    size_t bytes = 0;
    tutti_status status = nodes->store.get(nodes->store.context, at.text, text, capacity - 1, &bytes, wait_ms);
    if (status == TUTTI_ERR_TIMEOUT && !tutti_store_client_is_broken(nodes->client)) return TUTTI_NOT_YET;
    TUTTI_TRY(status);
    text[bytes] = '\0';
    tutti_make_printable(text); /* any process that can reach the store may have written it */
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- texts */

const char *tutti_launch_seconds(int64_t ms, char text[32]) {
    snprintf(text, 32, "%.*f s", ms % 1000 != 0, (double)ms / 1000);
    return text;
}

const char *tutti_launch_name_node(const tutti_launch_nodes *nodes, int node, char *text, size_t capacity) {
    char host[256];
    if (nodes->options.list != NULL && tutti_hostlist_get(nodes->options.list, node, host, sizeof host))
        snprintf(text, capacity, "node %d (%s)", node, host);
    else snprintf(text, capacity, "node %d", node);
    return text;
}

tutti_status tutti_launch_list_absent(tutti_launch_nodes *nodes, const char *name, char *text, size_t capacity,
                                      int *count_out) {
    char one[300];
    size_t used = 0;
    int count = 0;
    text[0] = '\0';
    for (int i = 0; i < nodes->options.nnodes; i++) {
        int there = 0;
        TUTTI_TRY(nodes->store.check(nodes->store.context, tutti_launch_node_key(nodes, name, i).text, &there));
        if (there || ++count > MOST_NAMED || used >= capacity) continue;
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", used > 0 ? ", " : "",
                                 tutti_launch_name_node(nodes, i, one, sizeof one));
    }
    if (count > MOST_NAMED && used < capacity)
        snprintf(text + used, capacity - used, " and %d more", count - MOST_NAMED);
    *count_out = count;
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- requests */

tutti_launch_wishes tutti_launch_wishes_of(tutti_launch_nodes *nodes) {
    pthread_mutex_lock(&nodes->lock);
    tutti_launch_wishes wants = nodes->wants;
    pthread_mutex_unlock(&nodes->lock);
    return wants;
}
