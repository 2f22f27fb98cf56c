/*
 * Lists of nodes, as in OneFlow: the command is the same on every node, and each node finds its own number. Names
 * and addresses may be mixed; Slurm's short form "node[1-4]" is accepted, and so is the list of OneFlow's programs,
 * [{"addr": "192.168.1.12"}, {"addr": "192.168.1.11"}]. A file may have the list in any of these forms.
 */
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/launcher.h"
#include "bootstrap/machine/async_call.h"
#include "bootstrap/machine/interfaces.h"
#include "tools/tuttirun/launch.h"

enum { HOST_BYTES = 256, NAMES_MS = 10000, LOOK_MS = 100, MOST_FILE_BYTES = 1 << 20 };

/* ------------------------------------------------------------------------------------------------ forms */

static const char *skip_blanks(const char *text) {
    while (isspace((unsigned char)*text)) text++;
    return text;
}

/* Reads "text" or 'text' at `*next`, without escapes; returns its length, 0: there is none. */
static size_t read_quoted(const char **next, const char **text_out) {
    const char quote = **next;
    if (quote != '"' && quote != '\'') return 0;
    const char *end = strchr(*next + 1, quote);
    if (end == NULL) return 0;
    *text_out = *next + 1;
    *next = skip_blanks(end + 1);
    return (size_t)(end - *text_out);
}

/* Reads "HOST" or {"addr": "HOST"}; returns the length of HOST, 0: it is neither. */
static size_t read_item(const char **next, const char **host_out) {
    const char *name;
    if (**next != '{') return read_quoted(next, host_out);
    *next = skip_blanks(*next + 1);
    if (read_quoted(next, &name) != 4 || strncmp(name, "addr", 4) != 0 || **next != ':') return 0;
    *next = skip_blanks(*next + 1);
    const size_t bytes = read_quoted(next, host_out);
    if (bytes == 0 || **next != '}') return 0;
    *next = skip_blanks(*next + 1);
    return bytes;
}

/* Rewrites OneFlow's list in place as hosts separated by commas, which is never longer. */
static bool rewrite_list(char *list) {
    const char *next = skip_blanks(list + 1), *host;
    char *end = list;
    while (*next != ']') {
        const size_t bytes = read_item(&next, &host);
        if (bytes == 0 || memchr(host, ',', bytes) != NULL || (*next != ',' && *next != ']')) return false;
        if (*next == ',') next = skip_blanks(next + 1);
        if (end != list) *end++ = ',';
        memmove(end, host, bytes);
        end += bytes;
    }
    if (end == list || *skip_blanks(next + 1) != '\0') return false;
    *end = '\0';
    return true;
}

/* Separates hosts by commas where the file has blanks or lines. */
static void join_lines(char *list) {
    char *end = list;
    for (const char *next = skip_blanks(list); *next != '\0';) {
        const char *after = skip_blanks(next);
        if (after == next) {
            *end++ = *next++;
            continue;
        }
        if (*after != '\0' && *after != ',' && end[-1] != ',') *end++ = ',';
        next = after;
    }
    if (end != list && end[-1] == ',') end--;
    *end = '\0';
}

static tutti_status read_list_file(const char *path, char **text_out) {
    char *text;
    FILE *file = fopen(path, "re");
    if (file == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "--nodes @%s: cannot read it: %s", path, strerror(errno));
    const tutti_status status = tutti_calloc(MOST_FILE_BYTES + 1, 1, &text);
    const size_t bytes = status == TUTTI_OK ? fread(text, 1, MOST_FILE_BYTES, file) : 0;
    const bool failed = ferror(file) != 0, longer = bytes == MOST_FILE_BYTES;
    fclose(file);
    TUTTI_TRY(status);
    *text_out = text;
    if (!failed && !longer && memchr(text, '\0', bytes) == NULL && *skip_blanks(text) != '\0') return TUTTI_OK;
    free(text);
    return tutti_fail(TUTTI_ERR_ARGUMENT,
                      "--nodes @%s: %s; it must have the hosts of the job, separated by commas or lines", path,
                      failed   ? "cannot read it"
                      : longer ? "it is too long"
                               : "it is not a text, or empty");
}

tutti_status tutti_launch_expand_nodes(const char *text, char **list_out) {
    char *list;
    const bool in_file = text[0] == '@';
    if (in_file) TUTTI_TRY(read_list_file(text + 1, &list));
    else TUTTI_TRY(tutti_strdup(text, &list));
    const char *begin = skip_blanks(list);
    const char *first = *begin == '[' ? skip_blanks(begin + 1) : begin;
    if (*begin != '[' || strchr("{\"'", *first) == NULL || *first == '\0') { /* else Slurm's "[1-4]" */
        if (in_file) join_lines(list);
        *list_out = list;
        return TUTTI_OK;
    }
    memmove(list, begin, strlen(begin) + 1);
    if (rewrite_list(list)) {
        *list_out = list;
        return TUTTI_OK;
    }
    free(list);
    return tutti_fail(TUTTI_ERR_ARGUMENT,
                      "--nodes %.200s: a list in brackets must be like [{\"addr\": \"192.168.1.12\"}, {\"addr\": "
                      "\"192.168.1.11\"}]",
                      text);
}

/* ---------------------------------------------------------------------------------------------- this node */

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
    if (tutti_host_is_own(host) || strcmp(host, tutti_setting_text(TUTTI_SETTING_ADVERTISE)) == 0) return true;
    return !tutti_address_read(host, address) && resolves_here(s, host);
}

void tutti_launch_list_own(char *text, size_t capacity) {
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
        tutti_launch_list_own(own, sizeof own);
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
