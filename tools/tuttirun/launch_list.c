/*
 * Lists of nodes, as in OneFlow: the command is the same on every node, and each node finds its own number. Names
 * and addresses may be mixed; Slurm's short form "node[1-4]" is accepted.
 */
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/notice.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/launcher/slurm.h"
#include "bootstrap/machine/interfaces.h"
#include "bootstrap/machine/lookup.h"
#include "tools/tuttirun/launch.h"

enum { HOST_BYTES = 256, NAMES_MS = 10000, LOOK_MS = 100 };

/* The search for this host in a list; resolving all names together takes at most most_ms. */
typedef struct search {
    int64_t most_ms;
    tutti_deadline deadline;
    tutti_notice notice;
    int unanswered; /* names for which no name server has answered */
} search;

/* Whether one of the addresses of the name belongs to this host. "127.0.1.1", which Debian assigns to a host's own
 * name, does. */
static bool are_here(const struct addrinfo *found) {
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        char text[INET6_ADDRSTRLEN];
        if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0) continue;
        if (tutti_host_is_own(text) || strcmp(text, "127.0.1.1") == 0) return true;
    }
    return false;
}

static bool resolves_here(search *s, const char *host) {
    const struct addrinfo *found = NULL;
    tutti_lookup *lookup;
    bool passed = tutti_deadline_passed(&s->deadline), here = false;
    if (passed || tutti_lookup_start(host, 0, &lookup) != TUTTI_OK) {
        s->unanswered++;
        return false;
    }
    tutti_status status;
    while ((status = tutti_lookup_look(lookup, LOOK_MS, &found)) == TUTTI_NOT_YET) {
        if (tutti_deadline_passed(&s->deadline)) break;
        if (tutti_notice_due(&s->notice, s->deadline.spent_ns))
            tutti_launch_say(
                "looks for this host in --nodes, for up to %lld ms: no name server has answered for '%s' so far",
                (long long)s->most_ms, host);
    }
    s->unanswered += status == TUTTI_NOT_YET;
    if (status == TUTTI_OK) here = are_here(found);
    tutti_lookup_end(lookup);
    return here;
}

static bool is_here(search *s, const char *host) {
    uint8_t address[16];
    if (tutti_host_is_own(host)) return true;
    return !tutti_address_read(host, address) && resolves_here(s, host);
}

/* Writes "eth0 10.0.0.1, lo 127.0.0.1": the addresses of this host. */
static void list_own(char *text, size_t capacity) {
    enum { MOST_SHOWN = 16 };
    tutti_interface own[MOST_SHOWN];
    int count = 0;
    size_t used = 0;
    text[0] = '\0';
    if (tutti_interfaces_all(own, MOST_SHOWN, &count) != TUTTI_OK) return;
    for (int i = 0; i < count && used < capacity; i++) {
        char address[TUTTI_ADDRESS_TEXT_BYTES];
        tutti_address_text(own[i].address, 0, address);
        used += (size_t)snprintf(text + used, capacity - used, "%s%s %s", i > 0 ? ", " : "", own[i].name, address);
    }
}

tutti_status tutti_launch_read_nodes(const char *list, int *nnodes_out, char *first_out, size_t capacity) {
    int nnodes = tutti_hostlist_count(list);
    if (nnodes < 1 || !tutti_hostlist_get(list, 0, first_out, capacity))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--nodes %s: must be hosts separated by commas, or like node[1-4]", list);
    *nnodes_out = nnodes;
    return TUTTI_OK;
}

tutti_status tutti_launch_find_node(const char *list, int *node_out) {
    char host[HOST_BYTES], own[1024];
    int found = -1, nnodes = tutti_hostlist_count(list);
    search s = {.most_ms = tutti_min_i64(NAMES_MS, tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS))};
    s.deadline = tutti_deadline_after_ms(s.most_ms);
    for (int i = 0; i < nnodes; i++) {
        if (!tutti_hostlist_get(list, i, host, sizeof host) || !is_here(&s, host)) continue;
        if (found >= 0)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "--nodes %s: nodes %d and %d are both this host; give --node-rank",
                              list, found, i);
        found = i;
    }
    if (found < 0) {
        char names[80] = "";
        list_own(own, sizeof own);
        if (s.unanswered > 0)
            snprintf(names, sizeof names, " (for %d names, no name server has answered within %lld ms)", s.unanswered,
                     (long long)s.most_ms);
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "--nodes %s: none of them is this host, which has the addresses %s%s; give --node-rank", list,
                          own, names);
    }
    *node_out = found;
    return TUTTI_OK;
}
